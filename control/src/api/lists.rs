//! Lists of chains, and those that are read page by page as the client takes them, so that a client that stalls holds no more than
//! a page.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

use super::places::ReportPlaces;
use super::status::node_panicked;
use crate::control::Control;
use crate::model::{Chain, ObjectRef, TenantName};
use crate::proto;
use crate::wire::HasLabel;

pub(super) type Items<M> = ReceiverStream<Result<M, Status>>;

/// How many messages of a list are made before the client takes them, beside the page that they are of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// Small ones: 64.
    Many,
    /// Those that may be large: one.
    One,
}

/// Sends the chains for which `is_meant` holds, by tenant and name, with those that calls of modules have made.
pub(super) fn chains(
    control: &Control,
    is_meant: impl Fn(&Arc<Chain>) -> bool,
) -> Response<super::Items<proto::Chain>> {
    let desired = control.desired();
    let implicit = control.implicit_chains(&desired);
    let mut all: Vec<_> = desired.chains().values().map(|chain| (chain, false)).collect();
    all.extend(implicit.iter().map(|chain| (chain, true)));
    all.retain(|(chain, _)| is_meant(chain));
    all.sort_by_key(|&(chain, _)| (&chain.tenant, &chain.name));
    let listed = all.into_iter().map(|(chain, implicit)| {
        (Arc::clone(chain), desired.labels().get(&ObjectRef::from(&**chain)).cloned(), implicit)
    });
    super::items(listed, |(chain, label, implicit)| {
        let message = proto::Chain::from(&*chain).with_label(label.as_ref());
        proto::Chain { implicit, ..message }
    })
}

/// Sends the items of all pages, up to the first error. Each page takes one of these places, for a tenant's caller or else the
/// operator, while it is read.
pub(super) fn items<T, M>(
    pages: impl Iterator<Item = Result<Vec<T>, Status>> + Send + 'static,
    ahead: Ahead,
    places: Arc<ReportPlaces>,
    caller: Option<TenantName>,
) -> Items<M>
where
    T: Into<M> + Send + 'static,
    M: Send + 'static,
{
    let ahead = if ahead == Ahead::Many { 64 } else { 1 };
    let (items, received) = mpsc::channel(ahead);
    tokio::spawn(read(pages, places, caller, items));
    ReceiverStream::new(received)
}

/// Reads until there is no other page, or the client has disconnected.
async fn read<T, M>(
    mut pages: impl Iterator<Item = Result<Vec<T>, Status>> + Send + 'static,
    places: Arc<ReportPlaces>,
    caller: Option<TenantName>,
    items: mpsc::Sender<Result<M, Status>>,
) where
    T: Into<M> + Send + 'static,
    M: Send + 'static,
{
    while !items.is_closed() {
        let place = places.take(caller.as_ref()).await;
        // Reading a page may wait for the disk, or for a lock that the launcher holds now and then.
        let next = tokio::task::spawn_blocking(move || {
            let _place = place;
            (pages.next(), pages)
        });
        let (page, rest) = match next.await {
            Ok((page, rest)) => (page.transpose(), rest),
            Err(panicked) => {
                // A client that is gone needs no answer.
                let _ = items.send(Err(node_panicked(panicked))).await;
                return;
            }
        };
        let page = match page {
            Ok(Some(page)) => page,
            Ok(None) => return,
            Err(status) => {
                let _ = items.send(Err(status)).await;
                return;
            }
        };
        for item in page {
            if items.send(Ok(item.into())).await.is_err() {
                return;
            }
        }
        pages = rest;
    }
}
