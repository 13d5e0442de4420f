//! Conversions of log lines.

use std::sync::Arc;

use super::{BadMessage, field, optional};
use crate::journal::{Level, LogFilter, LogLine, Origin};
use crate::model::{ChainName, ModuleName, TenantName};
use crate::proto;

impl From<Level> for proto::LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => proto::LogLevel::Error,
            Level::Warn => proto::LogLevel::Warn,
            Level::Info => proto::LogLevel::Info,
            Level::Debug => proto::LogLevel::Debug,
        }
    }
}

fn level(message: proto::LogLevel) -> Result<Level, &'static str> {
    match message {
        proto::LogLevel::Error => Ok(Level::Error),
        proto::LogLevel::Warn => Ok(Level::Warn),
        proto::LogLevel::Info => Ok(Level::Info),
        proto::LogLevel::Debug => Ok(Level::Debug),
        proto::LogLevel::Unspecified => Err("the node reports a level that this version does not know"),
    }
}

impl From<LogLine> for proto::LogLine {
    fn from(line: LogLine) -> Self {
        Self {
            time_unix_ms: line.time_unix_ms,
            level: proto::LogLevel::from(line.level).into(),
            tenant: line.origin.tenant.to_string(),
            chain: line.origin.chain.to_string(),
            stage: line.origin.stage,
            module: line.origin.module.to_string(),
            fwp: line.origin.fwp.clone(),
            text: line.text.to_string(),
            lost: line.lost,
        }
    }
}

impl TryFrom<proto::LogLine> for LogLine {
    type Error = BadMessage;

    fn try_from(message: proto::LogLine) -> Result<Self, BadMessage> {
        let level = field("log_line.level", level(message.level()))?;
        let origin = Origin {
            tenant: field("log_line.tenant", TenantName::new(message.tenant))?,
            chain: field("log_line.chain", ChainName::new(message.chain))?,
            stage: message.stage,
            module: field("log_line.module", ModuleName::new(message.module))?,
            fwp: message.fwp,
        };
        let (time_unix_ms, lost) = (message.time_unix_ms, message.lost);
        Ok(Self { time_unix_ms, level, origin: Arc::new(origin), text: message.text.into(), lost })
    }
}

impl TryFrom<&proto::GetLogsRequest> for LogFilter {
    type Error = BadMessage;

    fn try_from(message: &proto::GetLogsRequest) -> Result<Self, BadMessage> {
        let proto::GetLogsRequest { tenant, chain, tail, .. } = message.clone();
        let tenant = optional("tenant", tenant, TenantName::new)?;
        Ok(Self { tenant, chain: optional("chain", chain, ChainName::new)?, tail })
    }
}
