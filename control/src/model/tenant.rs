//! Tenants: what the operator grants each of them.
//!
//! A tenant without an object has the node's defaults. A tenant's terms are keys of a manifest, of `piniond.toml` and of the
//! API alike, so they are read here, with their bounds.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::quotas::UPLOAD_BYTES_TOTAL_MAX;
use super::state::{CHAINS_MAX, KEYS_MAX, MODEL_BYTES_TOTAL_MAX, MODELS_MAX, MODULES_MAX, RULES_MAX};
use super::{Chain, Class, NotGranted, PortName, Prefix, Rule, TenantName, TenantProblem};

/// The largest weight of a tenant; the smallest is 1.
pub const WEIGHT_MAX: u32 = 1000;
/// The largest memory limit of a tenant, 1 TiB, in MiB; the smallest is 1.
pub const TENANT_MEMORY_MIB_MAX: u32 = 1 << 20;
/// The largest limit of a tenant's state, 64 GiB, in MiB; the smallest is 0.
pub const TENANT_STATE_MIB_MAX: u32 = 1 << 16;
/// The largest limit of a tenant's CPU time per second: 64 cores.
pub const TENANT_CPU_PER_SECOND_MS_MAX: u32 = 64_000;
/// The longest step of the clock of a tenant's functions; the shortest is 1.
pub const CLOCK_STEP_US_MAX: u32 = 10_000;
/// The largest limit of a tenant's uploads, in MiB.
pub const UPLOAD_MIB_MAX: u32 = (UPLOAD_BYTES_TOTAL_MAX >> 20) as u32;
/// The largest limit of a tenant's models, in MiB.
pub const MODEL_MIB_MAX: u32 = (MODEL_BYTES_TOTAL_MAX >> 20) as u32;
/// The maximum number of names, or of networks, in one list of a tenant.
pub const GRANTS_MAX: usize = 256;

/// The terms of a tenant, as the operator grants them. What is absent is the node's default, or no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name.
    pub name: TenantName,
    /// Its weight against other tenants where several want more than there is, 1 to [`WEIGHT_MAX`].
    #[serde(default = "default_weight", deserialize_with = "weight")]
    pub weight: u32,
    /// The highest class that its chains may have.
    #[serde(default = "default_class_max")]
    pub class_max: Class,
    /// The maximum memory of all its FWPs together; the node's default if absent.
    #[serde(default, deserialize_with = "within::<1, TENANT_MEMORY_MIB_MAX, _>")]
    pub memory_mib: Option<u32>,
    /// The maximum memory of all its fields of state together; the node's default if absent.
    #[serde(default, deserialize_with = "within::<0, TENANT_STATE_MIB_MAX, _>")]
    pub state_mib: Option<u32>,
    /// The maximum CPU time of all its FWPs together in a second, on all workers; no limit if absent.
    #[serde(default, deserialize_with = "within::<1, TENANT_CPU_PER_SECOND_MS_MAX, _>")]
    pub cpu_per_second_ms: Option<u32>,
    /// The steps of its functions' clock; the node's default if absent.
    #[serde(default, deserialize_with = "within::<1, CLOCK_STEP_US_MAX, _>")]
    pub clock_step_us: Option<u32>,
    /// The maximum number of its modules; only the node's shares if absent.
    #[serde(default, deserialize_with = "within::<0, { MODULES_MAX as u32 }, _>")]
    pub modules_max: Option<u32>,
    /// The maximum number of its keys; only the node's shares if absent.
    #[serde(default, deserialize_with = "within::<0, { KEYS_MAX as u32 }, _>")]
    pub keys_max: Option<u32>,
    /// The maximum number of its models; only the node's shares if absent.
    #[serde(default, deserialize_with = "within::<0, { MODELS_MAX as u32 }, _>")]
    pub models_max: Option<u32>,
    /// The maximum size of its models together; only the node's shares if absent.
    #[serde(default, deserialize_with = "within::<0, MODEL_MIB_MAX, _>")]
    pub model_mib: Option<u32>,
    /// The maximum number of its chains; only the node's shares if absent.
    #[serde(default, deserialize_with = "within::<0, { CHAINS_MAX as u32 }, _>")]
    pub chains_max: Option<u32>,
    /// The maximum number of its rules; only the node's shares if absent.
    #[serde(default, deserialize_with = "within::<0, { RULES_MAX as u32 }, _>")]
    pub rules_max: Option<u32>,
    /// The maximum size of its uploads together; only the node's shares if absent.
    #[serde(default, deserialize_with = "within::<0, UPLOAD_MIB_MAX, _>")]
    pub upload_mib: Option<u32>,
    /// The ports by which its packets arrive and leave; all if empty.
    #[serde(default)]
    pub ports: BTreeSet<PortName>,
    /// The networks within which one side of its packets is; any if empty. Its functions may send packets from all of them.
    #[serde(default)]
    pub addresses: BTreeSet<Prefix>,
    /// Whether its functions may open flows of their own.
    #[serde(default)]
    pub outbound_flows: bool,
    /// Whether its functions may send packets whose source is another host.
    #[serde(default)]
    pub transparent_forwarding: bool,
}

