//! `pinion apply`: reads everything, uploads modules and files, then makes one change. Shows on a terminal what the node builds
//! meanwhile.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pinion_control::Client;
use pinion_control::control::{ApplyRequest, Changed, NamedUpload};
use pinion_control::manifest::Contents;
use pinion_control::model::Digest;

use super::{print_changed, progress, read_manifests};
use crate::args::Format;

pub(super) async fn run(socket: &Path, files: &[PathBuf], format: Format) -> anyhow::Result<()> {
    let contents = read_manifests(files)?.load()?;
    let client = Client::connect(socket).await?;
    let changed = progress::shown_during(socket, apply(client, contents)).await?;
    print_changed(&changed, format)
}

/// Uploads what there is of modules, and makes the change.
pub(super) async fn apply(mut client: Client, contents: Contents) -> anyhow::Result<Changed> {
    let mut uploaded = BTreeSet::new();
    for files in contents.files {
        let upload = client.upload_files(&files.tenant, files.archive).await;
        upload.with_context(|| format!("files of {}, {}", files.tenant, files.path.display()))?;
    }
    let mut modules = contents.uploaded;
    for file in contents.modules {
        let digest = Digest::of(&file.wasm);
        if uploaded.insert((file.tenant.clone(), digest)) {
            let upload = client.upload(&file.tenant, file.wasm).await;
            upload.with_context(|| format!("module {}/{}, {}", file.tenant, file.name, file.path.display()))?;
        }
        modules.push(NamedUpload { tenant: file.tenant, name: file.name, digest });
    }
    Ok(client.apply(ApplyRequest { modules, chains: contents.chains, rules: contents.rules }).await?)
}
