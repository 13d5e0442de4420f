//! wasi-nn for core modules (`wasi_ephemeral_nn`, by the interface's file `wasi-nn.witx`): a guest runs the models that its stage was granted.
//!
//! This module is the boundary: it checks each pointer and each number, and copies tensors from and to guest memory. What a model is, and how
//! many contexts a guest may have, is up to the implementation of [`Graphs`]. A graph's number is the position of its grant. A
//! context's number is good for its instance only. `load` always fails: a guest brings no models of its own.
//!
//! Calls never fail because a turn's allowance is used up. They go on in the guest's next turn, and large tensors are copied in parts
//! ([`NnCall::step`]). `compute` is defined by the node, where it takes another thread's time.

use pinion_abi::STATE_KEY_BYTES_MAX;
use wasmtime::{Caller, Linker};

use super::{Host, has, memory, read, write};
use crate::memory::GuestMemory;

/// The import module of wasi-nn.
pub const NN_MODULE: &str = "wasi_ephemeral_nn";
/// The function that runs a model; defined by the node.
pub const NN_COMPUTE: &str = "compute";
/// The functions of which calls go on in several turns, with the calls that they begin.
pub const NN_LOAD_BY_NAME: &str = "load_by_name";
/// See [`NN_LOAD_BY_NAME`].
pub const NN_INIT_EXECUTION_CONTEXT: &str = "init_execution_context";
/// See [`NN_LOAD_BY_NAME`].
pub const NN_SET_INPUT: &str = "set_input";
/// See [`NN_LOAD_BY_NAME`].
pub const NN_GET_OUTPUT: &str = "get_output";

/// The longest name of a model, in bytes.
pub const MODEL_NAME_BYTES_MAX: usize = STATE_KEY_BYTES_MAX;
/// The most axes of a tensor.
const RANK_MAX: usize = 8;
/// The most bytes of a tensor that are copied between two looks at the turn's allowance.
const PART_BYTES: usize = 32 << 10;
/// The size of a tensor's record: a list of dimensions, a type, a list of bytes.
const TENSOR_BYTES: usize = 20;

/// The interface's errors (`$nn_errno`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum NnErrno {
    /// Done.
    Success = 0,
    /// A number, a shape, a type or an address is wrong, or an input is missing.
    InvalidArgument = 1,
    /// The encoding of a graph is not offered.
    InvalidEncoding = 2,
    /// The guest exports no memory.
    MissingMemory = 3,
    /// It can't be done now: while the guest is initialised, or as too many runs are waiting.
    Busy = 4,
    /// The run failed.
    RuntimeError = 5,
    /// The node does not offer this.
    UnsupportedOperation = 6,
    /// There is no room: for another context, or in the guest's buffer.
    TooLarge = 7,
    /// The stage was granted no model of this name.
    NotFound = 8,
}

/// The types of tensors' elements that this node knows (`$tensor_type`), by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorType {
    /// Numbers of single precision.
    F32 = 1,
    /// Bytes.
    U8 = 3,
    /// Signed numbers of 32 bits.
    I32 = 4,
    /// Signed numbers of 64 bits.
    I64 = 5,
}

/// A tensor that a guest passes, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// The type of its elements.
    pub element: TensorType,
    dimensions: [u32; RANK_MAX],
    rank: usize,
    /// Its size, in bytes, as the guest says.
    pub bytes: usize,
}

impl Tensor {
    /// Returns its shape.
    #[must_use]
    pub fn dimensions(&self) -> &[u32] {
        &self.dimensions[..self.rank]
    }
}

/// The models of a stage, and the contexts of a guest. Numbers come from guests and may be any.
pub trait Graphs {
    /// Returns the number of the model of this name, if the stage was granted it.
    ///
    /// # Errors
    /// Why the call failed; likewise for all other calls.
    fn graph(&self, name: &[u8]) -> Result<u32, NnErrno>;
    /// Makes a context for runs of a model. Returns its number. It is freed with the guest.
    ///
    /// # Errors
    /// See [`Graphs::graph`].
    fn begin(&mut self, graph: u32) -> Result<u32, NnErrno>;
    /// Returns the place for the bytes of an input, which has the size that the tensor says.
    ///
    /// # Errors
    /// See [`Graphs::graph`].
    fn input(&mut self, context: u32, index: u32, tensor: &Tensor) -> Result<&mut [u8], NnErrno>;
    /// Returns the bytes of an output of the context's last run.
    ///
    /// # Errors
    /// See [`Graphs::graph`].
    fn output(&self, context: u32, index: u32) -> Result<&[u8], NnErrno>;
}

