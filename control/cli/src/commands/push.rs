//! `pinion push`: uploads modules without changing anything else.

use std::path::{Path, PathBuf};

use anyhow::Context;
use pinion_control::model::{Digest, ModuleName, TenantName};
use serde::Serialize;

use super::{BadInput, check, read_manifests};
use crate::args::Format;
use crate::contexts::Target;
use crate::output;

/// An uploaded module.
#[derive(Debug, Serialize)]
struct Pushed {
    tenant: TenantName,
    /// Its name in the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<ModuleName>,
    digest: Digest,
    size_bytes: u64,
}

/// Pushes one module.
pub(super) async fn file(
    target: &Target,
    path: &Path,
    tenant: Option<TenantName>,
    format: Format,
) -> anyhow::Result<()> {
    let tenant = target.tenant_or(tenant);
    let wasm = check::module(path)?;
    let size_bytes = wasm.len() as u64;
    let mut client = target.connect().await?;
    let digest = client.upload(&tenant, wasm).await.with_context(|| path.display().to_string())?;
    print(&[Pushed { tenant, name: None, digest, size_bytes }], format)
}

/// Pushes the modules for which a manifest names files.
pub(super) async fn run(target: &Target, manifest: &PathBuf, format: Format) -> anyhow::Result<()> {
    let modules = read_manifests(&target.tenant_or(None), std::slice::from_ref(manifest))?.load()?.modules;
    if modules.is_empty() {
        let problem = "it names no module's file: there is nothing to push".to_owned();
        return Err(BadInput::Unclear { manifest: manifest.clone(), problem }.into());
    }
    let mut client = target.connect().await?;
    let mut pushed = Vec::new();
    for module in modules {
        let (tenant, name, size_bytes) = (module.tenant, module.name, module.wasm.len() as u64);
        let uploaded = client.upload(&tenant, module.wasm).await;
        let digest = uploaded.with_context(|| format!("module {tenant}/{name}, {}", module.path.display()))?;
        pushed.push(Pushed { tenant, name: Some(name), digest, size_bytes });
    }
    print(&pushed, format)
}

/// Prints `module/echo sha256:...`, or for a file the digest alone.
fn print(pushed: &[Pushed], format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(pushed);
    }
    pushed.iter().try_for_each(|Pushed { name, digest, .. }| match name {
        Some(name) => output::print(&format!("module/{name} {digest}")),
        None => output::print(&digest.to_string()),
    })
}
