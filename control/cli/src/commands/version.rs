//! `pinion version`: the version of this command, and that of the node.

use pinion_control::client::ClientError;
use serde::Serialize;

use crate::args::Format;
use crate::contexts::Target;
use crate::output::{self, or_dash};

#[derive(Debug, Serialize)]
struct Versions {
    client: &'static str,
    /// None if no node runs there.
    node: Option<String>,
}

pub(super) async fn run(target: &Target, format: Format) -> anyhow::Result<()> {
    let versions = Versions { client: env!("CARGO_PKG_VERSION"), node: of_node(target).await? };
    match format {
        Format::Json => output::json(&versions),
        Format::Table => output::print(&output::description([
            ("Client", versions.client.to_owned()),
            ("Node", or_dash(versions.node.as_ref())),
        ])),
    }
}

async fn of_node(target: &Target) -> anyhow::Result<Option<String>> {
    let is_none = |error: &anyhow::Error| matches!(error.downcast_ref(), Some(ClientError::NotRunning { .. }));
    let mut client = match target.connect().await {
        Err(error) if is_none(&error) => return Ok(None),
        connected => connected?,
    };
    Ok(Some(client.status().await?.node.version))
}
