//! Changes that are made at the same time, over a real Unix socket, with a fake data plane.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Served, demo, echo_chain, named, wasm};
use pinion_control::Client;
use pinion_control::client::ClientError;
use pinion_control::control::{ApplyRequest, Changed, NamedUpload};
use pinion_control::model::{Digest, ObjectRef};
use tokio::task::JoinHandle;
use tonic::Code;

/// Module `m` and the chain `demo/echo` of it.
fn echo() -> ApplyRequest {
    let modules = vec![named("m", Digest::of(&wasm("m")))];
    ApplyRequest { modules, chains: vec![echo_chain("m")], ..ApplyRequest::default() }
}

/// Begins to apply `demo/echo`, and returns once that is being built. The build takes until builds are stopped or
/// `build_time` is changed.
async fn apply_slowly(served: &Served) -> JoinHandle<Result<Changed, ClientError>> {
    let mut client = Client::connect(&served.socket).await.unwrap();
    client.upload(&demo(), wasm("m")).await.unwrap();
    served.node.take_calls();
    *served.node.build_time.lock().unwrap() = Duration::MAX;
    let applying = tokio::spawn(async move { client.apply(echo()).await });
    assert_eq!(served.node.wait_for_calls(2).await, ["check 1", "build 1"]);
    applying
}

fn other_module() -> ApplyRequest {
    let name = NamedUpload { tenant: "other".parse().unwrap(), ..named("m", Digest::of(&wasm("other"))) };
    ApplyRequest { modules: vec![name], ..ApplyRequest::default() }
}

#[tokio::test]
async fn other_changes_do_not_wait_for_a_build_and_are_judged_with_when_it_is_done() {
    let served = Served::start().await;
    let applying = apply_slowly(&served).await;
    let mut other = Client::connect(&served.socket).await.unwrap();
    other.upload(&"other".parse().unwrap(), wasm("other")).await.unwrap();
    assert_eq!(other.apply(other_module()).await.unwrap().version, 1);
    let module = ObjectRef::Module { tenant: "other".parse().unwrap(), name: "m".parse().unwrap() };
    assert_eq!(other.delete(&[module]).await.unwrap().version, 2);
    assert!(!applying.is_finished());
    *served.node.build_time.lock().unwrap() = Duration::ZERO;
    assert_eq!(applying.await.unwrap().unwrap().version, 3);
    assert_eq!(other.status().await.unwrap().desired_version, 3);
    served.stop().await;
}

#[tokio::test]
async fn a_change_of_what_is_being_built_is_made_and_what_was_built_meanwhile_replaces_it() {
    let served = Served::start().await;
    let applying = apply_slowly(&served).await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let mut chain = echo_chain("m");
    chain.cache_min = 3;
    let modules = vec![named("m", Digest::of(&wasm("m")))];
    let sooner = tokio::spawn(async move {
        client.apply(ApplyRequest { modules, chains: vec![chain], ..ApplyRequest::default() }).await
    });
    served.node.wait_for_calls(2).await;
    *served.node.build_time.lock().unwrap() = Duration::ZERO;
    let versions = [applying.await.unwrap().unwrap().version, sooner.await.unwrap().unwrap().version];
    assert!(versions == [1, 2] || versions == [2, 1], "{versions:?}");
    served.stop().await;
}

#[tokio::test]
async fn a_node_that_stops_waits_for_no_build_and_tells_who_waits_for_one() {
    let served = Served::start().await;
    let applying = apply_slowly(&served).await;
    served.stop().await;
    let ClientError::Failed { code, message } = applying.await.unwrap().unwrap_err() else { panic!("not refused") };
    assert_eq!((code, &message[..]), (Code::Unavailable, "the node stops: ask again once it runs"));
}

#[tokio::test]
async fn a_node_whose_chains_take_long_to_come_up_is_told_when_another_change_waits_for_them() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    client.upload(&demo(), wasm("m")).await.unwrap();
    let mut other = Client::connect(&served.socket).await.unwrap();
    other.upload(&"other".parse().unwrap(), wasm("other")).await.unwrap();
    served.node.takes_long.store(true, Ordering::Relaxed);
    served.node.take_calls();
    let first = tokio::spawn(async move { client.apply(echo()).await });
    assert_eq!(served.node.wait_for_calls(4).await, ["check 1", "build 1", "check 1", "follow 1"]);
    assert_eq!(other.apply(other_module()).await.unwrap().version, 2);
    assert_eq!(first.await.unwrap().unwrap().version, 1);
    served.stop().await;
}
