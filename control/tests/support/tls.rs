//! A TLS end in front of a node's socket: it demands a certificate of each client, and forwards what admitted ones send.

#![allow(dead_code, unreachable_pub)] // each test program uses a part of it

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The files of a node, all in PEM.
pub struct NodeFiles<'a> {
    /// Its certificate.
    pub certificate: &'a Path,
    /// The key of its certificate.
    pub key: &'a Path,
    /// The CA of its clients.
    pub client_ca: &'a Path,
    /// The list of that CA's revoked certificates.
    pub revoked: Option<&'a Path>,
}

/// The TLS end, which is gone when the value is dropped.
pub struct TlsEnd {
    /// The port of this machine on which it listens.
    pub port: u16,
    accepting: JoinHandle<()>,
}

impl TlsEnd {
    /// Starts to forward to the socket.
    pub async fn start(socket: &Path, files: &NodeFiles<'_>) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(config(files)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = socket.to_owned();
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, socket) = (acceptor.clone(), socket.clone());
                tokio::spawn(async move {
                    // A client that is not admitted gets an alert, and nothing is forwarded.
                    let Ok(mut client) = acceptor.accept(stream).await else { return };
                    let mut node = UnixStream::connect(&socket).await.unwrap();
                    // It ends when either end closes the connection, in whatever way.
                    let _ = copy_bidirectional(&mut client, &mut node).await;
                });
            }
        });
        Self { port, accepting }
    }
}

impl Drop for TlsEnd {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn config(files: &NodeFiles<'_>) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.client_ca).unwrap()).unwrap();
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    if let Some(revoked) = files.revoked {
        verifier = verifier.with_crls([CertificateRevocationListDer::from_pem_file(revoked).unwrap()]);
    }
    let certificate = CertificateDer::from_pem_file(files.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(files.key).unwrap();
    let config =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let config = config.with_client_cert_verifier(verifier.build().unwrap());
    let mut config = config.with_single_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}
