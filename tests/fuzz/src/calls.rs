//! A guest that calls for its keys and models with any numbers, addresses and lengths, from a real instance of the engine.
//!
//! ```text
//!   program -> calls and their arguments -> instance with 64 KiB of memory --imports--> host: two keys, two models
//! ```
//!
//! After each call, the whole memory must be as a second, simple record says: a call that failed has changed nothing, and one that succeeded has
//! written its result into the range that it was given, and not one byte more. A signature covers what a server signs, with a key that there
//! is; a ticket that opens was sealed by the same key with these contents; an output is what the input's model makes of what was set.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use pinion_abi::{Errno, LogLevel, TICKET_OVERHEAD_BYTES, TICKET_PLAIN_BYTES_MAX};
use pinion_guest::calls::keys::{Keys, Sign};
use pinion_guest::calls::nn::{Graphs, NnCall, NnErrno, Tensor, TensorType};
use pinion_guest::calls::state::NoState;
use pinion_guest::calls::{self, Asks, Host};
use pinion_guest::files::{Files, Space};
use pinion_keys::{PrivateKey, ServerKey, TicketError};
use wasmtime::{Caller, Engine, Instance, InstancePre, Linker, Memory, Module, Store, Val};

const STEPS_MAX: usize = 48;
const MEMORY_BYTES: usize = 1 << 16;
/// What a turn may move. Less than the larger model's tensors, so that calls go on in the next turn.
const TURN_BYTES: u32 = 40_000;
const CONTEXTS_MAX: usize = 8;
const NOW_S: u64 = 1_000;

/// Where the guest has what calls take, so that a program finds it.
const NAMES: [(u32, &[u8]); 4] = [(64, b"site"), (80, b"other"), (96, b"small"), (112, b"large")];
const MESSAGES_AT: [u32; 3] = [12_288, 12_544, 12_800];
const DIMENSIONS_AT: [u32; 2] = [256, 288];
const TENSORS_AT: [u32; 2] = [512, 544];
const FREE_AT: u32 = 16_384;
/// Elements of the models' inputs: four numbers of 32 bits, and many bytes.
const SMALL_SHAPE: [u32; 2] = [1, 4];
const LARGE_SHAPE: [u32; 1] = [45_000];
/// Addresses and lengths that programs name by a byte.
const ADDRESSES: [u32; 16] =
    [64, 80, 96, 112, 12_288, 12_544, 12_800, 256, 512, 544, FREE_AT, 20_480, 24_576, 0, 65_535, u32::MAX];
const LENGTHS: [u32; 16] = [0, 4, 5, 16, 20, 32, 33, 64, 65, 100, 130, 133, 512, 4_096, 4_128, 45_000];
const SCHEMES: [u32; 8] = [0x0403, 0x0807, 0x0804, 0x0401, 0x0503, 0, 0xffff, 0x1_0403];
/// The schemes of both keys.
const SCHEMES_OF_KEYS: [u32; 2] = [0x0807, 0x0403];

/// The calls, in the order of their numbers in programs, and how many arguments they take.
const CALLS: [(&str, &str, usize); 10] = [
    ("pinion", "key_open", 2),
    ("pinion", "key_sign", 6),
    ("pinion", "ticket_seal", 5),
    ("pinion", "ticket_open", 5),
    ("wasi_ephemeral_nn", "load", 5),
    ("wasi_ephemeral_nn", "load_by_name", 3),
    ("wasi_ephemeral_nn", "init_execution_context", 2),
    ("wasi_ephemeral_nn", "set_input", 3),
    ("wasi_ephemeral_nn", "compute", 1),
    ("wasi_ephemeral_nn", "get_output", 5),
];

/// How often a program's calls succeeded, by their number.
pub type Succeeded = [usize; CALLS.len()];

