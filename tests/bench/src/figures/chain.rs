//! `chain`: throughput of a chain of functions, beside native forwarding and a zero-copy pipeline (EdgeOS, figures 5b and 5c).
//!
//! All three have the same source, DPDK's `net_pcap` that repeats a file from memory, and the same sink, which frees each packet. For each
//! size and length they run one after the other, so that the values of a ratio are measured in the same minute:
//!
//! ```text
//!                       first core                              second core
//!   Pinion              source, gateway, MMA, sink    <copies>  worker with all functions, each in its own memory
//!   native              source, one function, sink              testpmd's commands: idle
//!   zero-copy           source, manager, sink       <pointers>  one thread per function, asleep when there is nothing
//! ```
//!
//! Before that, [`check`] sends frames through Pinion's chain and compares each frame that comes out.

mod check;
mod frames;
mod native;
mod pinion;
mod zero_copy;

use std::path::PathBuf;
use std::time::Duration;

use comfy_table::Table;
use serde::Serialize;
use tempfile::TempDir;

use self::check::Checked;
use self::frames::{FLOWS, SIZE_MAX, SIZE_MIN};
use self::pinion::Rates;
use crate::machine::huge_pages;
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;

/// Not counted.
const WARM_UP: Duration = Duration::from_secs(1);
/// Frames that the source repeats: a few of each flow. The device keeps each in a buffer.
const SOURCE_FRAMES: u64 = 4 * FLOWS as u64;
/// The most huge pages that a peer's buffers and DPDK's own structures take.
const HUGE_PAGES_MIB: u64 = 384;
/// The most functions in a chain.
const LENGTH_MAX: i64 = 16;

/// Throughput of a chain of MAC-swapping functions, beside testpmd and a zero-copy pipeline of OS threads
///
/// Counted are frames handed to the device for transmission, per second, from a source that always has more frames; a frame that was
/// received and not sent on does not count. A size is the frame in its buffer, without the checksum of a wire. `gbps` are the bits of the
/// frames counted by `mpps`; `mma_gbps` are the bits that Pinion's MMA copied, once for each hop. `native_mpps` is dpdk-testpmd's macswap,
/// one function on one core, whatever the length. `zero_copy_mpps` is a pipeline of native functions that pass pointers through rte_rings,
/// a thread each, on one core, woken by futex. Before each row, 100,000 frames with sequence numbers go through Pinion's chain into a file.
/// Each must be there once, in order within its flow, altered in its MAC addresses only, or be counted by the node as dropped.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Sizes of frames in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024],
          value_parser = clap::value_parser!(u16).range(i64::from(SIZE_MIN)..=i64::from(SIZE_MAX)))]
    sizes: Vec<u16>,
    /// Numbers of functions in the chain
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 6],
          value_parser = clap::value_parser!(u8).range(1..=LENGTH_MAX))]
    lengths: Vec<u8>,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
}

/// A chain's throughput, and its peers'.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    size: u16,
    length: usize,
    mpps: f64,
    gbps: f64,
    mma_gbps: f64,
    native_mpps: f64,
    zero_copy_mpps: f64,
    ratio_native: f64,
    ratio_zero_copy: f64,
}

impl Row {
    fn new(size: u16, length: usize, rates: Rates, native_mpps: f64, zero_copy_mpps: f64) -> Self {
        let Rates { mpps, mma_gbps } = rates;
        Self {
            size,
            length,
            mpps: rounded(mpps),
            gbps: rounded(mpps * f64::from(size) * 8.0 / 1e3),
            mma_gbps: rounded(mma_gbps),
            native_mpps: rounded(native_mpps),
            zero_copy_mpps: rounded(zero_copy_mpps),
            ratio_native: rounded(mpps / native_mpps),
            ratio_zero_copy: rounded(mpps / zero_copy_mpps),
        }
    }
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    // All three need huge pages, for equal conditions.
    huge_pages::require(HUGE_PAGES_MIB)?;
    run.progress.expect(4 * options.sizes.len() * options.lengths.len());
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    for &size in &options.sizes {
        let source = Source::new(size)?;
        for length in options.lengths.iter().map(|&length| usize::from(length)) {
            let step = |what: &str| run.progress.step(&format!("{size} bytes, {length} functions: {what}"));
            step("every frame comes out right?");
            checks.push((size, length, check::check(run, size, length)));
            step("Pinion");
            let rates = pinion::measure(run, &source, length)?;
            step("native");
            let native_mpps = native::measure(run, &source)?;
            step("zero-copy");
            let zero_copy_mpps = zero_copy::measure(run, &source, length)?;
            rows.push(Row::new(size, length, rates, native_mpps, zero_copy_mpps));
        }
    }
    let mut outcome = Outcome::new(&Figures { rows: rows.clone() }, as_table(&rows, &checks));
    outcome.describe("idle", pinion::IDLE);
    outcome.describe("hold_frames", pinion::HOLD_FRAMES);
    outcome.describe("source", format!("net_pcap, infinite_rx, {SOURCE_FRAMES} frames of {FLOWS} flows"));
    outcome.describe("size", "bytes of a frame in its buffer, without the Ethernet checksum");
    for (size, length, checked) in checks {
        if let Err(error) = checked {
            outcome.fail(format!("{size} bytes, {length} functions: {error:#}"));
        }
    }
    Ok(outcome)
}

