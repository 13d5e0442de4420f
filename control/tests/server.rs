//! Tests of the control plane over a real Unix socket, with a fake data plane.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::{REFUSED_CONFIG, Served, TestNode, demo, echo_chain, named, rule_to_echo, wasm};
use pinion_control::client::{ClientError, Filter, ListedChain};
use pinion_control::control::{ApplyRequest, BuildTime, ChangeOptions};
use pinion_control::manifest::Bundle;
use pinion_control::model::{Branch, Case, Chain, Digest, Files, Match, ObjectRef, Protocol, Rule, Stage, Target};
use pinion_control::node::Call;
use pinion_control::socket::ServeError;
use pinion_control::{Client, Control, Server, Store, proto};
use tonic::Code;

/// Uploads module `m` and applies a chain of it with rule `ping`.
async fn apply_small(client: &mut Client) -> Vec<String> {
    let digest = client.upload(&demo(), wasm("m")).await.unwrap();
    let request = ApplyRequest {
        modules: vec![named("m", digest)],
        chains: vec![echo_chain("m")],
        rules: vec![rule_to_echo("ping", "10.77.0.2")],
        ..ApplyRequest::default()
    };
    let changed = client.apply(request).await.unwrap();
    changed.outcomes.iter().map(|outcome| format!("{} {}", outcome.object, outcome.effect)).collect()
}

#[tokio::test]
async fn ten_thousand_rules_go_from_a_manifest_to_the_store_and_back_in_seconds() {
    let started = Instant::now();
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let mut text = "version = \"pinion.v1\"\ntenant = \"demo\"\n".to_owned();
    for number in 0..10_000 {
        let (high, low) = (number / 250, number % 250);
        text += &format!(
            "[[rule]]\nname = \"rule-{number}\"\npriority = {number}\npolicy = \"per-client\"\nchain = \"echo\"\n\
             match = {{ vlan = {}, destination = \"10.9.{high}.{low}\", protocol = \"icmp\", icmp_type = 8 }}\n",
            number % 4094 + 1
        );
    }
    let manifest = served.folder.path().join("rules.toml");
    std::fs::write(&manifest, text).unwrap();
    let contents = Bundle::read(&[manifest]).unwrap().load().unwrap();
    let changed = client.apply(rules_only(contents.rules.clone())).await.unwrap();
    assert_eq!(changed.outcomes.len(), 10_000);
    let again = client.apply(rules_only(contents.rules)).await.unwrap();
    assert_eq!(again.version, changed.version);

    let served = Served::start_in(served.stop().await).await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let rules = client.rules(Filter::default()).await.unwrap();
    assert_eq!(rules.len(), 10_001);
    let rules = rules
        .iter()
        .filter(|rule| rule.name.as_str() != "ping")
        .map(|rule| ObjectRef::from(&**rule))
        .collect::<Vec<_>>();
    assert_eq!(client.delete(&rules).await.unwrap().outcomes.len(), 10_000);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

fn rules_only(rules: Vec<Rule>) -> ApplyRequest {
    ApplyRequest { rules, ..ApplyRequest::default() }
}

/// Returns all chains without their labels.
async fn chains(client: &mut Client) -> Vec<Chain> {
    client.chains(Filter::default()).await.unwrap().into_iter().map(|listed| listed.chain.object).collect()
}

fn refused(error: ClientError) -> (Code, String) {
    match error {
        ClientError::Refused { code, message } => (code, message),
        other => panic!("not a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn upload_apply_list_and_delete_go_round() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    assert_eq!(
        apply_small(&mut client).await,
        ["module demo/m created", "chain demo/echo created", "rule demo/ping created"]
    );
    assert_eq!(served.node.take_calls(), ["follow 0", "admit", "check 1", "build 1", "check 1", "follow 1"]);

    let modules = client.modules(Filter::default()).await.unwrap();
    assert_eq!((modules.len(), modules[0].size_bytes), (1, wasm("m").len() as u64));
    assert_eq!(chains(&mut client).await, [echo_chain("m")]);
    let rules = client.rules(Filter::default()).await.unwrap();
    assert_eq!(*rules[0], rule_to_echo("ping", "10.77.0.2"));
    assert_eq!(client.fwps(Filter::default()).await.unwrap()[1].counters.received, 7);
    assert_eq!(client.chain_instances(None, None).await.unwrap().len(), 1);
    let status = client.status().await.unwrap();
    assert_eq!((status.desired_version, status.node.followed_version), (1, 1));

    let rule = ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"));
    let chain = ObjectRef::from(&echo_chain("m"));
    let (code, message) = refused(client.delete(std::slice::from_ref(&chain)).await.unwrap_err());
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.starts_with("chain demo/echo is in use by rule demo/ping"), "{message}");
    client.delete(&[chain, rule.clone()]).await.unwrap();
    assert_eq!(chains(&mut client).await, []);
    let (code, message) = refused(client.delete(&[rule]).await.unwrap_err());
    assert_eq!((code, message.as_str()), (Code::NotFound, "there is no rule demo/ping"));
    served.stop().await;
}

#[tokio::test]
async fn applying_again_is_unchanged_and_does_not_reach_the_node() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    served.node.take_calls();
    assert_eq!(
        apply_small(&mut client).await,
        ["module demo/m unchanged", "chain demo/echo unchanged", "rule demo/ping unchanged"]
    );
    assert_eq!(served.node.take_calls(), ["admit"]);
    assert_eq!(client.status().await.unwrap().desired_version, 1);
    served.stop().await;
}