static KEYS: LazyLock<[ServerKey; 2]> = LazyLock::new(|| {
    let pems: [&[u8]; 2] = [
        include_bytes!("../../../control/keys/tests/data/ed25519.pem"),
        include_bytes!("../../../control/keys/tests/data/p256.pem"),
    ];
    pems.map(|pem| ServerKey::new(PrivateKey::from_pem(pem).expect("it is a key")))
});

static GUEST: LazyLock<InstancePre<FuzzHost>> = LazyLock::new(|| {
    let engine = Engine::default();
    let module = Module::new(&engine, wat::parse_str(text()).expect("it is a text")).expect("it is a module");
    let mut linker = Linker::new(&engine);
    calls::define(&mut linker).and_then(|()| define_of_node(&mut linker)).expect("each call is defined once");
    linker.instantiate_pre(&module).expect("all that it imports is there")
});

/// Returns a module that exports all calls.
fn text() -> String {
    let words = |count: usize| "i32 ".repeat(count);
    let import = |(module, name, count): &(&str, &str, usize)| {
        format!("(import \"{module}\" \"{name}\" (func ${name} (param {}) (result i32)))", words(*count))
    };
    let export = |(_, name, count): &(&str, &str, usize)| {
        let arguments: String = (0..*count).map(|argument| format!("(local.get {argument})")).collect();
        let types = words(*count);
        format!("(func (export \"{name}\") (param {types}) (result i32) (call ${name} {arguments}))")
    };
    let (imports, exports) = (CALLS.iter().map(import), CALLS.iter().map(export));
    let all: String = imports.chain(["(memory (export \"memory\") 1 1)".to_owned()]).chain(exports).collect();
    format!("(module {all})")
}

/// Runs a program. Returns which calls succeeded.
///
/// # Panics
/// If a call did something forbidden, or did not do something required.
pub fn check(program: &[u8]) -> Succeeded {
    let mut program = Program(program);
    let mut siege = Siege::new();
    for _ in 0..STEPS_MAX {
        match program.step() {
            None => break,
            Some(Step::Scribble { at, bytes }) => siege.scribble(at, bytes),
            Some(Step::Call { number, arguments }) => siege.call(number, arguments),
        }
    }
    siege.succeeded
}

/// The bytes of a program that are still to be read.
struct Program<'a>(&'a [u8]);

enum Step {
    Call { number: usize, arguments: [u32; 6] },
    Scribble { at: u32, bytes: [u8; 8] },
}

impl Program<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn step(&mut self) -> Option<Step> {
        let [kind] = self.bytes()?;
        let number = usize::from(kind) % (CALLS.len() + 1);
        if number == CALLS.len() {
            return Some(Step::Scribble { at: self.word()?, bytes: self.bytes()? });
        }
        let mut arguments = [0; 6];
        for argument in arguments.iter_mut().take(CALLS[number].2) {
            *argument = self.word()?;
        }
        Some(Step::Call { number, arguments })
    }

    /// Returns a number of the program's choice. A byte chooses one that calls may take, or says how many bytes it has.
    fn word(&mut self) -> Option<u32> {
        let [choice] = self.bytes()?;
        let index = usize::from(choice >> 3);
        Some(match choice % 8 {
            0 => u32::from_le_bytes(self.bytes()?),
            1 => index as u32,
            2 => MEMORY_BYTES as u32 - u32::from(u16::from_le_bytes(self.bytes()?) % 1_024),
            3 => u16::from_le_bytes(self.bytes()?).into(),
            4 => (index as u32).wrapping_neg(),
            5 => ADDRESSES[index % ADDRESSES.len()],
            6 => LENGTHS[index % LENGTHS.len()],
            _ => SCHEMES[index % SCHEMES.len()],
        })
    }
}

/// A guest's host: as in a node, but that jobs are done at once.
struct FuzzHost {
    memory: Option<Memory>,
    left_bytes: u32,
    contexts: Vec<Context>,
}

/// A context of the model `small` or `large`, in the host and in the record. A run gives the bytes of its input backwards.
struct Context {
    graph: u32,
    input: Option<Vec<u8>>,
    output: Option<Vec<u8>>,
}

