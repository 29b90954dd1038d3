//! Writes checkpoints of random weights, so that a shape can be tried at its true size without its weights. They can be
//! loaded, and a pass gives finite logits.
//!
//! All threads generate and write blocks of weights; memory is one block per thread. A block depends on the seed and
//! its place alone, so the number of threads makes no difference.

mod config;
mod elements;
mod error;
mod fresh;
mod layout;
mod routed;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use sluice_weights::Shape;

pub use self::{config::check, error::SynthError, routed::SynthRouter};
use self::{
    elements::RandomElements,
    layout::{ElementBlock, ShardLayout},
};
use super::{
    family::Family,
    folder::{PartialFolder, free_target},
};

/// The dtype of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynthDType {
    /// The upper half of an `f32`.
    Bf16,
    /// IEEE half precision.
    F16,
    /// 32-bit IEEE floats.
    F32,
}

impl SynthDType {
    /// Every dtype, the usual one first.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::F16, Self::F32];

    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// What to write.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthOptions {
    /// Sizes of the model.
    pub shape: Shape,
    /// The family that it belongs to; `None`: one that has such a shape.
    pub family: Option<Family>,
    /// The dtype of its weights.
    pub dtype: SynthDType,
    /// The same seed gives the same weights up to rounding, whatever the number of threads.
    pub seed: u64,
    /// How the experts of a mixture are chosen.
    pub router: SynthRouter,
    /// Number of threads that generate weights; 0 for one per core.
    pub threads: usize,
}

/// Progress callback: bytes written so far, and bytes in all.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

impl SynthOptions {
    /// Bytes of all weights.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.shape.parameters() * self.dtype.bytes()
    }

    /// Writes the checkpoint as a Hugging Face folder. It has a temporary name beside `target` until it is complete;
    /// after a failure, nothing is left of it.
    ///
    /// # Errors
    /// A shape that could not be loaded, a target that isn't an empty folder, a file operation that failed, or `cancel`
    /// set, which is looked at before each block.
    pub fn write(
        &self,
        target: &Path,
        cancel: &AtomicBool,
        progress: Progress<'_>,
    ) -> Result<(), SynthError> {
        // Checked by the loader's own rules, before gigabytes are written that nobody could load.
        check(self.family, &self.shape)?;
        let target = free_target(target)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads)
            .thread_name(|index| format!("sluice-synth-{index}"))
            .build()
            .map_err(|error| SynthError::Threads(error.to_string()))?;
        let partial = PartialFolder::create(&target, "synth")?;
        let layout = ShardLayout::new(&self.shape, self.dtype, self.router);
        let config = config::config(self.family, &self.shape, self.dtype);
        write_small(&partial.path("config.json"), &config)?;
        if let Some(index) = layout.index() {
            write_small(&partial.path(layout::INDEX), &index)?;
        }
        progress(0, layout.weight_bytes());
        let writer = Writer {
            layout: &layout,
            elements: RandomElements::new(self.seed, self.dtype),
            pool,
            cancel,
            progress: Mutex::new((0, progress)),
        };
        for shard in 0..layout.shards() {
            writer.write_shard(shard, &partial.path(&layout.file_name(shard)))?;
        }
        Ok(partial.keep_as(&target)?)
    }
}

fn write_small(path: &Path, content: &serde_json::Value) -> Result<(), SynthError> {
    fs::write(path, format!("{content:#}\n")).map_err(|cause| SynthError::io("write", path, cause))
}

/// State that all threads share.
struct Writer<'a> {
    layout: &'a ShardLayout,
    elements: RandomElements,
    pool: rayon::ThreadPool,
    cancel: &'a AtomicBool,
    /// Bytes written so far, and the progress callback.
    progress: Mutex<(u64, Progress<'a>)>,
}

impl Writer<'_> {
    fn write_shard(&self, shard: usize, path: &Path) -> Result<(), SynthError> {
        let refused = |cause| self.refused(path, cause);
        let file = File::create_new(path).map_err(refused)?;
        let header = self.layout.header(shard);
        file.write_all_at(&header, 0).map_err(refused)?;
        let jobs = Mutex::new(Some(self.layout.jobs(shard)));
        let results = self.pool.broadcast(|_| {
            self.work(&file, &jobs).inspect_err(|_| {
                // The other threads find no more blocks.
                *jobs.lock().unwrap_or_else(PoisonError::into_inner) = None;
            })
        });
        for result in results {
            result.map_err(|failure| match failure {
                Failure::Cancelled => SynthError::Cancelled,
                Failure::Io(cause) => refused(cause),
            })?;
        }
        // A full disk may show only now.
        file.sync_all().map_err(refused)
    }

    fn work(
        &self,
        file: &File,
        jobs: &Mutex<Option<impl Iterator<Item = ElementBlock>>>,
    ) -> Result<(), Failure> {
        // One buffer a thread, used for all of its blocks.
        let mut buffer = self.elements.buffer(layout::BLOCK_ELEMENTS);
        loop {
            let mut jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(job) = jobs.as_mut().and_then(Iterator::next) else {
                return Ok(());
            };
            // Given back before the block is generated, or threads would work one after another.
            drop(jobs);
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Failure::Cancelled);
            }
            let bytes = self.elements.fill(&job, &mut buffer);
            // Blocks are written wherever they belong, in any order, so threads don't wait for each other.
            file.write_all_at(bytes, job.offset).map_err(Failure::Io)?;
            // Held while it is reported, so that reports rise.
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            let (done, report) = &mut *progress;
            *done += bytes.len() as u64;
            report(*done, self.layout.weight_bytes());
        }
    }

    fn refused(&self, path: &Path, cause: io::Error) -> SynthError {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        SynthError::Write {
            path: path.to_owned(),
            done_bytes: progress.0,
            total_bytes: self.layout.weight_bytes(),
            cause,
        }
    }
}

/// Why a thread stopped.
enum Failure {
    Cancelled,
    Io(io::Error),
}

#[cfg(test)]
mod tests;
