//! Jobs that code and decode checkpoints.

use std::{
    num::NonZero,
    path::{Path, PathBuf},
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use sluice_checkpoint::compression::{
    self, CompressError, CompressOptions, CompressionMethod, ContainerError, Glob, Lossless,
    ProgressBytes, TrellisTarget, partial_of,
};
use sluice_proto::{
    model::{self, CompressJob, DecompressJob, VerifyJob},
    v1::{self, job_result::Kind},
};
use sluice_shared::compression::Coder;

use super::{Job, JobDescription, Jobs};
use crate::{failure::Failure, model_name::ModelName, translate::container as wire};

/// How often the state changes for progress alone.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

impl Jobs {
    /// Begins to make a coded file of a model.
    ///
    /// # Errors
    /// When no job can begin now.
    pub fn compress(
        self: &Arc<Self>,
        model: &ModelName,
        asked: CompressJob,
    ) -> Result<Arc<Job>, Failure> {
        let threads = threads(asked.threads);
        let facts = JobDescription {
            kind: v1::JobKind::Compress,
            source: match &model.path {
                Some(path) => path.display().to_string(),
                None => model.name.clone(),
            },
            output: asked.output.display().to_string(),
            threads,
        };
        let options = CompressOptions {
            method: compression_method(asked.method),
            tile: asked.tile_elements as usize,
            keep: asked
                .keep_tensors
                .iter()
                .map(|pattern| Glob::new(pattern))
                .collect(),
            all: asked.all_tensors,
            threads,
            replace: false,
        };
        let (source, output) = (model.source(), asked.output);
        self.begin(facts, move |job| {
            let mut report = reporter(job);
            let made = compression::compress(&source, &output, &options, &job.cancel, &mut report);
            let made = made.map_err(|error| {
                let kept = partial_path(&error, &output);
                failure(error, kept)
            })?;
            Ok(Kind::Compressed(wire::compress_result(&made)))
        })
    }

    /// Begins to make a folder of a coded file.
    ///
    /// # Errors
    /// When no job can begin now.
    pub fn decompress(self: &Arc<Self>, asked: DecompressJob) -> Result<Arc<Job>, Failure> {
        let threads = threads(asked.threads);
        let facts = JobDescription {
            kind: v1::JobKind::Decompress,
            source: asked.file.display().to_string(),
            output: asked.output.display().to_string(),
            threads,
        };
        self.begin(facts, move |job| {
            let made = compression::open(&asked.file).and_then(|container| {
                let mut report = reporter(job);
                compression::decompress(
                    &container,
                    &asked.output,
                    threads,
                    &job.cancel,
                    &mut report,
                )
            });
            let made = made.map_err(|error| failure(error, None))?;
            Ok(Kind::Decompressed(wire::decompress_result(&made)))
        })
    }

    /// Begins to compare a coded file with its checksums, by one thread.
    ///
    /// # Errors
    /// When no job can begin now.
    pub fn verify(self: &Arc<Self>, asked: VerifyJob) -> Result<Arc<Job>, Failure> {
        let facts = JobDescription {
            kind: v1::JobKind::Verify,
            source: asked.file.display().to_string(),
            output: String::new(),
            threads: 1,
        };
        self.begin(facts, move |job| {
            let container = compression::open(&asked.file).map_err(|error| failure(error, None))?;
            let found = compression::verify(&container, &job.cancel, &mut reporter(job));
            let found = found.map_err(|error| failure(error, None))?;
            Ok(Kind::Verified(wire::verify_result(&container, &found)))
        })
    }
}

/// How numbers are coded, in the engine's words.
pub(crate) fn compression_method(how: model::CompressionMethod) -> CompressionMethod {
    match how {
        model::CompressionMethod::BitsPerWeight(bits) => {
            CompressionMethod::Trellis(TrellisTarget::Bits(bits))
        }
        model::CompressionMethod::Lossless(Coder::Huffman) => {
            CompressionMethod::Lossless(Lossless::Huffman)
        }
        model::CompressionMethod::Lossless(Coder::Dictionary) => {
            CompressionMethod::Lossless(Lossless::Dictionary)
        }
    }
}

/// Half of the cores, so that generation has the rest; never more than there are.
fn threads(asked: Option<u32>) -> usize {
    let cores = available_parallelism().map_or(1, NonZero::get);
    match asked {
        Some(threads) => cores.min(threads as usize),
        None => (cores / 2).max(1),
    }
}

/// Takes progress into the job's state.
fn reporter(job: &Job) -> impl FnMut(&str, ProgressBytes) + Send {
    let mut told: Option<Instant> = None;
    move |tensor, amount| {
        if told.is_some_and(|told| told.elapsed() < PROGRESS_INTERVAL) {
            return;
        }
        told = Some(Instant::now());
        let progress = v1::JobProgress {
            tensor: tensor.to_owned(),
            done_bytes: amount.done_bytes,
            total_bytes: amount.total_bytes,
        };
        job.state.send_modify(|state| state.progress = progress);
    }
}

/// What a run that came to nothing leaves for the next one of the same: its unfinished file. Of other failures, none was theirs.
pub(crate) fn partial_path(error: &CompressError, output: &Path) -> Option<PathBuf> {
    let may_be_resumed = matches!(
        error,
        CompressError::Cancelled
            | CompressError::Checkpoint(_)
            | CompressError::Container(ContainerError::Io { .. })
            | CompressError::Encode { .. }
            | CompressError::Io { .. }
            | CompressError::NoSpace { .. }
    );
    let partial = partial_of(output);
    (may_be_resumed && partial.exists()).then_some(partial)
}

/// Why nothing was made, and what is left of it.
fn failure(error: CompressError, kept: Option<PathBuf>) -> Failure {
    match (error, kept) {
        (CompressError::Cancelled, kept) => Failure::JobCancelled {
            partial_path: kept,
            by_shutdown: false,
        },
        (error, None) => error.into(),
        (error, kept) => Failure::Compression {
            error,
            partial_path: kept,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_what_it_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("a.sluice");
        let full = || CompressError::Io {
            operation: "write",
            path: output.clone(),
            cause: std::io::ErrorKind::StorageFull.into(),
        };
        assert_eq!(partial_path(&full(), &output), None);
        std::fs::write(partial_of(&output), "").unwrap();
        let kept_path = partial_path(&full(), &output);
        assert_eq!(kept_path, Some(partial_of(&output)));
        let said = failure(full(), kept_path).to_string();
        assert!(
            said.ends_with("a.sluice.partial, run the same command again to resume"),
            "{said}"
        );
        // Another's work, or none.
        let exists = CompressError::Container(ContainerError::Exists {
            path: String::new(),
        });
        assert_eq!(partial_path(&exists, &output), None);
    }
}
