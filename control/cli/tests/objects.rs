//! Tests of what the built `pinion` command does with keys and models, against a control plane with a fake data plane.

use std::fs;
use std::process::Output;

use crate::support::{Served, wasm};
use pinion_control::model::Digest;
use rcgen::{KeyPair, PublicKeyData};
use tokio::process::Command;

const MANIFEST: &str = r#"version = "pinion.v1"
tenant = "demo"

[key.site]
file = "site.key.pem"

[model.cifar]
file = "cifar.onnx"

[[module]]
name = "tls"
path = "tls.wasm"

[[chain]]
name = "web"
stage = [{ module = "tls", keys = ["site"], models = ["cifar"] }]
"#;

async fn pinion(served: &Served, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    command.env("PINION_SOCKET", &served.socket).args(arguments).output().await.unwrap()
}

/// Runs the command, which must succeed, and returns its output.
async fn ok(served: &Served, arguments: &[&str]) -> String {
    let output = pinion(served, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, which must fail for its input, and returns the error.
async fn refused(served: &Served, arguments: &[&str]) -> String {
    let output = pinion(served, arguments).await;
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap().trim_end().to_owned()
}

/// Writes the manifest and the files that it names, and returns its path and the digest of the key's public key.
fn write(served: &Served, manifest: &str) -> (String, Digest) {
    let key = KeyPair::generate().unwrap();
    let folder = served.folder.path();
    for (name, bytes) in [
        ("site.key.pem", key.serialize_pem().into_bytes()),
        ("cifar.onnx", b"onnx".to_vec()),
        ("tls.wasm", wasm("tls")),
        ("demo.toml", manifest.as_bytes().to_vec()),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
    }
    (folder.join("demo.toml").display().to_string(), Digest::of(&key.subject_public_key_info()))
}

#[tokio::test]
async fn keys_and_models_are_applied_listed_described_and_deleted() {
    let served = Served::start().await;
    let (manifest, public_key) = write(&served, MANIFEST);
    let created = "module/tls created\nkey/site created\nmodel/cifar created\nchain/web created\n";
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, created);
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, created.replace("created", "unchanged"));

    let table = ok(&served, &["get", "keys", "-A"]).await;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let public_key = public_key.to_string();
    assert_eq!(rows[0], ["TENANT", "NAME", "ALGORITHM", "PUBLIC", "KEY", "CHAINS"]);
    assert_eq!(rows[1..], [["demo", "site", "ecdsa-p256", &*public_key, "web"]]);
    let json: serde_json::Value =
        serde_json::from_str(&ok(&served, &["get", "key", "-o", "json", "-A"]).await).unwrap();
    let whole = serde_json::json!([
        {"tenant": "demo", "name": "site", "digest": public_key, "algorithm": "ecdsa-p256", "label": null}
    ]);
    assert_eq!(json, whole, "nothing else of it is known to the command");
    let digest = Digest::of(b"onnx").to_string();
    let table = ok(&served, &["get", "models", "cifar", "-A"]).await;
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["demo", "cifar", &*digest, "4B", "web"]);

    let key = ok(&served, &["describe", "key", "site", "--tenant", "demo"]).await;
    assert!(key.contains("Algorithm:   ecdsa-p256\n") && key.ends_with("Chains:      web\n"), "{key}");
    let model = ok(&served, &["describe", "model", "cifar", "--tenant", "demo"]).await;
    assert!(model.contains("Size:    4B\n") && model.ends_with("Chains:  web\n"), "{model}");
    let chain = ok(&served, &["describe", "chain", "web", "--tenant", "demo"]).await;
    assert!(chain.contains("0. tls, config of 0B, keys: site, models: cifar\n"), "{chain}");
    let error = refused(&served, &["get", "keys", "nope", "--tenant", "demo"]).await;
    assert_eq!(error, "error: there is no key \"nope\" of tenant demo");

    let error = refused(&served, &["delete", "key", "site", "--tenant", "demo"]).await;
    assert_eq!(
        error,
        "error: key demo/site is in use by chain demo/web: delete or change that first, or both together"
    );
    assert_eq!(ok(&served, &["delete", "-f", &manifest]).await, created.replace("created", "deleted"));
    assert_eq!(ok(&served, &["get", "keys", "-A"]).await, "");
    served.stop().await;
}