/// Defines what needs no turns of its own.
pub(super) fn define<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker.func_wrap(NN_MODULE, "load", |_builders: i32, _count: i32, _encoding: i32, _target: i32, _graph: i32| {
        NnErrno::UnsupportedOperation as i32
    })?;
    Ok(())
}

/// A call that is under way.
#[derive(Debug)]
pub enum NnCall {
    /// `load_by_name`.
    LoadByName {
        /// The name's address.
        name: i32,
        /// The name's length, in bytes.
        len: i32,
        /// Where the graph's number goes.
        graph: i32,
    },
    /// `init_execution_context`.
    InitExecutionContext {
        /// The graph's number.
        graph: i32,
        /// Where the context's number goes.
        context: i32,
    },
    /// `set_input`.
    SetInput {
        /// The context's number.
        context: i32,
        /// The input's number.
        index: i32,
        /// The address of the tensor's record.
        tensor: i32,
        /// How many of the tensor's bytes were copied.
        copied: usize,
    },
    /// `get_output`.
    GetOutput {
        /// The context's number.
        context: i32,
        /// The output's number.
        index: i32,
        /// The address of the guest's buffer.
        buffer: i32,
        /// The buffer's size, in bytes.
        capacity: i32,
        /// Where the output's size goes.
        size: i32,
        /// How many bytes were copied.
        copied: usize,
    },
}

impl NnCall {
    /// Begins a call of `set_input`.
    #[must_use]
    pub fn set_input(context: i32, index: i32, tensor: i32) -> Self {
        Self::SetInput { context, index, tensor, copied: 0 }
    }

    /// Begins a call of `get_output`.
    #[must_use]
    pub fn get_output(context: i32, index: i32, buffer: i32, capacity: i32, size: i32) -> Self {
        Self::GetOutput { context, index, buffer, capacity, size, copied: 0 }
    }

    /// Does the next part, as far as this turn's allowance covers it. Returns the result of the call, or none if there is more to do: then the
    /// guest's turn is to end first.
    pub fn step<T: Host>(&mut self, caller: &mut Caller<'_, T>) -> Option<i32> {
        loop {
            if !caller.data_mut().charge(self.part_bytes()) {
                return None;
            }
            match self.part(caller) {
                Ok(Part::Last) => return Some(NnErrno::Success as i32),
                Ok(Part::More) => {}
                Err(errno) => return Some(errno as i32),
            }
        }
    }

    fn part_bytes(&self) -> u32 {
        match self {
            Self::LoadByName { .. } => MODEL_NAME_BYTES_MAX as u32,
            // It allocates.
            Self::InitExecutionContext { .. } => PART_BYTES as u32,
            Self::SetInput { .. } | Self::GetOutput { .. } => PART_BYTES as u32,
        }
    }

    fn part<T: Host>(&mut self, caller: &mut Caller<'_, T>) -> Result<Part, NnErrno> {
        if memory(caller).is_none() {
            return Err(NnErrno::MissingMemory);
        }
        match self {
            Self::LoadByName { name, len, graph } => load_by_name(caller, *name, *len, *graph),
            Self::InitExecutionContext { graph, context } => init_execution_context(caller, *graph, *context),
            Self::SetInput { context, index, tensor, copied } => set_input(caller, (*context, *index), *tensor, copied),
            Self::GetOutput { context, index, buffer, capacity, size, copied } => {
                get_output(caller, (*context, *index), (*buffer, *capacity), *size, copied)
            }
        }
    }
}

/// Whether a call is done.
enum Part {
    Last,
    More,
}

/// The error for a range that is not within the guest's memory.
const OUTSIDE: NnErrno = NnErrno::InvalidArgument;

fn load_by_name<T: Host>(caller: &mut Caller<'_, T>, ptr: i32, len: i32, graph: i32) -> Result<Part, NnErrno> {
    let mut name = [0; MODEL_NAME_BYTES_MAX];
    let name = name.get_mut(..len as u32 as usize).ok_or(NnErrno::NotFound)?;
    read(caller, ptr, name).ok_or(OUTSIDE)?;
    let number = caller.data().graph(name)?;
    write(caller, graph, &number.to_le_bytes()).ok_or(OUTSIDE)?;
    Ok(Part::Last)
}

