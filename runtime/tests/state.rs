//! State from a guest's point of view: what it may do, which results it gets, and that no call of it affects other guests.

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use pinion_control::model::{Access, Chain, Change, DesiredState, Field, Grant, Stage, Tenant, WhenFull};
use pinion_runtime::fwp::Turn;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::state::{Grants, StateLimits, StateStore};
use support::{Bench, buffer};

const MEMORY_BYTES_MAX: usize = 1 << 20;
const MIB: u64 = 1 << 20;

fn store(default_bytes: u64) -> StateStore {
    StateStore::new(StateLimits { default_bytes, by_name: HashMap::new(), total_bytes: u64::MAX })
}

fn field(name: &str, entries: u32) -> Field {
    let name = name.parse().unwrap();
    Field { name, value_bytes: 64, entries, ttl_seconds: None, when_full: WhenFull::Refuse }
}

/// Returns a chain of one stage that is granted these fields.
fn chain(tenant: &str, name: &str, fields: &[(Field, Access)]) -> Chain {
    let mut stage = Stage::new("m".parse().unwrap(), Vec::new());
    stage.state = fields.iter().map(|(field, access)| Grant { field: field.name.clone(), access: *access }).collect();
    let chain = Chain::new(tenant.parse().unwrap(), name.parse().unwrap(), vec![stage]);
    Chain { fields: fields.iter().map(|(field, _)| field.clone()).collect(), ..chain }
}

fn grants(store: &StateStore, chain: &Chain) -> Grants {
    store.open(chain).unwrap().remove(0)
}

