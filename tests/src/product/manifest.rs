//! Builds manifests for tests, in the same text form that a tenant writes.

use std::fmt::{Display, Write};
use std::path::Path;

/// The text of a manifest, put together piece by piece.
#[derive(Clone, Debug)]
pub struct Manifest {
    text: String,
}

impl Manifest {
    /// Makes an empty manifest of a tenant.
    #[must_use]
    pub fn of(tenant: &str) -> Self {
        Self { text: format!("version = \"pinion.v1\"\ntenant = \"{tenant}\"\n") }
    }

    /// Adds a module.
    #[must_use]
    pub fn module(self, name: &str, path: &Path) -> Self {
        self.with(format_args!("[[module]]\nname = \"{name}\"\npath = {path:?}\n"))
    }

    /// Adds a chain of one stage. `more` has further keys of the chain, one per line.
    #[must_use]
    pub fn chain(self, name: &str, module: &str, more: &str) -> Self {
        self.with(format_args!("[[chain]]\nname = \"{name}\"\nstage = [{{ module = \"{module}\" }}]\n{more}\n"))
    }

    /// Adds a chain of one stage with a configuration.
    #[must_use]
    pub fn configured_chain(self, name: &str, module: &str, config: &str) -> Self {
        let stage = format!("{{ module = \"{module}\", config = \"{config}\" }}");
        self.with(format_args!("[[chain]]\nname = \"{name}\"\nstage = [{stage}]\n"))
    }

    /// Adds a rule for pings to an address, with a policy.
    #[must_use]
    pub fn ping_rule(self, name: &str, chain: &str, policy: &str, destination: &str) -> Self {
        let protocol = if destination.contains(':') { "icmpv6" } else { "icmp" };
        let matcher = format!("{{ destination = \"{destination}\", protocol = \"{protocol}\" }}");
        self.with(format_args!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"{policy}\"\nchain = \"{chain}\"\nmatch = {matcher}\n"
        ))
    }

    /// Adds this text.
    #[must_use]
    pub fn with(mut self, text: impl Display) -> Self {
        write!(self.text, "{text}").expect("memory takes all");
        self
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}
