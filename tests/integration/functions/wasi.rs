//! WASI preview 1 as C programs see it: through wasi-libc, and call by call. Each case has an instance of its own.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use pinion_tests::machine::process::errors;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use tempfile::TempDir;

/// Makes the files that are deployed with each case.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder for files");
    let path = folder.path();
    fs::create_dir(path.join("folder")).unwrap();
    for (name, text) in [("lines", "one\ntwo\n"), ("digits", "01234567"), ("folder/a", "a"), ("folder/b", "b")] {
        fs::write(path.join(name), text).unwrap();
    }
    folder
}

/// Returns the cases of a guest, as its source lists them.
fn cases(guest: &str) -> Vec<String> {
    let source = build::workspace().join("tests/guests/hostile-c").join(guest).with_extension("c");
    let source = fs::read_to_string(source).expect("the source of the guest");
    let (_, table) = source.split_once("cases[] = {\n").expect("a table of cases");
    let (table, _) = table.split_once("};").expect("an end of the table");
    table.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn is_without_files(case: &str) -> bool {
    case.starts_with("without-files")
}

/// A manifest with a chain for each case of a guest.
fn manifest(guest: &str, folder: &Path, cases: &[String]) -> Manifest {
    let mut manifest = Manifest::of("default").module("cases", &build::hostile(&format!("c_{guest}")));
    for case in cases {
        let files = if is_without_files(case) { String::new() } else { format!(", files = {folder:?}") };
        manifest = manifest.with(format_args!(
            "[[chain]]\nname = \"{case}\"\nstage = [{{ module = \"cases\"{files} }}]\ncache_min = 0\n"
        ));
    }
    manifest
}

fn every_case_holds(guest: &str, count_min: usize) -> Node {
    let (folder, cases) = (folder(), cases(guest));
    assert!(cases.len() >= count_min, "{cases:?}");
    let node = Node::without_devices();
    node.apply(manifest(guest, folder.path(), &cases).text());
    let answer = |case: &String| (case.clone(), node.cli().run(&["invoke", case, "--data", case]));
    let answers: Vec<_> = cases.iter().map(answer).filter(|(_, answer)| answer != "ok").collect();
    assert!(answers.is_empty(), "{answers:#?}");
    node
}

#[test]
fn streams_files_directories_and_clocks_behave_as_posix_specifies_for_c_programs() {
    let node = every_case_holds("libc", 14);
    // Output before a stream is reopened goes to the log, and output after that goes to the file.
    let log = node.cli().run(&["logs", "-A", "--chain", "standard-output-is-reopened"]);
    assert!(log.contains("to the log") && !log.contains("to a file") && !log.contains("an error"), "{log}");
}

#[test]
fn each_call_of_wasi_answers_as_it_is_specified() {
    let node = every_case_holds("wasi", 16);
    let log = node.cli().run(&["logs", "-A", "--chain", "a-stream-goes-on-by-another-number"]);
    assert!(log.contains("said by another number"), "{log}");
}

#[test]
fn closing_a_standard_stream_during_initialisation_is_refused() {
    let node = Node::without_devices();
    let manifest = Manifest::of("default").module("cases", &build::hostile("c_libc"));
    let path = node.path("closing.toml");
    fs::write(&path, manifest.configured_chain("closing", "cases", "close").text()).unwrap();
    let refused = node.cli().try_apply(&path);
    let said = errors(&refused);
    assert!(refused.status.code() == Some(2) && said.contains("it has closed a standard stream"), "{said}");
}
