//! The peer: a server that forks a process for each connection, which runs the model for its client. All share the model's memory.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use pinion_confinement::isolated::run_in_copy;
use pinion_inference::Model;

use crate::figures::infer::images::{IMAGE_BYTES, PATH, load, verdict};

/// The most bytes read at a time, and of a request's head.
const PART_BYTES: usize = 16 << 10;
const HEAD_BYTES_MAX: usize = 4096;
const HEAD_END: &[u8] = b"\r\n\r\n";

// Classifies images for the figure infer, in a process for each connection.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The address to listen on
    #[arg(long)]
    address: SocketAddr,
    /// The model, in ONNX
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
}

/// Serves until it is ended.
pub(crate) fn serve(options: &Options) -> anyhow::Result<()> {
    let model = load(&options.model)?;
    let listener = TcpListener::bind(options.address).with_context(|| options.address.to_string())?;
    let mut children = Vec::new();
    loop {
        let (stream, _) = listener.accept().context("a connection")?;
        children
            .push(run_in_copy(|| u8::from(serve_client(&model, stream).is_err())).context("a process for a client")?);
        children.retain(|child| !matches!(child.try_wait(), Ok(Some(_))));
    }
}

/// Answers a client's requests until it closes its connection.
fn serve_client(model: &Model, mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let (mut received, mut part) = (Vec::with_capacity(PART_BYTES), vec![0; PART_BYTES]);
    loop {
        while let Some((image, len)) = image(&received)? {
            let body = verdict(model, image)?;
            let len_of_body = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len_of_body}\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).context("an answer")?;
            received.drain(..len);
        }
        match stream.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(count) => received.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("a request"),
        }
    }
}

/// Returns the image of the first request, if that is there as a whole, and the request's length.
fn image(received: &[u8]) -> anyhow::Result<Option<(&[u8], usize)>> {
    let Some(end) = received.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END) else {
        ensure!(received.len() <= HEAD_BYTES_MAX, "a head is too long");
        return Ok(None);
    };
    let head = str::from_utf8(&received[..end]).context("a head")?;
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default();
    ensure!(line.strip_prefix("POST ").and_then(|rest| rest.strip_prefix(PATH)) == Some(" HTTP/1.1"), "{line:?}");
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    ensure!(length == Some(IMAGE_BYTES), "an image has {length:?} bytes");
    let start = end + HEAD_END.len();
    Ok(received.get(start..start + IMAGE_BYTES).map(|image| (image, start + IMAGE_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_there_with_its_last_byte() {
        let head = format!("POST /classify HTTP/1.1\r\nHost: x\r\ncontent-length: {IMAGE_BYTES}\r\n\r\n");
        let request = [head.as_bytes(), &[7; IMAGE_BYTES], b"POST"].concat();
        let len = head.len() + IMAGE_BYTES;
        assert_eq!(image(&request[..len - 1]).unwrap(), None);
        assert_eq!(image(&request[..20]).unwrap(), None);
        assert_eq!(image(&request).unwrap(), Some((&[7; IMAGE_BYTES][..], len)));
    }

    #[test]
    fn what_is_no_image_ends_the_connection() {
        assert!(image(b"GET /classify HTTP/1.1\r\n\r\n").is_err());
        assert!(image(b"POST /classify HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello").is_err());
        assert!(image(&[b'x'; HEAD_BYTES_MAX + 1]).is_err());
    }
}
