use std::time::SystemTime;

use super::*;
use crate::client::ClientError;
use crate::model::TenantName;

fn caller_of(uri: &str) -> Result<Caller, String> {
    let certificate = Certificate { serial: "01".into(), expires: SystemTime::UNIX_EPOCH };
    Caller::of_uri(uri, Some("alice"), certificate)
}

#[test]
fn identities_are_the_operator_and_admins_and_viewers_of_tenants() {
    for (uri, role, tenant) in [
        ("pinion://operator", Role::Operator, None),
        ("pinion://tenant/demo/admin", Role::TenantAdmin, Some("demo")),
        ("pinion://tenant/demo/viewer", Role::TenantViewer, Some("demo")),
    ] {
        let caller = caller_of(uri).unwrap();
        assert_eq!((caller.role(), caller.tenant().map(TenantName::as_str)), (role, tenant));
    }
    for uri in [
        "pinion://",
        "pinion://operator/",
        "pinion://tenant/demo",
        "pinion://tenant/demo/owner",
        "pinion://tenant/demo/admin/x",
        "pinion://tenant//admin",
        "pinion://tenant/Demo/admin",
        "https://operator",
        "PINION://operator",
    ] {
        let problem = caller_of(uri).unwrap_err();
        assert!(problem.contains(uri), "{problem}");
    }
}

#[test]
fn a_request_without_an_identity_is_refused_whatever_it_asks_for() {
    let status = authorised("/pinion.v1.Control/GetStatus", Request::new(proto::GetStatusRequest {})).unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[test]
fn a_tenant_that_names_another_learns_nothing_of_it() {
    let message = |tenant: &str| {
        let mut request = Request::new(proto::GetTenantRequest { tenant: tenant.to_owned() });
        request.extensions_mut().insert(caller_of("pinion://tenant/demo/viewer").unwrap());
        let status = authorised("/pinion.v1.Control/GetTenant", request).unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        status.message().to_owned()
    };
    let said = message("other");
    assert_eq!(said, message("none such"));
    assert!(!said.contains("other,"), "{said}");
}

#[test]
fn an_absent_filter_becomes_the_callers_own_tenant() {
    let mut request = Request::new(proto::ListChainsRequest::default());
    request.extensions_mut().insert(caller_of("pinion://tenant/demo/viewer").unwrap());
    let request = authorised("/pinion.v1.Control/ListChains", request).unwrap();
    assert_eq!(request.into_inner().tenant.as_deref(), Some("demo"));
}

#[test]
fn a_sentence_for_the_operator_reaches_no_tenant() {
    let mut status = Status::internal("the state directory /var/lib/pinion has no space left");
    let known = told(true, status.clone());
    assert_eq!(known.message(), status.message(), "it is for everybody");
    status.set_source(std::sync::Arc::new(ToldTenants("the node failed".to_owned())));
    let said = [true, false].map(|is_tenant| told(is_tenant, status.clone()).message().to_owned());
    assert_eq!(said, ["the node failed", "the state directory /var/lib/pinion has no space left"]);
}

#[test]
fn a_tenant_is_told_that_a_retry_may_help_as_the_operator_is() {
    let mut status = Status::resource_exhausted("the state directory /var/lib/pinion has no space left");
    crate::api::mark_retryable(&mut status);
    status.set_source(std::sync::Arc::new(ToldTenants("the node has no room".to_owned())));
    assert!(
        [true, false].into_iter().all(|is_tenant| ClientError::from(told(is_tenant, status.clone())).is_retryable())
    );
}

#[test]
fn a_tenants_apply_prunes_no_other_tenant() {
    let apply = |tenant: &str| {
        let message = proto::ApplyRequest { prune_tenants: vec![tenant.to_owned()], ..Default::default() };
        let mut request = Request::new(message);
        request.extensions_mut().insert(caller_of("pinion://tenant/demo/admin").unwrap());
        authorised("/pinion.v1.Control/Apply", request).map(drop).map_err(|status| status.code())
    };
    assert_eq!(apply("demo"), Ok(()));
    assert_eq!(apply("other"), Err(Code::PermissionDenied));
}
