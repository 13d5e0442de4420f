//! Conversions of modules, keys, models, chains, rules, and the outcomes of a change.

use super::edges::{branch, output, reverse};
use super::{BadMessage, field, optional};
use crate::model::{
    Access, BadMatch, Chain, ChainName, Class, Effect, Field, FieldName, Files, Grant, Key, KeyName, Match, Model,
    ModelName, Module, ModuleName, ObjectRef, Outbound, Outcome, OverBudget, Policy, PortName, PortRange, Prefix,
    Protocol, Rule, RuleName, Scheduling, Stage, StageName, TenantName, Upload, VlanId, WhenFull,
};
use crate::proto;

impl From<&Module> for proto::Module {
    fn from(module: &Module) -> Self {
        Self {
            tenant: module.tenant.to_string(),
            name: module.name.to_string(),
            digest: module.digest.to_string(),
            size_bytes: module.size_bytes,
            label: None,
        }
    }
}

impl TryFrom<proto::Module> for Module {
    type Error = BadMessage;

    fn try_from(message: proto::Module) -> Result<Self, BadMessage> {
        Ok(Self {
            tenant: field("module.tenant", TenantName::new(message.tenant))?,
            name: field("module.name", ModuleName::new(message.name))?,
            digest: field("module.digest", message.digest.parse())?,
            size_bytes: message.size_bytes,
        })
    }
}

impl From<&Key> for proto::Key {
    fn from(key: &Key) -> Self {
        Self {
            tenant: key.tenant.to_string(),
            name: key.name.to_string(),
            digest: key.digest.to_string(),
            algorithm: key.algorithm.clone(),
            label: None,
        }
    }
}

impl TryFrom<proto::Key> for Key {
    type Error = BadMessage;

    fn try_from(message: proto::Key) -> Result<Self, BadMessage> {
        Ok(Self {
            tenant: field("key.tenant", TenantName::new(message.tenant))?,
            name: field("key.name", KeyName::new(message.name))?,
            digest: field("key.digest", message.digest.parse())?,
            algorithm: message.algorithm,
        })
    }
}

impl From<&Model> for proto::Model {
    fn from(model: &Model) -> Self {
        Self {
            tenant: model.tenant.to_string(),
            name: model.name.to_string(),
            digest: model.digest.to_string(),
            size_bytes: model.size_bytes,
            label: None,
        }
    }
}

impl TryFrom<proto::Model> for Model {
    type Error = BadMessage;

    fn try_from(message: proto::Model) -> Result<Self, BadMessage> {
        Ok(Self {
            tenant: field("model.tenant", TenantName::new(message.tenant))?,
            name: field("model.name", ModelName::new(message.name))?,
            digest: field("model.digest", message.digest.parse())?,
            size_bytes: message.size_bytes,
        })
    }
}

impl From<Upload> for proto::Upload {
    fn from(upload: Upload) -> Self {
        Self {
            tenant: upload.tenant.to_string(),
            digest: upload.digest.to_string(),
            size_bytes: upload.size_bytes,
            kept_ms: upload.kept_ms,
        }
    }
}

impl TryFrom<proto::Upload> for Upload {
    type Error = BadMessage;

    fn try_from(message: proto::Upload) -> Result<Self, BadMessage> {
        Ok(Self {
            tenant: field("upload.tenant", TenantName::new(message.tenant))?,
            digest: field("upload.digest", message.digest.parse())?,
            size_bytes: message.size_bytes,
            kept_ms: message.kept_ms,
        })
    }
}

impl From<&Chain> for proto::Chain {
    fn from(chain: &Chain) -> Self {
        Self {
            tenant: chain.tenant.to_string(),
            name: chain.name.to_string(),
            stages: chain.stages.iter().map(Into::into).collect(),
            entry: chain.entry.as_ref().map(Into::into),
            egress: chain.egress.as_ref().map(PortName::to_string),
            reverse: chain.reverse.as_ref().map(Into::into),
            memory_limit_kib: Some(chain.memory_limit_kib),
            memory_total_kib: chain.memory_total_kib,
            idle_timeout_ms: Some(chain.idle_timeout_ms),
            drain_timeout_ms: Some(chain.drain_timeout_ms),
            cache_min: Some(chain.cache_min),
            cache_max: Some(chain.cache_max),
            hold_frames: Some(chain.hold_frames),
            idempotent: chain.idempotent,
            routed: chain.routed,
            outbound: chain.outbound.iter().map(Into::into).collect(),
            class: proto::SchedulingClass::from(chain.scheduling.class).into(),
            cpu_per_batch_us: chain.scheduling.cpu_per_batch_us,
            cpu_per_second_ms: chain.scheduling.cpu_per_second_ms,
            over_budget: proto::OverBudget::from(chain.scheduling.over_budget).into(),
            fields: chain.fields.iter().map(Into::into).collect(),
            label: None,
            implicit: false,
        }
    }
}

