//! The builders under way for one node.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use pinion_builder_client::process::{THREADS, THREADS_KEY};
use pinion_builder_client::supervised::BuilderEnd;
use pinion_confinement::isolated::{Ended, Isolation, Process, Program};
use rustix::event::{PollFd, PollFlags};

use super::SupervisorConfig;
use super::log::say;

/// Most builders at a time. The node asks for fewer: this bounds what a node that was taken over can start.
const BUILDERS_MAX: usize = 32;

/// See the module. Dropping it kills them.
#[derive(Debug)]
pub(super) struct Builders {
    program: PathBuf,
    isolation: Isolation,
    running: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    process: Process,
    /// Takes how it ended. Once the node has closed the other end, it is to be killed.
    status: File,
    is_killed: bool,
}

impl Builders {
    pub(super) fn new(config: &SupervisorConfig, isolation: Isolation) -> Self {
        Self { program: config.builder.clone(), isolation, running: Vec::new() }
    }

    /// Starts a builder with these arguments on these pipes. If that fails, its caller is told.
    pub(super) fn start(&mut self, arguments: Vec<String>, descriptors: Vec<OwnedFd>) {
        // Writing to a pipe that has room, or closing one, never blocks.
        let are_pipes = descriptors.iter().all(is_pipe);
        let descriptors = <[OwnedFd; 4]>::try_from(descriptors).ok().filter(|_| are_pipes);
        let Some([input, output, error, status]) = descriptors else {
            return say("the node has asked for a builder without pipes for it");
        };
        let status = File::from(status);
        match self.started(arguments, [&input, &output, &error]) {
            Ok(process) => self.running.push(Running { process, status, is_killed: false }),
            Err(error) => tell(&status, &BuilderEnd::NotStarted(error.to_string())),
        }
    }

    fn started(&self, arguments: Vec<String>, stdio: [&OwnedFd; 3]) -> io::Result<Process> {
        if self.running.len() >= BUILDERS_MAX {
            return Err(io::Error::other(format!("{BUILDERS_MAX} builders are under way, and no more may be")));
        }
        let file = File::open(&self.program)?;
        let arguments = std::iter::once("pinion-builder".to_owned()).chain(arguments);
        let arguments = arguments.map(|text| CString::new(text).map_err(io::Error::other)).collect::<Result<_, _>>()?;
        let environment = vec![CString::new(format!("{THREADS_KEY}={THREADS}"))?];
        let stdio = stdio.map(AsFd::as_fd);
        Program { file: file.as_fd(), arguments, environment, stdio }.start(self.isolation)
    }

    /// Adds what becomes ready when one has ended or is no longer wanted.
    pub(super) fn add_to<'a>(&'a self, ready: &mut Vec<PollFd<'a>>) {
        for running in &self.running {
            ready.push(PollFd::new(&running.process, PollFlags::IN));
            if !running.is_killed {
                ready.push(PollFd::new(&running.status, PollFlags::empty()));
            }
        }
    }

    /// Tells how those ended that have, and kills those that are no longer wanted.
    pub(super) fn tend(&mut self) {
        self.running.retain_mut(|Running { process, status, is_killed }| {
            if !*is_killed && !is_wanted(status) {
                process.kill();
                *is_killed = true;
            }
            match process.try_wait() {
                Ok(None) => true,
                Ok(Some(ended)) => {
                    tell(
                        status,
                        &match ended {
                            Ended::Status(status) => BuilderEnd::Status(status),
                            Ended::Signal(signal) => BuilderEnd::Signal(signal),
                        },
                    );
                    false
                }
                Err(error) => {
                    say(&format!("a builder cannot be waited for: {error}"));
                    false
                }
            }
        });
    }
}

impl Drop for Builders {
    fn drop(&mut self) {
        for Running { process, .. } in &self.running {
            process.kill();
            // It is being killed, so that takes no time.
            let _ = process.wait();
        }
    }
}

/// Returns whether the node still holds its end of the pipe.
fn is_wanted(status: &File) -> bool {
    let mut ready = [PollFd::new(status, PollFlags::empty())];
    let no_time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut ready, Some(&no_time)).is_ok_and(|count| count == 0)
}

fn is_pipe(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo())
}

/// The node may be gone, and then needs no answer, nor if it has filled the pipe.
fn tell(mut status: &File, end: &BuilderEnd) {
    let mut ready = [PollFd::new(status, PollFlags::OUT)];
    let no_time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut ready, Some(&no_time)).is_ok_and(|count| count > 0) {
        let _ = status.write_all(&serde_json::to_vec(end).expect("it has nothing that JSON has not"));
    }
}
