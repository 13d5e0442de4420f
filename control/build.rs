//! Compiles `proto/` to Rust with protox, so that no machine needs `protoc`.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["pinion/v1/control.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("pinion.v1.bin");
    std::fs::write(out, descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
