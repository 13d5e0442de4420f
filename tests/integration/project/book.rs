//! The book in `docs`: its links lead somewhere, its files are taken, its commands work when pasted.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pinion_tests::machine::process::{output, run};
use pinion_tests::network::bed::turn;
use pinion_tests::product::build::{program, workspace};
use pinion_tests::product::tour::Tour;

fn chapters() -> Vec<(String, String)> {
    let folder = workspace().join("docs/src");
    let entries = fs::read_dir(folder).expect("the book's chapters").flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ext| ext == "md"));
    let mut chapters: Vec<(String, String)> = paths
        .map(|path| {
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name in UTF-8").to_owned();
            (name, fs::read_to_string(&path).expect("a chapter"))
        })
        .collect();
    chapters.sort();
    chapters
}

/// The blocks of a chapter in a language, each with the line before it.
fn blocks<'t>(chapter: &'t str, language: &str) -> Vec<(&'t str, String)> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = chapter.lines();
    while let Some(line) = lines.next() {
        if line.strip_prefix("```").is_some_and(|word| word == language) {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((before, block.join("\n") + "\n"));
        }
        before = line;
    }
    blocks
}

/// The files and anchors that a chapter's links lead to, other sites left out.
fn targets(chapter: &str) -> Vec<String> {
    let after = chapter.split("](").skip(1);
    let targets = after.filter_map(|text| text.split(')').next()).map(str::to_owned);
    targets.filter(|target| !target.contains("://")).collect()
}

/// A heading's anchor as mdBook makes it, or as the heading says itself: `Port drops {#port-drops}`.
fn anchor(heading: &str) -> String {
    if let Some((_, own)) = heading.split_once("{#") {
        return own.trim_end().trim_end_matches('}').to_owned();
    }
    let letters = heading.trim().to_lowercase();
    let letters = letters.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    letters.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[test]
fn each_link_of_the_book_leads_to_a_chapter_or_one_of_its_headings() {
    let chapters = chapters();
    // The reference of the API is made with the book, of the protocol's file.
    let names: BTreeSet<&str> = chapters.iter().map(|(name, _)| name.as_str()).chain(["api"]).collect();
    let mut count = 0;
    for (name, text) in &chapters {
        for target in targets(text) {
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { name } else { file.trim_end_matches(".md") };
            assert!(names.contains(file), "{name}.md: {target}");
            if let Some((_, text)) = chapters.iter().find(|(other, _)| other == file).filter(|_| !heading.is_empty()) {
                let headings =
                    text.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_matches('#'));
                let anchors: Vec<String> = headings.map(anchor).collect();
                assert!(anchors.iter().any(|it| it == heading), "{name}.md: {target}, of {anchors:?}");
            }
            count += 1;
        }
    }
    assert!(count > 20, "{count} links");
}

/// A file in a folder of its own, with the checkout's files beside it.
fn beside_the_checkout(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["target", "samples"] {
        std::os::unix::fs::symlink(workspace().join(name), folder.path().join(name)).expect("a link");
    }
    let path = folder.path().join("file.toml");
    fs::write(&path, text).expect("room for a file");
    (folder, path)
}

#[test]
fn each_configuration_and_manifest_of_the_book_is_taken() {
    let (mut manifests, mut configurations) = (0, 0);
    for (name, text) in chapters() {
        for (before, block) in blocks(&text, "toml") {
            let (_folder, path) = beside_the_checkout(&block);
            let mut command = match before {
                "<!-- check: manifest -->" => {
                    manifests += 1;
                    let mut command = Command::new(program("pinion"));
                    command.arg("check").arg(&path);
                    command
                }
                "<!-- check: piniond -->" => {
                    configurations += 1;
                    let mut command = Command::new(program("piniond"));
                    command.arg("--check").arg("--config").arg(&path);
                    command
                }
                other => {
                    assert!(
                        other.starts_with("<!-- check: none, "),
                        "{name}.md: say how to check the block after {other:?}"
                    );
                    continue;
                }
            };
            let output = output(&mut command);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}.md: {error}\n{block}");
        }
    }
    assert!(manifests > 1 && configurations > 0, "{manifests} manifests and {configurations} configurations");
}

