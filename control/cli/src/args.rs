//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use pinion_control::model::TenantName;

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
    /// Make modules, chains and rules be there as manifests say, all of them or none
    Apply {
        /// Manifests, or folders of them; all are one change
        #[arg(long = "file", short, required = true, num_args = 1.., value_name = "FILE")]
        files: Vec<PathBuf>,
    },
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
    /// Show the node as a whole
    Status,
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
    #[value(alias = "chain")]
    Chains,
    #[value(alias = "rule")]
    Rules,
    #[value(alias = "fwp")]
    Fwps,
    #[value(alias = "instance")]
    Instances,
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
