//! Checks, exports and imports of stores that no node has open.

use std::io::Read;
use std::sync::Arc;

use super::quarantine::{Case, damage, tamper};
use super::*;
use crate::model::{Labelled, Model, Object, RevisionFilter};
use crate::store::archive::{ArchiveError, export, import};

/// Makes a store with an object of each kind, and returns what it has.
fn filled(path: &Path) -> DesiredState {
    let store = Store::open(path).unwrap();
    let archive = vec![7; 2048];
    let files = Files { digest: Digest::of(&archive), size_bytes: 2048 };
    store.put_upload(&demo(), &files.digest, &archive, at(1000)).unwrap();
    store.put_upload(&demo(), &Digest::of(b"onnx"), b"onnx", at(1000)).unwrap();
    store.put_key(&demo(), &Digest::of(b"a public key"), "ed25519", b"a sealed key", at(1000)).unwrap();
    let mut change = whole_change("m");
    change.tenants = vec![Tenant { weight: 7, ..Tenant::new(demo()) }];
    change.keys = vec![Key {
        tenant: demo(),
        name: "site".parse().unwrap(),
        digest: Digest::of(b"a public key"),
        algorithm: "ed25519".to_owned(),
    }];
    change.models =
        vec![Model { tenant: demo(), name: "n".parse().unwrap(), digest: Digest::of(b"onnx"), size_bytes: 4 }];
    change.chains[0].stages[0].files = Some(files);
    commit(&store, &super::history::labelled(change, Some("web")));
    commit(&store, &Change { modules: vec![module("other")], ..Change::default() })
}

fn findings(path: &Path) -> Vec<String> {
    check(path).unwrap().findings
}

#[test]
fn a_whole_store_has_no_findings_and_a_check_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let state = filled(&path);
    let bytes = fs::read(&path).unwrap();
    let checked = check(&path).unwrap();
    assert!(checked.findings.is_empty() && checked.quarantined.is_empty(), "{checked:?}");
    assert_eq!((checked.version, checked.objects, checked.uploads, checked.revisions), (2, 7, 4, 2));
    assert_eq!(state.version(), 2);
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_copy_of_a_store_in_use_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    commit(&store, &whole_change("m"));
    let copy = folder.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    assert_eq!(findings(&copy), [""; 0]);
}

#[test]
fn a_check_names_each_kind_of_damage() {
    let folder = tempfile::tempdir().unwrap();
    let rule = ObjectRef::from(&whole_change("m").rules[0]);
    let wasm_digest = module("m").digest;
    let cases: [Case<'_>; 6] = [
        ("rule demo/ping: its content is damaged", &|store| damage(store, &rule, b"")),
        ("of tenant \"demo\": its bytes are damaged", &|store| {
            tamper(store, |write| {
                let mut blobs = write.open_table(BLOBS).unwrap();
                blobs.insert(wasm_digest.as_bytes(), b"other".as_slice()).unwrap();
            });
        }),
        ("of tenant \"demo\": its bytes are missing", &|store| {
            tamper(store, |write| drop(write.open_table(BLOBS).unwrap().remove(wasm_digest.as_bytes()).unwrap()));
        }),
        ("key demo/site: its tenant's upload", &|store| {
            tamper(store, |write| write.open_table(SEALED).unwrap().retain(|_, _| false).unwrap());
        }),
        ("the reference counts of contents: not what follows", &|store| {
            tamper(store, |write| write.open_table(REFERENCES).unwrap().retain(|_, _| false).unwrap());
        }),
        ("revision 1 of tenant \"demo\" cannot be read", &|store| {
            tamper(store, |write| {
                write.open_table(HISTORY).unwrap().insert(("demo", 1), [0xff; 9].as_slice()).unwrap();
            });
        }),
    ];
    for (at_case, (finding, break_it)) in cases.into_iter().enumerate() {
        let path = folder.path().join(format!("store-{at_case}"));
        filled(&path);
        break_it(&Store::open(&path).unwrap());
        let found = findings(&path);
        assert!(found.iter().any(|it| it.contains(finding)), "{finding} in {found:?}");
    }
}

