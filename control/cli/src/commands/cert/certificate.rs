//! What certificates of nodes, operators and tenants say.
//!
//! ```text
//!   node       SAN: DNS names and IP addresses          extended key usage serverAuth
//!   operator   SAN: URI pinion://operator               extended key usage clientAuth
//!   tenant     SAN: URI pinion://tenant/NAME/admin      extended key usage clientAuth
//!              SAN: URI pinion://tenant/NAME/viewer
//! ```
//!
//! The common name of the subject is the name of the person, the program or the node.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pinion_control::model::TenantName;
use serde::{Serialize, Serializer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;
use x509_parser::time::ASN1Time;

use super::CertError;
use crate::args::Access;
use crate::output::printable;

/// Whom a certificate identifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Node,
    Operator,
    Tenant(TenantName, Access),
    /// Something that is not Pinion's.
    Other,
}

impl Role {
    /// Returns the URI by which a node recognises the role; none for nodes.
    pub(super) fn uri(&self) -> Option<String> {
        match self {
            Self::Operator => Some("pinion://operator".to_owned()),
            Self::Tenant(tenant, access) => Some(format!("pinion://tenant/{tenant}/{access}")),
            Self::Node | Self::Other => None,
        }
    }

    fn of_uri(uri: &str) -> Option<Self> {
        let rest = uri.strip_prefix("pinion://")?;
        if rest == "operator" {
            return Some(Self::Operator);
        }
        let (tenant, access) = rest.strip_prefix("tenant/")?.split_once('/')?;
        let access = match access {
            "admin" => Access::Admin,
            "viewer" => Access::Viewer,
            _ => return None,
        };
        Some(Self::Tenant(TenantName::new(tenant).ok()?, access))
    }

    pub(super) fn tenant(&self) -> Option<&TenantName> {
        match self {
            Self::Tenant(tenant, _) => Some(tenant),
            Self::Node | Self::Operator | Self::Other => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Operator => f.write_str("operator"),
            Self::Tenant(_, access) => access.fmt(f),
            Self::Other => f.write_str("other"),
        }
    }
}

/// The content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Certificate {
    /// The person, the program or the node.
    pub(super) name: String,
    #[serde(serialize_with = "as_text")]
    pub(super) role: Role,
    pub(super) tenant: Option<TenantName>,
    /// The names and addresses of a node.
    pub(super) hosts: Vec<String>,
    /// The serial number in hexadecimal digits.
    pub(super) serial: String,
    #[serde(serialize_with = "as_text")]
    pub(super) not_before: Timestamp,
    #[serde(serialize_with = "as_text")]
    pub(crate) not_after: Timestamp,
}

/// Serialises a value as its text.
pub(super) fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl Certificate {
    /// Reads the first certificate of a file.
    pub(crate) fn read(path: &Path) -> Result<Self, CertError> {
        Self::parse(path, &der_of(path)?)
    }

    /// Parses a certificate that was read from this file.
    pub(super) fn parse(path: &Path, der: &[u8]) -> Result<Self, CertError> {
        let certificate = parse(path, der)?;
        let wrong = |problem: &str| CertError::Wrong { path: path.to_owned(), problem: problem.to_owned() };
        let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let validity = certificate.validity();
        let (role, hosts) = role(&certificate);
        Ok(Self {
            name: name.unwrap_or_default().to_owned(),
            tenant: role.tenant().cloned(),
            role,
            hosts,
            serial: hex(certificate.raw_serial()),
            not_before: time(validity.not_before).ok_or_else(|| wrong("its time is out of range"))?,
            not_after: time(validity.not_after).ok_or_else(|| wrong("its time is out of range"))?,
        })
    }

    /// Returns the tenant of whom it identifies; none for operators and nodes.
    pub(crate) fn tenant(&self) -> Option<&TenantName> {
        self.tenant.as_ref()
    }

    /// Formats whom it identifies.
    pub(crate) fn described(&self) -> String {
        let name = printable(&self.name);
        match &self.role {
            Role::Node => format!("node {name}"),
            Role::Operator => format!("{name}, operator"),
            Role::Tenant(tenant, access) => format!("{name}, {access} of tenant {tenant}"),
            Role::Other => format!("{name}, not an identity that nodes know"),
        }
    }
}

/// Returns the first certificate of a file.
pub(super) fn der_of(path: &Path) -> Result<Vec<u8>, CertError> {
    let pem = fs::read(path).map_err(|error| CertError::Unreadable { path: path.to_owned(), error })?;
    match parse_x509_pem(&pem) {
        Ok((_, pem)) if pem.label == "CERTIFICATE" => Ok(pem.contents),
        _ => {
            let problem = "it is no certificate in PEM (-----BEGIN CERTIFICATE-----)".to_owned();
            Err(CertError::Wrong { path: PathBuf::from(path), problem })
        }
    }
}

/// Parses a certificate that was read from this file.
pub(super) fn parse<'d>(path: &Path, der: &'d [u8]) -> Result<X509Certificate<'d>, CertError> {
    match x509_parser::parse_x509_certificate(der) {
        Ok((_, certificate)) => Ok(certificate),
        Err(error) => {
            Err(CertError::Wrong { path: path.to_owned(), problem: format!("it is no certificate: {error}") })
        }
    }
}

/// Returns the role, and for a node its names.
fn role(certificate: &X509Certificate<'_>) -> (Role, Vec<String>) {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Role::of_uri(uri),
        _ => None,
    });
    let hosts: Vec<String> = names.iter().filter_map(host).collect();
    let usage = certificate.extended_key_usage().ok().flatten();
    let is_for = |is_for_servers: bool| {
        usage
            .as_ref()
            .is_some_and(|usage| if is_for_servers { usage.value.server_auth } else { usage.value.client_auth })
    };
    match uris.collect::<Vec<_>>().as_slice() {
        [role] if is_for(false) => (role.clone(), hosts),
        [] if !hosts.is_empty() && is_for(true) => (Role::Node, hosts),
        _ => (Role::Other, hosts),
    }
}

fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match *bytes {
            [a, b, c, d] => Some(IpAddr::from([*a, *b, *c, *d]).to_string()),
            bytes => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()),
        },
        _ => None,
    }
}

/// Formats bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the time; none if it is out of range.
pub(super) fn time(time: ASN1Time) -> Option<Timestamp> {
    Timestamp::from_second(time.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_from_the_uri_that_it_is_written_as() {
        let demo: TenantName = "demo".parse().unwrap();
        for role in [Role::Operator, Role::Tenant(demo.clone(), Access::Admin), Role::Tenant(demo, Access::Viewer)] {
            assert_eq!(Role::of_uri(&role.uri().unwrap()), Some(role));
        }
        let others = [
            "pinion://",
            "pinion://tenant/demo",
            "pinion://tenant/demo/owner",
            "pinion://tenant/De mo/admin",
            "http://operator",
        ];
        for uri in others {
            assert_eq!(Role::of_uri(uri), None, "{uri}");
        }
    }
}