impl Tenant {
    /// The default of [`Tenant::weight`].
    pub const WEIGHT: u32 = 1;
    /// The default of [`Tenant::class_max`].
    pub const CLASS_MAX: Class = Class::Throughput;

    /// Creates a tenant with defaults for everything but its name.
    pub fn new(name: TenantName) -> Self {
        Self {
            name,
            weight: Self::WEIGHT,
            class_max: Self::CLASS_MAX,
            memory_mib: None,
            state_mib: None,
            cpu_per_second_ms: None,
            clock_step_us: None,
            modules_max: None,
            keys_max: None,
            models_max: None,
            model_mib: None,
            chains_max: None,
            rules_max: None,
            upload_mib: None,
            ports: BTreeSet::new(),
            addresses: BTreeSet::new(),
            outbound_flows: false,
            transparent_forwarding: false,
        }
    }

    /// Checks that every number is within its bounds, and that no list is too long.
    pub fn check(&self) -> Result<(), TenantProblem> {
        let numbers: [(&'static str, Option<u32>, RangeInclusive<u32>); 12] = [
            ("weight", Some(self.weight), 1..=WEIGHT_MAX),
            ("memory_mib", self.memory_mib, 1..=TENANT_MEMORY_MIB_MAX),
            ("state_mib", self.state_mib, 0..=TENANT_STATE_MIB_MAX),
            ("cpu_per_second_ms", self.cpu_per_second_ms, 1..=TENANT_CPU_PER_SECOND_MS_MAX),
            ("clock_step_us", self.clock_step_us, 1..=CLOCK_STEP_US_MAX),
            ("modules_max", self.modules_max, 0..=MODULES_MAX as u32),
            ("keys_max", self.keys_max, 0..=KEYS_MAX as u32),
            ("models_max", self.models_max, 0..=MODELS_MAX as u32),
            ("model_mib", self.model_mib, 0..=MODEL_MIB_MAX),
            ("chains_max", self.chains_max, 0..=CHAINS_MAX as u32),
            ("rules_max", self.rules_max, 0..=RULES_MAX as u32),
            ("upload_mib", self.upload_mib, 0..=UPLOAD_MIB_MAX),
        ];
        for (key, value, bounds) in numbers {
            if let Some(value) = value.filter(|value| !bounds.contains(value)) {
                return Err(TenantProblem::Number { key, value, min: *bounds.start(), max: *bounds.end() });
            }
        }
        let lists = [("ports", self.ports.len()), ("addresses", self.addresses.len())];
        match lists.into_iter().find(|(_, count)| *count > GRANTS_MAX) {
            Some((key, count)) => Err(TenantProblem::TooLong { key, count }),
            None => Ok(()),
        }
    }

    /// Returns the keys in which its terms differ from those of `other`.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let keys = [
            ("weight", self.weight != other.weight),
            ("class_max", self.class_max != other.class_max),
            ("memory_mib", self.memory_mib != other.memory_mib),
            ("state_mib", self.state_mib != other.state_mib),
            ("cpu_per_second_ms", self.cpu_per_second_ms != other.cpu_per_second_ms),
            ("clock_step_us", self.clock_step_us != other.clock_step_us),
            ("modules_max", self.modules_max != other.modules_max),
            ("keys_max", self.keys_max != other.keys_max),
            ("models_max", self.models_max != other.models_max),
            ("model_mib", self.model_mib != other.model_mib),
            ("chains_max", self.chains_max != other.chains_max),
            ("rules_max", self.rules_max != other.rules_max),
            ("upload_mib", self.upload_mib != other.upload_mib),
            ("ports", self.ports != other.ports),
            ("addresses", self.addresses != other.addresses),
            ("outbound_flows", self.outbound_flows != other.outbound_flows),
            ("transparent_forwarding", self.transparent_forwarding != other.transparent_forwarding),
        ];
        keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// Checks that a chain of this tenant uses no port that the tenant is not granted, and opens no flows unless it may.
    pub(super) fn check_chain(&self, chain: &Chain) -> Result<(), NotGranted> {
        if !chain.outbound.is_empty() && !self.outbound_flows {
            return Err(NotGranted::OutboundFlows);
        }
        let reverse = chain.reverse.iter().flat_map(|reverse| reverse.from.iter().chain(&reverse.egress));
        self.check_ports(chain.egress.iter().chain(reverse).chain(chain.ports_of_edges()).cloned())
    }

