//! The Unix socket on which the API is served: ownership of the socket, the services on it, and shutdown.
//!
//! Called by the daemon. One process owns the socket at a time. Only its user can connect (mode 0600), from the moment
//! the socket can be connected to.

mod authority;
mod connections;

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use self::authority::AnyAuthority;
use crate::api;
use crate::control::{BuildTime, Control};
use crate::proto::{self, control_server::ControlServer};

/// How long requests in progress may take to end once the server is told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// The minimum time between two repairs of damaged templates, so that a disk that loses every write keeps no core busy.
const REBUILD_INTERVAL: Duration = Duration::from_secs(5);
/// Concurrent requests of one connection; further ones wait.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;

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
    /// Serving ended unexpectedly.
    #[error("serving on {} failed: {source}", socket.display())]
    Serve {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A bound socket. Clients that connect wait until [`Server::serve`] runs. Dropping it removes the socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    place: SocketFile,
    connections_max: usize,
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
        Ok(Self { listener, place, connections_max: connections::connections_max() })
    }

    /// Changes how many connections there may be at a time; further ones are closed at once.
    #[must_use]
    pub fn with_connections_max(self, connections_max: usize) -> Self {
        Self { connections_max, ..self }
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
        let Self { listener, place, connections_max } = self;
        let socket = place.socket.clone();
        let listener = tokio::net::UnixListener::from_std(listener)
            .map_err(|source| ServeError::Bind { socket: socket.clone(), source })?;
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<ControlServer<api::ControlService>>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|source| ServeError::Serve { socket: socket.clone(), source: Box::new(source) })?;

        let (accepted, connections) = mpsc::channel(1);
        let accepting = AbortOnDrop(tokio::spawn(connections::accept(listener, connections_max, accepted)));
        let connections = ReceiverStream::new(connections).map(|connection| connection.map(AnyAuthority::new));
        let journal = Arc::clone(control.journal());
        let building = AbortOnDrop(tokio::spawn(build_missing(Arc::clone(&control))));
        let stopped = Arc::clone(&control);
        let (ending, mut ended) = watch::channel(());
        let serving = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .add_service(health_service)
            .add_service(reflection)
            .add_service(api::service(control))
            .serve_with_incoming_shutdown(connections, async move {
                // Fails when the sender was dropped, which means the end as well.
                let _ = ended.changed().await;
            });
        tokio::pin!(serving);
        let failed = |source| ServeError::Serve { socket: socket.clone(), source: Box::new(source) };
        tokio::select! {
            done = &mut serving => return done.map_err(failed),
            () = shutdown => {}
        }
        drop(place);
        drop(accepting);
        drop(building);
        stopped.stop_builds();
        health.set_not_serving::<ControlServer<api::ControlService>>().await;
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
