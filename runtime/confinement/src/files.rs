//! Which files and connections a process can still reach (Landlock): those beneath a few directories, and what it has open already.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};

/// The version of the kernel's interface that is asked for: Linux 6.12. An older kernel gives what it has.
const INTERFACE: ABI = ABI::V6;

/// What may be done beneath directories. What is not listed may not be opened, made, renamed or removed; files that are open already are not
/// affected. Nothing may be executed, no TCP port bound and no TCP peer connected to, and no abstract Unix socket of another process.
#[derive(Debug, Clone, Default)]
pub struct FileRules {
    /// Files and directories that may be read.
    pub read: Vec<PathBuf>,
    /// Directories beneath which files may be read, written, made, renamed and removed.
    pub write: Vec<PathBuf>,
}

impl FileRules {
    /// Returns the rules in the kernel's form, for threads to enter; none if this kernel has no Landlock, or has it turned off. Paths that
    /// do not exist are left out.
    ///
    /// # Errors
    /// The kernel's, as a sentence.
    pub fn ruleset(&self) -> Result<Option<OwnedFd>, String> {
        let failed = |error: landlock::RulesetError| format!("Landlock: {error}");
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(INTERFACE))
            .and_then(|rules| rules.handle_access(AccessNet::from_all(INTERFACE)))
            .and_then(|rules| rules.scope(Scope::AbstractUnixSocket))
            .and_then(Ruleset::create)
            .map_err(failed)?;
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let of_files = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
        let write = read
            | of_files
            | AccessFs::MakeReg
            | AccessFs::MakeDir
            | AccessFs::RemoveFile
            | AccessFs::RemoveDir
            | AccessFs::Refer;
        for (paths, access) in [(&self.read, read), (&self.write, write)] {
            for path in paths {
                let Ok(opened) = PathFd::new(path) else { continue };
                let access = if path.is_dir() { access } else { access & of_files };
                ruleset = ruleset.add_rule(PathBeneath::new(opened, access)).map_err(failed)?;
            }
        }
        Ok(ruleset.into())
    }

    /// Enters the rules on the calling thread, for good. Threads that it starts inherit them. Returns whether the kernel has Landlock.
    ///
    /// # Errors
    /// The kernel's, as a sentence.
    pub fn enter(&self) -> Result<bool, String> {
        let Some(ruleset) = self.ruleset()? else { return Ok(false) };
        crate::every_thread::set_no_new_privileges()
            .and_then(|()| crate::every_thread::restrict_files(&ruleset))
            .map_err(|error: io::Error| format!("Landlock: {error}"))?;
        Ok(true)
    }
}
