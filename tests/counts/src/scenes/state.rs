//! Shared state as a guest's host call reaches it: one entry read, one written.

use std::collections::HashMap;
use std::path::Path;

use pinion_control::model::{Access, Chain, Field, Grant, Stage, WhenFull};
use pinion_guest::calls::state::{Key, State};
use pinion_runtime::state::{Grants, StateLimits, StateStore};

use super::Scene;

const ENTRIES: u32 = 10_000;
const KEY_BYTES: usize = 38;
const VALUE: [u8; 64] = [7; 64];

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "state_get", part: "state", what: "a get of 64 bytes", repetitions: 2_000, steps: 1, run: get },
    Scene { name: "state_put", part: "state", what: "a put of 64 bytes", repetitions: 2_000, steps: 1, run: put },
];

fn grants() -> Grants {
    let limits = StateLimits { default_bytes: 1 << 30, by_name: HashMap::new(), total_bytes: u64::MAX };
    let name = "entries".parse().expect("a name");
    let field = Field { name, value_bytes: 64, entries: ENTRIES, ttl_seconds: None, when_full: WhenFull::Refuse };
    let mut stage = Stage::new("count".parse().expect("a name"), Vec::new());
    stage.state = vec![Grant { field: field.name.clone(), access: Access::Write }];
    let chain = Chain::new("count".parse().expect("a name"), "count".parse().expect("a name"), vec![stage]);
    let opened = StateStore::new(limits).open(&Chain { fields: vec![field], ..chain });
    let grants = opened.expect("room for the field").remove(0);
    (0..ENTRIES).for_each(|number| grants.put(0, &key(u64::from(number)), &VALUE).expect("room for the entry"));
    grants
}

/// As long as a flow's; entries in an order that no cache foresees.
fn key(number: u64) -> Key {
    let mut bytes = [0; KEY_BYTES];
    bytes[..4].copy_from_slice(&((number * 7919 % u64::from(ENTRIES)) as u32).to_le_bytes());
    Key::new(&bytes).expect("no longer than keys may be")
}

fn get(_: &Path, scene: &Scene) {
    let grants = grants();
    let mut value = VALUE;
    scene.repeat(key, |key| _ = grants.get(0, key, &mut value).expect("the entry is there"), |_| ());
}

fn put(_: &Path, scene: &Scene) {
    let grants = grants();
    scene.repeat(key, |key| grants.put(0, key, &VALUE).expect("room for the entry"), |_| ());
}
