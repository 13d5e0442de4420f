//! `pinion diff`: how objects differ between manifests and the node, or between two revisions. Objects are compared as the
//! TOML that describes them, with all defaults written out.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use pinion_control::Client;
use pinion_control::manifest::Contents;
use pinion_control::model::{Digest, Object, ObjectRef, TenantName};
use pinion_text::printable_lines;
use serde::Serialize;
use similar::TextDiff;

use super::read_manifests;
use crate::args::Format;
use crate::contexts::Target;
use crate::output;

/// The longest difference of one object that is shown.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// There are differences, and they were shown. Not a failure, but the exit status tells of it.
#[derive(Debug, thiserror::Error)]
#[error("there are differences")]
pub(crate) struct Differs;

/// The objects of one side, as text.
type Texts = BTreeMap<ObjectRef, String>;

/// The difference of one object.
#[derive(Debug, Serialize)]
struct Difference {
    #[serde(flatten)]
    object: ObjectRef,
    diff: String,
}

/// Compares what manifests say with what is there. Objects that only the node has are no difference.
pub(super) async fn manifests(target: &Target, files: &[PathBuf], format: Format) -> anyhow::Result<()> {
    let wanted = wanted(read_manifests(&target.tenant_or(None), files)?.load()?)?;
    let tenants: BTreeSet<TenantName> = wanted.keys().map(|object| object.tenant().clone()).collect();
    let mut client = target.connect().await?;
    let mut present = Texts::new();
    for tenant in tenants {
        present.extend(at(&mut client, &tenant, None).await?);
    }
    present.retain(|object, _| wanted.contains_key(object));
    print(&differences(&present, "the node", &wanted, "the manifest"), format)
}

/// Compares a tenant's objects at two revisions; without a second one, with what is there now.
pub(super) async fn revisions(
    target: &Target,
    tenant: &TenantName,
    first: u64,
    second: Option<u64>,
    format: Format,
) -> anyhow::Result<()> {
    let mut client = target.connect().await?;
    let (old, new) = (at(&mut client, tenant, Some(first)).await?, at(&mut client, tenant, second).await?);
    let label = second.map_or_else(|| "the node".to_owned(), |second| format!("revision {second}"));
    print(&differences(&old, &format!("revision {first}"), &new, &label), format)
}

async fn at(client: &mut Client, tenant: &TenantName, revision: Option<u64>) -> anyhow::Result<Texts> {
    let objects = client.objects_at(tenant, revision).await?;
    objects.iter().map(|object| Ok((object.name(), text(object)?))).collect()
}

/// Returns the objects that manifests define.
fn wanted(contents: Contents) -> anyhow::Result<Texts> {
    let mut texts = Texts::new();
    for tenant in contents.tenants {
        let object = Object::Tenant(Arc::new(tenant));
        texts.insert(object.name(), text(&object)?);
    }
    let modules = contents.modules.into_iter().map(|file| (file.tenant, file.name, Digest::of(&file.wasm)));
    for (tenant, name, digest) in modules.chain(contents.uploaded.into_iter().map(|it| (it.tenant, it.name, it.digest)))
    {
        texts.insert(ObjectRef::Module { tenant, name: name.clone() }, uploaded("module", name.as_str(), &digest)?);
    }
    for file in contents.keys {
        let (digest, name) = (file.digest()?, file.name);
        texts.insert(
            ObjectRef::Key { tenant: file.tenant, name: name.clone() },
            uploaded("key", name.as_str(), &digest)?,
        );
    }
    for it in contents.uploaded_keys {
        let text = uploaded("key", it.name.as_str(), &it.digest)?;
        texts.insert(ObjectRef::Key { tenant: it.tenant, name: it.name }, text);
    }
    let models = contents.models.into_iter().map(|file| (file.tenant, file.name, Digest::of(&file.onnx)));
    let uploaded_models = contents.uploaded_models.into_iter().map(|it| (it.tenant, it.name, it.digest));
    for (tenant, name, digest) in models.chain(uploaded_models) {
        texts.insert(ObjectRef::Model { tenant, name: name.clone() }, uploaded("model", name.as_str(), &digest)?);
    }
    let chains = contents.chains.into_iter().map(|chain| Object::Chain(Arc::new(chain)));
    for object in chains.chain(contents.rules.into_iter().map(|rule| Object::Rule(Arc::new(rule)))) {
        texts.insert(object.name(), text(&object)?);
    }
    Ok(texts)
}

/// Returns an object as TOML.
fn text(object: &Object) -> anyhow::Result<String> {
    match object {
        Object::Module(module) => uploaded("module", module.name.as_str(), &module.digest),
        Object::Key(key) => uploaded("key", key.name.as_str(), &key.digest),
        Object::Model(model) => uploaded("model", model.name.as_str(), &model.digest),
        Object::Tenant(tenant) => toml_of("tenant", &**tenant),
        Object::Chain(chain) => toml_of("chain", &**chain),
        Object::Rule(rule) => toml_of("rule", &**rule),
    }
}

/// Returns the TOML of what only has a name and a digest to compare.
fn uploaded(kind: &str, name: &str, digest: &Digest) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Uploaded<'a> {
        name: &'a str,
        digest: &'a Digest,
    }
    toml_of(kind, &Uploaded { name, digest })
}

