//! Waiting for the grammars of requests, without harm to others.

use std::{ops::Range, time::Duration};

use super::{Batch, BatchMember, RunningWork};
use crate::{heartbeat::Activity, runtime::contain::contained};

/// How long a pass waits for a grammar where nothing else is to be done: then it looks whether anybody came or left.
const GRAMMAR_LOOK_INTERVAL: Duration = Duration::from_millis(5);

impl BatchMember {
    /// Whether there is something for it to compute.
    fn is_busy(&self) -> bool {
        match &self.work {
            RunningWork::Autoregressive(request) => {
                request.is_thinking() || !request.awaits_grammar()
            }
            RunningWork::Diffusion { .. } | RunningWork::LatentScore(_) => true,
        }
    }
}

impl Batch<'_> {
    /// Lets those read whose grammars have become ready. Where there is nothing else to do, waits a moment for one.
    pub(super) fn await_grammars(&mut self, range: Range<usize>) {
        let members = &mut self.members[range];
        let is_idle = !members.iter().any(BatchMember::is_busy);
        let worker = &mut *self.runner.worker;
        let mut wait = Duration::ZERO;
        if is_idle {
            wait = GRAMMAR_LOOK_INTERVAL;
            // Neither other engines nor changes wait for it.
            worker.turn.release();
        }
        for member in members {
            let RunningWork::Autoregressive(request) = &mut member.work else {
                continue;
            };
            if !request.awaits_grammar() || member.failed.is_some() {
                continue;
            }
            match contained(|| request.has_grammar_within(wait)) {
                Ok(_) => wait = Duration::ZERO,
                Err(panicked) => member.failed = Some(panicked),
            }
        }
        if is_idle {
            worker.turn.take();
            worker.shared.heartbeat.begin(Activity::Passes);
            worker.between_passes();
        }
    }
}
