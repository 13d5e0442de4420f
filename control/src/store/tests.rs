use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use redb::Database;
use rustix::io::Errno;

use super::faults::Faults;
use super::*;
use crate::model::{Author, Chain, Change, Class, Key, Match, Policy, Rule, Stage, Tenant, Upload};

mod archive;
mod crashes;
mod history;
mod history_limits;
mod quarantine;
mod room;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn demo() -> TenantName {
    "demo".parse().unwrap()
}

fn wasm(name: &str) -> Vec<u8> {
    format!("\0asm {name} {}", "x".repeat(9000)).into_bytes()
}

fn module(name: &str) -> Module {
    let wasm = wasm(name);
    Module { tenant: demo(), name: name.parse().unwrap(), digest: Digest::of(&wasm), size_bytes: wasm.len() as u64 }
}

fn whole_change(name: &str) -> Change {
    let stage = Stage::new(name.parse().unwrap(), vec![0, 159, 146, 150]);
    let mut chain = Chain::new(demo(), "echo".parse().unwrap(), vec![stage]);
    chain.egress = Some("lan".parse().unwrap());
    let rule = Rule {
        tenant: demo(),
        name: "ping".parse().unwrap(),
        priority: 100,
        matcher: Match { destination: Some("10.77.0.2".parse().unwrap()), ..Match::default() },
        policy: Policy::PerClient,
        chain: chain.name.clone(),
    };
    Change { modules: vec![module(name)], chains: vec![chain], rules: vec![rule], ..Change::default() }
}

/// Commits the change on top of the stored state, with its modules uploaded at second 1000.
fn commit(store: &Store, change: &Change) -> DesiredState {
    for module in &change.modules {
        store.put_upload(&module.tenant, &module.digest, &wasm(module.name.as_str()), at(1000)).unwrap();
    }
    let applied = store.load().unwrap().apply(change).unwrap();
    store.commit(&applied, &signature()).unwrap();
    applied.state
}

/// Forgets all revisions of demo.
fn forget_all(store: &Store) {
    let forgotten = store.opened.write(0, |write| {
        let mut contents = Contents::open(store, write)?;
        let mut history = History::open(store, write)?;
        history.forget_all(&mut contents, "demo")
    });
    forgotten.map_err(|not_written| not_written.error).unwrap();
}

/// Of alice, an admin of demo, at second 1000.
fn signature() -> Signature {
    Signature { author: Author { name: "alice".to_owned(), tenant: Some(demo()) }, time: at(1000) }
}

#[test]
fn committed_changes_are_there_when_the_store_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    assert_eq!(store.load().unwrap(), DesiredState::default());
    let state = commit(&store, &whole_change("m"));
    drop(store);

    let store = Store::open(&path).unwrap();
    assert_eq!(store.load().unwrap(), state);
    assert_eq!(store.wasm(&module("m")).unwrap(), wasm("m"));
    assert_eq!(store.upload_size_bytes(&demo(), &module("m").digest).unwrap(), Some(wasm("m").len() as u64));

    let delete = Change { delete: vec![ObjectRef::from(&whole_change("m").rules[0])], ..Change::default() };
    let state = commit(&store, &delete);
    drop(store);
    assert_eq!(Store::open(&path).unwrap().load().unwrap(), state);
    assert_eq!((state.version(), state.rules().len()), (2, 0));
}

#[test]
fn tenants_are_there_when_the_store_is_opened_again_until_they_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    let tenant = Tenant {
        weight: 7,
        class_max: Class::Latency,
        memory_mib: Some(64),
        ports: ["lan".parse().unwrap(), "wan".parse().unwrap()].into(),
        addresses: ["10.77.0.0/16".parse().unwrap()].into(),
        ..Tenant::new(demo())
    };
    let mut change = whole_change("m");
    change.rules[0].matcher.port = Some("lan".parse().unwrap());
    change.tenants.push(tenant.clone());
    let state = commit(&store, &change);
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.load().unwrap(), state);
    assert_eq!(state.tenant(&demo()).unwrap().as_ref(), &tenant);

    let Change { modules, chains, rules, .. } = change;
    let mut delete = vec![ObjectRef::from(&tenant), ObjectRef::from(&modules[0])];
    delete.extend([ObjectRef::from(&chains[0]), ObjectRef::from(&rules[0])]);
    commit(&store, &Change { delete, ..Change::default() });
    drop(store);
    assert!(Store::open(&path).unwrap().load().unwrap().tenants().is_empty());
}

