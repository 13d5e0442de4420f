//! A client of `pinion.v1` on a Unix socket, or over TCP with mutual TLS, in the model's own values.
//!
//! Used by the `pinion` command and by tests. Keeps no state but the connection, and whether its uploads keep history.
//!
//! | file | what it holds |
//! |---|---|
//! | `address` | where a node listens, and the files that identify both ends |
//! | `retry` | whether a failed request may work later, and the code of its failure |
//! | `tls` | reads these files, and explains why TLS failed |
//! | `transport` | the connection |

mod address;
mod retry;
mod tls;
mod transport;

use std::error::Error;
use std::io;
use std::ops::Deref;
use std::path::Path;

use pinion_text::{TEXT_BYTES_MAX, printable_lines};
use serde::Serialize;
use tonic::{Code, Status, Streaming};

pub use self::address::{BadServerAddress, NodeAddress, RemoteNode, ServerAddress};
pub use self::tls::{CertificateRefused, CredentialsError, UntrustedNode};
use self::transport::{Transport, causes, refusal_in};

use crate::api::{MESSAGE_BYTES_MAX, is_marked_retryable};
use crate::control::{ApplyRequest, ChangeOptions, Changed, NamedUpload, Restored, UploadedKey};
use crate::journal::{LogFilter, LogLine};
use crate::metrics::{MetricFilter, MetricStatus};
use crate::model::{
    Chain, Digest, Key, Labelled, Labelling, Model, Module, Object, ObjectRef, Outcome, Revision, RevisionFilter, Rule,
    Tenant, TenantName, Upload,
};
use crate::node::{Call, ChainInstanceStatus, FwpStatus, NodeStatus, TenantAccount};
use crate::pem::Pem;
use crate::proto::control_client::ControlClient;
use crate::proto::upload_request::{Header, Part};
use crate::proto::{self, UploadRequest};
use crate::wire::{BadMessage, field};

const CHUNK_BYTES: usize = 256 << 10;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No process listens there.
    #[error("no piniond at {address}: is it running?")]
    NotRunning {
        /// The socket, or the host and port.
        address: String,
    },
    /// The node can't be connected to for another reason.
    #[error("cannot reach piniond at {address}: {reason}")]
    Unreachable {
        /// The socket, or the host and port.
        address: String,
        /// Why.
        reason: String,
    },
    /// The caller may not connect to the node's socket, or there can be no socket of this name.
    #[error("cannot reach piniond at {address}: {reason}")]
    NotAllowed {
        /// The socket.
        address: String,
        /// Why.
        reason: String,
    },
    /// The files that identify a node and its client can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The other end did not prove to be the node.
    #[error(transparent)]
    UntrustedNode(UntrustedNode),
    /// The node did not accept the client's certificate.
    #[error(transparent)]
    CertificateRefused(CertificateRefused),
    /// The node refused: the request is wrong, does not fit the node, or is not allowed. A retry does not help.
    #[error("{message}")]
    Refused {
        /// The kind of refusal.
        code: Code,
        /// The node's message.
        message: String,
    },
    /// The node lacks something at the moment, such as room on its disk. A later request may work.
    #[error("{message}")]
    Exhausted {
        /// The kind of refusal.
        code: Code,
        /// The node's message.
        message: String,
    },
    /// The node or the connection failed.
    #[error("piniond failed ({code}): {message}")]
    Failed {
        /// The kind of failure.
        code: Code,
        /// The message.
        message: String,
    },
    /// The answer is of another version.
    #[error("piniond answered something that this version does not understand: {0}")]
    BadAnswer(#[from] BadMessage),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        if let Some(refused) = refusal_in(&status) {
            return Self::CertificateRefused(refused.clone());
        }
        // The process that answers on the socket may not be a node, so its message must not reach the terminal as it
        // is.
        let (code, message) = (status.code(), printable_lines(status.message(), TEXT_BYTES_MAX));
        match code {
            Code::ResourceExhausted if is_marked_retryable(&status) => Self::Exhausted { code, message },
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::OutOfRange => Self::Refused { code, message },
            _ => Self::Failed { code, message },
        }
    }
}

/// The status of the whole node, with the version of the desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// The version of the desired state that is durable.
    pub desired_version: u64,
    /// The node's own report.
    #[serde(flatten)]
    pub node: NodeStatus,
}

