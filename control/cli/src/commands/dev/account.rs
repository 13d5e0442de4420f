//! What became of the frames that a node was given: by its own counters.

use std::fmt::Write as _;

use pinion_control::client::NodeReport;
use serde::Serialize;

use crate::args::Format;
use crate::output;

/// The port of those who call functions by name, which has no part in this.
const INVOKE: &str = "invoke";
/// Where the gateway drops. What it drops of a chain's is among a port's, too.
const GATEWAY: &str = "gateway";

/// Frames, in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Account {
    pub(super) received: u64,
    pub(super) sent: u64,
    /// What was sent to a station that something had come from; known only of frames from a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replies: Option<u64>,
    pub(super) dropped: Vec<Dropped>,
    /// What functions still have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kept: Option<u64>,
}

/// Frames that were dropped in one place for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Dropped {
    /// A port, or a stage of a chain.
    place: String,
    reason: String,
    count: u64,
}

impl Account {
    /// As the node's report has it.
    pub(super) fn of(report: &NodeReport) -> Self {
        let mut account = Self::default();
        for port in report.node.ports.iter().filter(|port| port.name.as_str() != INVOKE) {
            account.received += port.received;
            account.sent += port.sent;
            for drop in &port.drops {
                account.dropped.push(Dropped {
                    place: format!("port {}", port.name),
                    reason: drop.reason.clone(),
                    count: drop.count,
                });
            }
        }
        for chain in &report.node.chains {
            for drop in chain.drops.iter().filter(|drop| drop.place != GATEWAY) {
                let place = format!("{}/{}", chain.chain, drop.place);
                account.dropped.push(Dropped { place, reason: drop.reason.clone(), count: drop.count });
            }
        }
        if report.node.dropped_gone > 0 {
            let (place, reason) = ("on the way".to_owned(), "gone".to_owned());
            account.dropped.push(Dropped { place, reason, count: report.node.dropped_gone });
        }
        account
    }

    /// Frames that were sent, or dropped. As many as came, if functions neither copy nor keep any.
    pub(super) fn answered(&self) -> u64 {
        self.sent + self.dropped.iter().map(|drop| drop.count).sum::<u64>()
    }

    /// For who was at work.
    pub(super) fn print(&self, format: Format) -> anyhow::Result<()> {
        match format {
            Format::Json => output::json(self),
            Format::Table => output::print(&self.text()),
        }
    }

    fn text(&self) -> String {
        let dropped: u64 = self.dropped.iter().map(|drop| drop.count).sum();
        let mut text = format!("{} received, {} sent", self.received, self.sent);
        if let Some(replies) = self.replies {
            let _ = write!(text, " ({replies} of them back to where frames came from)");
        }
        let _ = write!(text, ", {dropped} dropped");
        if let Some(kept @ 1..) = self.kept {
            let _ = write!(text, ", {kept} kept by functions");
        }
        if !self.dropped.is_empty() {
            let row = |drop: &Dropped| [drop.place.clone(), drop.reason.clone(), drop.count.to_string()];
            let table = output::table(["DROPPED AT", "REASON", "COUNT"], self.dropped.iter().map(row));
            let _ = write!(text, "\n\n{table}");
        }
        text
    }
}