fn init_execution_context<T: Host>(caller: &mut Caller<'_, T>, graph: i32, context: i32) -> Result<Part, NnErrno> {
    // Checked before a context is made of which the guest would not learn the number.
    if !has(caller, context, size_of::<u32>() as u64) {
        return Err(OUTSIDE);
    }
    let number = caller.data_mut().begin(graph as u32)?;
    write(caller, context, &number.to_le_bytes()).ok_or(OUTSIDE)?;
    Ok(Part::Last)
}

fn set_input<T: Host>(
    caller: &mut Caller<'_, T>,
    (context, index): (i32, i32),
    record: i32,
    copied: &mut usize,
) -> Result<Part, NnErrno> {
    with_memory(caller, |memory, host| {
        // Read anew with each part: the guest does not run in between, and what it holds is checked each time.
        let (tensor, data) = tensor(memory, record)?;
        let room = host.input(context as u32, index as u32, &tensor)?;
        let end = room.len().min(*copied + PART_BYTES);
        let part = room.get_mut(*copied..end).ok_or(OUTSIDE)?;
        memory.read(data.wrapping_add(*copied as i32), part).ok_or(OUTSIDE)?;
        *copied = end;
        Ok(if end == room.len() { Part::Last } else { Part::More })
    })
}

/// Reads a tensor's record. Returns the tensor, and the address of its bytes, all of which are within the memory.
fn tensor(memory: GuestMemory<'_>, record: i32) -> Result<(Tensor, i32), NnErrno> {
    let mut bytes = [0; TENSOR_BYTES];
    memory.read(record, &mut bytes).ok_or(OUTSIDE)?;
    let word = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (dimensions_at, rank, data, len) = (word(0), word(4) as u32 as usize, word(12), word(16) as u32 as usize);
    let element = match bytes[8] {
        1 => TensorType::F32,
        3 => TensorType::U8,
        4 => TensorType::I32,
        5 => TensorType::I64,
        _ => return Err(NnErrno::InvalidArgument),
    };
    let mut words = [0; RANK_MAX * 4];
    let words = words.get_mut(..rank.saturating_mul(4)).ok_or(NnErrno::InvalidArgument)?;
    memory.read(dimensions_at, words).ok_or(OUTSIDE)?;
    let mut dimensions = [0; RANK_MAX];
    for (dimension, word) in dimensions.iter_mut().zip(words.chunks_exact(4)) {
        *dimension = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    }
    if !memory.has(data, len) {
        return Err(OUTSIDE);
    }
    Ok((Tensor { element, dimensions, rank, bytes: len }, data))
}

fn get_output<T: Host>(
    caller: &mut Caller<'_, T>,
    (context, index): (i32, i32),
    (buffer, capacity): (i32, i32),
    size: i32,
    copied: &mut usize,
) -> Result<Part, NnErrno> {
    with_memory(caller, |memory, host| {
        let output = host.output(context as u32, index as u32)?;
        if output.len() > capacity as u32 as usize {
            return Err(NnErrno::TooLarge);
        }
        if !memory.has(buffer, output.len()) {
            return Err(OUTSIDE);
        }
        // Checked before anything is copied, and written when all was.
        if !memory.has(size, size_of::<u32>()) {
            return Err(OUTSIDE);
        }
        let end = output.len().min(*copied + PART_BYTES);
        let part = output.get(*copied..end).ok_or(OUTSIDE)?;
        memory.write(buffer.wrapping_add(*copied as i32), part).ok_or(OUTSIDE)?;
        *copied = end;
        if end < output.len() {
            return Ok(Part::More);
        }
        memory.write(size, &(output.len() as u32).to_le_bytes()).ok_or(OUTSIDE)?;
        Ok(Part::Last)
    })
}

fn with_memory<T: Host, R>(
    caller: &mut Caller<'_, T>,
    act: impl FnOnce(GuestMemory<'_>, &mut T) -> Result<R, NnErrno>,
) -> Result<R, NnErrno> {
    let memory = memory(caller).ok_or(NnErrno::MissingMemory)?;
    GuestMemory::with(caller, memory, act)
}