/// Returns a guest that runs `init` and, once it has got a packet, `run`. Its memory holds the name "counters" at 64, the key "key" at 96,
/// and the value "value" at 112; it writes elsewhere.
fn guest(init: &str, run: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "pinion" "state_open" (func $open (param i32 i32) (result i32)))
            (import "pinion" "state_get" (func $get (param i32 i32 i32 i32 i32) (result i32)))
            (import "pinion" "state_put" (func $put (param i32 i32 i32 i32 i32) (result i32)))
            (import "pinion" "state_cas" (func $cas (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (import "pinion" "state_add" (func $add (param i32 i32 i32 i64 i32) (result i32)))
            (import "pinion" "state_expire" (func $expire (param i32 i32 i32 i64) (result i32)))
            (import "pinion" "state_delete" (func $delete (param i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (data (i32.const 64) "counters")
            (data (i32.const 96) "key")
            (data (i32.const 112) "value")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) {init} (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func $is (param $what i32) (param $expected i32)
                (if (i32.ne (local.get $what) (local.get $expected)) (then unreachable)))
            (func (export "pinion_run") (local $n i32)
                (loop $again (br_if $again (i32.eqz (call $wait))))
                {run}))"#
    )
}

/// Returns an assertion in a guest: a call, and its expected result.
fn is(call: &str, returned: i32) -> String {
    format!("(call $is (call {call}) (i32.const {returned}))\n")
}

/// Returns how a guest with these grants ends, and how many turns that took.
fn end_of(grants: &Grants, init: &str, run: &str) -> (EndReason, u32) {
    let mut bench = Bench::new();
    (bench.state, bench.fields) = (grants.clone(), Arc::new(["counters".to_owned()]));
    let mut fwp = bench.launch(&guest(init, run), MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    let mut turns = 0;
    let reason = loop {
        turns += 1;
        match bench.resume(&mut fwp) {
            Turn::Ended(reason) => break reason,
            Turn::Preempted => {}
            Turn::Waiting { .. } => panic!("it waits"),
        }
    };
    bench.dismantle(fwp);
    (reason, turns)
}

#[track_caller]
fn assert_returns(grants: &Grants, init: &str, run: &str) {
    let (reason, _) = end_of(grants, init, run);
    assert_eq!(reason, EndReason::Returned);
}

const KEY: &str = "(i32.const 0) (i32.const 96) (i32.const 3)";

#[test]
fn each_call_has_its_effect_and_result() {
    let store = store(MIB);
    let grants = grants(&store, &chain("t", "c", &[(field("counters", 10), Access::Write)]));
    let run = [
        is("$open (i32.const 64) (i32.const 8)", 0),
        is("$open (i32.const 64) (i32.const 7)", -6),
        is(&format!("$get {KEY} (i32.const 200) (i32.const 64)"), -7),
        is(&format!("$put {KEY} (i32.const 112) (i32.const 5)"), 0),
        is(&format!("$get {KEY} (i32.const 200) (i32.const 3)"), 5),
        "(call $is (i32.load (i32.const 200)) (i32.const 0x6c6176))".to_owned(),
        is(&format!("$cas {KEY} (i32.const 0) (i32.const -1) (i32.const 112) (i32.const 5)"), -9),
        is(&format!("$cas {KEY} (i32.const 112) (i32.const 5) (i32.const 0) (i32.const 8)"), 0),
        is(&format!("$add {KEY} (i64.const -3) (i32.const 300)"), 0),
        "(call $is (i32.load (i32.const 300)) (i32.const -3))".to_owned(),
        is(&format!("$put {KEY} (i32.const 0) (i32.const 65)"), -2),
        is(&format!("$expire {KEY} (i64.const -1)"), 0),
        is(&format!("$expire {KEY} (i64.const 0)"), 0),
        is(&format!("$delete {KEY}"), -7),
    ];
    assert_returns(&grants, "", &run.concat());
}

#[test]
fn only_the_number_of_a_field_is_known_during_the_initialisation() {
    let store = store(MIB);
    let grants = grants(&store, &chain("t", "c", &[(field("counters", 10), Access::Write)]));
    let too_early = [
        is("$open (i32.const 64) (i32.const 8)", 0),
        is("$open (i32.const 64) (i32.const 1)", -6),
        is(&format!("$put {KEY} (i32.const 112) (i32.const 5)"), -4),
        is(&format!("$get {KEY} (i32.const 200) (i32.const 5)"), -4),
        is(&format!("$add {KEY} (i64.const 1) (i32.const 300)"), -4),
        is(&format!("$delete {KEY}"), -4),
    ];
    assert_returns(&grants, &too_early.concat(), &is(&format!("$delete {KEY}"), -7));
}

#[test]
fn a_read_grant_denies_all_other_calls_and_counts_denials() {
    let store = store(MIB);
    let field = field("counters", 10);
    let write = grants(&store, &chain("t", "writer", &[(field.clone(), Access::Write)]));
    let read = grants(&store, &chain("t", "reader", &[(field, Access::Read)]));
    assert_returns(&write, "", &is(&format!("$put {KEY} (i32.const 112) (i32.const 5)"), 0));
    let denied = [
        is(&format!("$put {KEY} (i32.const 0) (i32.const 5)"), -5),
        is(&format!("$cas {KEY} (i32.const 112) (i32.const 5) (i32.const 0) (i32.const 8)"), -5),
        is(&format!("$add {KEY} (i64.const 1) (i32.const 300)"), -5),
        is(&format!("$expire {KEY} (i64.const 0)"), -5),
        is(&format!("$delete {KEY}"), -5),
        is(&format!("$get {KEY} (i32.const 200) (i32.const 64)"), 5),
    ];
    assert_returns(&read, "", &denied.concat());
    let (status, _) = store.of_tenant(&"t".parse().unwrap());
    assert_eq!((status[0].denied, status[0].hits, status[0].writes, status[0].entries), (5, 1, 1, 1));
}

#[test]
fn invalid_addresses_fields_and_lengths_return_errors_and_do_no_harm() {
    let store = store(MIB);
    let grants = grants(&store, &chain("t", "c", &[(field("counters", 10), Access::Write)]));
    let mut run = Vec::new();
    // One page of memory, which ends at 65536.
    for (address, len) in [(65_535, 2), (65_536, 1), (-1, 1), (-1, 64), (i32::MIN, 64), (0x7fff_ffff, 3)] {
        let range = format!("(i32.const {address}) (i32.const {len})");
        run.push(is(&format!("$open {range}"), -1));
        run.push(is(&format!("$get (i32.const 0) {range} (i32.const 200) (i32.const 8)"), -1));
        run.push(is(&format!("$put (i32.const 0) {range} (i32.const 200) (i32.const 8)"), -1));
        run.push(is(&format!("$put {KEY} {range}"), -1));
        run.push(is(&format!("$get {KEY} {range}"), -1));
        run.push(is(&format!("$cas {KEY} {range} (i32.const 112) (i32.const 5)"), -1));
        run.push(is(&format!("$cas {KEY} (i32.const 112) (i32.const 5) {range}"), -1));
        run.push(is(&format!("$expire (i32.const 0) {range} (i64.const 1)"), -1));
        run.push(is(&format!("$delete (i32.const 0) {range}"), -1));
    }
    for address in [65_529, -8, i32::MIN] {
        // Nothing is added if the address for the sum is invalid.
        run.push(is(&format!("$add {KEY} (i64.const 1) (i32.const {address})"), -1));
    }
    for len in [65, 1 << 20, -1, i32::MIN] {
        let range = format!("(i32.const 96) (i32.const {len})");
        run.push(is(&format!("$open {range}"), -2));
        run.push(is(&format!("$get (i32.const 0) {range} (i32.const 200) (i32.const 8)"), -2));
        run.push(is(&format!("$delete (i32.const 0) {range}"), -2));
    }
    for len in [65, 1024, 1025, -1, i32::MIN] {
        run.push(is(&format!("$put {KEY} (i32.const 0) (i32.const {len})"), -2));
    }
    for number in [1, -1, i32::MIN, i32::MAX] {
        let key = KEY.replacen('0', &number.to_string(), 1);
        run.push(is(&format!("$put {key} (i32.const 112) (i32.const 5)"), -6));
        run.push(is(&format!("$get {key} (i32.const 200) (i32.const 5)"), -6));
        run.push(is(&format!("$delete {key}"), -6));
    }
    // Memory is 4 GiB at most. All of it is too long for a value; as a buffer, it is just out of bounds.
    run.push(is(&format!("$get {KEY} (i32.const 0) (i32.const -1)"), -1));
    run.push(is(&format!("$get {KEY} (i32.const 0) (i32.const 65536)"), -7));
    assert_returns(&grants, "", &run.concat());
    assert_eq!(store.of_tenant(&"t".parse().unwrap()).0[0].entries, 0);
}

#[test]
fn endless_calls_are_preempted_and_calls_beyond_the_allowance_continue_in_the_next_turn() {
    let store = store(MIB);
    let grants = grants(&store, &chain("t", "c", &[(field("counters", 10), Access::Write)]));
    // Counts up, and counts the calls that returned `Again` separately.
    let (reason, turns) = end_of(
        &grants,
        "",
        &format!(
            "(loop $l
               (if (i32.eqz (call $add {KEY} (i64.const 1) (i32.const 300)))
                 (then (local.set $n (i32.add (local.get $n) (i32.const 1)))))
               (br_if $l (i32.lt_u (local.get $n) (i32.const 100000))))
             (call $is (i32.load (i32.const 300)) (i32.const 100000))"
        ),
    );
    assert_eq!(reason, EndReason::Returned);
    // A turn has 256 KiB, of which each call takes 256 bytes and 8.
    assert!(turns >= 100_000 / (256 * 1024 / 264), "{turns}");
    let mut bench = Bench::new();
    (bench.state, bench.fields) = (grants, Arc::new(["counters".to_owned()]));
    let endless = format!("(loop $l (drop (call $get {KEY} (i32.const 200) (i32.const 64))) (br $l))");
    let mut fwp = bench.launch(&guest("", &endless), MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    for _ in 0..3 {
        assert!(matches!(bench.resume(&mut fwp), Turn::Preempted));
    }
    bench.dismantle(fwp);
}

#[test]
fn a_module_that_asks_for_state_is_refused_for_a_stage_without_any_naming_the_import() {
    let bench = Bench::new();
    let Err(EndReason::NotInstantiated(refused)) = bench.template(&guest("", ""), MEMORY_BYTES_MAX) else { panic!() };
    assert!(
        refused.starts_with("it imports pinion.state_open, and its stage is granted no state: grant it"),
        "{refused}"
    );
}

#[test]
fn chains_of_one_tenant_share_a_field_by_name_and_tenants_do_not() {
    let store = store(MIB);
    let field = field("counters", 10);
    let of = |tenant, name| grants(&store, &chain(tenant, name, &[(field.clone(), Access::Write)]));
    let (first, second, other) = (of("t", "first"), of("t", "second"), of("other", "first"));
    let count = |grants: &Grants, expected: i32| {
        let run = [
            is(&format!("$add {KEY} (i64.const 1) (i32.const 300)"), 0),
            format!("(call $is (i32.load (i32.const 300)) (i32.const {expected}))"),
        ];
        assert_returns(grants, "", &run.concat());
    };
    count(&first, 1);
    count(&second, 2);
    count(&other, 1);
    // Each is a separate instance.
    count(&first, 3);
}

fn state(chains: &[Chain]) -> DesiredState {
    let module = |chain: &Chain| pinion_control::model::Module {
        tenant: chain.tenant.clone(),
        name: "m".parse().unwrap(),
        digest: pinion_control::model::Digest::of(b"m"),
        size_bytes: 1,
    };
    let mut modules: Vec<_> = chains.iter().map(module).collect();
    modules.dedup();
    DesiredState::default().apply(&Change { modules, chains: chains.to_vec(), ..Change::default() }).unwrap().state
}

/// As [`state`], and the tenant is granted so much state.
fn state_granted(tenant: &str, state_mib: u32, chains: &[Chain]) -> DesiredState {
    let terms = Tenant { state_mib: Some(state_mib), ..Tenant::new(tenant.parse().unwrap()) };
    state(chains).apply(&Change { tenants: vec![terms], ..Change::default() }).unwrap().state
}

#[test]
fn a_field_lives_as_long_as_a_chain_declares_it_and_starts_empty_when_redeclared() {
    let store = store(MIB);
    let entries = || store.of_tenant(&"t".parse().unwrap()).0.iter().map(|field| field.entries).collect::<Vec<_>>();
    let (field, larger) = (field("counters", 10), field("counters", 20));
    let of = |name, field: &Field| chain("t", name, &[(field.clone(), Access::Write)]);
    let both = state(&[of("first", &field), of("second", &field)]);
    store.prepare(&both);
    let old = grants(&store, &of("first", &field));
    let put = is(&format!("$put {KEY} (i32.const 112) (i32.const 5)"), 0);
    assert_returns(&old, "", &put);
    assert_eq!(entries(), [1]);
    // One of the chains is deleted, and the other changes, except for its field.
    store.prepare(&state(&[Chain { cache_min: 9, ..of("second", &field) }]));
    assert_eq!(entries(), [1]);
    store.prepare(&state(&[of("second", &larger)]));
    assert_eq!(entries(), [0]);
    // An instance from before keeps the field that it had.
    assert_returns(&old, "", &is(&format!("$get {KEY} (i32.const 200) (i32.const 64)"), 5));
    assert_eq!(entries(), [0]);
    store.prepare(&state(&[]));
    assert_eq!(entries(), Vec::<u64>::new());
}

#[test]
fn a_tenant_gets_no_more_state_than_granted_across_its_chains() {
    let by_name = HashMap::from([("big".parse().unwrap(), 4 * MIB)]);
    let store = StateStore::new(StateLimits { default_bytes: MIB, by_name, total_bytes: u64::MAX });
    // 154 bytes for each of the 8000 cells: 1.2 MiB.
    let (small, large) = (field("small", 1000), field("large", 4000));
    let of = |tenant, name, field: &Field| chain(tenant, name, &[(field.clone(), Access::Write)]);
    let none = DesiredState::default();
    let chains = [of("t", "a", &small), of("t", "b", &small), of("big", "a", &large)];
    store.check(&none, &state_granted("big", 4, &chains)).unwrap();
    let refused = store.check(&none, &state(&[of("t", "a", &small), of("t", "b", &large)])).unwrap_err();
    assert!(refused.starts_with("tenant t: the tenant's state would take 1507 KiB"), "{refused}");
    assert!(refused.contains("(large 1206 KiB, small 301 KiB), and the node grants the tenant 1024 KiB"), "{refused}");
    // As when the operator grants less than at the last start.
    assert!(store.open(&of("t", "b", &large)).is_err());
    assert!(store.open(&of("big", "b", &large)).is_ok());
    // Fields that the change removes make room for fields that it adds.
    let medium = |name| field(name, 2000);
    store.prepare(&state(&[of("t", "a", &medium("first"))]));
    store.prepare(&state(&[of("t", "a", &medium("second"))]));
    let (fields, limit_kib) = store.of_tenant(&"t".parse().unwrap());
    assert_eq!((fields.len(), fields[0].name.as_str(), limit_kib), (1, "second", 1024));
}

#[test]
fn a_tenants_state_is_judged_by_the_terms_that_come_with_it_and_what_is_there_stays_under_lower_ones() {
    let store = store(MIB);
    // Each takes 602 KiB.
    let of = |name, cache_min| Chain { cache_min, ..chain("t", name, &[(field(name, 2000), Access::Write)]) };
    let none = DesiredState::default();
    let two = [of("a", 0), of("b", 0)];
    assert!(store.check(&none, &state(&two)).is_err());
    let granted = state_granted("t", 2, &two);
    store.check(&none, &granted).unwrap();
    store.prepare(&granted);
    assert_eq!(store.of_tenant(&"t".parse().unwrap()).1, 2048);
    store.open(&two[1]).unwrap();
    // Lower terms: what is declared stays, also in chains that change otherwise.
    let lowered = state_granted("t", 1, &two);
    store.check(&granted, &lowered).unwrap();
    store.prepare(&lowered);
    let again = [of("a", 0), of("b", 1)];
    store.check(&lowered, &state_granted("t", 1, &again)).unwrap();
    store.open(&again[1]).unwrap();
    let refused = store.check(&lowered, &state_granted("t", 1, &[of("a", 0), of("b", 0), of("c", 0)])).unwrap_err();
    assert!(refused.contains("and the node grants the tenant 1024 KiB"), "{refused}");
}

#[test]
fn a_tenant_is_granted_no_more_state_than_three_quarters_of_what_there_is() {
    let store = StateStore::new(StateLimits { default_bytes: MIB, by_name: HashMap::new(), total_bytes: 8 * MIB });
    let none = DesiredState::default();
    store.check(&none, &state_granted("t", 6, &[])).unwrap();
    let refused = store.check(&none, &state_granted("t", 7, &[])).unwrap_err();
    assert_eq!(
        refused,
        "tenant t: state_mib is 7, and three quarters of limits.state_mib, for all tenants, are 6: raise limits.state_mib, or grant \
         less"
    );
    // Others can be changed although the node has less than when it was applied.
    let stored = state_granted("t", 7, &[]);
    let other = Change { tenants: vec![Tenant::new("other".parse().unwrap())], ..Change::default() };
    store.check(&stored, &stored.apply(&other).unwrap().state).unwrap();
}

#[test]
fn a_field_that_is_declared_anew_counts_as_well_as_long_as_an_instance_uses_the_former_one() {
    let store = store(MIB);
    // Each takes 602 KiB.
    let of = |ttl| chain("t", "c", &[(Field { ttl_seconds: Some(ttl), ..field("counters", 2000) }, Access::Write)]);
    let [one, other] = [of(60), of(61)].map(|chain| state(&[chain]));
    store.prepare(&one);
    let used = grants(&store, &of(60));
    let refused = store.check(&one, &other).unwrap_err();
    assert!(refused.contains("and 602 KiB of fields that would no longer be declared so"), "{refused}");
    // Also if its chain is deleted first.
    let none = DesiredState::default();
    store.prepare(&none);
    assert_eq!(store.former_kib(&"t".parse().unwrap()), 602);
    assert!(store.check(&none, &other).is_err());
    drop(used);
    assert_eq!(store.former_kib(&"t".parse().unwrap()), 0);
    store.check(&none, &other).unwrap();
    store.open(&of(61)).unwrap();
}

#[test]
fn tenants_with_much_state_leave_some_to_those_with_little() {
    let total_bytes = 16 * MIB;
    let store = StateStore::new(StateLimits { default_bytes: 64 * MIB, by_name: HashMap::new(), total_bytes });
    // Each of these takes 602 KiB: of a tenant with one it is little.
    let of = |tenant: &str, fields: u32| {
        let fields: Vec<_> = (0..fields).map(|number| (field(&format!("f{number}"), 2000), Access::Read)).collect();
        let chains = fields.chunks(8).enumerate().map(|(at, fields)| chain(tenant, &format!("c{at}"), fields));
        chains.collect::<Vec<_>>()
    };
    let none = DesiredState::default();
    store.check(&none, &state(&of("greedy", 20))).unwrap();
    let refused = store.check(&none, &state(&of("greedy", 21))).unwrap_err();
    assert!(refused.starts_with("tenant greedy: its state would take "), "{refused}");
    assert!(refused.contains("each tenant is sure of 1024 KiB"), "{refused}");
    let full = of("greedy", 20);
    let with = |more: Vec<Chain>| state(&[full.clone(), more].concat());
    store.check(&state(&full), &with(of("small", 1))).unwrap();
    assert!(store.check(&state(&full), &with(of("small", 2))).is_err());
    // What tenants have stays, and no tenant gets more than there is room for.
    let many: Vec<_> = (0..6).flat_map(|number| of(&format!("small{number}"), 1)).collect();
    store.check(&state(&full), &with(many.clone())).unwrap();
    let one_more = [many.clone(), of("last", 2)].concat();
    assert!(store.check(&with(many), &with(one_more)).is_err());
}

#[test]
fn a_tenant_that_has_more_state_than_it_may_have_now_can_declare_less() {
    let store = StateStore::new(StateLimits { default_bytes: MIB, by_name: HashMap::new(), total_bytes: MIB });
    let of = |name| chain("t", name, &[(field(name, 2000), Access::Read)]);
    let [three, two, another] = [&["a", "b", "c"][..], &["a", "b"], &["a", "b", "d"]]
        .map(|names| state(&names.iter().map(|name| of(name)).collect::<Vec<_>>()));
    store.check(&three, &two).unwrap();
    for refused in [&another, &three] {
        assert!(store.check(&two, refused).is_err());
    }
    // Of three chains only the first one could become active; the second one does once that is deleted, though its instances still end.
    store.prepare(&three);
    let used = grants(&store, &of("a"));
    assert!(store.open(&of("b")).is_err());
    let rest = state(&[of("b")]);
    store.check(&three, &rest).unwrap();
    store.prepare(&rest);
    store.open(&of("b")).unwrap();
    drop(used);
}
