//! Revisions in the store: what is kept, for how long, and what it keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use prost::Message;
use redb::ReadableTableMetadata;

use super::history_limits::kept_bytes;
use super::*;
use crate::model::{Label, Labelled, Object, Revision, RevisionFilter};
use crate::proto;
use crate::store::counts::Counts;
use crate::store::history::StoredPart;

pub(super) fn tenant(name: &str) -> TenantName {
    name.parse().unwrap()
}

/// Returns a module of a tenant with one of the contents that a number stands for. No blob is needed for it.
pub(super) fn numbered(tenant: &TenantName, name: &str, number: u64) -> Module {
    let digest = Digest::of(&number.to_le_bytes());
    Module { tenant: tenant.clone(), name: name.parse().unwrap(), digest, size_bytes: 10 }
}

pub(super) fn set(tenant: &TenantName, name: &str, number: u64) -> Change {
    Change { modules: vec![numbered(tenant, name, number)], ..Change::default() }
}

/// Returns the change with this label, or none, for all that it sets but tenants.
pub(super) fn labelled(change: Change, label: Option<&str>) -> Change {
    let labels = label.map(|label| label.parse::<Label>().unwrap());
    let objects = || change.sets().filter(|object| !matches!(object, ObjectRef::Tenant { .. }));
    let labels = labels.iter().flat_map(|label| objects().map(|object| (object, label.clone()))).collect();
    Change { labels, ..change }
}

/// Commits a change whose uploads are there.
pub(super) fn make(store: &Store, change: &Change) -> DesiredState {
    let applied = store.load().unwrap().apply(change).unwrap();
    store.commit(&applied, &signature()).unwrap();
    applied.state
}

pub(super) fn opened(folder: &Path, revisions: u64, bytes: u64) -> Store {
    Store::open_with(&folder.join("store"), HistoryLimits { revisions, bytes }).unwrap()
}

pub(super) fn numbers(store: &Store, tenant: Option<&TenantName>) -> Vec<u64> {
    let filter = RevisionFilter { tenant: tenant.cloned(), limit: 1000, ..RevisionFilter::default() };
    store.revisions(Reader::Operator, &filter).unwrap().iter().map(|revision| revision.number).collect()
}

impl Store {
    /// Returns the revisions of all pages, up to the limit of the filter.
    pub(super) fn revisions(&self, reader: Reader, filter: &RevisionFilter) -> Result<Vec<Revision>, StoreError> {
        let (mut found, mut next) = (Vec::new(), Some(filter.before));
        while let Some(before) = next.filter(|_| found.len() < filter.limit) {
            let limit = filter.limit - found.len();
            let page = self.revision_page(reader, &RevisionFilter { before, limit, ..filter.clone() })?;
            found.extend(page.revisions);
            next = page.before.map(Some);
        }
        Ok(found)
    }

    /// Returns a tenant's objects as they were after a revision, of all pages.
    pub(super) fn objects_at(
        &self,
        tenant: &TenantName,
        number: Option<u64>,
    ) -> Result<Result<Vec<Labelled<Object>>, NotKept>, StoreError> {
        let past = match self.contents_at(tenant, number)? {
            Ok(past) => past,
            Err(not_kept) => return Ok(Err(not_kept)),
        };
        let mut objects = Vec::new();
        while objects.len() < past.contents.len() {
            objects.extend(self.objects(&past.contents[objects.len()..])?);
        }
        Ok(Ok(objects))
    }
}

/// Checks that contents, references, needs and totals are exactly what objects and kept revisions refer to.
pub(super) fn check_references(store: &Store) {
    let read = store.opened.read(|read| Ok((Counts::expected(store, read)?, Counts::stored(store, read)?)));
    let (expected, stored) = read.unwrap();
    assert_eq!(stored, expected);
}

