//! Revisions over a real Unix socket, with a fake data plane: expected revisions, dry runs, and returns to earlier ones.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{REFUSED_CONFIG, Served, TestNode, demo, echo_chain, named, rule_to_echo, wasm};
use pinion_control::client::{ClientError, Filter};
use pinion_control::control::{ApplyRequest, ChangeOptions, Settings, UploadKind};
use pinion_control::model::{
    Author, Chain, Digest, HistoryLimits, Labelled, Object, ObjectRef, RevisionFilter, Stage, Tenant, TenantName,
};
use pinion_control::{Client, Control, Store};
use proptest::prelude::*;
use tonic::Code;

fn refused<T: Debug>(result: Result<T, ClientError>) -> (Code, String) {
    match result.unwrap_err() {
        ClientError::Refused { code, message } => (code, message),
        other => panic!("not a refusal: {other:?}"),
    }
}

/// Returns a chain `demo/echo` with this configuration.
fn echo_with(config: &[u8]) -> Chain {
    let mut chain = echo_chain("m");
    chain.stages[0].config = config.to_vec();
    chain
}

fn chains_only(chains: Vec<Chain>) -> ApplyRequest {
    ApplyRequest { chains, ..ApplyRequest::default() }
}

/// Uploads module `m`, and applies the chain `demo/echo` of it with rule `ping`, as revision 1.
async fn apply_small(client: &mut Client) {
    let digest = client.upload(&demo(), wasm("m")).await.unwrap();
    let request = ApplyRequest {
        modules: vec![named("m", digest)],
        chains: vec![echo_chain("m")],
        rules: vec![rule_to_echo("ping", "10.77.0.2")],
        ..ApplyRequest::default()
    };
    client.apply(request).await.unwrap();
}

async fn config(client: &mut Client) -> Vec<u8> {
    client.chains(Filter::default()).await.unwrap()[0].stages[0].config.clone()
}

async fn numbers(client: &mut Client, filter: RevisionFilter) -> Vec<u64> {
    let filter = RevisionFilter { limit: filter.limit.max(10), ..filter };
    client.revisions(filter).await.unwrap().iter().map(|revision| revision.number).collect()
}

const DRY_RUN: ChangeOptions = ChangeOptions { dry_run: true, expected_revision: None };

fn expecting(revision: u64) -> ChangeOptions {
    ChangeOptions { expected_revision: Some(revision), dry_run: false }
}

