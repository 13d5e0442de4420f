//! `GetLogs`: the log lines of functions, existing and new.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{ControlService, bad_message};
use crate::journal::{LogFilter, Reader};
use crate::proto;

/// The number of lines buffered for one reader. Only the reader's own task waits for a slow reader, which then finds
/// that lines are lost.
const LINES_UNDER_WAY: usize = 64;

pub(super) type Lines = ReceiverStream<Result<proto::LogLine, Status>>;

pub(super) fn lines(service: &ControlService, request: &proto::GetLogsRequest) -> Result<Lines, Status> {
    let filter = LogFilter::try_from(request).map_err(bad_message)?;
    let reader = Reader::new(Arc::clone(service.control.journal()), filter);
    let (lines, received) = mpsc::channel(LINES_UNDER_WAY);
    tokio::spawn(read(reader, request.follow, lines));
    Ok(ReceiverStream::new(received))
}

/// Reads until there will be no more lines, or the caller has disconnected.
async fn read(mut reader: Reader, follow: bool, lines: mpsc::Sender<Result<proto::LogLine, Status>>) {
    loop {
        let page = reader.read();
        let is_all = page.is_empty();
        for line in page {
            if lines.send(Ok(line.into())).await.is_err() {
                return;
            }
        }
        if is_all && !follow {
            return;
        }
        let more = async { !is_all || reader.more().await };
        tokio::select! {
            more = more => if !more { return },
            () = lines.closed() => return,
        }
    }
}
