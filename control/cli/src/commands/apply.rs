//! `pinion apply`: reads everything, uploads the modules, then makes one change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pinion_control::Client;
use pinion_control::control::{ApplyRequest, NamedUpload};
use pinion_control::model::Digest;

use super::{print_changed, read_manifests};
use crate::args::Format;

pub(super) async fn run(socket: &Path, files: &[PathBuf], format: Format) -> anyhow::Result<()> {
    let contents = read_manifests(files)?.load()?;
    let mut client = Client::connect(socket).await?;
    let mut uploaded = BTreeSet::new();
    let mut modules = Vec::new();
    for file in contents.modules {
        let digest = Digest::of(&file.wasm);
        if uploaded.insert((file.tenant.clone(), digest)) {
            let upload = client.upload(&file.tenant, file.wasm).await;
            upload.with_context(|| format!("module {}/{}, {}", file.tenant, file.name, file.path.display()))?;
        }
        modules.push(NamedUpload { tenant: file.tenant, name: file.name, digest });
    }
    let changed = client.apply(ApplyRequest { modules, chains: contents.chains, rules: contents.rules }).await?;
    print_changed(&changed, format)
}
