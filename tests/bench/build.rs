//! Compiles the native peer, and notes what figures depend on: `ZERO_COPY_CHAIN` is the peer's path, `DPDK_VERSION` and
//! `RUSTC_VERSION` are for `env.rs`.

use std::path::Path;
use std::process::Command;

const SOURCE: &str = "native/zero_copy_chain.c";
const NO_DPDK: &str = "DPDK 22.11 or later was not found by pkg-config: `make install` installs it on Debian";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SOURCE}");
    if let Err(sentence) = build() {
        println!("cargo::error={}", sentence.replace('\n', " "));
    }
}

fn build() -> Result<(), String> {
    let dpdk = pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk");
    println!("cargo::rustc-env=DPDK_VERSION={}", dpdk.map_err(|_| NO_DPDK)?.version);
    println!("cargo::rustc-env=RUSTC_VERSION={}", rustc_version()?);
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let program = Path::new(&out).join("zero-copy-chain");
    compile(&program)?;
    println!("cargo::rustc-env=ZERO_COPY_CHAIN={}", program.display());
    Ok(())
}

/// With the flags that Debian's testpmd was compiled with, as far as they matter: pkg-config's `-march`, and `-O3`.
fn compile(program: &Path) -> Result<(), String> {
    let mut compiler =
        cc::Build::new().opt_level(3).try_get_compiler().map_err(|error| error.to_string())?.to_command();
    compiler.args(["-Wall", "-Wextra", "-Werror", "-pthread"]).args(pkg_config("--cflags")?);
    compiler.arg(SOURCE).arg("-o").arg(program).args(pkg_config("--libs")?);
    let output = compiler.output().map_err(|error| format!("{compiler:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{SOURCE} does not compile: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn pkg_config(what: &str) -> Result<Vec<String>, String> {
    let words = stdout(Command::new("pkg-config").args([what, "libdpdk"]))?;
    Ok(words.split_whitespace().map(str::to_owned).collect())
}

fn rustc_version() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").ok_or("cargo sets RUSTC")?;
    let version = stdout(Command::new(rustc).arg("--version"))?;
    Ok(version.trim().trim_start_matches("rustc ").to_owned())
}

fn stdout(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
