//! A node whose store has a damaged object: it starts without the object, says so, and takes the object again.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::support::{TestNode, demo, echo_chain, named, rule_to_echo, wasm};
use pinion_control::control::{ApplyRequest, UploadKind};
use pinion_control::model::Digest;
use pinion_control::store::UPLOAD_LIFETIME;
use pinion_control::{Control, Store};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

const OBJECTS: TableDefinition<(u8, &str, &str), &[u8; 32]> = TableDefinition::new("objects");
const CONTENTS: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("contents");
const NEEDS: TableDefinition<(&str, &[u8; 32]), u64> = TableDefinition::new("needs");

/// Damages the contents of all objects of this name.
fn damage(store: &Path, name: &str) {
    let database = Database::open(store).unwrap();
    let objects = database.begin_read().unwrap().open_table(OBJECTS).unwrap();
    let entries = objects.iter().unwrap().map(Result::unwrap);
    let digests: Vec<[u8; 32]> = entries.filter(|(key, _)| key.value().2 == name).map(|(_, it)| *it.value()).collect();
    assert!(!digests.is_empty());
    let write = database.begin_write().unwrap();
    for digest in digests {
        write.open_table(CONTENTS).unwrap().insert(&digest, b"damaged".as_slice()).unwrap();
    }
    write.commit().unwrap();
}

fn request() -> ApplyRequest {
    ApplyRequest {
        modules: vec![named("m", Digest::of(&wasm("m"))), named("n", Digest::of(&wasm("n")))],
        chains: vec![echo_chain("m")],
        rules: vec![rule_to_echo("ping", "10.77.0.2")],
        ..ApplyRequest::default()
    }
}

fn started(store: &Path) -> Control {
    Control::open(Arc::new(Store::open(store).unwrap()), Arc::new(TestNode::default())).unwrap()
}

#[test]
fn a_node_starts_without_a_damaged_module_and_what_depends_on_it_warns_and_takes_them_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let control = started(&path);
    for name in ["m", "n"] {
        control.upload(UploadKind::Module, &demo(), &Digest::of(&wasm(name)), &wasm(name)).unwrap();
    }
    control.apply(request()).unwrap();
    let before = control.desired();
    drop(control);
    damage(&path, "m");

    let control = started(&path);
    let names: Vec<String> = control.desired().objects_of(&demo()).iter().map(|it| it.name().to_string()).collect();
    assert_eq!(names, ["module demo/n"]);
    let warnings = control.status().warnings;
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for (object, warning) in ["module demo/m", "chain demo/echo", "rule demo/ping"].into_iter().zip(&warnings) {
        assert!(warning.starts_with(object) && warning.contains("apply it again (pinion apply)"), "{warning}");
    }
    control.apply(request()).unwrap();
    assert!(control.status().warnings.is_empty());
    drop(control);
    let control = started(&path);
    assert!(control.status().warnings.is_empty());
    assert_eq!(control.desired().objects_of(&demo()), before.objects_of(&demo()));
}

#[test]
fn uploads_are_not_removed_before_what_needs_them_is_counted_anew() {
    let folder = tempfile::tempdir().unwrap();
    let [path, away] = ["store", "away"].map(|name| folder.path().join(name));
    let control = started(&path);
    let (bytes, digest) = (wasm("m"), Digest::of(&wasm("m")));
    control.upload(UploadKind::Module, &demo(), &digest, &bytes).unwrap();
    let modules = vec![named("m", digest)];
    control.apply(ApplyRequest { modules, ..ApplyRequest::default() }).unwrap();
    drop(control);
    let store = Store::open(&path).unwrap();
    store.put_upload(&demo(), &digest, &bytes, SystemTime::now() - 2 * UPLOAD_LIFETIME).unwrap();
    drop(store);
    let database = Database::open(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(NEEDS).unwrap().retain(|_, _| false).unwrap();
    write.commit().unwrap();
    drop(database);

    // Nothing can be written while the file is away.
    let store = Arc::new(Store::open(&path).unwrap());
    fs::rename(&path, &away).unwrap();
    let control = Control::open(Arc::clone(&store), Arc::new(TestNode::default())).unwrap();
    control.collect_garbage().unwrap_err();
    fs::rename(&away, &path).unwrap();
    control.collect_garbage().unwrap();
    assert_eq!(store.upload_size_bytes(&demo(), &digest).unwrap(), Some(bytes.len() as u64));
}
