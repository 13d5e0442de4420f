//! Tests of tenants as objects: over the API, across restarts, and as the node's configuration has them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Served, TestNode, demo, echo_chain, named, rule_to_echo, wasm};
use pinion_control::client::{ClientError, Filter};
use pinion_control::control::{ApplyRequest, Changed, ControlError, IfFull, Settings, UploadKind};
use pinion_control::model::{Chain, Digest, ObjectRef, Tenant, TenantName};
use pinion_control::node::Call;
use pinion_control::{Client, Control, Store};
use tonic::Code;

fn tenants_only(tenants: Vec<Tenant>) -> ApplyRequest {
    ApplyRequest { tenants, ..ApplyRequest::default() }
}

fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (Code, String) {
    match result.unwrap_err() {
        ClientError::Refused { code, message } => (code, message),
        other => panic!("not a refusal: {other:?}"),
    }
}

fn effects(changed: &Changed) -> Vec<String> {
    changed.outcomes.iter().map(|outcome| format!("{} {}", outcome.object, outcome.effect)).collect()
}

/// Applies the tenant, the module `m`, the chain `echo` and the rule `ping` of it in one change.
async fn apply_all(client: &mut Client, tenant: Tenant) -> Result<Changed, ClientError> {
    let digest = client.upload(&demo(), wasm("m")).await?;
    let mut rule = rule_to_echo("ping", "10.77.0.2");
    rule.matcher.port = Some(crate::support::PORT.parse().unwrap());
    let request = ApplyRequest {
        tenants: vec![tenant],
        modules: vec![named("m", digest)],
        chains: vec![echo_chain("m")],
        rules: vec![rule],
        ..ApplyRequest::default()
    };
    client.apply(request).await
}

#[tokio::test]
async fn a_tenant_is_applied_with_its_objects_listed_kept_across_a_restart_and_deleted() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let tenant = Tenant {
        weight: 5,
        memory_mib: Some(64),
        ports: [crate::support::PORT.parse().unwrap()].into(),
        ..Tenant::new(demo())
    };
    let changed = apply_all(&mut client, tenant.clone()).await.unwrap();
    let created = ["tenant demo created", "module demo/m created", "chain demo/echo created", "rule demo/ping created"];
    assert_eq!(effects(&changed), created);
    let again = client.apply(tenants_only(vec![tenant.clone()])).await.unwrap();
    assert_eq!((again.version, effects(&again)), (changed.version, vec!["tenant demo unchanged".to_owned()]));

    let served = Served::start_in(served.stop().await).await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    assert_eq!(client.tenants(None).await.unwrap(), std::slice::from_ref(&tenant));
    assert_eq!(client.tenants(Some("other".parse().unwrap())).await.unwrap(), []);
    let (code, message) = refused(client.delete(&[ObjectRef::from(&tenant)]).await);
    assert_eq!(code, Code::FailedPrecondition);
    assert_eq!(
        message,
        "tenant demo still has objects (1 module, 1 chain, 1 rule): delete them first, or all together"
    );
    let objects: Vec<ObjectRef> = changed.outcomes.into_iter().map(|outcome| outcome.object).collect();
    assert_eq!(client.delete(&objects).await.unwrap().outcomes.len(), 4);
    assert_eq!(client.tenants(None).await.unwrap(), []);
    served.stop().await;
}

