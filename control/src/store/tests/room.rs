//! Which revisions give way to an upload.

use super::history::{check_references, make, numbers, set};
use super::*;

/// Makes these modules of a tenant the content of its module `m`, one after the other. Each was uploaded at second 1000.
fn make_one_after_another(store: &Store, tenant: &TenantName, names: &[&str]) {
    for name in names {
        let module = Module { tenant: tenant.clone(), name: "m".parse().unwrap(), ..module(name) };
        store.put_upload(tenant, &module.digest, &wasm(name), at(1000)).unwrap();
        make(store, &Change { modules: vec![module], ..Change::default() });
    }
}

/// Lets so many uploads of all tenants fit.
fn fits(max: usize) -> impl Fn(&[StoredUpload]) -> bool {
    move |uploads| uploads.len() <= max
}

#[test]
fn the_oldest_revisions_give_way_to_an_upload_with_its_storing_and_none_does_in_vain() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    make_one_after_another(&store, &demo(), &["a", "b", "c", "d"]);
    assert_eq!(store.to_forget(&demo(), at(1001), fits(2)).unwrap(), None, "all are of the last hour");
    assert_eq!(store.to_forget(&demo(), at(9000), fits(0)).unwrap(), None, "one is in use");
    let to_forget = store.to_forget(&demo(), at(9000), fits(3)).unwrap().unwrap();
    assert_eq!(numbers(&store, None), [4, 3, 2, 1]);
    let new = module("new");
    store.put_upload_after(&to_forget, &demo(), &new.digest, &wasm("new"), at(9000)).unwrap();
    assert_eq!(numbers(&store, None), [4, 3], "revision 2 was the last that needed a");
    assert_eq!(store.uploads().unwrap().len(), 4);
    check_references(&store);
}

#[test]
fn an_upload_that_the_disk_has_no_room_for_costs_no_revision() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = on_faulty_disk(folder.path());
    make_one_after_another(&store, &demo(), &["a", "b", "c"]);
    let to_forget = store.to_forget(&demo(), at(9000), fits(2)).unwrap().unwrap();
    let new = module("new");
    faults.fail(0, u64::MAX, Errno::NOSPC);
    store.put_upload_after(&to_forget, &demo(), &new.digest, &wasm("new"), at(9000)).unwrap_err();
    faults.heal();
    assert_eq!(numbers(&store, None), [3, 2, 1]);
    assert_eq!(store.wasm(&module("a")).unwrap(), wasm("a"));
    check_references(&store);
    make(&store, &set(&demo(), "n", 0));
}
