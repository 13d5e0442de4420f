//! The body of a response, which is given up if the client takes nothing of it, if it takes too long, or if its caller is
//! not accepted any more.
//!
//! A client decides how much it takes (flow control of HTTP/2), and while it takes nothing the body is not polled. So a
//! task looks after it from outside, and lets go of everything that the response holds: what it is made from, and its
//! place. The client finds the reason as the status of the response, as soon as it takes it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::Status;
use tonic::body::Body;

use super::peer::{InProgress, Peer};
use crate::access::Row;

/// The longest time between two looks at a response.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// How many looks there are in the time that a client may take nothing.
const LOOKS: u32 = 4;

/// What a request takes until its response has ended.
pub(super) type Held = (InProgress, Option<OwnedSemaphorePermit>);

/// When a response is given up.
pub(super) struct Bounds {
    pub(super) row: &'static Row,
    /// None for streams that may last.
    pub(super) deadline: Option<Instant>,
    /// None on the Unix socket, where a client may pause.
    pub(super) stall: Option<Duration>,
    pub(super) peer: Peer,
}

/// See the module.
pub(super) struct ResponseBody {
    shared: Arc<Mutex<Shared>>,
    look: JoinHandle<()>,
}

struct Shared {
    /// None when it has ended or was given up.
    body: Option<(Body, Held)>,
    /// Why it was given up, until the client takes it.
    given_up: Option<Status>,
    /// Since when something is ready that the client has not taken.
    ready_since: Option<Instant>,
    waker: Option<Waker>,
}

impl ResponseBody {
    pub(super) fn new(body: Body, held: Held, bounds: Bounds) -> Self {
        let shared =
            Shared { body: Some((body, held)), given_up: None, ready_since: Some(Instant::now()), waker: None };
        let shared = Arc::new(Mutex::new(shared));
        Self { look: tokio::spawn(look(Arc::clone(&shared), bounds)), shared }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.look.abort();
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    /// An error without a message is a response of headers only, and many clients take it for one only if it ends with them.
    fn is_end_stream(&self) -> bool {
        let shared = lock(&self.shared);
        shared.given_up.is_none() && shared.body.as_ref().is_none_or(|(body, _)| body.is_end_stream())
    }

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut shared = lock(&self.shared);
        if let Some(status) = shared.given_up.take() {
            let mut trailers = HeaderMap::new();
            let frame = status.add_header(&mut trailers).map(|()| Frame::trailers(trailers));
            return Poll::Ready(Some(frame));
        }
        shared.waker = Some(context.waker().clone());
        shared.ready_since = None;
        let Some((body, _)) = &mut shared.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if frame.is_none() {
            shared.body = None;
        }
        shared.ready_since = Some(Instant::now());
        Poll::Ready(frame)
    }
}

/// Looks at a response from time to time, until it has ended or is given up.
async fn look(shared: Arc<Mutex<Shared>>, bounds: Bounds) {
    let stall = bounds.stall.unwrap_or(Duration::MAX);
    let interval = LOOK_INTERVAL_MAX.min(stall / LOOKS);
    loop {
        let left = bounds.deadline.map_or(interval, |deadline| deadline.saturating_duration_since(Instant::now()));
        tokio::select! {
            () = sleep(interval.min(left)) => {}
            () = bounds.peer.activity.refused() => {}
        }
        let mut shared = lock(&shared);
        if shared.body.is_none() {
            return;
        }
        let is_stalled = shared.ready_since.is_some_and(|since| since.elapsed() >= stall);
        let status = if bounds.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            too_late(bounds.row)
        } else if is_stalled {
            let ms = stall.as_millis();
            Status::deadline_exceeded(format!("the client took nothing of the response for {ms} ms: ask again"))
        } else if let Err(refused) = bounds.peer.check() {
            refused
        } else {
            continue;
        };
        shared.given_up = Some(status);
        let (body, waker) = (shared.body.take(), shared.waker.take());
        drop(shared);
        drop(body);
        if let Some(waker) = waker {
            waker.wake();
        }
        return;
    }
}

/// Returns the status of a call that took too long.
pub(super) fn too_late(row: &Row) -> Status {
    let method = row.method();
    let most_s = row.deadline().unwrap_or_default().as_secs();
    Status::deadline_exceeded(format!(
        "{method} took longer than {most_s} s, which is the most: what was begun may still be done"
    ))
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
