//! Counts what happened to the frames that a node was given, from the node's own counters.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pinion_control::client::NodeReport;
use serde::{Serialize, Serializer};

use super::capture::{Captured, LeftOut};
use crate::args::Format;
use crate::output;

/// The port for calls by name, which is not part of this count.
const INVOKE: &str = "invoke";
/// The place name of the gateway's drops. Its drops of a chain are counted at a port, too.
const GATEWAY: &str = "gateway";

/// Frame counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Account {
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Frames sent to a station from which frames had come. Known only for frames from a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replies: Option<u64>,
    pub(super) dropped: Vec<Dropped>,
    /// Frames that functions still hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kept: Option<u64>,
    /// Counts of a capture's unusual records.
    #[serde(flatten)]
    pub(super) records: Records,
}

/// The records of a capture that are not plain frames for the function. Zero counts are not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Records {
    /// Frames that the capture has only a part of, and that the function received in that form.
    #[serde(skip_serializing_if = "is_zero")]
    cut: u64,
    /// Frames with a time that pcap cannot represent. They got the nearest time that it can.
    #[serde(skip_serializing_if = "is_zero")]
    times_clamped: u64,
    /// Records that the function did not get.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "reasons")]
    left_out: BTreeMap<LeftOut, u64>,
    /// Blocks of unknown types.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) unknown_blocks: u64,
    /// Where the rest of the capture cannot be read, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) damage: Option<String>,
}

/// Serialises the counts in the format of the drops.
fn reasons<S: Serializer>(counts: &BTreeMap<LeftOut, u64>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Reason {
        reason: LeftOut,
        count: u64,
    }
    serializer.collect_seq(counts.iter().map(|(reason, count)| Reason { reason: *reason, count: *count }))
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Records {
    /// Counts a frame that the function received.
    pub(super) fn count(&mut self, captured: &Captured) {
        self.cut += u64::from(captured.is_cut);
        self.times_clamped += u64::from(captured.time.is_clamped);
    }

    /// Counts records that the function did not get.
    pub(super) fn leave_out(&mut self, reason: LeftOut, count: u64) {
        if count > 0 {
            *self.left_out.entry(reason).or_default() += count;
        }
    }

    /// Formats the counts as sentences, one in a line.
    fn text(&self) -> String {
        let mut text = String::new();
        if self.cut > 0 {
            let _ = write!(text, "\n{} of those received are cut: the capture has no more of them", self.cut);
        }
        if !self.left_out.is_empty() {
            let reasons = self.left_out.iter().map(|(reason, count)| format!("{count} {}", reason.as_str()));
            let _ = write!(text, "\nleft out of the capture: {}", reasons.collect::<Vec<_>>().join(", "));
        }
        if self.times_clamped > 0 {
            let _ = write!(text, "\n{} times lie before 1970 or after 2106: the nearest is taken", self.times_clamped);
        }
        if self.unknown_blocks > 0 {
            let _ = write!(text, "\n{} blocks of the capture are of unknown types", self.unknown_blocks);
        }
        if let Some(damage) = &self.damage {
            let _ = write!(text, "\nthe capture was not read to its end: {damage}");
        }
        text
    }
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
    /// Reads the counts from a node's report.
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
        if report.node.dropped_instance_ended > 0 {
            let (place, reason) = ("on the way".to_owned(), "instance-ended".to_owned());
            account.dropped.push(Dropped { place, reason, count: report.node.dropped_instance_ended });
        }
        account
    }

    /// Returns the number of frames that were sent or dropped. It equals the number received if functions neither copy
    /// nor hold any.
    pub(super) fn answered(&self) -> u64 {
        self.sent + self.dropped.iter().map(|drop| drop.count).sum::<u64>()
    }

    /// Prints the counts for the developer.
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
        text.push_str(&self.records.text());
        if !self.dropped.is_empty() {
            let row = |drop: &Dropped| [drop.place.clone(), drop.reason.clone(), drop.count.to_string()];
            let table = output::table(["DROPPED AT", "REASON", "COUNT"], self.dropped.iter().map(row));
            let _ = write!(text, "\n\n{table}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::capture::Time;
    use super::*;

    #[test]
    fn every_record_that_is_no_plain_frame_is_reported_with_its_reason() {
        let mut account = Account { received: 3, sent: 3, ..Account::default() };
        assert_eq!(account.text(), "3 received, 3 sent, 0 dropped");
        let json = serde_json::to_value(&account).unwrap();
        assert_eq!(json, serde_json::json!({ "received": 3, "sent": 3, "dropped": [] }));
        for (is_cut, is_clamped) in [(false, false), (true, false), (false, true)] {
            let time = Time { is_clamped, ..Time::default() };
            account.records.count(&Captured { time, frame: vec![0], is_cut });
        }
        account.records.leave_out(LeftOut::NotEthernet, 2);
        account.records.leave_out(LeftOut::Empty, 1);
        account.records.leave_out(LeftOut::TooLong, 0);
        account.records.unknown_blocks = 1;
        account.records.damage = Some("it is damaged".to_owned());
        let json = serde_json::to_value(&account).unwrap();
        let left_out = serde_json::json!([{ "reason": "not-ethernet", "count": 2 }, { "reason": "empty", "count": 1 }]);
        assert_eq!((&json["cut"], &json["times_clamped"], &json["left_out"]), (&1.into(), &1.into(), &left_out));
        assert_eq!((&json["unknown_blocks"], &json["damage"]), (&1.into(), &"it is damaged".into()));
        assert_eq!(
            account.text(),
            "3 received, 3 sent, 0 dropped\n\
             1 of those received are cut: the capture has no more of them\n\
             left out of the capture: 2 not-ethernet, 1 empty\n\
             1 times lie before 1970 or after 2106: the nearest is taken\n\
             1 blocks of the capture are of unknown types\n\
             the capture was not read to its end: it is damaged"
        );
    }
}
