//! New clients of a well-behaved tenant.

use std::thread;

use pinion_tests::network::bed::{Bed, NODE};
use pinion_tests::traffic::ping::{Summary, ping};

pub(crate) fn address(number: u64) -> String {
    format!("10.77.0.{}", 100 + number)
}

/// Returns the addresses of so many new clients, which one of the bed's machines has from now on.
pub(crate) fn new_addresses(bed: &Bed, count: u64) -> Vec<String> {
    let addresses: Vec<String> = (0..count).map(address).collect();
    for address in &addresses {
        bed.clients[1].namespace.ip(&format!("address add {address}/24 dev eth0"));
    }
    addresses
}

fn ping_from(bed: &Bed, address: &str) -> Summary {
    // A frame waits for an instance for a second at most.
    ping(&bed.clients[1].namespace, &format!("-c 1 -W 3 -I {address} {NODE}"))
}

/// Pings the node once from each of so many addresses, all of them new clients.
pub(crate) fn pings_of_new_clients(bed: &Bed, count: u64) -> Vec<Summary> {
    new_addresses(bed, count).iter().map(|address| ping_from(bed, address)).collect()
}

/// Pings the node from each of so many addresses that new clients had and that had no answer, until there is one.
#[track_caller]
pub(crate) fn ask_again(bed: &Bed, summaries: &[Summary]) {
    let unanswered = (0..).zip(summaries).filter(|(_, summary)| summary.received == 0);
    for (number, _) in unanswered {
        let again = ping(&bed.clients[1].namespace, &format!("-c 1 -w 30 -i 0.5 -I {} {NODE}", address(number)));
        assert!(again.received > 0, "client {number} is not served");
    }
}

/// Pings the node once from each of so many addresses that new clients had.
pub(crate) fn pings_again(bed: &Bed, count: u64) -> Vec<Summary> {
    (0..count).map(|number| ping_from(bed, &address(number))).collect()
}

/// Pings the node from each of so many addresses that new clients had, until three pings are answered, which takes some seconds at most.
#[track_caller]
pub(crate) fn prove_themselves(bed: &Bed, count: u64) {
    let client = &bed.clients[1].namespace;
    thread::scope(|scope| {
        for number in 0..count {
            scope.spawn(move || {
                let summary = ping(client, &format!("-c 3 -w 20 -i 0.3 -I {} {NODE}", address(number)));
                assert!(summary.received >= 3, "client {number}: {summary:?}");
            });
        }
    });
}

/// Pings the node twice a second from each of so many addresses, all of them new clients, until one ping is answered.
/// Returns those that had no answer in five seconds.
pub(crate) fn not_served_in_time(bed: &Bed, count: u64) -> Vec<String> {
    let client = &bed.clients[1].namespace;
    let is_served = |address: &str| ping(client, &format!("-c 1 -w 5 -i 0.5 -I {address} {NODE}")).received > 0;
    let addresses = new_addresses(bed, count);
    thread::scope(|scope| {
        let asked: Vec<_> = addresses.iter().map(|address| scope.spawn(|| is_served(address))).collect();
        let served = asked.into_iter().map(|asked| asked.join().expect("ping runs to its end"));
        addresses.iter().zip(served).filter(|(_, is_served)| !is_served).map(|(address, _)| address.clone()).collect()
    })
}

#[track_caller]
pub(crate) fn assert_each_is_answered(summaries: &[Summary]) {
    let lost = summaries.iter().filter(|summary| summary.received == 0).count();
    assert_eq!(lost, 0, "of {} new clients {lost} were not answered", summaries.len());
}