#[test]
fn a_change_and_its_revision_are_there_together_when_the_store_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path).unwrap();
    commit(&store, &whole_change("m"));
    drop(store);
    let store = Store::open(&path).unwrap();
    let filter = RevisionFilter { limit: 10, ..RevisionFilter::default() };
    let revisions = store.revisions(Reader::Operator, &filter).unwrap();
    let [revision] = &revisions[..] else { panic!("{revisions:?}") };
    assert_eq!((revision.number, &*revision.author, revision.time_unix_ms), (1, "alice", 1_000_000));
    assert_eq!((revision.counts.created, revision.counts.total()), (3, 3));
    let changes: Vec<String> = revision.changes.iter().map(|it| format!("{} {}", it.object, it.effect())).collect();
    assert_eq!(changes, ["module demo/m created", "chain demo/echo created", "rule demo/ping created"]);
    check_references(&store);
}

#[test]
fn labels_are_there_when_the_store_is_opened_again_and_at_each_revision() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, u64::MAX);
    for label in [None, Some("web"), Some("db"), None] {
        make(&store, &labelled(set(&demo(), "m", 0), label));
    }
    let state = make(&store, &labelled(set(&demo(), "m", 0), Some("web")));
    drop(store);
    let store = opened(folder.path(), 1000, u64::MAX);
    assert_eq!(store.load().unwrap(), state);
    let at = |number| store.objects_at(&demo(), Some(number)).unwrap().unwrap()[0].label.clone();
    let labels: Vec<Option<String>> = (1..=5).map(|number| at(number).map(|label| label.to_string())).collect();
    assert_eq!(labels, [None, Some("web"), Some("db"), None, Some("web")].map(|label| label.map(ToOwned::to_owned)));
    let contents = store.opened.read(|read| Ok(read.open_table(CONTENTS).unwrap().len().unwrap())).unwrap();
    assert_eq!(contents, 3, "the module with the same label is stored once");
    check_references(&store);
}

#[test]
fn equal_objects_are_stored_once_however_often_they_return() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, u64::MAX);
    for round in 0..20 {
        make(&store, &set(&demo(), "m", round % 2));
    }
    let contents = store.opened.read(|read| Ok(read.open_table(CONTENTS).unwrap().len().unwrap())).unwrap();
    assert_eq!(contents, 2);
    check_references(&store);
}

#[test]
fn a_revision_keeps_no_private_key_and_an_object_does() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, u64::MAX);
    let [first, second] = [b"first", b"second" as &[u8]].map(Digest::of);
    let key =
        |name: &str, digest| Key { tenant: demo(), name: name.parse().unwrap(), digest, algorithm: "ed25519".into() };
    for digest in [first, second] {
        store.put_key(&demo(), &digest, "ed25519", b"sealed", at(1000)).unwrap();
    }
    make(&store, &Change { keys: vec![key("site", first), key("other", first)], ..Change::default() });
    make(&store, &Change { keys: vec![key("site", second)], ..Change::default() });
    check_references(&store);
    let is_there = |digest| store.key_algorithm(&demo(), digest).unwrap().is_some();
    store.collect_garbage(at(9000)).unwrap();
    assert_eq!([&first, &second].map(is_there), [true, true], "the other key object names the first one");
    make(&store, &Change { delete: vec![ObjectRef::from(&key("other", first))], ..Change::default() });
    assert!(!store.has_garbage(at(4599)).unwrap() && store.has_garbage(at(4600)).unwrap());
    store.collect_garbage(at(9000)).unwrap();
    assert_eq!([&first, &second].map(is_there), [false, true]);
    assert_eq!(store.objects_at(&demo(), Some(1)).unwrap().unwrap().len(), 2, "what the keys were is known");
    check_references(&store);
}

