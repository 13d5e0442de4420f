//! `churn`: how fast a continuous stream of new clients is answered, each by a chain instance of its own, beside a Linux process for each
//! client (EdgeOS, figure 7a).

mod processes;
#[cfg(test)]
mod soak;

use std::time::Duration;

use anyhow::ensure;
use comfy_table::Table;
use pinion_control::model::Class;
use pinion_tests::product::build::sample;
use serde::Serialize;

use crate::clients::newcomers::{Answer, Pace, Tally};
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;
use crate::systems::hosted::{self, CACHE_MAX, HostedNode, Service};

/// Not counted.
const WARM_UP_CLIENTS: usize = 1000;
const WARM_UP_INTERVAL: Duration = Duration::from_micros(500);
/// Room for instances that have ended and are not yet dismantled, beside those that serve and the cache.
const FWPS_MAX: usize = 8192;
/// The search for the highest rate begins here, doubles the rate as long as it is sustained, and then halves the step so often.
const RATE_MIN: u64 = 1000;
const RATE_MAX: u64 = 1_024_000;
const HALVINGS: u32 = 4;
/// A rate is sustained only if so many of its instances were prepared while it lasted: the others came out of the cache.
const PREPARED_PERCENT_MIN: u64 = 90;
/// The longest time that the clients may take to come, in per cent of the planned time.
const COMING_PERCENT_MAX: u32 = 102;

/// How fast a continuous stream of new clients is answered, each by an instance of its own, beside a Linux process for each
///
/// A node in this process, with gateway and MMA on the first core and the worker on the second, gives each client an instance of the
/// function udp-echo that answers one datagram and finishes. A reply's time runs from the arrival of the client's frame in Net-In's burst
/// until the reply is handed to the port's transmit burst. intervals has its percentiles for one new client in so many microseconds,
/// whether or not the previous one was answered, and how many got no reply. Before each measurement as many clients come as a full cache
/// has instances for: losses among these count, their times do not. max_clients_per_s is the highest rate, of those tried, at which every
/// client was answered for the time of a measurement, by an instance of its own by the node's own count, and instances were prepared as
/// fast as they were used. Every reply is compared with the expected bytes.
///
/// linux_reply_p90_us is that of a UDP server that forks for each datagram; the child answers and exits. It runs from the return of
/// recvfrom in the server until the return of sendto in the child, on the same two cores, over the loopback interface, at the first
/// interval. linux_intervals has all intervals, with the lost replies.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Microseconds from each new client to the next
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 200, 50], value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    intervals: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct Figures {
    intervals: Vec<Row>,
    max_clients_per_s: f64,
    linux_reply_p90_us: f64,
    linux_intervals: Vec<Row>,
}

/// Replies to clients that come at an interval.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    interval_us: u32,
    reply_p50_us: f64,
    reply_p90_us: f64,
    reply_p99_us: f64,
    lost: u64,
}

impl Row {
    fn new(interval_us: u32, times: &crate::measurement::percentiles::Percentiles, lost: u64) -> Self {
        let [reply_p50_us, reply_p90_us, reply_p99_us] =
            [50.0, 90.0, 99.0].map(|percent| rounded(times.at_us(percent)));
        Self { interval_us, reply_p50_us, reply_p90_us, reply_p99_us, lost }
    }
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(2 * options.intervals.len() + 1);
    let mut node = HostedNode::start(run.cores, FWPS_MAX, &service())?;
    node.serve(WARM_UP_CLIENTS, Pace::Every(WARM_UP_INTERVAL))?;
    let (mut intervals, mut late_p99_us) = (Vec::new(), Vec::new());
    for &interval_us in &options.intervals {
        run.progress.step(&format!("a client every {interval_us} us"));
        let tally = offer(&mut node, Duration::from_micros(interval_us.into()), run.time)?.tally;
        late_p99_us.push(rounded(tally.late.at_us(99.0)));
        intervals.push(Row::new(interval_us, &tally.times, tally.lost));
    }
    run.progress.step("the highest rate");
    let (max_clients_per_s, tried) = highest_rate(&mut node, run.time)?;
    drop(node);
    let mut linux_intervals = Vec::new();
    for &interval_us in &options.intervals {
        run.progress.step(&format!("Linux: a process every {interval_us} us"));
        let served = processes::serve(run, Duration::from_micros(interval_us.into()))?;
        linux_intervals.push(Row::new(interval_us, &served.times, served.lost));
    }
    let linux_reply_p90_us = linux_intervals.first().map_or(0.0, |row| row.reply_p90_us);
    let lost: u64 = intervals.iter().map(|row| row.lost).sum();
    let figures =
        Figures { intervals, max_clients_per_s: rounded(max_clients_per_s), linux_reply_p90_us, linux_intervals };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.describe("idle", hosted::IDLE);
    outcome.describe("function", "udp-echo, once");
    outcome.describe("cache_min", CACHE_MAX);
    outcome.describe("frames_late_p99_us", late_p99_us);
    outcome.describe("rates_tried", tried);
    if lost > 0 {
        outcome.fail(format!("{lost} new clients got no reply"));
    }
    Ok(outcome)
}

