//! Runs a program in namespaces of its own, as another user: it sees no process, no network and no mount of others, and ends with the
//! process that started it.
//!
//! Made for processes with a single thread, such as the node's supervisor. Between fork and exec nothing is allocated, but for kernels before 5.11.
#![allow(unsafe_code)] // Forks.

use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// How far a program is isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Namespaces of its own, and another user.
    OtherUser {
        /// Number of the user and of the group.
        user: u32,
    },
    /// Another user, in the namespaces of the one who starts it: where namespaces may not be made, as in many containers.
    OtherUserOnly {
        /// Number of the user and of the group.
        user: u32,
    },
    /// Namespaces of its own, one of users included: without privileges it can be no other user than the one who starts it.
    OwnUser,
    /// A process of its own only.
    Process,
}

impl Isolation {
    /// Returns the strongest isolation that this process may give, with `user` as the other user, and why it is not the first.
    #[must_use]
    pub fn strongest(user: u32) -> (Self, Option<String>) {
        let other = Self::OtherUser { user };
        let Err(error) = other.tried() else { return (other, None) };
        let weakness = format!("it cannot be another user in namespaces of its own ({error})");
        let lesser = [Self::OtherUserOnly { user }, Self::OwnUser].into_iter().find(|lesser| lesser.tried().is_ok());
        (lesser.unwrap_or(Self::Process), Some(weakness))
    }

    /// Tries it with a process that ends at once.
    fn tried(self) -> io::Result<()> {
        let (report, reports) = io::pipe()?;
        let owner = Owner::of_this_process();
        match fork(self.namespaces())? {
            Forked::Child => end(&self.enter(owner), reports),
            Forked::Parent(process) => {
                drop(reports);
                let entered = read_report(report);
                process.wait()?;
                entered
            }
        }
    }

    fn namespaces(self) -> c_int {
        let own = libc::CLONE_NEWPID
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP;
        match self {
            Self::OtherUser { .. } => own,
            Self::OwnUser => own | libc::CLONE_NEWUSER,
            Self::OtherUserOnly { .. } | Self::Process => 0,
        }
    }

    /// Becomes that user. Called in the new process.
    fn enter(self, owner: Owner) -> io::Result<()> {
        // Ends first when memory is short. Not worth failing for.
        let _ = fs::write("/proc/self/oom_score_adj", "1000");
        if self == Self::OwnUser {
            let Owner { user, group } = owner;
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        }
        // SAFETY: these take numbers, or a list of length zero.
        unsafe {
            // Not a session of its own, as the kernel may schedule sessions apart, and its low priority would count among itself only.
            done(libc::setpgid(0, 0))?;
            if let Self::OtherUser { user } | Self::OtherUserOnly { user } = self {
                // Not the C library's functions: they have all threads of the process change, and this copy knows the threads of its parent, one
                // of which may have been starting another or held the lock of their list.
                done(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) as c_int)?;
                done(libc::syscall(libc::SYS_setresgid, user, user, user) as c_int)?;
                done(libc::syscall(libc::SYS_setresuid, user, user, user) as c_int)?;
            }
            // After the change of the user, which resets it.
            done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
            done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            done(libc::chdir(c"/".as_ptr()))?;
        }
        // Also those of its own namespace of users, and of a root that can be no other user.
        crate::every_thread::drop_capabilities()
    }
}

/// User and group of a process.
#[derive(Debug, Clone, Copy)]
struct Owner {
    user: u32,
    group: u32,
}

impl Owner {
    fn of_this_process() -> Self {
        Self { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() }
    }
}

/// A program to start.
#[derive(Debug)]
pub struct Program<'a> {
    /// The file. It need not be reachable for the other user.
    pub file: BorrowedFd<'a>,
    /// Its arguments, the name included.
    pub arguments: Vec<CString>,
    /// Its environment, as `NAME=value`.
    pub environment: Vec<CString>,
    /// Standard input, output and error. It has no other open file.
    pub stdio: [BorrowedFd<'a>; 3],
}