fn model(graph: u32) -> Option<(TensorType, &'static [u32], usize)> {
    match graph {
        0 => Some((TensorType::F32, &SMALL_SHAPE, 16)),
        1 => Some((TensorType::U8, &LARGE_SHAPE, 45_000)),
        _ => None,
    }
}

/// Defines the calls that take other threads' time, or several turns, in a node.
fn define_of_node(linker: &mut Linker<FuzzHost>) -> wasmtime::Result<()> {
    fn in_turns(mut caller: Caller<'_, FuzzHost>, mut call: NnCall) -> i32 {
        for _ in 0..16 {
            if let Some(errno) = call.step(&mut caller) {
                return errno;
            }
            caller.data_mut().left_bytes = TURN_BYTES;
        }
        panic!("{call:?} takes too many turns");
    }
    linker
        .func_wrap("pinion", "key_sign", key_sign)?
        .func_wrap(
            "wasi_ephemeral_nn",
            "load_by_name",
            |caller: Caller<'_, FuzzHost>, name: i32, len: i32, graph: i32| {
                in_turns(caller, NnCall::LoadByName { name, len, graph })
            },
        )?
        .func_wrap(
            "wasi_ephemeral_nn",
            "init_execution_context",
            |caller: Caller<'_, FuzzHost>, graph: i32, context: i32| {
                in_turns(caller, NnCall::InitExecutionContext { graph, context })
            },
        )?
        .func_wrap(
            "wasi_ephemeral_nn",
            "set_input",
            |caller: Caller<'_, FuzzHost>, context: i32, index: i32, tensor: i32| {
                in_turns(caller, NnCall::set_input(context, index, tensor))
            },
        )?
        .func_wrap("wasi_ephemeral_nn", "compute", |mut caller: Caller<'_, FuzzHost>, context: i32| {
            caller.data_mut().compute(context as u32) as i32
        })?
        .func_wrap(
            "wasi_ephemeral_nn",
            "get_output",
            |caller: Caller<'_, FuzzHost>, context: i32, index: i32, buffer: i32, capacity: i32, size: i32| {
                in_turns(caller, NnCall::get_output(context, index, buffer, capacity, size))
            },
        )?;
    Ok(())
}

fn key_sign(
    mut caller: Caller<'_, FuzzHost>,
    key: i32,
    scheme: i32,
    message: i32,
    len: i32,
    signature: i32,
    capacity: i32,
) -> i32 {
    let signed = Sign::begin(&mut caller, (key, scheme, message, len, signature, capacity)).and_then(|call| {
        let key = KEYS.get(call.key as usize).ok_or(Errno::NoKey)?;
        let signed = key.key.sign(call.scheme, &call.message).map_err(|_| Errno::Refused)?;
        Ok(call.finish(&mut caller, &signed))
    });
    signed.unwrap_or_else(Errno::negated)
}

impl FuzzHost {
    fn compute(&mut self, context: u32) -> NnErrno {
        let Some(context) = self.contexts.get_mut(context as usize) else { return NnErrno::InvalidArgument };
        context.output = None;
        let Some(input) = &context.input else { return NnErrno::InvalidArgument };
        context.output = Some(input.iter().rev().copied().collect());
        NnErrno::Success
    }
}

impl Keys for FuzzHost {
    fn number(&self, name: &[u8]) -> Option<u32> {
        [NAMES[0].1, NAMES[1].1].iter().position(|known| *known == name).map(|number| number as u32)
    }

    fn seal_ticket(&self, key: u32, plain: &[u8], sealed: &mut [u8]) -> Result<usize, Errno> {
        let key = KEYS.get(key as usize).ok_or(Errno::NoKey)?;
        key.tickets.seal(NOW_S, plain, sealed).map_err(errno)
    }

