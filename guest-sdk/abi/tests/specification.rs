//! Checks that the documents state the contract's current version.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use pinion_abi::{ABI_VERSION, EXPORT_ABI_PREFIX};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the documents that describe this release: all except the CHANGELOG, which describes earlier ones too.
fn documents() -> Vec<PathBuf> {
    let samples = fs::read_dir(workspace().join("samples")).expect("the samples can be listed").flatten();
    let of_samples = samples.map(|sample| sample.path().join("README.md")).filter(|readme| readme.is_file());
    let documents = ["README.md", "ARCHITECTURE.md", "SPECIFICATION.md", "SECURITY.md", "guest-sdk/c/README.md"];
    documents.map(|name| workspace().join(name)).into_iter().chain(of_samples).collect()
}

/// Returns the numbers that follow a prefix wherever it occurs in a text.
fn numbers_after(text: &str, prefix: &str) -> Vec<u32> {
    let digits = |at: &str| at.chars().take_while(char::is_ascii_digit).collect::<String>();
    text.split(prefix).skip(1).filter_map(|rest| digits(rest).parse().ok()).collect()
}

#[test]
fn the_specification_states_the_version_of_the_abi() {
    let specification = text("SPECIFICATION.md");
    let title = format!("## 6. The guest ABI, version {ABI_VERSION}\n");
    assert!(specification.contains(&title), "section 6 is titled {title:?}");
    let row = format!("| guest ABI | {ABI_VERSION}, by the export `{EXPORT_ABI_PREFIX}{ABI_VERSION}` |");
    assert!(specification.contains(&row), "section 10 has a row that begins {row:?}");
}

#[test]
fn no_document_states_another_version_of_the_abi() {
    let source = "guest-sdk/abi/src/lib.rs";
    let documents = documents().into_iter().chain([workspace().join(source)]);
    for path in documents {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for prefix in [EXPORT_ABI_PREFIX, "ABI, version ", "ABI version ", "the node that runs it, version "] {
            for number in numbers_after(&text, prefix) {
                assert_eq!(number, ABI_VERSION, "{}: {prefix}{number}", path.display());
            }
        }
    }
    assert_eq!(numbers_after(&text(source), "the node that runs it, version "), [ABI_VERSION]);
}
