//! Writes `pinion/abi.h`.

use std::io::Write;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include/pinion/abi.h");
    std::fs::write(&path, pinion_c_header::header())?;
    writeln!(std::io::stdout().lock(), "{} is written", path.display())
}
