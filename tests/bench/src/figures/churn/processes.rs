//! The peer: a UDP server that forks for each client, `native/process_per_client.c`.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::measurement::percentiles::Percentiles;
use crate::measurement::run::Run;
use crate::systems::processes::{Children, PROCESS_PER_CLIENT, ending_with_us};

/// Clients that come before the others and are not counted.
const WARM_UP: u32 = 200;
/// As long as the frame's payload on Pinion's side.
const DATAGRAM_BYTES: usize = 18;
/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(2);
/// The sender does not sleep for less than this.
const SLEEP_MIN: Duration = Duration::from_micros(150);

/// The results of the clients.
pub(super) struct Served {
    pub(super) times: Percentiles,
    pub(super) lost: u64,
}

/// Sends new clients' datagrams for the time of a measurement.
pub(super) fn serve(run: &Run, interval: Duration) -> anyhow::Result<Served> {
    let counted = u32::try_from(run.time.as_nanos() / interval.as_nanos())?.max(1);
    let clients = WARM_UP + counted;
    let mut command = ending_with_us(PROCESS_PER_CLIENT);
    let words = [clients as usize, run.cores.first, run.cores.second].map(|number| number.to_string());
    let child = command.args(words).stdout(Stdio::piped()).spawn().context("setpriv, of Debian's util-linux")?;
    let mut server = Children(vec![child]);
    let output = server.0[0].stdout.take().context("the server's output")?;
    let mut output = BufReader::new(output);
    let mut line = String::new();
    output.read_line(&mut line).context("the server's port")?;
    let port: u16 = line.trim().parse().with_context(|| format!("the server's port, {line:?}"))?;

    let answered = send_all(port, clients, interval)?;
    let mut said = String::new();
    output.read_to_string(&mut said).context("the server's times")?;
    let status = server.0[0].wait()?;
    ensure!(status.success(), "the server of a process per client ended with {status}");
    let mut times = Percentiles::new();
    for line in said.lines() {
        let (client, took_ns) = line.split_once(' ').with_context(|| format!("the server says {line:?}"))?;
        if client.parse::<u32>()? >= WARM_UP {
            times.record(Duration::from_nanos(took_ns.parse()?));
        }
    }
    let answered = answered.iter().skip(WARM_UP as usize).filter(|answered| **answered).count();
    Ok(Served { times, lost: u64::from(counted) - answered as u64 })
}

/// Returns which clients were answered.
fn send_all(port: u16, clients: u32, interval: Duration) -> anyhow::Result<Vec<bool>> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_nonblocking(true)?;
    let mut answered = vec![false; clients as usize];
    let start = Instant::now();
    for client in 0..clients {
        let due = interval * client;
        while let Some(left) = due.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            take_answers(&socket, &mut answered)?;
            if left > SLEEP_MIN { thread::sleep(left - SLEEP_MIN / 2) } else { thread::yield_now() }
        }
        socket.send(&datagram(client)).context("a datagram to the server")?;
    }
    let last = Instant::now();
    while last.elapsed() < PATIENCE && answered.contains(&false) {
        take_answers(&socket, &mut answered)?;
        thread::sleep(SLEEP_MIN);
    }
    socket.send(&[0]).context("the last datagram to the server")?;
    Ok(answered)
}

fn take_answers(socket: &UdpSocket, answered: &mut [bool]) -> anyhow::Result<()> {
    let mut bytes = [0; 64];
    while let Ok(len) = socket.recv(&mut bytes) {
        let client = bytes.first_chunk().map_or(u32::MAX, |number| u32::from_ne_bytes(*number));
        let place = answered
            .get_mut(client as usize)
            .with_context(|| format!("an answer to no client: {:?}", &bytes[..len]))?;
        ensure!(bytes[..len] == datagram(client), "client {client} got {:?}", &bytes[..len]);
        ensure!(!std::mem::replace(place, true), "client {client} was answered twice");
    }
    Ok(())
}

fn datagram(client: u32) -> [u8; DATAGRAM_BYTES] {
    let mut bytes = [0x70; DATAGRAM_BYTES];
    bytes[..4].copy_from_slice(&client.to_ne_bytes());
    bytes
}
