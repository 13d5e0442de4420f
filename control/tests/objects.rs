//! Keys and models over a real Unix socket, with a fake data plane.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use crate::support::{Served, TestNode, demo, echo_chain, named, wasm};
use pinion_control::client::{ClientError, Filter};
use pinion_control::control::{ApplyRequest, BuildTime, ChangeOptions, NamedUpload, Settings, UploadedKey};
use pinion_control::model::{Author, Chain, Digest, KeyName, ModelName, ObjectRef, TenantName};
use pinion_control::pem::Pem;
use pinion_control::{Client, Control, Store, proto};
use rcgen::{KeyPair, PublicKeyData};
use tonic::Code;

const SECRET: &str = "keys.secret";

fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (Code, String) {
    match result.unwrap_err() {
        ClientError::Refused { code, message } => (code, message),
        other => panic!("not a refusal: {other:?}"),
    }
}

fn new_key() -> (KeyPair, Pem) {
    let key = KeyPair::generate().unwrap();
    let pem = Pem::new(key.serialize_pem().into_bytes());
    (key, pem)
}

fn named_key(name: &str, digest: Digest) -> NamedUpload<KeyName> {
    NamedUpload { tenant: demo(), name: name.parse().unwrap(), digest }
}

fn named_model(name: &str, digest: Digest) -> NamedUpload<ModelName> {
    NamedUpload { tenant: demo(), name: name.parse().unwrap(), digest }
}

/// Returns a chain `demo/echo` whose stage is granted the key `site` and the model `cifar`.
fn granted_chain() -> Chain {
    let mut chain = echo_chain("m");
    chain.stages[0].keys = vec!["site".parse().unwrap()];
    chain.stages[0].models = vec!["cifar".parse().unwrap()];
    chain
}

/// Uploads a module, this key and a model, and applies the chain that is granted both.
async fn apply_granted(client: &mut Client, pem: Pem) -> UploadedKey {
    let module = client.upload(&demo(), wasm("m")).await.unwrap();
    let key = client.upload_key(&demo(), pem).await.unwrap();
    let model = client.upload_model(&demo(), b"onnx".to_vec()).await.unwrap();
    let request = ApplyRequest {
        modules: vec![named("m", module)],
        keys: vec![named_key("site", key.digest)],
        models: vec![named_model("cifar", model)],
        chains: vec![granted_chain()],
        ..ApplyRequest::default()
    };
    let outcomes = client.apply(request).await.unwrap().outcomes;
    let outcomes: Vec<String> = outcomes.iter().map(|it| format!("{} {}", it.object, it.effect)).collect();
    let created =
        ["module demo/m created", "key demo/site created", "model demo/cifar created", "chain demo/echo created"];
    assert_eq!(outcomes, created);
    key
}

/// Opens the control plane of a folder, and builds what is missing, as a node does when it starts.
fn started(folder: &Path) -> Control {
    let store = Arc::new(Store::open(&folder.join("store")).unwrap());
    let control = Control::open(store, Arc::new(TestNode::default())).unwrap();
    control.build_missing(BuildTime::Start);
    control
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn a_key_is_known_by_its_public_key_and_is_in_no_file_in_the_clear_and_there_after_a_restart() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let (key, pem) = new_key();
    let uploaded = apply_granted(&mut client, pem).await;
    assert_eq!(uploaded.digest, Digest::of(&key.subject_public_key_info()));
    assert_eq!(uploaded.algorithm, "ecdsa-p256");
    let [listed] = &client.keys(Filter::default()).await.unwrap()[..] else { panic!("there is one key") };
    assert_eq!((listed.digest, &*listed.algorithm), (uploaded.digest, "ecdsa-p256"));
    let [model] = &client.models(Filter::default()).await.unwrap()[..] else { panic!("there is one model") };
    assert_eq!((model.digest, model.size_bytes), (Digest::of(b"onnx"), 4));
    assert!(client.uploads(None).await.unwrap().is_empty(), "all is named");

    let folder = served.stop().await;
    // In PKCS#8 of P-256 (RFC 5915, RFC 5208) the secret number is the 32 bytes from here on.
    let der = key.serialized_der();
    let secret = &der[36..68];
    assert!(contains(der, secret) && !contains(&key.subject_public_key_info(), secret));
    let text = key.serialize_pem();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('-')).collect();
    let mut files = 0;
    for entry in folder.path().read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = fs::read(&path).unwrap();
            assert!(!contains(&bytes, secret), "{}", path.display());
            assert!(lines.iter().all(|line| !contains(&bytes, line.as_bytes())), "{}", path.display());
            files += 1;
        }
    }
    assert!(files >= 2, "the store and the secret");
    assert_eq!(fs::metadata(folder.path().join(SECRET)).unwrap().permissions().mode() & 0o777, 0o600);
    // The test node checks that it is given the key of this digest.
    assert_eq!(started(folder.path()).status().warnings, [""; 0]);
}

