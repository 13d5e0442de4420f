//! Clients of servers over HTTP/1.1, by TCP or by TLS over that. Each has an address and a connection of its own.
//!
//! ```text
//!   comparison.rs  a node beside its peer under the same loads
//!   load.rs        when each client asks, and what it gets
//!     wire.rs      a connection: TCP, or TLS
//!     reply.rs     the reply that is being received
//!   addresses.rs   the clients' addresses, and TCP from these
//! ```
//!
//! All clients are one thread in the client's namespace, which polls, so no figure contains a wake-up of theirs. They use the kernel's TCP.

pub(crate) mod addresses;
pub(crate) mod comparison;
pub(crate) mod load;
pub(crate) mod reply;
pub(crate) mod wire;
