//! The command line.

mod cert;
mod context;
mod labels;
mod objects;
mod revisions;
mod store;
mod waiting;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;
use pinion_control::model::{self, ChainName, FieldName, KeyName, Label, ModelName, TenantName};

pub(crate) use self::cert::{Access, Cert, CertKind, CertName, Issue, NodeName, Validity, is_plain_name};
pub(crate) use self::context::{AddedContext, ContextCommand};
pub(crate) use self::labels::LabelTerms;
pub(crate) use self::objects::{BadObject, Kind, Selected, Word, named, one, selected};
pub(crate) use self::revisions::{History, Rollout, Terms};
pub(crate) use self::store::StoreCommand;
pub(crate) use self::waiting::{Condition, Wait, Waiting};
use crate::contexts::{ContextName, Wanted};

/// What `pinion help` says of exit statuses.
const EXIT_STATUSES: &str = "\
Exit statuses:
  0  done
  1  failed: the node failed, or output could not be written
  2  refused, or wrong: a retry fails in the same way
  3  not now: no node answers, or it lacks something at the moment, such as room on its disk; retry later
pinion diff ends with 1 if there are differences, pinion wait if the time is over. With -o json, errors are JSON on standard error.";

/// Manages a Pinion node: brings tenants, modules, keys, models, chains and rules to it, and shows its state
#[derive(Debug, Parser)]
#[command(name = "pinion", version, arg_required_else_help = true, after_help = EXIT_STATUSES)]
pub(crate) struct Args {
    /// The socket of a node on this machine. Without this option and a context, /run/pinion/pinion.sock
    #[arg(long, global = true, env = "PINION_SOCKET", value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// The context to use instead of the current one: which node, as whom, for which tenant (see pinion context)
    #[arg(long, global = true, env = "PINION_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<OsString>,
    /// The tenant of commands and manifests that name none. Without this option PINION_TENANT, then the context's tenant,
    /// then that of its certificate, then `default`
    #[arg(id = "for_tenant", long = "tenant", short = 'n', global = true, value_name = "TENANT")]
    pub(crate) tenant: Option<TenantName>,
    /// The output format. Most commands have table and json only
    #[arg(long, short, global = true, value_enum, default_value_t = OutputFormat::Table)]
    pub(crate) output: OutputFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command line, and the node that it names.
#[derive(Debug)]
pub(crate) struct CommandLine {
    pub(crate) args: Args,
    pub(crate) wanted: Wanted,
    /// The socket, if the command line itself names one, and not the environment.
    pub(crate) socket: Option<PathBuf>,
}

impl CommandLine {
    /// Reads the command line. An option on it beats a variable of the environment, and a socket beats a context.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let mut command = Args::command();
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        let args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        let is_option = |id: &str| is_option(&matches, id);
        let socket = args.socket.clone().filter(|_| is_option("socket"));
        let is_of_context = is_option("context");
        if socket.is_some() && is_of_context {
            let both = "--socket and --context both say which node to use: give one of them";
            return Err(command.error(clap::error::ErrorKind::ArgumentConflict, both));
        }
        // Clap sees no conflict with an option that stands before the command.
        let is_set = |id: &str| matches.subcommand().is_some_and(|(_, matches)| is_set(matches, id));
        for (id, option) in [("all_tenants", "--all-tenants"), ("node", "--node")] {
            if is_option("for_tenant") && is_set(id) {
                let both = format!("--tenant and {option} both say what to show: give one of them");
                return Err(command.error(clap::error::ErrorKind::ArgumentConflict, both));
            }
        }
        let context = args.context.as_ref().filter(|name| is_of_context || !name.is_empty());
        let context = context.map(|name| ContextName::of_command_line(name)).transpose();
        let context = context.map_err(|error| command.error(clap::error::ErrorKind::ValueValidation, error))?;
        let wanted = match (args.socket.clone(), context) {
            (Some(socket), _) if !is_of_context => Wanted::Socket(socket),
            (_, Some(name)) => Wanted::Context(name),
            _ => Wanted::Current,
        };
        Ok(Self { args, wanted, socket })
    }
}

