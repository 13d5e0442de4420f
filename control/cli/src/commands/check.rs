//! `pinion check`: what a node would say of modules and manifests, by the same program.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pinion_builder_client::process::{self, BuildError, Wishes};
use pinion_builder_client::protocol::Start;
use pinion_control::control::NamedUpload;
use pinion_control::manifest::{Contents, PackedFiles};
use pinion_control::model::{Chain, Change, DesiredState, Digest, Invalid, Module, ModuleName, Stage, TenantName};
use serde::Serialize;

use super::{BadInput, read_manifests};
use crate::args::{self, Format};
use crate::output::{self, size};

/// What is known of a module, or of a stage of a chain, that a node would take.
#[derive(Debug, Serialize)]
pub(super) struct Taken {
    /// `demo/echo/0` for a stage, the file's name for a module.
    name: String,
    module: PathBuf,
    size_bytes: u64,
    /// Linear memory that an instance starts with.
    memory_bytes: u64,
    /// Instances start from a snapshot, initialised.
    snapshot: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_snapshot_because: Option<String>,
    /// The code that a node runs.
    native_bytes: u64,
}

/// The builder that somebody names, or the one beside us.
pub(super) fn builder(args::Builder { program }: args::Builder) -> Result<process::Builder, BadInput> {
    builder_program(program).map(process::Builder::new)
}

/// The same, by its path.
pub(super) fn builder_program(given: Option<PathBuf>) -> Result<PathBuf, BadInput> {
    let program = process::place(given);
    if program.is_file() { Ok(program) } else { Err(BadInput::NoBuilder(program)) }
}

/// Checks modules, as configured, and manifests, as they say.
pub(super) fn run(
    builder: &process::Builder,
    files: &[PathBuf],
    wishes: &Wishes<'_>,
    format: Format,
) -> anyhow::Result<()> {
    let is_module = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "wasm");
    let (modules, manifests): (Vec<&PathBuf>, Vec<&PathBuf>) = files.iter().partition(is_module);
    let mut taken = Vec::new();
    for path in modules {
        let wasm = fs::read(path).map_err(|error| BadInput::Unreadable { path: path.clone(), error })?;
        let file = File { path, wasm: &wasm };
        taken.push(stage(builder, path.display().to_string(), &file, wishes.clone())?);
    }
    if !manifests.is_empty() {
        let manifests: Vec<PathBuf> = manifests.into_iter().cloned().collect();
        taken.extend(contents(builder, &read_manifests(&manifests)?.load()?)?);
    }
    print(&taken, format)
}

/// Checks all that manifests say.
pub(super) fn contents(builder: &process::Builder, contents: &Contents) -> anyhow::Result<Vec<Taken>> {
    consistent(contents)?;
    let mut taken = Vec::new();
    for chain in &contents.chains {
        taken.extend(of_chain(builder, contents, chain)?);
    }
    let is_used = |tenant: &TenantName, name: &ModuleName| {
        let mut of_tenant = contents.chains.iter().filter(|chain| chain.tenant == *tenant);
        of_tenant.any(|chain| chain.stages.iter().any(|stage| stage.module == *name))
    };
    // A node makes such a chain of a module that is invoked by its name.
    for module in contents.modules.iter().filter(|module| !is_used(&module.tenant, &module.name)) {
        let chain = Chain::of_module(module.tenant.clone(), &module.name);
        taken.extend(of_chain(builder, contents, &chain)?);
    }
    Ok(taken)
}

/// Whether the manifests contradict themselves. What they do not bring may be on the node already.
fn consistent(contents: &Contents) -> Result<(), BadInput> {
    let module = |file: &pinion_control::manifest::ModuleFile| Module {
        tenant: file.tenant.clone(),
        name: file.name.clone(),
        digest: Digest::of(&file.wasm),
        size_bytes: file.wasm.len() as u64,
    };
    let uploaded = |named: &NamedUpload| Module {
        tenant: named.tenant.clone(),
        name: named.name.clone(),
        digest: named.digest,
        size_bytes: 0,
    };
    let modules = contents.modules.iter().map(module).chain(contents.uploaded.iter().map(uploaded)).collect();
    let change = Change { modules, chains: contents.chains.clone(), rules: contents.rules.clone(), delete: Vec::new() };
    match DesiredState::default().apply(&change) {
        Ok(_) | Err(Invalid::UnknownModule { .. } | Invalid::UnknownChain { .. }) => Ok(()),
        Err(invalid) => Err(BadInput::Invalid(invalid)),
    }
}

