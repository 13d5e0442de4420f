//! The system calls of each role. What a call opens or changes is limited by its arguments where these decide.

use pinion_confinement::system_calls::{Allowed, Argument, Sysno};

use super::thread_role::ThreadRole;

/// Returns the calls of a role.
pub(super) fn allowed(role: ThreadRole) -> Allowed {
    match role {
        ThreadRole::DataPath => data_path(),
        ThreadRole::Launcher => launcher(),
        // Nothing that opens anything. Offload threads ring the doorbells of workers, which are open.
        ThreadRole::Ticker | ThreadRole::Offload => with_memory(every_thread()),
        ThreadRole::Service => service(),
        ThreadRole::Driver => driver(),
        ThreadRole::Control => control(),
    }
}

/// What every thread does: waiting for others, the end of a signal handler, its own end, and that of the process with a reason.
#[rustfmt::skip] // As lists.
fn every_thread() -> Allowed {
    use Sysno::*;
    let own_process = Argument::is(0, rustix::process::getpid().as_raw_pid().cast_unsigned());
    let calls = [
        read, write, close, futex, sched_yield, clock_gettime, clock_nanosleep, nanosleep, restart_syscall, rt_sigreturn, rt_sigprocmask,
        sigaltstack, gettid, getpid, exit, exit_group, getrandom, rseq, set_robust_list, membarrier, getcpu, capget, ppoll, poll,
        sched_getaffinity,
    ];
    // Handlers of faults that are no guest's give way to the default, which ends the process, and so does `abort`.
    let ends = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    let allowed = Allowed::calls(&calls).and_if(tgkill, &[own_process]);
    let allowed = without_signals_to_others(allowed).and_if(prctl, &[Argument::is(0, libc::PR_GET_NO_NEW_PRIVS.cast_unsigned())]);
    ends.into_iter()
        .fold(allowed, |allowed, signal| allowed.and_if(rt_sigaction, &[Argument::is(0, signal.cast_unsigned())]))
        // Signals are blocked while a thread is started, and a refusal that is a signal would end the process.
        .and_deny_if(clone, &[of_a_thread()])
}

/// Denies what has the kernel send signals to other processes, or types into a terminal, where `ioctl` and `fcntl` are allowed.
fn without_signals_to_others(calls: Allowed) -> Allowed {
    const OF_IOCTL: [u64; 5] = [FIOSETOWN, SIOCSPGRP, libc::FIOASYNC, libc::TIOCSTI, libc::TIOCLINUX];
    const OF_FCNTL: [i32; 3] = [libc::F_SETOWN, F_SETSIG, F_SETOWN_EX];
    let deny = |calls: Allowed, call, request: u32| calls.and_deny_if(call, &[Argument::is(1, request)]);
    let calls = OF_IOCTL.into_iter().fold(calls, |calls, request| deny(calls, Sysno::ioctl, request as u32));
    OF_FCNTL.into_iter().fold(calls, |calls, request| deny(calls, Sysno::fcntl, request.cast_unsigned()))
}

/// Requests of `ioctl`, and options of `fcntl`.
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;

/// The flags of a thread.
fn of_a_thread() -> Argument {
    Argument::has_all_of(0, (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64)
}

/// Adds memory that cannot be executed.
fn with_memory(calls: Allowed) -> Allowed {
    let not_executable = Argument::has_none_of(2, libc::PROT_EXEC as u64);
    calls
        .and(&[Sysno::munmap, Sysno::madvise, Sysno::brk, Sysno::mremap])
        .and_if(Sysno::mmap, &[not_executable])
        .and_if(Sysno::mprotect, &[not_executable])
}

/// Adds the node's own files, of which Landlock says where they are.
#[rustfmt::skip] // As lists.
fn with_files(calls: Allowed) -> Allowed {
    use Sysno::*;
    calls.and(&[
        openat, open, stat, lstat, fstat, statx, newfstatat, readlink, readlinkat, access, faccessat, faccessat2, statfs, fstatfs, getcwd,
        lseek, pread64, pwrite64, readv, writev, preadv, pwritev, copy_file_range, fadvise64, fcntl, flock,
        fsync, fdatasync, ftruncate, fallocate, getdents64, mkdir, mkdirat, rmdir, unlink, unlinkat, rename, renameat, renameat2, linkat,
    ])
}

/// Nothing that opens anything: devices that are open, the doorbell, and sleep until a deadline.
#[rustfmt::skip] // As lists.
fn data_path() -> Allowed {
    use Sysno::*;
    with_memory(every_thread())
        // With what packet sockets have lost, and errors that wait at them. By `sendmsg` it asks the supervisor for devices. The address of
        // such a message lies in memory, so holding that of `sendto` to none would keep nothing from being sent.
        .and(&[readv, writev, recvfrom, sendto, recvmsg, sendmsg, getsockopt, ioctl, pread64, pwrite64, timerfd_settime])
}

/// The memory of instances, and the code of templates, which it maps when they are needed.
fn launcher() -> Allowed {
    use Sysno::*;
    with_files(with_memory(every_thread())).and(&[ioctl, timerfd_settime, mmap, mprotect])
}

fn service() -> Allowed {
    use Sysno::*;
    with_memory(every_thread()).and(&[openat, fstat, statx, newfstatat, lseek, pread64, fcntl, writev])
}

/// Interrupts and alarms of devices.
fn driver() -> Allowed {
    use Sysno::*;
    with_memory(every_thread()).and(&[
        epoll_wait,
        epoll_pwait,
        epoll_ctl,
        epoll_create1,
        recvmsg,
        sendmsg,
        readv,
        ioctl,
        pread64,
        pwrite64,
        timerfd_settime,
    ])
}

/// An option of `prctl` since Linux 6.4, by which a thread asks how large a signal stack has to be.
const PR_GET_AUXV: u32 = 0x4155_5856;

/// The API's connections, pipes to builders, the node's files, the code of templates, and threads of its own.
#[rustfmt::skip] // As lists.
fn control() -> Allowed {
    use Sysno::*;
    with_files(with_memory(every_thread()))
        .and(&[
            accept4, recvfrom, recvmsg, sendto, sendmsg, shutdown, getsockopt, setsockopt, getsockname, getpeername,
            epoll_wait, epoll_pwait, epoll_ctl, epoll_create1, eventfd2, timerfd_settime, pipe2, ioctl, dup,
        ])
        .and(&[mmap, mprotect])
        .without_denial(clone)
        .and_if(clone, &[of_a_thread()])
        .and_if(prctl, &[Argument::is(0, libc::PR_SET_NAME.cast_unsigned())])
        .and_if(prctl, &[Argument::is(0, PR_GET_AUXV)])
        .and(&[sched_setaffinity, geteuid])
        // Reads its own limits.
        .and_if(prlimit64, &[Argument::is(0, 0), Argument { index: 2, mask: u64::MAX, value: 0 }])
}