#[test]
fn an_object_of_a_revision_that_is_not_valid_any_more_keeps_its_upload_and_can_be_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 2, u64::MAX);
    let upload = module("a");
    store.put_upload(&demo(), &upload.digest, &wasm("a"), at(1000)).unwrap();
    make(&store, &set(&demo(), "m", 0));
    // An earlier version took this name.
    let named = proto::Module { name: "Not_A Name".into(), ..proto::Module::from(&upload) };
    let bytes = proto::Object { object: Some(proto::object::Object::Module(named)) }.encode_to_vec();
    let digest = Digest::of(&bytes);
    let written = store.opened.write(0, |write| {
        write.open_table(CONTENTS).unwrap().insert(digest.as_bytes(), &*bytes).unwrap();
        let mut parts = write.open_table(HISTORY).unwrap();
        let mut part = StoredPart::decoded(&store, parts.get(("demo", 1)).unwrap().unwrap().value())?;
        part.changes[0].before = Some(digest.as_bytes().to_vec());
        parts.insert(("demo", 1), &*part.encode_to_vec()).unwrap();
        drop(parts);
        Counts::mend(&store, write)
    });
    written.map_err(|not_written| not_written.error).unwrap();
    make(&store, &set(&demo(), "m", 1));
    assert_eq!(store.collect_garbage(at(9000)).unwrap(), [], "revision 1 needs it");
    make(&store, &set(&demo(), "m", 2));
    assert_eq!(numbers(&store, None), [3, 2]);
    assert_eq!(store.collect_garbage(at(9000)).unwrap(), [upload.digest]);
    check_references(&store);
}

#[test]
fn revisions_are_listed_by_tenant_kind_name_and_page() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, u64::MAX);
    let (a, b) = (tenant("a"), tenant("b"));
    make(&store, &Change { modules: vec![numbered(&a, "m", 0), numbered(&b, "m", 0)], ..Change::default() });
    make(&store, &set(&a, "n", 0));
    make(&store, &set(&b, "m", 1));
    let list = |filter: RevisionFilter| {
        let revisions =
            store.revisions(Reader::Operator, &RevisionFilter { limit: filter.limit.max(1), ..filter }).unwrap();
        revisions.iter().map(|it| (it.number, it.counts.total())).collect::<Vec<_>>()
    };
    let all = RevisionFilter { limit: 9, ..RevisionFilter::default() };
    assert_eq!(list(all.clone()), [(3, 1), (2, 1), (1, 2)]);
    assert_eq!(list(RevisionFilter { tenant: Some(a), ..all.clone() }), [(2, 1), (1, 1)]);
    assert_eq!(list(RevisionFilter { name: Some("m".into()), ..all.clone() }), [(3, 1), (1, 2)]);
    assert_eq!(list(RevisionFilter { kind: Some("chain"), ..all.clone() }), []);
    assert_eq!(list(RevisionFilter { limit: 2, ..all.clone() }), [(3, 1), (2, 1)]);
    assert_eq!(list(RevisionFilter { before: Some(2), ..all }), [(1, 2)]);
}

#[test]
fn a_page_of_revisions_ends_with_a_whole_revision_and_after_many_changes_that_pass_no_filter() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, u64::MAX);
    let (a, b) = (tenant("a"), tenant("b"));
    for number in 0..20 {
        let modules = vec![numbered(&a, "m", number), numbered(&b, "m", number)];
        make(&store, &Change { modules, ..Change::default() });
    }
    let filter = RevisionFilter { limit: 1000, ..RevisionFilter::default() };
    let page = store.revision_page(Reader::Operator, &filter).unwrap();
    assert_eq!((page.revisions.len(), page.before), (PAGE_REVISIONS, Some(5)));
    assert!(page.revisions.iter().all(|revision| revision.counts.total() == 2));
    let page =
        store.revision_page(Reader::Operator, &RevisionFilter { before: page.before, ..filter.clone() }).unwrap();
    assert_eq!((page.revisions.len(), page.before), (4, None));

    let many = (0..5000).map(|number| numbered(&a, &format!("n{number}"), number)).collect();
    make(&store, &Change { modules: many, ..Change::default() });
    for number in 0..9 {
        let many = (0..5000).map(|at| numbered(&a, &format!("n{at}"), at + 1 + number % 2)).collect();
        make(&store, &Change { modules: many, ..Change::default() });
    }
    let none = RevisionFilter { name: Some("m".into()), ..filter };
    let page = store.revision_page(Reader::Operator, &none).unwrap();
    assert_eq!((page.revisions.len(), page.before), (0, Some(27)), "four of them have 20000 changes");
    assert_eq!(store.revisions(Reader::Operator, &none).unwrap().len(), 20);
}