#[tokio::test]
async fn each_change_is_a_revision_with_its_author_and_what_it_did_and_is_there_after_a_restart() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    client.apply(chains_only(vec![echo_with(b"other")])).await.unwrap();
    client.apply(chains_only(vec![echo_with(b"other")])).await.unwrap();
    client.delete(&[ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"))]).await.unwrap();

    let served = Served::start_in(served.stop().await).await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let revisions = client.revisions(RevisionFilter { limit: 10, ..RevisionFilter::default() }).await.unwrap();
    let told: Vec<_> = revisions
        .iter()
        .map(|revision| {
            let changes: Vec<String> =
                revision.changes.iter().map(|it| format!("{} {}", it.object, it.effect())).collect();
            (revision.number, changes.join(", "))
        })
        .collect();
    let first = "module demo/m created, chain demo/echo created, rule demo/ping created";
    assert_eq!(
        told,
        [(3, "rule demo/ping deleted".to_owned()), (2, "chain demo/echo configured".to_owned()), (1, first.to_owned())]
    );
    assert!(revisions.iter().all(|it| it.author.starts_with("uid ") && it.author.ends_with(" (operator)")));
    assert!(revisions.iter().all(|it| it.time_unix_ms > 1_600_000_000_000));
    served.stop().await;
}

#[tokio::test]
async fn a_change_is_refused_if_its_tenant_was_changed_since_the_expected_revision() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let other: TenantName = "other".parse().unwrap();
    let tenants = vec![Tenant::new(other.clone())];
    client.apply(ApplyRequest { tenants, ..ApplyRequest::default() }).await.unwrap();

    let change =
        |config: &[u8], revision| ApplyRequest { options: expecting(revision), ..chains_only(vec![echo_with(config)]) };
    assert_eq!(client.apply(change(b"a", 1)).await.unwrap().version, 3, "revision 2 touched another tenant only");
    for revision in [0, 2] {
        let (code, message) = refused(client.apply(change(b"b", revision)).await);
        assert_eq!(code, Code::Aborted);
        assert!(message.contains("and revision 3 has changed objects of tenant demo since"), "{message}");
    }
    let rule = [ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"))];
    assert_eq!(refused(client.delete_with(&rule, expecting(1)).await).0, Code::Aborted);
    let (code, message) = refused(client.delete_with(&rule, expecting(9)).await);
    assert_eq!((code, &*message), (Code::NotFound, "there is no revision 9 yet: the latest is 3"));
    assert_eq!(client.delete_with(&rule, expecting(3)).await.unwrap().version, 4);
    served.stop().await;
}

#[test]
fn what_a_tenant_has_of_the_history_is_in_its_account() {
    let folder = tempfile::tempdir().unwrap();
    let limits = HistoryLimits { revisions: 10, bytes: 1 << 20 };
    let store = Arc::new(Store::open_with(&folder.path().join("store"), limits).unwrap());
    let control = Control::open(store, Arc::new(TestNode::default())).unwrap();
    let [first, second]: [TenantName; 2] = ["first", "second"].map(|name| name.parse().unwrap());
    for (tenant, weight) in [(&first, 1), (&first, 2), (&second, 1)] {
        let tenants = vec![Tenant { weight, ..Tenant::new(tenant.clone()) }];
        control.apply(ApplyRequest { tenants, ..ApplyRequest::default() }).unwrap();
    }
    control.delete(vec![ObjectRef::from(&Tenant::new(second.clone()))]).unwrap();
    let rows = |tenant| {
        let account = control.account(tenant).unwrap().unwrap();
        let row = |name| account.resources.iter().find(|row| row.name == name).cloned().unwrap();
        ["history_revisions", "history_bytes"].map(row)
    };
    let [revisions, bytes] = rows(&first);
    assert_eq!((revisions.used, revisions.guaranteed, revisions.limit), (2, Some(5), Some(10)));
    assert!((100..1000).contains(&bytes.used), "{bytes:?}");
    assert_eq!((bytes.guaranteed, bytes.limit), (Some(1 << 19), Some(1 << 20)));
    assert_eq!(rows(&second)[0].used, 2, "it has nothing else");
    assert!(control.account(&"third".parse().unwrap()).unwrap().is_none());
}

#[test]
fn what_other_tenants_have_forgotten_does_not_stand_against_an_expected_revision() {
    let folder = tempfile::tempdir().unwrap();
    let limits = HistoryLimits { revisions: 1, ..HistoryLimits::default() };
    let store = Arc::new(Store::open_with(&folder.path().join("store"), limits).unwrap());
    let control = Control::open(store, Arc::new(TestNode::default())).unwrap();
    let tenant = |name: &str| Tenant::new(name.parse().unwrap());
    let apply = |tenant, expected| {
        let options = ChangeOptions { expected_revision: expected, dry_run: false };
        control.apply(ApplyRequest { tenants: vec![tenant], options, ..ApplyRequest::default() })
    };
    apply(tenant("a"), None).unwrap();
    apply(tenant("b"), None).unwrap();
    apply(tenant("c"), Some(0)).expect("it never was there");
    control.delete(vec![ObjectRef::from(&tenant("a"))]).unwrap();
    apply(Tenant { weight: 2, ..tenant("b") }, None).unwrap();
    let refused = apply(tenant("d"), Some(0)).unwrap_err().to_string();
    let expected = "the request expects revision 0, and whether tenant d, which has nothing now, was changed since is known from revision 4 on";
    assert!(refused.starts_with(expected), "{refused}");
    apply(tenant("d"), Some(4)).unwrap();
}

#[tokio::test]
async fn a_dry_run_checks_and_builds_and_answers_as_if_it_were_done_and_changes_nothing() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    served.node.take_calls();
    let try_out = |chain: Chain| ApplyRequest { options: DRY_RUN, ..chains_only(vec![chain]) };
    let changed = client.apply(try_out(echo_with(b"other"))).await.unwrap();
    assert_eq!((changed.version, changed.outcomes[0].effect.to_string()), (2, "configured".to_owned()));
    assert_eq!(served.node.take_calls(), ["check 2", "build 2", "check 2"], "and it follows nothing");
    let (code, _) = refused(client.apply(try_out(echo_with(REFUSED_CONFIG))).await);
    assert_eq!(code, Code::InvalidArgument);
    let module = ObjectRef::Module { tenant: demo(), name: "m".parse().unwrap() };
    assert_eq!(refused(client.delete_with(&[module], DRY_RUN).await).0, Code::FailedPrecondition);
    let rule = ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"));
    assert_eq!(client.delete_with(&[rule], DRY_RUN).await.unwrap().version, 2);
    assert_eq!(client.roll_back(&demo(), Some(0), DRY_RUN).await.unwrap().outcomes.len(), 3);

    assert_eq!(config(&mut client).await, echo_chain("m").stages[0].config);
    assert_eq!(client.rules(Filter::default()).await.unwrap().len(), 1);
    assert_eq!(numbers(&mut client, RevisionFilter::default()).await, [1]);
    served.stop().await;
}

