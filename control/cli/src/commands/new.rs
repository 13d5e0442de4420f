//! `pinion new`: a crate of a function that builds, tests and can be applied.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::BadInput;
use crate::args::{CrateName, Template};
use crate::output;

/// A file of a template, and where it goes.
struct TemplateFile {
    path: &'static str,
    text: &'static str,
}

macro_rules! template {
    ($folder:literal) => {
        &[
            TemplateFile { path: "Cargo.toml", text: include_str!("../../templates/Cargo.toml.in") },
            TemplateFile { path: ".cargo/config.toml", text: include_str!("../../templates/cargo-config.toml.in") },
            TemplateFile { path: ".gitignore", text: include_str!("../../templates/gitignore.in") },
            TemplateFile {
                path: "README.md",
                text: include_str!(concat!("../../templates/", $folder, "/README.md.in")),
            },
            TemplateFile {
                path: "pinion.toml",
                text: include_str!(concat!("../../templates/", $folder, "/pinion.toml.in")),
            },
            TemplateFile { path: "src/lib.rs", text: include_str!(concat!("../../templates/", $folder, "/lib.rs.in")) },
            TemplateFile {
                path: "tests/frames.rs",
                text: include_str!(concat!("../../templates/", $folder, "/frames.rs.in")),
            },
        ]
    };
}

const C: &[TemplateFile] = &[
    TemplateFile { path: "Makefile", text: include_str!("../../templates/c/Makefile.in") },
    TemplateFile { path: ".gitignore", text: include_str!("../../templates/c/gitignore.in") },
    TemplateFile { path: "README.md", text: include_str!("../../templates/c/README.md.in") },
    TemplateFile { path: "pinion.toml", text: include_str!("../../templates/c/pinion.toml.in") },
    TemplateFile { path: "src/function.c", text: include_str!("../../templates/c/function.c.in") },
    TemplateFile { path: "tests/frames.c", text: include_str!("../../templates/c/frames.c.in") },
];
const ENDPOINT: &[TemplateFile] = template!("endpoint");
const PACKET_FILTER: &[TemplateFile] = template!("packet-filter");
const RESPONDER: &[TemplateFile] = template!("responder");

pub(super) fn run(CrateName(name): &CrateName, template: Template, sdk: Option<&Path>) -> anyhow::Result<()> {
    let folder = PathBuf::from(name);
    let (files, dependency, tested_by) = match template {
        Template::C => (C, c_sdk(sdk)?, "make test"),
        Template::Endpoint => (ENDPOINT, rust_sdk(sdk, &["tcp"])?, "cargo test"),
        Template::PacketFilter => (PACKET_FILTER, rust_sdk(sdk, &[])?, "cargo test"),
        Template::Responder => (RESPONDER, rust_sdk(sdk, &[])?, "cargo test"),
    };
    check_empty(&folder)?;
    let crate_name = name.replace('-', "_");
    for file in files {
        let text =
            file.text.replace("{{name}}", name).replace("{{crate}}", &crate_name).replace("{{sdk}}", &dependency);
        let path = folder.join(file.path);
        fs::create_dir_all(path.parent().unwrap_or(&folder))?;
        fs::write(path, text)?;
    }
    output::print(&format!("{name}/ is there. Next:\n  cd {name}\n  {tested_by}\n  pinion build\n  pinion apply"))
}

/// The dependency on the SDK's crate, with these features: in a checkout that somebody names, or this version from the registry.
fn rust_sdk(given: Option<&Path>, features: &[&str]) -> Result<String, BadInput> {
    let with_features = |source: String| match features {
        [] => format!("{{ {source} }}"),
        features => format!("{{ {source}, features = {features:?} }}"),
    };
    let Some(given) = given else { return Ok(with_features(format!("version = {:?}", env!("CARGO_PKG_VERSION")))) };
    let is_sdk = |folder: &Path| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml"));
        manifest.is_ok_and(|manifest| manifest.lines().any(|line| line == "name = \"pinion-sdk\""))
    };
    let folder = sdk_folder(given, ["", "rust", "guest-sdk/rust"], "pinion-sdk", is_sdk)?;
    Ok(with_features(format!("path = {folder:?}")))
}

/// The folder of the C SDK, as a Makefile names it.
fn c_sdk(given: Option<&Path>) -> Result<String, BadInput> {
    let given = given.ok_or(BadInput::NoCSdk)?;
    let is_sdk = |folder: &Path| folder.join("pinion.mk").is_file();
    let folder = sdk_folder(given, ["", "c", "guest-sdk/c"], "C SDK", is_sdk)?;
    let for_make = |text: &&str| !text.contains(|letter: char| letter.is_whitespace() || "#$%:\\".contains(letter));
    folder.to_str().filter(for_make).map(str::to_owned).ok_or_else(|| BadInput::NotForMake(folder.clone()))
}

/// Where an SDK is in what somebody names: a checkout, or a folder further in.
fn sdk_folder(
    given: &Path,
    inner: [&'static str; 3],
    sdk: &'static str,
    is_sdk: impl Fn(&Path) -> bool,
) -> Result<PathBuf, BadInput> {
    let found = inner.map(|inner| given.join(inner)).into_iter().find(|folder| is_sdk(folder));
    let found = found.ok_or_else(|| BadInput::NoSdk { sdk, folder: inner[2], path: given.to_owned() })?;
    found.canonicalize().map_err(|error| BadInput::Unreadable { path: found, error })
}

fn check_empty(folder: &Path) -> Result<(), BadInput> {
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(BadInput::NotEmpty(folder.to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BadInput::Unreadable { path: folder.to_owned(), error }),
    }
}
