//! Power cuts, failed writes and restarts at any moment: what was acknowledged stays, and nothing else is there.

use proptest::prelude::*;

use super::history::{change_to, check_references};
use super::*;
use crate::model::RevisionFilter;
use crate::store::faults::Dice;

/// A store on a disk that can lose its power, and what it acknowledged.
struct Tried {
    folder: tempfile::TempDir,
    faults: Faults,
    dice: Dice,
    history: HistoryLimits,
    /// None only while it is opened again.
    store: Option<Store>,
    /// The acknowledged states, by version.
    states: Vec<DesiredState>,
}

impl Tried {
    fn new(seed: u64, revisions: u64) -> Self {
        let mut tried = Self {
            folder: tempfile::tempdir().unwrap(),
            faults: Faults::volatile(),
            dice: Dice(seed),
            history: HistoryLimits { revisions, ..HistoryLimits::default() },
            store: None,
            states: vec![DesiredState::default()],
        };
        tried.reopen();
        tried
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn now(&self) -> &DesiredState {
        self.states.last().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        let opened = Opened::open_with(&self.path(), self.faults.clone()).unwrap();
        let store = Store { opened, history: self.history, not_set_aside: Mutex::default() };
        store.check_format().unwrap();
        self.store = Some(store);
    }

    /// Ends the process and the power at once, and starts both again. Returns the state that is durable.
    fn crash(&mut self) -> DesiredState {
        self.store = None;
        self.faults.restore_power(&self.path(), &mut self.dice);
        self.reopen();
        let durable = self.store().load().unwrap();
        assert_eq!(self.store().recover(at(1000)).unwrap(), durable, "a crash damages nothing");
        durable
    }

    /// Uploads a module's bytes and makes it, as an apply does.
    fn set(&mut self, tenant: &TenantName, name: &str, number: u64) {
        let bytes = wasm(&number.to_string());
        let module = Module { tenant: tenant.clone(), name: name.parse().unwrap(), ..module(&number.to_string()) };
        let answer = self.store().put_upload(tenant, &module.digest, &bytes, at(1000));
        if !self.faults.has_power() {
            assert_eq!(&self.crash(), self.now());
        } else if answer.is_ok() {
            self.make(&Change { modules: vec![module], ..Change::default() });
        }
    }

    /// Makes a change. Without power there is no answer, and the change is there or not. An answer is true.
    fn make(&mut self, change: &Change) {
        let applied = self.now().apply(change).unwrap();
        if !applied.changed() {
            return;
        }
        let answer = self.store().commit(&applied, &signature());
        let durable = match (self.faults.has_power(), answer) {
            (false, _) => self.crash(),
            (true, Ok(())) => applied.state.clone(),
            (true, Err(StoreError::Disk(_))) => self.now().clone(),
            (true, Err(StoreError::Unknown(_))) => {
                self.faults.heal();
                self.store().settle(at(1000)).unwrap()
            }
            (true, Err(other)) => panic!("{other}"),
        };
        if durable == applied.state {
            self.states.push(durable);
        } else {
            assert_eq!(&durable, self.now(), "a change is there completely or not at all");
        }
    }

    /// Checks the durable state and the kept revisions.
    fn check(&self) {
        let (store, now) = (self.store(), self.now());
        assert_eq!(&store.load().unwrap(), now);
        for module in now.modules().values() {
            assert_eq!(Digest::of(&store.wasm(module).unwrap()), module.digest);
        }
        let filter = RevisionFilter { limit: usize::MAX, ..RevisionFilter::default() };
        let revisions = store.revisions(Reader::Operator, &filter).unwrap();
        let numbers: Vec<u64> = revisions.iter().map(|revision| revision.number).collect();
        let expected: Vec<u64> = (1..=now.version()).rev().take(self.history.revisions as usize).collect();
        assert_eq!(numbers, expected, "all acknowledged revisions are there");
        check_references(store);
    }

    /// Checks that each kept revision is the state that was acknowledged with it.
    fn check_revisions(&self, tenant: &TenantName) {
        for (number, state) in self.states.iter().enumerate() {
            if let Ok(mut objects) = self.store().objects_at(tenant, Some(number as u64)).unwrap() {
                objects.sort_by_key(|object| object.name());
                let mut acknowledged = state.objects_of(tenant);
                acknowledged.sort_by_key(|object| object.name());
                assert_eq!(objects, acknowledged, "revision {number}");
            }
        }
    }
}

/// What happens to the store.
#[derive(Clone, Debug)]
enum Step {
    /// A module gets a content.
    Set(usize, u64),
    /// A module is deleted, if it is there.
    Delete(usize),
    /// The objects become what they were some revisions ago.
    Return(u64),
    /// From some write on, some writes fail.
    FailWrites(u64, u64, usize),
    /// The writes succeed again.
    Heal,
    /// After some writes, the power is cut.
    CutPower(u64),
    /// The node is started again.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..3_usize, 0..4_u64).prop_map(|(name, number)| Step::Set(name, number)),
        2 => (0..3_usize).prop_map(Step::Delete),
        2 => (0..6_u64).prop_map(Step::Return),
        2 => (0..40_u64, 1..4_u64, 0..ERRNOS.len()).prop_map(|(after, count, at)| Step::FailWrites(after, count, at)),
        1 => Just(Step::Heal),
        3 => (0..60_u64).prop_map(Step::CutPower),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_sequence_of_changes_faults_and_restarts_ends_in_what_was_acknowledged(steps in steps(), seed in any::<u64>()) {
        const NAMES: [&str; 3] = ["m", "n", "o"];
        let mut tried = Tried::new(seed, 1000);
        for step in steps {
            match step {
                Step::Set(name, number) => tried.set(&demo(), NAMES[name], number),
                Step::Delete(name) => {
                    let module = ObjectRef::Module { tenant: demo(), name: NAMES[name].parse().unwrap() };
                    let delete = tried.now().object(&module).map(|_| module).into_iter().collect();
                    tried.make(&Change { delete, ..Change::default() });
                }
                Step::Return(ago) => {
                    let number = tried.now().version().saturating_sub(ago);
                    let wanted = tried.states[number as usize].objects_of(&demo());
                    tried.make(&change_to(&tried.now().objects_of(&demo()), &wanted));
                }
                Step::FailWrites(after, count, at) => tried.faults.fail(after, count, ERRNOS[at]),
                Step::Heal => drop(tried.faults.heal()),
                Step::CutPower(after) => tried.faults.cut_power(after),
                Step::Restart => {
                    tried.faults.heal();
                    tried.reopen();
                }
            }
        }
        tried.faults.heal();
        tried.check();
        prop_assert_eq!(&tried.crash(), tried.now());
        tried.check();
        tried.check_revisions(&demo());
    }
}

#[test]
fn no_change_is_acknowledged_before_the_disk_has_it_whichever_steps_fail() {
    let (mut refused, mut unknown, mut made) = (0, 0, 0);
    for count in 1..4 {
        for after in 0.. {
            let mut tried = Tried::new(after, 1000);
            tried.set(&demo(), "m", 0);
            let applied =
                tried.now().apply(&Change { modules: vec![module("0"), module("n")], ..Change::default() }).unwrap();
            tried.store().put_upload(&demo(), &module("n").digest, &wasm("n"), at(1000)).unwrap();
            tried.faults.fail(after, count, Errno::IO);
            let answer = tried.store().commit(&applied, &signature());
            let is_untouched = tried.faults.heal() <= after;
            let durable = tried.crash();
            match answer {
                Ok(()) => {
                    assert_eq!(durable, applied.state, "{count} steps fail after {after}");
                    made += 1;
                }
                Err(StoreError::Disk(_)) => {
                    assert_eq!(&durable, tried.now(), "{count} steps fail after {after}");
                    refused += 1;
                }
                Err(StoreError::Unknown(_)) => unknown += 1,
                Err(other) => panic!("{count} steps fail after {after}: {other}"),
            }
            if is_untouched {
                break;
            }
        }
    }
    assert!(refused > 0 && unknown > 0 && made > 0, "{refused} refused, {unknown} unknown, {made} made");
}

#[test]
fn a_thousand_power_cuts_in_a_stream_of_changes_lose_nothing_that_was_acknowledged() {
    const CRASHES: usize = 1000;
    let seed = std::env::var("PINION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("the seed is {seed} (PINION_SEED)");
    let mut tried = Tried::new(seed, 16);
    tried.set(&demo(), "m", 0);
    for crash in 0..CRASHES {
        let after = tried.dice.below(80);
        tried.faults.cut_power(after);
        let mut number = tried.dice.below(8);
        while tried.faults.is_power_to_be_cut() {
            number += 1;
            let name = ["m", "n", "o"][tried.dice.below(3) as usize];
            tried.set(&demo(), name, number % 8);
        }
        tried.check();
        if crash % 100 == 0 {
            tried.check_revisions(&demo());
        }
    }
    assert!(tried.now().version() > CRASHES as u64 / 10, "{}", tried.now().version());
}
