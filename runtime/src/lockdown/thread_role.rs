//! What a thread of the node is for, which decides which system calls it has.

use std::fmt;

use pinion_confinement::every_thread;

/// The roles of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadRole {
    /// A thread that the node has not named: one of DPDK's. It handles interrupts and alarms of devices.
    Driver,
    /// `core-N`: gateway, MMA and workers, and with them all guests.
    DataPath,
    /// `launcher`: prepares and ends instances.
    Launcher,
    /// `ticker`: advances epochs.
    Ticker,
    /// `signer-N`, `inference-N`: do jobs for guests.
    Offload,
    /// `log`, `guest-log`, `invocations`, `pressure`: pass on lines and answers, and watch memory.
    Service,
    /// The control API, the main thread, and threads that wait for builds.
    Control,
}

impl ThreadRole {
    /// All roles, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Driver, Self::DataPath, Self::Launcher, Self::Ticker, Self::Offload, Self::Service, Self::Control];

    /// Returns the role of a thread of the node's by its name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name {
            "launcher" => Self::Launcher,
            "ticker" => Self::Ticker,
            "log" | "guest-log" | "invocations" | "pressure" => Self::Service,
            _ if name.starts_with("core-") => Self::DataPath,
            _ if name.starts_with("signer-") || name.starts_with("inference-") => Self::Offload,
            _ => Self::Control,
        }
    }

    /// Gives the calling thread this role. It has an effect until the node gives up its rights.
    pub fn enter(self) {
        every_thread::set_kind(self as usize);
    }
}

impl fmt::Display for ThreadRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "driver",
            Self::DataPath => "data path",
            Self::Launcher => "launcher",
            Self::Ticker => "ticker",
            Self::Offload => "offload",
            Self::Service => "service",
            Self::Control => "control",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_roles_are_their_places_in_the_list() {
        assert!(ThreadRole::ALL.iter().enumerate().all(|(number, role)| *role as usize == number));
    }
}
