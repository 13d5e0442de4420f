//! The sockets on which the API is served: ownership of the Unix socket, TCP beside it, the services, and shutdown.
//!
//! Called by the daemon. One process owns the Unix socket at a time. Only root and the node's own user can connect to it
//! (mode 0600, and the peer's user is looked at): the operator. On TCP, clients present a certificate that names them.
//!
//! ```text
//!   Unix socket: connections, authority --.
//!                                          >-- admission: caller, role, room; bodies with bounds --> services
//!   TCP: tcp, trust, identity ------------'
//! ```

mod accounts;
mod admission;
mod authority;
mod connections;
mod elements;
mod identity;
mod limits;
mod peer;
mod request_body;
mod response_body;
mod tcp;
mod trust;

use std::fmt;
use std::fs;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;

use self::admission::AdmissionLayer;
use self::connections::Connection;
pub use self::limits::Limits;
use self::trust::TrustStore;
pub use self::trust::{TlsError, TlsFiles};
use crate::access::Guarded;
use crate::api;
use crate::control::{BuildTime, Control};
use crate::proto::{self, control_server::ControlServer};

/// How long requests in progress may take to end once the server is told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// The minimum time between two repairs of damaged templates, so that a disk that loses every write keeps no core busy.
const REBUILD_INTERVAL: Duration = Duration::from_secs(5);
/// Concurrent requests of one connection; further ones wait.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;
/// How often a client on TCP is asked whether it is still there, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest header list of a request. Requests of gRPC have some hundred bytes.
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// Requests that a client has reset and that the server has not handled yet; a client that has more loses its connection.
const RESETS_MAX: usize = 32;

/// Why the API can't be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another process listens on the socket.
    #[error("another piniond answers on {}: stop it, or give this one another socket", socket.display())]
    InUse {
        /// The socket.
        socket: PathBuf,
    },
    /// The path exists and is not a socket.
    #[error("{} is there and is not a socket: give another path, or remove it", socket.display())]
    NotASocket {
        /// The path.
        socket: PathBuf,
    },
    /// The socket can't be created.
    #[error("cannot make the socket {}: {source}", socket.display())]
    Bind {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The address on TCP can't be listened on.
    #[error("api.listen = {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The files of certificates can't be served with.
    #[error("the certificates of the API: {0}")]
    Tls(#[from] TlsError),
    /// Serving ended unexpectedly.
    #[error("serving on {} failed: {source}", socket.display())]
    Serve {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A bound socket, and TCP beside it. Clients that connect wait until [`Server::serve`] runs. Dropping it removes the
/// socket.
pub struct Server {
    listener: UnixListener,
    place: SocketFile,
    tcp: Option<Tcp>,
    limits: Limits,
}

/// A bound address on TCP, and what TLS is served with there.
struct Tcp {
    listener: TcpListener,
    address: SocketAddr,
    trust: Arc<TrustStore>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("place", &self.place).field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Server {
    /// Binds the socket. Replaces a socket that a dead daemon left, but not one on which a process answers.
    ///
    /// Creates the last directory of the path if it is missing, and removes it again at the end. May block.
    pub fn bind(socket: &Path) -> Result<Self, ServeError> {
        let bind_error = |source| ServeError::Bind { socket: socket.to_owned(), source };
        let folder = match socket.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let made_folder = match fs::create_dir(folder) {
            Ok(()) => Some(folder.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Err(error) => return Err(bind_error(error)),
        };
        // Serialises the check and the bind of two daemons that start together.
        let folder_lock = fs::File::open(folder).map_err(bind_error)?;
        folder_lock.lock().map_err(bind_error)?;
        check_free(socket)?;
        let listener = bind_private(socket, folder).map_err(bind_error)?;
        listener.set_nonblocking(true).map_err(bind_error)?;
        let inode = fs::symlink_metadata(socket).map_err(bind_error)?.ino();
        let place = SocketFile { socket: socket.to_owned(), inode, made_folder };
        Ok(Self { listener, place, tcp: None, limits: Limits::default() })
    }

    /// Changes how many connections there may be on the Unix socket at a time; further ones are closed at once.
    #[must_use]
    pub fn with_connections_max(self, connections_max: usize) -> Self {
        Self { limits: Limits { unix_connections_max: connections_max, ..self.limits }, ..self }
    }

    /// Changes what callers may take. To be called before [`Server::with_tls`].
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Binds an address on TCP, on which clients with certificates are served as well. Reads the files, so that an error in
    /// them is found before the node starts. May block.
    pub fn with_tls(self, address: SocketAddr, files: TlsFiles) -> Result<Self, ServeError> {
        let trust = Arc::new(TrustStore::open(files, self.limits.look_interval)?);
        let listen_error = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen_error)?;
        listener.set_nonblocking(true).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        Ok(Self { tcp: Some(Tcp { listener, address, trust }), ..self })
    }

    /// Returns the address on TCP, if there is one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|tcp| tcp.address)
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> &Path {
        &self.place.socket
    }

    /// Serves until `shutdown` completes, removes the socket, and gives requests in progress a limited time to end.
    ///
    /// A change that has begun runs to its end on its own thread, even if that takes longer. The tokio runtime waits
    /// for it when it is dropped. Builds are ended; a change that waits for one is refused.
    pub async fn serve(
        self,
        control: Arc<Control>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let Self { listener, place, tcp, limits } = self;
        let socket = place.socket.clone();
        let listener = tokio::net::UnixListener::from_std(listener)
            .map_err(|source| ServeError::Bind { socket: socket.clone(), source })?;
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<ApiServer>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|source| ServeError::Serve { socket: socket.clone(), source: Box::new(source) })?;

        let journal = Arc::clone(control.journal());
        let building = AbortOnDrop(tokio::spawn(build_missing(Arc::clone(&control))));
        let stopped = Arc::clone(&control);
        let (ending, ended) = watch::channel(());
        let routes = Routes::new(health_service).add_service(reflection).add_service(api::service(control));
        let (remote, accepting_remote) = match tcp {
            Some(tcp) => accept_remote(tcp, &limits).map(|(connections, task)| (Some(connections), Some(task)))?,
            None => (None, None),
        };
        let (accepted, connections) = mpsc::channel(1);
        let accepting = AbortOnDrop(tokio::spawn(connections::accept(listener, limits.unix_connections_max, accepted)));
        let of_unix = serve_connections(unix_transport(), routes.clone(), &limits, connections, ended.clone());
        let serving = async {
            let of_tcp = async {
                match remote {
                    Some(remote) => serve_connections(tcp_transport(), routes, &limits, remote, ended).await,
                    None => Ok(()),
                }
            };
            tokio::try_join!(of_unix, of_tcp).map(|_| ())
        };
        tokio::pin!(serving);
        let failed = |source| ServeError::Serve { socket: socket.clone(), source: Box::new(source) };
        tokio::select! {
            done = &mut serving => return done.map_err(failed),
            () = shutdown => {}
        }
        drop((place, accepting, accepting_remote, building));
        stopped.stop_builds();
        health.set_not_serving::<ApiServer>().await;
        drop(ending);
        // A caller that follows the log would otherwise wait forever.
        journal.close();
        // A health watch never ends by itself, so the drain has a time limit.
        match tokio::time::timeout(DRAIN_MAX, serving).await {
            Ok(done) => done.map_err(failed),
            Err(_) => Ok(()),
        }
    }
}

type ApiServer = ControlServer<Guarded<api::ControlService>>;
type Accepted = mpsc::Receiver<io::Result<Connection>>;

/// Starts to accept connections on TCP, as long as the task lives.
fn accept_remote(tcp: Tcp, limits: &Limits) -> Result<(Accepted, AbortOnDrop), ServeError> {
    let Tcp { listener, address, trust } = tcp;
    let listen_error = |source| ServeError::Listen { address, source };
    let listener = tokio::net::TcpListener::from_std(listener).map_err(listen_error)?;
    let (accepted, connections) = mpsc::channel(1);
    tracing::info!(%address, "the API is served on TCP");
    Ok((connections, AbortOnDrop(tokio::spawn(tcp::accept(listener, trust, limits.clone(), accepted)))))
}

/// Returns the settings of HTTP/2 on the Unix socket. The operator's clients may pause as long as they like.
fn unix_transport() -> tonic::transport::Server {
    tonic::transport::Server::builder().max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
}

/// Returns the settings of HTTP/2 on TCP.
fn tcp_transport() -> tonic::transport::Server {
    unix_transport()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIME_MAX))
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(RESETS_MAX))
}