#[tokio::test]
async fn one_apply_creates_and_deletes_or_does_neither() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let replace =
        |deletes| ApplyRequest { rules: vec![rule_to_echo("pong", "10.77.0.2")], deletes, ..ApplyRequest::default() };
    let ping = ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"));
    assert_eq!(refused(client.apply(replace(Vec::new())).await).0, Code::FailedPrecondition, "they are alike");
    let changed = client.apply(replace(vec![ping])).await.unwrap();
    let outcomes: Vec<String> = changed.outcomes.iter().map(|it| format!("{} {}", it.object, it.effect)).collect();
    assert_eq!(outcomes, ["rule demo/pong created", "rule demo/ping deleted"]);
    assert_eq!(changed.version, 2);
    served.stop().await;
}

#[tokio::test]
async fn an_undo_returns_what_was_changed_deleted_and_created_and_can_be_undone() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let mut change = chains_only(vec![echo_with(b"other")]);
    change.deletes = vec![ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"))];
    change.rules = vec![rule_to_echo("pong", "10.77.0.3")];
    client.apply(change).await.unwrap();
    let before = client.objects_at(&demo(), Some(1)).await.unwrap();
    let after = client.objects_at(&demo(), None).await.unwrap();

    let restored = client.roll_back(&demo(), None, ChangeOptions::default()).await.unwrap();
    assert_eq!((restored.version, restored.restored), (3, 1));
    let outcomes: Vec<String> = restored.outcomes.iter().map(|it| format!("{} {}", it.object, it.effect)).collect();
    assert_eq!(outcomes, ["chain demo/echo configured", "rule demo/ping created", "rule demo/pong deleted"]);
    assert_eq!(client.objects_at(&demo(), None).await.unwrap(), before);
    assert_eq!(client.roll_back(&demo(), None, ChangeOptions::default()).await.unwrap().version, 4);
    assert_eq!(client.objects_at(&demo(), None).await.unwrap(), after);
    let same = client.roll_back(&demo(), Some(2), ChangeOptions::default()).await.unwrap();
    assert_eq!((same.version, same.outcomes.len()), (4, 0), "it is so already");
    served.stop().await;
}

