//! Tests of the client over TCP with mutual TLS.

use std::convert::Infallible;
use std::fs;
use std::future::{Ready, ready};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use crate::support::{Served, demo, wasm};
use crate::tls::{NodeFiles, TlsEnd};
use pinion_control::Client;
use pinion_control::client::{ClientError, CredentialsError, NodeAddress, RemoteNode};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};

/// A CA with its certificate in a folder.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        Self::named("ours")
    }

    fn named(name: &str) -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Issues a certificate for these hosts, and returns the paths of it and its key.
    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose, hosts: &[&str]) -> (PathBuf, PathBuf) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let (mut params, key) = (CertificateParams::new(hosts).unwrap(), KeyPair::generate().unwrap());
        params.extended_key_usages = vec![usage];
        let (certificate, file) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&certificate, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&file, key.serialize_pem()).unwrap();
        (certificate, file)
    }

    /// Returns the node of this port of the machine, as a client with a certificate of this CA asks for it.
    fn node(&self, host: &str, port: u16) -> RemoteNode {
        let (certificate, key) = self.issue("client", ExtendedKeyUsagePurpose::ClientAuth, &["client"]);
        RemoteNode { server: format!("{host}:{port}").parse().unwrap(), ca: self.path("ca.pem"), certificate, key }
    }

    /// Starts a TLS end, with a certificate for `localhost`, that admits this CA's clients.
    async fn serve(&self, socket: &Path) -> TlsEnd {
        let (certificate, key) = self.issue("node", ExtendedKeyUsagePurpose::ServerAuth, &["localhost"]);
        let client_ca = self.path("ca.pem");
        let files = NodeFiles { certificate: &certificate, key: &key, client_ca: &client_ca, revoked: None };
        TlsEnd::start(socket, &files).await
    }
}

async fn connect(node: RemoteNode) -> Result<Client, ClientError> {
    Client::connect_to(&NodeAddress::Remote(node)).await
}

#[tokio::test]
async fn a_client_with_a_certificate_uses_a_node_over_tls() {
    let (served, authority) = (Served::start().await, Authority::new());
    let end = authority.serve(&served.socket).await;
    let mut client = connect(authority.node("localhost", end.port)).await.unwrap();
    let digest = client.upload(&demo(), [wasm("a"), vec![7; 1 << 20]].concat()).await.unwrap();
    assert_eq!(client.uploads(Some(demo())).await.unwrap()[0].digest, digest);
    drop((client, end));
    served.stop().await;
}

#[tokio::test]
async fn a_node_of_another_name_or_ca_is_not_trusted() {
    let (served, authority) = (Served::start().await, Authority::new());
    let end = authority.serve(&served.socket).await;
    let by_address = connect(authority.node("127.0.0.1", end.port)).await.unwrap_err();
    let ClientError::UntrustedNode(untrusted) = &by_address else { panic!("{by_address:?}") };
    assert!(
        untrusted.problem.contains("its certificate is for") && untrusted.problem.contains("localhost"),
        "{untrusted}"
    );
    let other = Authority::new();
    let node = RemoteNode { ca: other.path("ca.pem"), ..authority.node("localhost", end.port) };
    let by_other_ca = connect(node).await.unwrap_err();
    let ClientError::UntrustedNode(untrusted) = &by_other_ca else { panic!("{by_other_ca:?}") };
    assert!(untrusted.problem.contains("is not one of the CA"), "{untrusted}");
    drop(end);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_the_node_refuses_after_the_handshake_is_named() {
    let (served, authority) = (Served::start().await, Authority::new());
    let end = authority.serve(&served.socket).await;
    for (name, problem) in
        [("another", "does not know the CA that issued it"), ("ours", "the CA that the node knows did not sign it")]
    {
        let other = Authority::named(name);
        // The alert and the client's request cross each other, so each attempt may see another order.
        for _ in 0..20 {
            let node = RemoteNode { ca: authority.path("ca.pem"), ..other.node("localhost", end.port) };
            let certificate = node.certificate.clone();
            let refused = match connect(node).await {
                Ok(mut client) => client.upload(&demo(), wasm("a")).await.unwrap_err(),
                Err(error) => error,
            };
            let ClientError::CertificateRefused(refused) = &refused else { panic!("{refused:?}") };
            assert_eq!(refused.certificate, certificate);
            assert!(refused.problem.contains(problem), "{refused}");
        }
    }
    drop(end);
    served.stop().await;
}

#[tokio::test]
async fn what_listens_there_without_tls_is_no_node() {
    let authority = Authority::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = authority.node("localhost", listener.local_addr().unwrap().port());
    let talking = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"220 mail.example ESMTP\r\n").await;
        // It stays open until the client has read it.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    });
    let error = connect(node).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::UntrustedNode(it) if it.problem.contains("does not answer with TLS")),
        "{error}"
    );
    talking.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_nothing_answers_is_given_up() {
    let authority = Authority::new();
    // Connections wait in its queue, as nothing accepts them.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = connect(authority.node("localhost", listener.local_addr().unwrap().port())).await.unwrap_err();
    assert!(matches!(&error, ClientError::Unreachable { reason, .. } if reason.contains("does not answer")), "{error}");
}

