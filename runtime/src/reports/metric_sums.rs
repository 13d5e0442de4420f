//! Functions' counters and gauges, added up by chain and stage.
//!
//! ```text
//!   launcher  worker and MMA have released an instance: its counters --added--> the chain's account (Sums)
//!   control   accounts, and the readings of instances not yet settled --added up--> series
//! ```
//!
//! So a counter survives the instances that counted, and each count is in exactly one place. This module bounds what is kept and shown of
//! each chain. No tenant can take another's room, and the names of series begin with their owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pinion_builder_client::metrics::{Kind, Metric};
use pinion_control::metrics::{MetricStatus, MetricValue};
use pinion_control::model::{Chain, ModuleName, TenantName};
use pinion_gateway::id::InstanceId;

use crate::ids::ChainKey;
use crate::instruments::metrics::Readings;
use crate::reports::chain_accounts::{ChainAccount, ChainAccounts};

/// The most counters of a tenant that are kept for instances that have ended.
const KEPT_MAX: usize = 16_384;
/// The most series of a chain that are shown.
pub const SERIES_MAX: usize = 4096;

/// A stage of a chain, by its position and its module.
type StageKey = (usize, ModuleName);

/// A metric compared by its name and labels, since metrics of two templates may be the same.
#[derive(Clone)]
struct ByWords(Arc<Metric>);

impl ByWords {
    fn words(&self) -> (&str, &[(String, String)]) {
        (&self.0.name, &self.0.labels)
    }
}

impl PartialEq for ByWords {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl Eq for ByWords {}

impl PartialOrd for ByWords {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByWords {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.words().cmp(&other.words())
    }
}

/// Counters of ended instances of a chain.
#[derive(Default)]
struct Account {
    modules: Vec<ModuleName>,
    counters: BTreeMap<StageKey, BTreeMap<ByWords, u64>>,
}

impl Account {
    fn count(&self) -> usize {
        self.counters.values().map(BTreeMap::len).sum()
    }

    /// Continues for a chain with these stages; counts of other stages are dropped.
    fn follow(&mut self, modules: Vec<ModuleName>) {
        self.counters.retain(|(stage, module), _| modules.get(*stage) == Some(module));
        self.modules = modules;
    }
}

/// An instance's stages, in their order, each with or without metrics.
pub struct Stages(pub Vec<(ModuleName, Option<Arc<Readings>>)>);

impl Stages {
    fn readings(&self) -> impl Iterator<Item = (StageKey, &Arc<Readings>)> {
        let stages = self.0.iter().enumerate();
        stages.filter_map(|(at, (module, readings))| Some(((at, module.clone()), readings.as_ref()?)))
    }
}

/// The metrics of all chains; kept by the status table.
#[derive(Default)]
pub struct Sums {
    accounts: ChainAccounts<Account, Arc<Stages>>,
    /// The number of counters kept for each tenant.
    kept: BTreeMap<TenantName, usize>,
}

impl Sums {
    /// Opens accounts for these chains, and closes all others.
    pub fn follow<'c>(&mut self, chains: impl Iterator<Item = &'c Chain>) {
        self.accounts.follow(chains, Account::follow);
        self.count_kept();
    }

    fn count_kept(&mut self) {
        self.kept.clear();
        for ((tenant, _), account) in self.accounts.after(None) {
            *self.kept.entry(tenant.clone()).or_default() += account.settled.count();
        }
    }

    /// Adds an instance of a chain, if it has metrics.
    pub fn open(&mut self, id: InstanceId, chain: ChainKey, stages: Stages) {
        if stages.0.iter().any(|(_, readings)| readings.is_some()) {
            self.accounts.open(id, chain, Arc::new(stages));
        }
    }