#[tokio::test]
async fn an_undo_undoes_no_revision_that_came_after_it_was_asked_for() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    client.apply(chains_only(vec![echo_with(b"other")])).await.unwrap();
    served.node.take_calls();
    // Changes are made while the undo waits for a build.
    *served.node.build_time.lock().unwrap() = Duration::from_secs(60);
    let mut undoing = client.clone();
    let undo = tokio::spawn(async move { undoing.roll_back(&demo(), None, ChangeOptions::default()).await });
    served.node.wait_for_calls(2).await;
    client.delete(&[ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"))]).await.unwrap();
    *served.node.build_time.lock().unwrap() = Duration::ZERO;
    let (code, message) = refused(undo.await.unwrap());
    assert_eq!(code, Code::Aborted);
    assert!(
        message.starts_with("revision 3 has changed objects of tenant demo since it was asked to undo"),
        "{message}"
    );
    assert_eq!(config(&mut client).await, b"other");
    served.stop().await;
}

#[tokio::test]
async fn what_a_return_leads_to_is_found_out_while_other_changes_are_made() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    served.node.take_calls();
    served.node.takes_long.store(true, Ordering::Relaxed);
    let mut applying = client.clone();
    let apply = tokio::spawn(async move { applying.apply(chains_only(vec![echo_with(b"other")])).await });
    served.node.wait_for_calls(4).await;
    let (code, _) = refused(client.roll_back(&demo(), Some(9), ChangeOptions::default()).await);
    assert_eq!(code, Code::NotFound);
    assert_eq!(client.status().await.unwrap().node.followed_version, 1, "the other change is still under way");
    client.roll_back(&demo(), Some(1), ChangeOptions::default()).await.unwrap();
    apply.await.unwrap().unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_return_of_one_tenant_leaves_others_as_they_are() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let other: TenantName = "other".parse().unwrap();
    let digest = client.upload(&other, wasm("o")).await.unwrap();
    let mut module = named("o", digest);
    module.tenant = other.clone();
    client.apply(ApplyRequest { modules: vec![module], ..ApplyRequest::default() }).await.unwrap();
    client.roll_back(&demo(), Some(0), ChangeOptions::default()).await.unwrap();
    assert!(client.objects_at(&demo(), None).await.unwrap().is_empty());
    assert_eq!(client.objects_at(&other, None).await.unwrap().len(), 1);
    assert_eq!(numbers(&mut client, RevisionFilter { tenant: Some(other), ..RevisionFilter::default() }).await, [2]);
    served.stop().await;
}

#[tokio::test]
async fn a_tenant_of_a_name_that_was_deleted_begins_anew_and_the_operators_undo_brings_the_earlier_one_back() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let terms = || ApplyRequest { tenants: vec![Tenant::new(demo())], ..ApplyRequest::default() };
    client.apply(terms()).await.unwrap();
    apply_small(&mut client).await;
    let all: Vec<ObjectRef> =
        client.objects_at(&demo(), None).await.unwrap().iter().map(|object| object.name()).collect();
    client.delete(&all).await.unwrap();
    client.roll_back(&demo(), None, ChangeOptions::default()).await.unwrap();
    assert_eq!(client.objects_at(&demo(), None).await.unwrap().len(), 4);
    assert_eq!(numbers(&mut client, RevisionFilter::default()).await, [4, 3, 2, 1]);

    client.delete(&all).await.unwrap();
    client.apply(terms()).await.unwrap();
    assert_eq!(numbers(&mut client, RevisionFilter::default()).await, [6]);
    let (code, message) = refused(client.objects_at(&demo(), Some(2)).await);
    assert_eq!(code, Code::NotFound);
    assert_eq!(message, "revision 2 of tenant demo is not kept any more: the earliest that is known is 5");
    let digest = Digest::of(&wasm("m"));
    let modules = vec![named("m", digest)];
    let not_uploaded = client.apply(ApplyRequest { modules, ..ApplyRequest::default() }).await;
    assert_eq!(refused(not_uploaded).0, Code::FailedPrecondition);
    served.stop().await;
}

#[tokio::test]
async fn a_return_to_what_is_no_longer_valid_is_refused_as_a_whole() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let terms = |rules_max| {
        let tenants = vec![Tenant { rules_max, ..Tenant::new(demo()) }];
        ApplyRequest { tenants, ..ApplyRequest::default() }
    };
    client.apply(terms(None)).await.unwrap();
    apply_small(&mut client).await;
    client.apply(chains_only(vec![echo_with(b"other")])).await.unwrap();
    client.delete(&[ObjectRef::from(&rule_to_echo("ping", "10.77.0.2"))]).await.unwrap();
    client.apply(terms(Some(0))).await.unwrap();
    let folder = served.stop().await;
    let store = Arc::new(Store::open(&folder.path().join("store")).unwrap());
    let control = Control::open(store, Arc::new(TestNode::default())).unwrap();

    let admin = Author { name: "alice (tenant admin of demo)".to_owned(), tenant: Some(demo()) };
    let refused = control.roll_back(&admin, &demo(), Some(2), ChangeOptions::default()).unwrap_err().to_string();
    assert!(
        refused.starts_with("rules: tenant demo would have 1, and the operator grants it 0 (rules_max)"),
        "{refused}"
    );
    let desired = control.desired();
    assert_eq!(
        (desired.version(), &desired.chain(&demo(), &echo_chain("m").name).unwrap().stages[0].config[..]),
        (5, &b"other"[..])
    );
    let operator = Author::operator("uid 0 (operator)");
    control.roll_back(&operator, &demo(), Some(2), ChangeOptions::default()).unwrap();
    let desired = control.desired();
    assert_eq!(
        (desired.rules().len(), desired.tenant(&demo()).unwrap().rules_max),
        (1, None),
        "with the terms of then"
    );
}

