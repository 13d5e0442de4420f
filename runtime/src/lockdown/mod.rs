//! What the node gives up once its devices and files are open, and before it serves a client: capabilities, privileges of programs, files,
//! core dumps and system calls, on every thread, also DPDK's. So a broken sandbox finds a process that can do little.
//!
//! ```text
//!   main: Lockdown::new(config) -> devices, store, sockets open -> give_up(): every thread, then checked -> chains are followed
//!   any thread: a system call that is not on its list -> EPERM, counted -> log and status
//! ```
//!
//! Each kind of thread ([`thread_role`]) has a list of its own (`calls.rs`). Each measure has a switch in the configuration, and a warning in
//! the status if it is off or does not work here.

mod calls;
mod other_keys;
pub mod refusals;
pub mod thread_role;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pinion_confinement::every_thread::{self, ConfineError, Rights};
use pinion_confinement::files::FileRules;
use pinion_confinement::system_calls::Otherwise;
use pinion_confinement::{refused, threads};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Deserialize;

use self::thread_role::ThreadRole;

/// The user that builders run as: the last number before `nobody`, which no system assigns.
const BUILDER_USER: u32 = 65_533;

/// What is given up; `[confinement]` in the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Confinement {
    /// Whether a supervisor starts the node and its builders, and starts the node again after a crash.
    pub supervisor: bool,
    /// Number of the user and group that builders run as, if the supervisor runs as root.
    pub builder_user: u32,
    /// Whether all capabilities are dropped.
    pub drop_capabilities: bool,
    /// Whether executed programs can no longer give privileges.
    pub no_new_privileges: bool,
    /// Whether each kind of thread has only the system calls that it needs.
    pub system_call_filters: bool,
    /// Whether only the node's own directories can be opened.
    pub file_rules: bool,
}

impl Default for Confinement {
    fn default() -> Self {
        Self {
            supervisor: true,
            builder_user: BUILDER_USER,
            drop_capabilities: true,
            no_new_privileges: true,
            system_call_filters: true,
            file_rules: true,
        }
    }
}

impl Confinement {
    /// Checks that the switches go together.
    ///
    /// # Errors
    /// A sentence that names the key, and what to do.
    pub fn check(&self) -> Result<(), String> {
        if !self.supervisor && (self.system_call_filters || self.file_rules) {
            return Err("confinement.supervisor = false: then the node starts its builders itself, which confinement.system_call_filters and \
                        confinement.file_rules do not allow: set supervisor to true, or these two to false"
                .to_owned());
        }
        let needs = [("system_call_filters", self.system_call_filters), ("file_rules", self.file_rules)];
        match needs.into_iter().find(|(_, is_on)| *is_on && !self.no_new_privileges) {
            Some((key, _)) => Err(format!(
                "confinement.no_new_privileges = false, and confinement.{key} needs it: set it to true, or {key} to false"
            )),
            None if self.builder_user == 0 => Err(
                "confinement.builder_user = 0: builders must not run as root: give the number of an unprivileged user"
                    .to_owned(),
            ),
            None => Ok(()),
        }
    }

    /// Returns a warning for each measure that is off.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let switches = [
            (
                self.supervisor,
                "supervisor",
                "builders run as the node's own user, and a node that crashes is not started again",
            ),
            (
                self.drop_capabilities,
                "drop_capabilities",
                "code that escapes from a sandbox has the node's capabilities",
            ),
            (
                self.no_new_privileges,
                "no_new_privileges",
                "code that escapes from a sandbox can gain privileges by programs",
            ),
            (
                self.system_call_filters,
                "system_call_filters",
                "code that escapes from a sandbox can make any system call",
            ),
            (self.file_rules, "file_rules", "code that escapes from a sandbox can open the files of the node's user"),
        ];
        let off = switches.into_iter().filter(|(is_on, ..)| !is_on);
        off.map(|(_, key, cost)| format!("confinement.{key} is false: {cost}: set it to true")).collect()
    }
}

/// Directories of a node that it still uses once it has given up its rights.
#[derive(Debug, Clone)]
pub struct OwnPaths {
    /// What the node keeps on disk.
    pub state_dir: PathBuf,
    /// Files that are read again when they change.
    pub read: Vec<PathBuf>,
}

/// What the kernel tells about the machine and this process: settings, memory and its pressure, cores.
const KERNEL_FILES: [&str; 12] = [
    "/proc/self",
    "/proc/sys/vm",
    "/proc/sys/kernel/random",
    "/proc/swaps",
    "/proc/pressure",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/cpuinfo",
    "/sys/kernel/mm/transparent_hugepage",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
];

/// Why the node does not start: it could not give up what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockdownError {
    /// A filter or the file rules cannot be made.
    #[error("{0}")]
    Rules(String),
    /// A thread kept its rights.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// The kernel says otherwise.
    #[error("thread {name} still has {what}")]
    Kept {
        /// The thread.
        name: String,
        /// What it still has.
        what: &'static str,
    },
}

/// Warnings about measures of this process that are off or do not work here.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns the warnings about the rights of this process, for the operator, and about calls that threads were refused.
#[must_use]
pub fn warnings() -> Vec<String> {
    let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    warnings.extend(refusals::warnings());
    warnings
}

/// Adds warnings.
pub fn warn(warnings: impl IntoIterator<Item = String>) {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).extend(warnings);
}