#[tokio::test]
async fn where_nothing_listens_no_node_runs() {
    let authority = Authority::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = connect(authority.node("localhost", port)).await.unwrap_err();
    assert_eq!(error.to_string(), format!("no piniond at localhost:{port}: is it running?"));
}

#[test]
fn files_that_do_not_fit_are_named() {
    let authority = Authority::new();
    let good = authority.node("localhost", 1);
    good.check().unwrap();
    let (certificate, key) = authority.issue("other", ExtendedKeyUsagePurpose::ClientAuth, &["other"]);
    fs::write(authority.path("empty"), "").unwrap();
    let error = |node: RemoteNode| node.check().unwrap_err();
    let other_key = error(RemoteNode { key: key.clone(), ..good.clone() });
    assert!(matches!(other_key, CredentialsError::OtherKey { .. }), "{other_key}");
    let swapped = error(RemoteNode { certificate: key, key: certificate, ..good.clone() });
    assert!(swapped.to_string().contains("there is no certificate in it: it must be PEM"), "{swapped}");
    let empty = error(RemoteNode { key: authority.path("empty"), ..good.clone() });
    assert!(empty.to_string().contains("there is no private key in it: it must be PEM"), "{empty}");
    let missing = error(RemoteNode { ca: authority.path("nope"), ..good });
    assert!(missing.to_string().starts_with("ca ") && missing.to_string().contains("cannot be read"), "{missing}");
}

/// A service that refuses each request.
#[derive(Clone)]
struct Refusing(Code);

impl NamedService for Refusing {
    const NAME: &'static str = "pinion.v1.Control";
}

impl Service<http::Request<Body>> for Refusing {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        ready(Ok(Status::new(self.0, "a viewer of tenant demo may not change it").into_http()))
    }
}

#[tokio::test]
async fn what_the_node_does_not_allow_is_a_refusal_in_its_own_words() {
    let authority = Authority::new();
    for code in [Code::PermissionDenied, Code::Unauthenticated] {
        let socket = authority.path(&format!("{code:?}"));
        let incoming = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let serving = tonic::transport::Server::builder().add_service(Refusing(code));
        let serving = tokio::spawn(serving.serve_with_incoming(incoming));
        let end = authority.serve(&socket).await;
        let mut client = connect(authority.node("localhost", end.port)).await.unwrap();
        let error = client.status().await.unwrap_err();
        assert!(matches!(error, ClientError::Refused { code: found, .. } if found == code), "{error:?}");
        assert_eq!(error.to_string(), "a viewer of tenant demo may not change it");
        serving.abort();
    }
}
