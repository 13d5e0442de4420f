//! Damage of single objects: what is set aside, what stays, and how it comes back.

use redb::ReadableTable;

use super::history::check_references;
use super::*;
use crate::model::RevisionFilter;

/// What a case is about, and how its store is damaged.
pub(super) type Case<'c> = (&'c str, &'c dyn Fn(&Store));

/// Writes to the tables of a store directly.
pub(super) fn tamper(store: &Store, write: impl Fn(&WriteTransaction)) {
    let written = store.opened.write(0, |transaction| {
        write(transaction);
        Ok(())
    });
    written.map_err(|not_written| not_written.error).unwrap();
}

/// Returns the digest of an object's content.
fn digest_of(store: &Store, object: &ObjectRef) -> Digest {
    let found = store.opened.read(|read| {
        let key = (kind_number(object), object.tenant().as_str(), object.name());
        let objects = read.open_table(OBJECTS).unwrap();
        Ok(objects.get(key).unwrap().map(|digest| Digest::from_bytes(*digest.value())))
    });
    found.unwrap().unwrap()
}

/// Replaces the content of an object.
pub(super) fn damage(store: &Store, object: &ObjectRef, bytes: &[u8]) {
    let digest = digest_of(store, object);
    tamper(store, |write| {
        write.open_table(CONTENTS).unwrap().insert(digest.as_bytes(), bytes).unwrap();
    });
}

/// Makes these bytes the content of an object, under their digest.
fn replace(store: &Store, object: &ObjectRef, bytes: &[u8]) {
    let digest = Digest::of(bytes);
    tamper(store, |write| {
        write.open_table(CONTENTS).unwrap().insert(digest.as_bytes(), bytes).unwrap();
        let key = (kind_number(object), object.tenant().as_str(), object.name());
        write.open_table(OBJECTS).unwrap().insert(key, digest.as_bytes()).unwrap();
    });
}

fn set_aside(store: &Store) -> Vec<(String, String)> {
    store.quarantine().unwrap().into_iter().map(|it| (it.object, it.reason)).collect()
}

fn names_set_aside(store: &Store) -> Vec<String> {
    set_aside(store).into_iter().map(|(object, _)| object).collect()
}

fn objects_of(change: &Change) -> [ObjectRef; 3] {
    [(&change.modules[0]).into(), (&change.chains[0]).into(), (&change.rules[0]).into()]
}

#[test]
fn a_store_without_damage_is_recovered_as_it_was_loaded_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let state = commit(&store, &whole_change("m"));
    assert_eq!(store.recover(at(2000)).unwrap(), state);
    assert!(set_aside(&store).is_empty());
    assert_eq!(state.version(), 1);
}

#[test]
fn a_damaged_rule_is_set_aside_alone_with_its_reason_and_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    let change = whole_change("m");
    commit(&store, &change);
    let [module, chain, rule] = objects_of(&change);
    let digest = digest_of(&store, &rule);
    damage(&store, &rule, b"not a rule");
    drop(store);

    let store = Store::open(&path).unwrap();
    let state = store.recover(at(2000)).unwrap();
    assert!(state.object(&module).is_some() && state.object(&chain).is_some() && state.object(&rule).is_none());
    let [quarantined] = &store.quarantine().unwrap()[..] else { panic!("there is one") };
    assert_eq!((&*quarantined.object, quarantined.digest, quarantined.since_unix_s), ("rule demo/ping", digest, 2000));
    let warning = quarantined.warning();
    assert!(
        warning.contains("rule demo/ping was set aside")
            && warning.contains("its bytes have another digest: apply it again"),
        "{warning}"
    );
    let bytes = store.opened.read(|read| {
        let table = read.open_table(QUARANTINE).unwrap();
        let entry = table.iter().unwrap().next().unwrap().unwrap();
        Ok(entry.1.value().3.to_vec())
    });
    assert_eq!(bytes.unwrap(), b"not a rule");
    check_references(&store);
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.recover(at(3000)).unwrap(), state, "the next start sets nothing more aside");
    assert_eq!(names_set_aside(&store), ["rule demo/ping"]);
}