impl TryFrom<proto::Chain> for Chain {
    type Error = BadMessage;

    fn try_from(message: proto::Chain) -> Result<Self, BadMessage> {
        let stage = |(at, message): (usize, proto::Stage)| {
            Stage::try_from(message).map_err(|bad| bad.within(format_args!("chain.stages[{at}]")))
        };
        let scheduling = scheduling(&message)?;
        let tenant = field("chain.tenant", TenantName::new(message.tenant))?;
        let name = field("chain.name", ChainName::new(message.name))?;
        let stages = message.stages.into_iter().enumerate().map(stage).collect::<Result<_, BadMessage>>()?;
        let fields = message.fields.into_iter().map(Field::try_from).collect::<Result<_, BadMessage>>()?;
        let outbound = |(at, message): (usize, proto::Outbound)| {
            Outbound::try_from(message).map_err(|bad| bad.within(format_args!("chain.outbound[{at}]")))
        };
        let outbound = message.outbound.into_iter().enumerate().map(outbound).collect::<Result<_, BadMessage>>()?;
        let cache_min = message.cache_min.unwrap_or(Self::CACHE_MIN);
        let Self { stages, .. } = Self::new(tenant.clone(), name.clone(), stages);
        Ok(Self {
            tenant,
            name,
            stages,
            entry: message.entry.map(|entry| branch(entry).map_err(|bad| bad.within("chain.entry"))).transpose()?,
            egress: optional("chain.egress", message.egress, PortName::new)?,
            reverse: message.reverse.map(reverse).transpose()?,
            memory_limit_kib: message.memory_limit_kib.unwrap_or(Self::MEMORY_LIMIT_KIB),
            memory_total_kib: message.memory_total_kib,
            idle_timeout_ms: message.idle_timeout_ms.unwrap_or(Self::IDLE_TIMEOUT_MS),
            drain_timeout_ms: message.drain_timeout_ms.unwrap_or(Self::DRAIN_TIMEOUT_MS),
            cache_min,
            cache_max: message.cache_max.unwrap_or_else(|| Self::default_cache_max(cache_min)),
            hold_frames: message.hold_frames.unwrap_or(Self::HOLD_FRAMES),
            idempotent: message.idempotent,
            routed: message.routed,
            outbound,
            fields,
            scheduling,
        })
    }
}

impl From<&Outbound> for proto::Outbound {
    fn from(Outbound { protocol, to, ports }: &Outbound) -> Self {
        Self { protocol: protocol.0.into(), to: to.to_string(), ports: ports.map(proto_ports) }
    }
}

impl TryFrom<proto::Outbound> for Outbound {
    type Error = BadMessage;

    fn try_from(message: proto::Outbound) -> Result<Self, BadMessage> {
        Ok(Self {
            protocol: field("protocol", protocol(message.protocol))?,
            to: field("to", message.to.parse::<Prefix>())?,
            ports: optional("ports", message.ports, port_range)?,
        })
    }
}

/// Converts the scheduling parameters. Absent ones get their defaults.
fn scheduling(message: &proto::Chain) -> Result<Scheduling, BadMessage> {
    let default = Scheduling::default();
    let class = field("chain.class", proto::SchedulingClass::try_from(message.class))?;
    let over_budget = field("chain.over_budget", proto::OverBudget::try_from(message.over_budget))?;
    Ok(Scheduling {
        class: match class {
            proto::SchedulingClass::Unspecified => default.class,
            proto::SchedulingClass::System => Class::System,
            proto::SchedulingClass::Latency => Class::Latency,
            proto::SchedulingClass::Throughput => Class::Throughput,
        },
        cpu_per_batch_us: message.cpu_per_batch_us,
        cpu_per_second_ms: message.cpu_per_second_ms,
        over_budget: match over_budget {
            proto::OverBudget::Unspecified => default.over_budget,
            proto::OverBudget::Throttle => OverBudget::Throttle,
            proto::OverBudget::Kill => OverBudget::Kill,
        },
    })
}

