//! The command line of `pinion cert`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use jiff::Timestamp;
use pinion_control::client::ServerAddress;
use pinion_control::model::TenantName;
use serde::Serialize;

/// The longest validity in days: a hundred years.
const DAYS_MAX: i64 = 36_525;

#[derive(Debug, ClapArgs)]
pub(crate) struct Cert {
    /// The folder of the CA; by default the folder ca beside the file of contexts
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) ca: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) kind: CertKind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CertKind {
    /// Make a CA: its certificate (ca.pem), its key (ca.key), and an empty list of revoked certificates (revoked.pem)
    Ca {
        /// The folder to make it in, which must not have a CA yet; by default that of --ca
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        validity: Validity,
    },
    /// Make the certificate of a node, and print its part of piniond.toml
    Node {
        /// A name or IP address by which clients connect to the node; may be given several times
        #[arg(long = "name", required = true, num_args = 1.., value_name = "HOST_OR_IP")]
        names: Vec<NodeName>,
        #[command(flatten)]
        issue: Issue,
    },
    /// Make the certificate of an operator, who may do everything
    Operator {
        /// The person or program: letters, digits and . _ @ -
        name: CertName,
        #[command(flatten)]
        issue: Issue,
    },
    /// Make the certificate of a person or program of a tenant
    Tenant {
        /// The tenant
        tenant: TenantName,
        /// The person or program: letters, digits and . _ @ -
        name: CertName,
        /// What it may do with what the tenant has
        #[arg(long, value_enum)]
        role: Access,
        #[command(flatten)]
        issue: Issue,
    },
    /// Revoke a certificate: adds it to the CA's list of revoked certificates, revoked.pem
    ///
    /// Bring the list to every node: its piniond.toml names a copy of it.
    Revoke {
        /// The serial number, as pinion cert list shows it, or the file of the certificate
        #[arg(value_name = "SERIAL_OR_FILE")]
        certificate: String,
    },
    /// List the certificates that the CA issued
    List,
}

/// Where to write a certificate, and for how long it is valid.
#[derive(Debug, ClapArgs)]
pub(crate) struct Issue {
    /// The folder for the certificate and its key; by default a folder of the CA's folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Replace the files of an earlier certificate. That one stays valid until it expires or is revoked
    #[arg(long)]
    pub(crate) renew: bool,
    #[command(flatten)]
    pub(crate) validity: Validity,
}

/// For how long a certificate is valid.
#[derive(Debug, ClapArgs)]
pub(crate) struct Validity {
    /// The days that it is valid, from now on. By default 90, and 3650 for a CA
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=DAYS_MAX))]
    pub(crate) days: Option<i64>,
    /// The time at which it expires: 2030-01-31T12:00:00Z
    #[arg(long, value_name = "RFC3339", conflicts_with = "days", value_parser = end)]
    pub(crate) not_after: Option<Timestamp>,
}

/// Parses the end of a validity. Certificates have years of four digits, and whole seconds.
fn end(text: &str) -> Result<Timestamp, String> {
    let time: Timestamp =
        text.parse().map_err(|_| "this is no time as of RFC 3339: give one like 2030-01-31T12:00:00Z".to_owned())?;
    match time.as_second() {
        second @ 86_400.. => Timestamp::from_second(second).map_err(|error| error.to_string()),
        _ => Err("a certificate cannot end before 1970-01-02T00:00:00Z: give a later time".to_owned()),
    }
}

/// What a person or program of a tenant may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Access {
    /// Reads and changes what the tenant has
    Admin,
    /// Reads what the tenant has
    Viewer,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admin => "admin",
            Self::Viewer => "viewer",
        })
    }
}

/// The name of a person or program in a certificate, which is also the name of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertName(pub(crate) String);

impl FromStr for CertName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_plain_name(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("use 1 to {PLAIN_NAME_BYTES_MAX} letters, digits and . _ @ -, with a letter or digit first"))
    }
}

/// The longest name in a certificate.
const PLAIN_NAME_BYTES_MAX: usize = 64;

/// Returns whether a name is safe in a file's name, in a shell and in a log.
pub(crate) fn is_plain_name(text: &str) -> bool {
    (1..=PLAIN_NAME_BYTES_MAX).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte))
}

/// A name or an IP address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeName(pub(crate) String);

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.to_string()));
        }
        match ServerAddress::new(text, 1) {
            Ok(_) => Ok(Self(text.to_ascii_lowercase())),
            Err(_) => Err("give a DNS name or an IP address, without a port: edge1.example, 192.0.2.1".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_certificate_is_safe_in_a_file_name() {
        for name in ["alice", "A.B_c@d-9", &"x".repeat(PLAIN_NAME_BYTES_MAX)] {
            assert!(name.parse::<CertName>().is_ok(), "{name}");
        }
        for name in ["", ".", "../x", "-a", "a b", "a/b", "ä", "a\n", &"x".repeat(PLAIN_NAME_BYTES_MAX + 1)] {
            assert!(name.parse::<CertName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_node_has_dns_names_and_ip_addresses() {
        for (text, name) in
            [("Edge1.example", "edge1.example"), ("192.0.2.1", "192.0.2.1"), ("2001:DB8::1", "2001:db8::1")]
        {
            assert_eq!(text.parse(), Ok(NodeName(name.to_owned())));
        }
        for text in ["", "a b", "edge1:7443", "[::1]", "*.example", "a/b"] {
            assert!(text.parse::<NodeName>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_end_of_a_certificate_is_a_whole_second_that_it_can_name() {
        assert_eq!(end("2030-01-31T12:00:00.9Z").unwrap().to_string(), "2030-01-31T12:00:00Z");
        for text in ["", "2030-01-31", "soon", "1969-12-31T23:59:59Z", "10000-01-01T00:00:00Z"] {
            assert!(end(text).is_err(), "{text}");
        }
    }
}
