//! Private keys of tenants, and what a node does with them.
//!
//! ```text
//!   PEM --from_pem--> PrivateKey --to_bytes--> Seal --> the node's disk      a key leaves the process only sealed
//!                        |
//!                        +--sign(scheme, message)--> Signature               only of what a TLS server signs in a handshake
//!   ServerKey = PrivateKey + Tickets                                         what a stage of a chain is granted
//! ```
//!
//! The control plane parses, seals and stores keys; the runtime signs for functions, which never have a key in their memory. A function
//! passes a message and is given a signature only if the message is what RFC 8446 or RFC 5246 has a server sign ([`PrivateKey::sign`]). So a
//! function in an attacker's hands can pretend to be its own server while it has the grant, and can sign no certificate, token, program or
//! client's handshake.
//!
//! All cryptography is ring's, by rustls where that has it. This crate has no threads and no clock, and opens one file: the node's secret.
#![forbid(unsafe_code)]

mod encoding;
mod handshake;
mod private_key;
mod seal;
mod tickets;

use std::fmt;

pub use handshake::MESSAGE_BYTES_MAX;
pub use private_key::{Algorithm, KeyError, PEM_BYTES_MAX, PrivateKey, SIGNATURE_BYTES_MAX, SignError, Signature};
pub use seal::{OpenError, Seal, SecretError};
pub use tickets::{TICKET_LIFETIME_S, TICKET_OVERHEAD_BYTES, TICKET_PLAIN_BYTES_MAX, TicketError, Tickets};

/// What a stage of a chain is granted of a tenant's key: handshakes signed with it, and the session tickets of its servers.
pub struct ServerKey {
    /// The key.
    pub key: PrivateKey,
    /// The tickets of all servers with this key. They are of this value, and no other one opens them.
    pub tickets: Tickets,
}

impl ServerKey {
    /// Creates a key with tickets of its own.
    #[must_use]
    pub fn new(key: PrivateKey) -> Self {
        Self { key, tickets: Tickets::default() }
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}
