//! Connections of clients: at most so many at a time. What is too much is closed at once, and said in the log.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::transport::server::Connected;

/// Most connections, if the process may have as many files; each call of a function by `pinion invoke` takes one.
const CONNECTIONS_MAX: usize = 1280;
/// Fewest.
const CONNECTIONS_MIN: usize = 16;
/// How long no connection is accepted after that has failed, as if the process has no file left.
const PAUSE: Duration = Duration::from_millis(100);
/// The least time between two lines about connections that were not accepted.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Returns how many connections there may be: at most half of the files that this process may have.
pub(super) fn connections_max() -> usize {
    let files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize);
    (files / 2).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

/// Accepts connections and passes them on, until the receiver is gone.
pub(super) async fn accept(listener: UnixListener, max: usize, connections: mpsc::Sender<io::Result<Connection>>) {
    let places = Arc::new(Semaphore::new(max));
    let mut refused = Refused::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    if connections.send(Ok(Connection { stream, _place: place })).await.is_err() {
                        return;
                    }
                }
                Err(_) => refused.say(&format_args!("there are {max}, and no more may be")),
            },
            Err(error) => {
                refused.say(&error);
                // Without a pause this would be tried again at once, and fail as often as the core allows.
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Connections that were not accepted since that was said last.
#[derive(Default)]
struct Refused {
    count: u64,
    said: Option<Instant>,
}

impl Refused {
    fn say(&mut self, why: &dyn std::fmt::Display) {
        self.count += 1;
        if self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            tracing::warn!(count = self.count, "connections to the API were refused: {why}");
            *self = Self { count: 0, said: Some(Instant::now()) };
        }
    }
}

/// A connection, which has its place until it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = <UnixStream as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, out)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
