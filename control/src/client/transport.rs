//! Connects to nodes, and remembers why a node ended a connection.
//!
//! In TLS 1.3 the client's handshake ends before the node has looked at the client's certificate. If the node refuses
//! it, an alert arrives later, and all that a request reports is a broken connection. So the stream remembers the
//! alert, and the transport adds it to the error of the request.
//!
//! ```text
//!   ControlClient -> Transport -> Channel (HTTP/2) -> WatchedStream -> TLS -> TCP
//!                        ^                                  |
//!                        +------------- Alert <-------------+
//! ```

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response, Uri};
use tonic::codegen::{BoxFuture, Service, StdError};
use tonic::transport::{Channel, Endpoint};

use super::address::RemoteNode;
use super::tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a quiet connection over a network is tested, and how long the answer to a test may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The alert by which the node ended the last connection.
#[derive(Clone, Debug, Default)]
struct Alert(Arc<Mutex<Option<AlertDescription>>>);

impl Alert {
    fn set(&self, alert: Option<AlertDescription>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = alert;
    }

    fn get(&self) -> Option<AlertDescription> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A channel to a node, whose errors say why the node refused the connection.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    channel: Channel,
    /// A node over TLS, and why it ended the connection.
    remote: Option<(Arc<RemoteNode>, Alert)>,
}

impl Transport {
    /// Connects to a Unix socket.
    pub(super) async fn to_socket(path: PathBuf) -> Result<Self, StdError> {
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The connector ignores the address, but HTTP/2 requires one.
        let endpoint = Endpoint::from_static("http://piniond").connect_timeout(CONNECT_TIMEOUT);
        Ok(Self { channel: endpoint.connect_with_connector(connector).await?, remote: None })
    }

    /// Connects over TCP with TLS.
    pub(super) async fn to_remote(node: RemoteNode, config: ClientConfig) -> Result<Self, StdError> {
        let (node, alert) = (Arc::new(node), Alert::default());
        let tls = TlsConnector::from(Arc::new(config));
        let authority = node.server.to_string();
        let connector = {
            let (node, alert) = (Arc::clone(&node), alert.clone());
            tower::service_fn(move |_: Uri| {
                let (node, alert, tls) = (Arc::clone(&node), alert.clone(), tls.clone());
                async move { connect(&node, alert, tls).await.map(TokioIo::new) }
            })
        };
        // The connector does TLS itself, so the channel must not.
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
            .origin(Uri::try_from(format!("https://{authority}")).expect("the address of a server is an authority"))
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT);
        let remote = Some((node, alert));
        match endpoint.connect_with_connector(connector).await {
            Ok(channel) => Ok(Self { channel, remote }),
            Err(error) => Err(with_refusal(remote.as_ref(), error)),
        }
    }
}

/// Opens a connection, and checks that its other end is the node.
async fn connect(node: &RemoteNode, alert: Alert, tls: TlsConnector) -> Result<WatchedStream, StdError> {
    alert.set(None);
    let (host, port) = node.server.host_and_port();
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    match tls.connect(node.server.host().clone(), stream).await {
        Ok(stream) => Ok(WatchedStream { stream, alert, write_error: None }),
        Err(error) => Err(explained(node, error)),
    }
}

/// Returns the reason of a failed handshake.
fn explained(node: &RemoteNode, error: io::Error) -> StdError {
    match tls::cause(&error) {
        Some(rustls::Error::AlertReceived(alert)) if let Some(refused) = tls::refusal(node, *alert) => refused.into(),
        Some(cause) => tls::distrust(node, cause).into(),
        None => error.into(),
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = BoxFuture<Response<Body>, StdError>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.channel.poll_ready(context).map_err(|error| with_refusal(self.remote.as_ref(), error))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.channel.call(request);
        let remote = self.remote.clone();
        Box::pin(async move { answer.await.map_err(|error| with_refusal(remote.as_ref(), error)) })
    }
}

/// Returns a status whose source says that the node refused the certificate, if it did.
fn with_refusal(remote: Option<&(Arc<RemoteNode>, Alert)>, error: tonic::transport::Error) -> StdError {
    let Some((node, alert)) = remote else { return error.into() };
    let found = refusal_in(&error).cloned();
    match found.or_else(|| tls::refusal(node, alert.get()?)) {
        Some(refused) => {
            let mut status = Status::unauthenticated(refused.to_string());
            status.set_source(Arc::new(refused));
            status.into()
        }
        None => error.into(),
    }
}

/// Returns the refusal that an error or one of its causes is.
pub(super) fn refusal_in<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e tls::CertificateRefused> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Returns an error and its causes.
pub(super) fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| (*error).source())
}

/// A TLS connection that remembers the node's alert.
struct WatchedStream {
    stream: TlsStream<TcpStream>,
    alert: Alert,
    /// Why a write failed that is not reported yet.
    write_error: Option<io::Error>,
}

impl WatchedStream {
    fn note(&self, error: &io::Error) {
        if let Some(rustls::Error::AlertReceived(alert)) = tls::cause(error) {
            self.alert.set(Some(*alert));
        }
    }

    /// Reads until the end of a connection that can't be written to any more, as the node's alert may come before it.
    fn poll_read_to_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut discarded = [0; 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut discarded);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) => return Poll::Ready(()),
                Err(error) => {
                    self.note(&error);
                    return Poll::Ready(());
                }
            }
        }
    }

    /// Writes by `write`. An error is reported after the node's alert has been looked for.
    fn poll_watched<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TlsStream<TcpStream>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let error = match self.write_error.take() {
            Some(error) => error,
            None => match ready!(write(Pin::new(&mut self.stream), context)) {
                Ok(done) => return Poll::Ready(Ok(done)),
                Err(error) => error,
            },
        };
        if self.poll_read_to_end(context).is_pending() {
            self.write_error = Some(error);
            return Poll::Pending;
        }
        Poll::Ready(Err(error))
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.note(error);
        }
        read
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_watched(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_watched(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