impl From<Class> for proto::SchedulingClass {
    fn from(class: Class) -> Self {
        match class {
            Class::System => Self::System,
            Class::Latency => Self::Latency,
            Class::Throughput => Self::Throughput,
        }
    }
}

impl From<OverBudget> for proto::OverBudget {
    fn from(over_budget: OverBudget) -> Self {
        match over_budget {
            OverBudget::Throttle => Self::Throttle,
            OverBudget::Kill => Self::Kill,
        }
    }
}

impl From<&Stage> for proto::Stage {
    fn from(stage: &Stage) -> Self {
        Self {
            module: stage.module.to_string(),
            config: stage.config.clone(),
            name: stage.name.as_ref().map(StageName::to_string),
            outputs: stage.outputs.iter().map(Into::into).collect(),
            files: stage.files.as_ref().map(Into::into),
            state: stage.state.iter().map(Into::into).collect(),
            keys: stage.keys.iter().map(KeyName::to_string).collect(),
            models: stage.models.iter().map(ModelName::to_string).collect(),
        }
    }
}

impl TryFrom<proto::Stage> for Stage {
    type Error = BadMessage;

    fn try_from(message: proto::Stage) -> Result<Self, BadMessage> {
        let output = |(at, message): (usize, proto::Output)| {
            output(message).map_err(|bad| bad.within(format_args!("outputs[{at}]")))
        };
        let key = |(at, name): (usize, String)| field(&format!("keys[{at}]"), KeyName::new(name));
        let model = |(at, name): (usize, String)| field(&format!("models[{at}]"), ModelName::new(name));
        Ok(Self {
            module: field("module", ModuleName::new(message.module))?,
            name: optional("name", message.name, StageName::new)?,
            config: message.config,
            files: message
                .files
                .map(|files| files.try_into().map_err(|bad: BadMessage| bad.within("files")))
                .transpose()?,
            outputs: message.outputs.into_iter().enumerate().map(output).collect::<Result<_, BadMessage>>()?,
            state: message.state.into_iter().map(Grant::try_from).collect::<Result<_, BadMessage>>()?,
            keys: message.keys.into_iter().enumerate().map(key).collect::<Result<_, BadMessage>>()?,
            models: message.models.into_iter().enumerate().map(model).collect::<Result<_, BadMessage>>()?,
        })
    }
}

impl From<&Grant> for proto::StateGrant {
    fn from(grant: &Grant) -> Self {
        let access = match grant.access {
            Access::Read => proto::StateAccess::Read,
            Access::Write => proto::StateAccess::Write,
        };
        Self { field: grant.field.to_string(), access: access.into() }
    }
}

impl TryFrom<proto::StateGrant> for Grant {
    type Error = BadMessage;

    fn try_from(message: proto::StateGrant) -> Result<Self, BadMessage> {
        let access = match message.access() {
            proto::StateAccess::Read => Ok(Access::Read),
            proto::StateAccess::Write => Ok(Access::Write),
            proto::StateAccess::Unspecified => Err("say one of read, write"),
        };
        Ok(Self { access: field("state.access", access)?, field: field("state.field", FieldName::new(message.field))? })
    }
}

impl From<&Field> for proto::StateField {
    fn from(field: &Field) -> Self {
        let when_full = match field.when_full {
            WhenFull::Refuse => proto::WhenFull::Refuse,
            WhenFull::Evict => proto::WhenFull::Evict,
        };
        Self {
            name: field.name.to_string(),
            value_bytes: field.value_bytes,
            entries: field.entries,
            ttl_seconds: field.ttl_seconds,
            when_full: when_full.into(),
        }
    }
}

impl TryFrom<proto::StateField> for Field {
    type Error = BadMessage;

    fn try_from(message: proto::StateField) -> Result<Self, BadMessage> {
        let when_full = match field("chain.fields.when_full", proto::WhenFull::try_from(message.when_full))? {
            proto::WhenFull::Unspecified => WhenFull::default(),
            proto::WhenFull::Refuse => WhenFull::Refuse,
            proto::WhenFull::Evict => WhenFull::Evict,
        };
        Ok(Self {
            name: field("chain.fields.name", FieldName::new(message.name))?,
            value_bytes: message.value_bytes,
            entries: message.entries,
            ttl_seconds: message.ttl_seconds,
            when_full,
        })
    }
}

