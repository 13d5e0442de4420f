//! Contexts: named nodes, each with the certificate and the tenant to use there.
//!
//! The file is read by every command that asks a node or reads manifests, and changed by `pinion context` only. It is
//! replaced as a whole, so that a reader finds the old or the new one, and is readable by its owner only.
//!
//! ```text
//!   --socket, --context, PINION_SOCKET, PINION_CONTEXT, the current context, the default socket
//!   the first that there is
//!        |
//!        v
//!     Target: where the node is, and whose objects are meant if no tenant is named
//!        ^
//!        |
//!   --tenant, PINION_TENANT, the context's tenant, its certificate's, `default`: the first that there is
//! ```

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use pinion_control::Client;
use pinion_control::client::{NodeAddress, RemoteNode, ServerAddress};
use pinion_control::document::{self, Fault, line_of};
use pinion_control::manifest::default_tenant;
use pinion_control::model::{BadName, TenantName};
use serde::{Deserialize, Serialize};

use crate::args::is_plain_name;
use crate::output;

/// The socket that is used if nothing names another node.
const DEFAULT_SOCKET: &str = "/run/pinion/pinion.sock";
/// The variable that names the file of contexts.
const FILE_VARIABLE: &str = "PINION_CONFIG";
/// The variable that names the tenant of commands that name none.
const TENANT_VARIABLE: &str = "PINION_TENANT";
/// The bits of a file's mode that let others than its owner read it.
const READABLE_BY_OTHERS: u32 = 0o044;

/// Why a context can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    /// The file can't be read.
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// An error in the file.
    #[error("{}:{line}: {problem}", path.display())]
    Wrong { path: PathBuf, line: usize, problem: String },
    /// A context that is not complete, or that says two things.
    #[error("{}: context {name}: {problem}", path.display())]
    Unclear { path: PathBuf, name: ContextName, problem: String },
    /// No context has the name.
    #[error("there is no context {name}: {}", known(.names))]
    Unknown { name: ContextName, names: Vec<ContextName> },
    /// Another context has the name.
    #[error("there is a context {0} already: take another name, or remove it first (pinion context remove {0})")]
    Taken(ContextName),
    /// A new context without a node.
    #[error("a context needs a node: --server HOST:PORT with --ca, --certificate and --key, or --socket PATH")]
    NoNode,
    /// A new context with two nodes.
    #[error("a context has one node: give --server or --socket")]
    TwoNodes,
    /// No folder for the file of contexts.
    #[error(
        "there is no folder for contexts, as neither XDG_CONFIG_HOME nor HOME names one: name a file by {FILE_VARIABLE}"
    )]
    NoFolder,
    /// A variable that is to name a tenant.
    #[error("{TENANT_VARIABLE}: {0}")]
    BadTenant(String),
}

fn known(names: &[ContextName]) -> String {
    match names {
        [] => "there are none yet (pinion context add makes one)".to_owned(),
        names => format!("take one of {}", names.iter().map(ContextName::as_str).collect::<Vec<_>>().join(", ")),
    }
}

/// The name of a context.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ContextName(String);

impl ContextName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name that an option or a variable gives.
    pub(crate) fn of_command_line(name: &OsStr) -> Result<Self, String> {
        name.to_string_lossy().parse().map_err(|error| format!("--context and PINION_CONTEXT: {error}"))
    }
}

impl FromStr for ContextName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_plain_name(text) {
            return Ok(Self(text.to_owned()));
        }
        let text = output::printable(text);
        Err(format!(
            "{text:?} is no context's name: use 1 to 64 letters, digits and . _ @ -, with a letter or digit first"
        ))
    }
}

impl TryFrom<String> for ContextName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for ContextName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which node a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The node of this socket, whatever contexts there are.
    Socket(PathBuf),
    /// The node of this context.
    Context(ContextName),
    /// The node of the current context, or else the one of the default socket.
    Current,
}

/// Where commands go, and whose objects they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The context that says so; none for a socket.
    pub(crate) context: Option<ContextName>,
    pub(crate) address: NodeAddress,
    /// The tenant of commands that name none, if something says so.
    pub(crate) tenant: Option<TenantName>,
}