fn toml_of(kind: &str, value: &impl Serialize) -> anyhow::Result<String> {
    let mut table = toml::Table::try_from(value)?;
    // The label of the difference has it.
    table.remove("tenant");
    if let Some(stages) = table.get_mut("stages").and_then(toml::Value::as_array_mut) {
        stages.iter_mut().filter_map(toml::Value::as_table_mut).for_each(write_config);
    }
    let document = toml::Table::from_iter([(kind.to_owned(), toml::Value::Array(vec![table.into()]))]);
    Ok(toml::to_string(&document)?)
}

/// Writes the configuration of a stage as manifests do, if it is text.
fn write_config(stage: &mut toml::Table) {
    let text = stage.get("config").and_then(|config| config.get("text")).cloned();
    if let Some(text) = text {
        stage.insert("config".to_owned(), text);
    }
}

fn differences(old: &Texts, old_label: &str, new: &Texts, new_label: &str) -> Vec<Difference> {
    let names: BTreeSet<&ObjectRef> = old.keys().chain(new.keys()).collect();
    let mut differences = Vec::new();
    for object in names {
        let (before, after) = (old.get(object), new.get(object));
        if before == after {
            continue;
        }
        let label = |text: Option<&String>, label: &str| match text {
            Some(_) => format!("{object} ({label})"),
            None => "/dev/null".to_owned(),
        };
        let (old_label, new_label) = (label(before, old_label), label(after, new_label));
        let (before, after) = (before.map_or("", |text| text), after.map_or("", |text| text));
        let diff = TextDiff::from_lines(before, after).unified_diff().header(&old_label, &new_label).to_string();
        differences.push(Difference { object: object.clone(), diff });
    }
    differences
}

fn print(differences: &[Difference], format: Format) -> anyhow::Result<()> {
    let shown = show(differences, format);
    if differences.is_empty() {
        return shown;
    }
    // A reader that has seen enough and closed the pipe does not make both sides equal.
    shown.or_else(|error| if crate::is_closed_pipe(&error) { Ok(()) } else { Err(error) })?;
    Err(Differs.into())
}

fn show(differences: &[Difference], format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json(differences)?,
        Format::Table => {
            // See no-color.org.
            let is_plain = !io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
            for difference in differences {
                let text = printable_lines(&difference.diff, TEXT_BYTES_MAX);
                output::write(&if is_plain { text } else { coloured(&text) })?;
            }
        }
    }
    Ok(())
}

/// Colours lines as git does.
fn coloured(diff: &str) -> String {
    let colour = |line: &str| match line.as_bytes() {
        [b'-', b'-', b'-', ..] | [b'+', b'+', b'+', ..] => "1",
        [b'@', ..] => "36",
        [b'-', ..] => "31",
        [b'+', ..] => "32",
        _ => "0",
    };
    diff.lines().map(|line| format!("\x1b[{}m{line}\x1b[0m\n", colour(line))).collect()
}

#[cfg(test)]
mod tests {
    use pinion_control::model::{Chain, Stage};

    use super::*;

    fn echo(config: &[u8]) -> Object {
        let stage = Stage::new("m".parse().unwrap(), config.to_vec());
        Object::Chain(Arc::new(Chain::new("demo".parse().unwrap(), "echo".parse().unwrap(), vec![stage])))
    }

    fn texts(objects: &[Object]) -> Texts {
        objects.iter().map(|object| (object.name(), text(object).unwrap())).collect()
    }

    #[test]
    fn an_object_is_written_as_in_a_manifest_with_its_defaults() {
        let text = text(&echo(b"hello")).unwrap();
        assert!(text.starts_with("[[chain]]\n"), "{text}");
        for line in ["name = \"echo\"", "idle_timeout_ms = 300000", "module = \"m\"", "config = \"hello\""] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
        assert!(!text.contains("tenant"), "{text}");
    }

    #[test]
    fn a_difference_names_the_object_and_both_sides() {
        let (old, new) = (texts(&[echo(b"a")]), texts(&[echo(b"b")]));
        let found = differences(&old, "revision 1", &new, "the node");
        let [Difference { diff, .. }] = &found[..] else { panic!("{found:?}") };
        assert!(diff.starts_with("--- chain demo/echo (revision 1)\n+++ chain demo/echo (the node)\n@@ "), "{diff}");
        assert!(diff.contains("\n-config = \"a\"\n+config = \"b\"\n"), "{diff}");
        assert!(differences(&old, "", &old, "").is_empty());
    }

    #[test]
    fn an_object_that_one_side_lacks_is_compared_with_nothing() {
        let (none, some) = (Texts::new(), texts(&[echo(b"a")]));
        assert!(
            differences(&none, "revision 0", &some, "the node")[0]
                .diff
                .starts_with("--- /dev/null\n+++ chain demo/echo")
        );
        assert!(differences(&some, "revision 1", &none, "the node")[0].diff.contains("\n+++ /dev/null\n"));
    }

    #[test]
    fn colours_tell_lines_apart() {
        assert_eq!(
            coloured("--- a\n-b\n+c\n d\n"),
            "\x1b[1m--- a\x1b[0m\n\x1b[31m-b\x1b[0m\n\x1b[32m+c\x1b[0m\n\x1b[0m d\x1b[0m\n"
        );
    }
}
