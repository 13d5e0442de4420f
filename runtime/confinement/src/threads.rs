//! What the kernel says of the rights of each thread of this process.

use std::fs;
use std::io;

/// The rights of a thread, by `/proc/self/task/N/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadRights {
    /// Its name.
    pub name: String,
    /// Its effective, permitted and inheritable capabilities, as bits.
    pub capabilities: u64,
    /// Whether programs that it executes can give it no privileges.
    pub no_new_privileges: bool,
    /// Whether a filter decides about its system calls (seccomp mode 2).
    pub is_filtered: bool,
}

/// Returns the rights of all threads of the calling process. A thread that ends meanwhile is left out.
///
/// # Errors
/// If they cannot be listed.
pub fn all() -> io::Result<Vec<ThreadRights>> {
    let read = |entry: io::Result<fs::DirEntry>| fs::read_to_string(entry.ok()?.path().join("status")).ok();
    Ok(fs::read_dir("/proc/self/task")?.filter_map(read).map(|status| parsed(&status)).collect())
}

fn parsed(status: &str) -> ThreadRights {
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let set = |key: &str| u64::from_str_radix(&value(key), 16).unwrap_or(u64::MAX);
    ThreadRights {
        name: value("Name"),
        capabilities: set("CapEff") | set("CapPrm") | set("CapInh"),
        no_new_privileges: value("NoNewPrivs") == "1",
        is_filtered: value("Seccomp") == "2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_and_what_is_missing_counts_as_not_given_up() {
        let status = "Name:\tcore-1\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                      NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t2\n";
        let confined =
            ThreadRights { name: "core-1".to_owned(), capabilities: 0, no_new_privileges: true, is_filtered: true };
        assert_eq!(parsed(status), confined);
        let free =
            ThreadRights { name: String::new(), capabilities: u64::MAX, no_new_privileges: false, is_filtered: false };
        assert_eq!(parsed(""), free);
    }
}
