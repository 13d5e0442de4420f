//! The command line of `pinion store`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Check the store of a node that is stopped, and change nothing
    ///
    /// Checks the database, each object and upload against its digest, the revisions, and all counts. The exit status is 0 if the
    /// store is whole, 2 if something is wrong with it, and 1 if it cannot be checked, as when a node is running on it.
    Check {
        /// The store: pinion.redb in the node's state_dir
        #[arg(value_name = "PATH")]
        store: PathBuf,
    },
    /// Write what a stopped node has into an archive: tenants, modules, keys, models, chains and rules, with their bytes
    ///
    /// The archive is a tar file of manifest.toml and of blobs by their digests. Private keys are not exported in the clear: they
    /// are in it as the store has them, sealed with the node's secret (keys.secret), which is not. Revisions and uploads that
    /// nothing names are left out.
    Export {
        /// The store: pinion.redb in the node's state_dir
        #[arg(value_name = "PATH")]
        store: PathBuf,
        /// The archive to write, which must not exist
        file: PathBuf,
    },
    /// Make a new store of an archive that pinion store export has written
    ///
    /// Everything in the archive is checked first. Keys can be used only by a node with the secret that they were sealed with.
    Import {
        /// The archive
        file: PathBuf,
        /// The store to make, which must not exist: pinion.redb in the node's state_dir
        #[arg(value_name = "PATH")]
        store: PathBuf,
    },
}
