//! The node as a neighbour of others on its links: which addresses it has there, which station has the address that a
//! frame goes to, what to ask and to answer (ARP, and neighbour discovery of RFC 4861), and where it listens for that.
//!
//! ```text
//!   frame that leaves --> network: next hop --> table --station--> Ethernet header
//!                                                 \--asked for--> waiting frames
//!   ARP, discovery <--> messages <--> table
//! ```
//!
//! Owned by the gateway. Allocates nothing after it was made; every table has a bound, and what one tenant or one station
//! can use of it.

pub(crate) mod answer_rate;
pub(crate) mod link_header;
pub(crate) mod listener_report;
pub mod messages;
pub mod network;
pub mod reverse_path;
pub mod table;
pub mod view;
pub(crate) mod waiting;
