//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use pinion_control::model::{ChainName, FieldName, TenantName};

/// Talks to a Pinion node: brings modules, chains and rules to it, and shows what it does.
#[derive(Debug, Parser)]
#[command(name = "pinion", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// The socket that piniond answers on
    #[arg(long, global = true, env = "PINION_SOCKET", value_name = "PATH", default_value = "/run/pinion/pinion.sock")]
    pub(crate) socket: PathBuf,
    /// How to print what was asked for
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a crate of a function: its code, tests, and manifest
    ///
    /// The crate comes into a folder of its name, which must be empty or not there. `cargo test` tests it, `pinion build` builds it, and
    /// `pinion apply` brings it to a node.
    New {
        /// The crate's name: small letters, digits and -, the first a letter
        name: CrateName,
        /// What to begin with
        #[arg(long, value_enum, default_value_t = Template::Responder)]
        template: Template,
        /// A checkout of Pinion whose SDK to use; without it, the SDK of this version from the registry, which has none for C
        #[arg(long, env = "PINION_SDK", value_name = "PATH")]
        sdk: Option<PathBuf>,
    },
    /// Build the function in this folder, and check it as a node would
    ///
    /// Runs `cargo build --release --target wasm32-wasip1`, or `make` where there is a Makefile and no Cargo.toml, then `pinion check`.
    /// PINION_CARGO says which cargo; that hears of RUSTFLAGS and the like as always.
    Build {
        #[command(flatten)]
        manifest: Manifest,
        #[command(flatten)]
        builder: Builder,
    },
    /// Say what a node would say of modules and manifests, without one
    ///
    /// Judges modules, initialises them with their configurations and compiles them as a node does, in a process that limits itself. What a
    /// node alone knows it cannot say: whether it has a port of that name, a module that no manifest given here brings, or room. The exit
    /// status is 2 if something is refused.
    Check {
        /// Modules (.wasm), manifests, or folders of manifests. Without any, the pinion.toml of this folder, or of the nearest above
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        manifest: Manifest,
        /// For modules: the configuration that they are initialised with
        #[arg(long, value_name = "TEXT", default_value = "")]
        config: String,
        /// For modules: how much memory an instance may have
        #[arg(long, value_name = "KIB", default_value_t = pinion_control::model::Chain::MEMORY_LIMIT_KIB)]
        memory_limit_kib: u32,
        /// For modules: a folder with the files that instances find
        #[arg(long = "files", value_name = "FOLDER")]
        folder: Option<PathBuf>,
        /// For modules: a field of state that they are granted; may be given several times
        #[arg(long = "state", value_name = "FIELD")]
        fields: Vec<FieldName>,
        #[command(flatten)]
        builder: Builder,
    },
    /// Make modules, chains and rules be there as manifests say, all of them or none
    Apply {
        /// Manifests, or folders of them; all are one change. Without any, the pinion.toml of this folder, or of the nearest above
        #[arg(long = "file", visible_alias = "manifest-path", short, num_args = 1.., value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Upload modules, and change nothing else
    ///
    /// The node judges the bytes and keeps them for their tenant under their digest, which is printed. No chain runs them yet, and none that
    /// runs changes: that takes `pinion apply` of a manifest whose `[[module]]` names them, by `digest = "sha256:..."`, or by the `path` of the
    /// same file. (An apply by path uploads what is not there yet, so a push before is no need: it is for who builds in one place and applies
    /// in another.) What nobody names within an hour is forgotten; `pinion get uploads` lists it until then.
    Push {
        /// A module; without it, those of the manifest
        #[arg(value_name = "FILE")]
        module: Option<PathBuf>,
        /// Who is to own the module
        #[arg(long, requires = "module", default_value = pinion_control::manifest::DEFAULT_TENANT)]
        tenant: TenantName,
        #[command(flatten)]
        manifest: Manifest,
    },
    /// Run the function in this folder here, on a node of its own
    ///
    /// Builds it, starts a node in a folder that goes again, and applies the manifest there: the same builder, limits and judging as on an
    /// operator's. What its instances say is shown, and at the end what was received, sent, and dropped for which reason.
    ///
    /// With --read, the frames of a capture go through the function, one burst after the other, each when the one before has been answered for.
    /// This takes neither root nor DPDK. A node hands no function ARP, neighbour discovery, or frames whose headers are wrong: those are
    /// counted as dropped, as everywhere.
    ///
    /// With --tap, the node has a TAP device, which takes root: whatever runs on this machine is its client, until Ctrl-C. A change of a file
    /// beside the manifest, or below, builds and applies again; what does not build is shown, and the version before goes on.
    Dev(Box<Dev>),
    /// List things
    Get {
        /// What to list
        #[arg(value_enum)]
        kind: Listed,
        /// Only the one with this name, or this id
        name: Option<String>,
        /// Only this tenant's; all tenants' when not given
        #[arg(long)]
        tenant: Option<TenantName>,
    },
    /// Show all there is to say of one thing
    Describe {
        /// What kind of thing
        #[arg(value_enum)]
        kind: Described,
        /// Its name, or an FWP's id
        name: String,
        #[command(flatten)]
        owner: Owner,
    },
    /// Delete things, all that are named or none
    Delete {
        /// What kind of thing
        #[arg(value_enum, required_unless_present = "files")]
        kind: Option<Deletable>,
        /// Its name
        #[arg(required_unless_present = "files")]
        name: Option<String>,
        /// Delete all that these manifests, or folders of them, speak of
        #[arg(long = "file", short, num_args = 1.., value_name = "FILE", conflicts_with_all = ["kind", "name", "tenant"])]
        files: Vec<PathBuf>,
        #[command(flatten)]
        owner: Owner,
    },
    /// Call a chain, or a module, with a message, and print its answer
    ///
    /// What is not given by --data or --file is read from the standard input, unless that is a terminal. The answer goes to the standard
    /// output as it is. The exit status is 0 with an answer, 2 if there is nothing of this name or the call cannot be made, and 1 if there
    /// was no answer.
    Invoke {
        /// What to call: TENANT/CHAIN, or TENANT/MODULE; without a tenant, the default tenant's
        #[arg(value_name = "TENANT/NAME")]
        function: Function,
        /// The message's payload
        #[arg(long, short, conflicts_with = "file", value_name = "TEXT")]
        data: Option<String>,
        /// A file with the message's payload; - for the standard input
        #[arg(long, short, value_name = "FILE")]
        file: Option<PathBuf>,
        /// How long to wait for the answer: 500ms, 10s, 2m
        #[arg(long, default_value = "30s", value_name = "TIME", value_parser = time)]
        timeout: Duration,
    },
    /// Show what functions say, and why they fail
    ///
    /// The node keeps the latest lines of each tenant. Each is shown as `TIME LEVEL CHAIN/STAGE[FWP] MESSAGE`, with the tenant before the chain
    /// unless --tenant is given. A function may say so much at once, and the node keep so much: where lines were lost, a line says how many.
    Logs {
        /// Go on with what comes, until Ctrl-C
        #[arg(long, short)]
        follow: bool,
        /// Only this tenant's; all tenants' when not given
        #[arg(long)]
        tenant: Option<TenantName>,
        /// Only what instances of this chain say
        #[arg(long)]
        chain: Option<ChainName>,
        /// Of what is there already, only the latest lines
        #[arg(long, value_name = "LINES")]
        tail: Option<u64>,
    },
    /// Show what functions count, as Prometheus reads it
    ///
    /// Writes Prometheus' text exposition format: each name begins with pinion_function_, and each series has the labels tenant, chain, stage
    /// and module. Counters are of all instances that a chain has had since the node started, gauges of those that it has. To have them
    /// scraped, write them to a file of node_exporter's textfile collector now and then.
    Metrics {
        /// Only this tenant's; all tenants' when not given
        #[arg(long)]
        tenant: Option<TenantName>,
        /// Only those of chains of this name
        #[arg(long)]
        chain: Option<ChainName>,
    },
    /// Show the node as a whole
    Status,
}