/// Serves connections until `ended` tells that the server ends, and then until they are closed.
async fn serve_connections(
    transport: tonic::transport::Server,
    routes: Routes,
    limits: &Limits,
    connections: Accepted,
    mut ended: watch::Receiver<()>,
) -> Result<(), tonic::transport::Error> {
    let ended = async move {
        // Fails when the sender was dropped, which means the end as well.
        let _ = ended.changed().await;
    };
    let router = transport.layer(AdmissionLayer::new(limits)).add_routes(routes);
    router.serve_with_incoming_shutdown(ReceiverStream::new(connections), ended).await
}

/// Builds the templates that are missing when the node starts, and those that it finds damaged, while the future is
/// polled.
async fn build_missing(control: Arc<Control>) {
    let build = |when| {
        let control = Arc::clone(&control);
        tokio::task::spawn_blocking(move || control.build_missing(when))
    };
    let mut damaged = control.damaged();
    // Handles damage that was found while the node started.
    if *damaged.borrow() > 0 {
        damaged.mark_changed();
    }
    // Not waited for: damage that is found meanwhile need not wait for all that is missing.
    drop(build(BuildTime::Start));
    while damaged.changed().await.is_ok() {
        // A panic is logged already.
        let _ = build(BuildTime::Damage).await;
        tokio::time::sleep(REBUILD_INTERVAL).await;
    }
}

/// A task that is aborted when this is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Checks that no process listens at the path.
fn check_free(socket: &Path) -> Result<(), ServeError> {
    let bind_error = |source| ServeError::Bind { socket: socket.to_owned(), source };
    match fs::symlink_metadata(socket) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServeError::NotASocket { socket: socket.to_owned() });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(bind_error(error)),
    }
    match UnixStream::connect(socket) {
        Ok(_) => Err(ServeError::InUse { socket: socket.to_owned() }),
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        Err(error) => Err(bind_error(error)),
    }
}

/// Binds within a private directory, and moves the socket to its path once its mode is right.
fn bind_private(socket: &Path, folder: &Path) -> io::Result<UnixListener> {
    let private = tempfile::Builder::new().prefix(".").rand_bytes(4).tempdir_in(folder)?;
    let inside = private.path().join("s");
    let listener = UnixListener::bind(&inside)?;
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o600))?;
    fs::rename(&inside, socket)?;
    Ok(listener)
}

/// What to remove from the file system at the end.
#[derive(Debug)]
struct SocketFile {
    socket: PathBuf,
    inode: u64,
    made_folder: Option<PathBuf>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another daemon may have bound the path after our socket was removed from it.
        if fs::symlink_metadata(&self.socket).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.socket);
        }
        if let Some(folder) = &self.made_folder {
            let _ = fs::remove_dir(folder);
        }
    }
}
