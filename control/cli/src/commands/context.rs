//! `pinion context`: lists, chooses, adds and removes contexts.

use std::path::{self, PathBuf};

use pinion_control::client::{NodeAddress, RemoteNode};
use pinion_control::model::TenantName;
use serde::Serialize;

use super::BadInput;
use super::cert::Certificate;
use crate::args::{AddedContext, ContextCommand, Format};
use crate::contexts::{Context, ContextError, ContextName, Contexts, Target, Wanted, warn_of_readable};
use crate::output::{self, or_dash, printable};

/// Executes the command. `wanted` is the node that the command line asks for, `socket` the one that it names, and `tenant` the
/// tenant that it names.
pub(super) fn run(
    command: ContextCommand,
    wanted: Wanted,
    socket: Option<PathBuf>,
    tenant: Option<TenantName>,
    format: Format,
) -> anyhow::Result<()> {
    match command {
        ContextCommand::List => list(format),
        ContextCommand::Use { name } => {
            Contexts::change(|contexts| contexts.make_current(&name))?;
            changed(&name, "is the current one", format)
        }
        ContextCommand::Add(added) => add(*added, socket, tenant, format),
        ContextCommand::Remove { name } => {
            let was_current = Contexts::change(|contexts| contexts.remove(&name))?;
            if was_current {
                output::say("warning: it was the current context: choose another one (pinion context use)");
            }
            changed(&name, "removed", format)
        }
        ContextCommand::Show { name } => show(name.map_or(wanted, Wanted::Context), format),
    }
}

fn changed(name: &ContextName, effect: &str, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json(&serde_json::json!({ "kind": "context", "name": name, "effect": effect })),
        Format::Table => output::print(&format!("context/{name} {effect}")),
    }
}

fn add(added: AddedContext, socket: Option<PathBuf>, tenant: Option<TenantName>, format: Format) -> anyhow::Result<()> {
    let AddedContext { name, server, ca, certificate, key, is_current } = added;
    let address = match (socket, server, ca.zip(certificate).zip(key)) {
        (Some(socket), None, None) => NodeAddress::Socket(absolute(socket)?),
        (None, Some(server), Some(((ca, certificate), key))) => {
            let (ca, certificate, key) = (absolute(ca)?, absolute(certificate)?, absolute(key)?);
            warn_of_readable(&key);
            let node = RemoteNode { server, ca, certificate, key };
            node.check()?;
            NodeAddress::Remote(node)
        }
        (Some(_), Some(_), _) => return Err(ContextError::TwoNodes.into()),
        _ => return Err(ContextError::NoNode.into()),
    };
    Contexts::change(|contexts| {
        contexts.add(&name, Context { address, tenant })?;
        if is_current { contexts.make_current(&name) } else { Ok(()) }
    })?;
    changed(&name, if is_current { "added, and is the current one" } else { "added" }, format)
}

/// Returns a path that has one meaning in every folder.
fn absolute(path: PathBuf) -> Result<PathBuf, BadInput> {
    let path = path::absolute(&path).map_err(|error| BadInput::Unreadable { path, error })?;
    if path.to_str().is_some() { Ok(path) } else { Err(BadInput::NotText(path)) }
}

/// A context as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    /// None if no context is in use.
    name: Option<ContextName>,
    current: bool,
    tenant: Option<TenantName>,
    #[serde(flatten)]
    node: ShownNode,
    /// Whom its certificate identifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<Certificate>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ShownNode {
    Socket { socket: PathBuf },
    Remote { server: String, ca: PathBuf, certificate: PathBuf, key: PathBuf },
}

impl Shown {
    fn new(Target { context, address, tenant }: Target, current: Option<&ContextName>) -> Self {
        let node = match address {
            NodeAddress::Socket(socket) => ShownNode::Socket { socket },
            NodeAddress::Remote(RemoteNode { server, ca, certificate, key }) => {
                ShownNode::Remote { server: server.to_string(), ca, certificate, key }
            }
        };
        Self { current: context.is_some() && context.as_ref() == current, name: context, tenant, node, identity: None }
    }

    fn address(&self) -> String {
        match &self.node {
            ShownNode::Socket { socket } => socket.display().to_string(),
            ShownNode::Remote { server, .. } => server.clone(),
        }
    }

    fn row(&self) -> [String; 4] {
        let mark = if self.current { "*" } else { "" };
        [mark.to_owned(), or_dash(self.name.as_ref()), self.address(), or_dash(self.tenant.as_ref())]
    }

    fn describe(&self) -> String {
        let file = |path: &PathBuf| path.display().to_string();
        let [ca, certificate, key] = match &self.node {
            ShownNode::Socket { .. } => [None, None, None],
            ShownNode::Remote { ca, certificate, key, .. } => [Some(ca), Some(certificate), Some(key)],
        }
        .map(|path| or_dash(path.map(file)));
        output::description([
            ("Name", or_dash(self.name.as_ref())),
            ("Current", if self.current { "yes" } else { "no" }.to_owned()),
            ("Node", self.address()),
            ("Tenant", or_dash(self.tenant.as_ref())),
            ("CA", ca),
            ("Certificate", certificate),
            ("Key", key),
            ("Identity", or_dash(self.identity.as_ref().map(Certificate::described))),
            ("Valid until", or_dash(self.identity.as_ref().map(|identity| identity.not_after))),
        ])
    }
}

fn list(format: Format) -> anyhow::Result<()> {
    let contexts = Contexts::read()?;
    let shown = |name: ContextName| {
        let Context { address, tenant } = contexts.get(&name)?;
        Ok(Shown::new(Target { context: Some(name), address, tenant }, contexts.current.as_ref()))
    };
    let all = contexts.names().into_iter().map(shown).collect::<Result<Vec<_>, ContextError>>()?;
    match format {
        Format::Json => output::json(&all),
        Format::Table if all.is_empty() => {
            output::say("There is no context.");
            Ok(())
        }
        Format::Table => {
            output::print(&output::table(["CURRENT", "NAME", "NODE", "TENANT"], all.iter().map(Shown::row)))
        }
    }
}

fn show(wanted: Wanted, format: Format) -> anyhow::Result<()> {
    let target = Target::of_context(wanted)?;
    let current = if target.context.is_some() { Contexts::read()?.current } else { None };
    let mut shown = Shown::new(target, current.as_ref());
    if let ShownNode::Remote { certificate, .. } = &shown.node {
        match Certificate::read(certificate) {
            Ok(identity) => shown.identity = Some(identity),
            Err(error) => output::say(&format!("warning: {}", printable(&error.to_string()))),
        }
    }
    match format {
        Format::Json => output::json(&shown),
        Format::Table => output::print(&shown.describe()),
    }
}
