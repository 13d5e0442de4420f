//! `pinion apply`: reads all files, uploads modules, files, keys and models, then makes one change. Shows on a terminal what the node
//! builds meanwhile.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context;
use pinion_control::Client;
use pinion_control::control::{ApplyRequest, ChangeOptions, Changed, NamedUpload};
use pinion_control::manifest::Contents;
use pinion_control::model::{Digest, Labelling};

use super::{BadInput, Done, check, print_changed, progress, read_manifests, rollout};
use crate::args::{Format, LabelTerms, Terms, Waiting};
use crate::contexts::Target;

pub(super) async fn run(
    target: &Target,
    files: &[PathBuf],
    labels: LabelTerms,
    terms: Terms,
    waiting: Waiting,
    format: Format,
) -> anyhow::Result<()> {
    let contents = read_manifests(&target.tenant_or(None), files)?.load()?;
    let labelling = labelling(&contents, labels, files)?;
    let mut client = target.connect().await?;
    let work = apply(client.clone(), contents, labelling, terms.into());
    let changed = progress::shown_during(&target.address, work).await?;
    print_changed(&changed, Done::of(terms), format)?;
    rollout::wait_for(&mut client, &changed, terms, waiting).await
}

/// Returns which label the objects of these manifests get, and what is pruned.
fn labelling(contents: &Contents, terms: LabelTerms, files: &[PathBuf]) -> Result<Labelling, BadInput> {
    let LabelTerms { prune, take_over } = terms;
    let prune = match (prune, &contents.label) {
        (true, None) => return Err(BadInput::PruneWithoutLabel(files.to_vec())),
        (true, Some(_)) => contents.owners.clone(),
        (false, _) => BTreeSet::new(),
    };
    Ok(Labelling { label: contents.label.clone(), take_over, prune })
}

/// Uploads the modules, files, keys and models, and makes the change. A dry run's uploads cost no revision.
pub(super) async fn apply(
    mut client: Client,
    contents: Contents,
    labelling: Labelling,
    options: ChangeOptions,
) -> anyhow::Result<Changed> {
    if options.dry_run {
        client = client.keeping_history();
    }
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
    let mut keys = contents.uploaded_keys;
    for file in contents.keys {
        let key_of = check::key_of(&file);
        let uploaded = client.upload_key(&file.tenant, file.pem).await.with_context(|| key_of)?;
        keys.push(NamedUpload { tenant: file.tenant, name: file.name, digest: uploaded.digest });
    }
    let mut models = contents.uploaded_models;
    for file in contents.models {
        let model_of = check::model_of(&file);
        let digest = client.upload_model(&file.tenant, file.onnx).await.with_context(|| model_of)?;
        models.push(NamedUpload { tenant: file.tenant, name: file.name, digest });
    }
    let (tenants, chains, rules) = (contents.tenants, contents.chains, contents.rules);
    let deletes = Vec::new();
    let request = ApplyRequest { tenants, modules, keys, models, chains, rules, deletes, labelling, options };
    Ok(client.apply(request).await?)
}
