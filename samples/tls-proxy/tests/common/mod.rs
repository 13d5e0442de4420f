//! A server with certificates on a fake network, keys that sign as a node's do, and clients by rustls.
#![allow(dead_code)]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use pinion_keys::PrivateKey;
use pinion_sdk::net::Server;
use pinion_sdk::net::testing::{Client, Network};
use pinion_sdk::testing::{FakeKey, grant_key};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Error, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tempfile::TempDir;
use tls_proxy::TlsProxy;

/// How long the fake node opens a ticket after it was sealed.
pub(crate) const TICKET_LIFETIME_NS: u64 = 12 * 3600 * 1_000_000_000;
/// For tests alone, since ring makes no keys of RSA.
const RSA_KEY: &str = include_str!("rsa.key.pem");
/// The same, with 3072 bits.
const RSA_3072_KEY: &str = include_str!("rsa3072.key.pem");

/// Kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    P256,
    P384,
    Ed25519,
    Rsa,
    Rsa3072,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::P256, Self::P384, Self::Ed25519, Self::Rsa, Self::Rsa3072];
}

impl Kind {
    fn key_pair(self) -> KeyPair {
        match self {
            Self::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap(),
            Self::P384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap(),
            Self::Ed25519 => KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap(),
            Self::Rsa => KeyPair::from_pem(RSA_KEY).unwrap(),
            Self::Rsa3072 => KeyPair::from_pem(RSA_3072_KEY).unwrap(),
        }
    }
}

/// An authority, and the files of a stage with what it has issued.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) files: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, Kind::P256.key_pair()).unwrap();
        let files = tempfile::tempdir().unwrap();
        fs::write(files.path().join("roots.pem"), issuer.pem()).unwrap();
        Self { issuer, files }
    }

    /// Issues a certificate for a name, with its key.
    fn issue(&self, name: &str, kind: Kind) -> (rcgen::Certificate, KeyPair) {
        let key = kind.key_pair();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        (certificate, key)
    }

    /// Writes a certificate for this name to the files, and grants its key. Returns the lines of the configuration.
    pub(crate) fn grant(&self, name: &str, kind: Kind) -> String {
        self.grant_as(&format!("{name} {kind:?}"), name, kind)
    }

    /// As [`Authority::grant`], by this name of the key, which signs as a node's keys do.
    pub(crate) fn grant_as(&self, granted: &str, name: &str, kind: Kind) -> String {
        let (certificate, key) = self.issue(name, kind);
        let at = self.files.path().join(format!("{kind:?}-{}.pem", name.replace('*', "any")));
        fs::write(&at, certificate.pem()).unwrap();
        let key = PrivateKey::from_pem(key.serialize_pem().as_bytes()).unwrap();
        grant_key(FakeKey::new(granted, move |scheme, message| {
            Some(key.sign(scheme, message).unwrap().as_ref().to_vec())
        }));
        format!("[[certificate]]\nchain = {at:?}\nkey = {granted:?}\n")
    }

    /// Makes the configuration of another server with a certificate for this name.
    pub(crate) fn server(&self, name: &str) -> Arc<ServerConfig> {
        let (certificate, key) = self.issue(name, Kind::P256);
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(ring::default_provider().into());
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(config.with_single_cert(vec![certificate.der().clone()], der).unwrap())
    }

    /// Makes the configuration of a client that trusts this authority.
    pub(crate) fn client(
        &self,
        provider: CryptoProvider,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.issuer.der().to_vec())).unwrap();
        let config = ClientConfig::builder_with_provider(provider.into()).with_protocol_versions(versions).unwrap();
        config.with_root_certificates(roots).with_no_client_auth()
    }

    /// As [`Authority::client`], with all that rustls can.
    pub(crate) fn any_client(&self) -> ClientConfig {
        self.client(ring::default_provider(), rustls::ALL_VERSIONS)
    }
}

/// The server and its clients.
pub(crate) struct Bed(pub(crate) Network<Server<TlsProxy>>);

impl Bed {
    pub(crate) fn new(config: &str) -> Self {
        Self(Network::new(config.as_bytes()).unwrap_or_else(|error| panic!("{error}: {config}")))
    }

    /// A server for one name, with the pages of [`SITE`].
    pub(crate) fn of_site(authority: &Authority, name: &str, kind: Kind) -> Self {
        Self::new(&format!("{}{SITE}", authority.grant(name, kind)))
    }

    /// Connects a client that has not sent anything yet.
    pub(crate) fn socket(&mut self) -> Client {
        let socket = self.0.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:443".parse().unwrap());
        self.0.settle();
        socket
    }

