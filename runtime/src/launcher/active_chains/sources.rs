//! From which addresses and by which ports the functions of each tenant may send.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use pinion_control::model::{self, DesiredState, Outbound, PortName, TenantName};
use pinion_gateway::leaving::{MaySend, OutboundGrant};
use pinion_mma::id::PortIndex;
use pinion_mma::ways::direction::PortSet;

/// What the tenants that have an object may send.
pub(super) struct SourcesOfTenants<'a> {
    by_tenant: BTreeMap<&'a TenantName, MaySend>,
}

impl<'a> SourcesOfTenants<'a> {
    /// `ports` are the gateway's by name.
    pub(super) fn of(state: &'a DesiredState, ports: &BTreeMap<String, PortIndex>) -> Self {
        let may_send = |(name, tenant): (&'a TenantName, &Arc<model::Tenant>)| {
            let sources: Vec<IpNet> = tenant.addresses.iter().map(|prefix| prefix.net()).collect();
            let transparent = tenant.transparent_forwarding;
            (
                name,
                MaySend { ports: granted(tenant, ports), sources: sources.into(), transparent, ..MaySend::default() },
            )
        };
        Self { by_tenant: state.tenants().iter().map(may_send).collect() }
    }

    /// Returns what the frames of a chain may be when they leave.
    pub(super) fn may_send(&self, chain: &model::Chain) -> MaySend {
        let of_tenant = self.by_tenant.get(&chain.tenant).cloned().unwrap_or_default();
        MaySend { routed: chain.routed, outbound: chain.outbound.iter().map(grant).collect(), ..of_tenant }
    }
}

/// Returns the ports that a tenant is granted. One that this node does not have, or that a set cannot hold, is not among them.
fn granted(tenant: &model::Tenant, ports: &BTreeMap<String, PortIndex>) -> PortSet {
    if tenant.ports.is_empty() {
        return PortSet::ALL;
    }
    let index = |name: &PortName| ports.get(name.as_str()).copied().filter(|port| port.0 < PortSet::PORTS_MAX);
    PortSet::of(tenant.ports.iter().filter_map(index)).unwrap_or(PortSet::EMPTY)
}

/// Returns an entry of a chain whose tenant is granted flows: other chains have none.
fn grant(Outbound { protocol, to, ports }: &Outbound) -> OutboundGrant {
    let ports = ports.map_or(0..=u16::MAX, |ports| ports.first()..=ports.last());
    OutboundGrant { protocol: protocol.0, to: to.net(), ports }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_may_send_by_the_ports_that_it_is_granted_and_that_the_node_has() {
        let ports = BTreeMap::from([("lan".to_owned(), PortIndex(0)), ("wan".to_owned(), PortIndex(1))]);
        let of = |names: &[&str]| {
            let names = names.iter().map(|name| name.parse().unwrap()).collect();
            granted(&model::Tenant { ports: names, ..model::Tenant::new("t".parse().unwrap()) }, &ports)
        };
        let has = |set: PortSet| [0, 1, 2].map(|port| set.contains(PortIndex(port)));
        assert_eq!(has(of(&[])), [true; 3], "all, if none is named");
        assert_eq!(has(of(&["wan"])), [false, true, false]);
        assert_eq!(has(of(&["wan", "dmz"])), [false, true, false]);
        assert_eq!(has(of(&["dmz"])), [false; 3]);
    }
}
