//! The Unix socket that the API is served on: who may have it, what is served there, and how it ends.
//!
//! Called by the daemon. One process owns the socket at a time. The socket belongs to its user alone (mode 0600), from
//! the moment it can be connected to.

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;

use crate::api;
use crate::control::Control;
use crate::proto::{self, control_server::ControlServer};

/// How long requests under way may take to end once the server is told to.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Requests of one connection at a time; more wait.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;

/// Why the API can't be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Somebody else has the socket and is alive.
    #[error("another piniond answers on {}: stop it, or give this one another socket", socket.display())]
    InUse {
        /// The socket.
        socket: PathBuf,
    },
    /// Something else lies at the path.
    #[error("{} is there and is not a socket: give another path, or remove it", socket.display())]
    NotASocket {
        /// The path.
        socket: PathBuf,
    },
    /// The socket can't be made.
    #[error("cannot make the socket {}: {source}", socket.display())]
    Bind {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Serving ended by itself.
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
    place: Place,
}

impl Server {
    /// Takes the socket. One that a dead daemon left is replaced, one that somebody answers on is not.
    ///
    /// Makes the last folder of the path if it is missing, and then removes that too in the end. May block.
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
        // Two daemons that start together look and bind one after the other.
        let folder_lock = fs::File::open(folder).map_err(bind_error)?;
        folder_lock.lock().map_err(bind_error)?;
        check_free(socket)?;
        let listener = bind_private(socket, folder).map_err(bind_error)?;
        listener.set_nonblocking(true).map_err(bind_error)?;
        let inode = fs::symlink_metadata(socket).map_err(bind_error)?.ino();
        Ok(Self { listener, place: Place { socket: socket.to_owned(), inode, made_folder } })
    }

    /// Where it is.
    pub fn socket(&self) -> &Path {
        &self.place.socket
    }

    /// Serves until `shutdown` is done, removes the socket, and lets requests under way end for a while.
    ///
    /// A change that has begun runs to its end on its own thread even if that takes longer; the tokio runtime waits
    /// for it when it is dropped.
    pub async fn serve(
        self,
        control: Arc<Control>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let Self { listener, place } = self;
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

        let journal = Arc::clone(control.journal());
        let (ending, mut ended) = watch::channel(());
        let serving = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .add_service(health_service)
            .add_service(reflection)
            .add_service(api::service(control))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
                // Fails when the sender is gone, which is an end as well.
                let _ = ended.changed().await;
            });
        tokio::pin!(serving);
        let failed = |source| ServeError::Serve { socket: socket.clone(), source: Box::new(source) };
        tokio::select! {
            done = &mut serving => return done.map_err(failed),
            () = shutdown => {}
        }
        drop(place);
        health.set_not_serving::<ControlServer<api::ControlService>>().await;
        drop(ending);
        // Who follows what functions say would wait for ever.
        journal.close();
        // A health watch never ends by itself, so the time for it does.
        match tokio::time::timeout(DRAIN_MAX, serving).await {
            Ok(done) => done.map_err(failed),
            Err(_) => Ok(()),
        }
    }
}

/// Whether nobody lives at the path.
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

/// Binds within a folder that is nobody else's, and moves the socket to its place when its mode is right.
fn bind_private(socket: &Path, folder: &Path) -> io::Result<UnixListener> {
    let private = tempfile::Builder::new().prefix(".").rand_bytes(4).tempdir_in(folder)?;
    let inside = private.path().join("s");
    let listener = UnixListener::bind(&inside)?;
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o600))?;
    fs::rename(&inside, socket)?;
    Ok(listener)
}

/// What is to be removed from the file system in the end.
#[derive(Debug)]
struct Place {
    socket: PathBuf,
    inode: u64,
    made_folder: Option<PathBuf>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Another daemon may have taken the path if somebody removed our socket from it.
        if fs::symlink_metadata(&self.socket).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.socket);
        }
        if let Some(folder) = &self.made_folder {
            let _ = fs::remove_dir(folder);
        }
    }
}