    /// Adds an instance's counts to its chain's account. Its worker has read it for the last time.
    pub fn settle(&mut self, id: InstanceId) {
        let Some(((tenant, chain), account, ended)) = self.accounts.settle(id) else { return };
        let declared: usize = ended.readings().map(|(_, readings)| readings.metrics().len()).sum();
        if KEPT_MAX - self.kept.get(&tenant).copied().unwrap_or(0) < declared {
            account.forget_unused();
            self.count_kept();
        }
        let kept = self.kept.entry(tenant.clone()).or_default();
        let Some(account) = self.accounts.get_mut(&(tenant, chain)) else { return };
        let account = &mut account.settled;
        for (stage, readings) in ended.readings() {
            // The chain no longer has this stage.
            if account.modules.get(stage.0) != Some(&stage.1) {
                continue;
            }
            let counters = account.counters.entry(stage).or_default();
            for (metric, _, value) in readings.values().filter(|(metric, ..)| metric.kind == Kind::Counter) {
                let metric = ByWords(Arc::clone(metric));
                if let Some(sum) = counters.get_mut(&metric) {
                    *sum = sum.wrapping_add(value);
                } else if *kept < KEPT_MAX {
                    *kept += 1;
                    counters.insert(metric, value);
                }
            }
        }
    }

    /// Returns the data of those of the chains behind this one in the order of names, or of all, for which `is_meant` holds, to be added up
    /// without the lock.
    pub fn after<M: Fn(&ChainKey) -> bool>(
        &self,
        chain: Option<&ChainKey>,
        is_meant: M,
    ) -> impl Iterator<Item = ChainSums> + use<'_, M> {
        let meant = self.accounts.after(chain).filter(move |(key, _)| is_meant(key));
        meant.map(|(key, ChainAccount { settled, counting })| {
            let settled = settled.counters.iter().flat_map(|(stage, counters)| {
                counters.iter().map(|(metric, value)| (stage.clone(), Arc::clone(&metric.0), *value))
            });
            ChainSums { chain: key.clone(), settled: settled.collect(), counting: counting.values().cloned().collect() }
        })
    }
}

impl ChainAccount<Account, Arc<Stages>> {
    /// Drops counters that no instance has any more: those of earlier configurations, each of which may have had different ones.
    fn forget_unused(&mut self) {
        let stages = self.counting.values().flat_map(|stages| stages.readings());
        let used: BTreeSet<(StageKey, ByWords)> = stages
            .flat_map(|(stage, readings)| {
                readings.metrics().iter().map(move |metric| (stage.clone(), ByWords(Arc::clone(metric))))
            })
            .collect();
        for (stage, counters) in &mut self.settled.counters {
            counters.retain(|metric, _| used.contains(&(stage.clone(), metric.clone())));
        }
    }
}

/// The data of a chain's series at one point in time.
pub struct ChainSums {
    chain: ChainKey,
    settled: Vec<(StageKey, Arc<Metric>, u64)>,
    counting: Vec<Arc<Stages>>,
}

impl ChainSums {
    /// Returns the chain.
    #[must_use]
    pub fn chain(&self) -> &ChainKey {
        &self.chain
    }

    /// Returns how many sums and instances were read for it.
    pub(super) fn counts(&self) -> usize {
        self.settled.len() + self.counting.len()
    }

    /// Returns the chain's series by stage, name and labels, at most [`SERIES_MAX`]. If there are more, series with labels that change are
    /// left out first.
    #[must_use]
    pub fn series(&self) -> Vec<MetricStatus> {
        let mut series = Series { chain: &self.chain, by_words: BTreeMap::new() };
        let mut change = Vec::new();
        for (stage, readings) in self.counting.iter().flat_map(|stages| stages.readings()) {
            for (metric, text, value) in readings.values() {
                match text {
                    None => series.add(&stage, metric, None, value),
                    text => change.push((stage.clone(), metric, text, value)),
                }
            }
        }
        for (stage, metric, value) in &self.settled {
            series.add(stage, metric, None, *value);
        }
        change.into_iter().for_each(|(stage, metric, text, value)| series.add(&stage, metric, text, value));
        series.by_words.into_values().collect()
    }
}