#[test]
fn what_depends_on_a_damaged_module_is_set_aside_with_it_and_other_tenants_objects_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let change = whole_change("m");
    commit(&store, &change);
    let other = Module { tenant: "other".parse().unwrap(), ..module("m") };
    let with_other = commit(&store, &Change { modules: vec![other.clone()], ..Change::default() });
    let [module, ..] = objects_of(&change);
    damage(&store, &module, b"");
    let state = store.recover(at(2000)).unwrap();
    assert_eq!(names_set_aside(&store), ["module demo/m", "chain demo/echo", "rule demo/ping"]);
    assert_eq!(state.version(), with_other.version() + 1);
    assert!(state.object(&ObjectRef::from(&other)).is_some());
    check_references(&store);
}

#[test]
fn contents_that_are_missing_undecodable_of_another_object_or_invalid_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let change = whole_change("m");
    let [_, chain, rule] = objects_of(&change);
    let mut invalid = change.rules[0].clone();
    invalid.chain = "gone".parse().unwrap();
    let encoded = |rule: &Rule| {
        let object = crate::model::Object::Rule(std::sync::Arc::new(rule.clone()));
        let object = crate::model::Labelled { object, label: None };
        prost::Message::encode_to_vec(&crate::proto::Object::from(&object))
    };
    let renamed = Rule { name: "pong".parse().unwrap(), ..change.rules[0].clone() };
    let cases: [Case<'_>; 5] = [
        ("its content is missing", &|store| {
            let digest = digest_of(store, &rule);
            tamper(store, |write| drop(write.open_table(CONTENTS).unwrap().remove(digest.as_bytes()).unwrap()));
        }),
        ("cannot be decoded", &|store| replace(store, &rule, &[0xff; 9])),
        ("object: it is missing, or of a kind", &|store| replace(store, &rule, b"")),
        ("its content is that of rule demo/pong", &|store| replace(store, &rule, &encoded(&renamed))),
        ("names chain demo/gone, which does not exist", &|store| replace(store, &rule, &encoded(&invalid))),
    ];
    for (at_case, (reason, break_it)) in cases.into_iter().enumerate() {
        let store = Store::open(&folder.path().join(format!("store-{at_case}"))).unwrap();
        commit(&store, &change);
        break_it(&store);
        let state = store.recover(at(2000)).unwrap();
        assert!(state.object(&rule).is_none() && state.object(&chain).is_some());
        let found = set_aside(&store);
        assert!(
            matches!(&found[..], [(object, why)] if object == "rule demo/ping" && why.contains(reason)),
            "{found:?}"
        );
        assert_eq!(store.recover(at(2001)).unwrap(), state);
    }
}

#[test]
fn nothing_of_a_tenant_whose_terms_are_damaged_stays_as_nothing_would_bound_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let tenant = Tenant { weight: 7, ..Tenant::new(demo()) };
    commit(&store, &Change { tenants: vec![tenant.clone()], ..whole_change("m") });
    damage(&store, &(&tenant).into(), b"");
    assert!(store.recover(at(2000)).unwrap().objects_of(&demo()).is_empty());
    let mut names = names_set_aside(&store);
    names.sort();
    assert_eq!(names, ["chain demo/echo", "module demo/m", "rule demo/ping", "tenant demo"]);
}

