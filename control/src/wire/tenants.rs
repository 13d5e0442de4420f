//! Conversions of tenants.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::{BadMessage, field};
use crate::model::{Class, PortName, Tenant, TenantName};
use crate::proto;

impl From<&Tenant> for proto::Tenant {
    fn from(tenant: &Tenant) -> Self {
        Self {
            name: tenant.name.to_string(),
            weight: Some(tenant.weight),
            class_max: proto::SchedulingClass::from(tenant.class_max).into(),
            memory_mib: tenant.memory_mib,
            state_mib: tenant.state_mib,
            cpu_per_second_ms: tenant.cpu_per_second_ms,
            clock_step_us: tenant.clock_step_us,
            modules_max: tenant.modules_max,
            keys_max: tenant.keys_max,
            models_max: tenant.models_max,
            model_mib: tenant.model_mib,
            chains_max: tenant.chains_max,
            rules_max: tenant.rules_max,
            upload_mib: tenant.upload_mib,
            ports: texts(&tenant.ports),
            addresses: texts(&tenant.addresses),
            outbound_flows: tenant.outbound_flows,
            transparent_forwarding: tenant.transparent_forwarding,
        }
    }
}

impl TryFrom<proto::Tenant> for Tenant {
    type Error = BadMessage;

    fn try_from(message: proto::Tenant) -> Result<Self, BadMessage> {
        let class_max = match field("tenant.class_max", proto::SchedulingClass::try_from(message.class_max))? {
            proto::SchedulingClass::Unspecified => Self::CLASS_MAX,
            proto::SchedulingClass::System => Class::System,
            proto::SchedulingClass::Latency => Class::Latency,
            proto::SchedulingClass::Throughput => Class::Throughput,
        };
        Ok(Self {
            name: field("tenant.name", TenantName::new(message.name))?,
            weight: message.weight.unwrap_or(Self::WEIGHT),
            class_max,
            memory_mib: message.memory_mib,
            state_mib: message.state_mib,
            cpu_per_second_ms: message.cpu_per_second_ms,
            clock_step_us: message.clock_step_us,
            modules_max: message.modules_max,
            keys_max: message.keys_max,
            models_max: message.models_max,
            model_mib: message.model_mib,
            chains_max: message.chains_max,
            rules_max: message.rules_max,
            upload_mib: message.upload_mib,
            ports: parsed("tenant.ports", message.ports, PortName::new)?,
            addresses: parsed("tenant.addresses", message.addresses, |text| text.parse())?,
            outbound_flows: message.outbound_flows,
            transparent_forwarding: message.transparent_forwarding,
        })
    }
}

fn texts(items: &BTreeSet<impl Display>) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn parsed<T: Ord, E: Display>(
    at: &str,
    texts: Vec<String>,
    parse: impl Fn(String) -> Result<T, E>,
) -> Result<BTreeSet<T>, BadMessage> {
    texts.into_iter().enumerate().map(|(place, text)| field(&format!("{at}[{place}]"), parse(text))).collect()
}
