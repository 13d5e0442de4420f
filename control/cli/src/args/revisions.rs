//! The command line of what has to do with revisions.

use std::str::FromStr;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use pinion_control::control::ChangeOptions;

use super::{Kind, Scope, Waiting, time};

/// On what terms a change is made.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct Terms {
    /// Have the node check everything and answer as if it were done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Change nothing if a later revision than this one touched a tenant of the change
    #[arg(long, value_name = "REVISION")]
    pub(crate) expected_revision: Option<u64>,
}

impl From<Terms> for ChangeOptions {
    fn from(Terms { dry_run, expected_revision }: Terms) -> Self {
        Self { dry_run, expected_revision }
    }
}

/// Which revisions to show.
#[derive(Debug, ClapArgs)]
pub(crate) struct History {
    /// Only what touched this object, or, with a kind alone, objects of this kind
    #[arg(value_name = "KIND/NAME")]
    pub(crate) object: Option<ObjectName>,
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Only earlier revisions than this one
    #[arg(long, value_name = "REVISION")]
    pub(crate) before: Option<u64>,
    /// How many at most
    #[arg(long, value_name = "REVISIONS", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
}

/// The kind of an object, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) kind: &'static str,
    pub(crate) name: Option<String>,
}

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').map_or((text, None), |(kind, name)| (kind, Some(name.to_owned())));
        let known = Kind::of(kind, &Kind::OF_MANIFESTS).map(Kind::singular);
        let kinds = || Kind::OF_MANIFESTS.map(Kind::singular).join(", ");
        let kind = known.ok_or_else(|| format!("the kinds are {}, as in chain/echo", kinds()))?;
        Ok(Self { kind, name })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rollout {
    /// Make a tenant's objects what they were at an earlier revision
    ///
    /// This is a revision of its own, so it can be undone too. All objects of the tenant return, or none: if something of
    /// then is not valid any more, nothing is changed. An operator's call restores the tenant's terms as well.
    Undo {
        /// The revision to return to. By default what was there before the tenant's latest revision
        #[arg(long, value_name = "REVISION")]
        to_revision: Option<u64>,
        #[command(flatten)]
        terms: Terms,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Wait until the latest revision is completely in force
    ///
    /// New clients get what was applied once it is: an instance of each chain is ready, but for those with cache_min = 0. For
    /// operators these are all tenants' chains. The exit status is 1 if it is not in force in time.
    Status {
        /// How long to wait for that: 500ms, 10s, 2m
        #[arg(long, default_value = "2m", value_name = "TIME", value_parser = time)]
        timeout: Duration,
    },
}
