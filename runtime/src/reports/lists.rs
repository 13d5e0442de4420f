//! Lists of what runs, in pages: each page is read from the status table when it is asked for. So however long a list is, and however slowly
//! it is read, it takes the memory of a page and of the numbers of its instances, and the launcher waits no longer for the table than one page
//! takes.

use std::collections::HashSet;
use std::sync::Arc;

use pinion_control::metrics::MetricStatus;
use pinion_control::model::TenantName;
use pinion_control::node::{ChainInstanceStatus, ChainStatus, FwpStatus, Pages};

use super::drop_ledger::ChainCounts;
use super::metric_sums::ChainSums;
use super::status_table::{InstanceEntry, StatusTable};
use crate::ids::ChainKey;

/// Entries of the table that are looked at, and FWPs or instances that are reported, for a page; a page has the entry with which one of the
/// two is reached. The last page has those that have ended as well.
const PAGE: usize = 64;
/// Chains that are read at a time, and instances of theirs; a part has the chain with which one of the two is reached. What the instances
/// have counted is only referred to then, and added up later.
const CHAINS: usize = 16;
const INSTANCES: usize = 256;
/// Sums and instances with metrics that are read at a time; a part has the chain with which this is reached.
const COUNTS: usize = 1024;

/// Lists the chains, without what they have used of the core and of memory.
#[must_use]
pub fn chains(table: &StatusTable) -> Vec<ChainStatus> {
    let (mut statuses, mut after) = (Vec::new(), None);
    loop {
        let page = table.read(|entries| {
            let (mut page, mut instances) = (Vec::new(), 0);
            for (status, counts) in entries.chains_after(after.as_ref()).take(CHAINS) {
                instances += counts.as_ref().map_or(0, ChainCounts::instances);
                page.push((status, counts));
                if instances >= INSTANCES {
                    break;
                }
            }
            page
        });
        let Some((last, _)) = page.last() else { return statuses };
        after = Some((last.tenant.clone(), last.chain.clone()));
        for (mut status, counts) in page {
            if let Some(counts) = counts {
                status.meter.copied_bytes = counts.copied_bytes();
                status.drops = counts.into_drops().report();
            }
            statuses.push(status);
        }
    }
}

/// Lists the metrics of the functions of the chains for which `is_meant` holds.
#[must_use]
pub fn metrics(table: &StatusTable, is_meant: impl Fn(&ChainKey) -> bool) -> Vec<MetricStatus> {
    let (mut series, mut after) = (Vec::new(), None);
    loop {
        let page = table.read(|entries| {
            let (mut page, mut counts) = (Vec::new(), 0);
            for sums in entries.metrics_after(after.as_ref(), &is_meant).take(CHAINS) {
                counts += sums.counts();
                page.push(sums);
                if counts >= COUNTS {
                    break;
                }
            }
            page
        });
        let Some(last) = page.last() else { return series };
        after = Some(last.chain().clone());
        series.extend(page.iter().flat_map(ChainSums::series));
    }
}

/// Lists chain instances, of one tenant or of all, and at the end those that have ended.
#[must_use]
pub fn chain_instances(table: Arc<StatusTable>, of: Option<TenantName>) -> Pages<ChainInstanceStatus> {
    Box::new(instances(table, of, |entry, page| page.push(entry.status())))
}

/// Lists the templates of chains, by stage, then FWPs, and at the end those that have ended; of one tenant or of all.
#[must_use]
pub fn fwps(table: Arc<StatusTable>, of: Option<TenantName>) -> Pages<FwpStatus> {
    let of_instances = instances(Arc::clone(&table), of.clone(), |entry, page| page.extend(entry.fwp_statuses()));
    Box::new(templates(table, of).chain(of_instances))
}

fn templates(table: Arc<StatusTable>, of: Option<TenantName>) -> impl Iterator<Item = Vec<FwpStatus>> + Send {
    let (mut after, mut is_over) = (None, false);
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        table.read(|entries| {
            let mut rest = entries.templates_after(after.as_ref());
            let mut page = Vec::new();
            let mut last = None;
            for (key, templates) in rest.by_ref().take(PAGE) {
                if of.as_ref().is_none_or(|of| *of == key.0) {
                    page.extend(templates.statuses(key));
                }
                last = Some(key.clone());
                if page.len() >= PAGE {
                    break;
                }
            }
            is_over = rest.next().is_none();
            drop(rest);
            after = last;
            Some(page)
        })
    })
}