#[tokio::test]
async fn filters_choose_by_tenant_and_name() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let filter = |tenant: Option<&str>, name: Option<&str>| Filter {
        tenant: tenant.map(|tenant| tenant.parse().unwrap()),
        name: name.map(Into::into),
    };
    assert_eq!(client.rules(filter(Some("demo"), Some("ping"))).await.unwrap().len(), 1);
    assert_eq!(client.rules(filter(Some("other"), None)).await.unwrap().len(), 0);
    assert_eq!(client.chains(filter(None, Some("nope"))).await.unwrap().len(), 0);
    assert_eq!(client.fwps(filter(None, Some("0.0"))).await.unwrap().len(), 1);
    assert_eq!(client.chain_instances(None, Some(5)).await.unwrap().len(), 0);
    served.stop().await;
}

#[tokio::test]
async fn a_refused_change_leaves_nothing_behind() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    served.node.take_calls();

    let mut elsewhere = rule_to_echo("other", "10.77.0.3");
    elsewhere.chain = "nope".parse().unwrap();
    let both = vec![rule_to_echo("good", "10.77.0.4"), elsewhere];
    let (code, message) = refused(client.apply(rules_only(both)).await.unwrap_err());
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.starts_with("rule demo/other names chain demo/nope, which does not exist"), "{message}");

    let alike = rules_only(vec![rule_to_echo("twin", "10.77.0.2")]);
    let (_, message) = refused(client.apply(alike).await.unwrap_err());
    assert!(message.starts_with("rule demo/ping and rule demo/twin are alike"), "{message}");

    let unknown = ApplyRequest { chains: vec![echo_chain("nope")], ..ApplyRequest::default() };
    let (_, message) = refused(client.apply(unknown).await.unwrap_err());
    assert!(message.starts_with("chain demo/echo: stage 1 names the module nope"), "{message}");

    let never = ApplyRequest { modules: vec![named("n", Digest::of(b"never"))], ..ApplyRequest::default() };
    let (code, message) = refused(client.apply(never).await.unwrap_err());
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.starts_with("module demo/n: its tenant has uploaded nothing with the digest sha256:"), "{message}");
    assert_eq!(served.node.take_calls(), Vec::<String>::new());

    let mut chain = echo_chain("m");
    chain.egress = Some("wan".parse().unwrap());
    let request =
        ApplyRequest { chains: vec![chain], rules: vec![rule_to_echo("good", "10.77.0.4")], ..ApplyRequest::default() };
    let (code, message) = refused(client.apply(request).await.unwrap_err());
    assert_eq!((code, message.as_str()), (Code::FailedPrecondition, "chain demo/echo: this node has no port wan"));
    assert_eq!(served.node.take_calls(), ["check 2"]);

    assert_eq!(client.rules(Filter::default()).await.unwrap().len(), 1);
    assert_eq!(client.status().await.unwrap().desired_version, 1);
    let served = Served::start_in(served.stop().await).await;
    assert_eq!(served.node.wait_for_calls(2).await, ["follow 1", "build 1"]);
    served.stop().await;
}

