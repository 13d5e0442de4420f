//! `pinion invoke`: calls a chain or a module, and prints its answer.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use pinion_control::node::Call;
use serde_json::json;

use super::BadInput;
use crate::args::{Format, Function};
use crate::contexts::Target;
use crate::output;

/// A node accepts far less, and reports that. More than this is not even read.
const PAYLOAD_BYTES_READ_MAX: u64 = 1 << 20;

/// Returns the given payload, or reads it from standard input.
pub(super) fn payload(data: Option<String>, file: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    match (data, file) {
        (Some(text), _) => Ok(text.into_bytes()),
        (None, Some(path)) if path != Path::new("-") => {
            let unreadable = |error| BadInput::Unreadable { path: path.to_owned(), error };
            let file = std::fs::File::open(path).map_err(unreadable)?;
            Ok(read(file).map_err(unreadable)?)
        }
        (None, None) if io::stdin().is_terminal() => Ok(Vec::new()),
        (None, _) => Ok(read(io::stdin().lock())?),
    }
}

fn read(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(PAYLOAD_BYTES_READ_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) async fn run(
    target: &Target,
    Function { tenant, chain }: Function,
    payload: Vec<u8>,
    timeout: Duration,
    format: Format,
) -> anyhow::Result<()> {
    let call = Call { tenant: target.tenant_or(tenant), chain, payload, timeout };
    let answer = target.connect().await?.invoke(call).await?;
    match (format, std::str::from_utf8(&answer)) {
        (Format::Json, Ok(text)) => output::json(&json!({ "payload": { "text": text } })),
        (Format::Json, Err(_)) => {
            let text = base64::engine::general_purpose::STANDARD.encode(&answer);
            output::json(&json!({ "payload": { "base64": text } }))
        }
        // The payload may contain bytes that control a terminal.
        (Format::Table, _) if io::stdout().is_terminal() => {
            output::write(&pinion_text::printable_lines(&answer, PAYLOAD_BYTES_READ_MAX as usize))
        }
        (Format::Table, _) => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&answer)?;
            Ok(stdout.flush()?)
        }
    }
}
