//! Assembles an upload from its messages, with limits of size and time.

use std::time::Duration;

use tonic::{Status, Streaming};

use super::status::to_status;
use crate::control::UploadKind;
use crate::model::{Digest, TenantName};
use crate::proto::UploadRequest;
use crate::proto::upload_request::{Header, Part};

/// The maximum duration of an upload. After it, the client's slot is free for another client.
const TRANSFER_MAX: Duration = Duration::from_secs(60);

/// A received upload. The digest is the announced one, not verified yet.
pub(super) struct Upload {
    pub(super) tenant: TenantName,
    pub(super) digest: Digest,
    pub(super) bytes: Vec<u8>,
}

pub(super) async fn receive(kind: UploadKind, messages: Streaming<UploadRequest>) -> Result<Upload, Status> {
    let stalled = |_| Status::deadline_exceeded("the upload took too long to arrive: upload it again");
    tokio::time::timeout(TRANSFER_MAX, assemble(kind, messages)).await.map_err(stalled)?
}

async fn assemble(kind: UploadKind, mut messages: Streaming<UploadRequest>) -> Result<Upload, Status> {
    let Some(Part::Header(header)) = next(&mut messages).await? else {
        return Err(Status::invalid_argument("the first message of an upload must be its header"));
    };
    let Header { tenant, digest, size_bytes } = header;
    let tenant = TenantName::new(tenant).map_err(|bad| Status::invalid_argument(bad.to_string()))?;
    let digest = digest.parse().map_err(|bad: crate::model::BadDigest| Status::invalid_argument(bad.to_string()))?;
    kind.check_size(size_bytes).map_err(to_status)?;

    let mut bytes = Vec::new();
    while let Some(part) = next(&mut messages).await? {
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
    Ok(Upload { tenant, digest, bytes })
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
