//! How much callers may take, and that the operator's socket stays responsive.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pinion_control::journal::{Level, LogLine, Origin};
use pinion_control::proto;
use pinion_control::proto::upload_request::{Header, Part};
use pinion_control::socket::Limits;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::Endpoint;

use super::authority::{ADMIN, RIVAL, VIEWER};
use super::calls::{begin, call, endless, take, until_ok};
use super::served::{PATIENCE, Remote, config, limits};
use crate::support::wasm;

const GET_STATUS: &str = "/pinion.v1.Control/GetStatus";
const GET_LOGS: &str = "/pinion.v1.Control/GetLogs";
const APPLY: &str = "/pinion.v1.Control/Apply";
const UPLOAD: &str = "/pinion.v1.Control/UploadModule";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A time limit that is over soon.
const SHORT: Duration = Duration::from_millis(200);

fn header(size_bytes: u64) -> Vec<u8> {
    let digest = format!("sha256:{}", "0".repeat(64));
    let part = Part::Header(Header { tenant: "demo".into(), digest, size_bytes, keep_history: false });
    proto::UploadRequest { part: Some(part) }.encode_to_vec()
}

#[tokio::test]
async fn a_message_longer_than_its_method_allows_is_refused_with_both_numbers() {
    let remote = Remote::start(limits()).await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    for (channel, path, bytes, max) in [
        (&admin, GET_STATUS, 4097, "4096"),
        (&admin, APPLY, (16 << 20) + 1, "16777216"),
        (&admin, UPLOAD, (4 << 20) + 1, "4194304"),
        (&remote.local(), GET_STATUS, 1 << 20, "4096"),
    ] {
        let refused = call(channel, path, vec![0; bytes]).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        assert!(refused.message().contains(max) && refused.message().contains(&bytes.to_string()), "{refused:?}");
    }
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_message_of_too_many_elements_is_refused_whoever_sends_it() {
    let remote = Remote::start(limits()).await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    for channel in [&admin, &remote.local()] {
        // Empty modules.
        let refused = call(channel, APPLY, [0x0a, 0].repeat(300_000)).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        assert!(refused.message().contains("at most 262144 elements"), "{refused:?}");
    }
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn elements_count_as_the_memory_that_they_take_once_decoded() {
    let remote = Remote::start(Limits { request_bytes_at_once: 1 << 20, ..limits() }).await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let refused = call(&admin, APPLY, [0x0a, 0].repeat(32 << 10)).await.unwrap_err();
    assert!(refused.message().contains("there would be more than 1048576"), "{refused:?}");
    assert_eq!(call(&admin, APPLY, [0x0a, 0].repeat(1 << 10)).await.unwrap_err().code(), Code::PermissionDenied);
    remote.stop_after_answer().await;
}

/// Makes a tenant, and returns a change of it with 600 KiB of configuration.
async fn change_of_one_chain(remote: &Remote) -> proto::ApplyRequest {
    let tenant = proto::Tenant { name: "demo".into(), ..Default::default() };
    let made = proto::ApplyRequest { tenants: vec![tenant], ..Default::default() };
    call(&remote.local(), APPLY, made.encode_to_vec()).await.unwrap();
    let mut operator = pinion_control::Client::connect(&remote.served.socket).await.unwrap();
    let digest = operator.upload(&"demo".parse().unwrap(), wasm("m")).await.unwrap().to_string();
    let module = proto::Module { tenant: "demo".into(), name: "m".into(), digest, ..Default::default() };
    let stage = proto::Stage { module: "m".into(), config: vec![7; 60 << 10], ..Default::default() };
    let chain = proto::Chain { tenant: "demo".into(), name: "c".into(), stages: vec![stage; 10], ..Default::default() };
    proto::ApplyRequest { modules: vec![module], chains: vec![chain], ..Default::default() }
}

/// Waits until the node builds a chain.
async fn wait_for_build(remote: &Remote) {
    let begins = async {
        while !remote.served.node.calls.lock().unwrap().iter().any(|call| call.starts_with("build")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begins).await.expect("the node builds");
}

#[tokio::test]
async fn a_change_counts_among_the_bytes_of_its_tenant_until_it_is_made() {
    let remote = Remote::start(Limits { request_bytes_at_once: 1 << 20, ..limits() }).await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let change = change_of_one_chain(&remote).await;
    *remote.served.node.build_time.lock().unwrap() = Duration::from_secs(2);
    let first = tokio::spawn({
        let (admin, change) = (admin.clone(), change.encode_to_vec());
        async move { call(&admin, APPLY, change).await }
    });
    wait_for_build(&remote).await;
    let refused = call(&admin, APPLY, change.encode_to_vec()).await.unwrap_err();
    assert!(refused.message().contains("there would be more than 1048576"), "{refused:?}");
    first.await.unwrap().unwrap();
    call(&admin, APPLY, change.encode_to_vec()).await.unwrap();
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn requests_that_never_finish_sending_are_given_up() {
    let remote = Remote::start(Limits { request_stall: SHORT, ..limits() }).await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    for (path, messages) in [(UPLOAD, vec![]), (UPLOAD, vec![header(9)]), (GET_STATUS, vec![])] {
        let refused = match begin(&admin, path, endless(messages)).await {
            Ok(answer) => take(answer, usize::MAX).await.unwrap_err(),
            Err(refused) => refused,
        };
        assert_eq!(refused.code(), Code::DeadlineExceeded, "{path}: {refused:?}");
    }
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn uploads_that_end_too_early_or_never_are_refused() {
    let remote = Remote::start(limits()).await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let half = call(&admin, UPLOAD, header(9)).await.unwrap_err();
    assert_eq!(half.code(), Code::InvalidArgument, "{half:?}");
    let forever = tokio_stream::iter(std::iter::repeat_with(|| header(9)));
    assert_eq!(begin(&admin, UPLOAD, forever).await.unwrap_err().code(), Code::InvalidArgument);
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn connections_whose_first_request_never_comes_are_closed() {
    let remote = Remote::start(Limits { first_request_time: SHORT, ..limits() }).await;
    let identity = remote.authority.client(&[VIEWER]);
    // Nothing; a preface only; a header block that is never complete.
    for begun in [&b""[..], PREFACE, &[PREFACE, &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x83]].concat()] {
        let mut stream = remote.tls(Some(&identity)).await.unwrap();
        stream.write_all(begun).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        drop(ended.expect("the connection ends"));
    }
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn handshakes_that_are_never_complete_are_given_up() {
    let remote = Remote::start(Limits { handshake_time: SHORT, ..limits() }).await;
    // Also of a client that has closed its side.
    for closes in [false, true] {
        let mut stream = tokio::net::TcpStream::connect(remote.address).await.unwrap();
        stream.write_all(&[22, 3, 1]).await.unwrap();
        if closes {
            stream.shutdown().await.unwrap();
        }
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        drop(ended.expect("the connection ends"));
    }
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_connection_is_kept_while_a_request_is_in_progress_and_closed_when_it_has_none() {
    let remote = Remote::start(Limits { idle_time: SHORT, request_stall: PATIENCE, ..limits() }).await;
    let identity = remote.authority.client(&[VIEWER]);
    let channel = remote.channel(&identity).await;
    let mut followed = begin(&channel, GET_LOGS, tokio_stream::iter([vec![0x20, 1]])).await.unwrap();
    // Other connections come and go meanwhile, each after its idle time.
    for _ in 0..2 {
        let mut stream = remote.tls(Some(&identity)).await.unwrap();
        stream.write_all(&[PREFACE, &health_check(1)].concat()).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        drop(ended.expect("the connection ends"));
    }
    push_lines(&remote, 1);
    let line = tokio::time::timeout(PATIENCE, followed.message()).await.expect("a line comes");
    assert!(line.unwrap().is_some());
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_refused_request_ends_its_connection() {
    let remote = Remote::start(limits()).await;
    let identity = remote.authority.client_with(&[VIEWER], 7, SystemTime::now() + PATIENCE);
    let mut stream = remote.tls(Some(&identity)).await.unwrap();
    stream.write_all(&[PREFACE, &health_check(1)].concat()).await.unwrap();
    // Settings, and more.
    stream.read_exact(&mut [0; 64]).await.unwrap();
    remote.revoke(&remote.authority.revoked(&[7]));
    stream.write_all(&health_check(3)).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE / 2, stream.read_to_end(&mut Vec::new())).await;
    drop(ended.expect("the connection ends"));
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_change_of_a_caller_that_is_revoked_meanwhile_is_given_up() {
    let remote = Remote::start(Limits { check_interval: SHORT, ..limits() }).await;
    let identity = remote.authority.client_with(&[ADMIN], 7, SystemTime::now() + PATIENCE);
    let admin = remote.channel(&identity).await;
    let change = change_of_one_chain(&remote).await.encode_to_vec();
    *remote.served.node.build_time.lock().unwrap() = Duration::from_secs(5);
    let under_way = tokio::spawn(async move { call(&admin, APPLY, change).await });
    wait_for_build(&remote).await;
    remote.revoke(&remote.authority.revoked(&[7]));
    let refused = under_way.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn an_address_with_many_handshakes_under_way_leaves_others_theirs() {
    let remote = Remote::start(Limits { handshakes_max: 4, handshakes_per_address_max: 2, ..limits() }).await;
    let mut strangers = Vec::new();
    for _ in 0..6 {
        strangers.push(tokio::net::TcpStream::connect(remote.address).await.unwrap());
    }
    let admin = remote.authority.client(&[ADMIN]);
    remote.tls(Some(&admin)).await.unwrap_err();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let stream = socket.connect(remote.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(config(&remote.authority, Some(&admin)));
    connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    drop(strangers);
    remote.stop_after_answer().await;
}

/// Returns the frames of a request for the health, in HTTP/2: a header block without compression, and an empty message.
fn health_check(stream: u8) -> Vec<u8> {
    let field = |name: &str, value: &str| {
        [&[0, name.len() as u8][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let fields = [
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", "/grpc.health.v1.Health/Check"),
        field(":authority", "localhost"),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ]
    .concat();
    let head = [&[0, 0, fields.len() as u8, 1, 4, 0, 0, 0, stream][..], &fields].concat();
    [&head[..], &[0, 0, 5, 0, 1, 0, 0, 0, stream], &[0; 5]].concat()
}

fn push_lines(remote: &Remote, count: usize) {
    let origin = Arc::new(Origin {
        tenant: "demo".parse().unwrap(),
        chain: "c".parse().unwrap(),
        stage: 0,
        module: "m".parse().unwrap(),
        fwp: "1.0".into(),
    });
    for _ in 0..count {
        remote.served.node.journal.push(LogLine {
            time_unix_ms: 1,
            level: Level::Info,
            origin: Arc::clone(&origin),
            text: "x".repeat(700).into(),
            lost: 0,
        });
    }
}

#[tokio::test]
async fn a_response_that_is_never_read_is_given_up_and_its_place_is_free() {
    let remote = Remote::start(Limits { response_stall: SHORT, requests_at_once: 1, ..limits() }).await;
    push_lines(&remote, 200);
    let identity = remote.authority.client(&[ADMIN]);
    let small = Endpoint::from_static("http://localhost").initial_stream_window_size(1024);
    let channel = remote.channel_with(Some(&identity), small).await;
    let unread = begin(&channel, GET_LOGS, tokio_stream::iter([vec![]])).await.unwrap();
    until_ok(&channel, GET_STATUS, Vec::new()).await;
    let ended = take(unread, usize::MAX).await.unwrap_err();
    assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended:?}");
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn one_tenant_takes_no_more_than_its_requests_at_once_and_leaves_other_tenants_theirs() {
    let remote = Remote::start(Limits { requests_at_once: 2, ..limits() }).await;
    let [admin, viewer, rival] = [ADMIN, VIEWER, RIVAL].map(|uri| remote.authority.client(&[uri]));
    let (admin, viewer) = (remote.channel(&admin).await, remote.channel(&viewer).await);
    let follow = || tokio_stream::iter([vec![0x20, 1]]);
    let first = begin(&admin, GET_LOGS, follow()).await.unwrap();
    let _second = begin(&viewer, GET_LOGS, follow()).await.unwrap();
    let refused = call(&admin, GET_STATUS, Vec::new()).await.unwrap_err();
    assert!(refused.message().starts_with("2 requests of this identity are in progress"), "{refused:?}");
    call(&remote.channel(&rival).await, GET_STATUS, Vec::new()).await.unwrap();
    drop(first);
    until_ok(&viewer, GET_STATUS, Vec::new()).await;
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_tenant_that_asks_too_fast_is_told_when_to_ask_again_and_the_operator_is_not() {
    let remote = Remote::start(Limits { requests_per_second: NonZeroU32::MIN, ..limits() }).await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let mut refused = None;
    while refused.is_none() {
        refused = call(&admin, GET_STATUS, Vec::new()).await.err();
    }
    let refused = refused.unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().starts_with("a tenant may make 1 requests in a second"), "{refused:?}");
    assert_eq!(refused.metadata().get("pinion-retry").map(AsRef::as_ref), Some(&b"later"[..]), "{refused:?}");
    let local = remote.local();
    for _ in 0..20 {
        call(&local, GET_STATUS, Vec::new()).await.unwrap();
    }
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn neither_an_identity_nor_an_address_takes_all_connections() {
    let remote = Remote::start(Limits { connections_per_identity_max: 1, ..limits() }).await;
    let [admin, viewer, rival] = [ADMIN, VIEWER, RIVAL].map(|uri| remote.authority.client(&[uri]));
    let channel = remote.channel(&admin).await;
    call(&channel, GET_STATUS, Vec::new()).await.unwrap();
    let viewer = remote.channel(&viewer).await;
    call(&viewer, GET_STATUS, Vec::new()).await.unwrap_err();
    call(&remote.channel(&rival).await, GET_STATUS, Vec::new()).await.unwrap();
    drop(channel);
    until_ok(&viewer, GET_STATUS, Vec::new()).await;
    remote.stop_after_answer().await;

    let remote = Remote::start(Limits { connections_per_address_max: 1, ..limits() }).await;
    let mut stranger = tokio::net::TcpStream::connect(remote.address).await.unwrap();
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    call(&admin, GET_STATUS, Vec::new()).await.unwrap_err();
    stranger.shutdown().await.unwrap();
    until_ok(&admin, GET_STATUS, Vec::new()).await;
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn an_upload_of_a_tenant_arrives_in_chunks() {
    let remote = Remote::start(limits()).await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let bytes = [&b"\0asm"[..], &vec![7; 5 << 20]].concat();
    let digest = pinion_control::model::Digest::of(&bytes).to_string();
    let size_bytes = bytes.len() as u64;
    let header = Header { tenant: "demo".into(), digest: digest.clone(), size_bytes, keep_history: false };
    let header = Part::Header(header);
    let chunks = bytes.chunks(1 << 20).map(|chunk| Part::Chunk(chunk.to_vec())).collect::<Vec<_>>();
    let parts = std::iter::once(header).chain(chunks);
    let messages = tokio_stream::iter(parts.map(|part| proto::UploadRequest { part: Some(part) }.encode_to_vec()));
    let answer = take(begin(&admin, UPLOAD, messages.map(|message| message)).await.unwrap(), 1).await.unwrap();
    assert_eq!(proto::UploadResponse::decode(&answer[0][..]).unwrap().digest, digest);
    remote.stop_after_answer().await;
}
