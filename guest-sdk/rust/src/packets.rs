//! Packets: the memory that they lie in, what a function does with them, and what their bytes say.

pub(crate) mod batch;
pub mod checksum;
pub mod headers;
pub(crate) mod held;
pub(crate) mod message;
pub mod outbound;
pub(crate) mod packet;
pub(crate) mod pool;
pub(crate) mod slots;
pub(crate) mod udp;
pub(crate) mod way;
