//! Pinion's side: a node whose port is the source, and a chain of `macswap` functions.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pinion_control::node::{FwpState, FwpStatus, PortStatus};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;

use super::frames::{NODE_ADDRESS, NODE_MAC};
use super::{Source, WARM_UP};
use crate::measurement::run::Run;
use crate::systems::node_api::NodeApi;

/// An operator's settings for line rate: data-plane threads never sleep, and packets wait for a slow stage instead of being dropped there,
/// after work was spent on them. The peer's pipeline does both. All other settings are the defaults.
pub(super) const IDLE: &str = "busy";
pub(super) const HOLD_FRAMES: u32 = 512;
/// The longest wait for a chain instance.
const READY_MAX: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Whose the chain is.
const TENANT: &str = "bench";

/// The results of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    /// Millions of frames that left the port per second.
    pub(super) mpps: f64,
    /// Bits that the MMA copied per second, in billions.
    pub(super) mma_gbps: f64,
}

/// A running node with a chain in force. Its only rule sends all UDP to [`NODE_ADDRESS`] there.
pub(super) struct ChainNode {
    pub(super) node: Node,
    pub(super) api: NodeApi,
}

impl ChainNode {
    /// Starts a node whose port is this device.
    pub(super) fn start(run: &Run, device: &str, length: usize) -> anyhow::Result<Self> {
        let port = format!("[[port]]\nname = \"lan\"\ndevice = {device:?}\naddresses = [\"{NODE_ADDRESS}/24\"]\n");
        // After an even number of swaps a frame has its client as its sender again.
        let tenant = format!("[[tenant]]\nname = {TENANT:?}\ntransparent_forwarding = true\n");
        let node = Node::started(&format!("idle = \"{IDLE}\"\n{}{port}{tenant}", run.cores.node_config()));
        let mut api = NodeApi::connect(&node.socket())?;
        node.apply(manifest(length).text());
        let mac = port_of(&mut api)?.mac;
        let expected = NODE_MAC.map(|byte| format!("{byte:02x}")).join(":");
        ensure!(mac == expected, "the port's address is {mac}, but frames are sent to {expected}");
        let mut chain = Self { node, api };
        chain.await_instance()?;
        Ok(chain)
    }