/// Has every thread of this process give up its rights, and checks that with the kernel. Threads that start later have no more rights than
/// those that start them. What is off or does not work here is a warning.
///
/// # Errors
/// What could not be given up. Some threads may have given up some of it then: the node must not go on.
pub fn give_up(confinement: &Confinement, paths: &OwnPaths) -> Result<(), LockdownError> {
    warn(confinement.warnings());
    warn(without_core_dumps());
    let mut rights = Rights {
        capabilities: confinement.drop_capabilities,
        privileges: confinement.no_new_privileges,
        ..Rights::default()
    };
    if confinement.file_rules {
        let other_keys = other_keys::warnings(&paths.read);
        other_keys.iter().for_each(|warning| tracing::warn!("{warning}"));
        warn(other_keys);
        rights.files = file_rules(paths).ruleset().map_err(LockdownError::Rules)?;
        if rights.files.is_none() {
            let warning = "this kernel has no Landlock, or has it turned off: code that escapes from a sandbox can open the files of the \
                           node's user: add landlock to the kernel's `lsm=` parameter";
            warn([warning.to_owned()]);
        }
    }
    if confinement.system_call_filters {
        refused::count().map_err(|error| LockdownError::Rules(format!("the signal of refused calls: {error}")))?;
        let filter = |role: &ThreadRole| calls::allowed(*role).filter(Otherwise::Refuse).map(Some);
        rights.filters = ThreadRole::ALL.iter().map(filter).collect::<Result<_, _>>().map_err(LockdownError::Rules)?;
    }
    every_thread::confine(rights)?;
    check(confinement)
}

/// Says where core dumps go: to a file, or to a program if it begins with a bar (core(5)).
const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// Has the kernel write no core dump of this process, which would have tenants' keys. With a limit of one byte it passes none to a program
/// either, whereas it does so with a limit of zero. Returns a warning if that is not possible.
fn without_core_dumps() -> Option<String> {
    let limit = Rlimit { current: Some(1), maximum: Some(1) };
    let error = setrlimit(Resource::Core, limit).err()?;
    // A process without rights cannot raise a limit of zero, which is as good as long as no program gets core dumps.
    let is_off = getrlimit(Resource::Core).maximum == Some(0);
    let goes_to_a_program = fs::read(CORE_PATTERN).map_or(true, |pattern| pattern.starts_with(b"|"));
    (!is_off || goes_to_a_program).then(|| {
        format!(
            "a core dump of the node would have tenants' keys, and cannot be turned off ({error}): start piniond with RLIMIT_CORE at 1"
        )
    })
}

fn file_rules(paths: &OwnPaths) -> FileRules {
    let OwnPaths { state_dir, read } = paths;
    FileRules {
        read: KERNEL_FILES.map(PathBuf::from).into_iter().chain(read.iter().flat_map(|file| folders(file))).collect(),
        write: vec![state_dir.clone()],
    }
}

/// Returns the folders in which a file is looked for by its path: the one that the path names, and where links lead. A file that is replaced
/// by another of its name is another file, so the folders are what has to stay readable.
fn folders(file: &Path) -> Vec<PathBuf> {
    let paths = [std::path::absolute(file), file.canonicalize()];
    paths.into_iter().filter_map(|path| Some(path.ok()?.parent()?.to_owned())).collect()
}

/// Checks what each thread has by what the kernel says of it.
fn check(confinement: &Confinement) -> Result<(), LockdownError> {
    let threads = threads::all().map_err(|error| LockdownError::Rules(format!("the threads of the node: {error}")))?;
    for thread in threads {
        let kept = match () {
            () if confinement.drop_capabilities && thread.capabilities != 0 => "capabilities",
            () if confinement.no_new_privileges && !thread.no_new_privileges => "privileges of programs",
            () if confinement.system_call_filters && !thread.is_filtered => "all system calls",
            () => continue,
        };
        return Err(LockdownError::Kept { name: thread.name, what: kept });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_measures_are_on_by_default_and_each_that_is_off_is_a_warning() {
        let on = Confinement::default();
        assert_eq!((on.check(), on.warnings()), (Ok(()), Vec::new()));
        let off = Confinement {
            supervisor: false,
            drop_capabilities: false,
            no_new_privileges: false,
            system_call_filters: false,
            file_rules: false,
            ..on
        };
        assert_eq!((off.check(), off.warnings().len()), (Ok(()), 5));
        let refused = Confinement { supervisor: false, file_rules: false, ..on }.check().unwrap_err();
        assert!(refused.starts_with("confinement.supervisor = false: "), "{refused}");
        let one = Confinement { file_rules: false, ..on };
        assert!(one.warnings()[0].starts_with("confinement.file_rules is false: "), "{:?}", one.warnings());
    }

    #[test]
    fn filters_and_file_rules_need_no_new_privileges_and_builders_are_not_root() {
        let on = Confinement::default();
        let refused = Confinement { no_new_privileges: false, ..on }.check().unwrap_err();
        assert!(refused.contains("confinement.system_call_filters needs it"), "{refused}");
        let refused = Confinement { no_new_privileges: false, system_call_filters: false, ..on }.check().unwrap_err();
        assert!(refused.contains("confinement.file_rules needs it"), "{refused}");
        assert!(Confinement { builder_user: 0, ..on }.check().is_err());
    }

    #[test]
    fn every_role_has_a_filter() {
        for role in ThreadRole::ALL {
            assert!(calls::allowed(role).filter(Otherwise::Refuse).is_ok(), "{role}");
        }
    }
}
