//! Jobs on files: compressing and pruning checkpoints, decompressing and verifying compressed files. A job runs on a thread of its own
//! and goes on when its client leaves.

use std::{
    num::NonZero,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::available_parallelism,
};

use sluice_checkpoint::{
    calibration,
    compression::{
        self, CompressError, CompressOptions, CompressionMethod, ContainerError, Glob, Lossless,
        ProgressBytes, SourceCheck, TensorFilter, TrellisTarget, partial_of,
    },
    pruning::{self, PruneOptions, PruneShares},
};
use sluice_proto::{
    model::{self, CompressJob, DecompressJob, PruneJob, VerifyJob},
    v1::{self, OperationKind, OperationStage},
};
use sluice_shared::compression::Coder;
use tokio::task::spawn_blocking;

use super::{Operation, OperationDescription, Operations, Outcome, progress};
use crate::{failure::Failure, model_name::ModelName, translate::container as wire};

impl Operations {
    /// Begins to compress a model into a file. `weight_cache` is where it is remembered which files are intact.
    ///
    /// # Errors
    /// When no work on files can begin now.
    pub fn compress(
        self: &Arc<Self>,
        model: &ModelName,
        asked: CompressJob,
        weight_cache: Option<PathBuf>,
    ) -> Result<Arc<Operation>, Failure> {
        let threads = threads(asked.threads);
        let description = OperationDescription {
            kind: OperationKind::Compress,
            model: model.name.clone(),
            input_path: model.input(),
            output_path: asked.output.display().to_string(),
            threads: Some(threads),
            caller: None,
        };
        let options = CompressOptions {
            method: compression_method(asked.method),
            tile: asked.tile_elements as usize,
            tensors: tensor_filter(&asked.keep_tensors, &asked.only_tensors, asked.min_bytes),
            all: asked.all_tensors,
            threads,
            // The output path comes from a client: an existing file is never touched.
            replace: false,
        };
        let (source, output) = (model.source(), asked.output);
        self.work(description, move |operation, stop| {
            let mut checked = reporter(operation, OperationStage::Verifying);
            let check = SourceCheck {
                remembered: weight_cache.as_deref(),
                progress: &mut |amount| checked("", amount),
            };
            let mut report = reporter(operation, OperationStage::Compressing);
            let made =
                compression::compress_checked(&source, &output, &options, check, stop, &mut report);
            let made = made.map_err(|error| {
                let kept = partial_path(&error, &output);
                failure(error, kept)
            })?;
            Ok(Outcome::Compress(wire::compress_result(&made)))
        })
    }

    /// Begins to prune a model into a file. `weight_cache` is as for [`Operations::compress`].
    ///
    /// # Errors
    /// When no work on files can begin now.
    pub fn prune(
        self: &Arc<Self>,
        model: &ModelName,
        asked: PruneJob,
        weight_cache: Option<PathBuf>,
    ) -> Result<Arc<Operation>, Failure> {
        let threads = threads(asked.threads);
        let description = OperationDescription {
            kind: OperationKind::Prune,
            model: model.name.clone(),
            input_path: model.input(),
            output_path: asked.output.display().to_string(),
            threads: Some(threads),
            caller: None,
        };
        let options = PruneOptions {
            shares: PruneShares {
                heads: asked.head_share,
                channels: asked.channel_share,
            },
            score: asked.score,
            compensate: asked.compensate,
            calibration: asked.calibration,
            threads,
            replace: false,
        };
        let (source, output) = (model.source(), asked.output);
        self.work(description, move |operation, stop| {
            let mut checked = reporter(operation, OperationStage::Verifying);
            let check = SourceCheck {
                remembered: weight_cache.as_deref(),
                progress: &mut |amount| checked("", amount),
            };
            let mut report = reporter(operation, OperationStage::Pruning);
            let made = pruning::prune(&source, &output, &options, check, stop, &mut report);
            let made = made.map_err(|error| {
                let kept = partial_path(&error, &output);
                failure(error, kept)
            })?;
            Ok(Outcome::Prune(wire::prune_result(&made)))
        })
    }

    /// Begins to decompress a file into a folder.
    ///
    /// # Errors
    /// When no work on files can begin now.
    pub fn decompress(self: &Arc<Self>, asked: DecompressJob) -> Result<Arc<Operation>, Failure> {
        let threads = threads(asked.threads);
        let description = OperationDescription {
            kind: OperationKind::Decompress,
            input_path: asked.file.display().to_string(),
            output_path: asked.output.display().to_string(),
            threads: Some(threads),
            ..Default::default()
        };
        self.work(description, move |operation, stop| {
            let mut report = reporter(operation, OperationStage::Decompressing);
            let made = compression::open(&asked.file).and_then(|container| {
                compression::decompress(&container, &asked.output, threads, stop, &mut report)
            });
            let made = made.map_err(|error| failure(error, None))?;
            Ok(Outcome::Decompress(wire::decompress_result(&made)))
        })
    }