/// A chain as a node lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedChain {
    /// The chain.
    #[serde(flatten)]
    pub chain: Labelled<Chain>,
    /// Whether a call of the module of its name has made it. It is no part of the desired state then.
    pub implicit: bool,
}

impl Deref for ListedChain {
    type Target = Chain;

    fn deref(&self) -> &Chain {
        &self.chain.object
    }
}

impl TryFrom<proto::Chain> for ListedChain {
    type Error = BadMessage;

    fn try_from(message: proto::Chain) -> Result<Self, BadMessage> {
        let implicit = message.implicit;
        Ok(Self { chain: message.try_into()?, implicit })
    }
}

/// Which objects to list. Absent filters match everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this tenant's.
    pub tenant: Option<TenantName>,
    /// Only the one with this name, or this id.
    pub name: Option<String>,
}

/// Whether to wait for new lines after the existing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Return the existing lines, then new ones.
    Yes,
    /// Return the existing lines only.
    No,
}

/// A stream of log lines.
#[derive(Debug)]
pub struct LogLines(Streaming<proto::LogLine>);

impl LogLines {
    /// Returns the next line; none if there will be no more.
    pub async fn next(&mut self) -> Result<Option<LogLine>, ClientError> {
        let message = self.0.message().await?;
        Ok(message.map(LogLine::try_from).transpose()?)
    }
}

/// A connection to a node.
#[derive(Clone, Debug)]
pub struct Client {
    inner: ControlClient<Transport>,
    /// Whether no upload makes the node forget revisions.
    keeps_history: bool,
}