impl Program<'_> {
    /// Starts it.
    ///
    /// # Errors
    /// The kernel's, of any step up to the program's own start.
    pub fn start(&self, isolation: Isolation) -> io::Result<Process> {
        // Not in the child: if this process has other threads, one may hold the allocator's lock when it is made.
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        let (report, reports) = io::pipe()?;
        let owner = Owner::of_this_process();
        match fork(isolation.namespaces())? {
            Forked::Child => {
                // On success the pipe is closed by the kernel, as nothing is left of this program.
                let started =
                    isolation.enter(owner).and_then(|()| self.become_it(&arguments, &environment, reports.as_fd()));
                end(&started, reports)
            }
            Forked::Parent(process) => {
                drop(reports);
                match read_report(report) {
                    Ok(()) => Ok(process),
                    Err(error) => process.wait().and(Err(error)),
                }
            }
        }
    }

    /// Executes it. Returns only if that fails.
    fn become_it(
        &self,
        arguments: &[*const c_char],
        environment: &[*const c_char],
        reports: BorrowedFd<'_>,
    ) -> io::Result<()> {
        const KEPT_FROM: c_int = 10;
        // SAFETY: copies of descriptors that live until here; pointers to lists that end with null, which live until the call returns.
        unsafe {
            // Out of the way of the numbers that standard input, output and error get.
            let moved = |file: BorrowedFd<'_>| {
                let copy = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, KEPT_FROM);
                done(copy.min(0)).map(|()| copy)
            };
            let [input, output, error] = self.stdio.map(moved);
            for (number, copy) in [(0, input?), (1, output?), (2, error?)] {
                done(libc::dup2(copy, number).min(0))?;
            }
            let (file, reports) = (moved(self.file)?, moved(reports)?);
            // All others close when the program starts, whatever they were opened with.
            if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
                close_all_later()?;
            }
            let _ = reports;
            libc::syscall(
                libc::SYS_execveat,
                file,
                c"".as_ptr(),
                arguments.as_ptr(),
                environment.as_ptr(),
                libc::AT_EMPTY_PATH,
            );
        }
        Err(io::Error::last_os_error())
    }
}

/// Returns a list of texts as `execve` takes it.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// A process that was started. It goes on if this is dropped.
#[derive(Debug)]
pub struct Process {
    handle: OwnedFd,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

impl Process {
    /// Ends it at once, and with it all processes of its namespace.
    pub fn kill(&self) {
        self.signal(rustix::process::Signal::KILL);
    }

    /// Sends it a signal. Does nothing if it has ended.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let _ = rustix::process::pidfd_send_signal(&self.handle, signal);
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self) -> io::Result<Ended> {
        self.ended(rustix::process::WaitIdOptions::EXITED).map(|ended| ended.expect("waited for"))
    }

