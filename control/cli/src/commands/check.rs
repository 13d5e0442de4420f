//! `pinion check`: validates modules and manifests as a node would, with the same builder program.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pinion_builder_client::process::{self, BuildError, Wishes};
use pinion_builder_client::protocol::Start;
use pinion_control::control::NamedUpload;
use pinion_control::manifest::{Contents, FileKind, KeyFile, ModelFile, ModuleFile, PackedFiles};
use pinion_control::model::{
    Chain, Change, DesiredState, Digest, Invalid, Key, KeyName, MODULE_BYTES_MAX, Model, ModelName, Module, ModuleName,
    Stage, TenantName,
};
use serde::Serialize;

use super::{BadInput, read_manifests};
use crate::args::{self, Format};
use crate::contexts::Target;
use crate::output::{self, size};

/// The number of bytes of a file that are read to detect its kind.
const KIND_BYTES: u64 = 4096;

/// The result for a module, or for a stage of a chain, that a node would accept.
#[derive(Debug, Serialize)]
pub(super) struct Taken {
    /// `demo/echo/0` for a stage, the file's name for a module.
    name: String,
    module: PathBuf,
    size_bytes: u64,
    /// The linear memory that an instance starts with.
    memory_bytes: u64,
    /// Whether instances start from a snapshot, already initialised.
    snapshot: bool,
    /// Why they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_snapshot_because: Option<String>,
    /// The size of the native code that a node runs.
    native_bytes: u64,
}

/// Returns the builder at the given path, or the one beside this program.
pub(super) fn builder(args::Builder { program }: args::Builder) -> Result<process::Builder, BadInput> {
    builder_program(program).map(process::Builder::new)
}

/// Returns the path of that builder.
pub(super) fn builder_program(given: Option<PathBuf>) -> Result<PathBuf, BadInput> {
    let program = process::place(given);
    if program.is_file() { Ok(program) } else { Err(BadInput::NoBuilder(program)) }
}

/// Checks modules with the given configuration, and manifests as they define it.
pub(super) fn run(
    target: &Target,
    builder: &process::Builder,
    files: &[PathBuf],
    wishes: &Wishes<'_>,
    format: Format,
) -> anyhow::Result<()> {
    let (mut modules, mut manifests) = (Vec::new(), Vec::new());
    for path in files {
        if is_module(path)? {
            modules.push(path)
        } else {
            manifests.push(path)
        };
    }
    let mut taken = Vec::new();
    for path in modules {
        let wasm = module(path)?;
        let file = File { path, wasm: &wasm };
        taken.push(stage(builder, path.display().to_string(), &file, wishes.clone())?);
    }
    if !manifests.is_empty() {
        let manifests: Vec<PathBuf> = manifests.into_iter().cloned().collect();
        taken.extend(contents(builder, &read_manifests(&target.tenant_or(None), &manifests)?.load()?)?);
    }
    print(&taken, format)
}

/// Returns whether a file is to be checked as a module: because of its content, or because of its name.
fn is_module(path: &Path) -> Result<bool, BadInput> {
    let unreadable = |error| BadInput::Unreadable { path: path.to_owned(), error };
    let is_named_so = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("wasm"));
    // A pipe can be read only once.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Ok(is_named_so && !path.is_dir());
    }
    let mut begin = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(KIND_BYTES).read_to_end(&mut begin).map_err(unreadable)?;
    match FileKind::of(&begin) {
        FileKind::Module => Ok(true),
        _ if is_named_so => Ok(true),
        FileKind::Text => Ok(false),
        FileKind::ModuleText => Err(BadInput::ModuleText(path.to_owned())),
        FileKind::Other => Err(BadInput::NeitherKind(path.to_owned())),
    }
}

/// Returns a module's bytes. Refuses more than a node accepts.
pub(super) fn module(path: &Path) -> Result<Vec<u8>, BadInput> {
    let unreadable = |error| BadInput::Unreadable { path: path.to_owned(), error };
    let mut wasm = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(MODULE_BYTES_MAX + 1).read_to_end(&mut wasm).map_err(unreadable)?;
    if wasm.len() as u64 > MODULE_BYTES_MAX {
        return Err(BadInput::TooLong { path: path.to_owned(), what: "a module", bytes_max: MODULE_BYTES_MAX });
    }
    Ok(wasm)
}

/// Checks everything that manifests define: keys, files, modules, models and chains in turn.
pub(super) fn contents(builder: &process::Builder, contents: &Contents) -> anyhow::Result<Vec<Taken>> {
    consistent(contents)?;
    for files in &contents.files {
        taken_or(builder.check_files(&files.archive), files_of(files))?;
    }
    for file in &contents.modules {
        taken_or(builder.check(&file.wasm), module_of(file))?;
    }
    for file in &contents.models {
        taken_or(builder.model(&file.onnx), model_of(file))?;
    }
    let mut taken = Vec::new();
    for chain in &contents.chains {
        taken.extend(of_chain(builder, contents, chain)?);
    }
    let is_used = |tenant: &TenantName, name: &ModuleName| {
        let mut of_tenant = contents.chains.iter().filter(|chain| chain.tenant == *tenant);
        of_tenant.any(|chain| chain.stages.iter().any(|stage| stage.module == *name))
    };
    // A node makes such a chain of a module that is invoked by name.
    for module in contents.modules.iter().filter(|module| !is_used(&module.tenant, &module.name)) {
        let chain = Chain::of_module(module.tenant.clone(), &module.name);
        taken.extend(of_chain(builder, contents, &chain)?);
    }
    Ok(taken)
}