#[tokio::test]
async fn what_contradicts_a_tenants_terms_is_refused_with_its_kind_of_error_and_changes_nothing() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let plain = Tenant::new(demo());
    let (code, message) = refused(client.apply(tenants_only(vec![Tenant { weight: 0, ..plain.clone() }])).await);
    assert_eq!(
        (code, message.as_str()),
        (Code::InvalidArgument, "tenant demo: weight is 0: it must be from 1 to 1000")
    );

    let elsewhere = Tenant { addresses: ["10.78.0.0/16".parse().unwrap()].into(), ..plain.clone() };
    let (code, message) = refused(apply_all(&mut client, elsewhere).await);
    assert_eq!(code, Code::FailedPrecondition);
    let expected = "rule demo/ping: it matches port lan, destination 10.77.0.2/32, and its tenant is granted only packets from or to \
                    10.78.0.0/16";
    assert!(message.starts_with(expected), "{message}");

    let few = Tenant { chains_max: Some(1), upload_mib: Some(0), ..plain.clone() };
    client.apply(tenants_only(vec![Tenant { upload_mib: None, ..few.clone() }])).await.unwrap();
    apply_all(&mut client, few).await.unwrap();
    let second = Chain { name: "second".parse().unwrap(), ..echo_chain("m") };
    let second = ApplyRequest { chains: vec![second], ..ApplyRequest::default() };
    let (code, message) = refused(client.apply(second).await);
    assert_eq!(code, Code::ResourceExhausted);
    assert!(
        message.starts_with("chains: tenant demo would have 2, and the operator grants it 1 (chains_max)"),
        "{message}"
    );
    let (code, message) = refused(client.upload(&demo(), wasm("other")).await);
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("the operator grants it 0 (upload_mib)"), "{message}");
    assert_eq!(client.chains(Filter::default()).await.unwrap().len(), 1);

    let account = client.account(&demo()).await.unwrap();
    let of = |name: &str| account.resources.iter().find(|resource| resource.name == name).unwrap();
    assert_eq!((of("chains").used, of("chains").limit, of("chains").refused), (1, Some(1), Some(1)));
    assert_eq!((of("upload_bytes").limit, of("upload_bytes").refused), (Some(0), Some(1)));
    served.stop().await;
}

#[tokio::test]
async fn chains_of_modules_that_are_invoked_by_name_count_as_chains_of_their_tenant() {
    let served = Served::start().await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let tenant = Tenant { chains_max: Some(2), ..Tenant::new(demo()) };
    apply_all(&mut client, tenant).await.unwrap();
    let mut modules = Vec::new();
    for name in ["first", "second"] {
        modules.push(named(name, client.upload(&demo(), wasm(name)).await.unwrap()));
    }
    client.apply(ApplyRequest { modules, ..ApplyRequest::default() }).await.unwrap();
    let call = |name: &str| Call {
        tenant: demo(),
        chain: name.parse().unwrap(),
        payload: Vec::new(),
        timeout: Duration::from_secs(10),
    };
    client.invoke(call("first")).await.unwrap();
    let (code, message) = refused(client.invoke(call("second")).await);
    assert_eq!(code, Code::ResourceExhausted);
    assert!(
        message.starts_with("chains: tenant demo would have 3, and the operator grants it 2 (chains_max)"),
        "{message}"
    );
    // What it has stays callable, and it may have another instead.
    client.invoke(call("first")).await.unwrap();
    client.delete(&[ObjectRef::Module { tenant: demo(), name: "first".parse().unwrap() }]).await.unwrap();
    client.invoke(call("second")).await.unwrap();
    let account = client.account(&demo()).await.unwrap();
    let chains = account.resources.iter().find(|resource| resource.name == "chains").unwrap();
    assert_eq!(chains.refused, Some(1));
    served.stop().await;
}

#[tokio::test]
async fn a_tenant_that_has_terms_and_nothing_else_has_an_account() {
    let served = Served::start().await;
    let idle: TenantName = "idle".parse().unwrap();
    let mut client = Client::connect(&served.socket).await.unwrap();
    assert_eq!(refused(client.account(&idle).await).0, Code::NotFound);
    client.apply(tenants_only(vec![Tenant { rules_max: Some(3), ..Tenant::new(idle.clone()) }])).await.unwrap();
    let account = client.account(&idle).await.unwrap();
    let rules = account.resources.iter().find(|resource| resource.name == "rules").unwrap();
    assert_eq!((rules.used, rules.limit), (0, Some(3)));
    served.stop().await;
}

