//! Why the builder refuses a module, in sentences for the tenant. Text from the module is made printable and stays on one line.

use std::time::Duration;

use pinion_abi::{ABI_VERSION, EXPORT_ABI_PREFIX};
use pinion_builder_client::NATIVE_BYTES_MAX;
use pinion_builder_client::metrics::BadMetrics;
use pinion_guest::files::BadBundle;
use pinion_guest::settings::{INSTANCE_BYTES_MAX, MEMORY_BYTES_MAX, TABLE_ELEMENTS_MAX};
use pinion_mma::guest::pool::PoolError;
use pinion_text::{NAME_BYTES_MAX, SENTENCE_BYTES_MAX, printable};

use crate::FUNCTION_BYTES_MAX;
use crate::limits::Limit;
use crate::model::BadModel;
use crate::progress::At;

/// An input of the builder, and its largest size.
#[derive(Debug, Clone, Copy)]
pub struct Input {
    /// What it is.
    pub what: &'static str,
    /// Its largest size, in bytes.
    pub bytes_max: usize,
}

/// Why a module is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It is too large.
    #[error("it has more bytes than {} may have, {}", .0.what, .0.bytes_max)]
    Large(Input),
    /// It is empty.
    #[error("it is empty: a WebAssembly module starts with \\0asm")]
    Empty,
    /// It is not WebAssembly at all.
    #[error("it is not a WebAssembly module: it starts with {0:02x?} instead of \\0asm")]
    NotWasm(Vec<u8>),
    /// It is a component where a core module is needed.
    #[error("it is a WebAssembly component; build a core module for wasm32-wasip1 instead")]
    Component,
    /// It uses a feature that is off.
    #[error(
        "it uses {what} (the `{proposal}` proposal), which nodes do not run: build it {how}: {}",
        printable(detail, SENTENCE_BYTES_MAX)
    )]
    Feature {
        /// The proposal that the feature comes from.
        proposal: &'static str,
        /// What it uses.
        what: &'static str,
        /// How to build it without that.
        how: &'static str,
        /// The place, in the validator's words.
        detail: String,
    },
    /// It is malformed.
    #[error("it does not compile: {}", sentence(.0))]
    Invalid(String),
    /// It does not declare the ABI.
    #[error("it exports no function {EXPORT_ABI_PREFIX}{ABI_VERSION}: build it with the Pinion SDK")]
    NoAbi,
    /// It declares another version of the ABI.
    #[error(
        "it speaks version {} of the Pinion ABI, this node version {ABI_VERSION}: build it again with the current SDK",
        as_name(.0)
    )]
    OtherAbi(String),
    /// An export of the ABI is missing or has another type.
    #[error("it must export {name} as {expected}")]
    Export {
        /// The export's name.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// It has an import that the node does not offer.
    #[error("it imports {}.{}, which this node does not offer", as_name(.module), as_name(.name))]
    UnknownImport {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
    },
    /// It has an import of a known name with another type.
    #[error("it imports {}.{} with another type than {expected}", as_name(.module), as_name(.name))]
    ImportType {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
        /// The type offered.
        expected: String,
    },
    /// It has an import that is only for stages with a grant of state.
    #[error(
        "it imports pinion.{}, and its stage is granted no state: grant it the fields that it uses (state = {{ FIELD = \"read\" }}, or \
         \"write\"), each declared as [state.FIELD]",
        as_name(.0)
    )]
    NoState(String),
    /// It has more tables than an instance has room for.
    #[error("it has {0} tables, and a function may have one")]
    Tables(u32),
    /// Its table is larger than an instance has room for.
    #[error(
        "its table has {0} elements, and {TABLE_ELEMENTS_MAX} are the most: call fewer functions by their addresses"
    )]
    TableElements(u64),
    /// It needs more bookkeeping memory of the engine than an instance has room for.
    #[error(
        "an instance of it takes {bytes} bytes beside its memory, and {INSTANCE_BYTES_MAX} are the most: it has {globals} globals, \
         and {functions} functions that are imported, exported or called by their addresses; have fewer"
    )]
    Instance {
        /// Bytes that an instance needs.
        bytes: u64,
        /// Its globals.
        globals: u64,
        /// Its functions that need such memory.
        functions: u64,
    },
    /// The engine has no room for an instance.
    #[error("an instance of it has no room on a node: {0}")]
    Room(String),
    /// It has a function with too much code.
    #[error(
        "its function {index} has {bytes} bytes of code, and a function may have {FUNCTION_BYTES_MAX}: divide it, or have \
         the compiler inline less into it"
    )]
    LongFunction {
        /// Its index, imported functions included.
        index: u32,
        /// The length of its code.
        bytes: usize,
    },
    /// It has a function that would take a compiler too much time or memory.
    #[error(
        "its function {index} has {count} {what}, and {max} are the most: divide it, or have the compiler inline less into it"
    )]
    Function {
        /// Its index, imported functions included.
        index: u32,
        /// What the function has too much of.
        what: &'static str,
        /// How many the function has.
        count: u64,
        /// The most that it may have.
        max: u64,
    },
    /// All functions together have too much of something.
    #[error("it has {count} {what} in all, and {max} are the most: have less code in it")]
    Code {
        /// What the functions have too much of.
        what: &'static str,
        /// How many they have.
        count: u64,
        /// The most that they may have.
        max: u64,
    },
    /// Its memory exceeds the limit of all chains from the start.
    #[error("it starts with {} KiB of memory, and {} KiB are the most that a chain can grant", .0 / 1024, MEMORY_BYTES_MAX / 1024)]
    MemoryMost(u64),
    /// Its native code is too large.
    #[error("its native code has {0} bytes, and {NATIVE_BYTES_MAX} are the most: have less code in it")]
    NativeCode(usize),
    /// The builder has reached a limit that a module has.
    #[error("building it took more than the {limit} that a module may have: {at}")]
    Limit {
        /// Which limit.
        limit: Limit,
        /// What the builder was doing.
        at: At,
    },
    /// It is no model, or none that nodes take.
    #[error(transparent)]
    Model(#[from] BadModel),
    /// The builder has reached a limit that a model has.
    #[error(
        "preparing it took more than the {0} that a model may have: it has too many weights or steps, or constants that grow"
    )]
    ModelLimit(Limit),
    /// Its memory exceeds its chain's limit from the start.
    #[error("it starts with {needed_kib} KiB of memory, and memory_limit_kib is {limit_kib}: raise it")]
    Memory {
        /// Its memory at the start.
        needed_kib: u64,
        /// The limit of its chain.
        limit_kib: u64,
    },
    /// It cannot be instantiated.
    #[error("it could not be instantiated: {}", sentence(.0))]
    NotInstantiated(String),
    /// Its `pinion_init` refused; the last line that it logged says why.
    #[error("its pinion_init refused with status {status}{}", said(.last_line))]
    InitRefused {
        /// What `pinion_init` returned.
        status: i32,
        /// The last line it logged.
        last_line: Option<String>,
    },
    /// It trapped before it was initialised.
    #[error("it trapped during its initialisation: {}{}{}", sentence(.message), said(.last_line), indented(.backtrace))]
    InitTrapped {
        /// What happened.
        message: String,
        /// The last line it logged.
        last_line: Option<String>,
        /// Where.
        backtrace: String,
    },
    /// Its archive of files is not valid.
    #[error("{0}")]
    Files(#[from] BadBundle),
    /// It has files open that no instance would have.
    #[error(
        "it has {0} files or directories open at the end of its initialisation: no instance would have them, so close them there"
    )]
    InitFilesOpen(usize),
    /// It has closed or changed a standard stream or the root directory, which every instance has in their initial state.
    #[error(
        "it has closed a standard stream or the root directory, or changed how one works, during its initialisation: no instance \
         would have it so, so do that in the run function"
    )]
    InitStreamsChanged,
    /// It panicked before it was initialised.
    #[error("it panicked during its initialisation: {}{}", sentence(.message), indented(.backtrace))]
    InitPanicked {
        /// The message of the panic.
        message: String,
        /// Where.
        backtrace: String,
    },
    /// It exited, waited, or made another call that is not allowed during the initialisation.
    #[error("it {0} during its initialisation")]
    InitMisuse(String),
    /// Its initialisation took more than this CPU time.
    #[error("its initialisation took longer than {} ms of processor time", .0.as_millis())]
    InitTime(Duration),
    /// The address of its pool header is outside its memory.
    #[error("its pinion_pool names {0:#x}, which is outside its memory")]
    Pool(u32),
    /// Its pool header is invalid, or describes an unusable pool.
    #[error("its packet pool is unusable: {0}")]
    PoolHeader(PoolError),
    /// Its metrics do not follow the contract.
    #[error(transparent)]
    Metrics(#[from] BadMetrics),
}

impl Refused {
    /// Returns why the engine refuses a module that is valid: it does not compile, or an instance of it fits no place of a node.
    pub(crate) fn of_engine(error: &wasmtime::Error) -> Self {
        const OF_ALLOCATOR: &str = "pooling allocator requirements";
        if error.chain().any(|cause| cause.to_string().contains(OF_ALLOCATOR)) {
            let reason = error.root_cause().to_string();
            return Self::Room(reason.lines().next().unwrap_or_default().to_owned());
        }
        Self::Invalid(format!("{error:#}"))
    }
}

fn said(last_line: &Option<String>) -> String {
    last_line.as_ref().map(|line| format!(": {}", sentence(line))).unwrap_or_default()
}

fn indented(backtrace: &str) -> String {
    backtrace.lines().map(|line| format!("\n{}", sentence(line))).collect()
}

/// Makes a name from the module printable.
fn as_name(text: &str) -> String {
    printable(text, NAME_BYTES_MAX)
}

/// Makes a text from the module or the engine printable.
fn sentence(text: &str) -> String {
    printable(text, SENTENCE_BYTES_MAX)
}