#[tokio::test]
async fn the_desired_state_comes_back_after_a_restart() {
    let served = Served::start().await;
    apply_small(&mut Client::connect(&served.socket).await.unwrap()).await;
    let served = Served::start_in(served.stop().await).await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    assert_eq!(
        served.node.wait_for_calls(2).await,
        ["follow 1", "build 1"],
        "what is built serves before the rest is built"
    );
    assert_eq!(client.rules(Filter::default()).await.unwrap().len(), 1);
    assert!(client.status().await.unwrap().node.warnings.is_empty());
    served.stop().await;
}

#[tokio::test]
async fn a_chain_that_cannot_be_built_at_start_is_a_warning_and_fails_no_other_change() {
    let served = Served::start().await;
    apply_small(&mut Client::connect(&served.socket).await.unwrap()).await;
    let folder = served.stop().await;

    let node = Arc::new(TestNode::default());
    node.refuses_chains.store(true, Ordering::Relaxed);
    let store = Arc::new(Store::open(&folder.path().join("store")).unwrap());
    let control = Control::open(store, node.clone()).unwrap();
    control.build_missing(BuildTime::Start);
    assert_eq!(node.take_calls(), ["follow 1", "build 1"]);
    let warnings = ["not built when the node started: chain demo/echo: this node does not accept it any more"];
    assert_eq!(control.status().warnings, warnings);
    control.apply(rules_only(vec![rule_to_echo("other", "10.77.0.3")])).unwrap();
    assert_eq!(control.status().warnings, warnings);
    assert_eq!(node.take_calls(), ["check 2", "follow 2"], "a change builds nothing that it does not touch");
    let again = || ApplyRequest { chains: vec![echo_chain("m")], ..ApplyRequest::default() };
    control.apply(again()).unwrap();
    assert_eq!(control.status().warnings, warnings);
    node.refuses_chains.store(false, Ordering::Relaxed);
    control.apply(again()).unwrap();
    assert!(control.status().warnings.is_empty());
}

#[tokio::test]
async fn applying_a_chain_again_rebuilds_a_template_that_the_node_has_lost() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    served.node.take_calls();
    served.node.lacks.store(true, Ordering::Relaxed);
    assert_eq!(apply_small(&mut client).await[1], "chain demo/echo unchanged");
    assert_eq!(served.node.take_calls(), ["admit", "build 1", "follow 1"]);
    served.stop().await;
}

#[tokio::test]
async fn a_chain_that_is_held_back_is_tried_again_when_it_is_applied_again_and_for_no_other_change() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    *served.node.holds_back.lock().unwrap() = Some(ObjectRef::from(&echo_chain("m")));
    client.apply(rules_only(vec![rule_to_echo("other", "10.77.0.3")])).await.unwrap();
    assert!(served.node.holds_back.lock().unwrap().is_some());
    served.node.take_calls();
    apply_small(&mut client).await;
    assert!(served.node.holds_back.lock().unwrap().is_none());
    assert_eq!(served.node.take_calls(), ["admit", "follow 2"]);
    served.stop().await;
}

#[tokio::test]
async fn a_damaged_template_is_rebuilt_automatically() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    served.node.take_calls();
    served.node.damaged.send_modify(|count| *count += 1);
    assert_eq!(served.node.wait_for_calls(2).await, ["build 1", "follow 1"]);
    served.stop().await;
}

#[tokio::test]
async fn a_change_at_which_the_node_panics_is_answered_as_durable() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    served.node.panics.store(true, Ordering::Relaxed);
    let error = client.apply(rules_only(vec![rule_to_echo("other", "10.77.0.3")])).await.unwrap_err();
    let ClientError::Failed { code, message } = error else { panic!("{error:?}") };
    assert_eq!(code, Code::Internal);
    assert!(message.starts_with("the change is durable, as version 2, but the node failed"), "{message}");
    served.node.panics.store(false, Ordering::Relaxed);
    let served = Served::start_in(served.stop().await).await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    assert_eq!(client.rules(Filter::default()).await.unwrap().len(), 2);
    served.stop().await;
}

