//! `pinion history`: what was changed, when and by whom.

use pinion_control::Client;
use pinion_control::model::{ObjectRef, Revision, RevisionFilter, TenantName};

use crate::args::{Format, History};
use crate::output;

/// How many objects of a revision are named in its line; further ones are counted.
const NAMED_MAX: usize = 3;

pub(super) async fn run(
    client: &mut Client,
    tenant: Option<TenantName>,
    History { object, before, limit, .. }: History,
    format: Format,
) -> anyhow::Result<()> {
    let (kind, name) = object.map_or((None, None), |object| (Some(object.kind), object.name));
    let filter = RevisionFilter { tenant: tenant.clone(), kind, name, before, limit: limit.into() };
    let revisions = client.revisions(filter).await?;
    match format {
        Format::Json => output::json(&revisions),
        Format::Table if revisions.is_empty() => {
            output::say(&match tenant {
                Some(tenant) => {
                    format!("There is no revision of tenant {tenant}; --all-tenants (-A) lists those of all.")
                }
                None => "There is no revision.".to_owned(),
            });
            Ok(())
        }
        Format::Table => output::print(&table(&revisions, tenant.is_some())),
    }
}

fn table(revisions: &[Revision], is_of_one_tenant: bool) -> String {
    let row = |revision: &Revision| {
        let time = output::time_of_day(revision.time_unix_ms);
        [revision.number.to_string(), time, revision.author.clone(), summary(revision, is_of_one_tenant)]
    };
    output::table(["REVISION", "TIME", "AUTHOR", "CHANGES"], revisions.iter().map(row))
}

/// Formats it as `chain/echo configured, rule/ping created`, with the tenants of objects if they may be of several.
fn summary(revision: &Revision, is_of_one_tenant: bool) -> String {
    let name = |object: &ObjectRef| match object {
        ObjectRef::Tenant { name } => format!("tenant/{name}"),
        _ if is_of_one_tenant => format!("{}/{}", object.kind(), object.name()),
        _ => format!("{}/{}/{}", object.kind(), object.tenant(), object.name()),
    };
    let named = revision.changes.iter().take(NAMED_MAX);
    let named = named.map(|change| format!("{} {}", name(&change.object), change.effect()));
    let more = revision.counts.total().saturating_sub(revision.changes.len().min(NAMED_MAX) as u64);
    named.chain((more > 0).then(|| format!("{more} more"))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use pinion_control::model::{ChangeCounts, Digest, ObjectChange};

    use super::*;

    #[test]
    fn a_revision_of_many_objects_names_some_and_counts_the_rest() {
        let change = |number: usize| ObjectChange {
            object: ObjectRef::Rule { tenant: "demo".parse().unwrap(), name: format!("r{number}").parse().unwrap() },
            before: (number == 1).then(|| Digest::of(b"before")),
            after: Some(Digest::of(b"after")),
        };
        let changes: Vec<ObjectChange> = (0..4).map(change).collect();
        let counts = ChangeCounts { created: 99, configured: 1, deleted: 0 };
        let revision = Revision { number: 7, author: "alice".into(), time_unix_ms: 0, counts, changes };
        assert_eq!(summary(&revision, true), "rule/r0 created, rule/r1 configured, rule/r2 created, 97 more");
        let first = table(&[revision], false);
        assert!(
            first.ends_with("alice    rule/demo/r0 created, rule/demo/r1 configured, rule/demo/r2 created, 97 more"),
            "{first}"
        );
    }
}
