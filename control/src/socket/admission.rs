//! Judges each request before anything of it is read: who makes it, whether that role may call the method, and whether
//! the identity has room for it. What it admits gets bodies that keep to the method's bounds.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::accounts::RequestBytes;
use super::limits::Limits;
use super::peer::Peer;
use super::request_body::RequestBody;
use super::response_body::{Bounds, Held, ResponseBody, too_late};
use crate::access::{Charge, Row};

/// Adds [`Admission`] to all services.
#[derive(Clone)]
pub(super) struct AdmissionLayer {
    times: Times,
}

#[derive(Clone, Copy)]
struct Times {
    request_stall: Duration,
    response_stall: Duration,
    check_interval: Duration,
}

impl AdmissionLayer {
    pub(super) fn new(limits: &Limits) -> Self {
        let Limits { request_stall, response_stall, check_interval, .. } = *limits;
        Self { times: Times { request_stall, response_stall, check_interval } }
    }
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, inner: S) -> Admission<S> {
        Admission { inner, times: self.times }
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct Admission<S> {
    inner: S,
    times: Times,
}

/// A request that is admitted, and what it takes.
struct Admitted {
    row: &'static Row,
    peer: Peer,
    held: Held,
}

fn admit<B>(request: &Request<B>) -> Result<Admitted, Status> {
    let none = || Status::unauthenticated("this connection has no identity");
    let peer = request.extensions().get::<Peer>().ok_or_else(none)?.clone();
    // Refused requests count in the rate, too, and do not keep the connection.
    let place = peer.remote.as_ref().map(|remote| remote.account.request()).transpose();
    peer.check()?;
    let in_progress = peer.activity.begin();
    let path = request.uri().path();
    let row = Row::of(path).ok_or_else(|| Status::unimplemented("this node has no such method"))?;
    row.admit(&peer.caller)?;
    Ok(Admitted { row, held: (in_progress, place?), peer })
}

impl<S> Service<Request<Body>> for Admission<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Admitted { row, peer, held } = match admit(&request) {
            Ok(admitted) => admitted,
            Err(refused) => return Box::pin(std::future::ready(Ok(refused.into_http()))),
        };
        let times = self.times;
        let deadline = row.deadline().map(|deadline| Instant::now() + deadline);
        request.extensions_mut().insert(peer.caller.clone());
        let taken = peer.remote.as_ref().map(|remote| Arc::new(RequestBytes::new(Arc::clone(&remote.account))));
        let charge = taken.clone().map(|taken| Charge::new(taken));
        if let Some(charge) = &charge {
            request.extensions_mut().insert(charge.clone());
        }
        let bytes_max = row.bytes_max(&peer.caller);
        let request = request.map(|body| Body::new(RequestBody::new(body, row, bytes_max, taken, times.request_stall)));
        let response = self.inner.call(request);
        Box::pin(async move {
            // The body is dropped as soon as it was read, and what was decoded from it is kept longer.
            let _charge = charge;
            let in_time = async {
                match deadline {
                    Some(deadline) => timeout_at(deadline, response).await,
                    None => Ok(response.await),
                }
            };
            let response = tokio::select! {
                response = in_time => response,
                refused = peer.refusal(times.check_interval) => return Ok(refused.into_http()),
            };
            let Ok(response) = response else { return Ok(too_late(row).into_http()) };
            let stall = peer.remote.is_some().then_some(times.response_stall);
            let bounds = Bounds { row, deadline, stall, peer };
            Ok(response?.map(|body| Body::new(ResponseBody::new(body, held, bounds))))
        })
    }
}
