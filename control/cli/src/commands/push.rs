//! `pinion push`: uploads modules, keys and models without changing anything else.

use std::path::{Path, PathBuf};

use anyhow::Context;
use pinion_control::manifest::Contents;
use pinion_control::model::{Digest, TenantName};
use serde::Serialize;

use super::{BadInput, check, read_manifests};
use crate::args::Format;
use crate::contexts::Target;
use crate::output;

/// What was uploaded.
#[derive(Debug, Serialize)]
struct Pushed {
    kind: &'static str,
    tenant: TenantName,
    /// Its name in the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Of a key that of its public key.
    digest: Digest,
    /// None of a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
}

/// Pushes one module.
pub(super) async fn file(target: &Target, path: &Path, format: Format) -> anyhow::Result<()> {
    let tenant = target.tenant_or(None);
    let wasm = check::module(path)?;
    let size_bytes = wasm.len() as u64;
    let mut client = target.connect().await?;
    let digest = client.upload(&tenant, wasm).await.with_context(|| path.display().to_string())?;
    print(&[Pushed { kind: "module", tenant, name: None, digest, size_bytes: Some(size_bytes) }], format)
}

/// Pushes the modules, keys and models for which a manifest names files.
pub(super) async fn run(target: &Target, manifest: &PathBuf, format: Format) -> anyhow::Result<()> {
    let contents = read_manifests(&target.tenant_or(None), std::slice::from_ref(manifest))?.load()?;
    let Contents { modules, keys, models, .. } = contents;
    if modules.is_empty() && keys.is_empty() && models.is_empty() {
        let problem = "it names no file of a module, key or model: there is nothing to push".to_owned();
        return Err(BadInput::Unclear { manifest: manifest.clone(), problem }.into());
    }
    let mut client = target.connect().await?;
    let mut pushed = Vec::new();
    for module in modules {
        let (module_of, size_bytes) = (check::module_of(&module), Some(module.wasm.len() as u64));
        let (tenant, name) = (module.tenant, Some(module.name.to_string()));
        let digest = client.upload(&tenant, module.wasm).await.with_context(|| module_of)?;
        pushed.push(Pushed { kind: "module", tenant, name, digest, size_bytes });
    }
    for key in keys {
        let key_of = check::key_of(&key);
        let (tenant, name) = (key.tenant, Some(key.name.to_string()));
        let digest = client.upload_key(&tenant, key.pem).await.with_context(|| key_of)?.digest;
        pushed.push(Pushed { kind: "key", tenant, name, digest, size_bytes: None });
    }
    for model in models {
        let (model_of, size_bytes) = (check::model_of(&model), Some(model.onnx.len() as u64));
        let (tenant, name) = (model.tenant, Some(model.name.to_string()));
        let digest = client.upload_model(&tenant, model.onnx).await.with_context(|| model_of)?;
        pushed.push(Pushed { kind: "model", tenant, name, digest, size_bytes });
    }
    print(&pushed, format)
}

/// Prints `module/echo sha256:...`, or for a file the digest alone.
fn print(pushed: &[Pushed], format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(pushed);
    }
    pushed.iter().try_for_each(|Pushed { kind, name, digest, .. }| match name {
        Some(name) => output::print(&format!("{kind}/{name} {digest}")),
        None => output::print(&digest.to_string()),
    })
}
