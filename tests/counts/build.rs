//! Notes the compiler's version: what is counted depends on it.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().expect("the compiler says its version");
    println!("cargo::rustc-env=PINION_COUNTS_RUSTC={}", String::from_utf8_lossy(&output.stdout).trim());
    println!("cargo::rerun-if-changed=build.rs");
}