type Labels = Vec<(String, String)>;

struct Series<'a> {
    chain: &'a ChainKey,
    by_words: BTreeMap<(StageKey, Kind, String, Labels), MetricStatus>,
}

impl Series<'_> {
    fn add(&mut self, stage: &StageKey, metric: &Metric, text: Option<String>, value: u64) {
        let mut labels = metric.labels.clone();
        labels.extend(metric.text.iter().zip(text).map(|(label, value)| (label.name.clone(), value)));
        let key = (stage.clone(), metric.kind, metric.name.clone(), labels);
        if let Some(status) = self.by_words.get_mut(&key) {
            status.value.add(value);
        } else if self.by_words.len() < SERIES_MAX {
            let status = self.status(stage, metric, key.3.clone(), value);
            self.by_words.insert(key, status);
        }
    }

    fn status(&self, (stage, module): &StageKey, metric: &Metric, labels: Labels, value: u64) -> MetricStatus {
        MetricStatus {
            tenant: self.chain.0.clone(),
            chain: self.chain.1.clone(),
            stage: *stage as u32,
            module: module.clone(),
            name: metric.name.clone(),
            help: metric.help.clone(),
            labels,
            value: match metric.kind {
                Kind::Counter => MetricValue::Counter(value),
                Kind::Gauge => MetricValue::Gauge(value as i64),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_builder_client::metrics::TextLabel;
    use pinion_control::model::Stage as ChainStage;

    use super::*;

    fn metric(kind: Kind, name: &str, value: u32) -> Metric {
        Metric { kind, name: name.into(), help: "Help.".into(), labels: Vec::new(), value, text: None }
    }

    /// Returns a counter at 0, a gauge at 8, and a gauge at 16 with its changing label at 24.
    fn three() -> Arc<[Arc<Metric>]> {
        let text = Some(TextLabel { name: "who".into(), address: 24 });
        let top = Metric { text, ..metric(Kind::Gauge, "top", 16) };
        [metric(Kind::Counter, "hits", 0), metric(Kind::Gauge, "depth", 8), top].map(Arc::new).into()
    }

    fn chain(name: &str, modules: &[&str]) -> Chain {
        let stages = modules.iter().map(|module| ChainStage::new(module.parse().unwrap(), Vec::new())).collect();
        Chain::new("t".parse().unwrap(), name.parse().unwrap(), stages)
    }

    fn key(chain: &Chain) -> ChainKey {
        (chain.tenant.clone(), chain.name.clone())
    }

    /// Adds an instance with these metrics in its first stage.
    fn open(sums: &mut Sums, id: u64, chain: &Chain, metrics: &Arc<[Arc<Metric>]>) -> Arc<Readings> {
        let readings = Arc::new(Readings::new(metrics));
        let stages = vec![(chain.stages[0].module.clone(), Some(Arc::clone(&readings)))];
        sums.open(InstanceId(id), key(chain), Stages(stages));
        readings
    }

    /// Returns a memory that consists of these words.
    fn memory<const N: usize>(words: [u64; N]) -> impl Fn(u32) -> u64 {
        move |at| words.get(at as usize / 8).copied().unwrap_or(0)
    }

    /// Returns `name{labels} value` for each of the chain's series.
    fn shown(sums: &Sums, chain: &Chain) -> Vec<String> {
        let of_chain = sums.after(None, |of| *of == key(chain));
        let series: Vec<MetricStatus> = of_chain.flat_map(|sums| sums.series()).collect();
        let line = |status: MetricStatus| {
            let labels: Vec<String> = status.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let value = match status.value {
                MetricValue::Counter(value) => value.to_string(),
                MetricValue::Gauge(value) => value.to_string(),
            };
            format!("{}/{}{{{}}} {value}", status.stage, status.name, labels.join(","))
        };
        series.into_iter().map(line).collect()
    }

    #[test]
    fn counters_sum_over_all_instances_and_gauges_over_live_ones() {
        let (chain, metrics, mut sums) = (chain("c", &["m"]), three(), Sums::default());
        sums.follow([&chain].into_iter());
        let [first, second] = [1, 2].map(|id| open(&mut sums, id, &chain, &metrics));
        first.take(memory([5, 7, 0, 0]));
        second.take(memory([3, -2_i64 as u64, 9, 1 | u64::from(b'x') << 32]));
        assert_eq!(shown(&sums, &chain), ["0/hits{} 8", "0/depth{} 5", "0/top{who=x} 9"]);
        sums.settle(InstanceId(1));
        sums.settle(InstanceId(1));
        assert_eq!(shown(&sums, &chain), ["0/hits{} 8", "0/depth{} -2", "0/top{who=x} 9"]);
        second.take(memory([4, 0, 9, 0]));
        assert_eq!(shown(&sums, &chain), ["0/hits{} 9", "0/depth{} 0"]);
        sums.settle(InstanceId(2));
        assert_eq!(shown(&sums, &chain), ["0/hits{} 9"]);
    }

    #[test]
    fn counters_live_as_long_as_their_stage_and_chain() {
        let (old, new, metrics, mut sums) = (chain("c", &["m"]), chain("c", &["n"]), three(), Sums::default());
        sums.follow([&old].into_iter());
        open(&mut sums, 1, &old, &metrics).take(memory([5, 0, 0]));
        let leaving = open(&mut sums, 2, &old, &metrics);
        sums.settle(InstanceId(1));
        sums.follow([&old].into_iter());
        assert_eq!(shown(&sums, &old), ["0/hits{} 5", "0/depth{} 0"]);
        sums.follow([&new].into_iter());
        leaving.take(memory([1, 0, 0]));
        assert_eq!(shown(&sums, &old), ["0/hits{} 1", "0/depth{} 0"]);
        sums.settle(InstanceId(2));
        assert_eq!(shown(&sums, &new), [""; 0]);
        sums.follow(std::iter::empty());
        assert!(sums.after(None, |_| true).next().is_none() && sums.kept.is_empty());
    }

    #[test]
    fn kept_counters_of_a_tenant_are_bounded_and_unused_ones_make_room() {
        let (chain, mut sums) = (chain("c", &["m"]), Sums::default());
        sums.follow([&chain].into_iter());
        // Each configuration has different counters.
        for edition in 0..200 {
            let metrics: Vec<Metric> =
                (0..128).map(|at| metric(Kind::Counter, &format!("e{edition}_{at}"), at * 8)).collect();
            open(&mut sums, edition, &chain, &metrics.into_iter().map(Arc::new).collect()).take(|_| 1);
            sums.settle(InstanceId(edition));
            let kept = sums.accounts.get(&key(&chain)).expect("it is followed").settled.count();
            assert!(kept <= KEPT_MAX && sums.kept.values().sum::<usize>() == kept, "{kept}");
        }
        assert_eq!(sums.after(None, |_| true).next().expect("it is followed").series().len(), SERIES_MAX);
    }

    #[test]
    fn labels_that_change_are_left_out_before_others_when_a_chain_has_too_many() {
        let (chain, metrics, mut sums) = (chain("c", &["m"]), three(), Sums::default());
        sums.follow([&chain].into_iter());
        for id in 0..5_000 {
            let text = format!("{id:04}");
            let text = u32::from_le_bytes(text.as_bytes().try_into().unwrap());
            open(&mut sums, id, &chain, &metrics).take(memory([1, 1, 1, 4 | u64::from(text) << 32]));
        }
        let shown = shown(&sums, &chain);
        assert_eq!((shown.len(), &*shown[0], &*shown[1]), (SERIES_MAX, "0/hits{} 5000", "0/depth{} 5000"));
    }
}
