//! The peer of a connection: who it is, whether its certificate still holds, and what it takes of its identity's account.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::CertificateDer;
use tonic::Status;

use super::accounts::Account;
use super::trust::TrustStore;
use crate::access::Caller;

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
    /// The files of certificates with which they were verified last.
    generation: AtomicU64,
}

impl Remote {
    /// `generation` is that of the files with which the handshake was made.
    pub(super) fn new(
        account: Arc<Account>,
        chain: Vec<CertificateDer<'static>>,
        generation: u64,
        trust: Arc<TrustStore>,
    ) -> Self {
        Self { account, presented: Presented { chain, generation: AtomicU64::new(generation) }, trust }
    }
}

impl Peer {
    /// Refuses a peer whose certificate has expired, was revoked, or is not accepted any more for another reason.
    pub(super) fn check(&self) -> Result<(), Status> {
        let (Some(remote), Some(certificate)) = (&self.remote, self.caller.certificate()) else { return Ok(()) };
        let refused = |why: &str| {
            let serial = &certificate.serial;
            Err(Status::unauthenticated(format!(
                "the certificate of this connection (serial {serial}) {why}: connect with a valid one"
            )))
        };
        if SystemTime::now() > certificate.expires {
            return refused("has expired");
        }
        let trust = remote.trust.current();
        if remote.presented.generation.load(Ordering::Relaxed) == trust.generation() {
            return Ok(());
        }
        match trust.verify(&remote.presented.chain) {
            Ok(()) => {
                remote.presented.generation.store(trust.generation(), Ordering::Relaxed);
                Ok(())
            }
            Err(why) => refused(&why),
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
        })
    }

    pub(super) fn begin(self: &Arc<Self>) -> InProgress {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        self.has_had_one.store(true, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }

    /// Returns how long the connection may still be without a request.
    pub(super) fn time_left(&self, first_request_time: Duration, idle_time: Duration) -> Duration {
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
