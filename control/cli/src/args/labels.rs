//! The command line of what has to do with labels.

use clap::Args as ClapArgs;

/// What an apply does with objects of labels.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct LabelTerms {
    /// Delete, in the same change, the objects that have the manifest's label and are not in the manifest
    #[arg(long)]
    pub(crate) prune: bool,
    /// Take over objects that belong to manifests of another label. Without a label in the manifest, objects lose theirs
    #[arg(long)]
    pub(crate) take_over: bool,
}