impl Target {
    /// Returns the target of a command line that names this tenant, or none.
    pub(crate) fn of(wanted: Wanted, tenant: Option<TenantName>) -> Result<Self, ContextError> {
        let target = Self::of_context(wanted)?;
        let tenant = match tenant {
            Some(tenant) => Some(tenant),
            None => tenant_of_variable()?.or(target.tenant),
        };
        Ok(Self { tenant, ..target })
    }

    /// Returns the target that a context or a socket alone gives.
    pub(crate) fn of_context(wanted: Wanted) -> Result<Self, ContextError> {
        let name = match wanted {
            Wanted::Socket(socket) => return Ok(Self::socket(socket)),
            Wanted::Context(name) => name,
            Wanted::Current => match current()? {
                Some(name) => name,
                None => return Ok(Self::socket(DEFAULT_SOCKET.into())),
            },
        };
        let contexts = Contexts::read()?;
        let context = contexts.get(&name)?;
        Ok(Self { context: Some(name), address: context.address, tenant: context.tenant })
    }

    fn socket(path: PathBuf) -> Self {
        Self { context: None, address: NodeAddress::Socket(path), tenant: None }
    }

    /// Connects to the node. Warns of a key that others may read.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        if let NodeAddress::Remote(node) = &self.address {
            warn_of_readable(&node.key);
        }
        Ok(Client::connect_to(&self.address).await?)
    }

    /// Returns the tenant that is meant by a command that names this one, or none.
    pub(crate) fn tenant_or(&self, named: Option<TenantName>) -> TenantName {
        named.or_else(|| self.tenant.clone()).unwrap_or_else(default_tenant)
    }
}

fn tenant_of_variable() -> Result<Option<TenantName>, ContextError> {
    let Some(name) = std::env::var_os(TENANT_VARIABLE).filter(|name| !name.is_empty()) else { return Ok(None) };
    let tenant = name.to_string_lossy().parse();
    tenant.map(Some).map_err(|error: BadName| ContextError::BadTenant(error.to_string()))
}

/// Says on standard error that others may read a key.
pub(crate) fn warn_of_readable(key: &Path) {
    // A key that is not there is reported by the command that needs it.
    let Ok(found) = key.metadata() else { return };
    let mode = found.mode() & 0o7777;
    if mode & READABLE_BY_OTHERS != 0 {
        let key = output::printable(&key.display().to_string());
        output::say(&format!("warning: others may read the key {key} (mode {mode:04o}): chmod 600 it"));
    }
}

fn current() -> Result<Option<ContextName>, ContextError> {
    match file() {
        Ok(_) => Ok(Contexts::read()?.current),
        // Without a folder there are no contexts.
        Err(ContextError::NoFolder) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the path of the file of contexts, which may not exist.
pub(crate) fn file() -> Result<PathBuf, ContextError> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable(FILE_VARIABLE) {
        return Ok(path);
    }
    // The specification of these folders says to ignore a relative path.
    let folder = variable("XDG_CONFIG_HOME").filter(|folder| folder.is_absolute());
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".config")).filter(|folder| folder.is_absolute()));
    Ok(folder.ok_or(ContextError::NoFolder)?.join("pinion/config.toml"))
}

/// A context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) address: NodeAddress,
    pub(crate) tenant: Option<TenantName>,
}

/// The file as it is written.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<ContextName>,
    #[serde(default)]
    context: BTreeMap<ContextName, Table>,
}

/// A context as it is written. Relative paths are relative to the folder of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<TenantName>,
}

impl Table {
    fn of(context: Context) -> Self {
        let tenant = context.tenant;
        match context.address {
            NodeAddress::Socket(socket) => Self { socket: Some(socket), tenant, ..Self::default() },
            NodeAddress::Remote(RemoteNode { server, ca, certificate, key }) => Self {
                socket: None,
                server: Some(server.to_string()),
                ca: Some(ca),
                certificate: Some(certificate),
                key: Some(key),
                tenant,
            },
        }
    }