#[tokio::test]
async fn a_key_or_a_model_that_another_tenant_uploaded_can_not_be_named() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let other: TenantName = "other".parse().unwrap();
    let key = client.upload_key(&other, new_key().1).await.unwrap().digest;
    let model = client.upload_model(&other, b"onnx".to_vec()).await.unwrap();
    let keys = ApplyRequest { keys: vec![named_key("site", key)], ..ApplyRequest::default() };
    let (code, message) = refused(client.apply(keys).await);
    assert_eq!(code, Code::FailedPrecondition);
    assert_eq!(
        message,
        format!("key demo/site: its tenant has uploaded nothing with the digest {key}: upload it first")
    );
    let models = ApplyRequest { models: vec![named_model("cifar", model)], ..ApplyRequest::default() };
    let (code, message) = refused(client.apply(models).await);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.starts_with("model demo/cifar: its tenant has uploaded nothing"), "{message}");

    // Nor is the name of another tenant's key or model enough.
    let of_other = |name: &str| (other.clone(), name.to_owned());
    let ((tenant, site), (_, cifar)) = (of_other("site"), of_other("cifar"));
    let request = ApplyRequest {
        keys: vec![NamedUpload { tenant: tenant.clone(), name: site.parse().unwrap(), digest: key }],
        models: vec![NamedUpload { tenant, name: cifar.parse().unwrap(), digest: model }],
        ..ApplyRequest::default()
    };
    client.apply(request).await.unwrap();
    let module = client.upload(&demo(), wasm("m")).await.unwrap();
    let granted =
        ApplyRequest { modules: vec![named("m", module)], chains: vec![granted_chain()], ..ApplyRequest::default() };
    let (code, message) = refused(client.apply(granted).await);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.starts_with("chain demo/echo: stage 1 names key demo/site, which does not exist"), "{message}");
    served.stop().await;
}

#[tokio::test]
async fn a_key_and_a_model_in_use_are_not_deleted_and_after_their_chain_a_revision_keeps_the_model_only() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let uploaded = apply_granted(&mut client, new_key().1).await;
    let key = ObjectRef::Key { tenant: demo(), name: "site".parse().unwrap() };
    let model = ObjectRef::Model { tenant: demo(), name: "cifar".parse().unwrap() };
    for object in [&key, &model] {
        let (code, message) = refused(client.delete(std::slice::from_ref(object)).await);
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.starts_with(&format!("{object} is in use by chain demo/echo: ")), "{message}");
    }
    client.delete(&[key, model, ObjectRef::from(&granted_chain())]).await.unwrap();
    assert!(client.keys(Filter::default()).await.unwrap().is_empty());
    let unnamed: Vec<Digest> = client.uploads(None).await.unwrap().iter().map(|upload| upload.digest).collect();
    assert_eq!(unnamed, [uploaded.digest], "the key is there for its hour");
    let undone = client.roll_back(&demo(), None, ChangeOptions::default()).await.unwrap();
    assert_eq!(undone.outcomes.len(), 3);
    assert_eq!(client.keys(Filter::default()).await.unwrap()[0].digest, uploaded.digest);
    served.stop().await;
}

