//! Lists of what runs, read page by page as the client takes them.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::places::ReportPlaces;
use super::status::node_panicked;
use crate::model::TenantName;
use crate::node::Pages;

/// The number of items that are read before the client takes them, beside those of one page.
const ITEMS_UNDER_WAY: usize = 64;

pub(super) type Items<T> = ReceiverStream<Result<T, Status>>;

/// Sends the items for which `is_meant` holds. Each page takes one of these places, for a tenant's caller or else the
/// operator, while it is read.
pub(super) fn items<T, M>(
    pages: Pages<T>,
    places: Arc<ReportPlaces>,
    caller: Option<TenantName>,
    is_meant: impl Fn(&T) -> bool + Send + Sync + 'static,
) -> Items<M>
where
    T: Into<M> + Send + 'static,
    M: Send + 'static,
{
    let (items, received) = mpsc::channel(ITEMS_UNDER_WAY);
    tokio::spawn(read(pages, places, caller, is_meant, items));
    ReceiverStream::new(received)
}

/// Reads until there is no other page, or the client has disconnected.
async fn read<T, M>(
    mut pages: Pages<T>,
    places: Arc<ReportPlaces>,
    caller: Option<TenantName>,
    is_meant: impl Fn(&T) -> bool + Send + Sync + 'static,
    items: mpsc::Sender<Result<M, Status>>,
) where
    T: Into<M> + Send + 'static,
    M: Send + 'static,
{
    while !items.is_closed() {
        let place = places.take(caller.as_ref()).await;
        // Reading a page takes a lock that the launcher holds now and then.
        let next = tokio::task::spawn_blocking(move || {
            let _place = place;
            (pages.next(), pages)
        });
        let (page, rest) = match next.await {
            Ok(read) => read,
            Err(panicked) => {
                // A client that is gone needs no answer.
                let _ = items.send(Err(node_panicked(panicked))).await;
                return;
            }
        };
        let Some(page) = page else { return };
        for item in page.into_iter().filter(&is_meant) {
            if items.send(Ok(item.into())).await.is_err() {
                return;
            }
        }
        pages = rest;
    }
}
