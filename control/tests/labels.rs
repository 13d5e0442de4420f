//! Labels over a real Unix socket, with a fake data plane: what an apply prunes, and what revisions have of labels.

use std::collections::BTreeSet;

use crate::support::{Served, demo, echo_chain, named, rule_to_echo, wasm};
use pinion_control::Client;
use pinion_control::client::{ClientError, Filter};
use pinion_control::control::{ApplyRequest, ChangeOptions, Changed};
use pinion_control::model::{Labelling, RevisionFilter, Rule, TenantName};
use tonic::Code;

fn label(name: &str) -> Labelling {
    Labelling { label: Some(name.parse().unwrap()), ..Labelling::default() }
}

fn pruning(name: &str) -> Labelling {
    Labelling { prune: [demo()].into(), ..label(name) }
}

fn rules(names: &[&str], labelling: Labelling) -> ApplyRequest {
    let destination = |name: &str| format!("10.77.0.{}", name.len());
    let rules: Vec<Rule> = names.iter().map(|name| rule_to_echo(name, &destination(name))).collect();
    ApplyRequest { rules, labelling, ..ApplyRequest::default() }
}

fn effects(changed: &Changed) -> Vec<String> {
    changed.outcomes.iter().map(|outcome| format!("{} {}", outcome.object, outcome.effect)).collect()
}

fn refused(error: ClientError) -> (Code, String) {
    match error {
        ClientError::Refused { code, message } => (code, message),
        other => panic!("not a refusal: {other:?}"),
    }
}

/// Starts with module `m` and chain `demo/echo` without a label, as version 1, and rules `a` and `bb` of label `web`, as version 2.
async fn start() -> (Served, Client) {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let digest = client.upload(&demo(), wasm("m")).await.unwrap();
    let (modules, chains) = (vec![named("m", digest)], vec![echo_chain("m")]);
    client.apply(ApplyRequest { modules, chains, ..ApplyRequest::default() }).await.unwrap();
    client.apply(rules(&["a", "bb"], label("web"))).await.unwrap();
    (served, client)
}

/// Returns all rules with their labels, as `a web`.
async fn listed(client: &mut Client) -> Vec<String> {
    let rules = client.rules(Filter::default()).await.unwrap();
    let label =
        |rule: &pinion_control::model::Labelled<Rule>| rule.label.as_ref().map_or("-".into(), ToString::to_string);
    rules.iter().map(|rule| format!("{} {}", rule.name, label(rule))).collect()
}

#[tokio::test]
async fn an_apply_prunes_in_its_own_change_what_is_gone_from_the_manifest() {
    let (served, mut client) = start().await;
    served.node.take_calls();
    let request = || rules(&["a", "ccc"], pruning("web"));
    let dry_run = ChangeOptions { dry_run: true, expected_revision: None };
    let planned = client.apply(ApplyRequest { options: dry_run, ..request() }).await.unwrap();
    assert_eq!(listed(&mut client).await, ["a web", "bb web"]);
    let done = client.apply(request()).await.unwrap();
    assert_eq!(effects(&done), ["rule demo/a unchanged", "rule demo/ccc created", "rule demo/bb pruned"]);
    assert_eq!((planned.outcomes, done.version), (done.outcomes, 3));
    assert_eq!(served.node.take_calls(), ["check 3", "check 3", "follow 3"]);
    assert_eq!(listed(&mut client).await, ["a web", "ccc web"]);
    let filter = RevisionFilter { limit: 1, ..RevisionFilter::default() };
    let revision = client.revisions(filter).await.unwrap().remove(0);
    assert_eq!((revision.number, revision.counts.created, revision.counts.deleted), (3, 1, 1));
    assert_eq!(client.apply(request()).await.unwrap().version, 3, "there is nothing left to prune");
    served.stop().await;
}

#[tokio::test]
async fn an_undo_returns_what_was_pruned_and_the_labels() {
    let (served, mut client) = start().await;
    client.apply(rules(&["a"], pruning("web"))).await.unwrap();
    let taken = Labelling { take_over: true, ..label("db") };
    client.apply(rules(&["a"], taken)).await.unwrap();
    assert_eq!(listed(&mut client).await, ["a db"]);
    client.roll_back(&demo(), None, ChangeOptions::default()).await.unwrap();
    assert_eq!(listed(&mut client).await, ["a web"]);
    client.roll_back(&demo(), Some(2), ChangeOptions::default()).await.unwrap();
    assert_eq!(listed(&mut client).await, ["a web", "bb web"]);
    client.roll_back(&demo(), Some(1), ChangeOptions::default()).await.unwrap();
    client.roll_back(&demo(), None, ChangeOptions::default()).await.unwrap();

    let served = Served::start_in(served.stop().await).await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    assert_eq!(listed(&mut client).await, ["a web", "bb web"]);
    served.stop().await;
}

#[tokio::test]
async fn a_manifest_of_another_label_changes_nothing_and_names_the_owner_and_the_remedy() {
    let (served, mut client) = start().await;
    let (code, message) = refused(client.apply(rules(&["ccc", "a"], pruning("db"))).await.unwrap_err());
    assert_eq!(code, Code::FailedPrecondition);
    assert!(
        message.starts_with("rule demo/a belongs to the manifests with label web, ")
            && message.ends_with("(--take-over)")
    );
    assert_eq!(listed(&mut client).await, ["a web", "bb web"]);
    served.stop().await;
}

#[tokio::test]
async fn pruning_needs_a_label_and_is_judged_by_the_expected_revision_of_the_pruned_tenants() {
    let (served, mut client) = start().await;
    let without = Labelling { label: None, ..pruning("web") };
    let (code, _) = refused(client.apply(rules(&["a"], without)).await.unwrap_err());
    assert_eq!(code, Code::InvalidArgument);
    let options = ChangeOptions { expected_revision: Some(1), dry_run: false };
    let labelling = pruning("web");
    let outdated = ApplyRequest { labelling, options, ..ApplyRequest::default() };
    assert_eq!(refused(client.apply(outdated).await.unwrap_err()).0, Code::Aborted);
    assert_eq!(listed(&mut client).await, ["a web", "bb web"]);
    served.stop().await;
}

#[tokio::test]
async fn objects_of_other_tenants_are_not_pruned() {
    let (served, mut client) = start().await;
    let other: TenantName = "other".parse().unwrap();
    let of_other = Labelling { prune: BTreeSet::from([other]), ..label("web") };
    let request = ApplyRequest { labelling: of_other, ..ApplyRequest::default() };
    assert_eq!(client.apply(request).await.unwrap().outcomes, []);
    assert_eq!(listed(&mut client).await, ["a web", "bb web"]);
    served.stop().await;
}