#[test]
fn a_page_of_objects_is_bounded_in_number_and_size_and_ends_before_what_was_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1, u64::MAX);
    let modules = (0..100).map(|number| numbered(&demo(), &format!("m{number}"), number)).collect();
    let large = |number: usize| {
        let stage = Stage::new("m0".parse().unwrap(), vec![number as u8; 60 << 10]);
        Chain::new(demo(), format!("c{number}").parse().unwrap(), vec![stage])
    };
    make(&store, &Change { modules, chains: (0..20).map(large).collect(), ..Change::default() });
    let PastContents { number, contents } = store.contents_at(&demo(), None).unwrap().unwrap();
    assert_eq!((number, contents.len()), (1, 120));
    let kinds = |objects: &[Labelled<Object>]| objects.iter().map(|it| it.name().kind()).collect::<Vec<_>>();
    let modules = store.objects(&contents).unwrap();
    assert_eq!(kinds(&modules), ["module"; PAGE_OBJECTS]);
    let chains = store.objects(&contents[100..]).unwrap();
    assert_eq!(kinds(&chains), ["chain"; 5], "of 60 KiB each");

    // Revision 2 keeps what it replaced, and 3 forgets that with it.
    for number in 1..=2 {
        make(
            &store,
            &Change { chains: vec![Chain { idle_timeout_ms: 60_000 + number, ..large(1) }], ..Change::default() },
        );
    }
    assert_eq!(store.objects(&contents[101..]).unwrap(), []);
    assert_eq!(store.earliest_known(&demo()).unwrap(), 2);
}

#[test]
fn a_new_tenant_gets_nothing_of_an_earlier_one_of_its_name_unless_that_returns() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, u64::MAX);
    let terms = Tenant::new(demo());
    let mut all = whole_change("m");
    all.tenants.push(terms.clone());
    commit(&store, &all);
    let left = module("left");
    let key = Digest::of(b"a key");
    let delete: Vec<ObjectRef> = store.load().unwrap().objects_of(&demo()).iter().map(|object| object.name()).collect();
    let deleted = commit(&store, &Change { delete, ..Change::default() });
    let deleted_at = signature().time;
    for name in ["left", "n"] {
        store.put_upload(&demo(), &module(name).digest, &wasm(name), deleted_at).unwrap();
    }
    store.put_key(&demo(), &key, "ed25519", b"sealed", deleted_at).unwrap();
    // The operator brings this for the next tenant of the name.
    let later = module("later");
    store.put_upload(&demo(), &later.digest, &wasm("later"), deleted_at + Duration::from_secs(1)).unwrap();

    // The tenant returns with all that it had.
    let mut back = whole_change("m");
    back.tenants.push(terms.clone());
    let applied = deleted.apply(&back).unwrap();
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("store");
    fs::copy(store.path(), &copy).unwrap();
    let returned = Store::open(&copy).unwrap();
    returned.commit_return(&applied, &signature()).unwrap();
    assert_eq!(numbers(&returned, None), [3, 2, 1]);
    assert_eq!(returned.uploads().unwrap().len(), 5);
    check_references(&returned);

    // Another one of its name begins with what its own change names.
    let change = Change { tenants: vec![terms], modules: vec![module("n")], ..Change::default() };
    let applied = deleted.apply(&change).unwrap();
    store.commit(&applied, &signature()).unwrap();
    assert_eq!(numbers(&store, None), [3]);
    assert_eq!(store.objects_at(&demo(), Some(1)).unwrap(), Err(NotKept::Forgotten(2)));
    assert_eq!(store.objects_at(&demo(), Some(2)).unwrap(), Ok(Vec::new()));
    let uploads: BTreeSet<Digest> = store.uploads().unwrap().iter().map(|it| it.digest).collect();
    assert_eq!(uploads, [module("n").digest, later.digest].into());
    assert_eq!(store.key_algorithm(&demo(), &key).unwrap(), None);
    assert!(matches!(store.wasm(&left), Err(StoreError::Lost { .. })), "its bytes are gone, too");
    check_references(&store);
}

