//! The machine and the versions of a measurement: the `"env"` of its JSON.

use std::fs;
use std::process::Command;

use anyhow::Context;
use pinion_tests::machine::versions::{commit, first_line};
use pinion_tests::product::build::program;
use serde_json::{Value, json};

use crate::machine::core_distance;
use crate::measurement::outcome::rounded;
use crate::measurement::run::{Cores, Run};

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
        "tuning": run.tuning,
        "seconds": run.time.as_secs(),
        "others_cpu_percent": rounded(run.others.percent_of_a_core()?),
        "pinion": first_line(Command::new(program("piniond")).arg("--version")).map_err(anyhow::Error::msg)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_the_kernels_files_comes_without_its_key() {
        assert!(field("/proc/meminfo", "MemTotal").unwrap().ends_with(" kB"));
        assert_eq!(field("/proc/meminfo", "NoSuchThing"), None);
    }
}
