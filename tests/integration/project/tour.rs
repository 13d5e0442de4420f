//! What `make run` starts, and the commands that the README gives for it.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use pinion_tests::machine::process::output;
use pinion_tests::network::bed::turn;
use pinion_tests::product::build::workspace;
use pinion_tests::product::tour::Tour;
use pinion_tests::until::{SOON, until};

const TRACES: [&str; 3] = ["/run/netns/pinion", "/run/pinion/pinion.sock", "/sys/class/net/pinion0"];
fn traces() -> Vec<&'static str> {
    TRACES.into_iter().filter(|path| Path::new(path).exists()).collect()
}

/// Returns the command lines that contain the path of a folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
    let commands = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    commands.filter(|command| command.contains(&*folder.to_string_lossy())).collect()
}

/// Returns the commands that the README tells users to paste while the tour's node runs.
fn pasted() -> String {
    let readme = fs::read_to_string(workspace().join("README.md")).expect("there is a README");
    let tour = readme.split("\n## ").find(|chapter| chapter.starts_with("A tour of five minutes"));
    let block = tour.and_then(|tour| tour.split("```sh\n").nth(1)?.split("```").next());
    block.expect("the README's tour has a block of commands").to_owned()
}

#[test]
fn the_tour_shows_an_fwp_of_each_client_works_when_pasted_and_leaves_nothing() {
    let _turn = turn();
    let mut tour = Tour::start();
    for client in ["10.77.0.1", "10.77.0.11", "10.77.0.12", "fd77::1"] {
        let fwps = tour.shown.lines().filter(|line| line.split_whitespace().any(|word| word == client));
        let of_pings = fwps.filter(|line| line.split_whitespace().take(2).eq(["demo", "echo"]));
        assert_eq!(of_pings.count(), 1, "{client}:\n{}", tour.shown);
    }
    for said in ["<h1>Hello from an instance of your own</h1>", "VALUE color 0 4"] {
        assert!(tour.shown.contains(said), "no {said:?} in:\n{}", tour.shown);
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
        "<h1>Hello from an instance of your own</h1>",
        "STORED",
        "VALUE color 0 4",
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
    // As a terminal does on Ctrl-C.
    tour.interrupt();
    until("end of the tour", SOON, || tour.ended());
    assert_eq!(traces(), Vec::<&str>::new());
    assert!(!folder.exists(), "{} is still there", folder.display());
    assert_eq!(processes_of(&folder), Vec::<String>::new());
}

#[test]
fn a_tour_that_cannot_start_says_why_in_a_sentence_and_leaves_nothing() {
    let _turn = turn();
    let before = traces();
    // The unprivileged user may not be allowed to open the script by its path.
    let script = File::open(workspace().join("samples/tour/run.sh")).expect("the tour is there");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", "bash", "-s"]).current_dir("/").stdin(script);
    let unprivileged = output(&mut command);
    let errors = String::from_utf8_lossy(&unprivileged.stderr);
    assert_eq!(unprivileged.status.code(), Some(2), "{errors}");
    assert!(errors.lines().count() == 1 && errors.contains("root"), "{errors}");
    assert_eq!(traces(), before);
}

#[test]
fn what_a_killed_tour_has_left_is_removed_by_the_next() {
    let _turn = turn();
    let mut killed = Tour::start();
    let folder = killed.folder().to_owned();
    killed.kill();
    until("end of the tour", SOON, || killed.ended());
    until("end of its node", SOON, || processes_of(&folder).is_empty().then_some(()));
    assert_eq!(traces(), ["/run/netns/pinion"]);
    let next = Tour::start();
    drop(next);
    assert_eq!(traces(), Vec::<&str>::new());
    fs::remove_dir_all(folder).expect("a killed tour leaves its folder");
}
