//! Files deployed with a function: what the function finds with the standard library, what it changes, and how long the changes last.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::ping::poke;
use pinion_tests::until::{SOON, until};
use serde_json::Value;
use tempfile::TempDir;

/// Makes a folder with some files to deploy.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder for files");
    let path = folder.path();
    fs::create_dir_all(path.join("pages/inner")).unwrap();
    fs::write(path.join("greeting"), "hello").unwrap();
    fs::write(path.join("pages/index.html"), "<h1>it works</h1>").unwrap();
    fs::write(path.join("pages/inner/large"), vec![3; 1 << 20]).unwrap();
    folder
}

/// A chain `site` of the guest `files`; `stage` has further keys of its stage, `chain` those of the chain itself.
fn site(stage: &str, chain: &str) -> Manifest {
    let manifest = Manifest::of("default").module("files", &build::hostile("files"));
    manifest.with(format_args!("[[chain]]\nname = \"site\"\nstage = [{{ module = \"files\"{stage} }}]\n{chain}\n"))
}

fn with_files(folder: &Path, chain: &str) -> Manifest {
    site(&format!(", files = {folder:?}"), chain)
}

fn deployed(folder: &TempDir) -> Node {
    let node = Node::without_devices();
    node.apply(with_files(folder.path(), "cache_min = 0").text());
    node
}

#[track_caller]
fn ask(node: &Node, text: &str) -> String {
    node.cli().run(&["invoke", "site", "--data", text])
}

#[track_caller]
fn assert_answers(node: &Node, asked: &[(&str, &str)]) {
    for (text, answer) in asked {
        assert_eq!(ask(node, text), *answer, "{text}");
    }
}

#[track_caller]
fn assert_refused(node: &Node, manifest: &Manifest, sentence: &str) {
    let path = node.path("refused.toml");
    fs::write(&path, manifest.text()).unwrap();
    for output in [node.cli().try_apply(&path), node.cli().output(&["check", path.to_str().unwrap()])] {
        let said = errors(&output);
        assert!(output.status.code() == Some(2) && said.contains(sentence), "{}: {said}", output.status);
    }
}

#[test]
fn a_function_finds_the_files_that_it_was_deployed_with() {
    let folder = folder();
    let node = deployed(&folder);
    assert_answers(
        &node,
        &[
            ("greeting", "hello"),
            ("read /pages/index.html", "<h1>it works</h1>"),
            ("read pages/index.html", "<h1>it works</h1>"),
            ("read pages/inner/../index.html", "<h1>it works</h1>"),
            ("from pages/index.html 4", "it works</h1>"),
            ("sum /pages/inner/large", "3145728"),
            ("list /", "greeting pages/"),
            ("list /pages", "index.html inner/"),
            ("stat /pages/index.html", "17 bytes, directory: false, times are zero: true"),
            ("stat /pages", "0 bytes, directory: true, times are zero: true"),
            ("read /none", "error: NotFound"),
            ("read /greeting/none", "error: NotADirectory"),
            // As in any WASI implementation, the path is outside of the preopened directory.
            ("read /../etc/passwd", "error: Uncategorized"),
            ("list /greeting", "error: NotADirectory"),
        ],
    );
    let described = node.cli().run(&["describe", "chain", "site"]);
    assert!(described.contains("files of 1.0"), "{described}");
    let (module, files) = (build::hostile("files"), folder.path().to_str().unwrap());
    let words = ["check", module.to_str().unwrap(), "--config", "write", "--files", files];
    let said = errors(&node.cli().output(&words));
    assert!(said.contains("writing came to Some(ReadOnlyFilesystem)"), "{said}");
    node.cli().run(&["check", module.to_str().unwrap(), "--files", files]);
}

