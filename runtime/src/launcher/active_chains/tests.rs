//! Which chain gets the next instance, and when none does.

use std::cmp::Reverse;
use std::time::Duration;

use fastrand::Rng;
use pinion_control::model::{Chain, Change, Class, Digest, Module, ModuleName, Stage, Tenant};

use super::entry::{BACK_OFF_MIN, SLOW, SLOW_REST_FACTOR};
use super::*;
use crate::launcher::granted_objects::fake;
use crate::launcher::preparation_queue::Need;
use crate::state::StateLimits;
use crate::templates::artifacts::Artifacts;
use crate::templates::bundles::Bundles;
use crate::templates::derived::Derived;
use crate::templates::engine::{self, Reset};
use crate::tenants::accounts::TenantLimits;
use crate::tenants::scheduling_params::CpuGrants;

/// The chains of a node without workers, which needs no templates. Each has one stage; `cache_mins` are their `cache_min`.
struct House {
    catalogue: ActiveChains,
    now: Instant,
    has_room: bool,
    _templates: tempfile::TempDir,
}

impl House {
    fn new(cache_mins: &[u32]) -> Self {
        let templates = tempfile::tempdir().unwrap();
        let engine = engine::engine(1, Reset::Overwrite).unwrap();
        let derived = Arc::new(Derived::new(templates.path()));
        let artifacts = Artifacts::open(templates.path().join("templates"), &engine, Arc::clone(&derived));
        let artifacts = Arc::new(artifacts.unwrap());
        let bundles = Arc::new(Bundles::open(templates.path().join("files"), derived).unwrap());
        let accounts = Arc::new(Accounts::new(TenantLimits::default()));
        let (tenants, meters) = (Tenants::new(CpuGrants::default()), Arc::new(Meters::new(1)));
        let store =
            Arc::new(StateStore::new(StateLimits { default_bytes: 0, by_name: HashMap::new(), total_bytes: u64::MAX }));
        let loaded = Arc::new(LoadedTemplates::new(artifacts, bundles, Arc::clone(&accounts), Vec::new()));
        let trials = Arc::new(Trials::open(templates.path()));
        let granted = Arc::new(GrantedObjects::new(Arc::clone(&accounts)));
        let records = ChainRecords { accounts, tenants, meters, state: store, granted, trials };
        let mut catalogue = ActiveChains::new(loaded, records, BTreeMap::new());
        let followed = catalogue.follow(&state(cache_mins));
        assert_eq!(followed.warnings, Vec::<String>::new());
        Self { catalogue, now: Instant::now(), has_room: true, _templates: templates }
    }

    /// Returns the chain of the next instance.
    fn next(&mut self) -> Option<u32> {
        self.catalogue.next_lacking(self.now, |_, _| self.has_room).map(|index| index.0)
    }

    fn chain(&mut self, index: u32) -> &mut ChainEntry {
        self.catalogue.chain_mut(ChainIndex(index)).unwrap()
    }

    /// Prepares missing instances until none is missing. Returns their chains in order.
    fn fill(&mut self) -> Vec<u32> {
        let next = || {
            let index = self.next()?;
            self.chain(index).ready += 1;
            Some(index)
        };
        std::iter::from_fn(next).collect()
    }

    /// Gives an instance of the chain to a client.
    fn take(&mut self, index: u32) {
        let chain = self.chain(index);
        chain.left_cache(chain.edition);
    }
}

fn state(cache_mins: &[u32]) -> DesiredState {
    let (tenant, module) = ("t".parse::<TenantName>().unwrap(), "m".parse::<ModuleName>().unwrap());
    let chain = |(number, cache_min): (usize, &u32)| {
        let stages = vec![Stage::new(module.clone(), Vec::new())];
        let named = Chain::new(tenant.clone(), format!("c{number:04}").parse().unwrap(), stages);
        Chain { cache_min: *cache_min, ..named }
    };
    let change = Change {
        modules: vec![Module { tenant: tenant.clone(), name: module.clone(), digest: Digest::of(b"m"), size_bytes: 1 }],
        chains: cache_mins.iter().enumerate().map(chain).collect(),
        ..Change::default()
    };
    DesiredState::default().apply(&change).unwrap().state
}

#[test]
fn chains_with_fewer_ready_instances_come_first_and_all_get_theirs() {
    let mut house = House::new(&[2, 0, 3]);
    assert_eq!(house.fill(), [2, 0, 2, 0, 2]);
    assert_eq!(house.next(), None);
    house.take(0);
    house.take(2);
    house.take(2);
    assert_eq!(house.fill(), [2, 0, 2]);
}

#[test]
fn a_chain_that_a_client_waits_for_comes_first_though_it_keeps_nothing_ready() {
    let mut house = House::new(&[0, 4]);
    house.chain(0).wanted = true;
    assert_eq!(house.next(), Some(0));
    let chain = house.chain(0);
    (chain.ready, chain.wanted) = (1, false);
    assert_eq!(house.next(), Some(1));
}

