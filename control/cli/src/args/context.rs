//! The command line of `pinion context`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use pinion_control::client::ServerAddress;

use crate::contexts::ContextName;

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List the contexts; the current one is marked by a *
    List,
    /// Make a context the current one
    Use {
        /// Its name
        name: ContextName,
    },
    /// Add a context: a node over TCP (--server), or a node on this machine (--socket)
    ///
    /// Certificates and keys stay where they are. The context has their paths. With --tenant, commands that use it mean that
    /// tenant unless they name one.
    Add(Box<AddedContext>),
    /// Remove a context; its certificate and key stay where they are
    Remove {
        /// Its name
        name: ContextName,
    },
    /// Show a context, and whom its certificate identifies
    Show {
        /// Its name; by default the context that commands use
        name: Option<ContextName>,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AddedContext {
    /// Its name: letters, digits and . _ @ -
    pub(crate) name: ContextName,
    /// The node's host and port; the host must be one of the names in the node's certificate
    #[arg(long, value_name = "HOST:PORT", requires_all = ["ca", "certificate", "key"])]
    pub(crate) server: Option<ServerAddress>,
    /// The file with the certificate of the CA that issued the node's certificate
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(crate) ca: Option<PathBuf>,
    /// The file with your certificate
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(crate) certificate: Option<PathBuf>,
    /// The file with the key of your certificate
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(crate) key: Option<PathBuf>,
    /// Make it the current context
    #[arg(long = "use")]
    pub(crate) is_current: bool,
}
