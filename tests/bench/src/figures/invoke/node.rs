//! A node with thousands of functions, and the calls that are measured.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pinion_control::model::{ChainName, IDLE_TIMEOUT_MS_MIN, TenantName};
use pinion_control::node::{FwpState, FwpStatus, Node as _};
use pinion_gateway::invoke::FunctionRef;
use pinion_runtime::instruments::latencies::LatencySnapshot;
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use rustix::fs::{Advice, fadvise};

use super::dispatch::{Orders, Plan, Tally, driver};
use crate::measurement::run::Cores;
use crate::systems::hosted::{Beside, Host};

const TENANT: &str = "bench";
/// The number of functions of each template that are called first and not measured.
const WARM_UPS: usize = 2;
/// Room for further FWPs beside those of all functions.
const FWPS_SPARE: usize = 64;
/// A week, so that no instance ends as idle.
const IDLE_TIMEOUT_MS: u64 = 604_800_000;
/// The longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The functions.
pub(super) struct Functions {
    host: Host,
    orders: Orders,
    templates: usize,
    /// Called before all others.
    warm_ups: Vec<FunctionRef>,
    pub(super) measured: Vec<FunctionRef>,
    /// Each with a template of its own.
    pub(super) on_disk: Vec<FunctionRef>,
}

impl Functions {
    /// Starts a node with `count` functions of `templates` templates, and `on_disk` further ones with a template each. None has an instance
    /// ready.
    pub(super) fn start(cores: Cores, count: usize, templates: usize, on_disk: usize) -> anyhow::Result<Self> {
        let mut orders = None;
        let fwps_max = count + on_disk + templates * WARM_UPS + FWPS_SPARE;
        let host = Host::start(cores, fwps_max, Beside::default(), |_| {
            let (port, theirs) = driver();
            orders = Some(theirs);
            Box::new(port)
        })?;
        let orders = orders.context("the node has opened its port")?;
        let mut manifest = Manifest::of(TENANT);
        for number in 0..templates + on_disk {
            manifest = manifest.module(&format!("m{number}"), &module(&host, number)?);
        }
        let more = chain_settings(IDLE_TIMEOUT_MS);
        for number in 0..templates * WARM_UPS {
            manifest = manifest.chain(&format!("w{number}"), &format!("m{}", number % templates), &more);
        }
        manifest = with_measured(manifest, count, templates, IDLE_TIMEOUT_MS);
        for number in 0..on_disk {
            manifest = manifest.chain(&format!("d{number}"), &format!("m{}", templates + number), &more);
        }
        host.apply(&manifest)?;
        let functions = |kind: &str, count: usize| -> anyhow::Result<Vec<FunctionRef>> {
            (0..count).map(|number| function(&host, &format!("{kind}{number}"))).collect()
        };
        let warm_ups = functions("w", templates * WARM_UPS)?;
        let (measured, on_disk) = (functions("f", count)?, functions("d", on_disk)?);
        orders.equip(host.data_plane().dispatcher().context("the node has a line for a dispatcher")?)?;
        let functions = Self { host, orders, templates, warm_ups, measured, on_disk };
        functions.call(Plan::Each { functions: functions.warm_ups.clone(), pause: Duration::from_millis(1) })?;
        Ok(functions)
    }

    /// Calls functions, and fails unless each has answered with what it was sent.
    pub(super) fn call(&self, plan: Plan) -> anyhow::Result<Tally> {
        self.orders.call(plan)
    }

    /// Fails unless each measured function has an instance of its own that has been called, with so many calls in all.
    pub(super) fn check_residents(&self, calls: u64) -> anyhow::Result<()> {
        let fwps: Vec<_> = self.host.data_plane().fwps(None).flatten().collect();
        let serves = |state: FwpState| matches!(state, FwpState::Active | FwpState::Blocked);
        let own: Vec<_> = fwps.iter().filter(|fwp| fwp.chain.as_str().starts_with('f') && serves(fwp.state)).collect();
        let received: u64 = own.iter().map(|fwp| fwp.counters.received).sum();
        ensure!(own.len() == self.measured.len(), "{} of {} functions are resident", own.len(), self.measured.len());
        ensure!(received == calls, "the functions have got {received} messages of {calls} calls");
        ensure!(own.iter().all(|fwp| fwp.counters.received > 0), "some function was never called");
        Ok(())
    }

