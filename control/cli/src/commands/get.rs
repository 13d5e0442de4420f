//! `pinion get`: lists objects.

mod kinds;

use pinion_control::Client;
use pinion_control::client::Filter;
use pinion_control::manifest::written;
use pinion_control::model::{Label, Labelled, Object, TenantName};
use serde_json::{Map, Value};

pub(super) use self::kinds::users;
use super::{BadInput, shown_tenant};
use crate::args::{Kind, OutputFormat, Scope, Selected, selected};
use crate::contexts::Target;
use crate::output;

/// The objects of one kind that were found.
struct Found {
    kind: Kind,
    /// The headings of all columns.
    headings: &'static [&'static str],
    /// How many of the columns are shown without `-o wide`.
    narrow: usize,
    items: Vec<Item>,
}

/// An object.
struct Item {
    /// Its name or id.
    name: String,
    /// All of it.
    value: Value,
    /// The texts of all columns.
    row: Vec<String>,
    /// The object itself, if it is one of a manifest.
    object: Option<Labelled<Object>>,
}

/// Lists the objects that these words name; of those only such with this label, if one is given.
pub(super) async fn run(
    target: &Target,
    words: &[String],
    label: Option<Label>,
    scope: Scope,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let selected = selected(words, &Kind::ALL).map_err(BadInput::from)?;
    if format == OutputFormat::Toml
        && let Some(other) = selected.iter().find(|one| !Kind::OF_MANIFESTS.contains(&one.kind))
    {
        return Err(BadInput::NotInManifests(other.kind.plural()).into());
    }
    if let Some(other) = selected.iter().find(|one| label.is_some() && !Kind::OF_TENANTS.contains(&one.kind)) {
        return Err(BadInput::NoLabels(other.kind.plural()).into());
    }
    let tenant = shown_tenant(target, scope);
    let mut client = target.connect().await?;
    let mut found = Vec::new();
    for one in selected {
        let is_named = !one.names.is_empty();
        let mut of_kind = find(&mut client, one, tenant.as_ref()).await?;
        if format == OutputFormat::Toml {
            without_implicit(&mut of_kind, is_named)?;
        }
        let has_label = |item: &Item| item.object.as_ref().is_some_and(|object| object.label == label);
        of_kind.items.retain(|item| label.is_none() || has_label(item));
        found.push(of_kind);
    }
    print(&found, tenant.as_ref(), format)
}

/// Returns an object as a manifest.
pub(super) async fn manifest(
    client: &mut Client,
    kind: Kind,
    name: String,
    tenant: &TenantName,
) -> anyhow::Result<String> {
    let mut found = find(client, Selected { kind, names: vec![name] }, Some(tenant)).await?;
    without_implicit(&mut found, true)?;
    Ok(written(&objects(&[found]))?)
}

/// Leaves out chains that calls have made, which no manifest defines, unless they are named.
fn without_implicit(found: &mut Found, is_named: bool) -> Result<(), BadInput> {
    match found.items.iter().find(|item| item.object.is_none()) {
        Some(item) if is_named => Err(BadInput::ImplicitChain(item.name.clone())),
        _ => {
            found.items.retain(|item| item.object.is_some());
            Ok(())
        }
    }
}

fn objects(found: &[Found]) -> Vec<Labelled<Object>> {
    found.iter().flat_map(|found| &found.items).filter_map(|item| item.object.clone()).collect()
}

/// Returns the objects of a kind, all of which must be there if they are named.
async fn find(
    client: &mut Client,
    Selected { kind, names }: Selected,
    tenant: Option<&TenantName>,
) -> anyhow::Result<Found> {
    // The node looks for one name, and lists all for several.
    let name = if let [name] = &names[..] { Some(name.clone()) } else { None };
    let mut found = kinds::find(client, kind, Filter { tenant: tenant.cloned(), name }).await?;
    if names.is_empty() {
        return Ok(found);
    }
    found.items.retain(|item| names.contains(&item.name));
    match names.into_iter().find(|name| !found.items.iter().any(|item| item.name == *name)) {
        Some(name) => Err(not_found(kind, name, tenant).into()),
        None => Ok(found),
    }
}

fn not_found(kind: Kind, name: String, tenant: Option<&TenantName>) -> BadInput {
    match tenant.filter(|_| kind != Kind::Tenant) {
        Some(tenant) => BadInput::NotFoundOf { kind: label(kind), name, tenant: tenant.clone() },
        None => BadInput::NotFound { kind: label(kind), name },
    }
}

/// Returns what one object of the kind is in a sentence.
fn label(kind: Kind) -> &'static str {
    if kind == Kind::State { "state field" } else { kind.singular() }
}

fn print(found: &[Found], tenant: Option<&TenantName>, format: OutputFormat) -> anyhow::Result<()> {
    match format {
        OutputFormat::Json => output::json(&values(found)),
        OutputFormat::Yaml => output::yaml(&values(found)),
        OutputFormat::Toml => output::write(&written(&objects(found))?),
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name
            if found.iter().all(|found| found.items.is_empty()) =>
        {
            output::say(&nothing(found, tenant));
            Ok(())
        }
        OutputFormat::Name => {
            let lines = found.iter().flat_map(|Found { kind, items, .. }| {
                items.iter().map(|item| format!("{}/{}", kind.singular(), output::printable(&item.name)))
            });
            lines.into_iter().try_for_each(|line| output::print(&line))
        }
        OutputFormat::Table | OutputFormat::Wide => {
            let tables: Vec<String> = found
                .iter()
                .filter(|found| !found.items.is_empty())
                .map(|one| table(one, format == OutputFormat::Wide, found.len() > 1))
                .collect();
            output::print(&tables.join("\n\n"))
        }
    }
}

/// Returns a list for one kind, and for several an object with a list for each.
fn values(found: &[Found]) -> Value {
    let list = |found: &Found| Value::Array(found.items.iter().map(|item| item.value.clone()).collect());
    match found {
        [one] => list(one),
        several => {
            Value::Object(several.iter().map(|one| (one.kind.plural().to_owned(), list(one))).collect::<Map<_, _>>())
        }
    }
}

/// Says that nothing was found, and where else something may be.
fn nothing(found: &[Found], tenant: Option<&TenantName>) -> String {
    let what = if let [one] = found { label(one.kind) } else { "object" };
    match tenant.filter(|_| found.iter().any(|found| found.kind != Kind::Tenant)) {
        Some(tenant) => format!("There is no {what} of tenant {tenant}; --all-tenants (-A) lists those of all."),
        None => format!("There is no {what}."),
    }
}

/// Formats a table. Among tables of other kinds, names have their kind before them.
fn table(Found { kind, headings, narrow, items }: &Found, is_wide: bool, is_one_of_several: bool) -> String {
    let columns = if is_wide { headings.len() } else { *narrow };
    let named = headings.iter().position(|heading| *heading == "NAME").filter(|_| is_one_of_several);
    let rows = items.iter().map(|item| {
        let mut row = item.row[..columns].to_vec();
        if let Some(at) = named {
            row[at] = format!("{}/{}", kind.singular(), row[at]);
        }
        row
    });
    output::columns(&headings[..columns], rows)
}
