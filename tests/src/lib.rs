//! The testbed: real nodes, real clients, in network namespaces of their own.
//!
//! ```text
//!   namespace "switch"                            namespaces "client1", "client2", ...
//!   +---------------------------------------+     +---------------------------------------+
//!   | piniond's port --- bridge --- client1 |-----| eth0  10.77.0.11/24  fd77::11/64      |
//!   |                        \----- client2 |-----| eth0  10.77.0.12/24  fd77::12/64      |
//!   +---------------------------------------+     +---------------------------------------+
//! ```
//!
//! A [`network::bed::Bed`] is all of that, an [`network::inline::Inline`] is a node between two hosts, a [`network::border::Border`] one
//! between two networks. Their parts can also be used alone. A namespace, process or file that a value makes goes when the value is dropped,
//! also on a panic. The next run removes what a killed run left behind.
//!
//! For `integration/` and `hostile/`, and nothing else. All functions here panic with a sentence rather than return an error, and packets are sent only
//! into namespaces made here.
#![forbid(unsafe_code)]

pub mod machine;
pub mod network;
pub mod product;
pub mod random;
pub mod traffic;
pub mod until;
