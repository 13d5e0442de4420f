//! How many revisions are kept, and whose are forgotten first.

use redb::ReadableTableMetadata;

use super::history::{check_references, make, numbered, numbers, opened, set, tenant};
use super::*;
use crate::store::history::StoredPart;

/// Returns the bytes of all kept revisions, and of the latest one.
pub(super) fn kept_bytes(store: &Store) -> (u64, u64) {
    let read = store.opened.read(|read| {
        let meta = read.open_table(META).unwrap();
        let number = |name| meta.get(name).unwrap().unwrap().value();
        let parts = read.open_table(HISTORY).unwrap();
        let mut of_latest = 0;
        for entry in parts.iter().unwrap() {
            let (key, bytes) = entry.unwrap();
            if key.value().1 == number("version") {
                of_latest += StoredPart::decoded(store, bytes.value())?.bytes;
            }
        }
        Ok((number(PART_BYTES), of_latest))
    });
    read.unwrap()
}

#[test]
fn the_oldest_revisions_go_first_and_earlier_states_are_refused_then() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 3, u64::MAX);
    for number in 1..=5 {
        make(&store, &set(&demo(), "m", number));
    }
    assert_eq!(numbers(&store, None), [5, 4, 3]);
    let at = |number| store.objects_at(&demo(), Some(number)).unwrap().map(|objects| objects[0].uploads()[0].0);
    assert_eq!(at(5), Ok(numbered(&demo(), "m", 5).digest));
    assert_eq!(at(2), Ok(numbered(&demo(), "m", 2).digest), "what revision 3 replaced is kept with it");
    assert_eq!(at(1), Err(NotKept::Forgotten(2)));
    assert_eq!(at(6), Err(NotKept::NotYet(5)));
    check_references(&store);
}

#[test]
fn a_tenant_with_many_changes_pushes_out_no_revision_within_anothers_share() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 10, u64::MAX);
    let (quiet, busy) = (tenant("quiet"), tenant("busy"));
    for number in 0..5 {
        make(&store, &set(&quiet, "m", number));
    }
    for number in 0..50 {
        make(&store, &set(&busy, "m", number));
    }
    assert_eq!(numbers(&store, Some(&quiet)), [5, 4, 3, 2, 1]);
    assert_eq!(numbers(&store, Some(&busy)), [55, 54, 53, 52, 51]);
    assert_eq!(numbers(&store, None).len(), 10);
    check_references(&store);
}

#[test]
fn a_tenant_that_had_the_node_for_itself_makes_room_for_others_shares() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 4, u64::MAX);
    for number in 0..9 {
        make(&store, &set(&tenant("first"), "m", number));
    }
    for number in 0..9 {
        make(&store, &set(&tenant("second"), "m", number));
    }
    assert_eq!([tenant("first"), tenant("second")].map(|it| numbers(&store, Some(&it))), [[9, 8], [18, 17]]);
    for name in ["a", "b", "c", "d", "e", "f"] {
        make(&store, &set(&tenant(name), "m", 0));
    }
    assert_eq!(numbers(&store, None), [24, 23, 22, 21], "with more tenants than revisions, the oldest go");
    check_references(&store);
}

#[test]
fn what_revisions_replaced_counts_with_its_uploads_until_there_is_too_much() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, 100 << 20);
    for number in 0..10 {
        let module = Module { size_bytes: 16 << 20, ..numbered(&demo(), "m", number) };
        make(&store, &Change { modules: vec![module], ..Change::default() });
    }
    assert_eq!(numbers(&store, None), [10, 9, 8, 7, 6, 5], "each has replaced 16 MiB");
    check_references(&store);
}

#[test]
fn tenants_with_one_large_revision_each_do_not_keep_more_than_the_limit_and_the_latest_together() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, 1 << 20);
    let small = tenant("small");
    make(&store, &set(&small, "m", 0));
    make(&store, &set(&small, "m", 1));
    for number in 0..10 {
        let owner = tenant(&format!("t{number}"));
        let module = Module { size_bytes: 16 << 20, ..numbered(&owner, "m", number) };
        let delete = vec![ObjectRef::from(&module)];
        make(&store, &Change { modules: vec![module], ..Change::default() });
        make(&store, &Change { delete, ..Change::default() });
        let (all, of_latest) = kept_bytes(&store);
        assert!(all <= (1 << 20) + of_latest, "{all} bytes, {of_latest} of the latest");
    }
    assert_eq!(numbers(&store, Some(&small)), [2, 1], "it is within its share");
    check_references(&store);
}

#[test]
fn a_change_of_more_tenants_than_revisions_are_kept_of_gives_way_to_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 3, u64::MAX);
    let modules = ["a", "b", "c", "d", "e"].map(|name| numbered(&tenant(name), "m", 0)).into();
    make(&store, &Change { modules, ..Change::default() });
    make(&store, &set(&tenant("a"), "m", 1));
    let kept = ["a", "b", "c", "d", "e"].map(|name| numbers(&store, Some(&tenant(name))).len());
    assert_eq!((kept.iter().sum::<usize>(), kept[0]), (3, 1));
    check_references(&store);
}

#[test]
fn a_change_forgets_a_bounded_number_of_revisions_and_a_start_all_that_are_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 2000, u64::MAX);
    let modules = (0..1300).map(|number| numbered(&tenant(&format!("t{number}")), "m", number)).collect();
    make(&store, &Change { modules, ..Change::default() });
    drop(store);
    let store = opened(folder.path(), 10, u64::MAX);
    let parts = |store: &Store| store.opened.read(|read| Ok(read.open_table(HISTORY).unwrap().len().unwrap())).unwrap();
    make(&store, &set(&tenant("t0"), "m", 9999));
    assert_eq!(parts(&store), 1301 - 1025);
    store.trim_history().unwrap();
    assert_eq!(parts(&store), 10);
    check_references(&store);
}

#[test]
fn uploads_that_a_changed_object_still_needs_are_charged_to_the_revision_that_replaces_them_and_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, 512 << 20);
    let files = Files { digest: Digest::of(b"an archive"), size_bytes: 16 << 20 };
    let chain = |config: u8| {
        let stage = || Stage { files: Some(files), ..Stage::new("m".parse().unwrap(), vec![config]) };
        let named = |name: &str| Stage { name: Some(name.parse().unwrap()), ..stage() };
        Chain::new(demo(), "c".parse().unwrap(), vec![named("a"), named("b")])
    };
    make(&store, &set(&demo(), "m", 0));
    for config in 0..8 {
        make(&store, &Change { chains: vec![chain(config)], ..Change::default() });
    }
    assert!(kept_bytes(&store).0 < 1 << 20, "{} bytes", kept_bytes(&store).0);
    make(&store, &Change { delete: vec![ObjectRef::from(&chain(0))], ..Change::default() });
    let (_, of_latest) = kept_bytes(&store);
    assert!((16 << 20..17 << 20).contains(&of_latest), "{of_latest} bytes");
    check_references(&store);
}

#[test]
fn a_revision_that_alone_is_larger_than_all_may_be_is_kept_until_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, 1 << 20);
    make(
        &store,
        &Change { modules: vec![Module { size_bytes: 9 << 20, ..numbered(&demo(), "m", 0) }], ..Change::default() },
    );
    make(&store, &set(&demo(), "m", 1));
    assert_eq!(numbers(&store, None), [2]);
    make(&store, &set(&demo(), "m", 2));
    assert_eq!(numbers(&store, None), [3]);
    check_references(&store);
}
