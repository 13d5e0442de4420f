//! The table `[api]`: the control API on TCP, and what its callers may take.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use pinion_control::socket::{Limits, TlsFiles};
use serde::Deserialize;

use super::within;

/// The control API beside its Unix socket.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// The address on TCP; by default there is none.
    pub listen: Option<SocketAddr>,
    /// The node's certificate for TLS, and the intermediate ones behind it, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, in PEM.
    pub key: Option<PathBuf>,
    /// The authorities that sign clients' certificates, in PEM.
    pub client_ca: Option<PathBuf>,
    /// The certificates that they have revoked, in PEM: a list of each authority. By default nothing is revoked.
    pub revoked: Option<PathBuf>,
    /// Most connections on TCP.
    pub connections_max: Option<u32>,
    /// Most connections on TCP from one address, or one IPv6 network of 64 bits.
    pub connections_per_address_max: Option<u32>,
    /// Most connections on TCP of one tenant, or of operators.
    pub connections_per_tenant_max: Option<u32>,
    /// Most requests on TCP in progress of one tenant, or of operators.
    pub requests_at_once: Option<u32>,
    /// Most requests of one tenant in a second.
    pub requests_per_second: Option<u32>,
}

impl ApiConfig {
    /// Returns the address on TCP with its files, if there is one.
    #[must_use]
    pub fn tcp(&self) -> Option<(SocketAddr, TlsFiles)> {
        let Self { listen, certificate, key, client_ca, revoked, .. } = self.clone();
        Some((listen?, TlsFiles { certificate: certificate?, key: key?, client_ca: client_ca?, revoked }))
    }

    /// Returns what callers may take.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        let set = |place: &mut usize, value: Option<u32>| *place = value.map_or(*place, |value| value as usize);
        set(&mut limits.connections_max, self.connections_max);
        set(&mut limits.connections_per_address_max, self.connections_per_address_max);
        set(&mut limits.connections_per_identity_max, self.connections_per_tenant_max);
        set(&mut limits.requests_at_once, self.requests_at_once);
        let per_second = self.requests_per_second.and_then(NonZeroU32::new);
        limits.requests_per_second = per_second.unwrap_or(limits.requests_per_second);
        limits
    }

    pub(super) fn check(&self) -> Result<(), String> {
        within("", "api.connections_max", self.connections_max)?;
        within("", "api.connections_per_address_max", self.connections_per_address_max)?;
        within("", "api.connections_per_tenant_max", self.connections_per_tenant_max)?;
        within("", "api.requests_at_once", self.requests_at_once)?;
        within("", "api.requests_per_second", self.requests_per_second)?;
        let needed = [("certificate", &self.certificate), ("key", &self.key), ("client_ca", &self.client_ca)];
        let given = needed.into_iter().chain([("revoked", &self.revoked)]).find(|(_, path)| path.is_some());
        match (self.listen, needed.into_iter().find(|(_, path)| path.is_none()), given) {
            (Some(listen), Some((missing, _)), _) => Err(format!(
                "api.listen = {listen}: api.{missing} is missing: TLS needs certificate, key and client_ca, as `pinion cert` makes them"
            )),
            (None, _, Some((given, _))) => Err(format!(
                "api.{given} is given and api.listen is not: give the address to listen on, or leave both out"
            )),
            _ => Ok(()),
        }
    }
}
