//! Tests of [`super`].

use super::*;

const LAN: NetworkIndex = NetworkIndex(0);
const US: TenantIndex = TenantIndex(1);
const OTHERS: TenantIndex = TenantIndex(2);
const PEER: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);
const OTHER: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 10]);

fn address(number: u32) -> IpAddr {
    IpAddr::V4((0x0a00_0000 + number).into())
}

fn told(number: u32, station: EthernetAddress, how: How) -> Told {
    Told { address: address(number), station, how }
}

/// Returns what is due for all entries.
fn due(table: &mut NeighborTable, now_ns: u64) -> Vec<Due> {
    let mut all = Vec::new();
    table.go_round(NEIGHBORS_MAX, now_ns, &NeighborView::default(), |due| all.push(due));
    all
}

/// Returns how many neighbours there are.
fn known_to(table: &mut NeighborTable) -> usize {
    table.entries.iter().flatten().count()
}

fn ask(number: u32, had: Option<EthernetAddress>) -> Due {
    Due::Ask { network: LAN, address: address(number), had }
}

fn known() -> NeighborTable {
    let mut table = NeighborTable::new();
    table.look_up(LAN, address(1), US, 0);
    table.note(LAN, told(1, PEER, How::Answer), 0).expect("it was asked for");
    table
}

#[test]
fn a_neighbour_is_asked_for_until_it_answers() {
    let mut table = NeighborTable::new();
    let Lookup::Wait(neighbor) = table.look_up(LAN, address(1), US, 0) else { panic!("it is not known") };
    assert_eq!(due(&mut table, 0), [ask(1, None)]);
    assert_eq!(due(&mut table, ASK_INTERVAL_NS - 1), []);
    assert_eq!(due(&mut table, ASK_INTERVAL_NS), [ask(1, None)]);
    assert_eq!(table.note(LAN, told(1, PEER, How::Answer), ASK_INTERVAL_NS), Some(neighbor));
    assert_eq!(table.look_up(LAN, address(1), US, ASK_INTERVAL_NS), Lookup::Station(PEER));
    assert_eq!(due(&mut table, 2 * ASK_INTERVAL_NS), []);
}

#[test]
fn one_that_does_not_answer_is_given_up_and_asked_for_again_after_a_while() {
    let mut table = NeighborTable::new();
    let Lookup::Wait(neighbor) = table.look_up(LAN, address(1), US, 0) else { panic!("it is not known") };
    let over: Vec<_> = (0..=3).flat_map(|second| due(&mut table, second * ASK_INTERVAL_NS)).collect();
    assert_eq!(over, [ask(1, None), ask(1, None), ask(1, None), Due::GiveUp(neighbor)]);
    let failed_ns = 3 * ASK_INTERVAL_NS;
    assert_eq!(table.look_up(LAN, address(1), US, failed_ns + FAILED_NS - 1), Lookup::Unresolved);
    assert_eq!(table.look_up(LAN, address(1), US, failed_ns + FAILED_NS), Lookup::Wait(neighbor));
}

#[test]
fn one_that_is_known_is_checked_on_use_and_meanwhile_used() {
    let mut table = known();
    assert_eq!(table.look_up(LAN, address(1), US, REACHABLE_NS - 1), Lookup::Station(PEER));
    assert_eq!(due(&mut table, REACHABLE_NS), [], "it is not used");
    assert_eq!(table.look_up(LAN, address(1), US, REACHABLE_NS), Lookup::Station(PEER));
    assert_eq!(due(&mut table, REACHABLE_NS), [ask(1, Some(PEER))]);
    table.note(LAN, told(1, PEER, How::Answer), REACHABLE_NS);
    assert_eq!(due(&mut table, 2 * REACHABLE_NS - 1), []);
    assert_eq!(table.look_up(LAN, address(1), US, 2 * REACHABLE_NS), Lookup::Station(PEER));
    let over: Vec<_> =
        (0..=3).flat_map(|second| due(&mut table, 2 * REACHABLE_NS + second * ASK_INTERVAL_NS)).collect();
    assert_eq!(over, [ask(1, Some(PEER)); 3]);
    let last_ns = 2 * REACHABLE_NS + 3 * ASK_INTERVAL_NS;
    assert!(matches!(table.look_up(LAN, address(1), US, last_ns), Lookup::Wait(_)), "it is gone");
    assert_eq!(due(&mut table, last_ns), [ask(1, None)], "all are asked");
}

#[test]
fn all_neighbours_behind_a_link_that_is_down_are_forgotten_and_no_others() {
    let mut table = known();
    table.look_up(NetworkIndex(3), address(1), US, 0);
    table.note(NetworkIndex(3), told(1, PEER, How::Answer), 0);
    let Lookup::Wait(asked_for) = table.look_up(LAN, address(2), US, 0) else { panic!("it is not known") };
    let (version, mut passed_on) = (table.version(), Vec::new());
    table.forget_all(0..3, |neighbor| passed_on.push(neighbor));
    assert_eq!((passed_on, known_to(&mut table)), (vec![asked_for], 1));
    assert!(table.version() != version);
    assert_eq!(table.look_up(NetworkIndex(3), address(1), US, 0), Lookup::Station(PEER));
    let asked = (10..10_000).filter(|number| matches!(table.look_up(LAN, address(*number), US, 0), Lookup::Wait(_)));
    assert_eq!(asked.count(), usize::from(ASKING_OF_TENANT_MAX), "it is not asked for any more");
}

