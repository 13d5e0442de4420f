//! Conversions of counters and gauges of functions.

use super::{BadMessage, field, optional};
use crate::metrics::{MetricFilter, MetricStatus, MetricValue};
use crate::model::{ChainName, ModuleName, TenantName};
use crate::proto;
use crate::proto::metric::Value;

impl From<MetricStatus> for proto::Metric {
    fn from(status: MetricStatus) -> Self {
        let label = |(name, value)| proto::MetricLabel { name, value };
        Self {
            tenant: status.tenant.to_string(),
            chain: status.chain.to_string(),
            stage: status.stage,
            module: status.module.to_string(),
            name: status.name,
            help: status.help,
            labels: status.labels.into_iter().map(label).collect(),
            value: Some(match status.value {
                MetricValue::Counter(value) => Value::Counter(value),
                MetricValue::Gauge(value) => Value::Gauge(value),
            }),
        }
    }
}

impl TryFrom<proto::Metric> for MetricStatus {
    type Error = BadMessage;

    fn try_from(message: proto::Metric) -> Result<Self, BadMessage> {
        let value = match message.value {
            Some(Value::Counter(value)) => MetricValue::Counter(value),
            Some(Value::Gauge(value)) => MetricValue::Gauge(value),
            None => {
                let problem = "the node reports a kind of metric that this version does not know";
                return Err(BadMessage::new("metric.value", problem));
            }
        };
        Ok(Self {
            tenant: field("metric.tenant", TenantName::new(message.tenant))?,
            chain: field("metric.chain", ChainName::new(message.chain))?,
            stage: message.stage,
            module: field("metric.module", ModuleName::new(message.module))?,
            name: message.name,
            help: message.help,
            labels: message.labels.into_iter().map(|label| (label.name, label.value)).collect(),
            value,
        })
    }
}

impl TryFrom<proto::GetMetricsRequest> for MetricFilter {
    type Error = BadMessage;

    fn try_from(message: proto::GetMetricsRequest) -> Result<Self, BadMessage> {
        let proto::GetMetricsRequest { tenant, chain } = message;
        let tenant = optional("tenant", tenant, TenantName::new)?;
        Ok(Self { tenant, chain: optional("chain", chain, ChainName::new)? })
    }
}
