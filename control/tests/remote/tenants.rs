//! What callers with a tenant's certificate may change while the node does not have the tenant.

use pinion_control::control::ApplyRequest;
use pinion_control::model::{Module, ObjectRef, Tenant};
use pinion_control::{Client, proto};
use prost::Message;
use tonic::Code;

use super::authority::{ADMIN, VIEWER};
use super::calls::{begin, call};
use super::served::{Remote, limits};
use crate::support::{demo, named, wasm};

const UNKNOWN: &str =
    "tenant demo is not on this node: its operator makes it with `pinion apply` of a [[tenant]] table";

/// Deletes the tenant that [`Remote::start`] makes.
async fn delete_demo(operator: &mut Client) {
    operator.delete(&[ObjectRef::Tenant { name: demo() }]).await.unwrap();
}

async fn make_demo(operator: &mut Client) {
    let request = ApplyRequest { tenants: vec![Tenant::new(demo())], ..ApplyRequest::default() };
    operator.apply(request).await.unwrap();
}

#[tokio::test]
async fn callers_of_a_tenant_that_was_deleted_change_nothing_until_the_operator_makes_it_again() {
    let remote = Remote::start(limits()).await;
    let mut operator = Client::connect(&remote.served.socket).await.unwrap();
    delete_demo(&mut operator).await;
    // The operator may act for any name.
    let digest = operator.upload(&demo(), wasm("m")).await.unwrap();
    let modules = vec![named("m", digest)];
    operator.apply(ApplyRequest { modules, ..ApplyRequest::default() }).await.unwrap();

    let module = Module { tenant: demo(), name: "m".parse().unwrap(), digest, size_bytes: 0 };
    let header = proto::upload_request::Header {
        tenant: "demo".into(),
        digest: digest.to_string(),
        size_bytes: 5,
        keep_history: false,
    };
    let part = Some(proto::upload_request::Part::Header(header));
    let upload = proto::UploadRequest { part }.encode_to_vec();
    let apply = proto::ApplyRequest { modules: vec![(&module).into()], ..Default::default() }.encode_to_vec();
    let object = proto::ObjectRef { kind: proto::Kind::Module.into(), tenant: "demo".into(), name: "m".into() };
    let delete = proto::DeleteRequest { objects: vec![object], ..Default::default() }.encode_to_vec();
    let invoke = proto::InvokeRequest { tenant: "demo".into(), name: "m".into(), ..Default::default() }.encode_to_vec();
    let changes = [
        ("/pinion.v1.Control/Apply", apply),
        ("/pinion.v1.Control/Invoke", invoke),
        ("/pinion.v1.Control/Delete", delete),
    ];
    let [admin, viewer] = [ADMIN, VIEWER].map(|uri| remote.authority.client(&[uri]));
    let (admin, viewer) = (remote.channel(&admin).await, remote.channel(&viewer).await);
    // It is told before it sends the bytes.
    let refused = begin(&admin, "/pinion.v1.Control/UploadModule", super::calls::endless(vec![upload])).await;
    assert_eq!(
        refused.err().map(|it| (it.code(), it.message().to_owned())),
        Some((Code::PermissionDenied, UNKNOWN.into()))
    );
    for (path, request) in &changes {
        let refused = call(&admin, path, request.clone()).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, UNKNOWN), "{path}");
    }
    call(&viewer, "/pinion.v1.Control/ListModules", Vec::new()).await.unwrap();

    make_demo(&mut operator).await;
    for (path, request) in changes {
        call(&admin, path, request).await.unwrap();
    }
    drop(operator);
    remote.stop_after_answer().await;
}
