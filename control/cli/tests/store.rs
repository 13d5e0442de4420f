//! Tests of the built `pinion store` commands, with stores that a control plane with a fake data plane has written.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Served, demo, echo_chain, named, rule_to_echo, wasm};
use pinion_control::Client;
use pinion_control::control::ApplyRequest;
use pinion_control::model::Digest;

fn pinion(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pinion")).arg("store").args(arguments).output().unwrap()
}

/// Runs the command, which must end with this status, and returns its output and errors.
fn ends(status: i32, arguments: &[&Path]) -> String {
    let output = pinion(arguments);
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    text
}

/// Starts a control plane in this folder, and applies a module, a chain and a rule.
async fn applied() -> Served {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    client.upload(&demo(), wasm("m")).await.unwrap();
    let request = ApplyRequest {
        modules: vec![named("m", Digest::of(&wasm("m")))],
        chains: vec![echo_chain("m")],
        rules: vec![rule_to_echo("ping", "10.77.0.2")],
        ..ApplyRequest::default()
    };
    client.apply(request).await.unwrap();
    served
}

#[tokio::test]
async fn a_store_is_checked_exported_and_imported_and_the_copy_serves_the_same() {
    let folder = applied().await.stop().await;
    let [store, file, copy] = ["store", "backup.tar", "copy"].map(|name| folder.path().join(name));
    let checked = ends(0, &["check".as_ref(), &store]);
    assert_eq!(checked, "the store is whole: version 1, 3 objects, 1 uploads, 1 revisions\n");
    let exported = ends(0, &["export".as_ref(), &store, &file]);
    assert_eq!(exported, format!("3 objects, 1 uploads and 0 sealed keys exported to {}\n", file.display()));
    ends(0, &["import".as_ref(), &file, &copy]);
    ends(0, &["check".as_ref(), &copy]);

    fs::rename(&copy, &store).unwrap();
    let served = Served::start_in(folder).await;
    let objects = Client::connect(&served.socket).await.unwrap().objects_at(&demo(), None).await.unwrap();
    let names: Vec<String> = objects.iter().map(|object| object.name().to_string()).collect();
    assert_eq!(names, ["module demo/m", "chain demo/echo", "rule demo/ping"]);
    served.stop().await;
}

#[tokio::test]
async fn the_store_of_a_node_that_runs_is_refused() {
    let served = applied().await;
    let [store, file] = ["store", "backup.tar"].map(|name| served.folder.path().join(name));
    for arguments in [&["check".as_ref(), store.as_path()][..], &["export".as_ref(), &store, &file]] {
        let error = ends(1, arguments);
        assert!(error.contains("is in use by another process: is another piniond running on it?"), "{error}");
    }
    assert!(!file.exists());
    served.stop().await;
}

#[tokio::test]
async fn findings_files_of_others_and_files_that_are_there_have_status_2() {
    let folder = applied().await.stop().await;
    let [store, other, file] = ["store", "other", "backup.tar"].map(|name| folder.path().join(name));
    fs::write(&other, "no database\n".repeat(10_000)).unwrap();
    assert!(ends(2, &["check".as_ref(), &other]).contains("is not a store of Pinion's"));
    assert!(
        ends(2, &["import".as_ref(), &other, &folder.path().join("new")])
            .contains("this is no archive of pinion store export")
    );
    assert!(ends(2, &["import".as_ref(), &other, &store]).contains("exists, and is not replaced"));
    ends(1, &["check".as_ref(), &folder.path().join("none")]);
    let mut bytes = fs::read(&store).unwrap();
    let wasm = wasm("m");
    let at = bytes.windows(wasm.len()).rposition(|window| window == wasm).unwrap();
    bytes[at + 1] ^= 1;
    fs::write(&store, bytes).unwrap();
    ends(2, &["check".as_ref(), &store]);
    ends(2, &["export".as_ref(), &store, &file]);
    assert!(!file.exists());
}