    /// Checks that a rule of this tenant matches only packets of the ports and the networks that the tenant is granted.
    pub(super) fn check_rule(&self, rule: &Rule) -> Result<(), NotGranted> {
        let matcher = &rule.matcher;
        if matcher.port.is_none() && !self.ports.is_empty() {
            return Err(NotGranted::AnyPort { granted: listed(&self.ports) });
        }
        self.check_ports(matcher.port.iter().cloned())?;
        let is_granted = |prefix: &Prefix| self.addresses.iter().any(|granted| granted.net().contains(&prefix.net()));
        let mut sides = matcher.source.iter().chain(&matcher.destination);
        if self.addresses.is_empty() || sides.any(is_granted) {
            return Ok(());
        }
        Err(NotGranted::Addresses { matcher: matcher.to_string(), granted: listed(&self.addresses) })
    }

    fn check_ports(&self, mut named: impl Iterator<Item = PortName>) -> Result<(), NotGranted> {
        match named.find(|port| !self.ports.is_empty() && !self.ports.contains(port)) {
            Some(port) => Err(NotGranted::Port { port, granted: listed(&self.ports) }),
            None => Ok(()),
        }
    }
}

/// The longest list in a sentence.
const LISTED_MAX: usize = 8;

/// Returns items as part of a sentence.
fn listed(items: &BTreeSet<impl fmt::Display>) -> String {
    let mut text: Vec<String> = items.iter().take(LISTED_MAX).map(ToString::to_string).collect();
    if items.len() > LISTED_MAX {
        text.push(format!("and {} more", items.len() - LISTED_MAX));
    }
    text.join(", ")
}

fn default_weight() -> u32 {
    Tenant::WEIGHT
}

fn default_class_max() -> Class {
    Tenant::CLASS_MAX
}

/// A whole number with bounds.
struct Bounded<const MIN: u32, const MAX: u32>(u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Bounded<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<const MIN: u32, const MAX: u32>;

        impl<const MIN: u32, const MAX: u32> Visitor<'_> for Number<MIN, MAX> {
            type Value = u32;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX}")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u32, E> {
                let value = u32::try_from(number).ok().filter(|value| (MIN..=MAX).contains(value));
                value.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u32, E> {
                let value = u32::try_from(number).ok().filter(|value| (MIN..=MAX).contains(value));
                value.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
            }
        }

        deserializer.deserialize_u32(Number::<MIN, MAX>).map(Self)
    }
}

fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(Bounded::<1, WEIGHT_MAX>::deserialize(deserializer)?.0)
}