#[test]
fn an_object_under_a_name_that_there_cannot_be_is_set_aside_without_a_revision() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let state = commit(&store, &whole_change("m"));
    let digest = digest_of(&store, &objects_of(&whole_change("m"))[0]);
    tamper(&store, |write| {
        write.open_table(OBJECTS).unwrap().insert((99, "De\nmo", "m"), digest.as_bytes()).unwrap();
    });
    assert_eq!(store.recover(at(2000)).unwrap(), state);
    assert_eq!(names_set_aside(&store), [r#"object "m" of tenant "De\nmo" and kind 99"#]);
    let warning = store.quarantine().unwrap()[0].warning();
    assert!(warning.contains("pinion store export") && !warning.contains("pinion apply"), "{warning}");
    check_references(&store);
}

#[test]
fn an_object_that_is_applied_anew_leaves_the_quarantine() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let change = whole_change("m");
    let before = commit(&store, &change);
    let [module, ..] = objects_of(&change);
    damage(&store, &module, b"");
    store.recover(at(2000)).unwrap();
    commit(&store, &Change { modules: change.modules.clone(), ..Change::default() });
    assert_eq!(names_set_aside(&store), ["chain demo/echo", "rule demo/ping"]);
    commit(&store, &change);
    assert!(set_aside(&store).is_empty());
    assert_eq!(store.recover(at(3000)).unwrap().objects_of(&demo()), before.objects_of(&demo()));
    assert!(set_aside(&store).is_empty(), "its content is sound now");
    assert_eq!(store.objects_at(&demo(), Some(1)).unwrap().unwrap().len(), 3, "that of the revision, too");
    check_references(&store);
}

#[test]
fn setting_aside_is_a_revision_of_the_nodes_own_and_revisions_with_damaged_objects_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let change = whole_change("m");
    commit(&store, &change);
    damage(&store, &objects_of(&change)[2], b"");
    store.recover(at(2000)).unwrap();
    let filter = RevisionFilter { limit: 10, ..RevisionFilter::default() };
    let revisions = store.revisions(Reader::Operator, &filter).unwrap();
    assert_eq!((revisions.len(), &*revisions[0].author), (2, "the node, which set damaged objects aside"));
    assert_eq!((revisions[0].counts.deleted, revisions[0].counts.total()), (1, 1));
    let error = store.objects_at(&demo(), Some(1)).unwrap_err().to_string();
    assert!(error.contains("has lost an object of a revision"), "{error}");
    assert_eq!(store.objects_at(&demo(), Some(2)).unwrap().unwrap().len(), 2);
}

#[test]
fn revisions_with_damaged_objects_are_forgotten_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let limits = HistoryLimits { revisions: 2, ..HistoryLimits::default() };
    let store = Store::open_with(&folder.path().join("store"), limits).unwrap();
    let change = whole_change("m");
    commit(&store, &change);
    damage(&store, &objects_of(&change)[2], b"");
    store.recover(at(2000)).unwrap();
    for name in ["a", "b", "c"] {
        commit(&store, &Change { modules: vec![module(name)], ..Change::default() });
    }
    check_references(&store);
}

#[test]
fn wrong_counts_are_mended_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let state = commit(&store, &whole_change("m"));
    tamper(&store, |write| {
        write.open_table(REFERENCES).unwrap().retain(|_, _| false).unwrap();
        write.open_table(NEEDS).unwrap().retain(|_, _| false).unwrap();
        write.open_table(ORDER).unwrap().retain(|_, ()| false).unwrap();
        write.open_table(META).unwrap().insert(PARTS, 99).unwrap();
    });
    assert_eq!(store.recover(at(2000)).unwrap(), state);
    check_references(&store);
}

#[test]
fn a_tenant_whose_record_of_forgotten_revisions_is_lost_returns_to_no_state_that_may_be_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let limits = HistoryLimits { revisions: 2, ..HistoryLimits::default() };
    let store = Store::open_with(&folder.path().join("store"), limits).unwrap();
    for name in ["a", "b", "c", "d"] {
        commit(&store, &Change { modules: vec![module(name)], ..Change::default() });
    }
    tamper(&store, |write| write.open_table(SHARES).unwrap().retain(|_, _| false).unwrap());
    store.recover(at(2000)).unwrap();
    assert_eq!(store.objects_at(&demo(), Some(2)).unwrap().unwrap().len(), 2);
    assert_eq!(store.objects_at(&demo(), Some(1)).unwrap(), Err(NotKept::Forgotten(2)));
    check_references(&store);
}