#[test]
fn a_file_copied_while_in_use_opens_like_after_a_power_cut() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let state = commit(&store, &whole_change("m"));
    let copy = folder.path().join("copy");
    fs::copy(store.path(), &copy).unwrap();
    assert_eq!(Store::open(&copy).unwrap().load().unwrap(), state);
}

#[test]
fn only_the_owner_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    assert_eq!(fs::metadata(store.path()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_store_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let _store = Store::open(&path).unwrap();
    let message = Store::open(&path).unwrap_err().to_string();
    assert!(message.ends_with("is in use by another process: is another piniond running on it?"), "{message}");
}

#[test]
fn an_upload_belongs_to_the_tenant_that_made_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    store.put_upload(&demo(), &module("m").digest, &wasm("m"), at(1000)).unwrap();
    assert_eq!(store.upload_size_bytes(&"other".parse().unwrap(), &module("m").digest).unwrap(), None);
}

#[test]
fn garbage_is_every_upload_that_no_module_names_and_that_is_old_enough() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    commit(&store, &whole_change("m"));
    store.put_upload(&demo(), &module("unused").digest, &wasm("unused"), at(1000)).unwrap();
    store.put_upload(&demo(), &module("fresh").digest, &wasm("fresh"), at(4000)).unwrap();
    store.put_upload(&"other".parse().unwrap(), &module("m").digest, &wasm("m"), at(1000)).unwrap();

    assert!(!store.has_garbage(at(4599)).unwrap());
    assert_eq!(store.collect_garbage(at(4599)).unwrap(), []);
    assert!(store.has_garbage(at(4600)).unwrap());
    assert_eq!(store.collect_garbage(at(4600)).unwrap(), [module("unused").digest]);
    assert!(!store.has_garbage(at(4600)).unwrap());
    assert_eq!(store.upload_size_bytes(&demo(), &module("unused").digest).unwrap(), None);
    assert!(store.upload_size_bytes(&demo(), &module("fresh").digest).unwrap().is_some());
    assert_eq!(store.upload_size_bytes(&"other".parse().unwrap(), &module("m").digest).unwrap(), None);
    assert_eq!(store.wasm(&module("m")).unwrap(), wasm("m"));
    assert_eq!(store.collect_garbage(at(9000)).unwrap(), [module("fresh").digest]);
}

#[test]
fn uploads_are_listed_until_a_module_names_them_or_their_hour_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    commit(&store, &whole_change("m"));
    store.put_upload(&demo(), &module("m").digest, &wasm("m"), at(1000)).unwrap();
    store.put_upload(&demo(), &module("next").digest, &wasm("next"), at(1000)).unwrap();
    let (digest, size_bytes) = (module("next").digest, wasm("next").len() as u64);
    let listed = |now| store.unnamed_uploads(at(now)).unwrap();
    assert_eq!(listed(4599), [Upload { tenant: demo(), digest, size_bytes, kept_ms: 1000 }]);
    assert_eq!(listed(4600), []);
}

#[test]
fn uploading_again_renews_the_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    store.put_upload(&demo(), &module("m").digest, &wasm("m"), at(1000)).unwrap();
    store.put_upload(&demo(), &module("m").digest, &wasm("m"), at(4000)).unwrap();
    assert_eq!(store.collect_garbage(at(5000)).unwrap(), []);
}

#[test]
fn a_file_that_is_no_store_is_refused_and_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    for content in [b"tiny".to_vec(), b"no database\n".repeat(10_000)] {
        fs::write(&path, &content).unwrap();
        let message = Store::open(&path).unwrap_err().to_string();
        assert!(message.contains("store"), "{message}");
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    assert!(matches!(Store::open(folder.path()).unwrap_err(), StoreError::Open { .. }));
    assert!(matches!(Store::open(&path.join("below")).unwrap_err(), StoreError::Open { .. }));
    assert!(matches!(Store::open(std::path::Path::new("/dev/null")).unwrap_err(), StoreError::Foreign { .. }));
}

#[test]
fn a_database_of_another_program_is_refused() {
    const OTHER: TableDefinition<&str, &str> = TableDefinition::new("other");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let database = Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(OTHER).unwrap().insert("key", "value").unwrap();
    write.commit().unwrap();
    drop(database);
    let message = Store::open(&path).unwrap_err().to_string();
    assert!(message.contains("is not a store of Pinion's (it is a database of another program)"), "{message}");
}

