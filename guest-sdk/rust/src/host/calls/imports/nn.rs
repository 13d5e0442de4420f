//! The calls of wasi-nn, imported from the module `wasi_ephemeral_nn`. A result is an error's number, or zero.

use core::ffi::c_void;

use crate::nn::Tensor;

/// A tensor as the interface's record (`$tensor`).
#[repr(C)]
struct Record {
    dimensions: *const u32,
    rank: usize,
    element: u8,
    data: *const u8,
    len: usize,
}

mod raw {
    use super::c_void;

    #[link(wasm_import_module = "wasi_ephemeral_nn")]
    unsafe extern "C" {
        pub(super) fn load_by_name(name: *const u8, len: usize, graph: *mut u32) -> i32;
        pub(super) fn init_execution_context(graph: u32, context: *mut u32) -> i32;
        pub(super) fn set_input(context: u32, index: u32, tensor: *const c_void) -> i32;
        pub(super) safe fn compute(context: u32) -> i32;
        pub(super) fn get_output(context: u32, index: u32, buffer: *mut u8, capacity: usize, size: *mut u32) -> i32;
    }
}

pub(crate) fn nn_load_by_name(name: &str) -> Result<u32, i32> {
    let mut graph = 0;
    // SAFETY: the host reads `len` bytes at `name`, which are readable, and writes 4 at `graph`, which are writable.
    done(unsafe { raw::load_by_name(name.as_ptr(), name.len(), &raw mut graph) })?;
    Ok(graph)
}

pub(crate) fn nn_init_execution_context(graph: u32) -> Result<u32, i32> {
    let mut context = 0;
    // SAFETY: the host writes 4 bytes at `context`, which are writable.
    done(unsafe { raw::init_execution_context(graph, &raw mut context) })?;
    Ok(context)
}

pub(crate) fn nn_set_input(context: u32, index: u32, tensor: &Tensor<'_>) -> i32 {
    let Tensor { element, shape, bytes } = tensor;
    let (dimensions, rank) = (shape.as_ptr(), shape.len());
    let record = Record { dimensions, rank, element: *element as u8, data: bytes.as_ptr(), len: bytes.len() };
    // SAFETY: the host reads the record, and so many dimensions and bytes as it says, and they are readable.
    unsafe { raw::set_input(context, index, (&raw const record).cast()) }
}

pub(crate) fn nn_compute(context: u32) -> i32 {
    raw::compute(context)
}

pub(crate) fn nn_get_output(context: u32, index: u32, buffer: &mut [u8]) -> Result<usize, i32> {
    let mut size = 0;
    // SAFETY: the host writes at most `capacity` bytes at `buffer` and 4 at `size`, and they are writable.
    done(unsafe { raw::get_output(context, index, buffer.as_mut_ptr(), buffer.len(), &raw mut size) })?;
    Ok(size as usize)
}

fn done(errno: i32) -> Result<(), i32> {
    if errno == 0 { Ok(()) } else { Err(errno) }
}
