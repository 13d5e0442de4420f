//! `pinion apply`: reads all files, uploads modules and files, then makes one change. Shows on a terminal what the node
//! builds meanwhile.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context;
use pinion_control::Client;
use pinion_control::control::{ApplyRequest, Changed, NamedUpload};
use pinion_control::manifest::Contents;
use pinion_control::model::Digest;

use super::{check, print_changed, progress, read_manifests};
use crate::args::Format;
use crate::contexts::Target;

pub(super) async fn run(target: &Target, files: &[PathBuf], format: Format) -> anyhow::Result<()> {
    let contents = read_manifests(&target.tenant_or(None), files)?.load()?;
    let client = target.connect().await?;
    let changed = progress::shown_during(&target.address, apply(client, contents)).await?;
    print_changed(&changed, format)
}

/// Uploads the modules and files, and makes the change.
pub(super) async fn apply(mut client: Client, contents: Contents) -> anyhow::Result<Changed> {
    let mut uploaded = BTreeSet::new();
    for files in contents.files {
        let files_of = check::files_of(&files);
        let upload = client.upload_files(&files.tenant, files.archive).await;
        upload.with_context(|| files_of)?;
    }
    let mut modules = contents.uploaded;
    for file in contents.modules {
        let digest = Digest::of(&file.wasm);
        if uploaded.insert((file.tenant.clone(), digest)) {
            let module_of = check::module_of(&file);
            let upload = client.upload(&file.tenant, file.wasm).await;
            upload.with_context(|| module_of)?;
        }
        modules.push(NamedUpload { tenant: file.tenant, name: file.name, digest });
    }
    let (tenants, chains, rules) = (contents.tenants, contents.chains, contents.rules);
    Ok(client.apply(ApplyRequest { tenants, modules, chains, rules }).await?)
}
