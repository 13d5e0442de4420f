//! `pinion-builder`: a module on standard input, the compiled artifact on standard output. Started by the node.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::process::ExitCode;

use pinion_builder::{EXIT_REFUSED, MODULE_BYTES_MAX, admission, limits, settings};

fn main() -> ExitCode {
    match run() {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(refused)) => {
            eprintln!("{refused}");
            ExitCode::from(EXIT_REFUSED as u8)
        }
        Err(error) => {
            eprintln!("the builder failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<Result<(), admission::Refused>> {
    limits::impose()?;
    let mut wasm = Vec::new();
    std::io::stdin().lock().take(MODULE_BYTES_MAX as u64 + 1).read_to_end(&mut wasm)?;
    anyhow::ensure!(wasm.len() <= MODULE_BYTES_MAX, "the module is over {MODULE_BYTES_MAX} bytes");
    let engine = wasmtime::Engine::new(&settings::config()).map_err(|error| anyhow::anyhow!("{error:#}"))?;
    match admission::build(&engine, &wasm) {
        Ok(artifact) => {
            let mut out = std::io::stdout().lock();
            out.write_all(&artifact)?;
            out.flush()?;
            Ok(Ok(()))
        }
        Err(refused) => Ok(Err(refused)),
    }
}
