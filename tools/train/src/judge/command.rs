//! The command line of the judge.

use std::{
    io::{IsTerminal, stderr},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::{
    Schedule, Settings, curve::curve, fingerprint, judge, report, session::Session, ways::ways,
};
use crate::objective::BLOCK_LENGTH;

/// Requests where none are given, for a judgement and for each row of a curve.
const PROMPTS: usize = 500;
const PROMPTS_OF_CURVE: usize = 100;

/// What `sluice-train judge` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The folder of the model, as `export` writes it.
    #[arg(long)]
    model: PathBuf,
    /// Held-out requests; 500 if left out, and 100 for each row of a curve or way.
    #[arg(long)]
    prompts: Option<usize>,
    /// The seed of the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Positions of the canvas; a longer answer gets a multiple of it.
    #[arg(long, default_value_t = 128)]
    length: usize,
    /// Positions decoded together.
    #[arg(long, default_value_t = BLOCK_LENGTH)]
    block_length: usize,
    /// Passes for a canvas, by the reference schedule; as many as positions if left out.
    #[arg(long, group = "schedule")]
    steps: Option<usize>,
    /// Commit what is at least so confident.
    #[arg(long, group = "schedule")]
    threshold: Option<f64>,
    /// Commit as many as their confidences allow together; larger commits more.
    #[arg(long, group = "schedule")]
    factor: Option<f64>,
    /// Answer the same requests in faster and faster ways.
    #[arg(long, conflicts_with = "schedule")]
    curve: bool,
    /// Answer the same requests at this position of the dial, with this policy and, apart by blanks, cache, window, growth and
    /// speculation, or after as many steps of thinking as `think 16` says; may be given several times.
    #[arg(long, conflicts_with_all = ["schedule", "curve"])]
    way: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Judges and prints what was found.
pub fn run(arguments: &Arguments, threads: usize) -> Result<()> {
    let settings = arguments.settings();
    let weights = fingerprint(&arguments.model)?;
    let session = Session::open(&arguments.model, threads)?;
    let mut progress = Progress::new();
    let mut on_progress = |done, total| progress.show(done, total);
    if arguments.curve {
        let curve = curve(&session, &settings, weights, threads, &mut on_progress)?;
        return if arguments.json {
            print_json(&curve)
        } else {
            print!("{}", report::curve(&curve).plain());
            Ok(())
        };
    }
    if !arguments.way.is_empty() {
        let asked = &arguments.way;
        let ways = ways(
            &session,
            &settings,
            asked,
            weights,
            threads,
            &mut on_progress,
        )?;
        return if arguments.json {
            print_json(&ways)
        } else {
            print!("{}", report::ways(&ways).plain());
            Ok(())
        };
    }
    let judgement = judge(&session, &settings, weights, threads, &mut on_progress)?;
    if arguments.json {
        return print_json(&judgement);
    }
    println!("{}", report::answers(&judgement).plain());
    if session.fills_gaps() {
        println!("{}", report::gaps(&judgement).plain());
    }
    println!("{}", report::effort(&judgement));
    if judgement.left_out > 0 {
        println!("{} requests were left out as too long", judgement.left_out);
    }
    Ok(())
}

impl Arguments {
    fn settings(&self) -> Settings {
        let schedule = match (self.threshold, self.factor) {
            (Some(threshold), _) => Schedule::Threshold(threshold),
            (None, Some(factor)) => Schedule::Factor(factor),
            (None, None) => Schedule::Steps(self.steps.unwrap_or(self.length).max(1)),
        };
        let usual = if self.curve || !self.way.is_empty() {
            PROMPTS_OF_CURVE
        } else {
            PROMPTS
        };
        Settings {
            prompts: self.prompts.unwrap_or(usual),
            seed: self.seed,
            length: self.length,
            block_length: self.block_length,
            schedule,
        }
    }
}

fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// One line on standard error, from the first second on: over and over on a terminal, now and then in a file.
struct Progress {
    started: Instant,
    shown: Instant,
    is_terminal: bool,
    is_open: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            shown: Instant::now(),
            is_terminal: stderr().is_terminal(),
            is_open: false,
        }
    }

    fn show(&mut self, done: usize, total: usize) {
        let interval = if self.is_terminal {
            Duration::from_secs(1)
        } else {
            Duration::from_secs(15)
        };
        let is_done = done == total;
        if self.shown.elapsed() < interval && !(is_done && self.is_open) {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64();
        let left = seconds / done.max(1) as f64 * (total - done) as f64;
        let line = format!("{done} of {total} texts, {seconds:.0} s, about {left:.0} s left");
        if !self.is_terminal {
            eprintln!("{line}");
        } else if is_done {
            eprintln!("\r{line}\x1b[K");
        } else {
            eprint!("\r{line}\x1b[K");
        }
        self.is_open = self.is_terminal && !is_done;
    }
}