    fn open_ticket(&self, key: u32, sealed: &[u8], plain: &mut [u8]) -> Result<usize, Errno> {
        let key = KEYS.get(key as usize).ok_or(Errno::NoKey)?;
        key.tickets.open(NOW_S, sealed, plain).map_err(errno)
    }
}

fn errno(error: TicketError) -> Errno {
    if error == TicketError::TooLong { Errno::TooLong } else { Errno::Refused }
}

impl Graphs for FuzzHost {
    fn graph(&self, name: &[u8]) -> Result<u32, NnErrno> {
        let number = [NAMES[2].1, NAMES[3].1].iter().position(|known| *known == name);
        number.map(|number| number as u32).ok_or(NnErrno::NotFound)
    }

    fn begin(&mut self, graph: u32) -> Result<u32, NnErrno> {
        model(graph).ok_or(NnErrno::InvalidArgument)?;
        if self.contexts.len() == CONTEXTS_MAX {
            return Err(NnErrno::TooLarge);
        }
        self.contexts.push(Context { graph, input: None, output: None });
        Ok(self.contexts.len() as u32 - 1)
    }

    fn input(&mut self, context: u32, index: u32, tensor: &Tensor) -> Result<&mut [u8], NnErrno> {
        let context = self.contexts.get_mut(context as usize).ok_or(NnErrno::InvalidArgument)?;
        let (element, shape, bytes) = model(context.graph).ok_or(NnErrno::InvalidArgument)?;
        let is_alike = tensor.element == element && tensor.dimensions() == shape && tensor.bytes == bytes;
        if index != 0 || !is_alike {
            return Err(NnErrno::InvalidArgument);
        }
        Ok(context.input.get_or_insert_with(|| vec![0; bytes]))
    }

    fn output(&self, context: u32, index: u32) -> Result<&[u8], NnErrno> {
        let context = self.contexts.get(context as usize).filter(|_| index == 0).ok_or(NnErrno::InvalidArgument)?;
        context.output.as_deref().ok_or(NnErrno::InvalidArgument)
    }
}

impl Host for FuzzHost {
    type State = NoState;

    fn charge(&mut self, bytes: u32) -> bool {
        let left = self.left_bytes.checked_sub(bytes);
        self.left_bytes = left.unwrap_or(self.left_bytes);
        left.is_some()
    }

    fn overdraw(&mut self) -> bool {
        false
    }

    fn log(&mut self, _: LogLevel, _: &[u8]) {}

    fn lose_line(&mut self) {}

    fn config(&self) -> Arc<[u8]> {
        Arc::new([])
    }

    fn files(&mut self) -> Option<(&mut Files, &mut dyn Space)> {
        None
    }

    fn keep_streams(&mut self) {}

    fn clock_ns(&self) -> u64 {
        0
    }

    fn clock_step_ns(&self) -> u64 {
        1
    }

    fn wall_clock_ns(&mut self) -> u64 {
        0
    }

    fn keep_alive_until(&mut self, _: u64) -> u64 {
        0
    }

    fn random(&mut self, _: Asks, _: &mut [u8]) -> wasmtime::Result<()> {
        Ok(())
    }

    fn panic(sentence: String) -> wasmtime::Error {
        wasmtime::Error::msg(sentence)
    }

    fn memory(&self) -> Option<Memory> {
        self.memory
    }

    fn field(&self, _: &[u8]) -> Option<u32> {
        None
    }

    fn state(&self) -> Result<&NoState, Errno> {
        Err(Errno::NotNow)
    }

    fn with_keys(&self, work: impl FnOnce(&dyn Keys) -> Result<usize, Errno>) -> Result<usize, Errno> {
        work(self)
    }

    fn exit(status: i32) -> wasmtime::Error {
        wasmtime::Error::msg(status.to_string())
    }