#[test]
fn a_chain_that_failed_rests_and_each_failure_doubles_the_rest() {
    let mut house = House::new(&[1, 0]);
    for doublings in 0..4 {
        let now = house.now;
        house.chain(0).failed(now);
        let rest = BACK_OFF_MIN * (1 << doublings);
        assert_eq!((house.next(), house.catalogue.next_resumption()), (None, Some(now + rest)));
        house.now = now + rest - Duration::from_nanos(1);
        assert_eq!(house.next(), None);
        house.now = now + rest;
        assert_eq!((house.next(), house.catalogue.next_resumption()), (Some(0), None));
    }
}

#[test]
fn taken_instances_are_replaced_in_the_next_pause_or_when_a_quarter_is_left() {
    let mut house = House::new(&[8]);
    house.fill();
    for left in (3..8).rev() {
        house.take(0);
        house.now += Duration::from_millis(1);
        let now = house.now;
        house.chain(0).client_came(now);
        house.chain(0).ready_wanted = 8;
        assert_eq!(house.next(), None, "{left} are left");
    }
    let pause_ends = house.catalogue.next_resumption().unwrap();
    assert_eq!(pause_ends, house.now + Duration::from_millis(5));
    house.take(0);
    assert_eq!(house.fill(), [0], "a quarter is kept while clients come");
    house.now = pause_ends;
    assert_eq!(house.fill(), [0; 5]);
}

#[test]
fn a_chain_that_takes_long_to_prepare_lets_others_go_first_for_a_while() {
    let mut house = House::new(&[2, 2]);
    let now = house.now + 2 * SLOW;
    let chain = house.chain(1);
    chain.ready += 1;
    chain.prepared(2 * SLOW, now);
    house.now = now;
    house.chain(0).ready = 1;
    assert_eq!(house.next(), Some(0));
    house.chain(0).ready = 2;
    assert_eq!((house.next(), house.catalogue.next_resumption()), (None, Some(now + 2 * SLOW * SLOW_REST_FACTOR)));
    house.chain(1).wanted = true;
    assert_eq!(house.next(), None, "its client gets the one that is ready");
    house.chain(1).ready = 0;
    assert_eq!(house.next(), Some(1), "a client waits, and none is ready");
}

#[test]
fn a_chain_without_room_is_next_as_soon_as_there_is_some() {
    let mut house = House::new(&[1]);
    house.has_room = false;
    assert_eq!(house.next(), None);
    let without_room = house.catalogue.without_room(|_, _| false);
    assert_eq!(without_room.iter().map(|chains| chains.first).collect::<Vec<_>>(), [ChainIndex(0)]);
    house.has_room = true;
    assert_eq!(house.next(), Some(0));
}

#[test]
fn while_memory_is_short_the_level_limits_ready_instances_but_a_waiting_client_gets_one() {
    let mut house = House::new(&[3, 3]);
    house.catalogue.set_ready_max(Level::Caches);
    assert_eq!(house.fill(), [1, 0]);
    house.catalogue.set_ready_max(Level::Templates);
    house.take(0);
    assert_eq!(house.next(), None);
    house.chain(0).wanted = true;
    assert_eq!(house.next(), Some(0));
    house.chain(0).wanted = false;
    house.catalogue.set_ready_max(Level::Calm);
    assert_eq!(house.fill().len(), 5);
}

#[test]
fn after_a_change_new_chains_get_instances_and_removed_chains_get_none() {
    let mut house = House::new(&[1, 1]);
    house.fill();
    house.catalogue.follow(&state(&[1, 2, 1]));
    assert_eq!(house.fill(), [2, 1]);
    house.take(2);
    house.catalogue.follow(&state(&[1]));
    assert_eq!(house.next(), None);
}

/// Returns that state with these terms of the tenant `t`.
fn with_terms(state: &DesiredState, terms: Tenant) -> DesiredState {
    state.apply(&Change { tenants: vec![terms], ..Change::default() }).unwrap().state
}

#[test]
fn a_tenants_other_weight_and_rate_leave_its_instances_as_they_are() {
    let mut house = House::new(&[1, 1]);
    house.fill();
    let editions = |house: &House| house.catalogue.chains().map(|(_, chain)| chain.edition).collect::<Vec<_>>();
    let before = editions(&house);
    let terms = Tenant { weight: 5, cpu_per_second_ms: Some(100), ..Tenant::new("t".parse().unwrap()) };
    let state = with_terms(&state(&[1, 1]), terms);
    let followed = house.catalogue.follow(&state);
    assert_eq!((followed.changed, editions(&house)), (vec![], before));
    let [regranted] = followed.regranted[..] else { panic!("one tenant has other terms") };
    assert_eq!((regranted.weight, regranted.rate.is_some()), (5, true));
    assert_eq!(house.catalogue.weights(), [(regranted.tenant, 5)]);
    assert_eq!(house.chain(0).owner().weight, 5);
    assert_eq!(house.catalogue.follow(&state).regranted, []);
}

