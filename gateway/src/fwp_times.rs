//! Times that the gateway shares with the threads that run FWPs, by FWP: since when its client waits, and how long its
//! function wants the idle instance to live.

mod activation_clock;
mod keep_alive;

pub use self::activation_clock::ActivationClock;
pub use self::keep_alive::KeepAlives;
