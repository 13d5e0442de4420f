//! What crosses crates, processes and hosts.