#[tokio::test]
async fn a_tenants_undo_passes_over_what_the_operator_changed_of_its_terms() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    client.apply(chains_only(vec![echo_with(b"other")])).await.unwrap();
    let terms = Tenant { weight: 7, ..Tenant::new(demo()) };
    client.apply(ApplyRequest { tenants: vec![terms], ..ApplyRequest::default() }).await.unwrap();
    let folder = served.stop().await;
    let store = Arc::new(Store::open(&folder.path().join("store")).unwrap());
    let control = Control::open(store, Arc::new(TestNode::default())).unwrap();
    let admin = Author { name: "alice (tenant admin of demo)".to_owned(), tenant: Some(demo()) };
    let restored = control.roll_back(&admin, &demo(), None, ChangeOptions::default()).unwrap();
    assert_eq!((restored.restored, restored.outcomes.len()), (1, 1));
    assert_eq!(control.desired().tenant(&demo()).unwrap().weight, 7);
    assert_eq!(control.desired().chains().values().next().unwrap().stages, echo_chain("m").stages);
}

#[tokio::test]
async fn revisions_that_are_not_there_are_told_from_those_that_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let limits = HistoryLimits { revisions: 2, ..HistoryLimits::default() };
    let store = Arc::new(Store::open_with(&folder.path().join("store"), limits).unwrap());
    let control = Control::open(store, Arc::new(TestNode::default())).unwrap();
    let undone = control.roll_back(&Author::operator("uid 0"), &demo(), None, ChangeOptions::default());
    assert_eq!(undone.unwrap_err().to_string(), "tenant demo has no revision to undo: none is kept, or there was none");
    for weight in 1..=4 {
        let tenants = vec![Tenant { weight, ..Tenant::new(demo()) }];
        control.apply(ApplyRequest { tenants, ..ApplyRequest::default() }).unwrap();
    }
    let message = |number| control.objects_at(&demo(), Some(number)).unwrap_err().to_string();
    assert_eq!(message(5), "there is no revision 5 yet: the latest is 4");
    assert_eq!(message(1), "revision 1 of tenant demo is not kept any more: the earliest that is known is 2");
    assert_eq!(control.objects_at(&demo(), Some(2)).unwrap().len(), 1);

    let unknown: TenantName = "tpyo".parse().unwrap();
    let sentence =
        "there is no tenant tpyo: it has no terms, no object and no revision (pinion history -A shows all revisions)";
    assert_eq!(control.objects_at(&unknown, Some(0)).unwrap_err().to_string(), sentence);
    let undone = control.roll_back(&Author::operator("uid 0"), &unknown, Some(0), ChangeOptions::default());
    assert_eq!(undone.unwrap_err().to_string(), sentence);
    assert_eq!(control.objects_at(&unknown, None).unwrap(), [], "there is nothing of it now");
    assert!(control.past(Some(&unknown), &unknown, Some(0)).is_ok(), "a tenant's callers know that there is theirs");
}