#[test]
fn a_damaged_revision_is_forgotten_with_those_before_it_and_later_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    for name in ["a", "b", "c", "d"] {
        commit(&store, &Change { modules: vec![module(name)], ..Change::default() });
    }
    tamper(&store, |write| {
        write.open_table(HISTORY).unwrap().insert(("demo", 2), [0xff; 9].as_slice()).unwrap();
    });
    assert_eq!(store.recover(at(2000)).unwrap().version(), 4);
    let filter = RevisionFilter { limit: 10, ..RevisionFilter::default() };
    let numbers: Vec<u64> = store.revisions(Reader::Operator, &filter).unwrap().iter().map(|it| it.number).collect();
    assert_eq!(numbers, [4, 3]);
    assert_eq!(store.objects_at(&demo(), Some(2)).unwrap().unwrap().len(), 2);
    assert_eq!(store.objects_at(&demo(), Some(1)).unwrap(), Err(NotKept::Forgotten(2)));
    check_references(&store);
}

#[test]
fn a_store_that_was_made_before_anything_could_be_set_aside_has_nothing_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    let change = whole_change("m");
    commit(&store, &change);
    tamper(&store, |write| assert!(write.delete_table(QUARANTINE).unwrap()));
    assert_eq!(store.quarantine().unwrap(), []);
    damage(&store, &objects_of(&change)[2], b"");
    store.recover(at(2000)).unwrap();
    assert_eq!(names_set_aside(&store), ["rule demo/ping"]);
}

#[test]
fn a_durable_change_is_not_called_refused_when_the_disk_fails_and_an_object_is_damaged() {
    let (mut refused, mut unknown) = (0, 0);
    for after in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let (store, faults) = on_faulty_disk(folder.path());
        let change = whole_change("m");
        let before = commit(&store, &change);
        let applied = before.apply(&Change { modules: vec![module("n")], ..Change::default() }).unwrap();
        damage(&store, &objects_of(&change)[2], b"");
        faults.fail(after, 1, Errno::IO);
        let answer = store.commit(&applied, &signature());
        let version = store.load().unwrap().version();
        match answer {
            Ok(()) => break,
            Err(StoreError::Disk(_)) => refused += 1,
            Err(StoreError::Unknown(_)) => unknown += 1,
            Err(other) => panic!("{after}: {other}"),
        }
        assert_eq!(version == applied.state.version(), unknown > 0, "{after}");
    }
    assert!(refused > 0 && unknown > 0, "{refused} refused, {unknown} unknown");
}

#[test]
fn damage_that_is_not_of_one_object_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    commit(&store, &whole_change("m"));
    tamper(&store, |write| drop(write.open_table(META).unwrap().remove("version").unwrap()));
    assert!(matches!(store.recover(at(2000)), Err(StoreError::Damaged { .. })));
}

#[test]
fn on_a_full_disk_damaged_objects_are_left_out_and_are_set_aside_when_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = on_faulty_disk(folder.path());
    let change = whole_change("m");
    commit(&store, &change);
    damage(&store, &objects_of(&change)[2], b"");
    faults.fail(0, u64::MAX, Errno::NOSPC);
    assert!(matches!(store.recover(at(2000)), Err(StoreError::Disk(_))));
    let loaded = store.load().unwrap();
    assert_eq!((loaded.version(), loaded.rules().len()), (1, 0));
    assert_eq!(names_set_aside(&store), ["rule demo/ping"], "it is reported all the same");
    faults.heal();
    let state = store.recover(at(2001)).unwrap();
    assert_eq!((state.version(), state.rules().len(), state.chains().len()), (2, 0, 1));
    assert_eq!(names_set_aside(&store), ["rule demo/ping"]);
}
