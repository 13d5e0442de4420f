//! The metrics that the node shows: the results for packets, and how often each rule has decided.

use core::array;

use pinion_sdk::metrics::Counter;

use crate::judge::Denial;
use crate::rules::{Action, Rule};

/// Number of rules with their own counters, the first ones: the number of a function's metrics is limited.
const RULES_COUNTED: usize = 100;
const DECISIONS: &str = "firewall_rule_decisions";
const DECISIONS_HELP: &str = "Flows and single messages that a rule has decided on, by the rule's index.";

/// Results for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent on.
    pub allowed: u64,
    /// Packets dropped, by [`Denial`].
    pub denied: [u64; Denial::COUNT],
}

/// The same as metrics.
#[derive(Debug)]
pub(crate) struct PacketCounters {
    pub(crate) allowed: Counter,
    pub(crate) denied: [Counter; Denial::COUNT],
}

impl PacketCounters {
    pub(crate) fn new() -> Self {
        let help = "Packets that were dropped, by reason.";
        let denied = |reason| Counter::with_labels("firewall_packets_denied", help, &[("reason", reason)]);
        Self {
            allowed: Counter::new("firewall_packets_allowed", "Packets that were sent on."),
            denied: ["rules", "not-begun", "no-room", "spoofed", "unreadable", "bad-error"].map(denied),
        }
    }

    pub(crate) fn values(&self) -> Counters {
        Counters { allowed: self.allowed.value(), denied: array::from_fn(|at| self.denied[at].value()) }
    }
}

/// Decisions of each rule.
#[derive(Debug)]
pub(crate) struct RuleCounters {
    by_rule: Vec<Counter>,
    /// Rules without their own counters: those that allow, and those that deny.
    more: Option<[Counter; 2]>,
    /// Packets that no rule matched.
    none: Counter,
}

impl RuleCounters {
    /// Makes counters for these rules, in their order.
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

    /// Counts a decision of the rule with this index.
    #[inline]
    pub(crate) fn decided(&self, rule: usize, action: Action) {
        match (self.by_rule.get(rule), &self.more) {
            (Some(counter), _) => counter.increment(),
            (None, Some([allow, _])) if action == Action::Allow => allow.increment(),
            (None, Some([_, deny])) => deny.increment(),
            (None, None) => {}
        }
    }

    /// Counts a packet that no rule matched.
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
