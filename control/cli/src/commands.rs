//! One file per command, and what the commands share.

mod apply;
mod build;
mod cert;
mod check;
mod context;
mod delete;
mod describe;
mod dev;
mod diff;
mod edit;
mod explain;
mod get;
mod history;
mod invoke;
mod logs;
mod man;
mod metrics;
mod new;
mod progress;
mod push;
mod rollout;
mod status;
mod store;
mod version;
mod wait;

use std::path::{Path, PathBuf};

use pinion_builder_client::process::Wishes;
use pinion_control::client::{Follow, NodeAddress};
use pinion_control::control::Changed;
use pinion_control::journal::LogFilter;
use pinion_control::manifest::{Bundle, PackError, pack};
use pinion_control::metrics::MetricFilter;
use pinion_control::model::{CONFIG_BYTES_MAX, FieldName, Invalid, KeyName, ModelName, ObjectRef, TenantName};

pub(crate) use self::cert::CertError;
use self::cert::Certificate;
pub(crate) use self::diff::Differs;
pub(crate) use self::store::{NotWhole, is_bad_content};
use crate::args::{Args, BadObject, Command, CommandLine, Format, OutputFormat, Rollout, Scope, Terms, definition};
use crate::contexts::Target;
use crate::output;

/// The manifest's file name in a function's folder.
const OWN_MANIFEST: &str = "pinion.toml";