#[test]
fn an_instance_reads_back_what_it_wrote() {
    let node = deployed(&folder());
    assert_answers(
        &node,
        &[
            ("write /new first", "written"),
            ("append /new ,second", "appended"),
            ("read /new", "first,second"),
            ("cut /new 3", "cut"),
            ("read /new", "fir"),
            ("write /greeting goodbye", "written"),
            ("read /greeting", "goodbye"),
            ("greeting", "hello"),
            ("mkdir /made/of/three", "made"),
            ("rename /pages/index.html /made/of/three/index.html", "renamed"),
            ("read /made/of/three/index.html", "<h1>it works</h1>"),
            ("rename /made /pages/made", "renamed"),
            ("list /pages", "inner/ made/"),
            ("remove /pages/inner/large", "removed"),
            ("list /pages/inner", ""),
            ("remove-all /pages", "removed"),
            ("list /", "greeting new"),
            ("open-many /new", "64 open, then No file descriptors available (os error 33)"),
        ],
    );
}

/// Returns what instances logged about their visits, by FWP.
fn visits(bed: &Bed) -> Vec<Vec<String>> {
    let lines = bed.node.cli().run(&["logs", "-A", "-o", "json"]);
    let mut by_fwp = std::collections::BTreeMap::<String, Vec<String>>::new();
    for line in lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is an object")) {
        let text = line["text"].as_str().unwrap_or_default().to_owned();
        if text.starts_with("visit") {
            by_fwp.entry(line["fwp"].to_string()).or_default().push(text);
        }
    }
    by_fwp.into_values().collect()
}

#[test]
fn files_written_for_one_client_are_invisible_to_another() {
    let bed = Bed::new(Device::AfPacket);
    let folder = folder();
    bed.node.apply(with_files(folder.path(), "").ping_rule("ping", "site", "per-client", NODE).text());
    for client in &bed.clients[..2] {
        // The answer is not a ping reply; only the request's arrival counts.
        (0..2).for_each(|_| poke(&client.namespace, NODE));
    }
    let kept = |number: u32| format!("visit {number}, kept: Ok(())");
    let both = until("visits of both clients", SOON, || {
        Some(visits(&bed)).filter(|all| all.len() == 2 && all.iter().all(|of_one| of_one.len() >= 2))
    });
    for of_one in both {
        assert_eq!(of_one[..2], [kept(1), kept(2)], "each begins with what was deployed");
    }
}

#[test]
fn files_are_there_after_a_restart_and_after_the_node_has_lost_its_derived_files() {
    let folder = folder();
    let mut node = deployed(&folder);
    assert_answers(&node, &[("greeting", "hello"), ("write /greeting goodbye", "written")]);
    // Only the deployed files count from here on; the folder may go.
    fs::remove_dir_all(folder.path().join("pages")).unwrap();
    node.kill();
    node.start();
    assert_answers(&node, &[("list /", "greeting pages/"), ("read /greeting", "hello")]);
    node.stop();
    for made in ["templates", "files"] {
        fs::remove_dir_all(node.path("state").join(made)).unwrap();
    }
    node.start();
    // It starts with what is there, and makes the rest behind.
    until("site that is made again", SOON, || {
        node.cli().output(&["invoke", "site", "--data", "greeting"]).status.success().then_some(())
    });
    assert_answers(&node, &[("sum /pages/inner/large", "3145728"), ("greeting", "hello")]);
}

#[test]
fn other_files_make_another_version_and_those_before_are_forgotten() {
    let folder = folder();
    let node = deployed(&folder);
    let archives = || fs::read_dir(node.path("state/files")).unwrap().count();
    assert_answers(&node, &[("greeting", "hello"), ("write /new old", "written")]);
    let path = node.path("manifest.toml");
    let unchanged = node.cli().run(&["apply", "-f", path.to_str().unwrap()]);
    assert!(unchanged.contains("chain/site unchanged"), "{unchanged}");
    assert_answers(&node, &[("read /new", "old")]);
    fs::write(folder.path().join("greeting"), "good morning").unwrap();
    node.apply(with_files(folder.path(), "cache_min = 0").text());
    until("a greeting of the new version", SOON, || (ask(&node, "greeting") == "good morning").then_some(()));
    assert_answers(&node, &[("read /new", "error: NotFound"), ("read /greeting", "good morning")]);
    assert_eq!(archives(), 1);
    node.apply(site("", "cache_min = 0").text());
    until("an instance without files", SOON, || (ask(&node, "greeting") == "none").then_some(()));
    assert!(ask(&node, "read /greeting").starts_with("error: "));
    assert!(ask(&node, "write /new x").starts_with("error: "));
    assert_eq!(archives(), 0);
}

