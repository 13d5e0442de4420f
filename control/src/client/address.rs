//! Where a node listens, and the files that identify both ends of a connection to it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rustls::pki_types::ServerName;

use crate::model::quoted;

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// On a Unix socket of this machine. The socket's file mode decides who may connect.
    Socket(PathBuf),
    /// On TCP with mutual TLS.
    Remote(RemoteNode),
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(socket) => socket.display().fmt(f),
            Self::Remote(node) => node.server.fmt(f),
        }
    }
}

/// A node that is reached over TCP with mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteNode {
    /// The host and port. The host must be one of the names in the node's certificate.
    pub server: ServerAddress,
    /// The file with the certificates of the authorities that may have issued the node's certificate.
    pub ca: PathBuf,
    /// The file with the client's certificate, followed by intermediate certificates if there are any.
    pub certificate: PathBuf,
    /// The file with the private key of that certificate.
    pub key: PathBuf,
}

/// The host and port of a node: `HOST:PORT`, where the host is a DNS name, an IPv4 address or an IPv6 address in
/// brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    host: ServerName<'static>,
    port: u16,
}

/// Text that is not the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is not the address of a node: give HOST:PORT, such as edge1.example:7443, 192.0.2.1:7443 or [2001:db8::1]:7443",
    quoted(.0)
)]
pub struct BadServerAddress(String);

impl ServerAddress {
    /// Returns the address of a host, which is a DNS name or an IP address without brackets.
    pub fn new(host: &str, port: u16) -> Result<Self, BadServerAddress> {
        match ServerName::try_from(host.to_owned()) {
            Ok(host) if port > 0 => Ok(Self { host, port }),
            _ => Err(BadServerAddress(format!("{host}:{port}"))),
        }
    }

    /// Returns the host as a certificate names it.
    #[must_use]
    pub fn host(&self) -> &ServerName<'static> {
        &self.host
    }

    /// Returns the host as the resolver of names takes it, and the port.
    #[must_use]
    pub fn host_and_port(&self) -> (String, u16) {
        (self.host.to_str().into_owned(), self.port)
    }
}

impl FromStr for ServerAddress {
    type Err = BadServerAddress;

    fn from_str(text: &str) -> Result<Self, BadServerAddress> {
        let parse = || {
            let (host, port) = text.rsplit_once(':')?;
            let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
            let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host = match bracketed {
                Some(address) => ServerName::IpAddress(address.parse::<std::net::Ipv6Addr>().ok()?.into()),
                None if host.contains(':') => return None,
                None => ServerName::try_from(host.to_owned()).ok()?,
            };
            Some(Self { host, port })
        };
        parse().ok_or_else(|| BadServerAddress(text.to_owned()))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = self.host_and_port();
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_name_or_an_ip_address_with_a_port() {
        for text in ["edge1.example:7443", "localhost:1", "192.0.2.1:65535", "[2001:db8::1]:7443"] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn text_without_a_host_or_a_port_is_no_address() {
        let bad = [
            "",
            "edge1",
            ":7443",
            "edge1:",
            "edge1:0",
            "edge1:70000",
            "2001:db8::1:7443",
            "[edge1]:7443",
            "a b:1",
            "https://edge1:7443",
        ];
        for text in bad {
            let error = text.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(error.contains("give HOST:PORT"), "{error}");
        }
    }
}