#[tokio::test]
async fn a_chain_that_can_not_be_built_is_not_kept() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let mut chain = echo_chain("m");
    chain.stages[0].config = REFUSED_CONFIG.to_vec();
    let request = ApplyRequest { chains: vec![chain], ..ApplyRequest::default() };
    let (code, message) = refused(client.apply(request).await.unwrap_err());
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(message, "chain demo/echo: this node does not accept it any more");
    assert_eq!(chains(&mut client).await, [echo_chain("m")]);
    served.stop().await;
}

#[tokio::test]
async fn a_module_that_the_node_refuses_is_not_kept() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let (code, message) = refused(client.upload(&demo(), b"ELF".to_vec()).await.unwrap_err());
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.starts_with("this is not a WebAssembly module"), "{message}");
    let request = ApplyRequest { modules: vec![named("m", Digest::of(b"ELF"))], ..ApplyRequest::default() };
    assert_eq!(refused(client.apply(request).await.unwrap_err()).0, Code::FailedPrecondition);
    served.stop().await;
}

#[tokio::test]
async fn another_tenants_upload_can_not_be_named() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let digest = client.upload(&"other".parse().unwrap(), wasm("m")).await.unwrap();
    let request = ApplyRequest { modules: vec![named("m", digest)], ..ApplyRequest::default() };
    assert_eq!(refused(client.apply(request).await.unwrap_err()).0, Code::FailedPrecondition);
    served.stop().await;
}

#[tokio::test]
async fn files_are_given_to_stages_by_the_digest_of_what_their_tenant_uploaded() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let archive = vec![0; 4096];
    let module = client.upload(&demo(), wasm("m")).await.unwrap();
    let request = |digest: Digest| {
        let stage =
            Stage { files: Some(Files { digest, size_bytes: 0 }), ..Stage::new("m".parse().unwrap(), Vec::new()) };
        let chain = Chain::new(demo(), "site".parse().unwrap(), vec![stage]);
        ApplyRequest { modules: vec![named("m", module)], chains: vec![chain], ..ApplyRequest::default() }
    };
    let digest = client.upload_files(&"other".parse().unwrap(), archive.clone()).await.unwrap();
    let (code, message) = refused(client.apply(request(digest)).await.unwrap_err());
    assert_eq!(code, Code::FailedPrecondition);
    assert!(
        message.starts_with("chain demo/site: its tenant has uploaded nothing with the digest sha256:"),
        "{message}"
    );

    assert_eq!(client.upload_files(&demo(), archive).await.unwrap(), digest);
    client.apply(request(digest)).await.unwrap();
    let chains = client.chains(Filter::default()).await.unwrap();
    assert_eq!(chains[0].stages[0].files, Some(Files { digest, size_bytes: 4096 }), "the size is the node's to say");
    assert_eq!(client.apply(request(digest)).await.unwrap().version, 1, "it is there just like this");

    let (code, message) = refused(client.upload_files(&demo(), b"\0asm".to_vec()).await.unwrap_err());
    assert_eq!((code, &*message), (Code::InvalidArgument, "these files are no archive"));
    let too_large = vec![0; (16 << 20) + 1];
    let (code, message) = refused(client.upload_files(&demo(), too_large).await.unwrap_err());
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(message, "the archive of files has 16777217 bytes: at most 16777216 are allowed");
    served.stop().await;
}

async fn channel(socket: &std::path::Path) -> tonic::transport::Channel {
    let uri = format!("unix://{}", socket.display());
    tonic::transport::Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
}