/// A service that answers one datagram and finishes.
fn service() -> Service<'static> {
    Service {
        module: sample("udp-echo"),
        config: "once",
        stages: 1,
        policy: "per-client",
        class: Class::Throughput,
        cache: CACHE_MAX,
        answer: Answer::Echoed,
    }
}

/// The results of clients at a rate.
struct Offered {
    tally: Tally,
    clients: usize,
    /// Instances that the node prepared until the last reply.
    prepared: u64,
}

/// Sends new clients' frames for so long, after as many at the same rate as a full cache has instances for: these use up what was prepared
/// before, as far as the node allows. Of those only losses are counted. Wrong replies are an error.
fn offer(node: &mut HostedNode, interval: Duration, time: Duration) -> anyhow::Result<Offered> {
    node.await_rest(0)?;
    let lead_in = node.offer(CACHE_MAX as usize, Pace::Every(interval))?;
    let clients = (time.as_nanos() / interval.as_nanos()).max(1) as usize;
    let before = node.latencies().preparation;
    let mut tally = node.offer(clients, Pace::Every(interval))?;
    let prepared = node.latencies().preparation.since(&before).count();
    for tally in [&lead_in, &tally] {
        let first = tally.first_wrong.as_deref().unwrap_or_default();
        ensure!(tally.wrong == 0, "{} frames were not expected replies; the first: {first}", tally.wrong);
    }
    tally.lost += lead_in.lost;
    Ok(Offered { tally, clients, prepared })
}

impl Offered {
    /// Returns the clients per second, if that rate can last.
    fn sustained(&self, interval: Duration) -> Option<f64> {
        let planned = interval * u32::try_from(self.clients).ok()?;
        let kept_up = self.tally.coming <= planned * COMING_PERCENT_MAX / 100;
        let prepared = self.prepared * 100 >= self.clients as u64 * PREPARED_PERCENT_MIN;
        let rate = self.clients as f64 / self.tally.serving.max(planned).as_secs_f64();
        (self.tally.lost == 0 && kept_up && prepared).then_some(rate)
    }
}

/// Returns the highest rate that was sustained, and all that were tried, with their results.
fn highest_rate(node: &mut HostedNode, time: Duration) -> anyhow::Result<(f64, Vec<String>)> {
    let mut tried = Vec::new();
    let mut attempt = |rate: u64| -> anyhow::Result<Option<f64>> {
        let interval = Duration::from_nanos(1_000_000_000 / rate);
        let offered = offer(node, interval, time)?;
        let sustained = offered.sustained(interval);
        tried.push(format!(
            "{rate}: {}; {} lost, {} of {} prepared meanwhile, p99 {:.1} us",
            if sustained.is_some() { "sustained" } else { "not sustained" },
            offered.tally.lost,
            offered.prepared,
            offered.clients,
            offered.tally.times.at_us(99.0)
        ));
        Ok(sustained)
    };
    let (mut good, mut best, mut bad) = (0, 0.0, RATE_MIN);
    while bad <= RATE_MAX {
        let Some(rate) = attempt(bad)? else { break };
        (good, best, bad) = (bad, rate, bad * 2);
    }
    for _ in 0..HALVINGS {
        let middle = u64::midpoint(good, bad);
        match attempt(middle)? {
            Some(rate) => (good, best) = (middle, rate),
            None => bad = middle,
        }
    }
    ensure!(best > 0.0, "no rate can be sustained: {}", tried.join("; "));
    Ok((best, tried))
}

fn summary(figures: &Figures) -> Table {
    let row = |who: &str, row: &Row| {
        let Row { interval_us, reply_p50_us, reply_p90_us, reply_p99_us, lost } = row;
        let times = [reply_p50_us, reply_p90_us, reply_p99_us].map(|us| format!("{us:.2}"));
        let [p50, p90, p99] = times;
        [who.to_owned(), interval_us.to_string(), p50, p90, p99, lost.to_string()]
    };
    let own = figures.intervals.iter().map(|own| row("Pinion", own));
    let linux = figures.linux_intervals.iter().map(|linux| row("a process for each", linux));
    let highest = format!("{:.0} clients per second", figures.max_clients_per_s);
    let highest = [highest, String::new(), String::new(), String::new(), String::new(), "0".to_owned()];
    table(["", "EVERY us", "REPLY p50 us", "p90 us", "p99 us", "LOST"], own.chain([highest]).chain(linux))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::percentiles::Percentiles;

    #[test]
    fn a_row_has_exactly_the_keys_agreed_upon() {
        let json = serde_json::to_value(Row::new(50, &Percentiles::new(), 0)).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["interval_us", "reply_p50_us", "reply_p90_us", "reply_p99_us", "lost"]);
    }
}
