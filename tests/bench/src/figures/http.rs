//! `http`: a small file beside nginx, and one connection's throughput beside the kernel's.

mod bulk;
mod servers;
mod wrk;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;

use self::servers::{BULK, SERVICE_PORT, address, content, nginx, node};
use self::wrk::Asked;
use crate::figures::ping::pin_here;
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;
use crate::systems::lab::Lab;

const START_MAX: Duration = Duration::from_secs(30);

/// A small file beside nginx, and one connection's throughput
///
/// wrk, with one thread on the first core, asks for a file of 605 bytes on so many connections, which it keeps, and on each again as soon as the
/// reply is there. The server is on the second core behind one end of a veth pair: a node with gateway, MMA and worker in one thread and one
/// instance of the function http-server, by net_af_xdp; then nginx with one worker, by the kernel. Times are wrk's. A reply with another
/// status than 200 fails the run, and the file is compared byte by byte once before.
///
/// bulk_pinion_gbps is what one connection moves out of the function to a client on the first core, bulk_kernel_gbps what iperf3 moves between
/// the kernels of two namespaces over such a cable, whose ends leave it to each other to cut segments and to compute checksums.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of connections
    #[arg(long, value_delimiter = ',', default_value = "1,64", value_parser = clap::value_parser!(u16).range(1..=120))]
    clients: Vec<u16>,
}

#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
    bulk_pinion_gbps: f64,
    bulk_kernel_gbps: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    clients: u16,
    pinion_rps: f64,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    nginx_rps: f64,
    nginx_p50_us: f64,
    nginx_p99_us: f64,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(2 * options.clients.len() + 2);
    let to: SocketAddr = (address()?, SERVICE_PORT).into();
    let (pinion, bulk_pinion_gbps) = {
        let lab = Lab::new();
        let _node = node(&lab, run.cores);
        let asked = asked("Pinion", &lab, options, run)?;
        run.progress.step("one connection's throughput");
        let client = || {
            pin_here(run.cores.first)?;
            bulk::download_gbps(to, BULK, run.time)
        };
        (asked, lab.client.inside(client)?)
    };
    let nginx = {
        let lab = Lab::new();
        let mut nginx = nginx(&lab, run.cores)?;
        let asked = asked("nginx", &lab, options, run);
        nginx.check()?;
        asked?
    };
    run.progress.step("one connection's throughput between two kernels");
    let bulk_kernel_gbps = bulk::kernels_gbps(run.cores, run.time)?;
    let rows = options.clients.iter().zip(pinion.into_iter().zip(nginx));
    let figures = Figures {
        rows: rows.map(|(clients, both)| row(*clients, both)).collect(),
        bulk_pinion_gbps: rounded(bulk_pinion_gbps),
        bulk_kernel_gbps: rounded(bulk_kernel_gbps),
    };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.node_was_on(run.cores.together());
    Ok(outcome)
}

fn row(clients: u16, (pinion, nginx): (Asked, Asked)) -> Row {
    Row {
        clients,
        pinion_rps: pinion.per_second().round(),
        pinion_p50_us: pinion.p50_us,
        pinion_p99_us: pinion.p99_us,
        nginx_rps: nginx.per_second().round(),
        nginx_p50_us: nginx.p50_us,
        nginx_p99_us: nginx.p99_us,
    }
}

/// Asks a server with each number of connections, once it serves the file as it is.
fn asked(who: &str, lab: &Lab, options: &Options, run: &Run) -> anyhow::Result<Vec<Asked>> {
    let to: SocketAddr = (address()?, SERVICE_PORT).into();
    lab.client.inside(|| compare(to)).with_context(|| who.to_owned())?;
    let url = format!("http://{}/", address()?);
    let ask = |clients: &u16| {
        run.progress.step(&format!("{clients} connections to {who}"));
        wrk::ask(&lab.client, run.cores.first, &url, *clients, run.time).with_context(|| who.to_owned())
    };
    options.clients.iter().map(ask).collect()
}

/// Compares the file with what it is to be, as soon as the server is there.
fn compare(to: SocketAddr) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_MAX;
    let mut stream = loop {
        match TcpStream::connect_timeout(&to, START_MAX) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error).context("no connection"),
        }
    };
    stream.set_read_timeout(Some(START_MAX))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").context("a reply without an end of its head")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "the reply is {head:?}");
    ensure!(body == content(), "the file is {body:?}");
    Ok(())
}

fn summary(figures: &Figures) -> comfy_table::Table {
    let line = |clients: u16, who: &str, rps: f64, p50_us: f64, p99_us: f64| {
        [clients.to_string(), who.to_owned(), format!("{rps:.0}"), format!("{p50_us:.0}"), format!("{p99_us:.0}")]
    };
    let both = |row: &Row| {
        [
            line(row.clients, "Pinion", row.pinion_rps, row.pinion_p50_us, row.pinion_p99_us),
            line(row.clients, "nginx", row.nginx_rps, row.nginx_p50_us, row.nginx_p99_us),
        ]
    };
    let bulk = |who: &str, gbps: f64| {
        ["one download".to_owned(), who.to_owned(), format!("{gbps:.2} Gb/s"), String::new(), String::new()]
    };
    let bulk = [bulk("Pinion", figures.bulk_pinion_gbps), bulk("iperf3", figures.bulk_kernel_gbps)];
    table(["connections", "", "requests/s", "p50 us", "p99 us"], figures.rows.iter().flat_map(both).chain(bulk))
}
