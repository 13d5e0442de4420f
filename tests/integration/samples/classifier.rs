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
fn a_model_is_loaded_from_its_form_after_a_restart_and_read_again_if_that_is_damaged() {
    let mut node = Node::without_devices();
    node.apply(manifest("default", &folder().join("model/cifar.onnx"), "cache_min = 0").text());
    let forms = node.path("state/forms");
    let only = || -> PathBuf {
        let mut files =
            fs::read_dir(&forms).expect("the node has made it").map(|file| file.expect("it is listed").path());
        let form = files.next().expect("the model's form is there");
        assert!(files.next().is_none(), "there is one model");
        form
    };
    let written = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).expect("it is there");
    let (form, made, bytes) = (only(), written(&only()), fs::read(only()).expect("it is readable"));
    node.stop();
    node.start();
    await_answer(&node);
    assert_eq!((only(), written(&form)), (form.clone(), made), "it was made again");
    node.stop();
    fs::write(&form, &bytes[..bytes.len() / 2]).expect("the state directory is writable");
    node.start();
    await_answer(&node);
    assert_eq!(fs::read(only()).expect("it is readable"), bytes);
    // It goes with the last chain that has it.
    node.cli().run(&["delete", "chain", "classify", "--tenant", "default"]);
    assert!(!form.exists());
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

#[test]
fn a_change_for_which_its_tenant_has_no_memory_leaves_no_model_behind() {
    let node = Node::started(
        "[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n[[tenant]]\nname = \"default\"\nmemory_mib = 1\n",
    );
    let file = node.path("manifest.toml");
    let text = manifest("default", &folder().join("model/cifar.onnx"), "cache_min = 0");
    fs::write(&file, text.text()).expect("the node's folder is writable");
    let output = node.cli().try_apply(&file);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("1024 KiB that the node grants it"), "{said}");
    assert_eq!(fs::read_dir(node.path("state/forms")).expect("the node has made it").count(), 0);
}
