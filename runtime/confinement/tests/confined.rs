//! A process that gives up its rights, with all its threads. As that is for good, each test is a process of its own: this program again.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use pinion_confinement::every_thread::{self, Rights};
use pinion_confinement::files::FileRules;
use pinion_confinement::refused::{self, RefusedCall};
use pinion_confinement::system_calls::{self, Allowed, Argument, Otherwise, Sysno};
use pinion_confinement::threads;

/// Runs an ignored test of this file in a process of its own; returns whether it succeeded, and its output.
fn run(test: &str) -> (Option<i32>, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", "--ignored", "--nocapture", test]).output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    )
}

/// What a test harness needs beside what a test tries.
fn harmless() -> Allowed {
    use Sysno::*;
    Allowed::calls(&[
        read,
        write,
        close,
        futex,
        mmap,
        munmap,
        mprotect,
        madvise,
        brk,
        exit,
        exit_group,
        sigaltstack,
        rt_sigprocmask,
        rt_sigaction,
        rt_sigreturn,
        openat,
        getdents64,
        fstat,
        statx,
        newfstatat,
        lseek,
        clock_nanosleep,
        nanosleep,
        gettid,
        tgkill,
        getpid,
        prctl,
        seccomp,
        set_robust_list,
        rseq,
        sched_yield,
        sched_getaffinity,
        getrandom,
        clone,
        ioctl,
        fcntl,
    ])
}

#[test]
fn every_thread_gives_up_its_rights_and_those_that_start_later_have_none() {
    let (code, output) = run("confined_threads");
    assert_eq!(code, Some(0), "{output}");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn confined_threads() {
    refused::count().unwrap();
    let (begin, told) = mpsc::channel::<()>();
    let (has_kind, begun) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        every_thread::set_kind(3);
        has_kind.send(()).unwrap();
        told.recv().unwrap();
        // Inherits the rights of this thread.
        thread::spawn(|| File::open("/etc/passwd").is_err() && TcpStream::connect(("127.0.0.1", 9)).is_err()).join()
    });
    begun.recv().unwrap();
    let strict = harmless().filter(Otherwise::Refuse).unwrap();
    let mut filters = vec![None; 4];
    filters[0] = Some(harmless().and(&[Sysno::socket]).filter(Otherwise::Refuse).unwrap());
    filters[3] = Some(strict);
    let files = FileRules { read: vec!["/proc".into()], ..FileRules::default() }.ruleset().unwrap();
    every_thread::confine(Rights { capabilities: true, privileges: true, files, filters }).unwrap();

    for thread in threads::all().unwrap() {
        assert!(thread.capabilities == 0 && thread.no_new_privileges && thread.is_filtered, "{thread:?}");
    }
    begin.send(()).unwrap();
    assert!(other.join().unwrap().unwrap(), "the other thread can still open files or connect");
    let of_other: Vec<RefusedCall> = refused::refused().into_iter().filter(|call| call.kind == 3).collect();
    // The kind is that of the thread that was confined; one that it starts is of none, with the same filter.
    assert_eq!(of_other, []);
    let names: Vec<_> = refused::refused().iter().map(|call| (call.kind, system_calls::name(call.number))).collect();
    assert!(names.contains(&(0, "socket".to_owned())), "{names:?}");
    assert!(fs::read("/etc/passwd").is_err() && fs::read("/proc/self/stat").is_ok());
    assert!(TcpListener::bind("127.0.0.1:0").is_err(), "bind is on no list");
}

#[test]
fn a_call_by_arguments_is_allowed_as_its_conditions_say() {
    let (code, output) = run("arguments");
    assert_eq!(code, Some(0), "{output}");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn arguments() {
    refused::count().unwrap();
    let only_unix = Argument::is(0, libc::AF_UNIX.cast_unsigned());
    let filter = harmless().and_if(Sysno::socket, &[only_unix]).and(&[Sysno::connect]).filter(Otherwise::Refuse);
    filter.unwrap().enter().unwrap();
    assert!(std::os::unix::net::UnixDatagram::unbound().is_ok());
    let refused = std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    assert!(refused::refused().iter().any(|call| system_calls::name(call.number) == "socket" && call.count == 1));
}

#[test]
fn a_process_that_counts_nothing_is_killed_by_what_it_is_refused() {
    let (code, output) = run("killed");
    assert_eq!(code, None, "{output}");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn killed() {
    harmless().filter(Otherwise::Kill).unwrap().enter().unwrap();
    let _ = TcpListener::bind("127.0.0.1:0");
    println!("still there");
}
