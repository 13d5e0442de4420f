//! What the builder gives up before it reads a byte of a module: files, and all system calls but those for memory, its pipes and its threads.
//!
//! A compiler is a large program that parses foreign bytes. If a module takes it over, it can write a wrong answer into its pipe, and nothing
//! else: no file, no socket, no other process. The node or `pinion check` adds what a process cannot do to itself: see the supervisor.

use pinion_confinement::files::FileRules;
use pinion_confinement::system_calls::{Allowed, Argument, Otherwise, Sysno};

/// Gives up these rights on the calling thread, and on those that it starts from here on.
///
/// # Errors
/// A sentence, if the kernel refuses.
pub fn enter() -> anyhow::Result<()> {
    // Without Landlock the filter alone keeps it from opening files.
    FileRules::default().enter().map_err(anyhow::Error::msg)?;
    allowed().filter(Otherwise::Kill).and_then(|filter| filter.enter()).map_err(anyhow::Error::msg)
}

/// An option of `prctl` since Linux 6.4.
const PR_GET_AUXV: u32 = 0x4155_5856;

fn allowed() -> Allowed {
    use Sysno::*;
    let own_process = Argument::is(0, rustix::process::getpid().as_raw_pid().cast_unsigned());
    let is_thread = Argument::has_all_of(0, (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64);
    Allowed::calls(&[
        // Its pipes, and what it has open.
        read,
        write,
        writev,
        pread64,
        close,
        lseek,
        fstat,
        poll,
        ppoll,
        // Memory.
        mmap,
        munmap,
        mremap,
        mprotect,
        madvise,
        brk,
        // Time, threads and their ends.
        clock_gettime,
        clock_nanosleep,
        nanosleep,
        futex,
        sched_yield,
        sched_getaffinity,
        gettid,
        getpid,
        getrandom,
        restart_syscall,
        set_robust_list,
        rseq,
        exit,
        exit_group,
        rt_sigaction,
        rt_sigprocmask,
        rt_sigreturn,
        sigaltstack,
        membarrier,
        getcpu,
    ])
    .and_if(tgkill, &[own_process])
    .and_if(clone, &[is_thread])
    // Threads set their name, and ask how large a signal stack has to be.
    .and_if(prctl, &[Argument::is(0, libc::PR_SET_NAME.cast_unsigned())])
    .and_if(prctl, &[Argument::is(0, PR_GET_AUXV)])
    // To enter the filter itself.
    .and_if(prctl, &[Argument::is(0, libc::PR_SET_NO_NEW_PRIVS.cast_unsigned())])
    // The libraries look for limits of the machine and do without.
    .and_deny(&[openat, open, statx, newfstatat, readlink, access])
}