/// Returns whether an argument stands on the command line, and not only in the environment.
fn is_option(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Returns whether a command has this option and was given it.
fn is_set(matches: &ArgMatches, id: &str) -> bool {
    matches.try_get_one::<bool>(id).is_ok_and(|given| given == Some(&true))
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Tables for people
    Table,
    /// Tables with more columns
    Wide,
    /// JSON for programs
    Json,
    /// The content of JSON as YAML
    Yaml,
    /// A manifest that pinion apply takes
    Toml,
    /// KIND/NAME of each object
    Name,
}

/// The output format of commands that have these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a new crate with a function: its code, tests, and manifest
    ///
    /// Creates the crate in a folder of its name, which must be empty or not exist yet. `cargo test` tests it, `pinion
    /// build` builds it, and `pinion apply` brings it to a node.
    New {
        /// The crate's name: lower-case letters, digits and -; the first character is a letter
        name: CrateName,
        /// The template to begin with
        #[arg(long, value_enum, default_value_t = Template::Responder)]
        template: Template,
        /// A checkout of Pinion whose SDK to use. By default the SDK that came with this program: in the checkout that
        /// it was built in, or in share/pinion beside its bin folder
        #[arg(long, env = "PINION_SDK", value_name = "PATH")]
        sdk: Option<PathBuf>,
    },
    /// Build the function in this folder, and validate it as a node would
    ///
    /// Runs `cargo build --release --target wasm32-wasip1`, or `make` if there is a Makefile and no Cargo.toml, and
    /// then `pinion check`. PINION_CARGO sets which cargo to run. That cargo reads RUSTFLAGS and similar variables as
    /// usual.
    Build {
        #[command(flatten)]
        manifest: Manifest,
        #[command(flatten)]
        builder: Builder,
    },
    /// Validate modules and manifests without a node
    ///
    /// Validates modules, initialises them with their configurations and compiles them as a node does, in a process
    /// that limits itself. Cannot check what only a node knows: whether it has a port of that name, has a module that
    /// none of the given manifests brings, or has room. The exit status is 2 if something is refused.
    Check {
        /// Modules and manifests, which are told apart by their content, or folders of manifests. By default the
        /// pinion.toml of this folder, or of the nearest one above
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        manifest: Manifest,
        /// For modules: the configuration to initialise them with
        #[arg(long, value_name = "TEXT", default_value = "")]
        config: String,
        /// For modules: the maximum memory of an instance
        #[arg(
            long,
            value_name = "KIB",
            default_value_t = model::Chain::MEMORY_LIMIT_KIB,
            value_parser = clap::value_parser!(u32)
                .range(i64::from(model::MEMORY_LIMIT_KIB_MIN)..=i64::from(model::MEMORY_LIMIT_KIB_MAX))
        )]
        memory_limit_kib: u32,
        /// For modules: a folder with the files that instances can read
        #[arg(long = "files", value_name = "FOLDER")]
        folder: Option<PathBuf>,
        /// For modules: a field of state to grant to them; may be given several times
        #[arg(long = "state", value_name = "FIELD")]
        fields: Vec<FieldName>,
        /// For modules: a private key to grant to them; may be given several times
        #[arg(long = "key", value_name = "KEY")]
        keys: Vec<KeyName>,
        /// For modules: a model to grant to them; may be given several times
        #[arg(long = "model", value_name = "MODEL")]
        models: Vec<ModelName>,
        #[command(flatten)]
        builder: Builder,
    },
    /// Create or update tenants, modules, keys, models, chains and rules as manifests say: all of them or none
    ///
    /// Objects of a manifest with a label get the label. With --prune, the same change deletes the objects of the manifest's
    /// tenant that have the label and are not in the manifest. An object belongs to manifests of one label: those of another
    /// one are refused if they name it, unless they take it over.
    Apply {
        /// Manifests, or folders of them; all together are one change. By default the pinion.toml of this folder, or of
        /// the nearest one above
        #[arg(long = "file", visible_alias = "manifest-path", short, num_args = 1.., value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        labels: LabelTerms,
        #[command(flatten)]
        terms: Terms,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Show how objects would change by an apply, or have changed between revisions
    ///
    /// With --file, compares what manifests say with what the node has; objects that only the node has are left out. With
    /// revisions, compares all objects of a tenant at the first one with those at the second, or with those of now. The
    /// exit status is 0 if there is no difference, 1 if there is one, and larger after an error. Output on a terminal has
    /// colours, unless NO_COLOR is set.
    Diff {
        /// Manifests, or folders of them. By default, without revisions, the pinion.toml of this folder, or of the nearest
        /// one above
        #[arg(long = "file", short, num_args = 1.., value_name = "FILE", conflicts_with = "first")]
        files: Vec<PathBuf>,
        /// Show also what an apply with --prune would delete
        #[arg(long, conflicts_with = "first")]
        prune: bool,
        /// The revision to compare with; see pinion history
        #[arg(value_name = "REVISION")]
        first: Option<u64>,
        /// The revision that is compared with it; by default what is there now
        #[arg(value_name = "REVISION")]
        second: Option<u64>,
    },
    /// Show the revisions: what was changed, when and by whom
    ///
    /// Each apply, delete and undo that changed something is a revision. The node keeps the latest ones. Between a tenant's
    /// revisions lie the numbers of other tenants'.
    History(History),
    /// Return to earlier revisions, and wait until the latest one is in force
    #[command(subcommand)]
    Rollout(Rollout),
    /// Upload modules, keys and models without changing anything else
    ///
    /// The node validates the bytes, keeps them for their tenant, and identifies them by their digest, which is
    /// printed. No chain runs them yet, and no running chain changes. That takes `pinion apply` of a manifest whose
    /// `[[module]]` names them, by `digest = "sha256:..."`, or by the `path` of the same file. Keys and models of a manifest
    /// are pushed as well; a key is stored sealed, identified by its public key, and cannot be read back. (An apply by path
    /// uploads what is missing, so it needs no push before. Push is for building on one machine and applying on
    /// another.) The node discards an upload that nothing names within an hour; until then `pinion get uploads` lists
    /// it.
    Push {
        /// A module. By default the modules, keys and models of the manifest
        #[arg(value_name = "FILE")]
        module: Option<PathBuf>,
        #[command(flatten)]
        manifest: Manifest,
    },
    /// Run the function in this folder on a temporary local node
    ///
    /// Builds the function, starts a node in a temporary folder, and applies the manifest there. The builder, the
    /// limits and the validation are those of an operator's node. Shows the log lines of its instances, and at the end
    /// how many frames were received, sent, and dropped for which reason.
    ///
    /// With --read, the frames of a capture go through the function in bursts. The next burst starts when every frame
    /// of the one before was sent or dropped. This needs neither root nor DPDK. As on every node, functions do not get
    /// ARP, neighbour discovery, or frames with wrong headers; those are counted as dropped.
    ///
    /// With --tap, the node has a TAP device, which needs root. Programs on this machine are its clients, until Ctrl-C.
    /// When a file beside the manifest or below changes, the function is built and applied again. If the build fails,
    /// the error is shown, and the previous version keeps running.
    Dev(Box<Dev>),
    /// List objects
    ///
    /// Names follow their kind (get chain echo), or stand behind it (get chain/echo rule/ping). `all` is a tenant's modules,
    /// keys, models, chains and rules. With -o toml, prints a manifest that `pinion apply` takes without a change: modules, keys,
    /// models and files by their digests.
    Get {
        /// Kinds of objects (chains, or chains,rules, or all), then names; or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", required = true, value_parser = Word(&Kind::ALL))]
        objects: Vec<String>,
        /// Only objects with this label
        #[arg(long, short, value_name = "LABEL")]
        label: Option<Label>,
        #[command(flatten)]
        scope: Scope,
    },
    /// Show the details of one object
    Describe {
        /// Its kind and its name, or an FWP's id: chain echo, or chain/echo
        #[arg(value_name = "KIND/NAME", required = true, value_parser = Word(&Kind::DESCRIBED))]
        object: Vec<String>,
    },
    /// Change an object in an editor: $PINION_EDITOR, $VISUAL, $EDITOR, or vi
    ///
    /// Opens the object as a manifest, as `pinion get -o toml` writes it, and applies what is saved, unless a later revision has
    /// changed something of its tenant meanwhile. A file that is saved unchanged or empty changes nothing. If the change is
    /// refused, the editor opens again on a terminal, with the reason at the top. If it is given up then, or cannot succeed any
    /// more, the file is kept, and its path is shown.
    Edit {
        /// Its kind and its name: chain echo, or chain/echo
        #[arg(value_name = "KIND/NAME", required = true, value_parser = Word(&Kind::OF_MANIFESTS))]
        object: Vec<String>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Wait until objects are in force, or deleted
    ///
    /// In force is what `pinion apply --wait` waits for. The exit status is 2 if an object that is to be in force is not there, and
    /// 1 if the time is over. An object that is not there is deleted.
    Wait(Wait),
    /// Delete objects: all that are named, or none
    Delete {
        /// Their kind and their names: chain echo, or chain/echo rule/ping
        #[arg(value_name = "KIND/NAME", required_unless_present = "files", value_parser = Word(&Kind::OF_MANIFESTS))]
        objects: Vec<String>,
        /// Delete all objects that these manifests, or folders of them, define
        #[arg(long = "file", short, num_args = 1.., value_name = "FILE", conflicts_with = "objects")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        terms: Terms,
    },
    /// Call a chain or a module with a message, and print its answer
    ///
    /// Without --data or --file, reads the payload from standard input, unless that is a terminal. Writes the answer
    /// unchanged to standard output. The exit status is 0 with an answer, 2 if nothing has this name or the call cannot
    /// be made, 3 if the node has no room for it or no instance at the moment, and 1 if there was no answer.
    Invoke {
        /// What to call: TENANT/CHAIN or TENANT/MODULE, or without TENANT the one of --tenant
        #[arg(value_name = "TENANT/NAME")]
        function: Function,
        /// The payload of the message
        #[arg(long, short, conflicts_with = "file", value_name = "TEXT")]
        data: Option<String>,
        /// A file with the payload of the message; - for standard input
        #[arg(long, short, value_name = "FILE")]
        file: Option<PathBuf>,
        /// How long to wait for the answer: 500ms, 10s, 2m
        #[arg(long, default_value = "30s", value_name = "TIME", value_parser = time)]
        timeout: Duration,
    },
    /// Show the log lines of functions, and why functions fail
    ///
    /// The node keeps the latest lines of each tenant. Each is shown as `TIME LEVEL CHAIN/STAGE[FWP] MESSAGE`, with the
    /// tenant before the chain with --all-tenants. There are limits to how fast a function may log and to how
    /// much the node keeps. Where lines were lost, a line says how many.
    Logs {
        /// Continue with new lines until Ctrl-C
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        scope: Scope,
        /// Only lines from instances of this chain
        #[arg(long)]
        chain: Option<ChainName>,
        /// Of the existing lines, only this many of the latest
        #[arg(long, value_name = "LINES")]
        tail: Option<u64>,
    },
    /// Show the metrics of functions in Prometheus format
    ///
    /// Writes Prometheus' text exposition format. Each name begins with pinion_function_, and each series has the
    /// labels tenant, chain, stage and module. A counter covers all instances that a chain has had since the node
    /// started; a gauge covers its current instances. To have them scraped, write them periodically to a file of
    /// node_exporter's textfile collector.
    ///
    /// With --node, writes those of the node itself instead: pinion_node_worker_panics_total by core,
    /// pinion_node_calls_redelivered_total, and pinion_node_jobs_..., signatures and runs of models, by tenant and kind.
    Metrics {
        /// The node's own metrics instead of functions'; as JSON the whole status
        #[arg(long, conflicts_with_all = ["all_tenants", "chain"])]
        node: bool,
        #[command(flatten)]
        scope: Scope,
        /// Only metrics of chains of this name
        #[arg(long)]
        chain: Option<ChainName>,
    },
    /// Show the status of the whole node
    Status,
    /// Manage contexts: named nodes, with the certificate and the tenant to use there
    ///
    /// Contexts are kept in $XDG_CONFIG_HOME/pinion/config.toml, by default ~/.config/pinion/config.toml, or in the
    /// file that PINION_CONFIG names. Every command uses the current context, unless --context, PINION_CONTEXT,
    /// --socket or PINION_SOCKET names another node. An option beats a variable, and a socket beats a context.
    #[command(subcommand)]
    Context(ContextCommand),
    /// Make a CA and the certificates of nodes, operators and tenants, and revoke them
    ///
    /// The CA is a folder on this machine, for development and small installations. Its key can make operators, so keep
    /// it on a machine that is not a node. Keys are readable by their owner only.
    Cert(Cert),
    /// Show the keys of manifests: their values, bounds and defaults
    Explain {
        /// A table or a key of manifests: chain, chain.stage, chain.stage.outputs. By default the top of a manifest
        #[arg(value_name = "KIND[.KEY]")]
        path: Option<String>,
    },
    /// Show the version of this command, and of the node if one answers
    Version,
    /// Print a script by which a shell completes commands and options
    ///
    /// For bash: `pinion completion bash >/etc/bash_completion.d/pinion`. For zsh a file `_pinion` in a folder of $fpath, for
    /// fish ~/.config/fish/completions/pinion.fish.
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write man pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder, which must exist
        folder: PathBuf,
    },
    /// Check, export and import the stores of nodes that are stopped
    #[command(subcommand)]
    Store(StoreCommand),
}

