//! Conversions of the edges of a chain's graph: outputs, branches, and the reverse direction.

use super::{BadMessage, field};
use crate::model::{Branch, Case, Match, Output, PortName, Reverse, Target};
use crate::proto;

const TARGETS: &str = "say one of stage, egress, port, drop";

/// Writes a target into a oneof that has the targets, such as that of an output.
macro_rules! written {
    ($oneof:ident, $target:expr) => {
        match $target {
            Target::Stage(stage) => proto::$oneof::Target::Stage(*stage as u32),
            Target::Egress => proto::$oneof::Target::Egress(proto::output::Egress {}),
            Target::Port(port) => proto::$oneof::Target::Port(port.to_string()),
            Target::Drop => proto::$oneof::Target::Drop(proto::output::Drop {}),
        }
    };
}

/// Reads a target from such a oneof. `$port` names the field of a port's name; `$other` is what the oneof may be besides.
macro_rules! read {
    ($oneof:ident, $target:expr, $port:expr $(, $other:pat => $read:expr)?) => {
        match $target {
            proto::$oneof::Target::Stage(stage) => Target::Stage(stage as usize).into(),
            proto::$oneof::Target::Egress(_) => Target::Egress.into(),
            proto::$oneof::Target::Port(port) => Target::Port(field($port, PortName::new(port))?).into(),
            proto::$oneof::Target::Drop(_) => Target::Drop.into(),
            $($other => $read,)?
        }
    };
}

impl From<&Output> for proto::Output {
    fn from(output: &Output) -> Self {
        let target = match output {
            Output::To(target) => written!(output, target),
            Output::Branch(branch) => proto::output::Target::Branch(branch.into()),
        };
        Self { target: Some(target) }
    }
}

pub(super) fn output(message: proto::Output) -> Result<Output, BadMessage> {
    let branch = |it| branch(it).map(Output::Branch).map_err(|bad| bad.within("branch"));
    let Some(target) = message.target else {
        return Err(BadMessage::new("target", format_args!("{TARGETS}, branch")));
    };
    Ok(read!(output, target, "port", proto::output::Target::Branch(it) => branch(it)?))
}

impl From<&Target> for proto::BranchTarget {
    fn from(target: &Target) -> Self {
        Self { target: Some(written!(branch_target, target)) }
    }
}

fn target(at: &str, message: Option<proto::BranchTarget>) -> Result<Target, BadMessage> {
    let Some(target) = message.unwrap_or_default().target else { return Err(BadMessage::new(at, TARGETS)) };
    Ok(read!(branch_target, target, &format!("{at}.port")))
}

impl From<&Branch> for proto::Branch {
    fn from(Branch { cases, default }: &Branch) -> Self {
        let case =
            |Case { matcher, to }: &Case| proto::BranchCase { r#match: Some(matcher.into()), to: Some(to.into()) };
        Self { cases: cases.iter().map(case).collect(), default: Some(default.into()) }
    }
}

pub(super) fn branch(message: proto::Branch) -> Result<Branch, BadMessage> {
    let case = |(at, message): (usize, proto::BranchCase)| {
        let case = |message: proto::BranchCase| {
            let matcher = Match::try_from(message.r#match.unwrap_or_default())?;
            Ok(Case { matcher, to: target("to", message.to)? })
        };
        case(message).map_err(|bad: BadMessage| bad.within(format_args!("cases[{at}]")))
    };
    let cases = message.cases.into_iter().enumerate().map(case).collect::<Result<_, BadMessage>>()?;
    Ok(Branch { cases, default: target("default", message.default)? })
}

impl From<&Reverse> for proto::Reverse {
    fn from(Reverse { from, entry, egress }: &Reverse) -> Self {
        Self {
            from: from.iter().map(PortName::to_string).collect(),
            entry: entry.as_ref().map(Into::into),
            egress: egress.as_ref().map(PortName::to_string).unwrap_or_default(),
        }
    }
}

pub(super) fn reverse(message: proto::Reverse) -> Result<Reverse, BadMessage> {
    let port = |(at, name)| field(&format!("chain.reverse.from[{at}]"), PortName::new(name));
    let entry = |message| branch(message).map_err(|bad| bad.within("chain.reverse.entry"));
    Ok(Reverse {
        from: message.from.into_iter().enumerate().map(port).collect::<Result<_, BadMessage>>()?,
        entry: message.entry.map(entry).transpose()?,
        egress: match message.egress {
            egress if egress.is_empty() => None,
            egress => Some(field("chain.reverse.egress", PortName::new(egress))?),
        },
    })
}
