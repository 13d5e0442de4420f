//! Connections on TCP: mutual TLS, and who connects.
//!
//! ```text
//!   accept --> place of a handshake, of the address --> handshake, in limited time --> place, of the identity --> requests
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use pinion_text::{SENTENCE_BYTES_MAX, printable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::accounts::{Accounts, AddressPlace, Addresses};
use super::connections::{Connection, PAUSE, Refused};
use super::limits::Limits;
use super::peer::{Activity, Peer, Remote};
use super::trust::{self, TrustStore};

/// How much of what a refused client still sends is read, so that the alert reaches it before the connection is reset.
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// What handshakes share.
struct Handshakes {
    trust: Arc<TrustStore>,
    accounts: Accounts,
    limits: Limits,
    places: Arc<Semaphore>,
    refused: Refused,
}

/// Accepts connections and passes them on when their handshake is complete, until the receiver is gone.
pub(super) async fn accept(
    listener: TcpListener,
    trust: Arc<TrustStore>,
    limits: Limits,
    connections: mpsc::Sender<io::Result<Connection>>,
) {
    let (addresses, under_way) = (Addresses::default(), Arc::new(Semaphore::new(limits.handshakes_max)));
    let under_way_by_address = Addresses::default();
    let shared = Arc::new(Handshakes {
        trust,
        accounts: Accounts::new(limits.clone()),
        places: Arc::new(Semaphore::new(limits.connections_max)),
        refused: Refused::default(),
        limits,
    });
    let mut handshakes = JoinSet::new();
    loop {
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    shared.refused.say(&error);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            Some(_) = handshakes.join_next() => continue,
            () = connections.closed() => return,
        };
        let max = shared.limits.connections_per_address_max;
        let ip = address.ip();
        let Some(of_address) = addresses.take(ip, max) else {
            shared.refused.say(&format_args!(
                "{ip}: one address may have {max} connections, and an IPv6 network of 48 bits four times as many: there are as many"
            ));
            continue;
        };
        let max = shared.limits.handshakes_per_address_max;
        let Some(handshake_of_address) = under_way_by_address.take(ip, max) else {
            shared.refused.say(&format_args!(
                "{ip}: one address may have {max} handshakes under way, and an IPv6 network of 48 bits four times as many: there are as many"
            ));
            continue;
        };
        let Ok(handshake) = Arc::clone(&under_way).try_acquire_owned() else {
            let max = shared.limits.handshakes_max;
            shared.refused.say(&format_args!("{address}: {max} handshakes are under way, and no more may be"));
            continue;
        };
        let (shared, connections) = (Arc::clone(&shared), connections.clone());
        handshakes.spawn(async move {
            let done = shared.connect(stream, address, of_address).await;
            drop((handshake, handshake_of_address));
            match done {
                Ok(connection) => _ = connections.send(Ok(connection)).await,
                Err(why) => shared.refused.say(&format_args!("{address}: {}", printable(why, SENTENCE_BYTES_MAX))),
            }
        });
    }
}

impl Handshakes {
    /// Makes the handshake, and finds out who the client is.
    async fn connect(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        of_address: AddressPlace,
    ) -> Result<Connection, String> {
        let time_max = self.limits.handshake_time;
        // Requests and responses are small, and wait for each other.
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let trust = self.trust.current();
        let handshake = handshake(TlsAcceptor::from(Arc::clone(trust.config())), stream);
        let stream = match tokio::time::timeout(time_max, handshake).await {
            Ok(done) => done?,
            Err(_) => return Err(format!("its handshake took longer than {} ms", time_max.as_millis())),
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain: Vec<_> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let caller = trust::caller(&chain)?;
        let account = self.accounts.of(&caller);
        let max = self.limits.connections_per_identity_max;
        let of_identity =
            account.connection().ok_or_else(|| format!("{caller} has {max} connections, and no more may be"))?;
        let max = self.limits.connections_max;
        let place: OwnedSemaphorePermit =
            Arc::clone(&self.places).try_acquire_owned().map_err(|_| format!("there are {max}, and no more may be"))?;
        tracing::debug!(%caller, %address, "connected");
        let remote = Remote::new(account, chain, trust.generation(), Arc::clone(&self.trust));
        let peer = Peer { caller, activity: Activity::new(), remote: Some(Arc::new(remote)) };
        Ok(Connection::of_tls(stream, peer, &self.limits, (place, of_identity, of_address)))
    }
}

/// Makes the handshake. A client that is refused gets an alert that gives the reason.
async fn handshake(acceptor: TlsAcceptor, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
    let (error, mut stream) = match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => return Ok(stream),
        Err(failed) => failed,
    };
    // The alert is lost if the connection is closed while bytes of the client are unread. The time is the handshake's.
    if stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await;
    }
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    Err(inner.map_or_else(|| error.to_string(), trust::reason))
}
