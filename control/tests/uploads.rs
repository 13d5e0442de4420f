//! What one tenant may upload, over a real Unix socket, with a fake data plane.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::{Served, TestNode, demo, named, wasm};
use pinion_control::client::ClientError;
use pinion_control::control::{ApplyRequest, IfFull, UploadKind};
use pinion_control::model::{Digest, ModuleName, RevisionFilter, Tenant, TenantName, UPLOADS_MAX};
use pinion_control::{Client, Control, Store};
use tonic::Code;

/// Returns what a tenant has of its uploads, and how often it was refused more.
async fn uploads_of(client: &mut Client, tenant: &TenantName) -> (u64, Option<u64>) {
    let account = client.account(tenant).await.unwrap();
    let uploads = account.resources.iter().find(|resource| resource.name == "uploads").unwrap();
    (uploads.used, uploads.refused)
}

#[tokio::test]
async fn a_tenant_that_uploads_without_end_is_refused_and_another_one_is_not() {
    // In memory: each of thousands of uploads is made durable, for which a disk would take its time and that of others.
    let served = Served::start_in(tempfile::tempdir_in("/dev/shm").unwrap()).await;
    let mut client = Client::connect(&served.socket).await.unwrap();
    let most = UPLOADS_MAX / 4 * 3;
    for number in 0..most {
        client.upload(&demo(), wasm(&number.to_string())).await.unwrap();
    }
    for _ in 0..2 {
        let refused = client.upload(&demo(), wasm("one too many")).await.unwrap_err();
        let ClientError::Refused { code, message } = refused else { panic!("{refused}") };
        assert_eq!(code, Code::ResourceExhausted);
        assert!(message.starts_with("uploads: tenant demo would have 3073."), "{message}");
    }
    client.upload(&demo(), wasm("7")).await.unwrap();
    let other: TenantName = "other".parse().unwrap();
    client.upload(&other, wasm("its first")).await.unwrap();
    assert_eq!(uploads_of(&mut client, &demo()).await, (most, Some(2)));
    assert_eq!(uploads_of(&mut client, &other).await, (1, Some(0)));
    served.stop().await;
}

/// A control plane whose tenant `demo` has terms, and modules that were uploaded long ago.
struct LongAgo {
    folder: tempfile::TempDir,
    store: Arc<Store>,
    control: Control,
}

impl LongAgo {
    fn new(terms: Tenant) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&folder.path().join("store")).unwrap());
        let control = Control::open(Arc::clone(&store), Arc::new(TestNode::default())).unwrap();
        control.apply(ApplyRequest { tenants: vec![terms], ..ApplyRequest::default() }).unwrap();
        Self { folder, store, control }
    }

    /// Uploads bytes long ago, and makes a module of them now.
    fn make(&self, name: &str, bytes: &[u8]) {
        let digest = Digest::of(bytes);
        let long_ago = UNIX_EPOCH + Duration::from_secs(1000);
        self.store.put_upload(&demo(), &digest, bytes, long_ago).unwrap();
        self.control.apply(ApplyRequest { modules: vec![named(name, digest)], ..ApplyRequest::default() }).unwrap();
    }

    fn upload(&self, if_full: IfFull, bytes: &[u8]) -> Result<(), String> {
        let (kind, digest) = (UploadKind::Module, Digest::of(bytes));
        self.control.upload_as(None, if_full, kind, &demo(), &digest, bytes).map_err(|error| error.to_string())
    }

    fn revisions(&self) -> Vec<u64> {
        let filter = RevisionFilter { limit: 10, ..RevisionFilter::default() };
        let page = self.control.revision_page(None, &filter).unwrap();
        page.revisions.iter().map(|revision| revision.number).collect()
    }
}

/// Returns 400 KiB that the test node admits.
fn large(name: &str) -> Vec<u8> {
    [wasm(name), vec![0; 400 << 10]].concat()
}

#[test]
fn revisions_give_way_to_an_upload_that_is_stored_and_to_none_that_is_refused() {
    let it = LongAgo::new(Tenant { upload_mib: Some(1), ..Tenant::new(demo()) });
    it.make("m", &large("first"));
    it.make("m", &large("second"));
    let refused = it.upload(IfFull::ForgetRevisions, &vec![0; 400 << 10]).unwrap_err();
    assert!(refused.contains("this is not a WebAssembly module"), "{refused}");
    assert_eq!(it.revisions(), [3, 2, 1]);
    let refused = it.upload(IfFull::Refuse, &large("third")).unwrap_err();
    assert!(refused.starts_with("bytes of uploads: tenant demo would have 12"), "{refused}");
    assert_eq!(it.revisions(), [3, 2, 1]);
    it.upload(IfFull::ForgetRevisions, &large("third")).unwrap();
    assert_eq!(it.revisions(), Vec::<u64>::new(), "the last of them kept the first module");
    let module: ModuleName = "m".parse().unwrap();
    assert_eq!(it.control.desired().module(&demo(), &module).unwrap().digest, Digest::of(&large("second")));
}

#[tokio::test]
async fn the_uploads_of_a_dry_run_cost_no_revision() {
    let LongAgo { folder, store, control } = {
        let it = LongAgo::new(Tenant { upload_mib: Some(1), ..Tenant::new(demo()) });
        it.make("m", &large("first"));
        it.make("m", &large("second"));
        it
    };
    drop((store, control));
    let served = Served::start_in(folder).await;
    let client = Client::connect(&served.socket).await.unwrap();
    let refused = client.clone().keeping_history().upload(&demo(), large("third")).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { code: Code::ResourceExhausted, .. }), "{refused}");
    let filter = || RevisionFilter { limit: 10, ..RevisionFilter::default() };
    assert_eq!(client.clone().revisions(filter()).await.unwrap().len(), 3);
    client.clone().upload(&demo(), large("third")).await.unwrap();
    assert_eq!(client.clone().revisions(filter()).await.unwrap().len(), 0);
    served.stop().await;
}
