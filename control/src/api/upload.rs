//! Assembles an upload from its messages, with limits of size and time.

use std::time::Duration;

use tonic::{Status, Streaming};

use super::status::to_status;
use crate::access::{Caller, Scoped};
use crate::control::{IfFull, UploadKind};
use crate::model::{Digest, TenantName};
use crate::proto::UploadRequest;
use crate::proto::upload_request::{Header, Part};

/// The maximum duration of an upload from its header on. After it, the client's place is free for another client.
const TRANSFER_MAX: Duration = Duration::from_secs(60);

/// What an upload announces, checked.
pub(super) struct Announced {
    pub(super) tenant: TenantName,
    /// Not verified yet.
    pub(super) digest: Digest,
    size_bytes: u64,
    pub(super) if_full: IfFull,
}

/// Returns what becomes of an upload for which there is no room.
pub(super) fn if_full(keep_history: bool) -> IfFull {
    if keep_history { IfFull::Refuse } else { IfFull::ForgetRevisions }
}

/// Receives the header of an upload, of a tenant that the caller may upload for.
pub(super) async fn announced(
    kind: UploadKind,
    caller: &Caller,
    messages: &mut Streaming<UploadRequest>,
) -> Result<Announced, Status> {
    let Some(Part::Header(mut header)) = in_time(next(messages)).await? else {
        return Err(Status::invalid_argument("the first message of an upload must be its header"));
    };
    if let Some(tenant) = caller.tenant() {
        header.scope(tenant)?;
    }
    let Header { tenant, digest, size_bytes, keep_history } = header;
    let tenant = TenantName::new(tenant).map_err(|bad| Status::invalid_argument(bad.to_string()))?;
    let digest = digest.parse().map_err(|bad: crate::model::BadDigest| Status::invalid_argument(bad.to_string()))?;
    kind.check_size(size_bytes).map_err(to_status)?;
    Ok(Announced { tenant, digest, size_bytes, if_full: if_full(keep_history) })
}

/// Receives the bytes behind the header.
pub(super) async fn bytes(announced: &Announced, mut messages: Streaming<UploadRequest>) -> Result<Vec<u8>, Status> {
    in_time(assemble(announced.size_bytes, &mut messages)).await
}

async fn in_time<T>(transfer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let stalled = |_| Status::deadline_exceeded("the upload took too long to arrive: upload it again");
    tokio::time::timeout(TRANSFER_MAX, transfer).await.map_err(stalled)?
}

async fn assemble(size_bytes: u64, messages: &mut Streaming<UploadRequest>) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::new();
    while let Some(part) = next(messages).await? {
        let Part::Chunk(chunk) = part else {
            return Err(Status::invalid_argument("an upload has one header, this has two"));
        };
        if (bytes.len() + chunk.len()) as u64 > size_bytes {
            return Err(wrong_size(size_bytes, "more"));
        }
        bytes.extend_from_slice(&chunk);
    }
    if (bytes.len() as u64) < size_bytes {
        return Err(wrong_size(size_bytes, "fewer"));
    }
    Ok(bytes)
}

async fn next(messages: &mut Streaming<UploadRequest>) -> Result<Option<Part>, Status> {
    match messages.message().await? {
        None => Ok(None),
        Some(UploadRequest { part: Some(part) }) => Ok(Some(part)),
        Some(UploadRequest { part: None }) => Err(Status::invalid_argument("a message of the upload is empty")),
    }
}

fn wrong_size(announced_bytes: u64, how: &str) -> Status {
    Status::invalid_argument(format!("{announced_bytes} bytes were announced and {how} came: upload them again"))
}