#[tokio::test]
async fn chains_whose_keys_cannot_be_opened_are_out_of_force_with_the_reason_until_the_key_is_uploaded_again() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let (key, pem) = new_key();
    apply_granted(&mut client, pem).await;
    let folder = served.stop().await;
    let secret = folder.path().join(SECRET);
    let good = fs::read(&secret).unwrap();

    fs::remove_file(&secret).unwrap();
    let warning = |control: &Control| {
        let [warning] = &control.status().warnings[..] else { panic!("{:?}", control.status().warnings) };
        let expected = "not built when the node started: chain demo/echo: key demo/site: ";
        warning.strip_prefix(expected).unwrap_or_else(|| panic!("{warning}")).to_owned()
    };
    let lost = warning(&started(folder.path()));
    assert!(lost.starts_with("the node's secret ") && lost.contains(" is not there: bring it back"), "{lost}");
    assert!(!secret.exists(), "a secret is made for a key that is uploaded, and never to open one");

    fs::write(&secret, [7; 32]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let control = started(folder.path());
    let other = warning(&control);
    assert!(
        other.contains("it was changed, or sealed under another name or by another node: upload the key"),
        "{other}"
    );
    // Other objects can be changed, and the same key can be uploaded again.
    let bytes = wasm("n");
    let kind = pinion_control::control::UploadKind::Module;
    control.upload(kind, &demo(), &Digest::of(&bytes), &bytes).unwrap();
    let modules = vec![named("n", Digest::of(&bytes))];
    control.apply(ApplyRequest { modules, ..ApplyRequest::default() }).unwrap();
    let again = control.upload_key(&demo(), &Pem::new(key.serialize_pem().into_bytes())).unwrap();
    let keys = vec![named_key("site", again.digest)];
    control.apply(ApplyRequest { keys, ..ApplyRequest::default() }).unwrap();
    assert_eq!(control.status().warnings, [""; 0]);
    drop(control);
    assert_eq!(started(folder.path()).status().warnings, [""; 0]);

    fs::write(&secret, good).unwrap();
    assert!(
        warning(&started(folder.path())).contains("cannot be opened with"),
        "the former secret opens the former key"
    );
}

#[test]
fn the_node_makes_no_secret_that_the_operator_has_named() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("credentials").join("keys");
    let open = || {
        let store = Arc::new(Store::open(&folder.path().join("store")).unwrap());
        let settings = Settings { secret: Some(secret.clone()), ..Settings::default() };
        Control::open_with(store, Arc::new(TestNode::default()), settings).unwrap()
    };
    let refused = open().upload_key(&demo(), &new_key().1).unwrap_err().to_string();
    assert!(refused.contains("credentials/keys is not there"), "{refused}");
    fs::create_dir(secret.parent().unwrap()).unwrap();
    fs::write(&secret, [7; 32]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o400)).unwrap();
    open().upload_key(&demo(), &new_key().1).unwrap();
    assert!(!folder.path().join(SECRET).exists());
}

#[tokio::test]
async fn what_is_no_key_is_refused_without_a_word_of_it() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let (key, _) = new_key();
    let text = key.serialize_pem();
    let broken = text.replacen("MIG", "MIH", 1);
    let twice = format!("{text}{text}");
    for (pem, problem) in [
        ("no key at all".to_owned(), ""),
        (broken, ""),
        (twice, "it contains several private keys: keep one"),
        (key.public_key_pem(), "it contains no private key"),
    ] {
        let lines: Vec<String> = pem.lines().map(ToOwned::to_owned).collect();
        let (code, message) = refused(client.upload_key(&demo(), Pem::new(pem.into_bytes())).await);
        assert_eq!(code, Code::InvalidArgument);
        assert!(message.starts_with(&format!("this is no key that a node takes: {problem}")), "{message}");
        assert!(lines.iter().all(|line| line.starts_with('-') || !message.contains(line)), "{message}");
    }
    assert!(client.uploads(None).await.unwrap().is_empty());
    assert_eq!(served.node.take_calls(), ["follow 0"]);
    let too_long = [text.into_bytes(), vec![b'\n'; 67 << 10]].concat();
    let (code, _) = refused(client.upload_key(&demo(), Pem::new(too_long)).await);
    assert_eq!(code, Code::ResourceExhausted);
    served.stop().await;
}

