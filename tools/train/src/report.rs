//! What a run says of itself while it trains.

use std::time::Duration;

use crate::{log::Entry, memory::Memory, progress::Progress, schedule};

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// The loss before the step; of a latent thought model the evidence bound for each token.
    pub loss: f64,
    /// Of that, the KL divergence of latents.
    pub kl: Option<f64>,
    /// Norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Tokens of the batch.
    pub tokens: u64,
    /// Time spent waiting for the batch.
    pub data_wait: Duration,
}

/// Sums since the last progress line.
#[derive(Default)]
pub struct Window {
    steps: f64,
    loss: f64,
    kl: Option<f64>,
    gradient_norm: f64,
    tokens: u64,
    data_wait: Duration,
}

impl Window {
    /// Adds a step.
    pub fn add(&mut self, step: &StepReport) {
        self.steps += 1.0;
        self.loss += step.loss;
        if let Some(kl) = step.kl {
            *self.kl.get_or_insert(0.0) += kl;
        }
        self.gradient_norm += step.gradient_norm;
        self.tokens += step.tokens;
        self.data_wait += step.data_wait;
    }

    /// The means, without measurements on held-out text.
    #[must_use]
    pub fn entry(&self, progress: &Progress, elapsed: Duration) -> Entry {
        Entry {
            step: progress.step,
            tokens: progress.tokens,
            loss: self.loss / self.steps,
            kl: self.kl.map(|kl| kl / self.steps),
            held_out: None,
            held_out_rounded: None,
            held_out_kl: None,
            gradient_norm: self.gradient_norm / self.steps,
            learning_rate: schedule::learning_rate(progress),
            tokens_per_second: self.tokens as f64 / elapsed.as_secs_f64(),
            data_wait: self.data_wait.as_secs_f64() / elapsed.as_secs_f64(),
            train_seconds: progress.train_seconds,
            memory: Memory::measure(),
        }
    }
}

/// The line that a person reads.
#[must_use]
pub fn line(entry: &Entry, progress: &Progress, window: &Window, elapsed: Duration) -> String {
    let (planned, seconds_left) = match progress.seconds_planned {
        Some(seconds) => {
            let left = seconds as f64 - progress.train_seconds;
            (format!("of {seconds} s"), left)
        }
        None => {
            let left = progress.steps_planned.saturating_sub(progress.step) as f64;
            let seconds = left * elapsed.as_secs_f64() / window.steps;
            (format!("of {}", progress.steps_planned), seconds)
        }
    };
    // What tokens cost and what latents cost, apart.
    let parts = |all: f64, kl: Option<f64>| {
        kl.map(|kl| format!(" (nll {:.3}, kl {kl:.3})", all - kl))
            .unwrap_or_default()
    };
    let loss = format!("loss {:.3}{}", entry.loss, parts(entry.loss, entry.kl));
    let held_out = entry
        .held_out
        .map(|nats| format!("  held-out {nats:.3}{}", parts(nats, entry.held_out_kl)))
        .unwrap_or_default();
    let rounded = entry
        .held_out_rounded
        .map(|nats| format!("  rounded {nats:.3}"))
        .unwrap_or_default();
    let memory = entry
        .memory
        .map(|memory| {
            let mebibytes = |bytes: u64| bytes >> 20;
            let (now, peak) = (mebibytes(memory.now_bytes), mebibytes(memory.peak_bytes));
            format!("  {now} MiB, at most {peak}")
        })
        .unwrap_or_default();
    format!(
        "step {} {planned}  {loss}{held_out}{rounded}  norm {:.2}  rate {:.5}  {:.0} tokens/s{memory}  {:.2} M tokens  {:.0} min left",
        entry.step,
        entry.gradient_norm,
        entry.learning_rate,
        entry.tokens_per_second,
        entry.tokens as f64 / 1e6,
        seconds_left / 60.0,
    )
}