/// Returns the command line's definition.
pub(crate) fn definition() -> clap::Command {
    Args::command()
}

/// Whose objects to show.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct Scope {
    /// Those of all tenants, for operators
    #[arg(long, short = 'A')]
    pub(crate) all_tenants: bool,
}

/// How `pinion dev` runs a function.
#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("where").required(true))]
pub(crate) struct Dev {
    #[command(flatten)]
    pub(crate) manifest: Manifest,
    /// A capture of Ethernet frames for the function, as pcap or pcapng; - for standard input
    #[arg(long, group = "where", value_name = "CAPTURE")]
    pub(crate) read: Option<PathBuf>,
    /// Write sent frames to this pcap file. Each gets the time of the newest frame that was received before it
    #[arg(long, conflicts_with = "tap", value_name = "CAPTURE")]
    pub(crate) write: Option<PathBuf>,
    /// The number of frames in a burst. With 1, each sent frame gets the time of the frame that it answers
    #[arg(long, conflicts_with = "tap", value_name = "FRAMES", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) burst: u16,
    /// Let the manifest's rules decide which frames the function gets. By default it gets all
    #[arg(long, conflicts_with = "tap")]
    pub(crate) by_rules: bool,
    /// The chain that gets the frames, if the manifest has several
    #[arg(long, conflicts_with_all = ["tap", "by_rules"])]
    pub(crate) chain: Option<ChainName>,
    /// How long to wait for frames that functions hold back, when no more are sent: 500ms, 2s
    #[arg(long, conflicts_with = "tap", value_name = "TIME", default_value = "2s", value_parser = time)]
    pub(crate) linger: Duration,
    /// How long functions may keep a burst's frames back before the next burst goes in
    #[arg(long, conflicts_with = "tap", value_name = "TIME", default_value = "20ms", value_parser = time)]
    pub(crate) patience: Duration,
    /// The name of the TAP device to create
    #[arg(long, group = "where", value_name = "NAME")]
    pub(crate) tap: Option<String>,
    /// The address of this machine on the device. By default an address beside the one that the manifest's rules name
    #[arg(long, conflicts_with = "read", value_name = "ADDRESS/LENGTH")]
    pub(crate) address: Option<IpNet>,
    /// Run again when a file changes. With --tap this is always so
    #[arg(long)]
    pub(crate) watch: bool,
    /// Do not build; use the files as they are
    #[arg(long, conflicts_with = "watch")]
    pub(crate) no_watch: bool,
    /// The piniond program; by default the piniond beside this program
    #[arg(long, env = "PINION_PINIOND", value_name = "PATH")]
    pub(crate) piniond: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) builder: Builder,
}