fn within<'de, const MIN: u32, const MAX: u32, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::<Bounded<MIN, MAX>>::deserialize(deserializer)?.map(|Bounded(number)| number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Branch, Case, Change, DesiredState, Digest, Invalid, Key, Match, Model, Module, ObjectRef, Outbound, Output,
        Policy, Protocol, Reverse, Stage, Target,
    };

    fn tenant() -> Tenant {
        Tenant::new("t".parse().unwrap())
    }

    fn chain(name: &str) -> Chain {
        let stage = Stage::new("m".parse().unwrap(), Vec::new());
        Chain::new("t".parse().unwrap(), name.parse().unwrap(), vec![stage])
    }

    fn rule(port: Option<&str>, source: Option<&str>, destination: Option<&str>) -> Rule {
        Rule {
            tenant: "t".parse().unwrap(),
            name: "r".parse().unwrap(),
            priority: 0,
            matcher: Match {
                port: port.map(|port| port.parse().unwrap()),
                source: source.map(|prefix| prefix.parse().unwrap()),
                destination: destination.map(|prefix| prefix.parse().unwrap()),
                ..Match::default()
            },
            policy: Policy::Shared,
            chain: "c".parse().unwrap(),
        }
    }

    /// Returns a change that sets these, and the module `m` of the tenant `t`.
    fn change(tenants: Vec<Tenant>, chains: Vec<Chain>, rules: Vec<Rule>) -> Change {
        let (name, digest) = ("m".parse().unwrap(), Digest::of(b"m"));
        let modules = vec![Module { tenant: "t".parse().unwrap(), name, digest, size_bytes: 1 }];
        Change { tenants, modules, chains, rules, ..Change::default() }
    }

    fn applied(state: &DesiredState, change: &Change) -> DesiredState {
        state.apply(change).unwrap().state
    }

    fn refusal(state: &DesiredState, change: &Change) -> String {
        state.apply(change).unwrap_err().to_string()
    }

    #[test]
    fn a_number_or_a_list_out_of_bounds_is_named_with_its_bounds() {
        let ports = (0..=GRANTS_MAX).map(|number| format!("p{number}").parse().unwrap()).collect();
        let cases = [
            (Tenant { weight: 0, ..tenant() }, "tenant t: weight is 0: it must be from 1 to 1000"),
            (Tenant { memory_mib: Some(0), ..tenant() }, "tenant t: memory_mib is 0: it must be from 1 to 1048576"),
            (
                Tenant { cpu_per_second_ms: Some(64_001), ..tenant() },
                "tenant t: cpu_per_second_ms is 64001: it must be from 1 to 64000",
            ),
            (Tenant { upload_mib: Some(4097), ..tenant() }, "tenant t: upload_mib is 4097: it must be from 0 to 4096"),
            (Tenant { ports, ..tenant() }, "tenant t: ports has 257 entries: at most 256 are allowed"),
        ];
        for (tenant, expected) in cases {
            assert_eq!(refusal(&DesiredState::default(), &change(vec![tenant], vec![], vec![])), expected);
        }
    }

    #[test]
    fn a_tenant_with_objects_is_deleted_only_with_all_of_them() {
        let all = change(vec![tenant()], vec![chain("c"), chain("d")], vec![]);
        let state = applied(&DesiredState::default(), &all);
        let mut delete = vec![ObjectRef::from(&tenant())];
        let deleting = |delete: &[ObjectRef]| Change { delete: delete.to_vec(), ..Change::default() };
        assert_eq!(
            refusal(&state, &deleting(&delete)),
            "tenant t still has objects (1 module, 2 chains): delete them first, or all together"
        );
        delete.extend(all.chains.iter().map(ObjectRef::from));
        delete.extend(all.modules.iter().map(ObjectRef::from));
        let state = applied(&state, &deleting(&delete));
        assert_eq!(state.tenant(&"t".parse().unwrap()), None);
        assert_eq!(refusal(&state, &deleting(&delete[..1])), "there is no tenant t");
    }

    #[test]
    fn objects_of_a_tenant_without_terms_of_its_own_may_use_every_port_and_address() {
        let rules = vec![rule(None, None, None)];
        let state = applied(&DesiredState::default(), &change(vec![], vec![chain("c")], rules));
        assert_eq!(state.tenant(&"t".parse().unwrap()), None);
        applied(&state, &change(vec![tenant()], vec![], vec![]));
    }

    #[test]
    fn rules_and_chains_use_only_the_ports_that_their_tenant_is_granted() {
        let port = |name: &str| name.parse::<PortName>().unwrap();
        let granted = Tenant { ports: [port("lan"), port("wan")].into(), ..tenant() };
        let mut by_output = chain("c");
        by_output.stages[0].outputs.push(Target::Port(port("dmz")).into());
        let branch = |matched: Option<&str>, to: Target, default: Target| {
            let matcher = Match { port: matched.map(port), ..Match::default() };
            Branch { cases: vec![Case { matcher, to }], default }
        };
        let mut by_branch = chain("c");
        let to_port = branch(None, Target::Port(port("dmz")), Target::Egress);
        by_branch.stages[0].outputs.push(Output::Branch(to_port));
        let by_match = branch(Some("dmz"), Target::Drop, Target::Stage(0));
        let reverse = |from: &str, egress: &str| {
            Some(Reverse { from: vec![port(from)], entry: None, egress: Some(port(egress)) })
        };
        let egress = Some(port("wan"));
        let not_granted = "its tenant is not granted the port dmz: use one of lan, wan, or ask the operator for more ([[tenant]] of t)";
        for chain in [
            Chain { egress: Some(port("dmz")), ..chain("c") },
            by_output,
            by_branch,
            Chain { entry: Some(by_match), ..chain("c") },
            Chain { reverse: reverse("dmz", "lan"), egress: egress.clone(), ..chain("c") },
            Chain { reverse: reverse("wan", "dmz"), egress: egress.clone(), ..chain("c") },
        ] {
            // Whether the tenant comes with the chain or was there before.
            let with = change(vec![granted.clone()], vec![chain.clone()], vec![]);
            assert_eq!(refusal(&DesiredState::default(), &with), format!("chain t/c: {not_granted}"));
            let state = applied(&DesiredState::default(), &change(vec![granted.clone()], vec![], vec![]));
            assert_eq!(refusal(&state, &change(vec![], vec![chain], vec![])), format!("chain t/c: {not_granted}"));
        }
        let with_rule = |port| change(vec![granted.clone()], vec![chain("c")], vec![rule(port, None, None)]);
        assert_eq!(refusal(&DesiredState::default(), &with_rule(Some("dmz"))), format!("rule t/r: {not_granted}"));
        assert_eq!(
            refusal(&DesiredState::default(), &with_rule(None)),
            "rule t/r: it matches packets of every port, and its tenant is granted some only: give port in its match, one of lan, \
             wan, or ask the operator for more ([[tenant]] of t)"
        );
        let state = applied(&DesiredState::default(), &with_rule(Some("lan")));
        let chain = Chain { reverse: reverse("wan", "lan"), egress, ..chain("c") };
        let state = applied(&state, &change(vec![], vec![chain], vec![]));
        // What is there must not contradict new terms.
        let fewer = Tenant { ports: [port("wan")].into(), ..tenant() };
        let refused = refusal(&state, &change(vec![fewer], vec![], vec![]));
        assert!(refused.starts_with("chain t/c: its tenant is not granted the port lan: use one of wan"), "{refused}");
    }

    #[test]
    fn a_tenant_gets_no_more_keys_and_bytes_of_models_than_it_is_granted() {
        let key = |name: &str| Key {
            tenant: "t".parse().unwrap(),
            name: name.parse().unwrap(),
            digest: Digest::of(name.as_bytes()),
            algorithm: "ed25519".to_owned(),
        };
        let model = |name: &str, content: &[u8]| Model {
            tenant: "t".parse().unwrap(),
            name: name.parse().unwrap(),
            digest: Digest::of(content),
            size_bytes: 1 << 20,
        };
        let granted = Tenant { keys_max: Some(1), models_max: Some(3), model_mib: Some(1), ..tenant() };
        let with = |keys: Vec<Key>, models: Vec<Model>| {
            let change = Change { tenants: vec![granted.clone()], keys, models, ..Change::default() };
            DesiredState::default().apply(&change).map(|_| ()).map_err(|invalid| invalid.to_string())
        };
        assert_eq!(with(vec![key("a")], vec![model("a", b"1"), model("b", b"1")]), Ok(()), "one content counts once");
        let expected =
            "keys: tenant t would have 2, and the operator grants it 1 (keys_max): delete some first, or ask";
        assert!(with(vec![key("a"), key("b")], vec![]).unwrap_err().starts_with(expected));
        let expected = "bytes of models: tenant t would have 2097152, and the operator grants it 1048576 (model_mib): ";
        assert!(with(vec![], vec![model("a", b"1"), model("b", b"2")]).unwrap_err().starts_with(expected));
        let four = ["a", "b", "c", "d"].map(|name| model(name, b"1"));
        assert!(with(vec![], four.into()).unwrap_err().starts_with("models: tenant t would have 4, and"));
    }

    #[test]
    fn chains_open_flows_only_if_their_tenant_is_granted_some() {
        let outbound = vec![Outbound { protocol: Protocol::UDP, to: "10.0.0.0/8".parse().unwrap(), ports: None }];
        let opening = Chain { outbound, ..chain("c") };
        let granted = Tenant { outbound_flows: true, ..tenant() };
        let refused = "chain t/c: its functions may open flows, and its tenant is not granted outbound_flows: leave outbound out, or \
                       ask the operator for more ([[tenant]] of t)";
        for tenants in [vec![], vec![tenant()]] {
            let with = change(tenants, vec![opening.clone()], vec![]);
            assert_eq!(refusal(&DesiredState::default(), &with), refused);
        }
        let state = applied(&DesiredState::default(), &change(vec![granted], vec![opening], vec![]));
        assert_eq!(refusal(&state, &change(vec![tenant()], vec![], vec![])), refused, "nor is the grant taken from it");
    }

    #[test]
    fn rules_match_only_packets_from_or_to_the_networks_that_their_tenant_is_granted() {
        let addresses = ["10.1.0.0/16", "fd01::/48"].map(|network| network.parse().unwrap());
        let granted = Tenant { addresses: addresses.into(), ..tenant() };
        let of = |source, destination| {
            let rules = vec![rule(None, source, destination)];
            DesiredState::default().apply(&change(vec![granted.clone()], vec![chain("c")], rules)).map(|_| ())
        };
        for (source, destination) in [
            (Some("10.1.2.0/24"), None),
            (None, Some("10.1.0.0/16")),
            (Some("192.0.2.0/24"), Some("10.1.0.1")),
            (None, Some("fd01::1")),
        ] {
            assert_eq!(of(source, destination), Ok(()), "{source:?} {destination:?}");
        }
        for (source, destination) in
            [(None, None), (Some("10.0.0.0/8"), None), (None, Some("10.2.0.1")), (Some("fd02::/48"), None)]
        {
            assert!(matches!(of(source, destination), Err(Invalid::NotGranted { .. })), "{source:?} {destination:?}");
        }
        assert_eq!(
            of(None, Some("10.2.0.1")).unwrap_err().to_string(),
            "rule t/r: it matches destination 10.2.0.1/32, and its tenant is granted only packets from or to 10.1.0.0/16, \
             fd01::/48: give a source or a destination within these, or ask the operator for more ([[tenant]] of t)"
        );
    }

    #[test]
    fn a_tenant_gets_no_more_objects_than_it_is_granted_and_keeps_those_that_it_has() {
        let granted = Tenant { chains_max: Some(1), ..tenant() };
        let state = applied(&DesiredState::default(), &change(vec![granted.clone()], vec![chain("a")], vec![]));
        let second = change(vec![], vec![chain("b")], vec![]);
        assert_eq!(
            refusal(&state, &second),
            "chains: tenant t would have 2, and the operator grants it 1 (chains_max): delete some first, or ask the operator for \
             more"
        );
        let more = Tenant { chains_max: Some(2), ..tenant() };
        let state = applied(&state, &Change { tenants: vec![more], ..second });
        // Lower than what is there: that stays, and may be changed, and no more comes.
        let state = applied(&state, &change(vec![granted], vec![], vec![]));
        let state = applied(&state, &change(vec![], vec![Chain { cache_min: 1, ..chain("a") }], vec![]));
        assert!(refusal(&state, &change(vec![], vec![chain("c")], vec![])).contains("would have 3"));
        assert_eq!(DesiredState::restore(9, stored(&state)).unwrap().chains().len(), 2);
    }

    /// Returns the change that makes this state of an empty one.
    fn stored(state: &DesiredState) -> Change {
        Change {
            tenants: state.tenants().values().map(|it| (**it).clone()).collect(),
            modules: state.modules().values().map(|it| (**it).clone()).collect(),
            keys: state.keys().values().map(|it| (**it).clone()).collect(),
            models: state.models().values().map(|it| (**it).clone()).collect(),
            chains: state.chains().values().map(|it| (**it).clone()).collect(),
            rules: state.rules().values().map(|it| (**it).clone()).collect(),
            ..Change::default()
        }
    }

    #[test]
    fn tenants_differ_in_the_keys_that_were_changed() {
        let other = Tenant { weight: 2, ports: ["lan".parse().unwrap()].into(), outbound_flows: true, ..tenant() };
        assert_eq!(tenant().differences(&other), ["weight", "ports", "outbound_flows"]);
        assert_eq!(other.differences(&other), [""; 0]);
    }
}
