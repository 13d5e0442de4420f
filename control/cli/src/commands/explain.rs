//! `pinion explain`: the keys of manifests.

use pinion_control::manifest::keys::{Key, Table, tables};

use super::BadInput;
use crate::args::{Format, Kind};
use crate::output;

/// Shows a table of manifests, or a key of one; without a path the top of a manifest.
pub(super) fn run(path: Option<&str>, format: Format) -> anyhow::Result<()> {
    let path = path.map(path_of).unwrap_or_default();
    if let Some(table) = tables().into_iter().find(|table| table.path == path) {
        return match format {
            Format::Json => output::json(&table),
            Format::Table => output::print(&describe(&table)),
        };
    }
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", &path));
    let table = tables().into_iter().find(|table| table.path == parent);
    let key = table.and_then(|table| table.keys.into_iter().find(|key| key.name == name));
    let key = key.ok_or_else(|| no_key(&path, parent))?;
    match format {
        Format::Json => output::json(&key),
        Format::Table => output::print(&output::description([
            ("Key", path),
            ("Values", key.values.to_string()),
            ("Default", key.default.to_string()),
            ("Meaning", key.about.to_owned()),
        ])),
    }
}

/// Returns a path with the first word as manifests have it: `chains.stage` is `chain.stage`.
fn path_of(text: &str) -> String {
    let (kind, rest) = text.split_once('.').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
    let kind = match Kind::of(kind, &Kind::ALL) {
        Some(Kind::State) | None => kind,
        Some(kind) => kind.singular(),
    };
    rest.map_or_else(|| kind.to_owned(), |rest| format!("{kind}.{rest}"))
}

fn no_key(path: &str, parent: &str) -> BadInput {
    let known = tables().into_iter().find(|table| table.path == parent && !parent.is_empty());
    let names = |table: Table| table.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ");
    let known = known.map_or_else(
        || {
            format!(
                "tables are {}",
                tables().iter().map(|table| table.path).filter(|path| !path.is_empty()).collect::<Vec<_>>().join(", ")
            )
        },
        |table| format!("{parent} has {}", names(table)),
    );
    BadInput::NoKey(output::printable(path), known)
}

/// Formats a table, and each of its keys with what it has if it is left out, its values and its meaning.
fn describe(Table { header, about, keys, .. }: &Table) -> String {
    let head = output::description([("Table", (*header).to_owned()), ("Meaning", (*about).to_owned())]);
    let key = |Key { name, values, default, about }: &Key| format!("{name} ({default})\n    {values}\n    {about}");
    let keys: Vec<String> = keys.iter().map(key).collect();
    format!("{head}\n\n{}", keys.join("\n"))
}