    /// Returns how it ended; none while it runs.
    ///
    /// # Errors
    /// The kernel's.
    pub fn try_wait(&self) -> io::Result<Option<Ended>> {
        use rustix::process::WaitIdOptions;
        self.ended(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    fn ended(&self, options: rustix::process::WaitIdOptions) -> io::Result<Option<Ended>> {
        let status = rustix::process::waitid(rustix::process::WaitId::PidFd(self.handle.as_fd()), options)?;
        Ok(status.and_then(|status| {
            status.exit_status().map(Ended::Status).or_else(|| status.terminating_signal().map(Ended::Signal))
        }))
    }
}

impl AsFd for Process {
    /// Returns what becomes readable when it ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Has all files but standard input, output and error close when a program is executed, one by one: for kernels before 5.11.
fn close_all_later() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let number: c_int = entry?.file_name().to_str().and_then(|name| name.parse().ok()).unwrap_or(0);
        if number > 2 {
            // SAFETY: sets a flag of a descriptor.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Closes all files of this process but standard input, output and error, and these. In a copy of a process, before anything else is opened:
/// what owned a file must not be dropped any more.
///
/// # Errors
/// The kernel's.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers = fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let numbers: Vec<c_int> = numbers.collect();
    for number in
        numbers.into_iter().filter(|number| *number > 2 && kept.iter().all(|file| file.as_raw_fd() != *number))
    {
        // SAFETY: as the caller promises, nothing uses it any more. The list's own file is closed already.
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// Has this process read nothing from standard input any more.
///
/// # Errors
/// The kernel's.
pub fn without_input() -> io::Result<()> {
    let nothing = fs::File::open("/dev/null")?;
    // SAFETY: both are open, and standard input has no owner that would close it.
    done(unsafe { libc::dup2(nothing.as_raw_fd(), 0) }.min(0))
}

/// Runs `work` in a process of its own, a copy of this one. The exit status is what it returns. It ends with this process.
///
/// # Errors
/// The kernel's.
///
/// # Panics
/// If this process has other threads: the copy would not have them.
pub fn run_in_copy(work: impl FnOnce() -> u8) -> io::Result<Process> {
    assert_eq!(fs::read_dir("/proc/self/task")?.count(), 1, "a process with other threads cannot be copied");
    let parent = rustix::process::getpid();
    // SAFETY: this process has one thread, so the copy can go on with all that it has. By the C library's function, as the copy starts threads.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: an option with a number.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
            // If the parent ended before that, the kernel sends nothing.
            if rustix::process::getppid() != Some(parent) {
                std::process::exit(1);
            }
            std::process::exit(work().into())
        }
        -1 => Err(io::Error::last_os_error()),
        child => {
            let child = rustix::process::Pid::from_raw(child).expect("a child has a number");
            let handle = rustix::process::pidfd_open(child, rustix::process::PidfdFlags::empty())?;
            Ok(Process { handle })
        }
    }
}

enum Forked {
    Child,
    Parent(Process),
}

/// Forks, into these new namespaces.
fn fork(namespaces: c_int) -> io::Result<Forked> {
    let mut handle: c_int = -1;
    let arguments = libc::clone_args {
        flags: (namespaces | libc::CLONE_PIDFD) as u64,
        pidfd: &raw mut handle as u64,
        exit_signal: libc::SIGCHLD as u64,
        // SAFETY: numbers, for which zero means the default.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: without CLONE_VM the child has a copy of this memory, and goes on on a copy of this stack, as after `fork`.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) } {
        0 => Ok(Forked::Child),
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just made it, and it closes when a program is executed.
        _ => Ok(Forked::Parent(Process { handle: unsafe { OwnedFd::from_raw_fd(handle) } })),
    }
}

/// Ends the child, and tells the parent the error, if there is one.
fn end(result: &io::Result<()>, mut reports: PipeWriter) -> ! {
    if let Err(error) = result {
        let _ = reports.write_all(&error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes());
    }
    // SAFETY: ends the process without running what its parent registered for its own end.
    unsafe { libc::_exit(if result.is_ok() { 0 } else { 127 }) }
}

/// Returns what a child has told; nothing told means that it succeeded.
fn read_report(mut report: PipeReader) -> io::Result<()> {
    let mut error = [0; 4];
    match report.read_exact(&mut error) {
        Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(error))),
        Err(_) => Ok(()),
    }
}

/// Returns what the kernel said of a call that returns 0 if it succeeds.
fn done(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(isolation: Isolation, script: &str) -> (Process, PipeReader) {
        let shell = fs::File::open("/bin/sh").unwrap();
        let (output, writer) = io::pipe().unwrap();
        let input = fs::File::open("/dev/null").unwrap();
        let arguments = ["sh", "-c", script].map(|text| CString::new(text).unwrap()).into();
        let environment = vec![c"PATH=/usr/bin:/bin".to_owned()];
        let stdio = [input.as_fd(), writer.as_fd(), writer.as_fd()];
        let program = Program { file: shell.as_fd(), arguments, environment, stdio };
        (program.start(isolation).unwrap(), output)
    }

    fn said(isolation: Isolation, script: &str) -> (String, Ended) {
        let (process, mut output) = start(isolation, script);
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        (text, process.wait().unwrap())
    }

    #[test]
    fn an_isolated_program_is_alone_and_without_privileges() {
        let (isolation, _) = Isolation::strongest(65_533);
        let script = "echo $$; ls /sys/class/net; id -u; cat /proc/self/oom_score_adj; grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /proc/self/fd | wc -l";
        let (text, ended) = said(isolation, script);
        assert_eq!(ended, Ended::Status(0), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[2].contains("1000")), ("1", false), "{text}");
        if let Isolation::OtherUser { user } = isolation {
            assert!(lines.contains(&user.to_string().as_str()) && lines.contains(&"1000"), "{text}");
            assert!(lines.contains(&"CapEff:\t0000000000000000"), "{text}");
        }
        assert!(lines.contains(&"NoNewPrivs:\t1"), "{text}");
    }

    #[test]
    fn a_program_starts_while_other_threads_start_and_end() {
        let (isolation, _) = Isolation::strongest(65_533);
        // Gone when this test ends, also if it fails.
        let (_running, ends) = std::sync::mpsc::channel::<()>();
        let others = std::thread::spawn(move || {
            while ends.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                std::thread::spawn(|| {}).join().unwrap();
            }
        });
        for program in 0..200 {
            assert_eq!(said(isolation, "exit 0").1, Ended::Status(0), "{program}");
        }
        assert!(!others.is_finished(), "threads started and ended all the time");
    }

    #[test]
    fn the_end_of_a_program_is_told_and_it_can_be_killed() {
        let isolation = Isolation::Process;
        assert_eq!(said(isolation, "exit 7").1, Ended::Status(7));
        assert_eq!(said(isolation, "kill -ABRT $$").1, Ended::Signal(libc::SIGABRT));
        let (process, _output) = start(isolation, "exec sleep 600");
        assert_eq!(process.try_wait().unwrap(), None);
        process.kill();
        assert_eq!(process.wait().unwrap(), Ended::Signal(libc::SIGKILL));
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_an_error() {
        let file = fs::File::open("/dev/null").unwrap();
        let stdio = [file.as_fd(); 3];
        let program = Program { file: file.as_fd(), arguments: Vec::new(), environment: Vec::new(), stdio };
        let error = program.start(Isolation::Process).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    }
}
