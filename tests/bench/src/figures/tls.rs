//! `tls`: a TLS server for each client, beside nginx (EdgeOS, section 5.4).

mod client;
mod handshakes;
mod servers;

use std::net::SocketAddrV4;

use anyhow::Context;
use rustls::HandshakeKind;
use serde::Serialize;

use self::client::{Site, Tickets};
use self::handshakes::{Handshakes, Shaken};
use self::servers::{address, nginx, node_per_client, node_per_connection};
use crate::clients::web::comparison::{Compared, Comparison};
use crate::clients::web::load::Exchange;
use crate::clients::web::wire::Speaks;
use crate::figures::ping::pin_here;
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;
use crate::systems::server::Server;

/// More than this part of the handshakes that are to resume a session may not be full ones.
const FULL_MAX: f64 = 0.01;

/// A TLS server for each client, beside nginx
///
/// Each client has an address and a connection of its own, which it keeps, and asks for a file without content. The node gives each an instance
/// of the function tls-proxy; nginx has one worker. Both are on the second core behind one end of a veth pair: the node, with all its threads,
/// by net_af_xdp, nginx by the kernel. The clients are the same for both: one thread that polls on the first core, with rustls over the
/// kernel's TCP. Both servers have the same certificate, a key of P-256, and speak TLS 1.3 with TLS_CHACHA20_POLY1305_SHA256 and X25519 only, as
/// the clients offer nothing else. A reply that is not the file fails the run.
///
/// pinion_rps and nginx_rps are the replies a second when each client asks again as soon as it has its reply, and ..._client_ns the clients' own
/// work for a request then: if that is nearly the time between two replies, the clients are the bound. The times are those of
/// both in an open loop at offered_rps, 0.7 of the smaller rate, in which each client asks at random times (Poisson), whether or not its last
/// request was answered. A time runs from when a request was to be sent until its reply was read.
///
/// Handshakes: so many are under way all the time, each on a new connection from another address, and each with one request, whose reply must
/// come for it to count. The node gives each connection an instance that has served none (policy per-flow). pinion_handshakes_per_s counts
/// full ones, pinion_resumed_per_s those that resume a session of another connection by its ticket, with a new key agreement. Their times run from
/// right before the connection until the server's last message was verified. Of the signatures, clients verify each sixteenth.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of clients that keep their connections
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: Vec<u16>,
    /// How many handshakes are under way
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    handshakes: u16,
}

#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
    pinion_handshakes_per_s: f64,
    nginx_handshakes_per_s: f64,
    pinion_resumed_per_s: f64,
    nginx_resumed_per_s: f64,
    /// Their times.
    handshakes: Vec<Handshaken>,
}

#[derive(Debug, Serialize)]
struct Handshaken {
    kind: &'static str,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    pinion_client_ns: f64,
    nginx_p50_us: f64,
    nginx_p99_us: f64,
    nginx_client_ns: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    clients: u16,
    pinion_rps: f64,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    pinion_client_ns: f64,
    nginx_rps: f64,
    nginx_p50_us: f64,
    nginx_p99_us: f64,
    nginx_client_ns: f64,
    /// The load of the times.
    offered_rps: f64,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(Comparison::steps(&options.clients) + 4);
    let site = Site::new()?;
    let (to, speaks) = (address()?, site.full_handshakes()?);
    let exchanges = [Exchange { request: request(to), body: Vec::new() }];
    let comparison =
        Comparison { run, counts: &options.clients, to, speaks: &speaks, exchanges: &exchanges, peer: "nginx" };
    let all_clients = options.clients.iter().map(|count| usize::from(*count)).sum();
    let compared = comparison.measure(|| node_per_client(run.cores, &site, all_clients), || nginx(run.cores, &site))?;
    let mut node = node_per_connection(run.cores, &site, options.handshakes)?;
    let [pinion, pinion_resumed] = handshakes("Pinion", &mut node, &site, options, run)?;
    drop(node);
    let [nginx, nginx_resumed] = handshakes("nginx", &mut nginx(run.cores, &site)?, &site, options, run)?;
    let figures = Figures {
        rows: compared.iter().map(row).collect(),
        pinion_handshakes_per_s: pinion.per_second().round(),
        nginx_handshakes_per_s: nginx.per_second().round(),
        pinion_resumed_per_s: pinion_resumed.per_second().round(),
        nginx_resumed_per_s: nginx_resumed.per_second().round(),
        handshakes: vec![times("full", [&pinion, &nginx]), times("resumed", [&pinion_resumed, &nginx_resumed])],
    };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.node_was_on(run.cores.together());
    outcome.describe("node", "all threads on the second core");
    for (who, resumed) in [("Pinion", &pinion_resumed), ("nginx", &nginx_resumed)] {
        if resumed.unwanted_part() > FULL_MAX {
            let part = 100.0 * resumed.unwanted_part();
            outcome.fail(format!("{who} did not resume {part:.1} % of the sessions"));
        }
    }
    Ok(outcome)
}