    fn context(&self, folder: &Path) -> Result<Context, String> {
        let Self { socket, server, ca, certificate, key, tenant } = self.clone();
        let address = match (socket, server, ca, certificate, key) {
            (Some(socket), None, None, None, None) => NodeAddress::Socket(folder.join(socket)),
            (None, Some(server), Some(ca), Some(certificate), Some(key)) => {
                let server: ServerAddress = server.parse().map_err(|error| format!("server: {error}"))?;
                let (ca, certificate, key) = (folder.join(ca), folder.join(certificate), folder.join(key));
                NodeAddress::Remote(RemoteNode { server, ca, certificate, key })
            }
            _ => return Err("give either socket, or all of server, ca, certificate and key".to_owned()),
        };
        Ok(Context { address, tenant })
    }
}

/// All contexts.
#[derive(Debug)]
pub(crate) struct Contexts {
    path: PathBuf,
    pub(crate) current: Option<ContextName>,
    tables: BTreeMap<ContextName, Table>,
}

impl Contexts {
    /// Reads the file. There are no contexts if there is no file.
    pub(crate) fn read() -> Result<Self, ContextError> {
        let path = file()?;
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(ContextError::Unreadable { path, error }),
        };
        match document::read(&text, |_| None) {
            Ok(Document { current, context }) => Ok(Self { path, current, tables: context }),
            Err(Fault { span, problem }) => {
                Err(ContextError::Wrong { path, line: line_of(&text, span.start), problem })
            }
        }
    }

    /// Returns the names in their order.
    pub(crate) fn names(&self) -> Vec<ContextName> {
        self.tables.keys().cloned().collect()
    }

    /// Returns a context.
    pub(crate) fn get(&self, name: &ContextName) -> Result<Context, ContextError> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        self.table(name)?.context(folder).map_err(|problem| {
            let (path, name) = (self.path.clone(), name.clone());
            ContextError::Unclear { path, name, problem }
        })
    }

    fn table(&self, name: &ContextName) -> Result<&Table, ContextError> {
        let unknown = || ContextError::Unknown { name: name.clone(), names: self.names() };
        self.tables.get(name).ok_or_else(unknown)
    }

    /// Changes the file. Changes at the same time are made one after another.
    pub(crate) fn change<T>(change: impl FnOnce(&mut Self) -> Result<T, ContextError>) -> anyhow::Result<T> {
        // A link stays one, and its target is replaced.
        let path = file()?;
        let path = path.canonicalize().unwrap_or(path);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let lock = File::open(folder).with_context(|| folder.display().to_string())?;
        lock.lock().with_context(|| folder.display().to_string())?;
        let mut contexts = Self::read()?;
        let done = change(&mut contexts)?;
        let document = Document { current: contexts.current, context: contexts.tables };
        replace(&path, toml::to_string(&document)?.as_bytes(), 0o600)?;
        Ok(done)
    }

    /// Makes a context the current one.
    pub(crate) fn make_current(&mut self, name: &ContextName) -> Result<(), ContextError> {
        self.table(name)?;
        self.current = Some(name.clone());
        Ok(())
    }

    /// Adds a context under a new name.
    pub(crate) fn add(&mut self, name: &ContextName, context: Context) -> Result<(), ContextError> {
        if self.tables.contains_key(name) {
            return Err(ContextError::Taken(name.clone()));
        }
        self.tables.insert(name.clone(), Table::of(context));
        Ok(())
    }

    /// Removes a context, and returns whether it was the current one.
    pub(crate) fn remove(&mut self, name: &ContextName) -> Result<bool, ContextError> {
        self.table(name)?;
        self.tables.remove(name);
        let was_current = self.current.take_if(|current| current == name).is_some();
        Ok(was_current)
    }
}

/// Writes a file as a whole: a reader finds the old one or the new one.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let write = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let permissions = fs::Permissions::from_mode(mode);
        let mut file = tempfile::Builder::new().permissions(permissions).tempfile_in(folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()
    };
    write().with_context(|| format!("{} cannot be written", path.display()))
}