impl From<&Files> for proto::Files {
    fn from(files: &Files) -> Self {
        Self { digest: files.digest.to_string(), size_bytes: files.size_bytes }
    }
}

impl TryFrom<proto::Files> for Files {
    type Error = BadMessage;

    fn try_from(message: proto::Files) -> Result<Self, BadMessage> {
        Ok(Self { digest: field("digest", message.digest.parse())?, size_bytes: message.size_bytes })
    }
}

impl From<&Rule> for proto::Rule {
    fn from(rule: &Rule) -> Self {
        Self {
            tenant: rule.tenant.to_string(),
            name: rule.name.to_string(),
            priority: rule.priority,
            r#match: Some((&rule.matcher).into()),
            policy: proto::Policy::from(rule.policy).into(),
            chain: rule.chain.to_string(),
            label: None,
        }
    }
}

impl TryFrom<proto::Rule> for Rule {
    type Error = BadMessage;

    fn try_from(message: proto::Rule) -> Result<Self, BadMessage> {
        let matcher = Match::try_from(message.r#match.clone().unwrap_or_default());
        Ok(Self {
            policy: field("rule.policy", policy(message.policy()))?,
            tenant: field("rule.tenant", TenantName::new(message.tenant))?,
            name: field("rule.name", RuleName::new(message.name))?,
            priority: message.priority,
            matcher: matcher.map_err(|bad| bad.within("rule"))?,
            chain: field("rule.chain", ChainName::new(message.chain))?,
        })
    }
}

impl From<Policy> for proto::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Shared => proto::Policy::Shared,
            Policy::PerClient => proto::Policy::PerClient,
            Policy::PerFlow => proto::Policy::PerFlow,
        }
    }
}

fn policy(message: proto::Policy) -> Result<Policy, &'static str> {
    match message {
        proto::Policy::Shared => Ok(Policy::Shared),
        proto::Policy::PerClient => Ok(Policy::PerClient),
        proto::Policy::PerFlow => Ok(Policy::PerFlow),
        proto::Policy::Unspecified => Err("say one of shared, per-client, per-flow"),
    }
}

impl From<&Match> for proto::Match {
    fn from(matcher: &Match) -> Self {
        Self {
            port: matcher.port.as_ref().map(PortName::to_string),
            vlan: matcher.vlan.map(|id| id.number().into()),
            inner_vlan: matcher.inner_vlan.map(|id| id.number().into()),
            source: matcher.source.map(|prefix| prefix.to_string()),
            destination: matcher.destination.map(|prefix| prefix.to_string()),
            protocol: matcher.protocol.map(|protocol| protocol.0.into()),
            icmp_type: matcher.icmp_type.map(u32::from),
            source_ports: matcher.source_ports.map(proto_ports),
            destination_ports: matcher.destination_ports.map(proto_ports),
        }
    }
}

impl TryFrom<proto::Match> for Match {
    type Error = BadMessage;

    fn try_from(message: proto::Match) -> Result<Self, BadMessage> {
        let prefix = |text: String| text.parse::<Prefix>();
        let icmp_type = |number: u32| match u8::try_from(number) {
            Ok(number) => Ok(number),
            Err(_) => Err(format!("{number} is not an ICMP type: it must be from 0 to 255")),
        };
        Ok(Self {
            port: optional("match.port", message.port, PortName::new)?,
            vlan: optional("match.vlan", message.vlan, vlan_id)?,
            inner_vlan: optional("match.inner_vlan", message.inner_vlan, vlan_id)?,
            source: optional("match.source", message.source, prefix)?,
            destination: optional("match.destination", message.destination, prefix)?,
            protocol: optional("match.protocol", message.protocol, protocol)?,
            icmp_type: optional("match.icmp_type", message.icmp_type, icmp_type)?,
            source_ports: optional("match.source_ports", message.source_ports, port_range)?,
            destination_ports: optional("match.destination_ports", message.destination_ports, port_range)?,
        })
    }
}

fn protocol(number: u32) -> Result<Protocol, String> {
    let bad = |_| format!("{number} is not a protocol number: it must be from 0 to 255");
    u8::try_from(number).map(Protocol).map_err(bad)
}

