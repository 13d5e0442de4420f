//! Why an FWP, and with it its chain instance, ended.

use pinion_builder_client::metrics::BadMetrics;
use pinion_guest::calls::INIT_SLEEP_MAX;
use pinion_guest::fault::{Trapped, cause};
use pinion_mma::guest::mailbox::Violation;
use pinion_mma::guest::pool::PoolError;
use wasmtime::Trap;

use crate::containment::Panicked;
use crate::scheduler::Overrun;
use crate::tenants::accounts::OverLimit;

/// Why an FWP ended. Shown to its tenant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndReason {
    /// Its function returned, which is not a fault.
    #[error("its run function returned")]
    Returned,
    /// It called `proc_exit`.
    #[error("it exited with status {0}")]
    Exited(i32),
    /// It trapped.
    #[error("it trapped: {message}")]
    Trapped {
        /// What happened.
        message: String,
        /// Where, one line per frame, with symbol names where the module has them.
        backtrace: String,
    },
    /// It panicked, with a message.
    #[error("it panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
        /// Where, as for a trap.
        backtrace: String,
    },
    /// It broke the rules of its rings.
    #[error("it was stopped: {0}")]
    Violation(#[from] Violation),
    /// It has used more CPU time than its budget allows.
    #[error("it was stopped: {0}")]
    Overrun(#[from] Overrun),
    /// It waited before it was initialised.
    #[error("it called pinion.{0} during its initialisation")]
    WaitInInit(&'static str),
    /// It slept for too long before it was initialised.
    #[error("it slept (poll_oneoff) for longer than {} ms during its initialisation", INIT_SLEEP_MAX.as_millis())]
    SleptInInit,
    /// Its pool cannot be used.
    #[error("its packet pool is unusable: {0}")]
    Pool(PoolError),
    /// Its metrics do not follow the contract.
    #[error(transparent)]
    Metrics(#[from] BadMetrics),
    /// Its `pinion_init` refused; its log says why.
    #[error("its pinion_init refused with status {0}; see its log")]
    InitRefused(i32),
    /// It did not reach its first wait in time.
    #[error("it did not reach its first wait within {} ms", crate::fwp::INIT_TIME_MAX.as_millis())]
    InitTime,
    /// It could not be instantiated.
    #[error("it could not be instantiated: {0}")]
    NotInstantiated(String),
    /// It could not be instantiated because of a memory limit.
    #[error("it could not be instantiated: {0}")]
    OverLimit(OverLimit),
    /// A call that it made failed in the node.
    #[error("it was ended in a call that it made: {0}")]
    HostPanicked(#[from] Panicked),
    /// Its worker panicked while it worked for this FWP.
    #[error("its worker panicked in its turn, for a reason that the operator finds in the node's log")]
    WorkerPanicked,
    /// Its worker panicked while it worked for another FWP, or for none.
    #[error("its worker panicked in another function's turn and began anew")]
    WorkerRestarted,
    /// Workers have panicked in turns of its chain more than once.
    #[error("its chain is banned for a time, as workers panicked in its turns")]
    ChainBanned,
    /// An export is not what the builder saw.
    #[error("its exports are not what was admitted: {0}")]
    Broken(String),
    /// No packet arrived for the idle time of its chain.
    #[error("nothing came for its chain's idle time")]
    Idle,
    /// It served one TCP connection, which its client closed or reset.
    #[error("its TCP connection ended")]
    FlowEnded,
    /// Its client sent one packet and no second one, and others waited for a place.
    #[error("its client sent one packet only, and others waited for a place")]
    Unproven,
    /// It was reclaimed before a client had it: memory is short, or fewer clients arrive than before.
    #[error("it was taken back before a client had it: memory is short, or fewer clients come")]
    Reclaimed,
    /// Its chain was deleted or replaced, or the node stops.
    #[error("its chain was deleted or replaced")]
    Withdrawn,
}

/// The error with which an import ends a guest.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Stop(pub(crate) EndReason);

impl EndReason {
    /// Returns the reason behind the outcome of a guest's call.
    #[must_use]
    pub fn of(outcome: wasmtime::Result<()>) -> Self {
        match outcome {
            Ok(()) => Self::Returned,
            Err(error) => Self::stopped(&error).unwrap_or_else(|| trapped(&error)),
        }
    }

    /// Returns the reason that an import gave, if an import ended the guest.
    fn stopped(error: &wasmtime::Error) -> Option<Self> {
        if let Some(panicked) = error.downcast_ref::<Panicked>() {
            return Some((*panicked).into());
        }
        match &error.downcast_ref::<Stop>()?.0 {
            Self::Panicked { message, .. } => {
                let Trapped { backtrace, .. } = Trapped::of(error);
                Some(Self::Panicked { message: message.clone(), backtrace })
            }
            other => Some(other.clone()),
        }
    }

    pub(crate) fn broken(error: wasmtime::Error) -> Self {
        Self::Broken(cause(&error))
    }

    /// Returns the reason behind a failed instantiation, which includes the module's start function.
    pub(crate) fn not_instantiated(error: &wasmtime::Error) -> Self {
        match Self::stopped(error) {
            Some(reason) => reason,
            None if error.is::<Trap>() => trapped(error),
            None => Self::NotInstantiated(cause(error)),
        }
    }

    /// Returns the full account for diagnosis: the sentence, and the backtrace of a trap or a panic.
    #[must_use]
    pub fn account(&self) -> String {
        match self {
            Self::Trapped { backtrace, .. } | Self::Panicked { backtrace, .. } if !backtrace.is_empty() => {
                format!("{self}\n{backtrace}")
            }
            _ => self.to_string(),
        }
    }

    /// Returns whether the end tells nothing about the instance: what others did ended it, or what instances before it did.
    #[must_use]
    pub fn is_of_others_doing(&self) -> bool {
        matches!(self, Self::WorkerRestarted | Self::ChainBanned)
    }

    /// Returns whether the tenant should look into it.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !matches!(
            self,
            Self::Returned
                | Self::Exited(0)
                | Self::Idle
                | Self::FlowEnded
                | Self::Unproven
                | Self::Reclaimed
                | Self::Withdrawn
                | Self::WorkerRestarted
                | Self::ChainBanned
        )
    }
}

fn trapped(error: &wasmtime::Error) -> EndReason {
    let Trapped { message, backtrace } = Trapped::of(error);
    EndReason::Trapped { message, backtrace }
}
