//! The machine and the versions of a measurement: the `"env"` of its JSON.

use std::fs;
use std::process::Command;

use anyhow::Context;
use pinion_tests::build::{program, workspace};
use serde_json::{Value, json};

use crate::core_distance;
use crate::figure::{Cores, Run};
use crate::outcome::rounded;

/// Reads them from the machine; `node` are the cores of the node's roles. The distance of the cores is that before and after the
/// measurement. No value names a host or a person.
pub(crate) fn env(run: &Run, node: Cores) -> anyhow::Result<Value> {
    let kernel = rustix::system::uname();
    Ok(json!({
        "figure": run.name,
        "machine": kernel.machine().to_string_lossy(),
        "cpu_model": field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        "cpus": std::thread::available_parallelism().context("the number of CPUs")?.get(),
        "memory": field("/proc/meminfo", "MemTotal"),
        "huge_pages": field("/proc/meminfo", "HugePages_Total"),
        "kernel": kernel.release().to_string_lossy(),
        "cores": [run.cores.first, run.cores.second],
        "core_plan": {
            "gateway": node.first,
            "mma": node.first,
            "workers": [node.second],
        },
        "core_round_trip_ns": [run.core_round_trip_ns.map(rounded), core_distance::round_trip_ns(run.cores)?.map(rounded)],
        "seconds": run.time.as_secs(),
        "others_cpu_percent": rounded(run.others.percent_of_a_core()?),
        "pinion": first_line(Command::new(program("piniond")).arg("--version"))?,
        "commit": commit(),
        "dpdk": env!("DPDK_VERSION"),
        "rustc": env!("RUSTC_VERSION"),
    }))
}

/// Returns a value of one of the kernel's `key: value` files.
fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Returns the commit that was built, with a plus if files differ from it.
fn commit() -> String {
    let git = |words: &[&str]| first_line(Command::new("git").arg("-C").arg(workspace()).args(words));
    let Ok(commit) = git(&["log", "-1", "--format=%h"]) else { return "unknown".to_owned() };
    let differs = git(&["status", "--porcelain", "--untracked-files=no"]).is_ok_and(|line| !line.is_empty());
    if differs { format!("{commit}+") } else { commit }
}

fn first_line(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    anyhow::ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_the_kernels_files_comes_without_its_key() {
        assert!(field("/proc/meminfo", "MemTotal").unwrap().ends_with(" kB"));
        assert_eq!(field("/proc/meminfo", "NoSuchThing"), None);
    }
}
