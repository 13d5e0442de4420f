//! Calls of any method by its path, with messages in encoded form.

use std::time::Duration;

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use tokio_stream::{Stream, StreamExt};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use super::served::PATIENCE;

#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

/// Begins a call with a stream of messages.
pub(crate) async fn begin(
    channel: &Channel,
    path: &'static str,
    messages: impl Stream<Item = Vec<u8>> + Send + 'static,
) -> Result<Streaming<Vec<u8>>, Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unknown(format!("{error:?}")))?;
    let called = grpc.streaming(Request::new(messages), PathAndQuery::from_static(path), Raw);
    let answer = tokio::time::timeout(PATIENCE, called).await.expect("an answer comes at some time");
    Ok(answer?.into_inner())
}

/// Takes all messages of a response, up to so many.
pub(crate) async fn take(mut answer: Streaming<Vec<u8>>, most: usize) -> Result<Vec<Vec<u8>>, Status> {
    let mut messages = Vec::new();
    while messages.len() < most {
        let next = tokio::time::timeout(PATIENCE, answer.next()).await.expect("something comes at some time");
        let Some(message) = next else { break };
        messages.push(message?);
    }
    Ok(messages)
}

/// Calls a method with one message, and returns the messages of the response. Of a health watch, which never ends, the first.
pub(crate) async fn call(channel: &Channel, path: &'static str, message: Vec<u8>) -> Result<Vec<Vec<u8>>, Status> {
    let most = if path.ends_with("/Watch") { 1 } else { usize::MAX };
    take(begin(channel, path, tokio_stream::iter([message])).await?, most).await
}

/// Returns a stream that never ends, nor yields anything after these messages.
pub(crate) fn endless(first: Vec<Vec<u8>>) -> impl Stream<Item = Vec<u8>> + Send {
    tokio_stream::iter(first).chain(tokio_stream::pending())
}

/// Waits until a call succeeds.
pub(crate) async fn until_ok(channel: &Channel, path: &'static str, message: Vec<u8>) {
    let again = async {
        while call(channel, path, message.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("the call succeeds at some time");
}