#[tokio::test]
async fn revisions_and_their_objects_come_in_order_however_many_pages_they_take() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let rule = |number: usize| rule_to_echo(&format!("r{number:03}"), &format!("10.78.0.{number}"));
    let rules = (0..200).map(rule).collect();
    client.apply(ApplyRequest { rules, ..ApplyRequest::default() }).await.unwrap();
    for number in 0..40 {
        client.apply(chains_only(vec![echo_with(&[number])])).await.unwrap();
    }
    let objects = client.objects_at(&demo(), Some(2)).await.unwrap();
    let names: Vec<String> = objects.iter().map(|object| object.name().to_string()).collect();
    assert_eq!(names.len(), 203);
    let is_first =
        |it: &Labelled<Object>| matches!(&it.object, Object::Chain(chain) if chain.stages == echo_chain("m").stages);
    assert!(objects.iter().any(is_first));
    assert!(names.iter().filter(|name| name.starts_with("rule demo/r")).is_sorted());
    let filter = |limit, before| RevisionFilter { limit, before, ..RevisionFilter::default() };
    let expected: Vec<u64> = (1..=42).rev().collect();
    assert_eq!(numbers(&mut client, filter(1000, None)).await, expected);
    assert_eq!(numbers(&mut client, filter(20, Some(40))).await, expected[3..23]);
    served.stop().await;
}

#[test]
fn a_revision_that_is_forgotten_while_it_is_read_ends_the_reading_with_that() {
    let folder = tempfile::tempdir().unwrap();
    let limits = HistoryLimits { revisions: 1, ..HistoryLimits::default() };
    let store = Arc::new(Store::open_with(&folder.path().join("store"), limits).unwrap());
    let control = Control::open(store, Arc::new(TestNode::default())).unwrap();
    let weigh = |weight| {
        let tenants = vec![Tenant { weight, ..Tenant::new(demo()) }];
        control.apply(ApplyRequest { tenants, ..ApplyRequest::default() }).unwrap();
    };
    weigh(1);
    let mut past = control.past(None, &demo(), None).unwrap();
    weigh(2);
    weigh(3);
    let error = control.next_objects(&mut past).unwrap_err().to_string();
    assert_eq!(error, "revision 1 of tenant demo is not kept any more: the earliest that is known is 2");
}

#[tokio::test]
async fn the_operators_return_to_before_a_tenants_terms_keeps_them_while_it_has_objects() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    let mut request = chains_only(vec![echo_with(b"other")]);
    request.tenants.push(Tenant::new(demo()));
    client.apply(request).await.unwrap();
    assert_eq!(client.roll_back(&demo(), Some(1), ChangeOptions::default()).await.unwrap().outcomes.len(), 1);
    assert_eq!(client.tenants(None).await.unwrap().len(), 1);
    client.roll_back(&demo(), Some(0), ChangeOptions::default()).await.unwrap();
    assert_eq!(client.tenants(None).await.unwrap().len(), 0, "and nothing is left of it");
    served.stop().await;
}

#[tokio::test]
async fn a_module_that_only_a_revision_needs_is_kept_for_it_and_returns_with_it() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    apply_small(&mut client).await;
    client.roll_back(&demo(), Some(0), ChangeOptions::default()).await.unwrap();
    assert!(client.modules(Filter::default()).await.unwrap().is_empty());
    assert!(client.uploads(None).await.unwrap().is_empty(), "a revision needs it");
    let account = client.account(&demo()).await.unwrap();
    let uploads = account.resources.iter().find(|resource| resource.name == "uploads").unwrap();
    assert_eq!(uploads.used, 1, "and it counts");
    client.roll_back(&demo(), None, ChangeOptions::default()).await.unwrap();
    assert_eq!(client.modules(Filter::default()).await.unwrap().len(), 1);
    served.stop().await;
}

#[test]
fn the_first_tenants_are_a_revision_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&folder.path().join("store")).unwrap());
    let settings = Settings { tenants: vec![Tenant::new(demo())], secret: None };
    let control = Control::open_with(store, Arc::new(TestNode::default()), settings).unwrap();
    let page = control.revision_page(None, &RevisionFilter { limit: 9, ..RevisionFilter::default() }).unwrap();
    assert_eq!(page.revisions.iter().map(|it| &*it.author).collect::<Vec<_>>(), ["the node's configuration"]);
}