#[tokio::test]
async fn an_upload_that_is_not_as_announced_is_refused() {
    use proto::upload_request::{Header, Part};
    let served = Served::start().await;
    let mut client = proto::control_client::ControlClient::new(channel(&served.socket).await);
    let bytes = wasm("m");
    let header = |digest: Digest, size_bytes: u64| {
        Part::Header(Header { tenant: "demo".into(), digest: digest.to_string(), size_bytes, keep_history: false })
    };
    let chunk = || Part::Chunk(wasm("m"));
    let right = Digest::of(&bytes);
    let size_bytes = bytes.len() as u64;
    for (parts, problem) in [
        (vec![chunk()], "the first message of an upload must be its header"),
        (vec![], "the first message of an upload must be its header"),
        (vec![header(right, size_bytes), header(right, size_bytes)], "an upload has one header, this has two"),
        (vec![header(right, size_bytes), chunk(), chunk()], "6 bytes were announced and more came"),
        (vec![header(right, 7), chunk()], "7 bytes were announced and fewer came"),
        (vec![header(right, 1 << 40)], "the module has 1099511627776 bytes: at most 16777216 are allowed"),
        (vec![header(Digest::of(b"x"), size_bytes), chunk()], "the bytes have the digest sha256:"),
    ] {
        let messages: Vec<_> = parts.into_iter().map(|part| proto::UploadRequest { part: Some(part) }).collect();
        let status = client.upload_module(tokio_stream::iter(messages)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{problem}");
        assert!(status.message().starts_with(problem), "{}", status.message());
    }
    assert_eq!(served.node.take_calls(), ["follow 0"]);
    served.stop().await;
}

#[tokio::test]
async fn uploads_that_do_not_go_on_keep_no_other_tenant_from_uploading() {
    let served = Served::start().await;
    let mut stalled = Vec::new();
    for _ in 0..16 {
        let header = proto::upload_request::Header {
            tenant: "mallory".into(),
            digest: Digest::of(b"").to_string(),
            size_bytes: 1,
            keep_history: false,
        };
        let message = proto::UploadRequest { part: Some(proto::upload_request::Part::Header(header)) };
        let (sender, messages) = tokio::sync::mpsc::channel(1);
        sender.send(message).await.unwrap();
        let mut client = proto::control_client::ControlClient::new(channel(&served.socket).await);
        let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
        let upload = tokio::spawn(async move { client.upload_module(messages).await });
        // The node has taken it once there is room for another message.
        drop(sender.reserve().await.unwrap());
        stalled.push((sender, upload));
    }
    apply_small(&mut Client::connect(&served.socket).await.unwrap()).await;
    assert!(stalled.iter().all(|(_, upload)| !upload.is_finished()));
    stalled.iter().for_each(|(_, upload)| upload.abort());
    served.stop().await;
}

#[tokio::test]
async fn a_module_of_many_chunks_arrives_whole() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let mut bytes = wasm("large");
    bytes.resize(16 << 20, 7);
    let digest = client.upload(&demo(), bytes.clone()).await.unwrap();
    assert_eq!(digest, Digest::of(&bytes));
    bytes.push(7);
    assert_eq!(refused(client.upload(&demo(), bytes).await.unwrap_err()).0, Code::InvalidArgument);
    served.stop().await;
}

#[tokio::test]
async fn health_and_reflection_answer() {
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let served = Served::start().await;
    let mut health = HealthClient::new(channel(&served.socket).await);
    for service in ["", "pinion.v1.Control"] {
        let answer = health.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    // Never ends by itself; the server must end all the same.
    let _watch = health.watch(HealthCheckRequest { service: String::new() }).await.unwrap();

    let mut reflection = ServerReflectionClient::new(channel(&served.socket).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices("*".into())),
    };
    let mut answers = reflection.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let ServerReflectionResponse { message_response: Some(MessageResponse::ListServicesResponse(list)), .. } =
        answers.message().await.unwrap().unwrap()
    else {
        panic!("no list of services")
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"pinion.v1.Control".into()), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health".into()), "{names:?}");
    tokio::time::timeout(Duration::from_secs(20), served.stop()).await.expect("the server ends");
}

#[tokio::test]
async fn the_socket_is_accessible_to_its_owner_only_and_removed_with_the_server() {
    let served = Served::start().await;
    let mode = std::fs::metadata(&served.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let socket = served.socket.clone();
    let folder = served.stop().await;
    assert!(!socket.exists());
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["store"]);
    let message = Client::connect(&socket).await.unwrap_err().to_string();
    assert_eq!(message, format!("no piniond at {}: is it running?", socket.display()));
}