#[test]
fn what_was_set_aside_is_told_and_is_no_finding() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    filled(&path);
    let store = Store::open(&path).unwrap();
    let rule = ObjectRef::from(&whole_change("m").rules[0]);
    damage(&store, &rule, b"");
    store.recover(at(2000)).unwrap();
    drop(store);
    let checked = check(&path).unwrap();
    assert_eq!(checked.quarantined.len(), 1);
    assert!(checked.findings.iter().all(|it| it.contains("an object of a revision")), "{checked:?}");
}

#[test]
fn an_exported_state_is_the_same_when_it_is_imported_with_its_uploads_and_sealed_keys() {
    let folder = tempfile::tempdir().unwrap();
    let [path, file, copy] = ["store", "backup.tar", "copy"].map(|name| folder.path().join(name));
    let state = filled(&path);
    let exported = export(&path, &file).unwrap();
    assert_eq!((exported.objects, exported.uploads, exported.keys), (7, 4, 1));
    assert_eq!(import(&file, &copy).unwrap(), exported);
    assert!(check(&copy).unwrap().findings.is_empty());

    let store = Store::open(&copy).unwrap();
    let imported = store.recover(at(2000)).unwrap();
    assert_eq!(imported.objects().collect::<Vec<_>>(), state.objects().collect::<Vec<_>>());
    assert_eq!(imported.labels(), state.labels());
    assert_eq!(imported.labels().len(), 5, "tenants have none, and another module has none");
    assert_eq!(imported.version(), 1);
    assert_eq!(store.wasm(&module("m")).unwrap(), wasm("m"));
    assert_eq!(store.sealed_key(&demo(), &Digest::of(b"a public key")).unwrap().as_deref(), Some(&b"a sealed key"[..]));
    let filter = RevisionFilter { limit: 9, ..RevisionFilter::default() };
    let revisions = store.revisions(Reader::Operator, &filter).unwrap();
    assert_eq!((revisions.len(), &*revisions[0].author, revisions[0].counts.created), (1, "pinion store import", 7));
    super::history::check_references(&store);
}

#[test]
fn an_empty_state_can_be_exported_and_imported() {
    let folder = tempfile::tempdir().unwrap();
    let [path, file, copy] = ["store", "backup.tar", "copy"].map(|name| folder.path().join(name));
    drop(Store::open(&path).unwrap());
    export(&path, &file).unwrap();
    import(&file, &copy).unwrap();
    assert_eq!(Store::open(&copy).unwrap().load().unwrap(), DesiredState::default());
}

#[test]
fn objects_that_cannot_stand_are_left_out_of_an_export_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let [path, file, copy] = ["store", "backup.tar", "copy"].map(|name| folder.path().join(name));
    filled(&path);
    damage(&Store::open(&path).unwrap(), &ObjectRef::from(&whole_change("m").rules[0]), b"");
    let exported = export(&path, &file).unwrap();
    assert!(exported.left_out[0].starts_with("rule demo/ping: its content is damaged"), "{exported:?}");
    assert_eq!(import(&file, &copy).unwrap().objects, 6);
}

#[test]
fn a_store_in_use_is_neither_checked_nor_exported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let _node = Store::open(&path).unwrap();
    assert!(matches!(check(&path), Err(StoreError::InUse { .. })));
    let file = folder.path().join("backup.tar");
    let refused = export(&path, &file).unwrap_err().to_string();
    assert!(refused.ends_with("is in use by another process: is another piniond running on it?"), "{refused}");
    assert!(!file.exists());
}