#[tokio::test]
async fn a_model_that_the_node_refuses_or_that_is_too_large_is_not_kept() {
    use proto::upload_request::{Header, Part};
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let (code, message) = refused(client.upload_model(&demo(), b"GGUF".to_vec()).await);
    assert_eq!((code, &*message), (Code::InvalidArgument, "this is no model"));
    assert_eq!(served.node.take_calls(), ["follow 0", "admit model"]);

    let uri = format!("unix://{}", served.socket.display());
    let channel = tonic::transport::Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let mut raw = proto::control_client::ControlClient::new(channel);
    let size_bytes = (64 << 20) + 1;
    let header = Header { tenant: "demo".into(), digest: Digest::of(b"").to_string(), size_bytes, keep_history: false };
    let messages = [proto::UploadRequest { part: Some(Part::Header(header)) }];
    let status = raw.upload_model(tokio_stream::iter(messages)).await.unwrap_err();
    assert_eq!(status.message(), "the model has 67108865 bytes: at most 67108864 are allowed");
    assert!(client.uploads(None).await.unwrap().is_empty());
    drop(raw);
    served.stop().await;
}

#[test]
fn an_undo_that_needs_a_private_key_which_no_object_names_any_more_is_refused_until_it_is_uploaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&folder.path().join("store")).unwrap());
    let control = Control::open(Arc::clone(&store), Arc::new(TestNode::default())).unwrap();
    let pem = new_key().0.serialize_pem();
    let pem = || Pem::new(pem.clone().into_bytes());
    let UploadedKey { digest, algorithm } = control.upload_key(&demo(), &pem()).unwrap();
    control.apply(ApplyRequest { keys: vec![named_key("site", digest)], ..ApplyRequest::default() }).unwrap();
    // As if it had been uploaded long ago.
    let sealed = store.sealed_key(&demo(), &digest).unwrap().unwrap();
    store.put_key(&demo(), &digest, &algorithm, &sealed, UNIX_EPOCH).unwrap();
    control.delete(vec![ObjectRef::Key { tenant: demo(), name: "site".parse().unwrap() }]).unwrap();
    control.collect_garbage().unwrap();
    assert_eq!(store.sealed_key(&demo(), &digest).unwrap(), None);
    let undo = || control.roll_back(&Author::operator("uid 0"), &demo(), None, ChangeOptions::default());
    let refused = undo().unwrap_err().to_string();
    assert_eq!(
        refused,
        format!("key demo/site: its tenant has uploaded nothing with the digest {digest}: upload it first")
    );
    control.upload_key(&demo(), &pem()).unwrap();
    undo().unwrap();
    assert_eq!(control.desired().keys().len(), 1);
}

#[tokio::test]
async fn another_key_of_the_same_name_is_another_version_of_the_chains_that_use_it() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_granted(&mut client, new_key().1).await;
    served.node.take_calls();
    let digest = client.upload_key(&demo(), new_key().1).await.unwrap().digest;
    let keys = vec![named_key("site", digest)];
    assert_eq!(client.apply(ApplyRequest { keys, ..ApplyRequest::default() }).await.unwrap().version, 2);
    assert_eq!(served.node.take_calls(), ["check 2", "build 2", "check 2", "follow 2"]);
    served.stop().await;
}
