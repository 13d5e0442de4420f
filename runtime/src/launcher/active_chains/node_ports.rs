//! The ports of a node by name, and conditions on packets in the form in which the gateway compares them.

use std::collections::BTreeMap;

use pinion_control::model::{self, PortName};
use pinion_gateway::headers::Vlan;
use pinion_gateway::rules::Match;
use pinion_mma::id::PortIndex;

/// The ports of a node, by name.
pub(super) struct NodePorts(BTreeMap<String, PortIndex>);

impl NodePorts {
    pub(super) fn new(by_name: BTreeMap<String, PortIndex>) -> Self {
        Self(by_name)
    }

    pub(super) fn by_name(&self) -> &BTreeMap<String, PortIndex> {
        &self.0
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = PortIndex> {
        self.0.values().copied()
    }

    /// Returns the index of a port.
    ///
    /// # Errors
    /// Returns that the node has no such port, and which it has.
    pub(super) fn index(&self, name: &PortName) -> Result<PortIndex, String> {
        self.0.get(name.as_str()).copied().ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            format!("this node has no port {name}; it has {}", known.join(", "))
        })
    }

    /// Returns conditions as the gateway has them.
    ///
    /// # Errors
    /// As [`NodePorts::index`].
    pub(super) fn compiled(&self, wanted: &model::Match) -> Result<Match, String> {
        let ports = |range: model::PortRange| range.first()..=range.last();
        let vlan_id = |id: Option<model::VlanId>| id.map_or(0, model::VlanId::number);
        Ok(Match {
            port: wanted.port.as_ref().map(|port| self.index(port)).transpose()?,
            vlan: Vlan { id: vlan_id(wanted.vlan), inner_id: vlan_id(wanted.inner_vlan) },
            source: wanted.source.map(model::Prefix::net),
            destination: wanted.destination.map(model::Prefix::net),
            protocol: wanted.protocol.map(|protocol| protocol.0),
            icmp_type: wanted.icmp_type,
            source_ports: wanted.source_ports.map(ports),
            destination_ports: wanted.destination_ports.map(ports),
        })
    }
}