#[test]
fn a_forgotten_history_says_nothing_of_tenants_that_never_had_any() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, u64::MAX);
    let (other, last_change) = (tenant("other"), |tenant: &TenantName| store.last_change(tenant).unwrap());
    make(&store, &set(&demo(), "m", 0));
    make(&store, &set(&demo(), "m", 1));
    assert_eq!(last_change(&demo()), LastChange::In(2));
    forget_all(&store);
    assert_eq!(numbers(&store, None), Vec::<u64>::new());
    assert_eq!(last_change(&demo()), LastChange::In(2), "it has an object");
    assert_eq!(last_change(&other), LastChange::UpTo(0));
    assert_eq!(store.objects_at(&other, Some(0)).unwrap(), Ok(Vec::new()));
    assert_eq!(store.objects_at(&demo(), Some(1)).unwrap(), Err(NotKept::Forgotten(2)));
    check_references(&store);

    let delete = vec![ObjectRef::from(&numbered(&demo(), "m", 1))];
    make(&store, &Change { delete, ..Change::default() });
    assert_eq!((last_change(&demo()), last_change(&other)), (LastChange::In(3), LastChange::UpTo(0)));
    forget_all(&store);
    assert_eq!((last_change(&demo()), last_change(&other)), (LastChange::UpTo(3), LastChange::UpTo(3)));
    make(&store, &set(&other, "m", 0));
    assert_eq!(last_change(&other), LastChange::In(4));
    check_references(&store);
}

#[test]
fn the_revision_to_undo_is_told_with_the_latest_one_of_its_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 1000, u64::MAX);
    let is_module = |object: &ObjectRef| matches!(object, ObjectRef::Module { .. });
    assert_eq!(store.to_undo(&demo(), is_module).unwrap(), None);
    make(&store, &set(&demo(), "m", 0));
    make(&store, &Change { tenants: vec![Tenant::new(demo())], ..Change::default() });
    make(&store, &set(&tenant("other"), "m", 0));
    assert_eq!(store.to_undo(&demo(), is_module).unwrap(), Some(ToUndo { number: 1, latest: 2 }));
    assert_eq!(store.to_undo(&demo(), |_| true).unwrap(), Some(ToUndo { number: 2, latest: 2 }));
}

#[test]
fn a_tenant_is_not_told_which_operator_made_a_revision() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    let applied = store.load().unwrap().apply(&set(&demo(), "m", 0)).unwrap();
    store.commit(&applied, &Signature { author: Author::operator("uid 0 (operator)"), time: at(1000) }).unwrap();
    let filter = RevisionFilter { limit: 1, ..RevisionFilter::default() };
    let author = |reader| store.revisions(reader, &filter).unwrap()[0].author.clone();
    assert_eq!([Reader::Operator, Reader::Tenant].map(author), ["uid 0 (operator)", "the operator"]);
}

#[test]
fn uploads_stay_as_long_as_a_kept_revision_needs_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path(), 2, u64::MAX);
    for name in ["a", "b", "c"] {
        let module = Module { name: "m".parse().unwrap(), ..module(name) };
        store.put_upload(&demo(), &module.digest, &wasm(name), at(1000)).unwrap();
        make(&store, &Change { modules: vec![module], ..Change::default() });
    }
    // Revision 1 is forgotten; revision 2 replaced a by b.
    assert_eq!(store.collect_garbage(at(100_000)).unwrap(), []);
    make(&store, &set(&demo(), "other", 0));
    assert_eq!(store.collect_garbage(at(100_000)).unwrap(), [module("a").digest]);
}

