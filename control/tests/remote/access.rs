//! Which callers may call which methods, and what they learn of others.

use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_control::access::Row;
use pinion_control::journal::{Level, LogLine, Origin};
use pinion_control::pem::Pem;
use pinion_control::{Client, proto};
use prost::Message;
use prost_reflect::DescriptorPool;
use proto::upload_request::{Header, Part};
use rcgen::KeyPair;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::authority::{ADMIN, OPERATOR, RIVAL, VIEWER};
use super::calls::call;
use super::served::{Remote, limits};
use crate::support::wasm;

const GET_STATUS: &str = "/pinion.v1.Control/GetStatus";

/// The least role that a method is for.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Least {
    Anyone,
    Viewer,
    Admin,
}

/// Every method, whom it is for, and a request that names this tenant.
fn methods(tenant: &str) -> Vec<(&'static str, Least, Vec<u8>)> {
    let (filter, name, of) = (Some(tenant.to_owned()), None, tenant.to_owned());
    let module = proto::Module { tenant: of.clone(), name: "m".into(), ..Default::default() };
    let object = proto::ObjectRef { kind: proto::Kind::Rule.into(), tenant: of.clone(), name: "r".into() };
    let header = Header { tenant: of.clone(), digest: "sha256:".into(), size_bytes: 1, keep_history: false };
    let upload = proto::UploadRequest { part: Some(Part::Header(header)) }.encode_to_vec();
    let apply = proto::ApplyRequest { modules: vec![module], ..Default::default() };
    let delete = proto::DeleteRequest { objects: vec![object], ..Default::default() };
    let invoke = proto::InvokeRequest { tenant: of.clone(), name: "c".into(), ..Default::default() };
    let chain = None;
    vec![
        ("/pinion.v1.Control/UploadModule", Least::Admin, upload.clone()),
        ("/pinion.v1.Control/UploadFiles", Least::Admin, upload.clone()),
        ("/pinion.v1.Control/UploadModel", Least::Admin, upload),
        (
            "/pinion.v1.Control/UploadKey",
            Least::Admin,
            proto::UploadKeyRequest { tenant: of.clone(), pem: b"no key".to_vec(), keep_history: false }
                .encode_to_vec(),
        ),
        ("/pinion.v1.Control/Apply", Least::Admin, apply.encode_to_vec()),
        ("/pinion.v1.Control/Delete", Least::Admin, delete.encode_to_vec()),
        (
            "/pinion.v1.Control/Rollback",
            Least::Admin,
            proto::RollbackRequest { tenant: of.clone(), to_revision: Some(u64::MAX), ..Default::default() }
                .encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListRevisions",
            Least::Viewer,
            proto::ListRevisionsRequest { tenant: filter.clone(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/GetRevision",
            Least::Viewer,
            proto::GetRevisionRequest { tenant: of.clone(), revision: None }.encode_to_vec(),
        ),
        ("/pinion.v1.Control/Invoke", Least::Admin, invoke.encode_to_vec()),
        (
            "/pinion.v1.Control/ListModules",
            Least::Viewer,
            proto::ListModulesRequest { tenant: filter.clone(), name: name.clone() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListKeys",
            Least::Viewer,
            proto::ListKeysRequest { tenant: filter.clone(), name: name.clone() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListModels",
            Least::Viewer,
            proto::ListModelsRequest { tenant: filter.clone(), name: name.clone() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListUploads",
            Least::Viewer,
            proto::ListUploadsRequest { tenant: filter.clone() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListChains",
            Least::Viewer,
            proto::ListChainsRequest { tenant: filter.clone(), name: name.clone() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListRules",
            Least::Viewer,
            proto::ListRulesRequest { tenant: filter.clone(), name }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListFwps",
            Least::Viewer,
            proto::ListFwpsRequest { tenant: filter.clone(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListChainInstances",
            Least::Viewer,
            proto::ListChainInstancesRequest { tenant: filter.clone(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/GetLogs",
            Least::Viewer,
            proto::GetLogsRequest { tenant: filter.clone(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/GetMetrics",
            Least::Viewer,
            proto::GetMetricsRequest { tenant: filter, chain }.encode_to_vec(),
        ),
        (
            "/pinion.v1.Control/ListTenants",
            Least::Viewer,
            proto::ListTenantsRequest { name: Some(of.clone()) }.encode_to_vec(),
        ),
        ("/pinion.v1.Control/GetTenant", Least::Viewer, proto::GetTenantRequest { tenant: of }.encode_to_vec()),
        (GET_STATUS, Least::Anyone, Vec::new()),
        ("/grpc.health.v1.Health/Check", Least::Anyone, Vec::new()),
        ("/grpc.health.v1.Health/Watch", Least::Anyone, Vec::new()),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Least::Anyone, Vec::new()),
    ]
}

#[test]
fn the_table_of_these_tests_has_every_method_that_is_served_and_each_has_a_row() {
    let mut served = BTreeSet::new();
    let reflection = tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET;
    for set in [proto::FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET, reflection] {
        for service in DescriptorPool::decode(set).unwrap().services() {
            served.extend(service.methods().map(|method| format!("/{}/{}", service.full_name(), method.name())));
        }
    }
    let tested: BTreeSet<String> = methods("demo").into_iter().map(|(path, ..)| path.to_owned()).collect();
    assert_eq!(served, tested);
    for path in &served {
        let row = Row::of(path).unwrap_or_else(|| panic!("{path} has no row"));
        let may_last = ["GetLogs", "Watch"].iter().any(|method| path.ends_with(method));
        assert_eq!(row.deadline().is_none(), may_last, "{path}");
    }
}

#[tokio::test]
async fn every_method_is_for_the_roles_that_it_states_and_for_requests_about_the_own_tenant() {
    let remote = Remote::start(limits()).await;
    let identities = [OPERATOR, ADMIN, VIEWER, RIVAL].map(|uri| remote.authority.client(&[uri]));
    let nobody = remote.channel_with(None, Endpoint::from_static("http://localhost")).await;
    let mut channels = vec![("the operator on the socket", remote.local())];
    for (name, identity) in ["the operator", "an admin", "a viewer", "another's admin"].iter().zip(&identities) {
        channels.push((name, remote.channel(identity).await));
    }
    for (path, least, request) in methods("demo") {
        for (name, channel) in &channels {
            let code = call(channel, path, request.clone()).await.map_or_else(|status| status.code(), |_| Code::Ok);
            let may = match *name {
                "an admin" => true,
                "a viewer" => least < Least::Admin,
                "another's admin" => least == Least::Anyone,
                _ => true,
            };
            assert_eq!(code != Code::PermissionDenied, may, "{name}: {path}: {code:?}");
            assert!(code != Code::Unauthenticated && code != Code::Unimplemented, "{name}: {path}: {code:?}");
        }
        let error = call(&nobody, path, request).await.unwrap_err();
        assert!(format!("{error:?}").contains("CertificateRequired"), "{path}: {error:?}");
    }
    let unknown = call(&channels[1].1, "/pinion.v1.Control/None", Vec::new()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    remote.stop_after_answer().await;
}

/// Gives a tenant a module, a key, a model, a chain with a failure in its log, a rule, and an upload that nothing names.
async fn populate(remote: &Remote, operator: &mut Client, channel: &Channel, tenant: &str) {
    let name = tenant.parse().unwrap();
    let digest = operator.upload(&name, wasm(tenant)).await.unwrap().to_string();
    let pem = Pem::new(KeyPair::generate().unwrap().serialize_pem().into_bytes());
    let key = operator.upload_key(&name, pem).await.unwrap().digest.to_string();
    let model = operator.upload_model(&name, format!("onnx of {tenant}").into_bytes()).await.unwrap().to_string();
    let of = tenant.to_owned();
    let (key_name, model_name) = (format!("key-of-{tenant}"), format!("model-of-{tenant}"));
    let stage = proto::Stage { module: format!("module-of-{tenant}"), ..Default::default() };
    let chain = format!("chain-of-{tenant}");
    let mut request = proto::ApplyRequest {
        tenants: vec![proto::Tenant { name: of.clone(), ..Default::default() }],
        modules: vec![proto::Module { tenant: of.clone(), name: stage.module.clone(), digest, ..Default::default() }],
        keys: vec![proto::Key { tenant: of.clone(), name: key_name, digest: key, ..Default::default() }],
        models: vec![proto::Model { tenant: of.clone(), name: model_name, digest: model, ..Default::default() }],
        chains: vec![proto::Chain {
            tenant: of.clone(),
            name: chain.clone(),
            stages: vec![stage],
            ..Default::default()
        }],
        ..Default::default()
    };
    request.rules.push(alike(&of, "r", &chain));
    call(channel, "/pinion.v1.Control/Apply", request.encode_to_vec()).await.unwrap();
    operator.upload(&name, wasm(&format!("unnamed, of {tenant}"))).await.unwrap();
    let origin = Origin {
        tenant: name,
        chain: chain.parse().unwrap(),
        stage: 0,
        module: format!("module-of-{tenant}").parse().unwrap(),
        fwp: "1.0".into(),
    };
    remote.served.node.journal.push(LogLine {
        time_unix_ms: 1,
        level: Level::Error,
        origin: Arc::new(origin),
        text: format!("a trap in {tenant}").into(),
        lost: 0,
    });
}

/// Returns a rule that is alike for each tenant.
fn alike(tenant: &str, name: &str, chain: &str) -> proto::Rule {
    proto::Rule {
        tenant: tenant.to_owned(),
        name: name.to_owned(),
        priority: 7,
        r#match: None,
        policy: proto::Policy::Shared.into(),
        chain: chain.to_owned(),
        label: None,
    }
}

#[tokio::test]
async fn no_answer_to_a_tenant_tells_of_another_one() {
    let remote = Remote::start(limits()).await;
    let mut operator = Client::connect(&remote.served.socket).await.unwrap();
    let local = remote.local();
    for tenant in ["rival", "demo"] {
        populate(&remote, &mut operator, &local, tenant).await;
    }
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let has = |messages: &[Vec<u8>], name: &[u8]| messages.iter().any(|it| it.windows(name.len()).any(|at| at == name));
    let mut told = 0;
    for (path, least, _) in methods("demo").into_iter().filter(|(path, ..)| path.starts_with("/pinion.v1.")) {
        if least == Least::Admin || path.ends_with("GetTenant") || path.ends_with("GetRevision") {
            continue;
        }
        // No filter at all.
        let all = call(&local, path, Vec::new()).await.unwrap();
        assert!(has(&all, b"rival") && has(&all, b"demo"), "{path} tells the operator of both");
        let own = call(&admin, path, Vec::new()).await.unwrap();
        assert!(has(&own, b"demo") && !has(&own, b"rival"), "{path}: {}", String::from_utf8_lossy(&own.concat()));
        told += 1;
    }
    assert_eq!(told, 13);
    let status = proto::Status::decode(&call(&admin, GET_STATUS, Vec::new()).await.unwrap()[0][..]).unwrap();
    assert_eq!((status.version.as_str(), status.ports[0].name.as_str()), ("0.0.0-test", "lan"));
    assert_eq!((status.copied_bytes, status.ports[0].received, status.cores.len()), (0, 0, 0));
    assert_eq!((status.activation.unwrap().count, status.warnings.len()), (0, 0));
    drop(operator);
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_refusal_is_the_same_whether_the_other_tenant_exists_or_not() {
    let remote = Remote::start(limits()).await;
    let mut operator = Client::connect(&remote.served.socket).await.unwrap();
    populate(&remote, &mut operator, &remote.local(), "rival").await;
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let (theirs, nobodys) = (methods("rival"), methods("nosuch"));
    for ((path, least, named), (_, _, unknown)) in theirs.into_iter().zip(nobodys) {
        if least == Least::Anyone {
            continue;
        }
        let refused = [call(&admin, path, named).await.unwrap_err(), call(&admin, path, unknown).await.unwrap_err()];
        let [known, unknown] = refused.map(|status| (status.code(), status.message().to_owned()));
        assert_eq!(known, unknown, "{path}");
        assert!(known.0 == Code::PermissionDenied && !known.1.contains("rival"), "{path}: {known:?}");
    }
    drop(operator);
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn tenants_are_made_changed_and_deleted_by_the_operator_only() {
    let remote = Remote::start(limits()).await;
    let own = proto::Tenant { name: "demo".into(), weight: Some(1000), ..Default::default() };
    let apply = proto::ApplyRequest { tenants: vec![own], ..Default::default() }.encode_to_vec();
    let named = |tenant: &str| proto::ObjectRef {
        kind: proto::Kind::Tenant.into(),
        tenant: tenant.to_owned(),
        name: "demo".into(),
    };
    let delete = |tenant| proto::DeleteRequest { objects: vec![named(tenant)], ..Default::default() }.encode_to_vec();
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let (applies, deletes) = ("/pinion.v1.Control/Apply", "/pinion.v1.Control/Delete");
    for (method, request) in [(applies, apply.clone()), (deletes, delete("demo")), (deletes, delete(""))] {
        let refused = call(&admin, method, request).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
        assert!(refused.message().contains("by the operator only"), "{refused:?}");
    }
    let operator = remote.channel(&remote.authority.client(&[OPERATOR])).await;
    call(&operator, applies, apply).await.unwrap();
    call(&operator, deletes, delete("demo")).await.unwrap();
    remote.stop_after_answer().await;
}

#[tokio::test]
async fn a_rule_like_that_of_another_tenant_is_accepted_and_the_operator_is_warned() {
    let remote = Remote::start(limits()).await;
    let mut operator = Client::connect(&remote.served.socket).await.unwrap();
    for tenant in ["rival", "demo"] {
        populate(&remote, &mut operator, &remote.local(), tenant).await;
    }
    let warnings = operator.status().await.unwrap().node.warnings;
    assert!(
        warnings.iter().any(|warning| warning.starts_with("rule demo/r and rule rival/r are alike")),
        "{warnings:?}"
    );
    let admin = remote.channel(&remote.authority.client(&[ADMIN])).await;
    let twin = proto::ApplyRequest { rules: vec![alike("demo", "twin", "chain-of-demo")], ..Default::default() };
    let refused = call(&admin, "/pinion.v1.Control/Apply", twin.encode_to_vec()).await.unwrap_err();
    assert!(refused.message().starts_with("rule demo/r and rule demo/twin are alike"), "{refused:?}");
    drop(operator);
    remote.stop_after_answer().await;
}
