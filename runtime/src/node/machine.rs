//! Checks the machine's settings. Settings with which a node cannot work are refused when it starts; those with which it works badly are
//! warnings for the operator, in each status, since they can change meanwhile (`swapon`). Both say what to set.
//!
//! [`MachineFacts::read`] reads the settings; the rest depends only on the text that was read.

use std::fs;

use crate::memory::pressure::cgroup_path;
use crate::node::config::NodeConfig;

/// Memory mappings that a process needs besides those of FWPs, and mappings of one FWP.
const MAPPINGS_BASE: u64 = 4096;
const MAPPINGS_PER_FWP: u64 = 6;
/// Memory for packets: per buffer, for DPDK itself, and per port.
const BUFFER_BYTES: u64 = 2560;
const DPDK_BYTES: u64 = 32 << 20;
const PORT_BYTES: u64 = 8 << 20;
/// The bit number of the capability to lock memory beyond the limit.
const CAP_IPC_LOCK: u32 = 14;

/// A node's requirements of the machine.
#[derive(Debug, Clone, Copy)]
pub struct MachineRequirements {
    /// Most FWPs at a time.
    pub fwps_max: u64,
    /// Memory for packets, in bytes.
    pub packet_bytes: u64,
    /// Whether it may lock memory beyond the limit when its devices are opened. It gives up that right afterwards.
    pub may_lock: bool,
}

impl MachineRequirements {
    /// Returns the requirements of a node with this configuration, on this machine as it starts.
    #[must_use]
    pub fn of(config: &NodeConfig, machine: &MachineFacts) -> Self {
        let packet_bytes =
            BUFFER_BYTES * u64::from(config.limits.buffers) + DPDK_BYTES + PORT_BYTES * config.ports.len() as u64;
        Self { fwps_max: u64::from(config.limits.fwps_max), packet_bytes, may_lock: machine.may_lock() }
    }
}