/// What happens to a control plane.
#[derive(Clone, Debug)]
enum Step {
    /// A chain gets a configuration, or one that is refused. So is any chain once the module is undone.
    Apply(usize, Option<u8>),
    /// A chain is deleted, if it is there.
    Delete(usize),
    /// The latest revision is undone.
    Undo,
    /// A return to what was so many revisions ago.
    Return(u64),
    /// A change that is only checked.
    DryRun(usize, u8),
    /// The node starts again.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3_usize, proptest::option::weighted(0.8, 0..4_u8)).prop_map(|(name, config)| Step::Apply(name, config)),
        2 => (0..3_usize).prop_map(Step::Delete),
        2 => Just(Step::Undo),
        1 => (0..9_u64).prop_map(Step::Return),
        1 => (0..3_usize, 0..4_u8).prop_map(|(name, config)| Step::DryRun(name, config)),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..20)
}

fn chain(name: usize, config: Vec<u8>) -> Chain {
    let name = ["a", "b", "c"][name].parse().unwrap();
    Chain::new(demo(), name, vec![Stage::new("m".parse().unwrap(), config)])
}

fn started(folder: &Path) -> Control {
    let store = Store::open_with(&folder.join("store"), HistoryLimits { revisions: 6, ..HistoryLimits::default() });
    Control::open(Arc::new(store.unwrap()), Arc::new(TestNode::default())).unwrap()
}

fn state_of(control: &Control) -> BTreeMap<ObjectRef, Labelled<Object>> {
    control.desired().objects_of(&demo()).into_iter().map(|object| (object.name(), object)).collect()
}

/// Returns whether the module of all chains is there, and was not undone.
fn has_module(control: &Control) -> bool {
    state_of(control).keys().any(|object| object.kind() == "module")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_sequence_of_changes_undos_and_restarts_ends_in_the_state_of_those_acknowledged(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let mut control = started(folder.path());
        let (operator, digest) = (Author::operator("uid 0"), Digest::of(&wasm("m")));
        control.upload(UploadKind::Module, &demo(), &digest, &wasm("m")).unwrap();
        control.apply(ApplyRequest { modules: vec![named("m", digest)], ..ApplyRequest::default() }).unwrap();
        // What was acknowledged, by version.
        let mut states = vec![BTreeMap::new(), state_of(&control)];
        for step in steps {
            let version = states.len() as u64 - 1;
            let made = match step {
                Step::Apply(name, config) => {
                    let config = config.map_or(REFUSED_CONFIG.to_vec(), |byte| vec![byte]);
                    let is_refused = config == REFUSED_CONFIG || !has_module(&control);
                    let object = Object::Chain(Arc::new(chain(name, config.clone())));
                    let object = Labelled { object, label: None };
                    let made = control.apply(chains_only(vec![chain(name, config)])).map(|changed| changed.version);
                    prop_assert_eq!(made.is_err(), is_refused);
                    made.ok().map(|made| {
                        let mut state = states.last().unwrap().clone();
                        state.insert(object.name(), object);
                        (made, state)
                    })
                }
                Step::Delete(name) => {
                    let object = ObjectRef::from(&chain(name, Vec::new()));
                    control.delete(vec![object.clone()]).ok().map(|changed| {
                        let mut state = states.last().unwrap().clone();
                        state.remove(&object);
                        (changed.version, state)
                    })
                }
                Step::Undo | Step::Return(_) => {
                    let to = if let Step::Return(ago) = step { Some(version.saturating_sub(ago)) } else { None };
                    let made = control.roll_back(&operator, &demo(), to, ChangeOptions::default());
                    made.ok().map(|made| (made.version, states[made.restored as usize].clone()))
                }
                Step::DryRun(name, config) => {
                    let request = chains_only(vec![chain(name, vec![config])]);
                    let checked = control.apply(ApplyRequest { options: DRY_RUN, ..request });
                    prop_assert_eq!(checked.is_err(), !has_module(&control));
                    None
                }
                Step::Restart => {
                    drop(control);
                    control = started(folder.path());
                    None
                }
            };
            if let Some((made, state)) = made
                && made > version
            {
                prop_assert_eq!(made, version + 1);
                states.push(state);
            }
            prop_assert_eq!(&state_of(&control), states.last().unwrap());
            prop_assert_eq!(control.desired().version(), states.len() as u64 - 1);
        }
        drop(control);
        prop_assert_eq!(&state_of(&started(folder.path())), states.last().unwrap());
    }
}
