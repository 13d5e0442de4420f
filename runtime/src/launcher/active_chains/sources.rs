//! From which addresses the functions of each tenant may send.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use pinion_control::model::{self, DesiredState, Outbound, TenantName};
use pinion_gateway::leaving::{MaySend, OutboundGrant};

/// What the tenants that have an object may send.
pub(super) struct SourcesOfTenants<'a> {
    by_tenant: BTreeMap<&'a TenantName, MaySend>,
}

impl<'a> SourcesOfTenants<'a> {
    pub(super) fn of(state: &'a DesiredState) -> Self {
        let may_send = |(name, tenant): (&'a TenantName, &Arc<model::Tenant>)| {
            let sources: Vec<IpNet> = tenant.addresses.iter().map(|prefix| prefix.net()).collect();
            (
                name,
                MaySend { sources: sources.into(), transparent: tenant.transparent_forwarding, ..MaySend::default() },
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

/// Returns an entry of a chain whose tenant is granted flows: other chains have none.
fn grant(Outbound { protocol, to, ports }: &Outbound) -> OutboundGrant {
    let ports = ports.map_or(0..=u16::MAX, |ports| ports.first()..=ports.last());
    OutboundGrant { protocol: protocol.0, to: to.net(), ports }
}