/// The contents of files of the kernel; empty for a file that cannot be read.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// `/proc/sys/vm/max_map_count`
    pub max_map_count: String,
    /// `/proc/sys/vm/overcommit_memory`
    pub overcommit_memory: String,
    /// `/proc/swaps`
    pub swaps: String,
    /// `memory.swap.max` of the process's cgroup
    pub cgroup_swap_max: String,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`
    pub transparent_hugepage: String,
    /// `/proc/self/limits`
    pub limits: String,
    /// `/proc/self/status`
    pub status: String,
}

impl MachineFacts {
    /// Reads the files, for this machine and process.
    #[must_use]
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cgroup = cgroup_path(&text("/proc/self/cgroup"));
        Self {
            max_map_count: text("/proc/sys/vm/max_map_count"),
            overcommit_memory: text("/proc/sys/vm/overcommit_memory"),
            swaps: text("/proc/swaps"),
            cgroup_swap_max: cgroup.map(|path| text(&format!("{path}/memory.swap.max"))).unwrap_or_default(),
            transparent_hugepage: text("/sys/kernel/mm/transparent_hugepage/enabled"),
            limits: text("/proc/self/limits"),
            status: text("/proc/self/status"),
        }
    }

    /// Refuses a machine on which a node cannot run.
    ///
    /// # Errors
    /// Returns the setting at fault, and what to set instead.
    pub fn check(&self) -> Result<(), String> {
        self.overcommit()
    }

    /// Returns what an operator should change about the machine, a sentence each.
    #[must_use]
    pub fn warnings(&self, needs: &MachineRequirements) -> Vec<String> {
        let found = [self.mappings(needs), self.swap(), self.locked_memory(needs), self.huge_pages()];
        found.into_iter().flatten().collect()
    }

    fn overcommit(&self) -> Result<(), String> {
        match self.overcommit_memory.trim() {
            "2" => Err(
                "vm.overcommit_memory is 2: the kernel then counts address space as memory, and each FWP reserves 4 GiB \
                        of address space: run `sysctl -w vm.overcommit_memory=0`"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    fn mappings(&self, needs: &MachineRequirements) -> Option<String> {
        let fwps_max = needs.fwps_max;
        let needed = MAPPINGS_BASE + MAPPINGS_PER_FWP * fwps_max;
        let allowed: u64 = self.max_map_count.trim().parse().ok()?;
        (needed > allowed).then(|| {
            format!(
                "vm.max_map_count is {allowed}, and {fwps_max} FWPs can need {needed}: run `sysctl -w \
                 vm.max_map_count={needed}`"
            )
        })
    }

    /// Returns whether the process's pages may be swapped out.
    #[must_use]
    pub fn may_swap(&self) -> bool {
        self.swaps().is_some()
    }

    /// Returns the swap devices in use; none if the process's cgroup may not swap.
    fn swaps(&self) -> Option<String> {
        let devices: Vec<&str> = self.swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        let is_used = !devices.is_empty() && self.cgroup_swap_max.trim() != "0";
        is_used.then(|| devices.join(", "))
    }

    fn swap(&self) -> Option<String> {
        let devices = self.swaps()?;
        Some(format!(
            "swap is on ({devices}): memory of functions can be written there and outlive them, reading it back stalls a worker, \
             and the memory of ended instances takes longer to reset: run `swapoff -a`, or give the service MemorySwapMax=0"
        ))
    }

    /// Warns of a limit of locked memory below the memory for packets, which network cards bound to vfio-pci, and net_af_xdp on older
    /// kernels, lock.
    fn locked_memory(&self, needs: &MachineRequirements) -> Option<String> {
        let line = self.limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        let allowed: u64 = line.split_whitespace().next()?.parse().ok()?;
        (needs.packet_bytes > allowed && !needs.may_lock).then(|| {
            format!(
                "RLIMIT_MEMLOCK is {} KiB, and devices may want to lock the {} KiB that packets have: run `ulimit -l \
                 unlimited`, or give the service LimitMEMLOCK=infinity",
                allowed / 1024,
                needs.packet_bytes / 1024
            )
        })
    }

    /// Returns whether the process may lock memory beyond the limit.
    fn may_lock(&self) -> bool {
        let capabilities = self.status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
        (capabilities >> CAP_IPC_LOCK) & 1 == 1
    }

    fn huge_pages(&self) -> Option<String> {
        self.transparent_hugepage.contains("[always]").then(|| {
            "transparent huge pages are always on: an FWP that writes to a few pages can take 2 MiB for each: run `echo \
             madvise > /sys/kernel/mm/transparent_hugepage/enabled`"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: MachineRequirements = MachineRequirements { fwps_max: 4096, packet_bytes: 64 << 20, may_lock: false };

    fn good() -> MachineFacts {
        MachineFacts {
            max_map_count: "65530\n".into(),
            overcommit_memory: "0\n".into(),
            swaps: "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n".into(),
            cgroup_swap_max: "max\n".into(),
            transparent_hugepage: "always [madvise] never\n".into(),
            limits: "Limit                     Soft Limit           Hard Limit           Units     \n\
                     Max locked memory         unlimited            unlimited            bytes     \n"
                .into(),
            status: "Name:\tpiniond\nCapEff:\t0000000000000000\n".into(),
        }
    }

    #[test]
    fn a_suitable_machine_and_one_whose_files_cannot_be_read_have_no_warnings() {
        for facts in [good(), MachineFacts::default()] {
            assert_eq!((facts.check(), facts.warnings(&NEEDS)), (Ok(()), Vec::new()));
        }
    }

    #[test]
    fn each_unsuitable_setting_is_one_warning_with_its_value_and_what_to_do() {
        let swaps = format!("{}/dev/sda2  partition  8388604  0  -2\n/swap file 1 0 -3\n", good().swaps);
        let locked = good().limits.replacen("unlimited", "8388608  ", 1);
        let mappings = MachineFacts { max_map_count: "28671".into(), ..good() };
        let swap = MachineFacts { swaps, ..good() };
        let locked = MachineFacts { limits: locked, ..good() };
        let huge_pages = MachineFacts { transparent_hugepage: "[always] madvise never".into(), ..good() };
        let cases = [
            (mappings, "vm.max_map_count is 28671, and 4096 FWPs can need 28672", "sysctl -w vm.max_map_count=28672"),
            (swap, "swap is on (/dev/sda2, /swap)", "swapoff -a"),
            (locked, "RLIMIT_MEMLOCK is 8192 KiB, and", "lock the 65536 KiB"),
            (huge_pages, "transparent huge pages are always on", "echo madvise >"),
        ];
        for (facts, begins, contains) in cases {
            let warnings = facts.warnings(&NEEDS);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].starts_with(begins) && warnings[0].contains(contains), "{warnings:?}");
        }
    }

    #[test]
    fn swap_forbidden_by_the_cgroup_and_limits_lifted_by_a_capability_do_not_count() {
        let mut facts = good();
        facts.swaps.push_str("/dev/sda2 partition 1 0 -2\n");
        facts.cgroup_swap_max = "0\n".into();
        facts.limits = facts.limits.replace("unlimited", "65536");
        let started = MachineFacts { status: "CapEff:\t0000000000004000\n".into(), ..good() };
        let needs = MachineRequirements { may_lock: started.may_lock(), ..NEEDS };
        assert_eq!((facts.warnings(&NEEDS).len(), facts.warnings(&needs)), (1, Vec::new()));
    }

    #[test]
    fn strict_overcommit_accounting_is_refused_and_other_modes_are_not() {
        for (mode, fits) in [("0", true), ("1", true), ("2", false)] {
            let facts = MachineFacts { overcommit_memory: format!("{mode}\n"), ..good() };
            assert_eq!(facts.check().is_ok(), fits, "{mode}");
        }
        let refusal = MachineFacts { overcommit_memory: "2".into(), ..good() }.check().unwrap_err();
        assert!(refusal.contains("sysctl -w vm.overcommit_memory=0"), "{refusal}");
    }

    #[test]
    fn the_cgroup_is_the_one_of_version_2() {
        assert_eq!(cgroup_path("0::/pinion.service\n").as_deref(), Some("/sys/fs/cgroup/pinion.service"));
        assert_eq!(cgroup_path("4:memory:/a\n0::/\n").as_deref(), Some("/sys/fs/cgroup"));
        assert_eq!(cgroup_path("4:memory:/a\n"), None);
    }
}
