//! The server, or the chain's next stage, that clients are passed on to: [`Upstream`], and one connection to it: [`UpstreamEnd`].

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use pinion_sdk::InitError;
use pinion_sdk::net::{ConnectError, Stream, StreamId};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::config::{UpstreamConfig, UpstreamTls};
use crate::pipe::Pipe;
use crate::session::Session;

/// Where clients are passed on to.
pub(crate) struct Upstream {
    target: Target,
    tls: Option<Tls>,
    /// Connections that are being opened.
    opening: Vec<Rc<RefCell<Pipe>>>,
}

/// What is connected to.
#[derive(Clone, Copy)]
enum Target {
    Address(SocketAddr),
    NextStage { port: u16 },
}

/// How it is spoken to.
struct Tls {
    name: ServerName<'static>,
    roots: Arc<RootCertStore>,
    /// Made in each instance anew: it draws random numbers.
    config: Option<Arc<ClientConfig>>,
}

/// A connection to the upstream.
#[derive(Debug)]
pub struct UpstreamEnd {
    /// `None` if it is in plain text.
    pub(crate) session: Option<Session>,
    pub(crate) is_shaking_hands: bool,
    pub(crate) deadline_ns: u64,
    pub(crate) pipe: Rc<RefCell<Pipe>>,
}

impl Upstream {
    pub(crate) fn new(config: &UpstreamConfig) -> Result<Self, InitError> {
        let tls = config.tls.as_ref().map(Tls::read).transpose()?;
        let target = match (config.address, config.next_stage_port) {
            (Some(address), _) => Target::Address(address),
            (None, Some(port)) => Target::NextStage { port },
            (None, None) => unreachable!("a configuration has one of them"),
        };
        Ok(Self { target, tls, opening: Vec::new() })
    }

    /// Prepares an instance.
    pub(crate) fn start(&mut self, provider: &Arc<CryptoProvider>) {
        if let Some(tls) = &mut self.tls {
            let config =
                ClientConfig::builder_with_provider(Arc::clone(provider)).with_safe_default_protocol_versions();
            let config = config.expect("the provider has suites of all versions");
            tls.config = Some(Arc::new(config.with_root_certificates(Arc::clone(&tls.roots)).with_no_client_auth()));
        }
    }

    /// Opens a connection for a client.
    pub(crate) fn open(&mut self, client: &mut Stream<'_>, now_ns: u64) -> Result<Rc<RefCell<Pipe>>, ConnectError> {
        let upstream = match self.target {
            Target::Address(address) => client.connect(address)?,
            Target::NextStage { port } => client.connect_next_stage(port)?,
        };
        let pipe = Rc::new(RefCell::new(Pipe::new(client.id(), upstream, now_ns)));
        self.opening.push(Rc::clone(&pipe));
        Ok(pipe)
    }

    /// Returns the pipe of a connection that is no longer being opened.
    pub(crate) fn opened(&mut self, id: StreamId) -> Option<Rc<RefCell<Pipe>>> {
        let at = self.opening.iter().position(|pipe| pipe.borrow().upstream == id)?;
        Some(self.opening.swap_remove(at))
    }

    /// Makes the state of an open connection.
    pub(crate) fn connected(&mut self, id: StreamId, deadline_ns: u64) -> Option<UpstreamEnd> {
        let pipe = self.opened(id).filter(|pipe| !pipe.borrow().is_broken)?;
        let session = match &self.tls {
            Some(Tls { name, config, .. }) => Some(Session::client(config.clone()?, name.clone()).ok()?),
            None => None,
        };
        Some(UpstreamEnd { is_shaking_hands: session.is_some(), session, deadline_ns, pipe })
    }
}

impl Tls {
    fn read(UpstreamTls { name, roots }: &UpstreamTls) -> Result<Self, InitError> {
        let refuse = |why: &dyn std::fmt::Display| InitError::new(format_args!("upstream.tls: {why}"));
        let name =
            ServerName::try_from(name.clone()).map_err(|_| refuse(&format_args!("{name:?} is no name of a host")))?;
        let pem = fs::read(roots).map_err(|error| refuse(&format_args!("{roots:?}: {error}")))?;
        let mut store = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(&pem) {
            let root = root.map_err(|error| refuse(&format_args!("{roots:?}: {error}")))?;
            store.add(root).map_err(|error| refuse(&format_args!("{roots:?}: {error}")))?;
        }
        if store.is_empty() {
            return Err(refuse(&format_args!("{roots:?} has no certificate, and must be PEM")));
        }
        Ok(Self { name, roots: Arc::new(store), config: None })
    }
}