/// How `pinion dev` runs a function.
#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("where").required(true))]
pub(crate) struct Dev {
    #[command(flatten)]
    pub(crate) manifest: Manifest,
    /// A capture of Ethernet frames, pcap or pcapng, for the function
    #[arg(long, group = "where", value_name = "CAPTURE")]
    pub(crate) read: Option<PathBuf>,
    /// Where frames that come out go to, as pcap. Each has the time of the newest frame that went in before
    #[arg(long, conflicts_with = "tap", value_name = "CAPTURE")]
    pub(crate) write: Option<PathBuf>,
    /// Frames that go in at a time. With 1, a frame that comes out has the time of the one that it is the answer to
    #[arg(long, conflicts_with = "tap", value_name = "FRAMES", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) burst: u16,
    /// Which frames the function gets is up to the manifest's rules; without this, it gets all
    #[arg(long, conflicts_with = "tap")]
    pub(crate) by_rules: bool,
    /// Which chain gets the frames, if the manifest has several
    #[arg(long, conflicts_with_all = ["tap", "by_rules"])]
    pub(crate) chain: Option<ChainName>,
    /// How long to wait for frames that functions keep, when nothing more comes out: 500ms, 2s
    #[arg(long, conflicts_with = "tap", value_name = "TIME", default_value = "2s", value_parser = time)]
    pub(crate) linger: Duration,
    /// The device to make
    #[arg(long, group = "where", value_name = "NAME")]
    pub(crate) tap: Option<String>,
    /// The address of this machine on the device; by default one beside the address that the manifest's rules name
    #[arg(long, conflicts_with = "read", value_name = "ADDRESS/LENGTH")]
    pub(crate) address: Option<IpNet>,
    /// Begin again when a file changes. So it is with --tap anyway
    #[arg(long)]
    pub(crate) watch: bool,
    /// Take the files as they are
    #[arg(long, conflicts_with = "watch")]
    pub(crate) no_watch: bool,
    /// The node's program; by default the piniond beside this program
    #[arg(long, env = "PINION_PINIOND", value_name = "PATH")]
    pub(crate) piniond: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) builder: Builder,
}

