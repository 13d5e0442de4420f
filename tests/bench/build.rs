//! Compiles the native peers, and passes on what figures depend on: `ZERO_COPY_CHAIN` and others named after their sources are the peers'
//! paths, `DPDK_VERSION` and `RUSTC_VERSION` are for `env.rs`.

use std::path::Path;
use std::process::Command;

/// A program with DPDK.
const ZERO_COPY_CHAIN: &str = "zero_copy_chain";
/// Statically linked programs that need only the C library.
const STATIC: [&str; 5] =
    ["process_start", "started_process", "idle_process", "process_per_client", "resident_processes"];
const NO_DPDK: &str = "DPDK 22.11 or later was not found by pkg-config: `make install` installs it on Debian";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=native");
    if let Err(sentence) = build() {
        println!("cargo::error={}", sentence.replace('\n', " "));
    }
}

fn build() -> Result<(), String> {
    let dpdk = pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk");
    println!("cargo::rustc-env=DPDK_VERSION={}", dpdk.map_err(|_| NO_DPDK)?.version);
    println!("cargo::rustc-env=RUSTC_VERSION={}", rustc_version()?);
    // With the flags of Debian's testpmd that affect speed: pkg-config's `-march`, and `-O3`.
    compile(ZERO_COPY_CHAIN, &pkg_config("--cflags")?, &pkg_config("--libs")?)?;
    STATIC.iter().try_for_each(|name| compile(name, &["-static".to_owned()], &[]))
}

/// Compiles `native/NAME.c`, and sets a variable, named after it in capitals, to the program's path.
fn compile(name: &str, flags: &[String], libraries: &[String]) -> Result<(), String> {
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let (source, program) = (format!("native/{name}.c"), Path::new(&out).join(name.replace('_', "-")));
    let mut compiler =
        cc::Build::new().opt_level(3).try_get_compiler().map_err(|error| error.to_string())?.to_command();
    compiler.args(["-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
    compiler.arg(&source).arg("-o").arg(&program).args(libraries);
    let output = compiler.output().map_err(|error| format!("{compiler:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{source} does not compile: {}", String::from_utf8_lossy(&output.stderr)));
    }
    println!("cargo::rustc-env={}={}", name.to_uppercase(), program.display());
    Ok(())
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