/// Opens the store in this folder with these tenants in the node's configuration.
fn open(folder: &Path, tenants: &[Tenant]) -> Control {
    let store = Arc::new(Store::open(&folder.join("store")).unwrap());
    let settings = Settings { tenants: tenants.to_vec(), secret: None };
    Control::open_with(store, Arc::new(TestNode::default()), settings).unwrap()
}

#[test]
fn tenants_of_the_configuration_are_added_once_and_what_is_applied_later_stays_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let configured = [Tenant { weight: 2, ..Tenant::new(demo()) }, Tenant::new("other".parse().unwrap())];
    let control = open(folder.path(), &configured);
    assert_eq!((control.desired().version(), control.desired().tenants().len()), (1, 2));
    assert_eq!(control.status().warnings, Vec::<String>::new());
    drop(control);

    let control = open(folder.path(), &configured);
    assert_eq!((control.desired().version(), control.status().warnings), (1, Vec::new()));
    let applied = Tenant { weight: 9, memory_mib: Some(5), ..Tenant::new(demo()) };
    control.apply(tenants_only(vec![applied.clone()])).unwrap();
    drop(control);

    let control = open(folder.path(), &configured);
    assert_eq!(control.desired().tenant(&demo()).unwrap().weight, 9);
    let differs = "tenant demo has other terms than in the node's configuration (weight, memory_mib): what was applied is in force; \
                   apply it as it should be (pinion apply), and make the [[tenant]] of the configuration alike or remove it";
    assert_eq!(control.status().warnings, [differs]);
    control.apply(tenants_only(vec![configured[0].clone()])).unwrap();
    assert_eq!(control.status().warnings, Vec::<String>::new(), "as soon as it is alike");
    control.delete(vec![ObjectRef::from(&configured[1])]).unwrap();
    let [deleted] = &control.status().warnings[..] else { panic!("one tenant is gone") };
    assert!(deleted.starts_with("tenant other was deleted, and is added again when the node starts"), "{deleted}");
}

#[test]
fn a_tenant_that_was_deleted_since_its_upload_began_stores_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let control = open(folder.path(), &[]);
    let wasm = wasm("m");
    let (kind, digest) = (UploadKind::Module, Digest::of(&wasm));
    let upload =
        |by: Option<&TenantName>| control.upload_as(by, IfFull::ForgetRevisions, kind, &demo(), &digest, &wasm);
    let refused = upload(Some(&demo())).unwrap_err();
    assert!(matches!(refused, ControlError::UnknownTenant(_)), "{refused}");
    assert!(control.unnamed_uploads().unwrap().is_empty());
    upload(None).expect("the operator uploads for any tenant");
}

#[test]
fn a_tenant_of_the_configuration_that_contradicts_what_is_stored_is_left_out_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let control = open(folder.path(), &[]);
    let wasm = wasm("m");
    control.upload(UploadKind::Module, &demo(), &Digest::of(&wasm), &wasm).unwrap();
    let stored = ApplyRequest {
        modules: vec![named("m", Digest::of(&wasm))],
        chains: vec![echo_chain("m")],
        rules: vec![rule_to_echo("ping", "10.77.0.2")],
        ..ApplyRequest::default()
    };
    control.apply(stored).unwrap();
    drop(control);

    let narrow = Tenant { ports: ["wan".parse().unwrap()].into(), ..Tenant::new(demo()) };
    let control = open(folder.path(), &[narrow, Tenant::new("other".parse().unwrap())]);
    let desired = control.desired();
    assert_eq!(desired.tenants().keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["other"]);
    assert_eq!(desired.rules().len(), 1);
    let [warning] = &control.status().warnings[..] else { panic!("one tenant is left out") };
    let expected =
        "tenant demo of the node's configuration is not in force: rule demo/ping: it matches packets of every port";
    assert!(warning.starts_with(expected), "{warning}");
}
