//! Guests for tests of a node's promises: those that misbehave, each in its own way, and some that do what their packets say. Every file in
//! `examples/` is one module:
//!
//! ```text
//!   cargo build --profile guest --target wasm32-wasip1 -p pinion-hostile-guests --examples
//! ```
//!
//! | module            | what it does                                                                               |
//! |-------------------|--------------------------------------------------------------------------------------------|
//! | `absurd`          | asks for absurd amounts at absurd addresses by many calls, then answers                     |
//! | `brute`           | keeps the core from its first packet on, in the way that is configured                     |
//! | `canary`          | fills its memory with a pattern on its first packet; traps if it meets it in fresh memory  |
//! | `config_refuser`  | refuses every configuration, with a line in the log                                        |
//! | `copier`          | sends all its slots, full, again and again; or drops what it gets                           |
//! | `cutter`          | sends each packet back cut to less than an Ethernet header                                 |
//! | `deep`            | calls itself without end on its first packet                                               |
//! | `files`           | reads, writes and lists files as messages ask; counts other packets in a file, and answers  |
//! | `forger`          | answers messages as the calls of others, whose number the payload says; `silent` not at all  |
//! | `fuse`            | passes frames on until one has a certain word; then it fails, or sends others                |
//! | `hog`             | asks for signatures, tickets or runs of models without end, and counts those that it gets    |
//! | `init_looper`     | never finishes `pinion_init`                                                               |
//! | `log_flood`       | writes a thousand log lines per packet, or as many as configured, with control characters  |
//! | `looper`          | loops for ever on its first packet                                                         |
//! | `memory_bomb`     | takes all the memory it gets on its first packet, then answers as if nothing were          |
//! | `puppet`          | reads and writes its memory and makes calls of the node, as its client says                  |
//! | `returner`        | returns from `pinion_run` on its first packet                                              |
//! | `rewriter`        | writes over what it has sent; or traps if a packet changes or has other bytes              |
//! | `signer`          | asks for signatures and tickets that no function may get, then answers                     |
//! | `splitter`        | sends each packet by the output that its last byte names                                   |
//! | `spoofer`         | sends frames that no function may send before it answers a datagram                        |
//! | `timer`           | answers, and waits for deadlines that keep coming, or that have always passed              |
//! | `trapper`         | panics on its first packet                                                                |
//! | `wild_descriptor` | sends what it must not: the configuration says what                                        |
//!
//! "Answers" means: sends each frame back with its MAC addresses swapped.
//!
//! Code that several of them need is here. Only tests may use it.

#[cfg(target_family = "wasm")]
pub mod memory;
#[cfg(target_family = "wasm")]
pub mod raw;

use pinion_sdk::Packet;

/// Sends a frame back with its MAC addresses swapped, or drops a packet that has none.
pub fn answer(mut packet: Packet<'_>) {
    if let Some(addresses) = packet.data_mut().get_mut(..12) {
        addresses.rotate_left(6);
        packet.reply();
    }
}