#[test]
fn chains_whose_class_or_clock_is_another_by_their_tenants_terms_get_a_new_edition() {
    let mut house = House::new(&[1, 1]);
    let tenant = || Tenant::new("t".parse().unwrap());
    let mut change = Change::default();
    let latency = state(&[1, 1]).chains().values().next().map(|chain| Chain::clone(chain)).unwrap();
    let scheduling = pinion_control::model::Scheduling { class: Class::Latency, ..latency.scheduling };
    change.chains.push(Chain { scheduling, ..latency });
    let asking = state(&[1, 1]).apply(&change).unwrap().state;
    let [first, second] = [0, 1].map(ChainIndex);

    // It is not granted what it asks for: it has what is granted, and is told.
    let followed = house.catalogue.follow(&asking);
    assert_eq!((followed.changed, followed.warnings.len()), (vec![first], 1));
    let granted = with_terms(&asking, Tenant { class_max: Class::Latency, ..tenant() });
    let followed = house.catalogue.follow(&granted);
    assert_eq!((followed.changed, followed.warnings), (vec![first], vec![]));
    assert_eq!(house.chain(0).terms.share.class, Class::Latency);
    // Less is granted: the chain stays, and gets that.
    let followed = house.catalogue.follow(&with_terms(&asking, tenant()));
    assert_eq!(followed.changed, [first]);
    assert!(followed.warnings[0].starts_with("chain t/c0000 has the class throughput and not latency"));
    let finer = with_terms(&asking, Tenant { clock_step_us: Some(1), ..tenant() });
    assert_eq!(house.catalogue.follow(&finer).changed, [first, second]);
}

/// Returns the next chain, found by checking all of them.
fn next_of_all(house: &House) -> Option<u32> {
    let wants =
        |(_, chain): &(ChainIndex, &ChainEntry)| house.has_room && matches!(chain.need(house.now), Need::Now { .. });
    let next = house.catalogue.chains().filter(wants).max_by_key(|(_, chain)| (chain.wanted, Reverse(chain.ready)));
    next.map(|(index, _)| index.0)
}

#[test]
fn after_any_events_the_next_chain_is_the_one_that_a_check_of_all_chains_finds() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let mins: Vec<u32> = (0..12).map(|_| rng.u32(0..4)).collect();
        let mut house = House::new(&mins);
        for step in 0..300 {
            let (index, now) = (rng.u32(0..12), house.now);
            let ready = house.catalogue.chain(ChainIndex(index)).unwrap().ready;
            match rng.u32(0..12) {
                0..3 if ready > 0 => house.take(index),
                3 => house.chain(index).wanted = true,
                4 => house.chain(index).client_came(now),
                5 => house.chain(index).failed(now),
                6 => house.has_room = false,
                7 => house.has_room = true,
                8 => {
                    house.catalogue.review(now);
                }
                9 => house.catalogue.set_ready_max(*rng.choice(&[Level::Calm, Level::Calm, Level::Caches]).unwrap()),
                _ => house.now += Duration::from_millis(rng.u64(0..400)),
            }
            let next = next_of_all(&house);
            assert_eq!(house.next(), next, "seed {seed}, step {step}");
            if let Some(next) = next.filter(|_| rng.bool()) {
                let (chain, now) = (house.chain(next), now);
                (chain.ready, chain.wanted) = (chain.ready + 1, false);
                chain.prepared(Duration::ZERO, now);
            }
        }
    }
}

#[test]
fn a_chain_with_another_key_of_the_same_name_is_another_edition_and_one_without_its_key_is_out_of_force() {
    let mut house = House::new(&[]);
    let granted = Arc::clone(&house.catalogue.records.granted);
    let editions = |house: &House| house.catalogue.chains().map(|(_, chain)| chain.edition).collect::<Vec<_>>();
    let [first, second] = [0, 1].map(|number| fake::state(&["a"], fake::digest(number)));
    let followed = house.catalogue.follow(&first);
    assert_eq!(followed.warnings, ["chain t/a is unavailable: its key site is not loaded"]);
    let load = |state: &DesiredState| {
        let chain = &state.chains()[&("t".parse().unwrap(), "a".parse().unwrap())];
        fake::load(&granted, state, chain).unwrap();
    };
    load(&first);
    assert_eq!(house.catalogue.follow(&first).warnings, Vec::<String>::new());
    let edition = editions(&house);
    assert!(house.catalogue.follow(&first).changed.is_empty());
    assert_eq!(editions(&house), edition);
    load(&second);
    assert_eq!(house.catalogue.follow(&second).changed.len(), 1);
    assert_ne!(editions(&house), edition);
}