#[tokio::test]
async fn too_many_connections_are_closed_and_the_places_of_those_that_end_are_free() {
    let served = Served::start_with(|server| server.with_connections_max(2)).await;
    let mut first = Client::connect(&served.socket).await.unwrap();
    let mut second = Client::connect(&served.socket).await.unwrap();
    for client in [&mut first, &mut second] {
        client.status().await.unwrap();
    }
    let is_served = async || match Client::connect(&served.socket).await {
        Ok(mut client) => client.status().await.is_ok(),
        Err(_) => false,
    };
    assert!(!is_served().await);
    drop(first);
    let began = Instant::now();
    while !is_served().await {
        assert!(began.elapsed() < Duration::from_secs(30), "there is no place for another connection");
    }
    second.status().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_socket_on_which_a_server_answers_is_not_replaced() {
    let served = Served::start().await;
    let error = Server::bind(&served.socket).unwrap_err();
    assert!(matches!(error, ServeError::InUse { .. }));
    assert!(error.to_string().starts_with(&format!("another piniond answers on {}", served.socket.display())));
    Client::connect(&served.socket).await.unwrap().status().await.unwrap();
    served.stop().await;
}

#[test]
fn a_socket_that_a_dead_daemon_left_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pinion.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let server = Server::bind(&socket).unwrap();
    assert!(matches!(Server::bind(&socket).unwrap_err(), ServeError::InUse { .. }));
    drop(server);
    assert!(!socket.exists());
}

#[test]
fn a_missing_folder_is_made_and_removed_and_a_file_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("run");
    let server = Server::bind(&below.join("pinion.sock")).unwrap();
    assert!(below.is_dir());
    drop(server);
    assert!(!below.exists());

    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(matches!(Server::bind(&file).unwrap_err(), ServeError::NotASocket { .. }));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    assert!(matches!(Server::bind(&below.join("a/pinion.sock")).unwrap_err(), ServeError::Bind { .. }));
}

#[tokio::test]
async fn a_chain_that_a_call_has_made_is_listed_as_implicit_and_can_be_deleted() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    client.invoke(call("m", b"")).await.unwrap();
    let listed = |chains: Vec<ListedChain>| -> Vec<(String, bool)> {
        chains.iter().map(|chain| (chain.name.to_string(), chain.implicit)).collect()
    };
    let both = [("echo".to_owned(), false), ("m".to_owned(), true)];
    assert_eq!(listed(client.chains(Filter::default()).await.unwrap()), both);
    let other = Filter { tenant: Some("other".parse().unwrap()), name: None };
    assert_eq!(listed(client.chains(other).await.unwrap()), []);

    let chain = ObjectRef::Chain { tenant: demo(), name: "m".parse().unwrap() };
    let rule = ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"));
    let (code, message) = refused(client.delete(&[chain.clone(), chain.clone()]).await.unwrap_err());
    assert_eq!((code, &*message), (Code::InvalidArgument, "the change names chain demo/m twice"));
    let nothing = ObjectRef::Rule { tenant: demo(), name: "nothing".parse().unwrap() };
    assert_eq!(refused(client.delete(&[chain.clone(), nothing]).await.unwrap_err()).0, Code::NotFound);
    let dry_run = ChangeOptions { dry_run: true, expected_revision: None };
    assert_eq!(client.delete_with(std::slice::from_ref(&chain), dry_run).await.unwrap().outcomes.len(), 1);
    assert_eq!(client.chains(Filter::default()).await.unwrap().len(), 2, "nothing of this has deleted it");

    served.node.take_calls();
    let deleted = client.delete(std::slice::from_ref(&chain)).await.unwrap();
    assert_eq!((deleted.version, &deleted.outcomes[0].object), (1, &chain), "this is no revision");
    assert_eq!(served.node.take_calls(), ["follow 1"]);
    assert_eq!(listed(client.chains(Filter::default()).await.unwrap()), both[..1]);
    assert!(client.status().await.unwrap().node.chains.iter().all(|status| status.chain.as_str() != "m"));
    assert_eq!(refused(client.delete(std::slice::from_ref(&chain)).await.unwrap_err()).0, Code::NotFound);

    // The next call makes it again, and it can be deleted together with others.
    client.invoke(call("m", b"")).await.unwrap();
    let deleted = client.delete(&[rule, chain]).await.unwrap();
    let deleted: Vec<String> = deleted.outcomes.iter().map(|it| format!("{} {}", it.object, it.effect)).collect();
    assert_eq!(deleted, ["rule demo/ping deleted", "chain demo/m deleted"]);
    assert_eq!(listed(client.chains(Filter::default()).await.unwrap()), both[..1]);
    served.stop().await;
}

