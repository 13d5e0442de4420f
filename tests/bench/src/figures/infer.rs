//! `infer`: a neural network for each client, beside a process for each (EdgeOS, section 5.5).

mod images;
pub(crate) mod processes;
mod servers;

use serde::Serialize;

use self::servers::{address, linux, node};
use crate::clients::web::comparison::{Compared, Comparison};
use crate::clients::web::wire::Speaks;
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;

/// A neural network for each client, beside a process for each
///
/// Each client has an address and a connection of its own, which it keeps, and sends images of 32 x 32 pixels in 3,072 bytes by POST. The node gives
/// each an instance of the function classifier, and runs the model on its thread for inference. Beside it a server forks a process for each connection,
/// which runs the same model by the same library and answers with the same text. Both are on the second core behind one end of a veth pair:
/// the node, with all its threads, by net_af_xdp, the processes by the kernel. The clients are the same for both: one thread that polls on the
/// first core, over the kernel's TCP. Every answer is compared with what the model makes of the image; a wrong one fails the run.
///
/// pinion_rps and linux_rps are the answers a second when each client sends its next image as soon as it has its answer. The times are
/// those of both in an open loop at offered_rps, 0.7 of the smaller rate, in which each client sends at random times (Poisson), whether or not its
/// last image was answered. A time runs from when an image was to be sent until its answer was read. ..._client_ns is the clients' own work
/// for an image.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "16,100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: Vec<u16>,
}

#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    clients: u16,
    pinion_rps: f64,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    pinion_client_ns: f64,
    linux_rps: f64,
    linux_p50_us: f64,
    linux_p99_us: f64,
    linux_client_ns: f64,
    /// The load of the times.
    offered_rps: f64,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(Comparison::steps(&options.clients));
    let exchanges = images::exchanges()?;
    let comparison = Comparison {
        run,
        counts: &options.clients,
        to: address()?,
        speaks: &Speaks::Plain,
        exchanges: &exchanges,
        peer: "Linux",
    };
    let all_clients = options.clients.iter().map(|count| usize::from(*count)).sum();
    let compared = comparison.measure(|| node(run.cores, all_clients), || linux(run.cores))?;
    let figures = Figures { rows: compared.iter().map(row).collect() };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.node_was_on(run.cores.together());
    outcome.describe("node", "all threads on the second core");
    Ok(outcome)
}

fn row(compared: &Compared) -> Row {
    let Compared { clients, most, open, offered_rps } = compared;
    let [pinion_rps, linux_rps] = most.each_ref().map(|load| load.per_second().round());
    let [pinion_client_ns, linux_client_ns] = most.each_ref().map(|load| rounded(load.client_ns()));
    let [pinion_p50_us, linux_p50_us] = open.each_ref().map(|load| rounded(load.times.at_us(50.0)));
    let [pinion_p99_us, linux_p99_us] = open.each_ref().map(|load| rounded(load.times.at_us(99.0)));
    Row {
        clients: *clients,
        pinion_rps,
        pinion_p50_us,
        pinion_p99_us,
        pinion_client_ns,
        linux_rps,
        linux_p50_us,
        linux_p99_us,
        linux_client_ns,
        offered_rps: offered_rps.round(),
    }
}

fn summary(figures: &Figures) -> comfy_table::Table {
    let line = |what: &str, who: &str, rate: f64, p50_us: f64, p99_us: f64| {
        [what.to_owned(), who.to_owned(), format!("{rate:.0}"), format!("{p50_us:.0}"), format!("{p99_us:.0}")]
    };
    let both = |row: &Row| {
        [
            line(&row.clients.to_string(), "Pinion", row.pinion_rps, row.pinion_p50_us, row.pinion_p99_us),
            line("", "Linux", row.linux_rps, row.linux_p50_us, row.linux_p99_us),
        ]
    };
    table(["clients", "", "images/s", "p50 us", "p99 us"], figures.rows.iter().flat_map(both))
}
