//! What one tenant may upload, over a real Unix socket, with a fake data plane.

mod support;

use pinion_control::Client;
use pinion_control::client::ClientError;
use pinion_control::model::{TenantName, UPLOADS_MAX};
use support::{Served, demo, wasm};
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