#[tokio::test]
async fn a_pushed_key_and_model_are_named_by_their_digests() {
    let served = Served::start().await;
    let (manifest, public_key) = write(&served, MANIFEST);
    let model = Digest::of(b"onnx");
    let expected = format!("module/tls {}\nkey/site {public_key}\nmodel/cifar {model}\n", Digest::of(&wasm("tls")));
    assert_eq!(ok(&served, &["push", "-f", &manifest]).await, expected);
    let uploads = ok(&served, &["get", "uploads", "-A"]).await;
    assert!(uploads.contains(&public_key.to_string()) && uploads.contains(&model.to_string()), "{uploads}");
    let by_digest = MANIFEST
        .replace("file = \"site.key.pem\"", &format!("digest = \"{public_key}\""))
        .replace("file = \"cifar.onnx\"", &format!("digest = \"{model}\""));
    fs::write(&manifest, by_digest).unwrap();
    fs::remove_file(served.folder.path().join("site.key.pem")).unwrap();
    let created = "module/tls created\nkey/site created\nmodel/cifar created\nchain/web created\n";
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, created);
    assert_eq!(ok(&served, &["get", "uploads", "-A"]).await, "");
    served.stop().await;
}

#[tokio::test]
async fn a_file_that_is_no_key_is_refused_with_its_name_and_nothing_of_its_text() {
    let served = Served::start().await;
    let (manifest, _) = write(&served, MANIFEST);
    let file = served.folder.path().join("site.key.pem");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("PRIVATE KEY", "CERTIFICATE")).unwrap();
    let error = refused(&served, &["apply", "-f", &manifest]).await;
    let expected = format!("error: key demo/site, {}: this is no key that a node takes: ", file.display());
    assert!(error.starts_with(&expected), "{error}");
    let line = text.lines().nth(1).unwrap();
    assert!(!error.contains(line), "{error}");
    assert_eq!(ok(&served, &["get", "keys", "-A"]).await, "");
    served.stop().await;
}

#[tokio::test]
async fn keys_are_checked_without_a_node_as_a_node_does() {
    let served = Served::start().await;
    let (head, _) = MANIFEST.split_once("[model.cifar]").unwrap();
    let (manifest, _) = write(&served, head);
    let check = ["check", &manifest, "--builder", "/bin/true"];
    ok(&served, &check).await;
    let file = served.folder.path().join("site.key.pem");
    fs::write(&file, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").unwrap();
    let error = refused(&served, &check).await;
    let expected = format!("error: key demo/site, {}: it contains no private key", file.display());
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(served.node.take_calls(), ["follow 0"]);
    served.stop().await;
}

#[tokio::test]
async fn errors_in_the_tables_of_keys_and_models_name_their_line() {
    let served = Served::start().await;
    for (from, to, expected) in [
        (
            "file = \"site.key.pem\"\n",
            "",
            ":4: key.site: its bytes are missing: give file, or digest of what was pushed",
        ),
        ("file = \"cifar.onnx\"", "path = \"cifar.onnx\"", "unknown key `path`, expected `file` or `digest`"),
        (
            "keys = [\"site\"]",
            "keys = [\"site\", \"site\"]",
            ":16: chain web: stage 1 is granted site twice (keys): leave",
        ),
        (
            "keys = [\"site\"]",
            "keys = [\"other\"]",
            "chain demo/web: stage 1 names key demo/other, which does not exist",
        ),
        ("site.key.pem", "nope.pem", ":5: file names "),
    ] {
        let (manifest, _) = write(&served, &MANIFEST.replacen(from, to, 1));
        let error = refused(&served, &["apply", "-f", &manifest]).await;
        assert!(error.contains(expected), "{error}");
    }
    served.stop().await;
}
