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

const PACKET_FILTER: &[TemplateFile] = template!("packet-filter");
const RESPONDER: &[TemplateFile] = template!("responder");

pub(super) fn run(CrateName(name): &CrateName, template: Template, sdk: Option<&Path>) -> anyhow::Result<()> {
    let folder = PathBuf::from(name);
    let dependency = match sdk {
        Some(path) => format!("{{ path = {:?} }}", sdk_folder(path)?),
        None => format!("{:?}", env!("CARGO_PKG_VERSION")),
    };
    check_empty(&folder)?;
    let files = match template {
        Template::PacketFilter => PACKET_FILTER,
        Template::Responder => RESPONDER,
    };
    let crate_name = name.replace('-', "_");
    for file in files {
        let text =
            file.text.replace("{{name}}", name).replace("{{crate}}", &crate_name).replace("{{sdk}}", &dependency);
        let path = folder.join(file.path);
        fs::create_dir_all(path.parent().unwrap_or(&folder))?;
        fs::write(path, text)?;
    }
    output::print(&format!("{name}/ is there. Next:\n  cd {name}\n  cargo test\n  pinion build\n  pinion apply"))
}

/// Where the SDK's crate is in what somebody names: a checkout, or a folder further in.
fn sdk_folder(given: &Path) -> Result<PathBuf, BadInput> {
    let is_sdk = |folder: &PathBuf| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml"));
        manifest.is_ok_and(|manifest| manifest.lines().any(|line| line == "name = \"pinion-sdk\""))
    };
    let folders = ["", "rust", "guest-sdk/rust"].map(|inner| given.join(inner));
    let found = folders.into_iter().find(is_sdk).ok_or_else(|| BadInput::NoSdk(given.to_owned()))?;
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