/// What happens to the store.
#[derive(Clone, Debug)]
enum Step {
    /// A module of a tenant gets a content, and one of two labels or none.
    Set(usize, usize, u64, Option<usize>),
    /// Modules of both tenants get one, in one change.
    SetBoth(usize, u64),
    /// A module of a tenant is deleted, if it is there.
    Delete(usize, usize),
    /// A tenant's modules become what they were some revisions ago, if that is known.
    Return(usize, u64),
    /// The store is opened again.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..2_usize, 0..3_usize, 0..3_u64, proptest::option::of(0..2_usize))
            .prop_map(|(tenant, name, number, label)| Step::Set(tenant, name, number, label)),
        1 => (0..3_usize, 0..3_u64).prop_map(|(name, number)| Step::SetBoth(name, number)),
        2 => (0..2_usize, 0..3_usize).prop_map(|(tenant, name)| Step::Delete(tenant, name)),
        2 => (0..2_usize, 0..6_u64).prop_map(|(tenant, ago)| Step::Return(tenant, ago)),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..25)
}

/// Returns the change that makes one list of objects the other.
pub(super) fn change_to(now: &[Labelled<Object>], wanted: &[Labelled<Object>]) -> Change {
    let mut change = Change::default();
    wanted.iter().for_each(|object| change.set(object));
    let gone = now.iter().map(|object| object.name()).filter(|name| !wanted.iter().any(|it| it.name() == *name));
    change.delete = gone.collect();
    change
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_kept_revision_is_the_state_that_was_acknowledged_with_it(
        steps in steps(),
        revisions in 2..12_u64,
        bytes in prop_oneof![Just(u64::MAX), 500..4000_u64],
    ) {
        const NAMES: [&str; 3] = ["m", "n", "o"];
        let folder = tempfile::tempdir().unwrap();
        let tenants = [tenant("a"), tenant("b")];
        let mut store = opened(folder.path(), revisions, bytes);
        let mut states = vec![DesiredState::default()];
        for step in steps {
            let now = states.last().unwrap();
            let change = match step {
                Step::Set(tenant, name, number, label) => {
                    let label = label.map(|label| ["x", "y"][label]);
                    labelled(set(&tenants[tenant], NAMES[name], number), label)
                }
                Step::SetBoth(name, number) => {
                    let modules = tenants.iter().map(|tenant| numbered(tenant, NAMES[name], number)).collect();
                    Change { modules, ..Change::default() }
                }
                Step::Delete(tenant, name) => {
                    let module = ObjectRef::from(&numbered(&tenants[tenant], NAMES[name], 0));
                    Change { delete: now.object(&module).map(|_| module).into_iter().collect(), ..Change::default() }
                }
                Step::Return(tenant, ago) => {
                    let number = now.version().saturating_sub(ago);
                    match store.objects_at(&tenants[tenant], Some(number)).unwrap() {
                        Ok(wanted) => change_to(&now.objects_of(&tenants[tenant]), &wanted),
                        Err(_) => continue,
                    }
                }
                Step::Restart => {
                    drop(store);
                    store = opened(folder.path(), revisions, bytes);
                    Change::default()
                }
            };
            let applied = now.apply(&change).unwrap();
            if applied.changed() {
                store.commit(&applied, &signature()).unwrap();
                states.push(applied.state);
                let (all, of_latest) = kept_bytes(&store);
                prop_assert!(all <= bytes.saturating_add(of_latest), "{} bytes, {} of the latest", all, of_latest);
            }
        }
        prop_assert_eq!(&store.load().unwrap(), states.last().unwrap());
        for (number, state) in states.iter().enumerate() {
            for tenant in &tenants {
                if let Ok(objects) = store.objects_at(tenant, Some(number as u64)).unwrap() {
                    let by_name = |objects: Vec<Labelled<Object>>| objects.into_iter().map(|it| (it.name(), it)).collect::<BTreeMap<_, _>>();
                    prop_assert_eq!(by_name(objects), by_name(state.objects_of(tenant)), "revision {}", number);
                }
            }
        }
        check_references(&store);
    }
}