/// The commands of a chapter, typed into one shell in the checkout while the tour's node runs; what they print.
fn typed(text: &str) -> String {
    let commands: String = blocks(text, "sh").into_iter().map(|(_, block)| block).collect();
    let mut shell = Command::new("bash");
    let programs = program("pinion").parent().map(Path::to_owned).expect("programs lie in a folder");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    shell.args(["-c", &format!("exec 2>&1\nset -e\n{commands}")]).current_dir(workspace());
    // As in a shell of a user's, though these tests are themselves run by make and by cargo.
    for name in ["MAKEFLAGS", "MAKELEVEL", "CARGO_TARGET_DIR", "CARGO_MANIFEST_DIR"] {
        shell.env_remove(name);
    }
    run(shell.env("PATH", path))
}

#[test]
fn the_commands_of_each_chapter_work_when_pasted_while_the_tours_node_runs() {
    let _turn = turn();
    let _tour = Tour::start();
    for (name, text) in chapters() {
        let printed = typed(&text);
        let expected: &[&str] = match &*name {
            "first-function" => {
                &["module/shout created", "HELLO", "hello", "3 passed, 0 failed", "module/shout deleted"]
            }
            "middlebox" => &[
                "chain/border created",
                "3 received",
                "198.51.100.2 ",
                "203.0.113.7 ",
                "NEIGHBOR",
                "10.20.0.2",
                "198.51.100.1",
            ],
            "http" => &[
                "chain/site created",
                "<h1>Hello</h1>",
                "1\n2",
                "Accept-Ranges: bytes",
                "unchanged: 304",
                "<h1>Documents</h1>",
                "site",
                "chain/site deleted",
            ],
            "graphs" => &[
                "chain/front created",
                "<h1>Hello from a branch</h1>",
                "2 received",
                "nothing answers there",
                "protocol tcp, destination-ports 80: to site",
                "otherwise: to ping",
                "0/graph-site, dropped-by-graph",
                "chain/front configured",
                "<h1>Hello from behind the meter</h1>",
                "2 received",
                "graph-meter",
                "chain/front deleted",
            ],
            "memcached" => &[
                "chain/words created",
                "STORED",
                "VALUE color 0 4",
                "blue",
                "CLIENT_ERROR cannot increment or decrement non-numeric value",
                "VA 1",
                "8",
                "VALUE color 0 4",
                "STAT get_hits 2",
                "STAT curr_items 2",
                "chain/words deleted",
            ],
            "tls" => &[
                "key/site created",
                "chain/secure created",
                "<h1>Hello, over TLS</h1>",
                "refused: ",
                "TLS 1.2: 200",
                "New, TLSv1.3",
                "Reused, TLSv1.3",
                "chain/secure deleted",
                "chain/secure created",
                "<h1>Hello, from the next stage</h1>",
                "chain/secure deleted",
            ],
            "inference" => &[
                "model/sight created",
                "chain/sight created",
                "sight",
                "{\"label\":\"ring\"",
                "{\"error\":\"",
                "{\"label\":\"checkerboard\"",
                "chain/sight deleted",
            ],
            "policies" => &["first", "second"],
            "rolling-back" => &[
                "chain/rollout created",
                "no difference",
                "-policy = \"per-client\"\n+policy = \"shared\"",
                "status 1",
                "rule/rollout configured (dry run)",
                "rule/rollout configured",
                "has changed objects of tenant demo since",
                "status 2",
                "REVISION",
                "(operator)",
                "+policy = \"shared\"",
                "rule/rollout configured",
                "as before",
                "is in force",
                "chain/rollout configured",
                "+++ /dev/null",
                "status 1",
                "rule/rollout pruned",
                "chain/rollout deleted",
            ],
            "two-tenants" => &[
                "tenant/red created",
                "tenant/blue created",
                "chain/echo created",
                "chain/echo created",
                "1 6 19",
                "may name no other",
                "may name no other",
                "may name no other",
                "rule blue/ping",
                "needs the role tenant admin",
                "by the operator only",
                "it was revoked",
            ],
            _ => &[],
        };
        let mut rest = &*printed;
        for word in expected {
            let found =
                rest.find(word).unwrap_or_else(|| panic!("{name}.md: no {word:?} where it belongs in:\n{printed}"));
            rest = &rest[found + word.len()..];
        }
    }
}
