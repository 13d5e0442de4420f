//! `pinion-bench`: each subcommand measures one figure, beside its peers, in the same run and on the same cores.
//!
//! ```text
//!   standard error    progress, then a table for people
//!   standard output   one JSON object, `{"env": ..., figures...}`, with --json or when it is no terminal
//!   exit status       0: measured, and every check held
//!                     1: measured, and a check failed; the object has the sentences under "failed_checks"
//!                     2 or a panic's 101: not measured: something was missing or failed; a sentence says what
//! ```
//!
//! A figure is a module of [`figures`] with options and a `run`, which gets a [`Run`] and returns an [`Outcome`]; it knows
//! nothing of arguments, terminals or files. [`report`] makes a page and a table of what the others wrote. Nothing here may change what the product does: nodes are started
//! from the release binaries, with switches that an operator has.
#![forbid(unsafe_code)]

mod clients;
mod figures;
mod machine;
mod measurement;
mod report;
mod systems;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use pinion_runtime::memory::allocator::Allocator;

use crate::figures::{
    chain, churn, density, fair, http, idle, infer, invoke, launch, memcached, middlebox, ping, quantum, tls,
};
use crate::measurement::outcome::Outcome;
use crate::measurement::run::{Common, Run};

/// The allocator of `piniond`: some figures run the node in this process.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Measures Pinion's figures, each beside its peers in the same run and on the same cores.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Chain(Measured<chain::Options>),
    Middlebox(Measured<middlebox::Options>),
    Ping(Measured<ping::Options>),
    Memcached(Measured<memcached::Options>),
    Http(Measured<http::Options>),
    Tls(Measured<tls::Options>),
    Infer(Measured<infer::Options>),
    Idle(Measured<idle::Options>),
    Launch(Measured<launch::Options>),
    Churn(Measured<churn::Options>),
    Density(Measured<density::Options>),
    Quantum(Measured<quantum::Options>),
    Fair(Measured<fair::Options>),
    Invoke(Measured<invoke::Options>),
    Report(report::Options),
    /// A peer of infer, which that starts
    #[command(hide = true)]
    ServeImages(infer::processes::Options),
}

// A figure's own options, and the common ones. No doc comment, here and on `Common`: clap would show it as each figure's help.
#[derive(clap::Args)]
struct Measured<T: clap::Args> {
    #[command(flatten)]
    own: T,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    pinion_tests::machine::autogroup::leave();
    match Arguments::parse().command {
        Command::Chain(figure) => measured("chain", figure, chain::run),
        Command::Middlebox(figure) => measured("middlebox", figure, middlebox::run),
        Command::Ping(figure) => measured("ping", figure, ping::run),
        Command::Http(figure) => measured("http", figure, http::run),
        Command::Tls(figure) => measured("tls", figure, tls::run),
        Command::Infer(figure) => measured("infer", figure, infer::run),
        Command::Memcached(figure) => measured("memcached", figure, memcached::run),
        Command::Idle(figure) => measured("idle", figure, idle::run),
        Command::Launch(figure) => measured("launch", figure, launch::run),
        Command::Churn(figure) => measured("churn", figure, churn::run),
        Command::Density(figure) => measured("density", figure, density::run),
        Command::Quantum(figure) => measured("quantum", figure, quantum::run),
        Command::Fair(figure) => measured("fair", figure, fair::run),
        Command::Invoke(figure) => measured("invoke", figure, invoke::run),
        Command::Report(options) => exit_code("report", report::write(&options).map(|()| true)),
        Command::ServeImages(options) => exit_code("serve-images", infer::processes::serve(&options).map(|()| true)),
    }
}

type MeasuredBy<T> = fn(&T, &Run) -> anyhow::Result<Outcome>;

fn measured<T: clap::Args>(name: &'static str, figure: Measured<T>, run: MeasuredBy<T>) -> ExitCode {
    let Measured { own, common } = figure;
    let measure = |tuning: &&'static str| {
        let started = Run::new(name, &common, tuning)?;
        let outcome = run(&own, &started);
        started.progress.finish();
        Ok((started, outcome?))
    };
    let measured: anyhow::Result<Vec<_>> = common.tunings().iter().map(measure).collect();
    let reported = measured.and_then(|measured| {
        let mut outcomes = measured.into_iter();
        let (started, mut outcome) = outcomes.next().context("there is always a first")?;
        outcomes.for_each(|(beside, other)| outcome.compare(beside.tuning, other));
        outcome.report(&started, common.wants_json())
    });
    exit_code(name, reported)
}

fn exit_code(name: &str, all_held: anyhow::Result<bool>) -> ExitCode {
    match all_held {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pinion-bench {name}: {error:#}");
            ExitCode::from(2)
        }
    }
}