#[test]
fn a_store_of_another_format_is_refused_with_both_formats() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    let written = store.opened.write(0, |write| {
        write.open_table(META).unwrap().insert("format", 1).unwrap();
        Ok(())
    });
    written.map_err(|not_written| not_written.error).unwrap();
    drop(store);
    let message = Store::open(&path).unwrap_err().to_string();
    assert!(message.contains("has format 1, this piniond reads format 3: run the version that wrote it"), "{message}");
}

/// Opens the store and reads everything, as a daemon does at its start.
fn read_all(path: &Path) -> Result<(DesiredState, Vec<Vec<u8>>), StoreError> {
    let store = Store::open(path)?;
    let state = store.load()?;
    let wasm = state.modules().values().map(|module| store.wasm(module)).collect::<Result<_, _>>()?;
    Ok((state, wasm))
}

#[test]
fn a_torn_file_is_an_error_or_an_earlier_state_and_never_a_wrong_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    let states = [DesiredState::default(), commit(&store, &whole_change("m")), commit(&store, &whole_change("n"))];
    drop(store);
    let whole = fs::read(&path).unwrap();
    assert_eq!(read_all(&path).unwrap().0, states[2]);

    let (mut refused, mut read) = (0, 0);
    let torn = folder.path().join("torn");
    for length in (1..whole.len()).step_by(whole.len() / 23) {
        fs::write(&torn, &whole[..length]).unwrap();
        match catch_unwind(|| read_all(&torn)).unwrap_or_else(|_| panic!("torn at {length}")) {
            Ok((state, _)) => assert!(states.contains(&state), "torn at {length}"),
            Err(_) => refused += 1,
        }
    }
    for page in 0..whole.len() / 4096 {
        fs::write(&torn, &whole).unwrap();
        let mut file = OpenOptions::new().write(true).open(&torn).unwrap();
        file.seek(SeekFrom::Start(page as u64 * 4096 + 64)).unwrap();
        file.write_all(&[0xa5; 512]).unwrap();
        match catch_unwind(AssertUnwindSafe(|| read_all(&torn))).unwrap_or_else(|_| panic!("page {page}")) {
            Ok((state, _)) => {
                assert!(states.contains(&state), "page {page} damaged");
                read += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0 && read > 0, "{refused} refused, {read} read");
}

#[test]
fn files_stay_as_long_as_a_stage_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let archive = vec![7; 2048];
    let files = Files { digest: Digest::of(&archive), size_bytes: 2048 };
    store.put_upload(&demo(), &files.digest, &archive, at(1000)).unwrap();
    let mut change = whole_change("m");
    change.chains[0].stages[0].files = Some(files);
    let state = commit(&store, &change);
    assert_eq!(store.load().unwrap(), state);
    assert!(store.collect_garbage(at(100_000)).unwrap().is_empty());
    assert_eq!(store.files(&files).unwrap(), archive);

    change.chains[0].stages[0].files = None;
    commit(&store, &Change { modules: Vec::new(), rules: Vec::new(), ..change });
    assert!(store.collect_garbage(at(100_000)).unwrap().is_empty(), "a revision needs them");
    forget_all(&store);
    assert_eq!(store.collect_garbage(at(100_000)).unwrap(), [files.digest]);
    let error = store.files(&files).unwrap_err().to_string();
    assert!(error.contains("has lost the bytes of a stage's files"), "{error}");
}

/// Opens a store on a file system with injected faults.
fn on_faulty_disk(folder: &Path) -> (Store, Faults) {
    let faults = Faults::default();
    let opened = Opened::open_with(&folder.join("store"), faults.clone()).unwrap();
    let store = Store { opened, history: HistoryLimits::default(), not_set_aside: Mutex::default() };
    store.check_format().unwrap();
    (store, faults)
}

const ERRNOS: [Errno; 4] = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO];