    /// Ends the measured functions' instances, so that other instances reuse their indices.
    pub(super) fn end_measured(&self) -> anyhow::Result<()> {
        let manifest = |idle_ms| with_measured(Manifest::of(TENANT), self.measured.len(), self.templates, idle_ms);
        self.host.apply(&manifest(IDLE_TIMEOUT_MS_MIN))?;
        let deadline = Instant::now() + PATIENCE;
        let is_left = |fwp: &FwpStatus| {
            let is_gone = matches!(fwp.state, FwpState::Terminated | FwpState::Template | FwpState::Object);
            fwp.chain.as_str().starts_with('f') && !is_gone
        };
        while self.host.data_plane().fwps(None).flatten().any(|fwp| is_left(&fwp)) {
            ensure!(Instant::now() < deadline, "functions without calls do not end");
            std::thread::sleep(LOOK_INTERVAL);
        }
        self.host.apply(&manifest(IDLE_TIMEOUT_MS))
    }

    /// Returns how long the launcher took for instances so far.
    pub(super) fn preparations(&self) -> LatencySnapshot {
        self.host.data_plane().latencies().preparation
    }

    /// Unloads the templates of the functions that are only on disk, also from the page cache as far as the kernel follows the advice.
    pub(super) fn unmap(&self) -> anyhow::Result<()> {
        self.host.data_plane().let_go_of_what_is_idle();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let fwps: Vec<_> = self.host.data_plane().fwps(None).flatten().collect();
            let is_mapped = |it: &&_| matches!(it, FwpState::Template);
            let of_disk = fwps.iter().filter(|fwp| fwp.chain.as_str().starts_with('d')).map(|fwp| fwp.state);
            match of_disk.filter(|state| is_mapped(&state)).count() {
                0 => break,
                count => ensure!(Instant::now() < deadline, "{count} templates stay mapped"),
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        for entry in fs::read_dir(self.host.state_dir().join("templates"))? {
            let path = entry?.path();
            if path.is_file() {
                let file = fs::File::open(&path)?;
                file.sync_all()?;
                fadvise(&file, 0, None, Advice::DontNeed).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }
}

fn chain_settings(idle_timeout_ms: u64) -> String {
    format!("cache_min = 0\nidle_timeout_ms = {idle_timeout_ms}")
}

fn with_measured(manifest: Manifest, count: usize, templates: usize, idle_timeout_ms: u64) -> Manifest {
    let settings = chain_settings(idle_timeout_ms);
    (0..count).fold(manifest, |manifest, number| {
        manifest.chain(&format!("f{number}"), &format!("m{}", number % templates), &settings)
    })
}

fn function(host: &Host, name: &str) -> anyhow::Result<FunctionRef> {
    let function = host.data_plane().function(&TenantName::new(TENANT)?, &ChainName::new(name)?);
    function.with_context(|| format!("chain {name} is unavailable"))
}

/// Writes a copy of the function macswap that differs from other copies only by an unused section. It is another module, and so has another
/// template.
fn module(host: &Host, number: usize) -> anyhow::Result<PathBuf> {
    let mut wasm = fs::read(sample("macswap")).context("the sample macswap")?;
    let (name, content) = (b"copy", (number as u32).to_le_bytes());
    wasm.extend_from_slice(&[0, (1 + name.len() + content.len()) as u8, name.len() as u8]);
    wasm.extend_from_slice(name);
    wasm.extend_from_slice(&content);
    let path = host.state_dir().join(format!("copy{number}.wasm"));
    fs::write(&path, wasm).with_context(|| path.display().to_string())?;
    Ok(path)
}