    fn give_way(_: &Caller<'_, Self>) {}
}

/// The guest, its host, and the record.
struct Siege {
    store: Store<FuzzHost>,
    instance: Instance,
    memory: Memory,
    /// By key and ticket: its content.
    tickets: HashMap<(u32, Vec<u8>), Vec<u8>>,
    contexts: Vec<Context>,
    succeeded: Succeeded,
}

impl Siege {
    fn new() -> Self {
        let host = FuzzHost { memory: None, left_bytes: 0, contexts: Vec::new() };
        let mut store = Store::new(GUEST.module().engine(), host);
        let instance = GUEST.instantiate(&mut store).expect("it needs nothing");
        let memory = instance.get_memory(&mut store, "memory").expect("it exports one");
        store.data_mut().memory = Some(memory);
        lay_out(memory.data_mut(&mut store));
        Self { store, instance, memory, tickets: HashMap::new(), contexts: Vec::new(), succeeded: [0; CALLS.len()] }
    }

    fn scribble(&mut self, at: u32, bytes: [u8; 8]) {
        if let Some(place) = range(self.memory.data_mut(&mut self.store), at, 8) {
            place.copy_from_slice(&bytes);
        }
    }

    fn call(&mut self, number: usize, arguments: [u32; 6]) {
        let (_, name, count) = CALLS[number];
        // Each call has a turn of its own.
        self.store.data_mut().left_bytes = TURN_BYTES;
        let before = self.memory.data(&self.store).to_vec();
        let function = self.instance.get_func(&mut self.store, name).expect("it exports each call");
        let words: Vec<Val> = arguments[..count].iter().map(|argument| Val::I32(*argument as i32)).collect();
        let mut results = [Val::I32(0)];
        function.call(&mut self.store, &words, &mut results).expect("no call ends the guest");
        let returned = results[0].unwrap_i32();
        let mut expected = before.clone();
        let what = (name, arguments, returned);
        let has_succeeded = self.judge(number, arguments, returned, &before, &mut expected);
        assert!(self.memory.data(&self.store) == expected, "memory is not as it must be: {what:?}");
        self.succeeded[number] += usize::from(has_succeeded);
    }

