//! Connections of clients: at most so many at a time. What is too much is closed at once, and said in the log.

use std::io;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use rustix::process::geteuid;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::accounts::AddressPlace;
use super::authority::AnyAuthority;
use super::limits::Limits;
use super::peer::{Activity, Peer};
use crate::access::Caller;

/// How long no connection is accepted after that has failed, as if the process has no file left.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// The most lines in a minute about connections that were refused, as strangers could fill the log with them.
const LINES_PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Accepts connections on the Unix socket and passes them on, until the receiver is gone.
///
/// The mode of the socket keeps other users out. Their number is looked at all the same: a mode is changed easily.
pub(super) async fn accept(listener: UnixListener, max: usize, connections: mpsc::Sender<io::Result<Connection>>) {
    let places = Arc::new(Semaphore::new(max));
    let refused = Refused::default();
    loop {
        let accepted = listener.accept().await.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream)));
        match accepted {
            Ok((uid, _)) if uid != 0 && uid != geteuid().as_raw() => {
                refused.say(&format_args!("uid {uid} is neither root nor the node's own on the Unix socket"));
            }
            Ok((uid, stream)) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    if connections.send(Ok(Connection::of_unix(stream, uid, place))).await.is_err() {
                        return;
                    }
                }
                Err(_) => refused.say(&format_args!("there are {max} on the Unix socket, and no more may be")),
            },
            Err(error) => {
                refused.say(&error);
                // Without a pause this would be tried again at once, and fail as often as the core allows.
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Says in the log which connections were refused, and why, as long as there are not too many.
pub(super) struct Refused {
    rate: DefaultDirectRateLimiter,
    unsaid: AtomicU64,
}

impl Default for Refused {
    fn default() -> Self {
        Self { rate: RateLimiter::direct(Quota::per_minute(LINES_PER_MINUTE)), unsaid: AtomicU64::new(0) }
    }
}

impl Refused {
    pub(super) fn say(&self, why: &dyn std::fmt::Display) {
        if self.rate.check().is_err() {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let unsaid = self.unsaid.swap(0, Ordering::Relaxed);
        tracing::warn!(unsaid, "a connection to the API was refused: {why}");
    }
}

/// A connection, which has its places until it is dropped.
pub(super) struct Connection {
    stream: Stream,
    peer: Peer,
    /// Of connections on TCP.
    idle: Option<Idle>,
    _places: Places,
}

enum Stream {
    Unix(AnyAuthority<UnixStream>),
    Tls(Box<TlsStream<TcpStream>>),
}

enum Places {
    Unix { _place: OwnedSemaphorePermit },
    Tcp { _places: (OwnedSemaphorePermit, OwnedSemaphorePermit, AddressPlace) },
}

/// Ends a connection that has no request for too long, or whose peer was refused.
struct Idle {
    timer: Pin<Box<Sleep>>,
    first_request_time: Duration,
    idle_time: Duration,
}

impl Idle {
    fn poll(&mut self, activity: &Activity, context: &mut Context<'_>) -> Poll<io::Error> {
        activity.wake_when_refused(context.waker());
        loop {
            let left = activity.time_left(self.first_request_time, self.idle_time);
            if left.is_zero() {
                return Poll::Ready(over());
            }
            let end = Instant::now() + left;
            if end < self.timer.deadline() {
                self.timer.as_mut().reset(end);
            }
            ready!(self.timer.as_mut().poll(context));
            self.timer.as_mut().reset(end);
        }
    }
}

fn over() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the connection has had no request for too long, or its peer was refused")
}

impl Connection {
    fn of_unix(stream: UnixStream, uid: u32, place: OwnedSemaphorePermit) -> Self {
        Self {
            stream: Stream::Unix(AnyAuthority::new(stream)),
            peer: Peer { caller: Caller::of_uid(uid), activity: Activity::new(), remote: None },
            idle: None,
            _places: Places::Unix { _place: place },
        }
    }

    pub(super) fn of_tls(
        stream: TlsStream<TcpStream>,
        peer: Peer,
        limits: &Limits,
        places: (OwnedSemaphorePermit, OwnedSemaphorePermit, AddressPlace),
    ) -> Self {
        let (first_request_time, idle_time) = (limits.first_request_time, limits.idle_time);
        let timer = Box::pin(tokio::time::sleep(first_request_time.min(idle_time)));
        Self {
            stream: Stream::Tls(Box::new(stream)),
            peer,
            idle: Some(Idle { timer, first_request_time, idle_time }),
            _places: Places::Tcp { _places: places },
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, peer, idle, .. } = self.get_mut();
        // A peer that never pauses keeps the timer below from being looked at.
        if peer.activity.is_over() {
            return Poll::Ready(Err(over()));
        }
        let read = match stream {
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, out),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, out),
        };
        match (read, idle) {
            (Poll::Pending, Some(idle)) => idle.poll(&peer.activity, context).map(Err),
            (read, _) => read,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Unix(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
