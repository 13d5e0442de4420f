//! Where frames enter and leave a node: ports, header parsing, flow rules, Net-In and Net-Out.
//!
//! ```text
//!                 launcher (runtime)
//!             Command |        ^ Event                    messages, outbox
//!                     v        |
//!   device --port--> gateway: Net-In --Inbound--> MMA
//!                    |  headers   what is this frame, and whose? VLAN tags, fragments and ICMP types included
//!                    |  neighbor  ARP and neighbour discovery: answered at once
//!                    |  assign    flow cache -> rules -> bound instance -> ready instance   (flows, rules)
//!                    |  handover  batches to MMA, buffers on loan
//!   device <-port--- gateway: Net-Out <---frames-- MMA
//! ```
//!
//! | module | room |
//! |---|---|
//! | [`gateway`] | the loop of the gateway's thread, which ties the others together |
//! | [`port`] | devices and the buffers that frames travel in |
//! | [`headers`], [`neighbor`] | foreign bytes are read here, and only here |
//! | [`rules`] | what traffic goes to which chain, found without a walk through all; made elsewhere, swapped whole |
//! | [`invoke`] | messages for chains, and who waits for their answers |
//! | [`flows`] | fixed tables: flow cache, datagrams in fragments, instances, frames that wait |
//! | [`messages`] | what launcher and gateway tell each other |
//! | [`drops`], [`misses`], [`observer`] | what others can see |
//!
//! This crate copies no packet and runs no guest: it decides to whom a frame belongs and hands its buffer to MMA
//! ([`pinion_mma::link`]). A gateway's thread never blocks and, once it is made, never allocates.

mod assign;
pub mod drops;
#[cfg(feature = "dpdk")]
pub mod eal;
pub mod flows;
pub mod gateway;
mod handover;
pub mod headers;
pub mod id;
pub mod invoke;
pub mod messages;
pub mod misses;
pub mod neighbor;
pub mod observer;
mod outbox;
pub mod port;
pub mod rules;
#[cfg(test)]
mod test_frames;