fn as_table(rows: &[Row], checks: &[(u16, usize, anyhow::Result<Checked>)]) -> Table {
    let headings = [
        "SIZE",
        "LENGTH",
        "MPPS",
        "GBPS",
        "MMA GBPS",
        "NATIVE MPPS",
        "ZERO-COPY MPPS",
        "/NATIVE",
        "/ZERO-COPY",
        "CHECKED",
        "DROPPED",
    ];
    let line = |(row, (_, _, checked)): (&Row, &(u16, usize, anyhow::Result<Checked>))| {
        let (right, dropped) = match checked {
            Ok(Checked { arrived, dropped }) => (arrived.to_string(), dropped.to_string()),
            Err(_) => ("failed".to_owned(), "-".to_owned()),
        };
        [
            row.size.to_string(),
            row.length.to_string(),
            format!("{:.2}", row.mpps),
            format!("{:.2}", row.gbps),
            format!("{:.1}", row.mma_gbps),
            format!("{:.2}", row.native_mpps),
            format!("{:.2}", row.zero_copy_mpps),
            format!("{:.3}", row.ratio_native),
            format!("{:.2}", row.ratio_zero_copy),
            right,
            dropped,
        ]
    };
    table(headings, rows.iter().zip(checks).map(line))
}

/// The file that `net_pcap` repeats.
struct Source {
    folder: TempDir,
}

impl Source {
    fn new(size: u16) -> anyhow::Result<Self> {
        let source = Self { folder: tempfile::tempdir()? };
        frames::write_pcap(&source.file(), size, SOURCE_FRAMES)?;
        Ok(source)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("frames.pcap")
    }

    /// Returns the device in DPDK's notation. Without a `tx_` argument, sending only frees and counts a buffer, which is the cheapest way.
    fn device(&self) -> String {
        format!("net_pcap0,rx_pcap={},infinite_rx=1", self.file().display())
    }
}

/// Returns a peer's EAL arguments: the device, and memory of its own.
fn eal_arguments(peer: &str, source: &Source) -> Vec<String> {
    let prefix = format!("--file-prefix=pinion-bench-{}-{peer}", std::process::id());
    let vdev = format!("--vdev={}", source.device());
    let fixed = ["--in-memory", "--no-pci", "--no-telemetry", "--log-level=warning"].map(str::to_owned);
    fixed.into_iter().chain([prefix, vdev]).collect()
}

/// Returns millions per second.
fn mpps(packets: u64, seconds: f64) -> f64 {
    packets as f64 / seconds / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_exactly_the_keys_agreed_upon() {
        let row = Row::new(64, 2, Rates { mpps: 10.0, mma_gbps: 15.4 }, 40.0, 5.0);
        let json = serde_json::to_value(row).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let agreed =
            "size length mpps gbps mma_gbps native_mpps zero_copy_mpps ratio_native ratio_zero_copy".split(' ');
        assert_eq!(keys, agreed.collect::<Vec<_>>());
    }

    #[test]
    fn bits_and_ratios_follow_from_the_rates() {
        let row = Row::new(1000, 1, Rates { mpps: 2.0, mma_gbps: 32.0 }, 8.0, 4.0);
        assert_eq!((row.gbps, row.ratio_native, row.ratio_zero_copy), (16.0, 0.25, 0.5));
    }

    #[test]
    fn a_rate_is_packets_over_time() {
        assert!((mpps(30_000_000, 3.0) - 10.0).abs() < 1e-9);
    }
}
