//! Where frames enter and leave a node: ports, header parsing, flow rules, Net-In and Net-Out.
//!
//! ```text
//!                 launcher (runtime)
//!             Command |        ^ Event                    messages
//!                     v        |
//!   device --port--> gateway: Net-In --Inbound--> MMA
//!                    |  headers   what the frame is, and its flow: VLAN tags, fragments and ICMP types included
//!                    |  neighbors ARP and neighbour discovery: answered at once, asked for what leaves
//!                    |  assign    flow cache -> rules -> bound instance -> ready instance   (flows, rules)
//!                    |  handover  batches to MMA, buffers on loan
//!   device <-port--- gateway: Net-Out <---frames-- MMA
//!                       leaving   may its sender send it?  neighbors   which station does it go to?
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`gateway`] | the loop of the gateway's thread, which ties the others together; and its state, for other threads |
//! | [`port`] | devices and the buffers that frames travel in |
//! | [`headers`], [`neighbors`] | foreign bytes are read here, and only here |
//! | [`rules`] | which traffic goes to which chain, found without a walk through all rules; built by the launcher,
//! replaced as a whole |
//! | [`invoke`] | messages to chains, and the calls that wait for answers |
//! | [`flows`] | fixed tables: flow cache, datagrams in fragments, instances, frames that wait |
//! | `leaving` | what each function may send, and what it tried |
//! | `outbound` | flows that functions open themselves |
//! | [`messages`] | commands from the launcher to the gateway, and events back |
//! | [`checksums`] | TCP and UDP checksums that a sender has left to hardware |
//! | [`drops`] | why frames are dropped, and how often; other threads can read it |
//! | [`fwp_times`] | since when clients wait, and how long functions want their idle instances to live |
//!
//! This crate copies no packet and runs no guest. It decides which chain instance a frame belongs to and hands the
//! frame's buffer to MMA ([`pinion_mma::link`]). A gateway's thread never blocks, and once the gateway is made, it
//! never allocates.

mod assign;
pub mod checksums;
pub mod drops;
pub mod flows;
pub mod fwp_times;
pub mod gateway;
pub mod headers;
pub mod id;
pub mod invoke;
pub mod leaving;
pub mod messages;
pub mod neighbors;
mod outbound;
pub mod port;
pub mod rules;
#[cfg(test)]
mod test_frames;