    pub(crate) fn connect(&mut self, config: &Arc<ClientConfig>, name: &str) -> TlsClient {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let tls = ClientConnection::new(Arc::clone(config), name).unwrap();
        TlsClient { tls, socket: self.socket(), received: Vec::new() }
    }

    /// Exchanges what client and server have for each other, until neither has more.
    pub(crate) fn pump(&mut self, client: &mut TlsClient) -> Result<(), Error> {
        loop {
            let mut sent = Vec::new();
            while client.tls.wants_write() {
                client.tls.write_tls(&mut sent).unwrap();
            }
            if !sent.is_empty() && !self.0.is_closed(client.socket) {
                self.0.send(client.socket, &sent);
            }
            self.0.settle();
            let received = self.0.received(client.socket);
            if received.is_empty() && !client.tls.wants_write() {
                return Ok(());
            }
            let mut rest = &received[..];
            while !rest.is_empty() {
                client.tls.read_tls(&mut rest).unwrap();
                client.tls.process_new_packets()?;
                client.read();
            }
        }
    }

    /// Sends plain text and returns what comes as an answer.
    pub(crate) fn ask(&mut self, client: &mut TlsClient, text: &str) -> Result<String, Error> {
        client.tls.writer().write_all(text.as_bytes()).unwrap();
        self.pump(client)?;
        Ok(String::from_utf8(std::mem::take(&mut client.received)).unwrap())
    }

    /// Checks that a client that keeps to the protocol is served.
    #[track_caller]
    pub(crate) fn assert_serves(&mut self, config: &Arc<ClientConfig>) {
        let mut client = self.connect(config, "a.example");
        assert!(self.ask(&mut client, FRONT).unwrap().ends_with("front"));
        self.0.abort(client.socket);
    }

    /// Sends bytes on a new connection and returns what comes, and whether the connection was ended.
    pub(crate) fn ask_raw(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let socket = self.socket();
        self.0.send(socket, bytes);
        self.0.settle();
        (self.0.received(socket), self.0.is_ended(socket))
    }
}

/// The configuration of a small site.
pub(crate) const SITE: &str = "[site]\n[[site.page]]\npath = \"/\"\ntext = \"front\"\n\
     [[site.page]]\npath = \"/big\"\nfill_bytes = 1000000\n";

pub(crate) const FRONT: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/// A client's end of a connection.
pub(crate) struct TlsClient {
    pub(crate) tls: ClientConnection,
    pub(crate) socket: Client,
    /// Plain text that has come.
    pub(crate) received: Vec<u8>,
}

impl TlsClient {
    fn read(&mut self) {
        let mut part = [0; 4096];
        loop {
            match self.tls.reader().read(&mut part) {
                Ok(0) => return,
                Ok(count) => self.received.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Returns a client's hello as it would send it, in one record.
pub(crate) fn hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let mut hello = Vec::new();
    let mut client = ClientConnection::new(Arc::clone(config), "a.example".try_into().unwrap()).unwrap();
    client.write_tls(&mut hello).unwrap();
    hello
}

/// Returns where the extensions of a client's hello begin, in one record (RFC 8446, section 4.1.2).
fn extensions_at(hello: &[u8]) -> usize {
    let session = 5 + 4 + 2 + 32;
    let suites = session + 1 + usize::from(hello[session]);
    let compression = suites + 2 + number(hello, suites);
    compression + 1 + usize::from(hello[compression])
}

/// Returns where the value of an extension is in a client's hello.
pub(crate) fn extension(hello: &[u8], kind: u16) -> Option<Range<usize>> {
    let mut at = extensions_at(hello) + 2;
    while at < hello.len() {
        let value = at + 4..at + 4 + number(hello, at + 2);
        if number(hello, at) == usize::from(kind) {
            return Some(value);
        }
        at = value.end;
    }
    None
}

/// Returns a client's hello with another value of an extension that it has.
pub(crate) fn with_extension(hello: &[u8], kind: u16, value: &[u8]) -> Vec<u8> {
    let old = extension(hello, kind).unwrap();
    let mut changed = [&hello[..old.start], value, &hello[old.end..]].concat();
    let (at, len) = (extensions_at(hello), changed.len());
    for (at, len) in [(old.start - 2, value.len()), (at, len - at - 2), (7, len - 9), (3, len - 5)] {
        changed[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
    }
    changed
}

/// Returns the number of two bytes at this place.
pub(crate) fn number(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// Returns the description of the fatal alert in these records, which are not encrypted.
pub(crate) fn fatal_alert(mut records: &[u8]) -> Option<u8> {
    while let [kind, _, _, high, low, rest @ ..] = records {
        let (record, after) = rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
        if let (21, [2, description]) = (*kind, record) {
            return Some(*description);
        }
        records = after;
    }
    None
}