/// Checks that the manifests are consistent. What they do not define may exist on the node already.
fn consistent(contents: &Contents) -> Result<(), BadInput> {
    let module = |file: &ModuleFile| Module {
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
    let model = |file: &ModelFile| Model {
        tenant: file.tenant.clone(),
        name: file.name.clone(),
        digest: Digest::of(&file.onnx),
        size_bytes: file.onnx.len() as u64,
    };
    let uploaded_model = |named: &NamedUpload<ModelName>| Model {
        tenant: named.tenant.clone(),
        name: named.name.clone(),
        digest: named.digest,
        size_bytes: 0,
    };
    let models = contents.models.iter().map(model).chain(contents.uploaded_models.iter().map(uploaded_model)).collect();
    let (tenants, chains) = (contents.tenants.clone(), contents.chains.clone());
    let rules = contents.rules.clone();
    let change = Change { tenants, modules, keys: keys(contents)?, models, chains, rules, ..Change::default() };
    match DesiredState::default().apply(&change) {
        Ok(_) | Err(Invalid::UnknownModule { .. } | Invalid::UnknownGranted { .. } | Invalid::UnknownChain { .. }) => {
            Ok(())
        }
        Err(invalid) => Err(BadInput::Invalid(invalid)),
    }
}

/// Returns the keys that the manifests define, after it has read them as a node does.
fn keys(contents: &Contents) -> Result<Vec<Key>, BadInput> {
    let key = |tenant: &TenantName, name: &KeyName, digest| Key {
        tenant: tenant.clone(),
        name: name.clone(),
        digest,
        algorithm: String::new(),
    };
    let of_file = |file: &KeyFile| match file.pem.public_digest() {
        Ok(digest) => Ok(key(&file.tenant, &file.name, digest)),
        Err(error) => Err(BadInput::Refused { what: key_of(file), reason: error.to_string() }),
    };
    let uploaded = contents.uploaded_keys.iter().map(|named| Ok(key(&named.tenant, &named.name, named.digest)));
    contents.keys.iter().map(of_file).chain(uploaded).collect()
}

fn of_chain(builder: &process::Builder, contents: &Contents, chain: &Chain) -> anyhow::Result<Vec<Taken>> {
    let mut taken = Vec::new();
    for (at, spec) in chain.stages.iter().enumerate() {
        let is_it = |file: &&ModuleFile| file.tenant == chain.tenant && file.name == spec.module;
        let files = archive(contents, chain, spec);
        let Some(file) = contents.modules.iter().find(is_it) else {
            output::say(&format!(
                "chain {}/{}: stage {at} is not checked: its module {} is no file that these manifests name",
                chain.tenant, chain.name, spec.module
            ));
            continue;
        };
        let wishes = Wishes {
            config: &spec.config,
            files,
            memory_bytes_max: u64::from(chain.memory_limit_kib) << 10,
            fields: spec.state.iter().map(|grant| grant.field.as_str()).collect(),
            keys: spec.keys.iter().map(KeyName::as_str).collect(),
            models: spec.models.iter().map(ModelName::as_str).collect(),
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

/// Formats the subject of messages about a module, in `pinion apply` too.
pub(super) fn module_of(file: &ModuleFile) -> String {
    format!("module {}/{}, {}", file.tenant, file.name, file.path.display())
}

/// Formats the subject of messages about a stage's files, in `pinion apply` too.
pub(super) fn files_of(files: &PackedFiles) -> String {
    format!("files of {}, {}", files.tenant, files.path.display())
}

/// Formats the subject of messages about a key, in `pinion apply` too.
pub(super) fn key_of(file: &KeyFile) -> String {
    format!("key {}/{}, {}", file.tenant, file.name, file.path.display())
}

/// Formats the subject of messages about a model, in `pinion apply` too.
pub(super) fn model_of(file: &ModelFile) -> String {
    format!("model {}/{}, {}", file.tenant, file.name, file.path.display())
}

/// Returns the archive of a stage's files, if it has any.
fn archive<'a>(contents: &'a Contents, chain: &Chain, stage: &Stage) -> Option<&'a [u8]> {
    let digest = stage.files?.digest;
    let is_it = |files: &&PackedFiles| files.tenant == chain.tenant && files.digest == digest;
    contents.files.iter().find(is_it).map(|files| &*files.archive)
}

/// Returns the builder's result. Turns a refusal into an error about `what`.
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