impl Client {
    /// Connects to the node that serves this socket.
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        Self::connect_to(&NodeAddress::Socket(socket.to_owned())).await
    }

    /// Connects to a node. A node over TCP may refuse the client's certificate after that, so the first request may
    /// fail with [`ClientError::CertificateRefused`].
    pub async fn connect_to(address: &NodeAddress) -> Result<Self, ClientError> {
        let transport = match address {
            NodeAddress::Socket(socket) => Transport::to_socket(socket.clone()).await,
            NodeAddress::Remote(node) => Transport::to_remote(node.clone(), tls::config(node)?).await,
        };
        let inner = ControlClient::new(transport.map_err(|error| unreachable(address, &*error))?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Ok(Self { inner, keeps_history: false })
    }

    /// Returns a client whose uploads are refused where revisions would have to be forgotten for them, as for dry runs.
    #[must_use]
    pub fn keeping_history(self) -> Self {
        Self { keeps_history: true, ..self }
    }

    /// Uploads a module's bytes for a tenant, and returns their digest, by which [`Client::apply`] can name them.
    pub async fn upload(&mut self, tenant: &TenantName, wasm: Vec<u8>) -> Result<Digest, ClientError> {
        let (digest, messages) = self.upload_messages(tenant, wasm);
        self.inner.upload_module(tokio_stream::iter(messages)).await?;
        Ok(digest)
    }

    /// Uploads the archive of a stage's files for a tenant, and returns its digest, by which stages can name it.
    pub async fn upload_files(&mut self, tenant: &TenantName, archive: Vec<u8>) -> Result<Digest, ClientError> {
        let (digest, messages) = self.upload_messages(tenant, archive);
        self.inner.upload_files(tokio_stream::iter(messages)).await?;
        Ok(digest)
    }

    /// Uploads a private key for a tenant, and returns the digest of its public key, by which [`Client::apply`] can name it.
    pub async fn upload_key(&mut self, tenant: &TenantName, pem: Pem) -> Result<UploadedKey, ClientError> {
        let (tenant, keep_history) = (tenant.to_string(), self.keeps_history);
        let message = proto::UploadKeyRequest { tenant, pem: pem.take(), keep_history };
        let proto::UploadKeyResponse { digest, algorithm } = self.inner.upload_key(message).await?.into_inner();
        Ok(UploadedKey { digest: field("digest", digest.parse())?, algorithm })
    }

    /// Uploads a model (ONNX) for a tenant, and returns its digest, by which [`Client::apply`] can name it.
    pub async fn upload_model(&mut self, tenant: &TenantName, onnx: Vec<u8>) -> Result<Digest, ClientError> {
        let (digest, messages) = self.upload_messages(tenant, onnx);
        self.inner.upload_model(tokio_stream::iter(messages)).await?;
        Ok(digest)
    }

    /// Returns the messages that upload these bytes, and their digest.
    fn upload_messages(
        &self,
        tenant: &TenantName,
        bytes: Vec<u8>,
    ) -> (Digest, impl Iterator<Item = UploadRequest> + use<>) {
        let (digest, tenant) = (Digest::of(&bytes), tenant.to_string());
        let (size_bytes, keep_history) = (bytes.len() as u64, self.keeps_history);
        let header = Header { tenant, digest: digest.to_string(), size_bytes, keep_history };
        let chunks = (0..bytes.len()).step_by(CHUNK_BYTES);
        let chunks = chunks.map(move |at| Part::Chunk(bytes[at..bytes.len().min(at + CHUNK_BYTES)].to_vec()));
        let parts = std::iter::once(Part::Header(header)).chain(chunks);
        (digest, parts.map(|part| UploadRequest { part: Some(part) }))
    }

    /// Creates or updates the objects as given: all of them or none.
    pub async fn apply(&mut self, request: ApplyRequest) -> Result<Changed, ClientError> {
        let modules = request.modules.into_iter().map(|module| proto::Module {
            tenant: module.tenant.to_string(),
            name: module.name.to_string(),
            digest: module.digest.to_string(),
            ..proto::Module::default()
        });
        let keys = request.keys.into_iter().map(|NamedUpload { tenant, name, digest }| proto::Key {
            tenant: tenant.to_string(),
            name: name.to_string(),
            digest: digest.to_string(),
            ..proto::Key::default()
        });
        let models = request.models.into_iter().map(|NamedUpload { tenant, name, digest }| proto::Model {
            tenant: tenant.to_string(),
            name: name.to_string(),
            digest: digest.to_string(),
            ..proto::Model::default()
        });
        let ChangeOptions { expected_revision, dry_run } = request.options;
        let Labelling { label, take_over, prune } = request.labelling;
        let message = proto::ApplyRequest {
            tenants: request.tenants.iter().map(Into::into).collect(),
            modules: modules.collect(),
            keys: keys.collect(),
            models: models.collect(),
            chains: request.chains.iter().map(Into::into).collect(),
            rules: request.rules.iter().map(Into::into).collect(),
            deletes: request.deletes.iter().map(Into::into).collect(),
            expected_revision,
            dry_run,
            label: label.map(Into::into),
            take_over,
            prune_tenants: prune.into_iter().map(Into::into).collect(),
        };
        let answer = self.inner.apply(message).await.map_err(change_refused)?.into_inner();
        Ok(Changed { version: answer.version, outcomes: outcomes(answer.outcomes)? })
    }

    /// Deletes the objects: all of them or none.
    pub async fn delete(&mut self, objects: &[ObjectRef]) -> Result<Changed, ClientError> {
        self.delete_with(objects, ChangeOptions::default()).await
    }

    /// As [`Client::delete`], on these terms.
    pub async fn delete_with(&mut self, objects: &[ObjectRef], options: ChangeOptions) -> Result<Changed, ClientError> {
        let ChangeOptions { expected_revision, dry_run } = options;
        let objects = objects.iter().map(Into::into).collect();
        let message = proto::DeleteRequest { objects, expected_revision, dry_run };
        let answer = self.inner.delete(message).await.map_err(change_refused)?.into_inner();
        Ok(Changed { version: answer.version, outcomes: outcomes(answer.outcomes)? })
    }

    /// Returns the revisions that pass the filter, latest first.
    pub async fn revisions(&mut self, filter: RevisionFilter) -> Result<Vec<Revision>, ClientError> {
        let request = proto::ListRevisionsRequest::from(filter);
        collect(self.inner.list_revisions(request).await?.into_inner()).await
    }

    /// Returns the objects of a tenant as they were after a revision, and its terms; none: as they are.
    pub async fn objects_at(
        &mut self,
        tenant: &TenantName,
        revision: Option<u64>,
    ) -> Result<Vec<Labelled<Object>>, ClientError> {
        let request = proto::GetRevisionRequest { tenant: tenant.to_string(), revision };
        collect(self.inner.get_revision(request).await?.into_inner()).await
    }

    /// Makes the objects of a tenant what they were after a revision; none: undoes its latest revision.
    pub async fn roll_back(
        &mut self,
        tenant: &TenantName,
        to_revision: Option<u64>,
        options: ChangeOptions,
    ) -> Result<Restored, ClientError> {
        let ChangeOptions { expected_revision, dry_run } = options;
        let message = proto::RollbackRequest { tenant: tenant.to_string(), to_revision, expected_revision, dry_run };
        let answer = self.inner.rollback(message).await.map_err(change_refused)?.into_inner();
        let proto::RollbackResponse { version, restored, outcomes: messages } = answer;
        Ok(Restored { version, restored, outcomes: outcomes(messages)? })
    }

    /// Calls a chain, or a module, and returns its answer's payload.
    pub async fn invoke(&mut self, call: Call) -> Result<Vec<u8>, ClientError> {
        let Call { tenant, chain, payload, timeout } = call;
        let timeout_ms = Some(timeout.as_millis().try_into().unwrap_or(u64::MAX));
        let message = proto::InvokeRequest { tenant: tenant.into(), name: chain.into(), payload, timeout_ms };
        Ok(self.inner.invoke(message).await?.into_inner().payload)
    }

    /// Returns modules, by tenant and name.
    pub async fn modules(&mut self, filter: Filter) -> Result<Vec<Labelled<Module>>, ClientError> {
        let Filter { tenant, name } = filter;
        let request = proto::ListModulesRequest { tenant: tenant.map(Into::into), name };
        collect(self.inner.list_modules(request).await?.into_inner()).await
    }

    /// Returns keys, by tenant and name.
    pub async fn keys(&mut self, filter: Filter) -> Result<Vec<Labelled<Key>>, ClientError> {
        let Filter { tenant, name } = filter;
        let request = proto::ListKeysRequest { tenant: tenant.map(Into::into), name };
        collect(self.inner.list_keys(request).await?.into_inner()).await
    }

    /// Returns models, by tenant and name.
    pub async fn models(&mut self, filter: Filter) -> Result<Vec<Labelled<Model>>, ClientError> {
        let Filter { tenant, name } = filter;
        let request = proto::ListModelsRequest { tenant: tenant.map(Into::into), name };
        collect(self.inner.list_models(request).await?.into_inner()).await
    }

    /// Returns uploads that nothing names, by tenant and digest.
    pub async fn uploads(&mut self, tenant: Option<TenantName>) -> Result<Vec<Upload>, ClientError> {
        let request = proto::ListUploadsRequest { tenant: tenant.map(Into::into) };
        collect(self.inner.list_uploads(request).await?.into_inner()).await
    }

    /// Returns chains, by tenant and name, with those that calls of modules have made.
    pub async fn chains(&mut self, filter: Filter) -> Result<Vec<ListedChain>, ClientError> {
        let Filter { tenant, name } = filter;
        let request = proto::ListChainsRequest { tenant: tenant.map(Into::into), name };
        collect(self.inner.list_chains(request).await?.into_inner()).await
    }

    /// Returns rules, by tenant and name.
    pub async fn rules(&mut self, filter: Filter) -> Result<Vec<Labelled<Rule>>, ClientError> {
        let Filter { tenant, name } = filter;
        let request = proto::ListRulesRequest { tenant: tenant.map(Into::into), name };
        collect(self.inner.list_rules(request).await?.into_inner()).await
    }

    /// Returns the FWPs of the node; the filter's name is an FWP's id.
    pub async fn fwps(&mut self, filter: Filter) -> Result<Vec<FwpStatus>, ClientError> {
        let Filter { tenant, name: id } = filter;
        let request = proto::ListFwpsRequest { tenant: tenant.map(Into::into), chain: None, id };
        collect(self.inner.list_fwps(request).await?.into_inner()).await
    }

    /// Returns the chain instances of the node.
    pub async fn chain_instances(
        &mut self,
        tenant: Option<TenantName>,
        id: Option<u64>,
    ) -> Result<Vec<ChainInstanceStatus>, ClientError> {
        let request = proto::ListChainInstancesRequest { tenant: tenant.map(Into::into), chain: None, id };
        collect(self.inner.list_chain_instances(request).await?.into_inner()).await
    }

    /// Returns the log lines of functions. With [`Follow::Yes`] the stream continues with new lines until the node
    /// stops.
    pub async fn logs(&mut self, filter: LogFilter, follow: Follow) -> Result<LogLines, ClientError> {
        let LogFilter { tenant, chain, tail } = filter;
        let (tenant, chain) = (tenant.map(Into::into), chain.map(Into::into));
        let request = proto::GetLogsRequest { tenant, chain, tail, follow: follow == Follow::Yes };
        Ok(LogLines(self.inner.get_logs(request).await?.into_inner()))
    }

    /// Returns counters and gauges of functions, by chain, stage, name and labels.
    pub async fn metrics(&mut self, filter: MetricFilter) -> Result<Vec<MetricStatus>, ClientError> {
        let (tenant, chain) = (filter.tenant.map(Into::into), filter.chain.map(Into::into));
        collect(self.inner.get_metrics(proto::GetMetricsRequest { tenant, chain }).await?.into_inner()).await
    }

    /// Returns the terms of tenants that have terms of their own, by name; of this one, or of all.
    pub async fn tenants(&mut self, name: Option<TenantName>) -> Result<Vec<Tenant>, ClientError> {
        let request = proto::ListTenantsRequest { name: name.map(Into::into) };
        collect(self.inner.list_tenants(request).await?.into_inner()).await
    }

    /// Returns what a tenant has of what tenants share.
    pub async fn account(&mut self, tenant: &TenantName) -> Result<TenantAccount, ClientError> {
        let request = proto::GetTenantRequest { tenant: tenant.to_string() };
        Ok(self.inner.get_tenant(request).await?.into_inner().try_into()?)
    }

    /// Returns the status of the whole node.
    pub async fn status(&mut self) -> Result<NodeReport, ClientError> {
        let status = self.inner.get_status(proto::GetStatusRequest {}).await?.into_inner();
        Ok(NodeReport { desired_version: status.desired_version, node: status.try_into()? })
    }
}