fn of_chain(builder: &process::Builder, contents: &Contents, chain: &Chain) -> anyhow::Result<Vec<Taken>> {
    let mut taken = Vec::new();
    for (at, spec) in chain.stages.iter().enumerate() {
        let is_it =
            |file: &&pinion_control::manifest::ModuleFile| file.tenant == chain.tenant && file.name == spec.module;
        let files = archive(contents, chain, spec);
        let Some(file) = contents.modules.iter().find(is_it) else {
            if let Some(files) = files {
                taken_or(builder.check_files(files), format!("chain {}/{}: stage {at}", chain.tenant, chain.name))?;
            }
            eprintln!(
                "chain {}/{}: stage {at} is not checked: its module {} is no file that these manifests name",
                chain.tenant, chain.name, spec.module
            );
            continue;
        };
        let wishes = Wishes {
            config: &spec.config,
            files,
            memory_bytes_max: u64::from(chain.memory_limit_kib) << 10,
            fields: spec.state.iter().map(|grant| grant.field.as_str()).collect(),
        };
        let name = format!("chain {}/{}: stage {at} ({})", chain.tenant, chain.name, spec.module);
        let found = stage(builder, name, &File { path: &file.path, wasm: &file.wasm }, wishes)?;
        taken.push(Taken { name: format!("{}/{}/{at}", chain.tenant, chain.name), ..found });
    }
    let instance_kib = taken.iter().map(|taken| taken.memory_bytes / 1024).sum::<u64>();
    match chain.memory_total_kib {
        Some(total_kib) if instance_kib > u64::from(total_kib) => Err(BadInput::Refused {
            what: format!("chain {}/{}", chain.tenant, chain.name),
            reason: format!(
                "one instance of it starts with {instance_kib} KiB of memory, and memory_total_kib is {total_kib}: raise it"
            ),
        }
        .into()),
        _ => Ok(taken),
    }
}

/// The archive of a stage's files, if it has any.
fn archive<'a>(contents: &'a Contents, chain: &Chain, stage: &Stage) -> Option<&'a [u8]> {
    let digest = stage.files?.digest;
    let is_it = |files: &&PackedFiles| files.tenant == chain.tenant && files.digest == digest;
    contents.files.iter().find(is_it).map(|files| &*files.archive)
}

/// What the builder has to say, as what is wrong with `what` if it refuses.
fn taken_or<T>(judged: Result<T, BuildError>, what: String) -> anyhow::Result<T> {
    match judged {
        Ok(taken) => Ok(taken),
        Err(error @ (BuildError::Refused(_) | BuildError::Limits(_))) => {
            Err(BadInput::Refused { what, reason: error.to_string() }.into())
        }
        Err(error) => Err(error).context(what),
    }
}

/// A module's file.
struct File<'a> {
    path: &'a Path,
    wasm: &'a [u8],
}

fn stage(builder: &process::Builder, name: String, file: &File<'_>, wishes: Wishes<'_>) -> anyhow::Result<Taken> {
    let (facts, native) = taken_or(builder.build(file.wasm, wishes, |_| ()), name.clone())?;
    let no_snapshot_because = match facts.start {
        Start::Snapshot(_) => None,
        Start::Module(reason) => Some(reason),
    };
    Ok(Taken {
        name,
        module: file.path.to_owned(),
        size_bytes: file.wasm.len() as u64,
        memory_bytes: facts.memory_bytes,
        snapshot: no_snapshot_because.is_none(),
        no_snapshot_because,
        native_bytes: native.len() as u64,
    })
}

pub(super) fn print(taken: &[Taken], format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(taken);
    }
    let start = |taken: &Taken| match &taken.no_snapshot_because {
        None => "from a snapshot".to_owned(),
        Some(reason) => format!("initialises itself: {reason}"),
    };
    let row = |taken: &Taken| {
        let module = taken.module.display().to_string();
        [taken.name.clone(), module, size(taken.size_bytes), size(taken.memory_bytes), start(taken)]
    };
    output::print(&output::table(["TAKEN", "MODULE", "SIZE", "MEMORY", "INSTANCES START"], taken.iter().map(row)))
}