/// An error in the user's input.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadInput {
    /// No object of this tenant has the name.
    #[error("there is no {kind} {name:?} of tenant {tenant}")]
    NotFoundOf { kind: &'static str, name: String, tenant: TenantName },
    /// No object of any tenant has the name.
    #[error("there is no {kind} {name:?}")]
    NotFound { kind: &'static str, name: String },
    /// Manifests that define nothing.
    #[error("{}: no object is in there", .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    Empty(Vec<PathBuf>),
    /// A file that can't be read.
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    /// A file of an unsupported kind.
    #[error("{}: this is neither a WebAssembly module, which begins with \\0asm, nor a manifest, which is TOML (text in UTF-8)", .0.display())]
    NeitherKind(PathBuf),
    /// A module in text form, which has to be compiled first.
    #[error("{}: this is a WebAssembly module as text: a node takes what wat2wasm or wasm-tools parse makes of it", .0.display())]
    ModuleText(PathBuf),
    /// A file that is too long for its kind.
    #[error("{} is longer than the {bytes_max} bytes that {what} may have", path.display())]
    TooLong { path: PathBuf, what: &'static str, bytes_max: u64 },
    /// A configuration on the command line that is too long.
    #[error("--config has {0} bytes, and a configuration may have {CONFIG_BYTES_MAX}")]
    LongConfig(usize),
    /// A folder that can't be packed.
    #[error("--files: {0}")]
    Pack(PackError),
    /// No file was named, and there is no manifest in this folder.
    #[error(
        "there is no {OWN_MANIFEST} in this folder, nor in one above: name a file, or go to the folder of a function (pinion new \
         makes one)"
    )]
    NoManifest,
    /// The piniond program does not exist.
    #[error("there is no piniond at {}: name it by --piniond or PINION_PINIOND", .0.display())]
    NoPiniond(PathBuf),
    /// A file that is not a usable capture.
    #[error("{}: {problem}", path.display())]
    Capture { path: PathBuf, problem: String },
    /// A path that a text file has to name, and that is not UTF-8.
    #[error("{}: this path is not UTF-8, as the file that is to name it has to be: take another place", .0.display())]
    NotText(PathBuf),
    /// Something that the manifest does not define clearly.
    #[error("{}: {problem}", manifest.display())]
    Unclear { manifest: PathBuf, problem: String },
    /// Something that this machine does not allow.
    #[error("{0}")]
    Machine(String),
    /// The builder does not exist.
    #[error("there is no builder at {}: name pinion-builder by --builder or PINION_BUILDER", .0.display())]
    NoBuilder(PathBuf),
    /// A change that every node would refuse.
    #[error(transparent)]
    Invalid(Invalid),
    /// A module or configuration that a node would refuse.
    #[error("{what}: {reason}")]
    Refused { what: String, reason: String },
    /// A folder that has to be empty, and is not.
    #[error("{} is not empty: a new crate takes an empty folder, or one that is not there", .0.display())]
    NotEmpty(PathBuf),
    /// There is no SDK at the given path.
    #[error("there is no {sdk} at {}: name the folder of a checkout of Pinion, or of its {folder}", path.display())]
    NoSdk { sdk: &'static str, folder: &'static str, path: PathBuf },
    /// There is no SDK beside the program.
    #[error(
        "there is no {0} beside this program, where a checkout of Pinion or PREFIX/share/pinion would have it: name one by --sdk or PINION_SDK"
    )]
    NoOwnSdk(&'static str),
    /// A path that make would split into several words, or not understand.
    #[error(
        "{}: make does not take this path, which has something else than letters, digits and / . _ - + , @: have the checkout elsewhere",
        .0.display()
    )]
    NotForMake(PathBuf),
    /// A folder that does not tell how a function is built.
    #[error("there is neither a Cargo.toml nor a Makefile in this folder, which would say how the function is built")]
    NothingToBuild,
    /// The compiler failed, and has printed why.
    #[error("{program} has not built the function ({status}): what it says above is why")]
    NotBuilt { program: String, status: std::process::ExitStatus },
    /// Text that is not the number of a chain instance.
    #[error("{0:?} is not a chain instance: these have numbers, see pinion get instances")]
    InstanceId(String),
    /// Words that name no objects.
    #[error(transparent)]
    Object(#[from] BadObject),
    /// An output format that a command does not have.
    #[error("this command has no output as {0}: it has {1}")]
    NoFormat(&'static str, &'static str),
    /// Objects that no manifest can define.
    #[error("manifests define no {0}: take -o json or -o yaml")]
    NotInManifests(&'static str),
    /// A manifest without a label, by which objects are to be pruned.
    #[error(
        "{}: --prune deletes objects of the manifest's label, and there is none: write label = \"NAME\" at its top, apply it once without \
         --prune, and its objects have the label from then on",
        .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    PruneWithoutLabel(Vec<PathBuf>),
    /// Objects that have no labels.
    #[error("{0} have no labels: modules, keys, models, chains and rules have")]
    NoLabels(&'static str),
    /// A chain that is in no manifest.
    #[error(
        "chain {0:?} is implicit: a call of the module of this name has made it, and no manifest; apply a chain of this name to have \
         one with other settings"
    )]
    ImplicitChain(String),
    /// A manifest that defines something else than what is edited.
    #[error("what is saved defines {found}, and this is an edit of {edited} alone: apply others by pinion apply -f")]
    EditsOthers { edited: ObjectRef, found: String },
    /// A table or a key that manifests do not have.
    #[error("manifests have no {0}: pinion explain lists what the top of a manifest has, and {1}")]
    NoKey(String, String),
}

/// Executes the command line.
pub(crate) async fn run(CommandLine { args, wanted, socket }: CommandLine) -> anyhow::Result<()> {
    let Args { output, command, tenant, .. } = args;
    match command {
        Command::Context(command) => context::run(command, wanted, socket, tenant, plain(output)?),
        Command::Cert(cert) => cert::run(cert, plain(output)?),
        Command::Store(command) => store::run(command, plain(output)?),
        Command::Explain { path } => explain::run(path.as_deref(), plain(output)?),
        Command::Completion { shell } => man::completion(definition(), shell),
        Command::Man { folder } => man::pages(definition(), &folder),
        command => {
            let mut target = Target::of(wanted, tenant)?;
            target.tenant = target.tenant.take().or_else(|| tenant_of_certificate(&target.address));
            match command {
                Command::Get { objects, label, scope } => get::run(&target, &objects, label, scope, output).await,
                Command::Describe { object } => describe::run(&target, &object, output).await,
                command => run_for(&target, command, plain(output)?).await,
            }
        }
    }
}