/// Which manifest it is about.
#[derive(Debug, ClapArgs)]
pub(crate) struct Manifest {
    /// The manifest; by default the pinion.toml of this folder, or of the nearest above
    #[arg(long = "file", visible_alias = "manifest-path", short, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Where the builder is.
#[derive(Debug, ClapArgs)]
pub(crate) struct Builder {
    /// The program that judges modules; by default the pinion-builder beside this program
    #[arg(long = "builder", env = "PINION_BUILDER", value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
}

/// What a new crate begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Template {
    /// Answers UDP datagrams, in C
    C,
    /// A service over TCP: answers requests
    Endpoint,
    /// Lets packets to some ports pass, and drops others
    PacketFilter,
    /// Answers UDP datagrams
    Responder,
}

/// A name that cargo takes for a crate and a node for a module.
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

/// Names that cargo takes for no crate, as they mean something else in its code, or in its target folder.
const RESERVED: &str = "abstract alloc as async await become box break build const continue core crate deps do dyn else enum \
    examples extern false final fn for gen if impl in incremental let loop macro match mod move mut override \
    pinion-abi pinion-sdk priv proc-macro pub ref return self static std struct super test trait true try type \
    unsafe use where while";

/// What is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) tenant: TenantName,
    pub(crate) chain: ChainName,
}

impl FromStr for Function {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (tenant, chain) = text.split_once('/').unwrap_or((pinion_control::manifest::DEFAULT_TENANT, text));
        let tenant = tenant.parse().map_err(|error| format!("{error}"))?;
        let chain = chain.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { tenant, chain })
    }
}

/// A number with its unit.
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

/// Whose a named thing is.
#[derive(Debug, ClapArgs)]
pub(crate) struct Owner {
    /// The tenant that owns it
    #[arg(long, default_value = pinion_control::manifest::DEFAULT_TENANT)]
    pub(crate) tenant: TenantName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listed {
    #[value(alias = "module")]
    Modules,
    /// What was pushed and no module names
    #[value(alias = "upload")]
    Uploads,
    #[value(alias = "chain")]
    Chains,
    #[value(alias = "rule")]
    Rules,
    #[value(alias = "fwp")]
    Fwps,
    #[value(alias = "instance")]
    Instances,
    /// Fields of state
    State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Described {
    #[value(alias = "modules")]
    Module,
    #[value(alias = "chains")]
    Chain,
    #[value(alias = "rules")]
    Rule,
    #[value(alias = "fwps")]
    Fwp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deletable {
    #[value(alias = "modules")]
    Module,
    #[value(alias = "chains")]
    Chain,
    #[value(alias = "rules")]
    Rule,
}