/// Which manifest to use.
#[derive(Debug, ClapArgs)]
pub(crate) struct Manifest {
    /// The manifest; by default the pinion.toml of this folder, or of the nearest one above
    #[arg(long = "file", visible_alias = "manifest-path", short, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Where the builder is.
#[derive(Debug, ClapArgs)]
pub(crate) struct Builder {
    /// The program that validates modules; by default the pinion-builder beside this program
    #[arg(long = "builder", env = "PINION_BUILDER", value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
}

/// The templates of a new crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Template {
    /// Answers UDP datagrams, in C
    C,
    /// A service over TCP: answers lines, in C
    CService,
    /// A service over TCP: answers requests
    Endpoint,
    /// Passes packets to some ports, and drops others
    PacketFilter,
    /// Answers UDP datagrams
    Responder,
}

/// A name that is valid for both a crate and a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CrateName(pub(crate) String);

impl FromStr for CrateName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        pinion_control::model::ModuleName::new(text).map_err(|error| error.to_string())?;
        if !text.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err("the name of a crate begins with a letter".to_owned());
        }
        if RESERVED.split(' ').any(|word| word == text) {
            return Err("that is a word of Rust's, or a crate's that comes with it: take another".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

/// Names that cargo refuses for a crate, as they have another meaning in its code, or in its target folder.
const RESERVED: &str = "abstract alloc as async await become box break build const continue core crate deps do dyn else enum \
    examples extern false final fn for gen if impl in incremental let loop macro match mod move mut override \
    panic-unwind pinion-abi pinion-sdk priv proc-macro pub ref return self static std struct super test trait true try type \
    unsafe use where while";

/// The chain or module to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The tenant, if it was given.
    pub(crate) tenant: Option<TenantName>,
    pub(crate) chain: ChainName,
}

impl FromStr for Function {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (tenant, chain) = match text.split_once('/') {
            Some((tenant, chain)) => (Some(tenant.parse().map_err(|error| format!("{error}"))?), chain),
            None => (None, text),
        };
        let chain = chain.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { tenant, chain })
    }
}

/// Parses a number with its unit.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..digits].parse::<u64>().ok();
    let unit_ms = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => 0,
    };
    match number.and_then(|number| number.checked_mul(unit_ms)) {
        Some(time_ms @ 1..) => Ok(Duration::from_millis(time_ms)),
        _ => Err("a time is a number and a unit: 500ms, 10s, 2m".to_owned()),
    }
}
