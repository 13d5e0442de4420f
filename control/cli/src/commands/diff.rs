//! `pinion diff`: how objects differ between manifests and the node, or between two revisions. Objects are compared as the
//! TOML that describes them, with all defaults written out.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use pinion_control::Client;
use pinion_control::manifest::Contents;
use pinion_control::model::{Digest, Label, Labelled, Object, ObjectRef, TenantName};
use pinion_text::printable_lines;
use serde::Serialize;
use similar::TextDiff;

use super::{BadInput, read_manifests};
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

/// Compares what manifests say with what is there. Objects that only the node has are no difference, unless they are to be pruned.
pub(super) async fn manifests(target: &Target, files: &[PathBuf], prune: bool, format: Format) -> anyhow::Result<()> {
    let contents = read_manifests(&target.tenant_or(None), files)?.load()?;
    let (label, owners) = (contents.label.clone(), contents.owners.clone());
    if prune && label.is_none() {
        return Err(BadInput::PruneWithoutLabel(files.to_vec()).into());
    }
    let tenants: BTreeSet<TenantName> = contents.tenants.iter().map(|tenant| tenant.name.clone()).collect();
    let mut client = target.connect().await?;
    let mut present: BTreeMap<ObjectRef, Labelled<Object>> = BTreeMap::new();
    for tenant in &tenants | &owners {
        let objects = client.objects_at(&tenant, None).await?;
        present.extend(objects.into_iter().map(|object| (object.name(), object)));
    }
    // Objects of a manifest without a label keep theirs.
    let next_label = |object: &ObjectRef| label.clone().or_else(|| present.get(object)?.label.clone());
    let wanted = wanted(contents, next_label)?;
    let is_pruned =
        |name: &ObjectRef, object: &Labelled<Object>| prune && object.label == label && owners.contains(name.tenant());
    present.retain(|name, object| wanted.contains_key(name) || is_pruned(name, object));
    let present =
        present.iter().map(|(name, object)| Ok((name.clone(), text(object)?))).collect::<anyhow::Result<_>>()?;
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

/// Returns the objects that manifests define, with the labels that they will have.
fn wanted(contents: Contents, label: impl Fn(&ObjectRef) -> Option<Label>) -> anyhow::Result<Texts> {
    let mut texts = Texts::new();
    let mut add_upload = |name: ObjectRef, digest: Digest| {
        let text = uploaded(&name, &digest, label(&name).as_ref())?;
        texts.insert(name, text);
        anyhow::Ok(())
    };
    let modules = contents.modules.into_iter().map(|file| (file.tenant, file.name, Digest::of(&file.wasm)));
    for (tenant, name, digest) in modules.chain(contents.uploaded.into_iter().map(|it| (it.tenant, it.name, it.digest)))
    {
        add_upload(ObjectRef::Module { tenant, name }, digest)?;
    }
    for file in contents.keys {
        let digest = file.digest()?;
        add_upload(ObjectRef::Key { tenant: file.tenant, name: file.name }, digest)?;
    }
    for it in contents.uploaded_keys {
        add_upload(ObjectRef::Key { tenant: it.tenant, name: it.name }, it.digest)?;
    }
    let models = contents.models.into_iter().map(|file| (file.tenant, file.name, Digest::of(&file.onnx)));
    let uploaded_models = contents.uploaded_models.into_iter().map(|it| (it.tenant, it.name, it.digest));
    for (tenant, name, digest) in models.chain(uploaded_models) {
        add_upload(ObjectRef::Model { tenant, name }, digest)?;
    }
    let tenants = contents.tenants.into_iter().map(|tenant| Object::Tenant(Arc::new(tenant)));
    let chains = contents.chains.into_iter().map(|chain| Object::Chain(Arc::new(chain)));
    let rules = contents.rules.into_iter().map(|rule| Object::Rule(Arc::new(rule)));
    for object in tenants.chain(chains).chain(rules) {
        let name = object.name();
        let label = label(&name).filter(|_| !matches!(object, Object::Tenant(_)));
        texts.insert(name, text(&Labelled { object, label })?);
    }
    Ok(texts)
}

/// Returns an object as TOML.
fn text(Labelled { object, label }: &Labelled<Object>) -> anyhow::Result<String> {
    let (name, label) = (object.name(), label.as_ref());
    match object {
        Object::Module(module) => uploaded(&name, &module.digest, label),
        Object::Key(key) => uploaded(&name, &key.digest, label),
        Object::Model(model) => uploaded(&name, &model.digest, label),
        Object::Tenant(tenant) => toml_of(&name, &**tenant, label),
        Object::Chain(chain) => toml_of(&name, &**chain, label),
        Object::Rule(rule) => toml_of(&name, &**rule, label),
    }
}

/// Returns the TOML of what only has a name and a digest to compare.
fn uploaded(object: &ObjectRef, digest: &Digest, label: Option<&Label>) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Uploaded<'a> {
        name: &'a str,
        digest: &'a Digest,
    }
    toml_of(object, &Uploaded { name: object.name(), digest }, label)
}

/// Returns a value as TOML, with the label after its name.
fn toml_of(object: &ObjectRef, value: &impl Serialize, label: Option<&Label>) -> anyhow::Result<String> {
    let mut table = toml::Table::new();
    for (key, value) in toml::Table::try_from(value)? {
        let is_name = key == "name";
        // The header of the difference has the tenant.
        if key != "tenant" {
            table.insert(key, value);
        }
        if let Some(label) = label.filter(|_| is_name) {
            table.insert("label".to_owned(), label.to_string().into());
        }
    }
    if let Some(stages) = table.get_mut("stages").and_then(toml::Value::as_array_mut) {
        stages.iter_mut().filter_map(toml::Value::as_table_mut).for_each(write_config);
    }
    let document = toml::Table::from_iter([(object.kind().to_owned(), toml::Value::Array(vec![table.into()]))]);
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

    fn echo(config: &[u8]) -> Labelled<Object> {
        let stage = Stage::new("m".parse().unwrap(), config.to_vec());
        let chain = Chain::new("demo".parse().unwrap(), "echo".parse().unwrap(), vec![stage]);
        Labelled { object: Object::Chain(Arc::new(chain)), label: None }
    }

    fn texts(objects: &[Labelled<Object>]) -> Texts {
        objects.iter().map(|object| (object.name(), text(object).unwrap())).collect()
    }

    #[test]
    fn an_object_is_written_as_in_a_manifest_with_its_defaults() {
        let text = text(&echo(b"hello")).unwrap();
        assert!(text.starts_with("[[chain]]\n"), "{text}");
        for line in ["name = \"echo\"", "idle_timeout_ms = 300000", "module = \"m\"", "config = \"hello\""] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
        assert!(!text.contains("tenant") && !text.contains("label"), "{text}");
    }

    #[test]
    fn another_label_is_a_difference() {
        let labelled = Labelled { label: Some("web".parse().unwrap()), ..echo(b"a") };
        let found = differences(&texts(&[echo(b"a")]), "the node", &texts(&[labelled]), "the manifest");
        let [Difference { diff, .. }] = &found[..] else { panic!("{found:?}") };
        assert!(diff.contains("\n name = \"echo\"\n+label = \"web\"\n"), "{diff}");
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
