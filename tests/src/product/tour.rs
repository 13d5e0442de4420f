//! The tour: what `make run` starts.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::machine::process::require_root;
use crate::product::build::{program, workspace};

const LAST_WORDS: &str = "Its configuration is ";

/// The running tour, which is told to stop when dropped.
pub struct Tour {
    script: Child,
    /// Its output so far.
    pub shown: String,
}

impl Tour {
    /// Starts the tour and waits until its introduction is complete.
    ///
    /// # Panics
    /// If it ends before that.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        require_root();
        // The tour runs the programs in the workspace's own target folder.
        assert!(program("piniond").exists());
        // A shell starts background processes with interrupts ignored, and their children inherit that, so the default is restored here.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(workspace().join("samples/tour/run.sh"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut script = command.spawn().expect("the tour can be started");
        let lines = BufReader::new(script.stdout.take().expect("it is a pipe")).lines();
        let mut tour = Self { script, shown: String::new() };
        for line in lines.map_while(Result::ok) {
            let is_last = line.starts_with(LAST_WORDS);
            tour.shown += &format!("{line}\n");
            if is_last {
                return tour;
            }
        }
        panic!("the tour ended early; its last words are above, and this is what it showed:\n{}", tour.shown);
    }

    /// Returns the folder with its node's configuration.
    ///
    /// # Panics
    /// If it does not say where that is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        let line = self.shown.lines().last().and_then(|line| line.strip_prefix(LAST_WORDS));
        let path = line.and_then(|line| line.split(',').next()).expect("it says where its configuration is");
        Path::new(path).parent().expect("a file is in a folder")
    }

    /// Interrupts it, as a terminal does on Ctrl-C.
    ///
    /// # Panics
    /// If it has ended.
    pub fn interrupt(&self) {
        kill_process_group(Pid::from_child(&self.script), Signal::INT).expect("a child can be signalled");
    }

    /// Kills it, so that it cannot clean up.
    ///
    /// # Panics
    /// If it has ended.
    pub fn kill(&self) {
        kill_process(Pid::from_child(&self.script), Signal::KILL).expect("a child can be signalled");
    }

    /// Returns whether it has ended.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn ended(&mut self) -> Option<()> {
        self.script.try_wait().expect("a child can be waited for").map(|_| ())
    }
}

impl Drop for Tour {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.script), Signal::TERM);
        let _ = self.script.wait();
    }
}