#[test]
fn a_disk_error_at_any_step_of_a_change_tells_whether_it_is_durable_and_the_next_change_works() {
    // Temporary and permanent faults. With a permanent one the store can't be opened for writing until the fault ends.
    for count in [1, 2, u64::MAX] {
        let (mut refused, mut unknown, mut durable) = (0, 0, 0);
        for after in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let (store, faults) = on_faulty_disk(folder.path());
            let before = commit(&store, &whole_change("m"));
            let next = whole_change("n");
            store.put_upload(&demo(), &module("n").digest, &wasm("n"), at(1000)).unwrap();
            let applied = before.apply(&next).unwrap();

            let errno = ERRNOS[after as usize % ERRNOS.len()];
            faults.fail(after, count, errno);
            let answer = store.commit(&applied, &signature());
            assert_eq!(store.wasm(&module("m")).unwrap(), wasm("m"), "what was stored can be read: {after}");
            let read = store.load().unwrap();
            let steps = faults.heal();
            // The store reopens itself.
            let state = store.settle(at(1000)).unwrap();
            assert_eq!(state, read, "{after}");
            assert_eq!(store.unnamed_uploads(at(1000)).unwrap().is_empty(), state == applied.state, "{after}");
            match &answer {
                Ok(()) => {
                    assert_eq!(state, applied.state, "{after}");
                    durable += 1;
                }
                Err(StoreError::Unknown(_)) => unknown += 1,
                Err(StoreError::Disk(error)) => {
                    assert_eq!(state, before, "{after}");
                    assert!(error.is_shortage() || matches!(errno, Errno::ROFS | Errno::IO), "{error}");
                    refused += 1;
                }
                Err(other) => panic!("{after}: {other}"),
            }
            let applied = state.apply(&Change { delete: vec![ObjectRef::from(&next.rules[0])], ..Change::default() });
            store.commit(applied.as_ref().unwrap(), &signature()).unwrap();
            assert_eq!(store.warning(), None);
            drop(store);
            let restarted = Store::open(&folder.path().join("store")).unwrap();
            assert_eq!(restarted.load().unwrap(), applied.unwrap().state, "{after}");
            if steps <= after {
                break;
            }
        }
        // With one fault the store can be opened again at once, and tells what the disk has.
        assert!(refused > 0 && durable > 0 && (count == 1) == (unknown == 0), "{refused}, {unknown}, {durable}");
    }
}

#[test]
fn after_a_disk_error_at_any_step_of_an_upload_the_next_one_works() {
    for count in [1, u64::MAX] {
        for after in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let (store, faults) = on_faulty_disk(folder.path());
            let state = commit(&store, &whole_change("m"));
            // Large, so that the file grows.
            let bytes = vec![after as u8; 9 << 20];
            let digest = Digest::of(&bytes);
            faults.fail(after, count, Errno::NOSPC);
            let answer = store.put_upload(&demo(), &digest, &bytes, at(1000));
            if let Err(error) = &answer {
                assert!(error.to_string().contains("has no space left: free some on its file system"), "{error}");
                // A second later the disk is tried again, and a fault of one step is over.
                let warning = store.warning();
                assert!(warning.is_some() || count == 1);
                assert!(warning.is_none_or(|warning| warning.contains("has no space left")));
            }
            assert_eq!(store.load().unwrap(), state);
            let _ = store.collect_garbage(at(1000));
            let steps = faults.heal();
            store.put_upload(&demo(), &digest, &bytes, at(1000)).unwrap();
            assert_eq!(store.upload_size_bytes(&demo(), &digest).unwrap(), Some(bytes.len() as u64));
            assert_eq!(store.warning(), None);
            assert_eq!(store.collect_garbage(at(100_000)).unwrap(), [digest]);
            if steps <= after {
                break;
            }
        }
    }
}

#[test]
fn a_store_whose_file_was_removed_or_replaced_refuses_changes_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    let state = commit(&store, &whole_change("m"));
    let aside = folder.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    let put = || store.put_upload(&demo(), &module("n").digest, &wasm("n"), at(1000));
    for replaced in [false, true] {
        if replaced {
            fs::copy(&aside, &path).unwrap();
        }
        let error = put().unwrap_err().to_string();
        assert!(error.contains("was removed or replaced): put it back as it was, or restart piniond"), "{error}");
        assert!(store.warning().unwrap().contains("was removed or replaced"));
        assert_eq!(store.load().unwrap(), state, "what is durable can be read");
    }
    fs::rename(&aside, &path).unwrap();
    put().unwrap();
    assert_eq!(store.warning(), None);
}