/// Returns why a change was refused: an aborted one expected an earlier revision, and would be aborted again.
fn change_refused(status: Status) -> ClientError {
    match ClientError::from(status) {
        ClientError::Failed { code: code @ Code::Aborted, message } => ClientError::Refused { code, message },
        error => error,
    }
}

fn outcomes(messages: Vec<proto::Outcome>) -> Result<Vec<Outcome>, BadMessage> {
    messages.into_iter().map(Outcome::try_from).collect()
}

async fn collect<M, T: TryFrom<M, Error = BadMessage>>(mut messages: Streaming<M>) -> Result<Vec<T>, ClientError> {
    let mut values = Vec::new();
    while let Some(message) = messages.message().await? {
        values.push(T::try_from(message)?);
    }
    Ok(values)
}

/// Finds the reason in the transport's error: what TLS says, or else the operating system.
fn unreachable(address: &NodeAddress, error: &(dyn Error + 'static)) -> ClientError {
    if let Some(refused) = refusal_in(error) {
        return ClientError::CertificateRefused(refused.clone());
    }
    if let Some(untrusted) = causes(error).find_map(|cause| cause.downcast_ref::<UntrustedNode>()) {
        return ClientError::UntrustedNode(untrusted.clone());
    }
    let address = address.to_string();
    match causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>()).last() {
        Some(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            ClientError::NotRunning { address }
        }
        Some(cause) if cause.kind() == io::ErrorKind::TimedOut => ClientError::Unreachable {
            address,
            reason: "it does not answer; does a firewall stop the connection?".into(),
        },
        Some(cause) if matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) => {
            ClientError::NotAllowed { address, reason: cause.to_string() }
        }
        Some(cause) => ClientError::Unreachable { address, reason: cause.to_string() },
        None => ClientError::Unreachable { address, reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_no_node_cannot_control_the_terminal() {
        for code in [Code::InvalidArgument, Code::Internal] {
            let status = Status::new(code, format!("no\u{1b}[2J\u{202e}\r{}", "x".repeat(1 << 20)));
            let said = ClientError::from(status).to_string();
            assert!(said.chars().all(pinion_text::is_printable) && said.len() < 32 << 10, "{} bytes", said.len());
        }
    }
}