    fn await_instance(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_MAX;
        loop {
            let report = self.api.status()?;
            if report.node.chains.iter().any(|chain| chain.ready + chain.active > 0) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "no chain instance within {READY_MAX:?}:\n{}", self.node.log());
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Returns the status of the node's port.
    pub(super) fn port(&mut self) -> anyhow::Result<PortStatus> {
        port_of(&mut self.api)
    }

    /// Returns the FWPs that frames pass, stage by stage; fails if one has ended.
    pub(super) fn serving(&mut self) -> anyhow::Result<Vec<FwpStatus>> {
        let mut fwps = self.api.fwps()?;
        if let Some(ended) = fwps.iter().find(|fwp| fwp.state == FwpState::Terminated) {
            anyhow::bail!("FWP {} has ended:\n{}", ended.id, self.node.log());
        }
        fwps.retain(|fwp| fwp.counters.received > 0);
        fwps.sort_by_key(|fwp| fwp.stage);
        Ok(fwps)
    }
}

fn port_of(api: &mut NodeApi) -> anyhow::Result<PortStatus> {
    api.status()?.node.ports.into_iter().next().context("the node reports no port")
}

/// Makes a manifest of `length` functions in a row, with no more instances kept ready than the one that serves all.
fn manifest(length: usize) -> Manifest {
    let stages = vec!["{ module = \"macswap\" }"; length].join(", ");
    Manifest::of(TENANT)
        .module("macswap", &build::sample("macswap"))
        .with(format_args!(
            "[[chain]]\nname = \"swaps\"\nstage = [{stages}]\ncache_min = 1\nhold_frames = {HOLD_FRAMES}\n"
        ))
        .with(format_args!(
            "[[rule]]\nname = \"all\"\npolicy = \"shared\"\nchain = \"swaps\"\n\
             match = {{ destination = \"{NODE_ADDRESS}\", protocol = \"udp\" }}\n"
        ))
}

/// Measures the rates of a chain that is offered more than it can process.
pub(super) fn measure(run: &Run, source: &Source, length: usize) -> anyhow::Result<Rates> {
    let mut chain = ChainNode::start(run, &source.device(), length)?;
    thread::sleep(WARM_UP);
    let before = Reading::take(&mut chain)?;
    thread::sleep(run.time);
    let after = Reading::take(&mut chain)?;
    let rates = before.rates_until(&after)?;
    ensure!(before.fwps.len() == length, "{} FWPs served a chain of {length}", before.fwps.len());
    chain.node.stop();
    Ok(rates)
}

/// The node's counters at a time.
#[derive(Clone, Debug)]
struct Reading {
    /// By the node's own clock, read with the port's counters: the delay of the answer does not matter.
    at_ms: u64,
    sent: u64,
    fwps: Vec<String>,
    copied: Copied,
}

/// What the MMA has copied.
#[derive(Clone, Copy, Debug)]
struct Copied {
    at: Instant,
    bytes: u64,
}

impl Reading {
    fn take(chain: &mut ChainNode) -> anyhow::Result<Self> {
        let report = chain.api.status()?;
        let sent = report.node.ports.first().context("the node reports no port")?.sent;
        let asked = Instant::now();
        let fwps = chain.serving()?;
        let at = asked + asked.elapsed() / 2;
        let copied = Copied { at, bytes: copied_bytes(&fwps) };
        let fwps = fwps.into_iter().map(|fwp| fwp.id).collect();
        Ok(Self { at_ms: report.node.uptime_ms, sent, fwps, copied })
    }

    fn rates_until(&self, later: &Self) -> anyhow::Result<Rates> {
        ensure!(self.fwps == later.fwps, "FWPs have changed from {:?} to {:?}", self.fwps, later.fwps);
        let seconds = (later.at_ms - self.at_ms) as f64 / 1e3;
        let copying_seconds = (later.copied.at - self.copied.at).as_secs_f64();
        let copied_bits = (later.copied.bytes - self.copied.bytes) as f64 * 8.0;
        Ok(Rates { mpps: super::mpps(later.sent - self.sent, seconds), mma_gbps: copied_bits / copying_seconds / 1e9 })
    }
}

/// Returns the bytes of all copies: each is into the pool of some stage, or out of the last stage's.
fn copied_bytes(stages: &[FwpStatus]) -> u64 {
    let into: u64 = stages.iter().map(|fwp| fwp.counters.received_bytes).sum();
    into + stages.last().map_or(0, |fwp| fwp.counters.sent_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_ms: u64, sent: u64, copied_bytes: u64, start: Instant) -> Reading {
        let copied = Copied { at: start + Duration::from_millis(at_ms), bytes: copied_bytes };
        Reading { at_ms, sent, fwps: vec!["1".to_owned()], copied }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let start = Instant::now();
        let (before, after) =
            (reading(1_000, 5_000_000, 1_000, start), reading(3_000, 25_000_000, 2_500_001_000, start));
        let rates = before.rates_until(&after).unwrap();
        assert_eq!(rates, Rates { mpps: 10.0, mma_gbps: 10.0 });
    }

    #[test]
    fn rates_of_different_instances_are_refused() {
        let before = reading(1_000, 0, 0, Instant::now());
        let after = Reading { at_ms: 2_000, fwps: vec!["2".to_owned()], ..before.clone() };
        assert!(before.rates_until(&after).is_err());
    }

    #[test]
    fn a_chain_names_its_function_once_for_each_stage() {
        assert_eq!(manifest(3).text().matches("{ module = \"macswap\" }").count(), 3);
    }
}