    /// Begins to compare a compressed file with its checksums, by one thread.
    ///
    /// # Errors
    /// When no work on files can begin now.
    pub fn verify(self: &Arc<Self>, asked: VerifyJob) -> Result<Arc<Operation>, Failure> {
        let description = OperationDescription {
            kind: OperationKind::Verify,
            input_path: asked.file.display().to_string(),
            threads: Some(1),
            ..Default::default()
        };
        self.work(description, move |operation, stop| {
            let mut report = reporter(operation, OperationStage::Verifying);
            let container = compression::open(&asked.file).map_err(|error| failure(error, None))?;
            let found = compression::verify(&container, stop, &mut report);
            let found = found.map_err(|error| failure(error, None))?;
            Ok(Outcome::Verify(wire::verify_result(&container, &found)))
        })
    }

    /// Removes what jobs of an earlier daemon left that was killed, and that nobody can use. What `compress` and `prune` have done stays for the
    /// next run of the same command. Reads folders: not for async code, but at the start.
    pub fn clear_up_files(&self) {
        for operation in self.all() {
            let output = Path::new(&operation.description().output_path);
            match operation.kind() {
                OperationKind::Decompress => compression::remove_abandoned(output),
                OperationKind::Calibrate => calibration::remove_abandoned(output),
                _ => {}
            }
        }
    }

    /// Begins a job on a thread of its own. `work` checks the flag now and then, at least once a chunk.
    pub(super) fn work(
        self: &Arc<Self>,
        description: OperationDescription,
        work: impl FnOnce(&Operation, &AtomicBool) -> Result<Outcome, Failure> + Send + 'static,
    ) -> Result<Arc<Operation>, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        // Relaxed: the flag guards no other memory.
        let cancel = Box::new(move || stops.store(true, Ordering::Relaxed));
        let running = self.begin(description, Some(cancel))?;
        let operation = running.operation();
        let operations = self.clone();
        // After a panic, dropping `running` ends the job.
        spawn_blocking(move || {
            let result = work(&running, &stop);
            // The job knows only that it was stopped. The client is told whether the shutdown did it.
            let result = result.map_err(|failure| match failure {
                Failure::JobCancelled { partial_path, .. } => Failure::JobCancelled {
                    partial_path,
                    by_shutdown: operations.is_closed(),
                },
                other => other,
            });
            running.finish(result);
        });
        Ok(operation)
    }
}

/// The wire's compression method as the checkpoint crate's.
pub(crate) fn compression_method(how: model::CompressionMethod) -> CompressionMethod {
    match how {
        model::CompressionMethod::BitsPerWeight(bits) => {
            CompressionMethod::Trellis(TrellisTarget::Bits(bits))
        }
        model::CompressionMethod::Mix(mix) => CompressionMethod::Mix(mix),
        model::CompressionMethod::Lossless(Coder::Huffman) => {
            CompressionMethod::Lossless(Lossless::Huffman)
        }
        model::CompressionMethod::Lossless(Coder::Dictionary) => {
            CompressionMethod::Lossless(Lossless::Dictionary)
        }
    }
}

/// The choice of tensors to compress, from patterns as people write them.
pub(crate) fn tensor_filter(keep: &[String], only: &[String], min_bytes: u64) -> TensorFilter {
    let globs = |patterns: &[String]| patterns.iter().map(|one| Glob::new(one)).collect();
    TensorFilter {
        keep: globs(keep),
        only: globs(only),
        min_bytes,
    }
}

/// Threads for a job: as many as requested, at most the cores there are; by default half, so that generation has the rest.
pub(crate) fn threads(asked: Option<u32>) -> usize {
    let cores = available_parallelism().map_or(1, NonZero::get);
    match asked {
        Some(threads) => cores.min(threads as usize),
        None => (cores / 2).max(1),
    }
}

/// A callback that writes a job's progress into its operation.
fn reporter(
    operation: &Operation,
    stage: OperationStage,
) -> impl FnMut(&str, ProgressBytes) + Send {
    move |tensor, amount| {
        let (done, total) = (amount.done_bytes, amount.total_bytes);
        operation.progress(v1::OperationProgress {
            item: tensor.to_owned(),
            ..progress(stage, v1::ProgressUnit::Bytes, done, total)
        });
    }
}

/// The unfinished file that the next run of the same command resumes. `None` after failures that say the file is another
/// run's, or that there is none.
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

/// The failure of a job, with the unfinished file that it leaves.
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
