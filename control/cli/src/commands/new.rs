//! `pinion new`: creates a crate of a function that builds, can be tested and can be applied.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use pinion_control::model::TenantName;

use super::BadInput;
use crate::args::{CrateName, Template};
use crate::output;

/// A file of a template, and its destination.
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
const C_SERVICE: &[TemplateFile] = &[
    TemplateFile { path: "Makefile", text: include_str!("../../templates/c-service/Makefile.in") },
    TemplateFile { path: ".gitignore", text: include_str!("../../templates/c/gitignore.in") },
    TemplateFile { path: "README.md", text: include_str!("../../templates/c-service/README.md.in") },
    TemplateFile { path: "pinion.toml", text: include_str!("../../templates/c-service/pinion.toml.in") },
    TemplateFile { path: "src/service.c", text: include_str!("../../templates/c-service/service.c.in") },
];
const ENDPOINT: &[TemplateFile] = template!("endpoint");
const PACKET_FILTER: &[TemplateFile] = template!("packet-filter");
const RESPONDER: &[TemplateFile] = template!("responder");

/// The tenant in the manifest of a new crate, if no context has one.
const TENANT: &str = "demo";

pub(super) fn run(
    CrateName(name): &CrateName,
    template: Template,
    sdk: Option<&Path>,
    tenant: Option<&TenantName>,
) -> anyhow::Result<()> {
    let tenant = tenant.map_or(TENANT, TenantName::as_str);
    let folder = PathBuf::from(name);
    let (files, dependency, test) = match template {
        Template::C => (C, c_sdk(sdk)?, "  make test\n"),
        // It has no native tests.
        Template::CService => (C_SERVICE, c_sdk(sdk)?, ""),
        Template::Endpoint => (ENDPOINT, rust_sdk(sdk, &["net"])?, "  cargo test\n"),
        Template::PacketFilter => (PACKET_FILTER, rust_sdk(sdk, &[])?, "  cargo test\n"),
        Template::Responder => (RESPONDER, rust_sdk(sdk, &[])?, "  cargo test\n"),
    };
    check_empty(&folder)?;
    let crate_name = name.replace('-', "_");
    for file in files {
        let text = file.text.replace("{{name}}", name).replace("{{crate}}", &crate_name);
        let text = text.replace("{{sdk}}", &dependency).replace("{{tenant}}", tenant);
        let path = folder.join(file.path);
        fs::create_dir_all(path.parent().unwrap_or(&folder))?;
        fs::write(path, text)?;
    }
    output::print(&format!("{name}/ is there. Next:\n  cd {name}\n{test}  pinion build\n  pinion apply"))
}

/// The location of an SDK in a checkout, or in a folder within it, and the file that identifies it.
struct Sdk {
    name: &'static str,
    inner: [&'static str; 3],
    is_there: fn(&Path) -> bool,
}

const RUST_SDK: Sdk = Sdk { name: "pinion-sdk", inner: ["", "rust", "guest-sdk/rust"], is_there: is_rust_sdk };
const C_SDK: Sdk = Sdk { name: "C SDK", inner: ["", "c", "guest-sdk/c"], is_there: is_c_sdk };

fn is_rust_sdk(folder: &Path) -> bool {
    let manifest = fs::read_to_string(folder.join("Cargo.toml"));
    manifest.is_ok_and(|manifest| manifest.lines().any(|line| line == "name = \"pinion-sdk\""))
}

fn is_c_sdk(folder: &Path) -> bool {
    folder.join("pinion.mk").is_file()
}

impl Sdk {
    /// Returns its folder in the given path; by default in the SDKs that came with this program.
    fn folder(&self, given: Option<&Path>) -> Result<PathBuf, BadInput> {
        let found = match given {
            Some(given) => self.within(given).ok_or_else(|| self.missing(given))?,
            None => came_with_us().iter().find_map(|root| self.within(root)).ok_or(BadInput::NoOwnSdk(self.name))?,
        };
        found.canonicalize().map_err(|error| BadInput::Unreadable { path: found, error })
    }

    fn within(&self, root: &Path) -> Option<PathBuf> {
        self.inner.map(|inner| root.join(inner)).into_iter().find(|folder| (self.is_there)(folder))
    }

    fn missing(&self, path: &Path) -> BadInput {
        BadInput::NoSdk { sdk: self.name, folder: self.inner[2], path: path.to_owned() }
    }
}

/// Returns where the SDKs of this program's release may be: in the checkout that it was built in
/// (CHECKOUT/target/release/pinion, or with a target triple before release), or installed beside it (PREFIX/bin/pinion,
/// PREFIX/share/pinion).
fn came_with_us() -> Vec<PathBuf> {
    let Ok(program) = std::env::current_exe().and_then(|program| program.canonicalize()) else { return Vec::new() };
    let above = |levels: usize| program.ancestors().nth(levels).map(Path::to_owned);
    let checkouts = [above(3), above(4)].into_iter().flatten();
    let installed = above(2).map(|prefix| prefix.join("share/pinion"));
    checkouts.chain(installed).collect()
}

/// Returns the dependency on the SDK's crate with these features, as in a Cargo.toml.
fn rust_sdk(given: Option<&Path>, features: &[&str]) -> Result<String, BadInput> {
    let folder = RUST_SDK.folder(given)?;
    let path = folder.to_str().ok_or_else(|| BadInput::NotText(folder.clone()))?;
    let mut dependency = toml::Table::from_iter([("path".to_owned(), path.into())]);
    if !features.is_empty() {
        dependency.insert("features".to_owned(), features.to_vec().into());
    }
    Ok(toml::Value::Table(dependency).to_string())
}

/// Returns the folder of the C SDK, as a Makefile names it.
fn c_sdk(given: Option<&Path>) -> Result<String, BadInput> {
    let folder = C_SDK.folder(given)?;
    match folder.to_str() {
        Some(text) if text.chars().all(is_for_make) => Ok(text.to_owned()),
        _ => Err(BadInput::NotForMake(folder)),
    }
}

/// Returns whether make, and the shell that it starts, take a character literally. They take all non-ASCII characters
/// literally.
fn is_for_make(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "/._-+,@".contains(letter) || !(letter.is_ascii() || letter.is_control())
}

fn check_empty(folder: &Path) -> Result<(), BadInput> {
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(BadInput::NotEmpty(folder.to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BadInput::Unreadable { path: folder.to_owned(), error }),
    }
}