fn call(name: &str, payload: &[u8]) -> Call {
    let (chain, timeout) = (name.parse().unwrap(), Duration::from_millis(300));
    Call { tenant: demo(), chain, payload: payload.to_vec(), timeout }
}

#[tokio::test]
async fn a_chain_or_a_module_is_called_by_its_name_and_its_answer_comes_back() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    served.node.take_calls();
    assert_eq!(client.invoke(call("echo", b"one")).await.unwrap(), b"one for echo");
    assert_eq!(served.node.take_calls(), ["invoke demo/echo"]);
    // The node gets a chain of the module once. The durable state does not change.
    for _ in 0..2 {
        assert_eq!(client.invoke(call("m", b"two")).await.unwrap(), b"two for m");
    }
    assert_eq!(
        served.node.take_calls(),
        ["check 1", "build 1", "check 1", "follow 1", "invoke demo/m", "invoke demo/m"].map(str::to_owned)
    );
    assert_eq!(client.status().await.unwrap().desired_version, 1);
    let (code, message) = refused(client.invoke(call("nothing", b"")).await.unwrap_err());
    assert_eq!((code, &message[..]), (Code::NotFound, "there is no chain demo/nothing, nor a module of that name"));
}

#[tokio::test]
async fn a_chain_whose_entry_drops_calls_is_not_called_and_its_caller_is_told_at_once() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let tcp = Match { protocol: Some(Protocol::TCP), ..Match::default() };
    let cases = vec![Case { matcher: tcp, to: Target::Stage(0) }];
    let entered = |default| Chain { entry: Some(Branch { cases: cases.clone(), default }), ..echo_chain("m") };
    let apply = |chain| ApplyRequest { chains: vec![chain], ..ApplyRequest::default() };
    client.apply(apply(entered(Target::Drop))).await.unwrap();
    served.node.take_calls();
    let (code, message) = refused(client.invoke(call("echo", b"one")).await.unwrap_err());
    let expected =
        "chain demo/echo was not called: calls enter by the default of its entry, which is drop; name a stage there";
    assert_eq!((code, &message[..]), (Code::FailedPrecondition, expected));
    assert!(!served.node.take_calls().iter().any(|call| call.starts_with("invoke")));
    client.apply(apply(entered(Target::Stage(0)))).await.unwrap();
    assert_eq!(client.invoke(call("echo", b"two")).await.unwrap(), b"two for echo");
}

#[tokio::test]
async fn a_call_without_an_answer_reports_why_and_ends_at_its_timeout() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let code = |error: ClientError| match error {
        ClientError::Failed { code, .. } => code,
        other => panic!("not a failure: {other:?}"),
    };
    let late = client.invoke(call("echo", b"be late")).await.unwrap_err();
    assert_eq!(
        late.to_string(),
        "piniond failed (Deadline expired before operation could complete): demo/echo has not answered within 300 ms"
    );
    assert_eq!(code(late), Code::DeadlineExceeded);
    assert_eq!(code(client.invoke(call("echo", b"end")).await.unwrap_err()), Code::Aborted);
}

#[tokio::test]
async fn a_call_whose_caller_has_gone_is_given_up() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let given_up = Arc::clone(&served.node.calls_given_up);
    let call = Call { timeout: Duration::from_secs(600), ..call("echo", b"be late") };
    let caller = tokio::spawn(async move { client.invoke(call).await });
    while !served.node.calls.lock().unwrap().iter().any(|call| call.starts_with("invoke")) {
        tokio::task::yield_now().await;
    }
    assert_eq!(given_up.load(Ordering::SeqCst), 0);
    caller.abort();
    let started = Instant::now();
    while given_up.load(Ordering::SeqCst) == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "the call is still under way");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