/// Lists what `report` says of each instance that there is when the list begins, and of the latest that have ended, each once.
fn instances<T: Send + 'static>(
    table: Arc<StatusTable>,
    of: Option<TenantName>,
    report: fn(&InstanceEntry, &mut Vec<T>),
) -> impl Iterator<Item = Vec<T>> + Send {
    let (mut newest, mut after, mut listed, mut is_over) = (None, None, HashSet::new(), false);
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let is_meant = |entry: &&InstanceEntry| of.as_ref().is_none_or(|of| *of == entry.chain.0);
        table.read(|entries| {
            let newest = *newest.get_or_insert_with(|| entries.newest());
            let mut rest = entries.instances_after(after).take_while(|entry| Some(entry.id) <= newest);
            let mut page = Vec::new();
            for entry in rest.by_ref().take(PAGE) {
                if is_meant(&entry) {
                    listed.insert(entry.id);
                    report(entry, &mut page);
                }
                after = Some(entry.id);
                if page.len() >= PAGE {
                    break;
                }
            }
            is_over = rest.next().is_none();
            if is_over {
                let ended = entries.ended_instances().filter(is_meant).filter(|entry| !listed.contains(&entry.id));
                ended.for_each(|entry| report(entry, &mut page));
            }
            Some(page)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::plan::CoreId;
    use crate::fwp::end_reason::EndReason;
    use crate::fwp::instance_states::Life;
    use pinion_control::model::Chain;
    use pinion_gateway::drops::DropsByChain;
    use pinion_gateway::id::InstanceId;
    use std::time::Instant;

    fn table_of(instances: impl Iterator<Item = u64>) -> Arc<StatusTable> {
        let table = Arc::new(StatusTable::new(Arc::<DropsByChain>::default()));
        instances.for_each(|id| add(&table, id));
        table
    }

    fn key(tenant: &str, chain: &str) -> ChainKey {
        (tenant.parse().unwrap(), chain.parse().unwrap())
    }

    /// Adds an instance of the tenant `even` or `odd`.
    fn add(table: &StatusTable, id: u64) {
        add_to(table, key(if id.is_multiple_of(2) { "even" } else { "odd" }, "chain"), id);
    }

    fn add_to(table: &StatusTable, chain: ChainKey, id: u64) {
        table.entries().add(InstanceEntry {
            id: InstanceId(id),
            chain,
            core: CoreId(0),
            client: None,
            fwps: Vec::new(),
            holds: false,
            made: Instant::now(),
            life: Life::Cached,
            ended_because: None,
        });
    }

    fn ids(page: Vec<ChainInstanceStatus>) -> impl Iterator<Item = u64> {
        page.into_iter().map(|status| status.id)
    }

    #[test]
    fn a_list_comes_in_pages_and_has_each_instance_once_though_some_end_and_begin_meanwhile() {
        let table = table_of(0..1000);
        let mut pages = chain_instances(Arc::clone(&table), None);
        let mut listed: Vec<u64> = ids(pages.next().unwrap()).collect();
        assert_eq!(listed, (0..PAGE as u64).collect::<Vec<_>>());
        // One that was listed, one that was not.
        for id in [3, 900] {
            table.entries().ended(InstanceId(id), &EndReason::Returned);
        }
        add(&table, 1000);
        for page in pages {
            assert!(page.len() <= PAGE + 2, "{} instances in a page", page.len());
            listed.extend(ids(page));
        }
        let expected: Vec<u64> = (0..1000).filter(|id| *id != 900).chain([900]).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn a_list_of_one_tenant_has_no_other_tenants_instances() {
        let table = table_of(0..300);
        table.entries().ended(InstanceId(7), &EndReason::Returned);
        table.entries().ended(InstanceId(8), &EndReason::Returned);
        let listed: Vec<u64> = chain_instances(table, Some("odd".parse().unwrap())).flat_map(ids).collect();
        assert_eq!(listed, (0..300).filter(|id| id % 2 == 1 && *id != 7).chain([7]).collect::<Vec<_>>());
    }

    #[test]
    fn chains_are_listed_by_name_each_once_with_the_instances_that_they_have() {
        let table = table_of(0..0);
        let name = |number: usize| format!("chain-{number:03}");
        let chains: Vec<Chain> = (0..CHAINS * 2)
            .map(|number| Chain::new("even".parse().unwrap(), name(number).parse().unwrap(), Vec::new()))
            .collect();
        table.entries().follow(chains.iter());
        add_to(&table, key("even", &name(CHAINS)), 0);
        add_to(&table, key("even", &name(CHAINS)), 2);
        table.entries().set_life(InstanceId(2), Life::Serving);
        let listed: Vec<_> = super::chains(&table)
            .into_iter()
            .map(|status| (status.chain.to_string(), status.ready, status.active))
            .collect();
        let expected: Vec<_> = (0..CHAINS * 2)
            .map(|number| (name(number), (number == CHAINS).into(), (number == CHAINS).into()))
            .collect();
        assert_eq!(listed, expected);
        table.entries().ended(InstanceId(2), &EndReason::Returned);
        table.entries().set_life(InstanceId(2), Life::Cached);
        let one = super::chains(&table).swap_remove(CHAINS);
        assert_eq!((one.ready, one.active), (1, 0));
        assert_eq!(table.entries().last_end(&key("even", &name(CHAINS))), Some("its run function returned"));
    }

    #[test]
    fn a_list_of_nothing_is_empty() {
        assert!(super::chains(&table_of(0..0)).is_empty() && metrics(&table_of(0..0), |_| true).is_empty());
        assert_eq!(chain_instances(table_of(0..0), None).flatten().count(), 0);
        assert_eq!(fwps(table_of(0..0), None).flatten().count(), 0);
    }
}
