//! ICMP errors as reports about packets: which of them a host may act on.

use super::{Headers, ICMP};

/// Why an ICMP error is of no use to the host that it is addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReport {
    /// It is of a kind that hosts ignore, or that only a router on the same link may send: source quench (RFC 6633),
    /// redirect, and kinds that are not defined.
    Kind,
    /// It does not quote the whole IP header of a packet, or that header cannot be read.
    QuotesTooLittle,
    /// The packet that it quotes was sent from another address than the error is addressed to. So it is forged, or has
    /// gone astray.
    OtherSender,
}

impl Headers {
    /// Returns the headers of the packet that an ICMP error reports on, as [`Headers::quoted`] does. `None` if the packet
    /// is no error.
    ///
    /// A report is a *destination unreachable*, including *fragmentation needed*, a *packet too big*, a *time exceeded* or
    /// a *parameter problem*, and is addressed to the sender of the packet that it quotes. Whether that packet was sent is
    /// for the function to know: a firewall or a translator drops reports about flows that do not exist (RFC 5508, RFC
    /// 5927).
    ///
    /// # Errors
    ///
    /// It is an error of which no host can make use.
    pub fn reported(&self, frame: &[u8]) -> Result<Option<Self>, NoReport> {
        let Some(icmp) = self.icmp.filter(|icmp| icmp.is_error) else { return Ok(None) };
        let is_report = match self.protocol {
            ICMP => matches!(icmp.kind, 3 | 11 | 12),
            _ => matches!(icmp.kind, 1..=4),
        };
        if !is_report {
            return Err(NoReport::Kind);
        }
        let quoted = self.quoted(frame).ok_or(NoReport::QuotesTooLittle)?;
        if quoted.addresses.source() != self.addresses.destination() {
            return Err(NoReport::OtherSender);
        }
        Ok(Some(quoted))
    }
}