#[test]
fn the_stations_of_a_link_that_goes_down_are_forgotten_and_no_others() {
    let mut table = known();
    table.look_up(NetworkIndex(3), address(1), US, 0);
    table.note(NetworkIndex(3), told(1, PEER, How::Answer), 0);
    table.look_up(LAN, address(2), US, 0);
    let version = table.version();
    table.forget_stations(0..3);
    assert!(table.version() != version);
    assert!(matches!(table.look_up(LAN, address(1), US, 0), Lookup::Wait(_)));
    assert!(matches!(table.look_up(LAN, address(2), US, 0), Lookup::Wait(_)), "it is asked for still");
    assert_eq!(table.look_up(NetworkIndex(3), address(1), US, 0), Lookup::Station(PEER));
}

#[test]
fn who_did_not_answer_on_a_link_is_asked_for_again_at_once_when_it_comes_up() {
    let mut table = NeighborTable::new();
    table.look_up(LAN, address(1), US, 0);
    let given_up = |table: &mut NeighborTable, now_ns| due(table, now_ns).iter().any(|it| matches!(it, Due::GiveUp(_)));
    let failed_ns = (0..).step_by(ASK_INTERVAL_NS as usize).find(|now_ns| given_up(&mut table, *now_ns)).unwrap();
    assert_eq!(table.look_up(LAN, address(1), US, failed_ns), Lookup::Unresolved);
    table.forget_stations(0..1);
    assert!(matches!(table.look_up(LAN, address(1), US, failed_ns), Lookup::Wait(_)));
    // One that was asked for while nothing could answer has all its questions anew.
    due(&mut table, failed_ns);
    table.forget_stations(0..1);
    let over: Vec<_> = (0..3).flat_map(|second| due(&mut table, failed_ns + second * ASK_INTERVAL_NS)).collect();
    assert_eq!(over, [ask(1, None); 3]);
}

#[test]
fn what_nobody_has_asked_for_makes_no_entry() {
    let mut table = NeighborTable::new();
    for how in [How::Answer, How::Unasked, How::AnswerUnlessKnown, How::UnaskedUnlessKnown] {
        assert_eq!(table.note(LAN, told(1, PEER, how), 0), None);
    }
    assert_eq!(known_to(&mut table), 0);
}

#[test]
fn an_address_that_moves_to_another_station_is_followed_and_checked() {
    let mut table = known();
    table.note(LAN, told(1, OTHER, How::Unasked), 5);
    assert_eq!(table.look_up(LAN, address(1), US, 5), Lookup::Station(OTHER));
    assert_eq!(due(&mut table, 5), [ask(1, Some(OTHER))]);
}

#[test]
fn an_advertisement_without_override_moves_nothing_but_is_checked() {
    for how in [How::AnswerUnlessKnown, How::UnaskedUnlessKnown] {
        let mut table = known();
        table.note(LAN, told(1, OTHER, how), 5);
        assert_eq!(table.look_up(LAN, address(1), US, 5), Lookup::Station(PEER));
        assert_eq!(due(&mut table, 5), [ask(1, Some(PEER))]);
        let mut new = NeighborTable::new();
        new.look_up(LAN, address(1), US, 0);
        new.note(LAN, told(1, OTHER, how), 0);
        assert_eq!(new.look_up(LAN, address(1), US, 0), Lookup::Station(OTHER));
    }
}

#[test]
fn advertisements_without_override_of_others_keep_none_from_being_given_up_that_does_not_answer() {
    let mut table = known();
    let mut hear = |now_ns| {
        table.note(LAN, told(1, OTHER, How::AnswerUnlessKnown), now_ns);
        table.note(LAN, told(1, OTHER, How::UnaskedUnlessKnown), now_ns);
        due(&mut table, now_ns)
    };
    let over: Vec<_> = (0..3).flat_map(|second| hear(second * ASK_INTERVAL_NS)).collect();
    assert_eq!(over, [ask(1, Some(PEER)); 3]);
    hear(3 * ASK_INTERVAL_NS);
    assert_eq!(known_to(&mut table), 0);
}

#[test]
fn only_what_answers_the_node_proves_that_its_frames_arrive() {
    for (how, is_due) in [(How::AnswerUnlessKnown, false), (How::UnaskedUnlessKnown, true), (How::Unasked, true)] {
        let mut table = known();
        table.note(LAN, told(1, PEER, how), REACHABLE_NS - 1);
        table.look_up(LAN, address(1), US, REACHABLE_NS);
        assert_eq!(!due(&mut table, REACHABLE_NS).is_empty(), is_due, "{how:?}");
    }
}

