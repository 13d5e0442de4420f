//! What `make run` starts, and what the README has people type beside it.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pinion_tests::bed::turn;
use pinion_tests::build::{program, workspace};
use pinion_tests::process::{output, require_root};
use pinion_tests::until::{SOON, until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const TRACES: [&str; 3] = ["/run/netns/pinion", "/run/pinion/pinion.sock", "/sys/class/net/pinion0"];
const LAST_WORDS: &str = "Its configuration is ";

/// The tour, told to stop when dropped.
struct Tour {
    script: Child,
    /// What it has shown.
    shown: String,
}

impl Tour {
    /// Starts it and waits until it has nothing more to show.
    #[track_caller]
    fn start() -> Self {
        require_root();
        // It runs what is in the workspace's own target folder.
        assert!(program("piniond").exists());
        // Who is run in the background is deaf to interrupts, and so are its children, unless told otherwise.
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

    /// Where its node's configuration is.
    fn folder(&self) -> &Path {
        let line = self.shown.lines().last().and_then(|line| line.strip_prefix(LAST_WORDS));
        let path = line.and_then(|line| line.split(',').next()).expect("it says where its configuration is");
        Path::new(path).parent().expect("a file is in a folder")
    }

    fn ended(&mut self) -> Option<()> {
        self.script.try_wait().expect("a child can be waited for").map(|_| ())
    }
}

impl Drop for Tour {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.script), Signal::TERM);
        let _ = self.script.wait();
    }
}

fn traces() -> Vec<&'static str> {
    TRACES.into_iter().filter(|path| Path::new(path).exists()).collect()
}

/// What the README has people paste while the tour's node is up.
fn pasted() -> String {
    let readme = fs::read_to_string(workspace().join("README.md")).expect("there is a README");
    let tour = readme.split("\n## ").find(|chapter| chapter.starts_with("A tour of five minutes"));
    let block = tour.and_then(|tour| tour.split("```sh\n").nth(1)?.split("```").next());
    block.expect("the README's tour has a block of commands").to_owned()
}

#[test]
fn the_tour_shows_an_fwp_of_each_client_works_when_pasted_and_leaves_nothing() {
    let _turn = turn();
    assert_eq!(traces(), Vec::<&str>::new(), "the tour is running already");
    let mut tour = Tour::start();
    for client in ["10.77.0.1", "10.77.0.11", "10.77.0.12", "fd77::1"] {
        let fwps = tour.shown.lines().filter(|line| line.split_whitespace().any(|word| word == client));
        assert_eq!(fwps.filter(|line| line.starts_with("demo ")).count(), 1, "{client}:\n{}", tour.shown);
    }

    let mut shell = Command::new("bash");
    let output = output(shell.args(["-c", &format!("exec 2>&1\n{}", pasted())]).current_dir(workspace()));
    let typed = String::from_utf8_lossy(&output.stdout);
    let mut rest = &*typed;
    for expected in [
        "3 packets transmitted, 3 received",
        "10.77.0.13",
        "Desired state:",
        "3 packets transmitted, 3 received",
        "rule/ping deleted",
        "1 packets transmitted, 0 received",
        "rule/ping created",
        "1 packets transmitted, 1 received",
        "/tmp/mistake.toml:",
        "polcy",
    ] {
        let found = rest.find(expected).unwrap_or_else(|| panic!("no {expected:?} where it belongs in:\n{typed}"));
        rest = &rest[found + expected.len()..];
    }

    let folder = tour.folder().to_owned();
    assert!(folder.join("piniond.toml").exists());
    // What a terminal does on Ctrl-C.
    kill_process_group(Pid::from_child(&tour.script), Signal::INT).expect("a child can be signalled");
    until("end of the tour", SOON, || tour.ended());
    assert_eq!(traces(), Vec::<&str>::new());
    assert!(!folder.exists(), "{} is still there", folder.display());
    let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
    let commands = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    let of_tour = |command: &String| command.contains(&*folder.to_string_lossy());
    assert_eq!(commands.filter(of_tour).collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_tour_that_cannot_start_says_why_in_a_sentence_and_leaves_nothing() {
    let _turn = turn();
    assert_eq!(traces(), Vec::<&str>::new(), "the tour is running already");
    // Nobody may not be allowed to open it.
    let script = File::open(workspace().join("samples/tour/run.sh")).expect("the tour is there");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", "bash", "-s"]).current_dir("/").stdin(script);
    let nobody = output(&mut command);
    let errors = String::from_utf8_lossy(&nobody.stderr);
    assert_eq!(nobody.status.code(), Some(2), "{errors}");
    assert!(errors.lines().count() == 1 && errors.contains("root"), "{errors}");
    assert_eq!(traces(), Vec::<&str>::new());
}
