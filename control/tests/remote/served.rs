//! A control plane that is served on TCP, too, and connections to it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use pinion_control::Client;
use pinion_control::control::ApplyRequest;
use pinion_control::model::Tenant;
use pinion_control::socket::{Limits, TlsFiles};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::authority::{Authority, Identity};
use crate::support::Served;

/// How long a test waits for what should come at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Remote {
    pub(crate) served: Served,
    pub(crate) authority: Authority,
    pub(crate) address: SocketAddr,
    pub(crate) files: TlsFiles,
}

/// Returns limits that look at files each time, and are as usual otherwise.
pub(crate) fn limits() -> Limits {
    Limits { look_interval: Duration::ZERO, ..Limits::default() }
}

impl Remote {
    /// Starts a node that has the tenant `demo`.
    pub(crate) async fn start(limits: Limits) -> Self {
        let authority = Authority::new("clients");
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| -> PathBuf {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = authority.node();
        let files = TlsFiles {
            certificate: file("node.pem", certificate),
            key: file("node.key", key),
            client_ca: file("ca.pem", authority.pem()),
            revoked: Some(file("revoked.pem", authority.revoked(&[]))),
        };
        let address = Arc::new(OnceLock::new());
        let (bound, tls) = (Arc::clone(&address), files.clone());
        let served = Served::start_in_with(folder, move |server| {
            let server = server.with_limits(limits).with_tls("127.0.0.1:0".parse().unwrap(), tls).unwrap();
            bound.set(server.address().unwrap()).unwrap();
            server
        });
        let served = served.await;
        let address = *address.get().unwrap();
        let mut operator = Client::connect(&served.socket).await.unwrap();
        let tenants = vec![Tenant::new("demo".parse().unwrap())];
        operator.apply(ApplyRequest { tenants, ..ApplyRequest::default() }).await.unwrap();
        Self { served, authority, address, files }
    }

    /// Replaces the list of revoked certificates at once.
    pub(crate) fn revoke(&self, list: &str) {
        let path = self.files.revoked.as_ref().unwrap();
        let new = path.with_extension("new");
        std::fs::write(&new, list).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// Connects with TLS, with a certificate or without.
    pub(crate) async fn tls(&self, identity: Option<&Identity>) -> std::io::Result<TlsStream<TcpStream>> {
        tls(self.address, config(&self.authority, identity)).await
    }

    /// Returns a channel of an identity. It connects at once, or else at each request.
    pub(crate) async fn channel(&self, identity: &Identity) -> Channel {
        self.channel_with(Some(identity), Endpoint::from_static("http://localhost")).await
    }

    pub(crate) async fn channel_with(&self, identity: Option<&Identity>, endpoint: Endpoint) -> Channel {
        let (address, config) = (self.address, config(&self.authority, identity));
        endpoint.connect_with_connector_lazy(service_fn(move |_| {
            let config = config.clone();
            async move { tls(address, config).await.map(TokioIo::new) }
        }))
    }

    /// Returns a channel to the Unix socket.
    pub(crate) fn local(&self) -> Channel {
        let socket = self.served.socket.clone();
        Endpoint::from_static("http://localhost").connect_with_connector_lazy(service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
    }

    /// Checks that the operator is answered on the Unix socket, and ends the server.
    pub(crate) async fn stop_after_answer(self) {
        let mut operator = Client::connect(&self.served.socket).await.unwrap();
        tokio::time::timeout(PATIENCE, operator.status()).await.expect("an answer").unwrap();
        drop(operator);
        drop(self.served.stop().await);
    }
}

pub(crate) fn config(authority: &Authority, identity: Option<&Identity>) -> Arc<ClientConfig> {
    config_of(authority, identity, rustls::ALL_VERSIONS)
}

pub(crate) fn config_of(
    authority: &Authority,
    identity: Option<&Identity>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
    let mut config = match identity {
        Some(identity) => builder.with_client_auth_cert(identity.chain.clone(), identity.key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

pub(crate) async fn tls(address: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(config).connect(ServerName::try_from("localhost").unwrap(), stream).await
}
