//! The peer of a connection: who it is, whether its certificate still holds, and what it takes of its identity's account.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tonic::Status;

use super::accounts::Account;
use super::identity;
use super::trust::TrustStore;
use crate::access::Caller;

/// How long a connection still lasts once its peer was refused, so that the answer that says so is sent.
const REFUSED_TIME: Duration = Duration::from_millis(500);

/// The peer of a connection. Travels with each of its requests.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) caller: Caller,
    pub(super) activity: Arc<Activity>,
    /// None on the Unix socket, whose caller is not limited.
    pub(super) remote: Option<Arc<Remote>>,
}

/// What a peer on TCP has beside its identity.
pub(super) struct Remote {
    pub(super) account: Arc<Account>,
    presented: Presented,
    trust: Arc<TrustStore>,
}

/// The certificates that a peer presented, its own first.
struct Presented {
    chain: Vec<CertificateDer<'static>>,
    /// When each of them expires, in seconds of Unix time.
    expiries_s: Vec<u64>,
    /// The files of certificates with which they were verified last.
    generation: AtomicU64,
    /// The next of their expiries, after which they are verified again.
    verified_until_s: AtomicU64,
}

impl Presented {
    /// Verifies the certificates, unless nothing has changed since they were verified last.
    fn verify(&self, trust: &TrustStore) -> Result<(), String> {
        let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let trust = trust.current();
        if self.generation.load(Ordering::Relaxed) == trust.generation()
            && now_s <= self.verified_until_s.load(Ordering::Relaxed)
        {
            return Ok(());
        }
        trust.verify(&self.chain)?;
        self.generation.store(trust.generation(), Ordering::Relaxed);
        let next = self.expiries_s.iter().copied().filter(|expiry_s| *expiry_s >= now_s).min();
        self.verified_until_s.store(next.unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok(())
    }
}

impl Remote {
    /// `generation` is that of the files with which the handshake was made.
    pub(super) fn new(
        account: Arc<Account>,
        chain: Vec<CertificateDer<'static>>,
        generation: u64,
        trust: Arc<TrustStore>,
    ) -> Self {
        let expiries_s = identity::expiries_s(&chain);
        let verified_until_s = AtomicU64::new(expiries_s.iter().copied().min().unwrap_or(u64::MAX));
        let generation = AtomicU64::new(generation);
        Self { account, presented: Presented { chain, expiries_s, generation, verified_until_s }, trust }
    }
}

impl Peer {
    /// Refuses a peer whose certificate has expired, was revoked, or is not accepted any more for another reason. Its
    /// connection ends shortly after.
    pub(super) fn check(&self) -> Result<(), Status> {
        let (Some(remote), Some(certificate)) = (&self.remote, self.caller.certificate()) else { return Ok(()) };
        let refused = |why: &str| {
            let serial = &certificate.serial;
            Status::unauthenticated(format!(
                "the certificate of this connection (serial {serial}) {why}: connect with a valid one"
            ))
        };
        if let Some(refusal) = &*self.activity.refusal.borrow() {
            return Err(refused(&refusal.why));
        }
        let checked = match SystemTime::now() > certificate.expires {
            true => Err("has expired".to_owned()),
            false => remote.presented.verify(&remote.trust),
        };
        checked.map_err(|why| {
            let status = refused(&why);
            self.activity.refuse(why);
            status
        })
    }

    /// Checks the peer from time to time, until it is refused. Never ends on the Unix socket.
    pub(super) async fn refusal(&self, interval: Duration) -> Status {
        if self.remote.is_none() {
            return std::future::pending().await;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = self.activity.refused() => {}
            }
            if let Err(refused) = self.check() {
                return refused;
            }
        }
    }
}

/// Whether a connection has requests in progress, or since when it has none.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    in_progress: AtomicU64,
    has_had_one: AtomicBool,
    /// When the last request ended, in milliseconds after the connection began.
    last_ms: AtomicU64,
    /// Set once the peer is not accepted any more.
    refusal: watch::Sender<Option<Refusal>>,
    /// Wakes the connection.
    waker: Mutex<Option<Waker>>,
}

/// Since when, and why, a peer is not accepted any more.
#[derive(Debug)]
struct Refusal {
    since: Instant,
    why: String,
}

/// A request in progress, until this is dropped.
#[derive(Debug)]
pub(super) struct InProgress(Arc<Activity>);

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            in_progress: AtomicU64::new(0),
            has_had_one: AtomicBool::new(false),
            last_ms: AtomicU64::new(0),
            refusal: watch::Sender::new(None),
            waker: Mutex::default(),
        })
    }

    /// Lets the connection and all its calls end.
    fn refuse(&self, why: String) {
        self.refusal.send_if_modified(|refusal| {
            let is_first = refusal.is_none();
            refusal.get_or_insert(Refusal { since: Instant::now(), why });
            is_first
        });
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    /// Waits until the peer is refused.
    pub(super) async fn refused(&self) {
        // The sender is this one, so there is no error.
        let _ = self.refusal.subscribe().wait_for(Option::is_some).await;
    }

    /// Wakes the connection when the peer is refused. To be called before [`Self::time_left`].
    pub(super) fn wake_when_refused(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    /// Returns whether the peer was refused, and the time for the answer is over.
    pub(super) fn is_over(&self) -> bool {
        self.refusal.borrow().as_ref().is_some_and(|refusal| refusal.since.elapsed() >= REFUSED_TIME)
    }

    pub(super) fn begin(self: &Arc<Self>) -> InProgress {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        self.has_had_one.store(true, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }

    /// Returns how long the connection may still be without a request, or may last if its peer was refused.
    pub(super) fn time_left(&self, first_request_time: Duration, idle_time: Duration) -> Duration {
        if let Some(refusal) = &*self.refusal.borrow() {
            return REFUSED_TIME.saturating_sub(refusal.since.elapsed());
        }
        if self.in_progress.load(Ordering::Relaxed) > 0 {
            return idle_time;
        }
        let most = if self.has_had_one.load(Ordering::Relaxed) { idle_time } else { first_request_time };
        let idle_since = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        most.saturating_sub(self.began.elapsed().saturating_sub(idle_since))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let Self(activity) = self;
        activity.last_ms.store(activity.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        activity.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}