    /// Checks the result of a call, and changes `expected` as the call must have. Returns whether it succeeded.
    fn judge(&mut self, number: usize, arguments: [u32; 6], returned: i32, before: &[u8], expected: &mut [u8]) -> bool {
        let what = (CALLS[number].1, arguments, returned);
        let [a, b, c, d, e, f] = arguments;
        let is_key_call = number < 4;
        if is_key_call && returned < 0 {
            assert!((-12..0).contains(&returned), "{what:?}");
            return false;
        }
        if !is_key_call && returned != 0 {
            assert!((1..=8).contains(&returned), "{what:?}");
            // A run that failed has no output.
            if let (8, Some(context)) = (number, self.contexts.get_mut(a as usize)) {
                context.output = None;
            }
            return false;
        }
        let given =
            |at: u32, len: u32| part(before, at, len).unwrap_or_else(|| panic!("it is not in memory: {what:?}"));
        let written = |at: u32, len: usize| part(self.memory.data(&self.store), at, len as u32).map(<[u8]>::to_vec);
        match number {
            0 => assert_eq!(given(a, b), NAMES[usize::try_from(returned).expect("it is a number")].1),
            1 => {
                let signature = written(e, returned as usize).filter(|signature| signature.len() <= f as usize);
                let signature = signature.unwrap_or_else(|| panic!("it has no room: {what:?}"));
                assert!(is_signed_by_servers(given(c, d)) && SCHEMES_OF_KEYS[a as usize] == b, "{what:?}");
                place(expected, e, &signature);
            }
            2 => {
                let ticket = written(d, returned as usize).filter(|ticket| ticket.len() <= e as usize);
                let ticket = ticket.unwrap_or_else(|| panic!("it has no room: {what:?}"));
                assert_eq!(ticket.len(), c as usize + TICKET_OVERHEAD_BYTES, "{what:?}");
                assert!(c as usize <= TICKET_PLAIN_BYTES_MAX);
                place(expected, d, &ticket);
                let content = given(b, c).to_vec();
                assert!(self.tickets.insert((a, ticket), content).is_none(), "two are alike");
            }
            3 => {
                let content = self.tickets.get(&(a, given(b, c).to_vec()));
                let content = content.unwrap_or_else(|| panic!("it was never sealed: {what:?}"));
                assert_eq!(content.len(), returned as usize, "{what:?}");
                place(expected, d, content);
            }
            4 => panic!("a guest has brought a model: {what:?}"),
            5 => {
                let graph = NAMES[2..].iter().position(|(_, name)| *name == given(a, b));
                place(expected, c, &(graph.expect("it was found") as u32).to_le_bytes());
            }
            6 => {
                place(expected, b, &(self.contexts.len() as u32).to_le_bytes());
                self.contexts.push(Context { graph: a, input: None, output: None });
                assert!(model(a).is_some() && self.contexts.len() <= CONTEXTS_MAX, "{what:?}");
            }
            7 => {
                let record = given(c, 20);
                let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
                let input = given(word(12), word(16)).to_vec();
                let context = &mut self.contexts[a as usize];
                assert_eq!((b, input.len()), (0, model(context.graph).expect("it has one").2), "{what:?}");
                context.input = Some(input);
            }
            8 => {
                let context = &mut self.contexts[a as usize];
                context.output = Some(context.input.as_deref().expect("it was set").iter().rev().copied().collect());
            }
            _ => {
                let output = self.contexts[a as usize].output.as_deref().expect("it has run");
                assert!(b == 0 && output.len() <= d as usize, "{what:?}");
                place(expected, c, output);
                place(expected, e, &(output.len() as u32).to_le_bytes());
            }
        }
        true
    }
}

/// Fills a guest's memory with what calls take.
fn lay_out(memory: &mut [u8]) {
    NAMES.iter().for_each(|(at, name)| place(memory, *at, name));
    let tls13 =
        |hash_bytes| [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &vec![0xab; hash_bytes]].concat();
    let tls12 = [&[0x5a; 64][..], &[3, 0, 29, 32], &[9; 32]].concat();
    for (at, message) in MESSAGES_AT.into_iter().zip([tls13(32), tls12, tls13(48)]) {
        place(memory, at, &message);
    }
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    for (at, shape) in DIMENSIONS_AT.into_iter().zip([&SMALL_SHAPE[..], &LARGE_SHAPE]) {
        place(memory, at, &words(shape));
    }
    place(memory, TENSORS_AT[0], &words(&[DIMENSIONS_AT[0], 2, TensorType::F32 as u32, FREE_AT, 16]));
    place(memory, TENSORS_AT[1], &words(&[DIMENSIONS_AT[1], 1, TensorType::U8 as u32, FREE_AT, 45_000]));
}

/// Returns whether a TLS server signs this, by another implementation than the node's.
fn is_signed_by_servers(message: &[u8]) -> bool {
    let tls13 = message.len() >= 98
        && message[..64] == [b' '; 64]
        && &message[64..98] == b"TLS 1.3, server CertificateVerify\0";
    let tls12 = || match message.get(64..68) {
        Some([3, 0, 29, 32]) => message.len() == 100,
        Some([3, 0, 23, 65]) => message.len() == 133 && message[68] == 4,
        Some([3, 0, 24, 97]) => message.len() == 165 && message[68] == 4,
        _ => false,
    };
    (tls13 && matches!(message.len(), 130 | 146)) || tls12()
}

fn part(memory: &[u8], at: u32, len: u32) -> Option<&[u8]> {
    memory.get(at as usize..(at as usize).checked_add(len as usize)?)
}

fn range(memory: &mut [u8], at: u32, len: u32) -> Option<&mut [u8]> {
    memory.get_mut(at as usize..(at as usize).checked_add(len as usize)?)
}

#[track_caller]
fn place(memory: &mut [u8], at: u32, bytes: &[u8]) {
    range(memory, at, bytes.len() as u32).expect("a result is within the memory").copy_from_slice(bytes);
}