/// Returns the format of a command that has tables and JSON only.
fn plain(output: OutputFormat) -> Result<Format, BadInput> {
    const BOTH: &str = "table and json";
    match output {
        OutputFormat::Table => Ok(Format::Table),
        OutputFormat::Json => Ok(Format::Json),
        OutputFormat::Wide => Err(BadInput::NoFormat("wide", BOTH)),
        OutputFormat::Yaml => Err(BadInput::NoFormat("yaml", BOTH)),
        OutputFormat::Toml => Err(BadInput::NoFormat("toml", BOTH)),
        OutputFormat::Name => Err(BadInput::NoFormat("name", BOTH)),
    }
}

/// Returns the tenant whose certificate is used, if it is a tenant's. A certificate that can't be read is reported when the
/// node is asked.
fn tenant_of_certificate(address: &NodeAddress) -> Option<TenantName> {
    match address {
        NodeAddress::Remote(node) => Certificate::read(&node.certificate).ok()?.tenant().cloned(),
        NodeAddress::Socket(_) => None,
    }
}

/// Executes a command that asks a node, or whose objects belong to a tenant.
async fn run_for(target: &Target, command: Command, output: Format) -> anyhow::Result<()> {
    match command {
        Command::New { name, template, sdk } => new::run(&name, template, sdk.as_deref(), target.tenant.as_ref()),
        Command::Build { manifest, builder } => build::run(target, &own_manifest(manifest.file)?, builder, output),
        Command::Check { mut files, manifest, config, memory_limit_kib, folder, fields, keys, models, builder } => {
            files.extend(manifest.file);
            let files = or_own_manifest(files)?;
            if config.len() > CONFIG_BYTES_MAX {
                return Err(BadInput::LongConfig(config.len()).into());
            }
            let archive = folder.map(|folder| pack(&folder)).transpose().map_err(BadInput::Pack)?;
            let wishes = Wishes {
                config: config.as_bytes(),
                files: archive.as_deref(),
                memory_bytes_max: u64::from(memory_limit_kib) << 10,
                fields: fields.iter().map(FieldName::as_str).collect(),
                keys: keys.iter().map(KeyName::as_str).collect(),
                models: models.iter().map(ModelName::as_str).collect(),
            };
            check::run(target, &check::builder(builder)?, &files, &wishes, output)
        }
        Command::Apply { files, labels, terms, waiting } => {
            apply::run(target, &or_own_manifest(files)?, labels, terms, waiting, output).await
        }
        Command::Diff { first: Some(first), second, .. } => {
            diff::revisions(target, &target.tenant_or(None), first, second, output).await
        }
        Command::Diff { files, prune, .. } => diff::manifests(target, &or_own_manifest(files)?, prune, output).await,
        Command::Edit { object, waiting } => edit::run(target, &object, waiting, output).await,
        Command::Wait(wait) => wait::run(target, wait, output).await,
        Command::History(history) => {
            let tenant = shown_tenant(target, history.scope);
            history::run(&mut target.connect().await?, tenant, history, output).await
        }
        Command::Rollout(Rollout::Undo { to_revision, terms, waiting }) => {
            rollout::undo(target, to_revision, terms, waiting, output).await
        }
        Command::Rollout(Rollout::Status { timeout }) => rollout::status(target, timeout, output).await,
        Command::Push { module: Some(module), .. } => push::file(target, &module, output).await,
        Command::Push { module: None, manifest, .. } => push::run(target, &own_manifest(manifest.file)?, output).await,
        Command::Dev(dev) => dev::run(target.tenant_or(None), *dev, output).await,
        Command::Delete { objects, files, terms } => {
            let objects = match &objects[..] {
                [] => read_manifests(&target.tenant_or(None), &files)?.objects(),
                words => delete::objects(words, &target.tenant_or(None))?,
            };
            let changed = target.connect().await?.delete_with(&objects, terms.into()).await?;
            print_changed(&changed, Done::of(terms), output)
        }
        Command::Invoke { function, data, file, timeout } => {
            let payload = invoke::payload(data, file.as_deref())?;
            invoke::run(target, function, payload, timeout, output).await
        }
        Command::Logs { follow, scope, chain, tail } => {
            let follow = if follow { Follow::Yes } else { Follow::No };
            let filter = LogFilter { tenant: shown_tenant(target, scope), chain, tail };
            logs::run(&mut target.connect().await?, filter, follow, output).await
        }
        Command::Metrics { node: true, .. } => metrics::of_node(&mut target.connect().await?, output).await,
        Command::Metrics { scope, chain, .. } => {
            let filter = MetricFilter { tenant: shown_tenant(target, scope), chain };
            metrics::run(&mut target.connect().await?, filter, output).await
        }
        Command::Status => {
            let report = target.connect().await?.status().await?;
            status::print(&report, output)
        }
        Command::Version => version::run(target, output).await,
        Command::Context(_)
        | Command::Cert(_)
        | Command::Store(_)
        | Command::Explain { .. }
        | Command::Completion { .. }
        | Command::Man { .. }
        | Command::Get { .. }
        | Command::Describe { .. } => unreachable!("these are executed before"),
    }
}

