//! `classifier` on a node: images by HTTP from a kernel's client, and by calls.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build::{sample, workspace};
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::web::curl;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

fn folder() -> PathBuf {
    workspace().join("samples/classifier")
}

fn image(name: &str) -> String {
    folder().join("tests/images").join(name).display().to_string()
}

/// A manifest with the sample, its model, and a chain that is granted it. `more` are further keys of the chain.
fn manifest(tenant: &str, model: &Path, more: &str) -> Manifest {
    Manifest::of(tenant).module("classifier", &sample("classifier")).with(format_args!(
        "[model.cifar]\nfile = {model:?}\n\n\
         [[chain]]\nname = \"classify\"\nstage = [{{ module = \"classifier\", models = [\"cifar\"] }}]\n{more}\n"
    ))
}

#[track_caller]
fn label(answer: &str) -> String {
    let answer: Value = serde_json::from_str(answer).expect("the answer is JSON");
    answer["label"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn images_are_classified_over_http_each_client_by_an_instance_of_its_own() {
    let bed = Bed::new(Device::Tap);
    let rule = format!(
        "[[rule]]\nname = \"classify\"\npolicy = \"per-client\"\nchain = \"classify\"\n\
         match = {{ destination = \"{NODE}\", protocol = \"tcp\" }}"
    );
    bed.node.apply(manifest(TENANT, &folder().join("model/cifar.onnx"), &rule).text());
    let url = format!("http://{NODE}/classify");
    for client in &bed.clients[..2] {
        for (file, expected) in
            [("ring.png", "ring"), ("checkerboard.jpg", "checkerboard"), ("triangle.jpg", "triangle")]
        {
            let answer = curl(client, &["--data-binary", &format!("@{}", image(file)), &url]);
            assert_eq!(label(&answer), expected, "{answer}");
        }
        let status = curl(client, &["--data", "garbage", "--output", "/dev/null", "--write-out", "%{http_code}", &url]);
        assert_eq!(status, "415");
    }
    assert_eq!(bed.node.cli().serving_fwps().len(), 2, "each client has an instance");
}

#[test]
fn an_image_in_a_message_is_classified() {
    let node = Node::without_devices();
    node.apply(manifest("default", &folder().join("model/cifar.onnx"), "cache_min = 0").text());
    let answer = node.cli().run(&["invoke", "classify", "--file", &image("checkerboard.jpg")]);
    assert_eq!(label(&answer), "checkerboard");
}

#[test]
fn a_file_that_is_no_model_is_refused_with_a_sentence() {
    let node = Node::without_devices();
    let (model, file) = (node.path("no-model.onnx"), node.path("manifest.toml"));
    fs::write(&model, "no model").expect("the node's folder is writable");
    fs::write(&file, manifest("default", &model, "cache_min = 0").text()).expect("the node's folder is writable");
    let output = node.cli().try_apply(&file);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("it is not a model in ONNX"), "{said}");
}

/// Waits until the chain classifies an image in a message.
fn await_answer(node: &Node) {
    until("chain with its model", SOON, || {
        let words = ["invoke", "classify", "--file", &image("checkerboard.jpg")];
        node.cli().output(&words).status.success().then_some(())
    });
}

#[test]
fn runs_and_memory_of_models_are_in_their_tenants_account() {
    let node = Node::without_devices();
    node.apply(manifest("default", &folder().join("model/cifar.onnx"), "cache_min = 0").text());
    let with_model = node.cli().resource("default", "memory_kib")["used"].as_u64().expect("it is a number");
    await_answer(&node);
    let tenant = &node.cli().status()["tenants"][0];
    let runs = &tenant["meter"]["inferences"];
    assert!(runs["done"].as_u64() >= Some(1) && runs["spent_us"].as_u64() > Some(0), "{tenant}");
    assert!(tenant["meter"]["cpu_us"].as_u64() >= runs["spent_us"].as_u64(), "{tenant}");
    assert_eq!(node.cli().resource("default", "inferences")["used"], 0);
    assert!(node.cli().run(&["status"]).contains("inference"));
    // Its weights take more than half of what the file has.
    assert!(with_model > 65, "{with_model} KiB");
}
