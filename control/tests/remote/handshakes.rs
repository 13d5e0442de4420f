//! Which certificates are accepted, when they connect and later.

use std::io;
use std::time::{Duration, SystemTime};

use rustls::AlertDescription;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::authority::{ADMIN, Authority, Identity, OPERATOR, VIEWER};
use super::calls::{begin, call, until_ok};
use super::served::{PATIENCE, Remote, config_of, limits, tls};

const GET_STATUS: &str = "/pinion.v1.Control/GetStatus";
/// An HTTP/2 client's first bytes: the preface, and settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Returns the alert that a client gets for its certificate.
async fn alert(remote: &Remote, identity: Option<&Identity>) -> AlertDescription {
    let refused = async {
        let mut stream = remote.tls(identity).await?;
        // With TLS 1.3 a client takes itself for connected before the server has judged its certificate.
        stream.write_all(PREFACE).await?;
        stream.read_to_end(&mut Vec::new()).await
    };
    let error: io::Error = tokio::time::timeout(PATIENCE, refused).await.expect("a refusal comes").unwrap_err();
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => *alert,
        _ => panic!("not an alert: {error:?}"),
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_is_refused_with_the_alert_that_says_why() {
    let remote = Remote::start(limits()).await;
    let (authority, stranger) = (&remote.authority, Authority::new("strangers"));
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    remote.revoke(&authority.revoked(&[7]));
    for (identity, expected) in [
        (Some(authority.client_with(&[ADMIN], 1, now - hour)), AlertDescription::CertificateExpired),
        (Some(authority.client_with(&[ADMIN], 7, now + hour)), AlertDescription::CertificateRevoked),
        (Some(stranger.client(&[OPERATOR])), AlertDescription::UnknownCA),
        (None, AlertDescription::CertificateRequired),
        (Some(authority.client(&[])), AlertDescription::CertificateUnknown),
        (Some(authority.client(&["https://operator"])), AlertDescription::CertificateUnknown),
        (Some(authority.client(&["pinion://tenant/demo/owner"])), AlertDescription::CertificateUnknown),
        (Some(authority.client(&[VIEWER, OPERATOR])), AlertDescription::CertificateUnknown),
    ] {
        assert_eq!(alert(&remote, identity.as_ref()).await, expected);
    }
    let channel = remote.channel(&authority.client(&["https://alice.example", VIEWER])).await;
    call(&channel, GET_STATUS, Vec::new()).await.unwrap();
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_client_without_tls_is_not_answered() {
    let remote = Remote::start(limits()).await;
    for bytes in [&b"GET / HTTP/1.1\r\nhost: node\r\n\r\n"[..], PREFACE] {
        let mut stream = TcpStream::connect(remote.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection ends");
        // An alert of TLS at most.
        assert!(answer.len() <= 7 && answer.first().is_none_or(|kind| *kind == 21), "{answer:?}");
    }
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_client_that_knows_tls_1_2_only_is_refused() {
    let remote = Remote::start(limits()).await;
    let config = config_of(&remote.authority, Some(&remote.authority.client(&[ADMIN])), &[&rustls::version::TLS12]);
    let error = tls(remote.address, config).await.err().unwrap();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let expected = rustls::Error::AlertReceived(AlertDescription::ProtocolVersion);
    assert_eq!(inner, Some(&expected), "{error:?}");
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_certificate_whose_authority_expires_while_it_is_connected_is_refused_at_the_next_request() {
    let remote = Remote::start(limits()).await;
    let expires = SystemTime::now() + Duration::from_secs(4);
    let authority = remote.authority.intermediate("short-lived", expires);
    remote.revoke(&[remote.authority.revoked(&[]), authority.revoked(&[])].concat());
    let mut identity = authority.client(&[ADMIN]);
    identity.chain.push(authority.certificate().clone());
    let channel = remote.channel(&identity).await;
    call(&channel, GET_STATUS, Vec::new()).await.unwrap();
    let refused = loop {
        match call(&channel, GET_STATUS, Vec::new()).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(refused) => break refused,
        }
        assert!(SystemTime::now() < expires + PATIENCE, "it is still accepted");
    };
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("has expired"), "{refused:?}");
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_certificate_that_is_revoked_while_it_is_connected_is_refused_at_the_next_request_and_ends_its_streams() {
    let remote = Remote::start(limits()).await;
    let identity = remote.authority.client_with(&[ADMIN], 7, SystemTime::now() + Duration::from_secs(3600));
    let other = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let channel = remote.channel(&identity).await;
    call(&channel, GET_STATUS, Vec::new()).await.unwrap();
    let follow = vec![0x20, 1];
    let mut followed = begin(&channel, "/pinion.v1.Control/GetLogs", tokio_stream::iter([follow])).await.unwrap();

    remote.revoke(&remote.authority.revoked(&[7]));
    let refused = call(&channel, GET_STATUS, Vec::new()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("was revoked"), "{refused:?}");
    let ended = tokio::time::timeout(PATIENCE, followed.message()).await.expect("the stream ends").unwrap_err();
    assert_eq!(ended.code(), Code::Unauthenticated);
    call(&other, GET_STATUS, Vec::new()).await.unwrap();

    // A broken file keeps the former list in force.
    remote.revoke("-----BEGIN X509 CRL-----\nbroken");
    assert_eq!(alert(&remote, Some(&identity)).await, AlertDescription::CertificateRevoked);
    call(&other, GET_STATUS, Vec::new()).await.unwrap();
    remote.revoke(&remote.authority.revoked(&[]));
    until_ok(&channel, GET_STATUS, Vec::new()).await;
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_certificate_that_expires_while_it_is_connected_is_refused_at_the_next_request() {
    let remote = Remote::start(limits()).await;
    let expires = SystemTime::now() + Duration::from_secs(10);
    let channel = remote.channel(&remote.authority.client_with(&[ADMIN], 1, expires)).await;
    // Kept open, so that the requests below are made on one connection.
    let _followed = begin(&channel, "/pinion.v1.Control/GetLogs", tokio_stream::iter([vec![0x20, 1]])).await.unwrap();
    let refused = loop {
        match call(&channel, GET_STATUS, Vec::new()).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(refused) => break refused,
        }
    };
    assert!(SystemTime::now() >= expires - Duration::from_secs(1), "{refused:?}");
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("has expired"), "{refused:?}");
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_renewed_certificate_of_the_node_is_used_without_a_restart() {
    let remote = Remote::start(limits()).await;
    let identity = remote.authority.client(&[VIEWER]);
    let presented = async || {
        let stream = remote.tls(Some(&identity)).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    };
    let before = presented().await;
    let (certificate, key) = remote.authority.node();
    // For a moment certificate and key do not go together, and the former ones are used.
    std::fs::write(&remote.files.certificate, certificate).unwrap();
    assert_eq!(presented().await, before);
    std::fs::write(&remote.files.key, key).unwrap();
    assert_ne!(presented().await, before);
    remote.stop_after_answer().await;
}