/// Returns whose objects to show; none for all tenants'.
fn shown_tenant(target: &Target, Scope { all_tenants }: Scope) -> Option<TenantName> {
    (!all_tenants).then(|| target.tenant_or(None))
}

/// Returns the named files, or else the function's own manifest.
fn or_own_manifest(files: Vec<PathBuf>) -> Result<Vec<PathBuf>, BadInput> {
    if files.is_empty() { Ok(vec![own_manifest(None)?]) } else { Ok(files) }
}

/// Returns the given manifest, or the manifest of the given folder. By default the manifest of the current folder, or
/// of the nearest one above.
fn own_manifest(given: Option<PathBuf>) -> Result<PathBuf, BadInput> {
    if let Some(path) = given {
        let within = path.join(OWN_MANIFEST);
        return Ok(if within.is_file() { within } else { path });
    }
    if Path::new(OWN_MANIFEST).is_file() {
        return Ok(OWN_MANIFEST.into());
    }
    let here = std::env::current_dir().map_err(|error| BadInput::Unreadable { path: ".".into(), error })?;
    let above = here.ancestors().skip(1).map(|folder| folder.join(OWN_MANIFEST));
    above.into_iter().find(|path| path.is_file()).ok_or(BadInput::NoManifest)
}

/// Returns the folder that contains a manifest.
fn folder_of(manifest: &Path) -> &Path {
    manifest.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Reads manifests, and refuses them if they define nothing. `tenant` owns the objects of those that name no tenant.
fn read_manifests(tenant: &TenantName, files: &[PathBuf]) -> anyhow::Result<Bundle> {
    let bundle = Bundle::read_for(tenant, files)?;
    if bundle.objects().is_empty() {
        return Err(BadInput::Empty(files.to_vec()).into());
    }
    Ok(bundle)
}

/// Whether a change was made, or only checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Really,
    DryRun,
}

impl Done {
    fn of(terms: Terms) -> Self {
        if terms.dry_run { Self::DryRun } else { Self::Really }
    }
}

/// Prints `chain/echo created`, one line for each object.
fn print_changed(changed: &Changed, done: Done, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(changed);
    }
    let note = if done == Done::DryRun { " (dry run)" } else { "" };
    changed.outcomes.iter().try_for_each(|outcome| {
        output::print(&format!("{}/{} {}{note}", outcome.object.kind(), outcome.object.name(), outcome.effect))
    })
}
