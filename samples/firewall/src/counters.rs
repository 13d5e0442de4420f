//! What the node shows of the firewall: what became of packets, and how often each rule has decided.

use core::array;

use pinion_sdk::metrics::Counter;

use crate::judge::Denial;
use crate::rules::{Action, Rule};

/// Rules that have a counter of their own, the first ones: a function has so many metrics and no more.
const RULES_COUNTED: usize = 100;
const DECISIONS: &str = "firewall_rule_decisions";
const DECISIONS_HELP: &str = "Flows and single messages that a rule has decided on, by its place in the configuration.";

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sent on.
    pub allowed: u64,
    /// Dropped, by [`Denial`].
    pub denied: [u64; Denial::COUNT],
}

/// The same as it is counted.
#[derive(Debug)]
pub(crate) struct PacketCounters {
    pub(crate) allowed: Counter,
    pub(crate) denied: [Counter; Denial::COUNT],
}

impl PacketCounters {
    pub(crate) fn new() -> Self {
        let help = "Packets that were dropped, by what for.";
        let denied = |reason| Counter::with_labels("firewall_packets_denied", help, &[("reason", reason)]);
        Self {
            allowed: Counter::new("firewall_packets_allowed", "Packets that were sent on."),
            denied: ["rules", "not-begun", "no-room", "unreadable"].map(denied),
        }
    }

    pub(crate) fn values(&self) -> Counters {
        Counters { allowed: self.allowed.value(), denied: array::from_fn(|at| self.denied[at].value()) }
    }
}

/// How often each rule has decided.
#[derive(Debug)]
pub(crate) struct RuleCounters {
    by_rule: Vec<Counter>,
    /// Of rules without one of their own: those that allow, and those that deny.
    more: Option<[Counter; 2]>,
    /// No rule fitted.
    none: Counter,
}

impl RuleCounters {
    /// Of these rules, in their order.
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let counter =
            |rule: &str, action| Counter::with_labels(DECISIONS, DECISIONS_HELP, &[("rule", rule), ("action", action)]);
        let of_rule = |(at, rule): (usize, &Rule)| counter(&at.to_string(), word(rule.action()));
        Self {
            by_rule: rules.iter().take(RULES_COUNTED).enumerate().map(of_rule).collect(),
            more: (rules.len() > RULES_COUNTED).then(|| ["allow", "deny"].map(|action| counter("more", action))),
            none: counter("none", "deny"),
        }
    }

    /// The rule in this place has decided so.
    #[inline]
    pub(crate) fn decided(&self, rule: usize, action: Action) {
        match (self.by_rule.get(rule), &self.more) {
            (Some(counter), _) => counter.increment(),
            (None, Some([allow, _])) if action == Action::Allow => allow.increment(),
            (None, Some([_, deny])) => deny.increment(),
            (None, None) => {}
        }
    }

    /// No rule fitted whoever wanted to begin.
    #[inline]
    pub(crate) fn none_fitted(&self) {
        self.none.increment();
    }
}

fn word(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Deny => "deny",
    }
}