#[test]
fn a_tenant_that_asks_for_nobody_leaves_room_for_others() {
    let mut table = NeighborTable::new();
    let waits = |lookup: &Lookup| matches!(lookup, Lookup::Wait(_));
    let asked = (0..10_000).map(|number| table.look_up(LAN, address(number), US, 0)).filter(waits).count();
    assert_eq!(asked, usize::from(ASKING_OF_TENANT_MAX));
    assert!(waits(&table.look_up(LAN, address(20_000), OTHERS, 0)));
    for second in 0..=3 {
        due(&mut table, second * ASK_INTERVAL_NS);
    }
    assert!(waits(&table.look_up(LAN, address(30_000), US, 4 * ASK_INTERVAL_NS)), "what failed counts no longer");
}

/// Lets a tenant send to so many neighbours, all of which answer at once, from a time on. Returns how many were asked
/// for.
fn ask_many(table: &mut NeighborTable, tenant: TenantIndex, count: u32, from_ns: u64) -> usize {
    let interval_ns = SECOND_NS / BEGUN_OF_TENANT.per_second;
    let mut ask = |number: u32| {
        let now_ns = from_ns + u64::from(number) * interval_ns;
        let asked = matches!(table.look_up(LAN, address(1000 + number), tenant, now_ns), Lookup::Wait(_));
        table.note(LAN, told(1000 + number, PEER, How::Answer), now_ns);
        asked
    };
    (0..count).filter(|number| ask(*number)).count()
}

fn is_known(table: &mut NeighborTable, number: u32, tenant: TenantIndex, now_ns: u64) -> bool {
    matches!(table.look_up(LAN, address(number), tenant, now_ns), Lookup::Station(_))
}

#[test]
fn a_tenant_that_sends_to_many_neighbours_evicts_its_own_and_none_of_another() {
    let mut table = known();
    assert_eq!(ask_many(&mut table, OTHERS, 50_000, 1), 50_000);
    assert_eq!(known_to(&mut table), NEIGHBORS_MAX);
    assert!(is_known(&mut table, 1, US, 1), "it is another tenant's, and was not used since");
    assert!(matches!(table.look_up(LAN, address(90_000), US, 1), Lookup::Wait(_)), "there is room for others");
}

#[test]
fn a_router_of_all_tenants_stays_known_whichever_of_them_asked_for_it_first() {
    let mut table = NeighborTable::new();
    table.look_up(LAN, address(1), OTHERS, 0);
    table.note(LAN, told(1, PEER, How::Answer), 0);
    assert!(is_known(&mut table, 1, US, 0));
    ask_many(&mut table, OTHERS, 50_000, 1);
    assert!(is_known(&mut table, 1, US, 1));
}

#[test]
fn neighbours_that_answer_at_once_are_asked_for_at_a_tenants_rate() {
    let mut table = NeighborTable::new();
    let mut ask = |tenant, number: u32, now_ns| {
        let asked = matches!(table.look_up(LAN, address(number), tenant, now_ns), Lookup::Wait(_));
        table.note(LAN, told(number, PEER, How::Answer), now_ns);
        asked
    };
    let at_once = (0..2_000).filter(|number| ask(US, *number, 0)).count();
    assert_eq!(at_once as u64, BEGUN_OF_TENANT.burst);
    let of_a_second = (2_000..4_000).filter(|number| ask(US, *number, SECOND_NS)).count();
    assert_eq!(of_a_second as u64, BEGUN_OF_TENANT.per_second);
    assert!(ask(OTHERS, 9_000, SECOND_NS), "another tenant has its own");
}

#[test]
fn the_same_address_in_another_network_is_another_neighbour() {
    let mut table = known();
    assert!(matches!(table.look_up(NetworkIndex(1), address(1), US, 0), Lookup::Wait(_)));
    assert_eq!(table.note(NetworkIndex(2), told(1, PEER, How::Answer), 0), None);
}

#[test]
fn one_that_is_not_used_any_more_is_forgotten() {
    let mut table = known();
    due(&mut table, UNUSED_NS - 1);
    assert_eq!(known_to(&mut table), 1);
    due(&mut table, UNUSED_NS);
    assert_eq!(known_to(&mut table), 0);
}

#[test]
fn the_version_tells_of_each_change_of_a_station() {
    let mut table = known();
    let mut version = table.version();
    let mut changed = |table: &NeighborTable| std::mem::replace(&mut version, table.version()) != table.version();
    table.note(LAN, told(1, PEER, How::Answer), 5);
    assert!(!changed(&table));
    table.note(LAN, told(1, OTHER, How::Unasked), 6);
    assert!(changed(&table));
    due(&mut table, 6 + UNUSED_NS);
    (0..4).for_each(|second| _ = due(&mut table, 6 + UNUSED_NS + second * ASK_INTERVAL_NS));
    assert!(changed(&table), "it was forgotten");
}