fn proto_ports(range: PortRange) -> proto::PortRange {
    proto::PortRange { first: range.first().into(), last: range.last().into() }
}

fn vlan_id(number: u32) -> Result<VlanId, BadMatch> {
    let bad = |_| BadMatch::VlanId(number.to_string());
    u16::try_from(number).map_err(bad).and_then(VlanId::new)
}

fn port_range(message: proto::PortRange) -> Result<PortRange, String> {
    let port = |number: u32| u16::try_from(number).map_err(|_| format!("{number} is not a port number"));
    PortRange::new(port(message.first)?, port(message.last)?).map_err(|bad| bad.to_string())
}

/// Returns the kind of an object, as messages have it.
pub(crate) fn kind_of(object: &ObjectRef) -> proto::Kind {
    match object {
        ObjectRef::Tenant { .. } => proto::Kind::Tenant,
        ObjectRef::Module { .. } => proto::Kind::Module,
        ObjectRef::Key { .. } => proto::Kind::Key,
        ObjectRef::Model { .. } => proto::Kind::Model,
        ObjectRef::Chain { .. } => proto::Kind::Chain,
        ObjectRef::Rule { .. } => proto::Kind::Rule,
    }
}

impl From<&ObjectRef> for proto::ObjectRef {
    fn from(object: &ObjectRef) -> Self {
        let kind = kind_of(object);
        Self { kind: kind.into(), tenant: object.tenant().to_string(), name: object.name().to_owned() }
    }
}

impl TryFrom<proto::ObjectRef> for ObjectRef {
    type Error = BadMessage;

    fn try_from(message: proto::ObjectRef) -> Result<Self, BadMessage> {
        let kind = message.kind();
        if kind == proto::Kind::Tenant {
            let name = field("object.name", TenantName::new(message.name))?;
            return match message.tenant {
                tenant if tenant.is_empty() || tenant == name.as_str() => Ok(Self::Tenant { name }),
                _ => {
                    Err(BadMessage::new("object.tenant", "it has to be empty, or the tenant's name as in object.name"))
                }
            };
        }
        let tenant = field("object.tenant", TenantName::new(message.tenant))?;
        Ok(match kind {
            proto::Kind::Module => Self::Module { tenant, name: field("object.name", ModuleName::new(message.name))? },
            proto::Kind::Key => Self::Key { tenant, name: field("object.name", KeyName::new(message.name))? },
            proto::Kind::Model => Self::Model { tenant, name: field("object.name", ModelName::new(message.name))? },
            proto::Kind::Chain => Self::Chain { tenant, name: field("object.name", ChainName::new(message.name))? },
            proto::Kind::Rule => Self::Rule { tenant, name: field("object.name", RuleName::new(message.name))? },
            proto::Kind::Unspecified | proto::Kind::Tenant => {
                return Err(BadMessage::new("object.kind", "say one of tenant, module, key, model, chain, rule"));
            }
        })
    }
}

impl From<&Outcome> for proto::Outcome {
    fn from(outcome: &Outcome) -> Self {
        let effect = match outcome.effect {
            Effect::Created => proto::outcome::Effect::Created,
            Effect::Configured => proto::outcome::Effect::Configured,
            Effect::Unchanged => proto::outcome::Effect::Unchanged,
            Effect::Deleted => proto::outcome::Effect::Deleted,
            Effect::Pruned => proto::outcome::Effect::Pruned,
        };
        Self { object: Some((&outcome.object).into()), effect: effect.into() }
    }
}

impl TryFrom<proto::Outcome> for Outcome {
    type Error = BadMessage;

    fn try_from(message: proto::Outcome) -> Result<Self, BadMessage> {
        let effect = match message.effect() {
            proto::outcome::Effect::Created => Effect::Created,
            proto::outcome::Effect::Configured => Effect::Configured,
            proto::outcome::Effect::Unchanged => Effect::Unchanged,
            proto::outcome::Effect::Deleted => Effect::Deleted,
            proto::outcome::Effect::Pruned => Effect::Pruned,
            proto::outcome::Effect::Unspecified => return Err(BadMessage::new("outcome.effect", "it is missing")),
        };
        let object = message.object.ok_or_else(|| BadMessage::new("outcome.object", "it is missing"))?;
        Ok(Self { object: object.try_into()?, effect })
    }
}
