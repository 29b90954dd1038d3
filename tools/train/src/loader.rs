//! Draws the batches of coming steps on threads of its own, so that a step never waits for text to be written, encoded
//! and masked.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use anyhow::{Context, Result};

use crate::{
    batch::{Batch, BatchOptions},
    text::Data,
};

/// Batches that each thread keeps ready.
const AHEAD: usize = 2;

/// The batches of a run in their order.
pub struct Loader {
    source: Source,
    step: u64,
}

enum Source {
    /// Drawn when asked for.
    Here(BatchOptions, Arc<Data>),
    /// Each thread draws every n-th batch; the threads end when the receivers are gone.
    Threads(Vec<Receiver<Result<Batch>>>),
}

impl Loader {
    /// Batches from the given step on. Without threads of its own each is drawn when it is asked for.
    pub fn new(options: BatchOptions, data: Arc<Data>, step: u64, threads: usize) -> Result<Self> {
        if threads == 0 {
            let source = Source::Here(options, data);
            return Ok(Self { source, step });
        }
        let receivers = (0..threads as u64)
            .map(|index| {
                // Bounded, so that a thread stops drawing when the trainer falls behind.
                let (sender, receiver) = sync_channel(AHEAD);
                let data = Arc::clone(&data);
                let steps = (step + index..).step_by(threads);
                thread::Builder::new()
                    .name(format!("loader-{index}"))
                    .spawn(move || {
                        for step in steps {
                            if sender.send(Batch::draw(&options, &*data, step)).is_err() {
                                break;
                            }
                        }
                    })
                    .context("start a loader thread")?;
                Ok(receiver)
            })
            .collect::<Result<_>>()?;
        let source = Source::Threads(receivers);
        // Counted from the first batch here, since the threads know their own steps.
        Ok(Self { source, step: 0 })
    }

    /// The next batch.
    pub fn draw(&mut self) -> Result<Batch> {
        let step = self.step;
        self.step += 1;
        match &self.source {
            Source::Here(options, data) => Batch::draw(options, &**data, step),
            Source::Threads(receivers) => receivers[(step % receivers.len() as u64) as usize]
                .recv()
                .context("a loader thread ended")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{objective::Objective, vocabulary::Vocabulary};

    #[test]
    fn threads_change_nothing_about_the_batches() {
        let data = Vocabulary::train(1, 512, 500).expect("train").into();
        let data: Arc<Data> = Arc::new(data);
        let options = BatchOptions {
            text: None,
            seed: 2,
            objective: Objective::Diffusion,
            parts: 1,
            part_tokens: 400,
            length_max: 512,
            length_warm_up_steps: 0,
            exercise_steps: 0,
        };
        let draw = |threads| {
            let mut loader = Loader::new(options, Arc::clone(&data), 3, threads).expect("loader");
            (0..7)
                .map(|_| loader.draw().expect("draw"))
                .collect::<Vec<_>>()
        };
        let expected = draw(0);
        assert_eq!(draw(1), expected);
        assert_eq!(draw(3), expected);
    }
}
