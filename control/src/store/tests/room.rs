//! Which revisions give way to an upload.

use std::collections::BTreeSet;

use super::history::{check_references, make, numbers, set, tenant};
use super::*;
use crate::model::{UPLOADS_MAX, check_upload};

/// A module's size, in KiB, as far as bounds know.
const SIZE_KIB: u64 = 100;

/// Makes modules of these contents the tenant's module `m`, one after the other. Each was uploaded at second 1000.
fn make_one_after_another(store: &Store, tenant: &TenantName, contents: &[&str]) {
    for content in contents {
        let module = Module { tenant: tenant.clone(), name: "m".parse().unwrap(), ..module(content) };
        store.put_upload(tenant, &module.digest, &wasm(content), at(1000)).unwrap();
        make(store, &Change { modules: vec![module], ..Change::default() });
    }
}

/// Returns the uploads that the desired state needs.
fn named(store: &Store) -> BTreeSet<(TenantName, Digest)> {
    store.load().unwrap().objects().flat_map(|object| object.uploads_of_tenant()).collect()
}

/// Returns what has to be forgotten for an upload of demo, if its terms allow this many others of [`SIZE_KIB`].
fn to_forget(store: &Store, now: u64, others: u64) -> Option<ToForget> {
    let terms = Tenant { upload_mib: Some(1), ..Tenant::new(demo()) };
    let size_bytes = (1 << 20) - others * (SIZE_KIB << 10);
    let new = StoredUpload { tenant: demo(), digest: Digest::of(b"new"), size_bytes };
    let check = |uploads: &[StoredUpload]| {
        let sized = |upload: &StoredUpload| StoredUpload { size_bytes: SIZE_KIB << 10, ..upload.clone() };
        check_upload(&uploads.iter().map(sized).collect::<Vec<_>>(), &new, Some(&terms))
    };
    store.to_forget(&demo(), &named(store), at(now), check).unwrap()
}

#[test]
fn the_oldest_revisions_give_way_to_an_upload_with_its_storing_and_none_does_in_vain() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    make_one_after_another(&store, &demo(), &["a", "b", "c", "d"]);
    make_one_after_another(&store, &tenant("other"), &["e", "f"]);
    assert_eq!(to_forget(&store, 1001, 2), None, "all are of the last hour");
    assert_eq!(to_forget(&store, 9000, 0), None, "one is in use, and others' do not help");
    assert_eq!(to_forget(&store, 9000, 4), Some(ToForget::default()));
    let to_forget = to_forget(&store, 9000, 3).unwrap();
    assert_eq!(numbers(&store, None), [6, 5, 4, 3, 2, 1]);
    let new = module("new");
    store.put_upload_after(&to_forget, &demo(), &new.digest, &wasm("new"), at(9000)).unwrap();
    assert_eq!(numbers(&store, None), [6, 5, 4, 3], "revision 2 was the last that needed a");
    assert_eq!(store.uploads().unwrap().len(), 6);
    check_references(&store);
}

#[test]
fn an_upload_that_the_disk_has_no_room_for_costs_no_revision() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = on_faulty_disk(folder.path());
    make_one_after_another(&store, &demo(), &["a", "b", "c"]);
    let to_forget = to_forget(&store, 9000, 2).unwrap();
    let new = module("new");
    faults.fail(0, u64::MAX, Errno::NOSPC);
    store.put_upload_after(&to_forget, &demo(), &new.digest, &wasm("new"), at(9000)).unwrap_err();
    faults.heal();
    assert_eq!(numbers(&store, None), [3, 2, 1]);
    assert_eq!(store.wasm(&module("a")).unwrap(), wasm("a"));
    check_references(&store);
    make(&store, &set(&demo(), "n", 0));
}

/// Makes this many modules of a tenant in one change, and deletes them in the next one. They were uploaded at second 1000.
fn make_and_delete(store: &Store, tenant: &TenantName, count: u64) {
    let module = |number: u64| Module {
        tenant: tenant.clone(),
        name: format!("m{number}").parse().unwrap(),
        digest: Digest::of(format!("{tenant} {number}").as_bytes()),
        size_bytes: 1,
    };
    let modules: Vec<Module> = (0..count).map(module).collect();
    let written = store.opened.write(0, |write| {
        let mut uploads = write.open_table(UPLOADS).map_err(|e| store.failed(e))?;
        for module in &modules {
            let key = (tenant.as_str(), module.digest.as_bytes());
            uploads.insert(key, (1000, 1)).map_err(|e| store.failed(e))?;
        }
        Ok(())
    });
    written.map_err(|not_written| not_written.error).unwrap();
    let delete = modules.iter().map(ObjectRef::from).collect();
    make(store, &Change { modules, ..Change::default() });
    make(store, &Change { delete, ..Change::default() });
}

#[test]
fn uploads_that_only_others_revisions_need_give_way_and_those_within_a_tenants_little_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let (greedy, small) = (tenant("greedy"), tenant("small"));
    make_and_delete(&store, &small, 100);
    make_and_delete(&store, &greedy, UPLOADS_MAX / 4 * 3);
    make_and_delete(&store, &demo(), UPLOADS_MAX / 16);
    let new = StoredUpload { tenant: demo(), digest: Digest::of(b"new"), size_bytes: 1 };
    let check = |uploads: &[StoredUpload]| check_upload(uploads, &new, None);
    assert!(check(&store.uploads().unwrap()).is_err());
    let to_forget = |now| store.to_forget(&demo(), &named(&store), at(now), check).unwrap();
    assert_eq!(to_forget(1001), None, "all are of the last hour");
    let own_first = to_forget(9000).unwrap();
    assert_eq!(own_first, ToForget([(demo(), 2)].into()));

    // Once the tenant needs what it has, the other one's revisions give way.
    let named: BTreeSet<_> = store.uploads().unwrap().into_iter().map(|it| (it.tenant, it.digest)).collect();
    let of_demo = named.iter().filter(|(tenant, _)| *tenant == demo()).cloned().collect();
    let modules = modules_of(&store, &of_demo);
    make(&store, &Change { modules, ..Change::default() });
    let to_forget = store.to_forget(&demo(), &of_demo, at(9000), check).unwrap().unwrap();
    assert_eq!(to_forget, ToForget([(greedy.clone(), 2)].into()));
    let bytes = b"new";
    store.put_upload_after(&to_forget, &demo(), &Digest::of(bytes), bytes, at(9000)).unwrap();
    assert_eq!((numbers(&store, Some(&greedy)).len(), numbers(&store, Some(&small)).len()), (0, 2));
    assert_eq!(store.uploads().unwrap().len() as u64, 100 + UPLOADS_MAX / 16 + 1);
    check_references(&store);
}

/// Returns modules of these uploads.
fn modules_of(store: &Store, uploads: &BTreeSet<(TenantName, Digest)>) -> Vec<Module> {
    let module = |(number, (tenant, digest)): (usize, &(TenantName, Digest))| Module {
        tenant: tenant.clone(),
        name: format!("n{number}").parse().unwrap(),
        digest: *digest,
        size_bytes: store.upload_size_bytes(tenant, digest).unwrap().unwrap(),
    };
    uploads.iter().enumerate().map(module).collect()
}