#[test]
fn damaged_bytes_are_named_and_another_upload_replaces_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    commit(&store, &whole_change("m"));
    let digest = module("m").digest;
    for damaged in [Some(b"not those".as_slice()), None] {
        let written = store.opened.write(0, |write| {
            let mut blobs = write.open_table(BLOBS).unwrap();
            match damaged {
                Some(bytes) => drop(blobs.insert(digest.as_bytes(), bytes).unwrap()),
                None => drop(blobs.remove(digest.as_bytes()).unwrap()),
            }
            Ok(())
        });
        written.map_err(|not_written| not_written.error).unwrap();
        let error = store.wasm(&module("m")).unwrap_err().to_string();
        let said = format!("has lost the bytes of module demo/m ({digest}): upload them again, by `pinion push`");
        assert!(error.contains(&said), "{error}");
        store.put_upload(&demo(), &digest, &wasm("m"), at(1000)).unwrap();
        assert_eq!(store.wasm(&module("m")).unwrap(), wasm("m"));
    }
}

#[test]
fn the_specification_states_the_versions_of_store_and_manifest() {
    let specification = concat!(env!("CARGO_MANIFEST_DIR"), "/../SPECIFICATION.md");
    let specification = fs::read_to_string(specification).unwrap();
    let version = crate::manifest::VERSION;
    for row in [format!("| store | format {FORMAT} |"), format!("| manifest | `version = \"{version}\"` |")] {
        assert!(specification.contains(&row), "section 10 has a row that begins {row:?}");
    }
}

#[test]
fn keys_and_models_that_nothing_names_are_listed_and_removed_after_an_hour() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let [public, other] = [Digest::of(b"a public key"), Digest::of(b"another one")];
    for digest in [&public, &other] {
        store.put_key(&demo(), digest, "ed25519", b"sealed", at(1000)).unwrap();
    }
    store.put_upload(&demo(), &Digest::of(b"onnx"), b"onnx", at(1000)).unwrap();
    let key = Key { tenant: demo(), name: "site".parse().unwrap(), digest: public, algorithm: "ed25519".to_owned() };
    let model = Model { tenant: demo(), name: "n".parse().unwrap(), digest: Digest::of(b"onnx"), size_bytes: 4 };
    let change = Change { keys: vec![key.clone()], models: vec![model.clone()], ..Change::default() };
    let state = commit(&store, &change);
    assert_eq!(store.load().unwrap(), state, "they are stored");

    let digests = |uploads: Vec<Upload>| uploads.into_iter().map(|upload| upload.digest).collect::<Vec<_>>();
    assert_eq!(digests(store.unnamed_uploads(at(1000)).unwrap()), [other]);
    assert_eq!(store.uploads().unwrap().iter().map(|upload| upload.size_bytes).sum::<u64>(), 6 + 6 + 4);
    assert!(!store.has_garbage(at(4599)).unwrap());
    store.collect_garbage(at(4599)).unwrap();
    assert!(store.sealed_key(&demo(), &other).unwrap().is_some(), "not yet");
    assert!(store.has_garbage(at(4600)).unwrap());
    store.collect_garbage(at(4600)).unwrap();
    assert_eq!(store.sealed_key(&demo(), &other).unwrap(), None);
    assert_eq!(store.sealed_key(&demo(), &public).unwrap().as_deref(), Some(&b"sealed"[..]));
    assert_eq!(store.model(&model).unwrap(), b"onnx");

    let delete = vec![ObjectRef::from(&key), ObjectRef::from(&model)];
    commit(&store, &Change { delete, ..Change::default() });
    forget_all(&store);
    assert_eq!(store.collect_garbage(at(4600)).unwrap(), [model.digest]);
    assert_eq!(store.key_algorithm(&demo(), &public).unwrap(), None);
}

#[test]
fn a_key_of_one_tenant_is_none_of_another_and_is_replaced_when_it_is_uploaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let (digest, other) = (Digest::of(b"a public key"), "other".parse().unwrap());
    store.put_key(&demo(), &digest, "ed25519", b"damaged", at(1000)).unwrap();
    assert_eq!(store.key_algorithm(&other, &digest).unwrap(), None);
    assert_eq!(store.upload_size_bytes(&demo(), &digest).unwrap(), None, "no module may be named by it");
    store.put_key(&demo(), &digest, "ed25519", b"sound", at(1001)).unwrap();
    assert_eq!(store.sealed_key(&demo(), &digest).unwrap().as_deref(), Some(&b"sound"[..]));
}