#[test]
fn unsupported_or_too_large_files_are_refused_by_name_and_nothing_is_applied() {
    let node = Node::without_devices();
    let of = |folder: &TempDir| with_files(folder.path(), "");
    let linked = folder();
    symlink("/etc/passwd", linked.path().join("pages/link")).unwrap();
    assert_refused(&node, &of(&linked), "pages/link is a symbolic link: only files and folders are taken");
    let large = folder();
    fs::write(large.path().join("large"), vec![0; 16 << 20]).unwrap();
    assert_refused(&node, &of(&large), "large the files have more than the 16777216 bytes");
    let deep = folder();
    fs::create_dir_all(deep.path().join("d/".repeat(65))).unwrap();
    assert_refused(&node, &of(&deep), "it is too deep: 64 names are allowed");
    let many = folder();
    (0..4096).for_each(|number| fs::write(many.path().join(number.to_string()), "").unwrap());
    assert_refused(&node, &of(&many), "there are more than 4096 files and directories");
    assert_refused(
        &node,
        &site(", files = \"/nowhere/at/all\"", ""),
        "refused.toml:8: files: /nowhere/at/all: cannot be read",
    );
    let file = folder();
    let manifest = with_files(&file.path().join("greeting"), "");
    assert_refused(&node, &manifest, "greeting is not a folder");
    assert_eq!(node.cli().get("chains"), Vec::<Value>::new());
    assert_eq!(fs::read_dir(node.path("state/files")).unwrap().count(), 0);
}

#[test]
fn files_open_or_written_at_initialisation_get_the_chain_refused() {
    let folder = folder();
    let node = Node::without_devices();
    let configured = |config: &str| site(&format!(", files = {:?}, config = {config:?}", folder.path()), "");
    assert_refused(&node, &configured("leak"), "it has 1 files or directories open at the end of its initialisation");
    assert_refused(&node, &configured("write"), "writing came to Some(ReadOnlyFilesystem)");
}

#[test]
fn a_function_that_fills_its_memory_gets_an_error_and_others_are_unaffected() {
    let folder = folder();
    let node = Node::without_devices();
    let word_count = Manifest::of("other").module("word-count", &build::sample("word-count"));
    node.apply(word_count.text());
    node.apply(with_files(folder.path(), "cache_min = 0\nmemory_limit_kib = 4096").text());
    let said = ask(&node, "fill /large");
    assert!(said.ends_with(" bytes, then StorageFull"), "{said}");
    let written: u64 = said.split(' ').next().unwrap().parse().unwrap();
    let fwp = node.cli().serving_fwps().into_iter().find(|fwp| fwp["chain"] == "site").expect("it serves");
    let memory_kib = fwp["memory_kib"].as_u64().expect("its memory is known");
    assert!(written > 1 << 20 && memory_kib <= 4096 && memory_kib > written / 1024, "{said}; {memory_kib} KiB in all");
    assert_eq!(node.cli().run(&["invoke", "other/word-count", "-d", "as ever"]), "0 2 7\n");
    assert_answers(
        &node,
        &[("read /greeting", "hello"), ("write /large little", "written"), ("read /large", "little")],
    );
    // With a limit on the whole chain's memory, the result is the same.
    node.apply(with_files(folder.path(), "cache_min = 0\nmemory_total_kib = 3072").text());
    let status = || node.cli().chain_status("default", "site")["memory_kib"].as_u64().expect("its memory is known");
    let said = until("an instance of the new version", SOON, || {
        let said = ask(&node, "fill /large");
        (said.ends_with("StorageFull") && status() <= 3072).then_some(said)
    });
    assert!(said.split(' ').next().unwrap().parse::<u64>().unwrap() < 3 << 20, "{said}");
}