fn row(compared: &Compared) -> Row {
    let Compared { clients, most, open, offered_rps } = compared;
    let [pinion_rps, nginx_rps] = most.each_ref().map(|load| load.per_second().round());
    let [pinion_client_ns, nginx_client_ns] = most.each_ref().map(|load| rounded(load.client_ns()));
    let [pinion_p50_us, nginx_p50_us] = open.each_ref().map(|load| rounded(load.times.at_us(50.0)));
    let [pinion_p99_us, nginx_p99_us] = open.each_ref().map(|load| rounded(load.times.at_us(99.0)));
    Row {
        clients: *clients,
        pinion_rps,
        pinion_p50_us,
        pinion_p99_us,
        pinion_client_ns,
        nginx_rps,
        nginx_p50_us,
        nginx_p99_us,
        nginx_client_ns,
        offered_rps: offered_rps.round(),
    }
}

fn times(kind: &'static str, both: [&Shaken; 2]) -> Handshaken {
    let [pinion_p50_us, nginx_p50_us] = both.map(|shaken| rounded(shaken.times.at_us(50.0)));
    let [pinion_p99_us, nginx_p99_us] = both.map(|shaken| rounded(shaken.times.at_us(99.0)));
    let [pinion_client_ns, nginx_client_ns] = both.map(|shaken| rounded(shaken.client_ns()));
    Handshaken { kind, pinion_p50_us, pinion_p99_us, pinion_client_ns, nginx_p50_us, nginx_p99_us, nginx_client_ns }
}

/// Measures full handshakes, and then such that resume sessions.
fn handshakes(
    who: &str,
    server: &mut Server,
    site: &Site,
    options: &Options,
    run: &Run,
) -> anyhow::Result<[Shaken; 2]> {
    let (to, under_way) = (address()?, usize::from(options.handshakes));
    let (full, resumed) = (site.full_handshakes()?, site.resumed_handshakes(Tickets::default())?);
    let Server { lab, addresses, .. } = server;
    let mut keep = |name: &str, speaks: &Speaks, kind: HandshakeKind| {
        run.progress.step(&format!("{name} handshakes with {who}"));
        let handshakes = Handshakes::new(to, speaks, kind, request(to))?;
        handshakes.keep(under_way, addresses, run.time).with_context(|| format!("{name} handshakes"))
    };
    let clients = || -> anyhow::Result<[Shaken; 2]> {
        pin_here(run.cores.first)?;
        Ok([keep("full", &full, HandshakeKind::Full)?, keep("resumed", &resumed, HandshakeKind::Resumed)?])
    };
    let shaken = lab.client.inside(clients).with_context(|| who.to_owned());
    server.check()?;
    shaken
}

fn request(to: SocketAddrV4) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {to}\r\n\r\n").into_bytes()
}

fn summary(figures: &Figures) -> comfy_table::Table {
    let line = |what: &str, who: &str, rate: f64, p50_us: f64, p99_us: f64, client_ns: f64| {
        let [p50_us, p99_us] = [p50_us, p99_us].map(|us| format!("{us:.0}"));
        [what.to_owned(), who.to_owned(), format!("{rate:.0}"), p50_us, p99_us, format!("{:.1}", client_ns / 1e3)]
    };
    let requests = figures.rows.iter().flat_map(|row| {
        let clients = format!("requests, {} clients", row.clients);
        [
            line(&clients, "Pinion", row.pinion_rps, row.pinion_p50_us, row.pinion_p99_us, row.pinion_client_ns),
            line("", "nginx", row.nginx_rps, row.nginx_p50_us, row.nginx_p99_us, row.nginx_client_ns),
        ]
    });
    let rates = [
        (figures.pinion_handshakes_per_s, figures.nginx_handshakes_per_s),
        (figures.pinion_resumed_per_s, figures.nginx_resumed_per_s),
    ];
    let handshakes = figures.handshakes.iter().zip(rates).flat_map(|(it, (pinion, nginx))| {
        let what = format!("{} handshakes", it.kind);
        [
            line(&what, "Pinion", pinion, it.pinion_p50_us, it.pinion_p99_us, it.pinion_client_ns),
            line("", "nginx", nginx, it.nginx_p50_us, it.nginx_p99_us, it.nginx_client_ns),
        ]
    });
    table(["", "", "a second", "p50 us", "p99 us", "client us"], requests.chain(handshakes))
}