#[test]
fn files_that_are_there_are_not_replaced_and_nothing_else_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let [path, file] = ["store", "backup.tar"].map(|name| folder.path().join(name));
    filled(&path);
    export(&path, &file).unwrap();
    assert!(matches!(export(&path, &file), Err(ArchiveError::Exists(_))));
    assert!(matches!(import(&file, &path), Err(ArchiveError::Exists(_))));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn what_is_no_store_is_refused_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    assert!(matches!(check(&path), Err(StoreError::Open { .. })));
    assert!(!path.exists());
    fs::write(&path, b"").unwrap();
    assert!(matches!(check(&path), Err(StoreError::Foreign { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"");
}

/// Replaces the content of an object in an archive, with all digests of it.
fn replace_in_archive(file: &Path, object: &Labelled<Object>, other: &Labelled<Object>) {
    let encoded = |object: &Labelled<Object>| prost::Message::encode_to_vec(&crate::proto::Object::from(object));
    let [old, new] = [object, other].map(|object| Digest::of(&encoded(object)));
    let whole = fs::read(file).unwrap();
    let mut changed = tar::Builder::new(Vec::new());
    for entry in tar::Archive::new(&*whole).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string().replace(&*old.hex(), &new.hex());
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        if name == "manifest.toml" {
            bytes = String::from_utf8(bytes).unwrap().replace(&*old.hex(), &new.hex()).into_bytes();
        } else if name.contains(&*new.hex()) {
            bytes = encoded(other);
        }
        let mut header = entry.header().clone();
        header.set_size(bytes.len() as u64);
        changed.append_data(&mut header, name, &*bytes).unwrap();
    }
    fs::write(file, changed.into_inner().unwrap()).unwrap();
}

#[test]
fn an_object_that_has_another_size_than_its_upload_is_not_imported() {
    let folder = tempfile::tempdir().unwrap();
    let [path, file, copy] = ["store", "backup.tar", "copy"].map(|name| folder.path().join(name));
    filled(&path);
    export(&path, &file).unwrap();
    let of_size = |size_bytes| Labelled {
        object: Object::Module(Arc::new(Module { size_bytes, ..module("m") })),
        label: Some("web".parse().unwrap()),
    };
    let size_bytes = module("m").size_bytes;
    replace_in_archive(&file, &of_size(size_bytes), &of_size(size_bytes));
    import(&file, &copy).unwrap();
    fs::remove_file(&copy).unwrap();
    replace_in_archive(&file, &of_size(size_bytes), &of_size(size_bytes + 1));
    let refused = import(&file, &copy).unwrap_err().to_string();
    assert!(refused.contains("module demo/m needs ") && refused.ends_with("or is another one"), "{refused}");
    assert!(!copy.exists());
}

#[test]
fn an_archive_that_was_changed_anywhere_makes_no_store_or_the_same_one() {
    let folder = tempfile::tempdir().unwrap();
    let [path, file, copy] = ["store", "backup.tar", "copy"].map(|name| folder.path().join(name));
    let state = filled(&path);
    export(&path, &file).unwrap();
    let whole = fs::read(&file).unwrap();
    let mut refused = 0;
    for at_byte in (0..whole.len()).step_by(97) {
        let mut changed = whole.clone();
        changed[at_byte] ^= 0x20;
        fs::write(&file, &changed).unwrap();
        match import(&file, &copy) {
            Ok(_) => {
                let imported = Store::open(&copy).unwrap().load().unwrap();
                assert_eq!(imported.objects().collect::<Vec<_>>(), state.objects().collect::<Vec<_>>(), "{at_byte}");
                fs::remove_file(&copy).unwrap();
            }
            Err(ArchiveError::Wrong { .. }) => refused += 1,
            Err(other) => panic!("{at_byte}: {other}"),
        }
        assert!(!copy.exists());
    }
    assert!(refused > 0);
    for length in (0..whole.len()).step_by(whole.len() / 40) {
        fs::write(&file, &whole[..length]).unwrap();
        assert!(
            matches!(import(&file, &copy), Err(ArchiveError::Wrong { .. })) || length + 1024 >= whole.len(),
            "{length}"
        );
        let _ = fs::remove_file(&copy);
    }
}
