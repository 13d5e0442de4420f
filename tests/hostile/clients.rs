//! New clients of a well-behaved tenant.

use pinion_tests::bed::{Bed, NODE};
use pinion_tests::ping::{Summary, ping};

/// Pings the node once from each of so many addresses, all of them new clients.
pub(crate) fn pings_of_new_clients(bed: &Bed, count: u64) -> Vec<Summary> {
    let client = &bed.clients[1].namespace;
    let from = |number: u64| {
        let address = format!("10.77.0.{}", 100 + number);
        client.ip(&format!("address add {address}/24 dev eth0"));
        ping(client, &format!("-c 1 -W 10 -I {address} {NODE}"))
    };
    (0..count).map(from).collect()
}

#[track_caller]
pub(crate) fn assert_each_is_answered(summaries: &[Summary]) {
    let lost = summaries.iter().filter(|summary| summary.received == 0).count();
    assert_eq!(lost, 0, "of {} new clients {lost} were not answered", summaries.len());
}
