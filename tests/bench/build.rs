//! Notes the versions that a figure depends on: `RUSTC_VERSION` and `DPDK_VERSION`, for `env.rs`.

use std::process::Command;

const NO_DPDK: &str = "DPDK 22.11 or later was not found by pkg-config: on Debian, \
    `apt-get install libdpdk-dev pkg-config`; `make install` does so";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(sentence) = build() {
        println!("cargo::error={sentence}");
    }
}

fn build() -> Result<(), String> {
    let dpdk = pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk");
    println!("cargo::rustc-env=DPDK_VERSION={}", dpdk.map_err(|_| NO_DPDK)?.version);
    println!("cargo::rustc-env=RUSTC_VERSION={}", rustc_version()?);
    Ok(())
}

fn rustc_version() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").ok_or("cargo sets RUSTC")?;
    let output = Command::new(rustc).arg("--version").output().map_err(|error| format!("rustc --version: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("rustc ").to_owned())
}
