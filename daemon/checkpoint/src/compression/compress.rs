//! Compresses a checkpoint folder to a container.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use sluice_codec::{
    Lossless, TrellisTarget,
    container::{
        CompressionRules, ContainerError, ContainerPlan, ContainerWriter, Glob, PlannedTensor,
        TensorFilter, TensorTreatment, extent_name, partial_of,
    },
};
use sluice_shared::mix::MixId;
use sluice_weights::TensorPart;

use super::{
    CompressError, CompressOptions, CompressionMethod, Container, Progress, ProgressBytes,
    check_free_space,
    files::ModelFiles,
    identity::identity,
    open, pool, stop_if,
    tensor::{QuantizationLoss, Work, check_elements, dtype, dtype_name},
};
use crate::{
    Checkpoint, CheckpointError, Source, TensorEntry, find::weight_files, weight_cache::Mixes,
};

/// Result of a compression.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressResult {
    /// Bytes of the container.
    pub bytes: u64,
    /// Bytes of the uncompressed weights.
    pub original_bytes: u64,
    /// Number of tensors that were taken over from an interrupted run.
    pub resumed: usize,
    /// Names of files in the folder that the container doesn't include.
    pub skipped_files: Vec<String>,
    /// Relative root mean square error of all trellis-quantized weights. `None` if there are none, or if an interrupted
    /// run compressed some of them, whose error isn't known.
    pub error: Option<f64>,
}

/// How the source is compared with the digests that lie beside it, before anything is made of it.
pub struct SourceCheck<'a> {
    /// The folder where it is remembered which files were compared, and are not again.
    pub remembered: Option<&'a Path>,
    /// Told how many bytes of how many were read.
    pub progress: &'a mut (dyn FnMut(ProgressBytes) + Send),
}

/// Compresses as [`compress_checked`] does, without memory of earlier comparisons.
///
/// # Errors
/// As there.
pub fn compress(
    source: &Source,
    target: &Path,
    options: &CompressOptions,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<CompressResult, CompressError> {
    let check = SourceCheck {
        remembered: None,
        progress: &mut |_| {},
    };
    compress_checked(source, target, options, check, cancel, progress)
}

/// Compresses a folder's safetensors, with the files that belong to them, to a container. The file has a temporary name
/// until it is complete. An interrupted run leaves complete tensors behind, and the next run with the same options
/// resumes.
///
/// # Errors
/// A source that cannot be read or changes meanwhile, a target that exists, a file operation that failed, or `cancel`
/// set.
pub fn compress_checked(
    source: &Source,
    target: &Path,
    options: &CompressOptions,
    check: SourceCheck<'_>,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<CompressResult, CompressError> {
    if !options.replace && target.symlink_metadata().is_ok() {
        return Err(CompressError::Container(ContainerError::Exists {
            path: target.display().to_string(),
        }));
    }
    // Opened as a model is, so that every header is checked before anything is written.
    let checkpoint = Arc::new(Checkpoint::open(source)?);
    let (folder, shards) = weight_files(source)?;
    let path = || match &folder {
        Source::Folder(folder) => folder.join(&shards[0]),
        Source::Embedded(_) => shards[0].clone().into(),
    };
    if checkpoint.gguf.is_some() {
        return Err(CompressError::Gguf { path: path() });
    }
    if checkpoint.rwkv.is_some() {
        return Err(CheckpointError::Unsupported {
            path: path().display().to_string(),
            what: "has RWKV's official names, which a container couldn't give back".to_owned(),
            hint: "compress the model as a Hugging Face folder".to_owned(),
        }
        .into());
    }
    if checkpoint.is_container() {
        return Err(CompressError::AlreadyCompressed { path: path() });
    }
    if checkpoint
        .model()
        .is_ok_and(|model| model.sentences.is_some())
    {
        return Err(CheckpointError::Unsupported {
            path: path().display().to_string(),
            what: "is a sentence encoder, of whose files some lie in folders, for which a container has no place".to_owned(),
            hint: "load the folder itself, at any level".to_owned(),
        }
        .into());
    }
    // Damaged weights would get checksums that say they are whole.
    let mut checked = |done_bytes, total_bytes| {
        (check.progress)(ProgressBytes {
            done_bytes,
            total_bytes,
        });
    };
    if !checkpoint.verify(check.remembered, cancel, &mut checked)? {
        return Err(CompressError::Cancelled);
    }
    let mix = match options.method {
        CompressionMethod::Mix(mix) => Some(mix_of(&checkpoint, mix, check.remembered, cancel)?),
        _ => None,
    };
    let pool = pool(options.threads)?;
    let files = ModelFiles::beside(&folder, &shards)?;
    let taken = files.taken.iter().map(|(name, _)| name);
    // Not even `--force` may overwrite what the container is made from.
    check_target(target, &folder, shards.iter().chain(taken))?;
    let mut tensors = in_order(&checkpoint);
    let rules = rules(&checkpoint, options);
    check_names(&tensors, &rules)?;
    let bytes =
        |tensors: &[(&str, &TensorEntry)]| tensors.iter().map(|(_, entry)| entry.bytes).sum();
    let original_bytes: u64 = bytes(&tensors);
    let head = mix
        .as_ref()
        .and_then(|mix| TiedHead::of(&checkpoint, mix, &rules));
    tensors.extend(head.as_ref().map(|head| (&head.name[..], head.embedding.1)));
    let total_bytes = bytes(&tensors);
    let mut identity = identity(&checkpoint, options, &files)?;
    if head.is_some() {
        // Runs of earlier versions left it to the embedding.
        identity += ", LM head beside the embedding";
    }
    let plan = ContainerPlan {
        tile: options.tile,
        tensors: tensors
            .iter()
            .map(|(name, entry)| planned(name, entry))
            .collect(),
        shards: shard_headers(&checkpoint, shards)?,
        identity,
        files: files.taken,
    };
    // A lower bound, so a run that could fit is never refused.
    let least = tensors.iter().map(|(name, entry)| {
        least_bytes(
            rules.treatment(name, &entry.shape, &dtype_name(entry)),
            options.method,
            entry,
        )
    });
    // An unfinished file of this target is continued or overwritten.
    let unfinished = fs::metadata(partial_of(target)).map_or(0, |partial| partial.len());
    check_free_space(target, least.sum::<u64>().saturating_sub(unfinished))?;
    let done = |done_bytes| ProgressBytes {
        done_bytes,
        total_bytes,
    };
    let mut done_bytes = 0;
    let mut resumed = 0;
    // Progress begins with what an interrupted run has finished.
    let mut writer = ContainerWriter::begin(target, plan, cancel, &mut |whole| {
        let (name, entry) = tensors[whole - 1];
        done_bytes += entry.bytes;
        resumed = whole;
        progress(name, done(done_bytes));
    })?;
    // All remaining tensors are checked before the first is compressed: a NaN found after hours would mean a new run
    // with another `--keep`.
    for (name, entry) in writer.next().map_or(&[][..], |next| &tensors[next..]) {
        if rules.treatment(name, &entry.shape, &dtype_name(entry)) == TensorTreatment::Trellis {
            progress(name, done(done_bytes));
            pool.install(|| check_elements(&checkpoint, name, entry, cancel))?;
        }
    }
    let mut loss = QuantizationLoss::default();
    while let Some(next) = writer.next() {
        let (name, entry) = tensors[next];
        let before = done_bytes;
        let mut work = Work {
            checkpoint: &checkpoint,
            mixed: mix.as_ref().and_then(|mix| {
                let name = head
                    .as_ref()
                    .map_or(Some(name), |head| head.name_in_mix(name));
                Some((mix, mix.tensor(name?)?))
            }),
            name,
            entry,
            options,
            writer: &mut writer,
            loss: &mut loss,
            cancel,
            progress: &mut |bytes| progress(name, done(before + bytes)),
        };
        let treatment = rules.treatment(name, &entry.shape, &dtype_name(entry));
        pool.install(|| work.write(treatment))?;
        done_bytes += entry.bytes;
    }
    // Before the container gets its name: a source that changed meanwhile would give a mixture.
    checkpoint.check_all_unchanged()?;
    stop_if(cancel)?;
    let made = writer.finish(options.replace)?;
    Ok(CompressResult {
        bytes: made.bytes,
        original_bytes,
        resumed,
        skipped_files: files.skipped,
        error: loss.share().filter(|_| resumed == 0),
    })
}

/// An LM head that is tied to the embedding, and that a mix quantizes: a tensor of its own in the file, since rows of the
/// embedding are read one by one.
struct TiedHead<'a> {
    /// The name that it has in the file.
    name: String,
    /// The embedding, whose name it has in the mix.
    embedding: (String, &'a TensorEntry),
}

impl<'a> TiedHead<'a> {
    fn of(checkpoint: &'a Checkpoint, mix: &Container, rules: &CompressionRules) -> Option<Self> {
        let shape = checkpoint.model().ok()?.shape;
        let (name, embedding) = (shape.own_lm_head_name(), shape.embedding_name());
        // Some checkpoints have a tied head's values a second time.
        let is_meant = shape.tied && checkpoint.tensor(&name).is_none();
        let entry = checkpoint.tensor(&embedding)?;
        let treatment = rules.treatment(&name, &entry.shape, &dtype_name(entry));
        (is_meant && treatment != TensorTreatment::Plain).then_some(())?;
        mix.tensor(&embedding)?;
        Some(Self {
            name,
            embedding: (embedding, entry),
        })
    }

    /// What a tensor of the file is called in the mix; `None`: it is not in it.
    fn name_in_mix<'b>(&'b self, name: &'b str) -> Option<&'b str> {
        match name {
            name if name == self.name => Some(&self.embedding.0),
            name if name == self.embedding.0 => None,
            name => Some(name),
        }
    }
}

/// A mix's file, after it was compared with its checksums.
fn mix_of(
    checkpoint: &Arc<Checkpoint>,
    mix: MixId,
    folder: Option<&Path>,
    cancel: &AtomicBool,
) -> Result<Container, CompressError> {
    let missing = CompressError::NoMix { mix };
    let Some(folder) = folder else {
        return Err(missing);
    };
    let mixes = Mixes::new(folder, checkpoint)?;
    let found = mixes.open(mix, cancel, &mut |_, _| {})?;
    stop_if(cancel)?;
    // Its parts are copied as they are stored, which the open checkpoint does not give.
    found.map_or(Err(missing), |_| open(&mixes.path(mix)))
}

/// Checks that the names that are to be compressed are those of some tensors.
fn check_names(
    tensors: &[(&str, &TensorEntry)],
    rules: &CompressionRules,
) -> Result<(), CompressError> {
    if tensors.iter().any(|(name, _)| rules.tensors.is_among(name)) {
        return Ok(());
    }
    // Examples are of tensors that could be compressed.
    let any = CompressionRules {
        tensors: TensorFilter::default(),
        ..rules.clone()
    };
    let examples = tensors.iter().filter(|(name, entry)| {
        any.treatment(name, &entry.shape, &dtype_name(entry)) != TensorTreatment::Plain
    });
    let quoted = |names: &mut dyn Iterator<Item = &str>, word: &str| {
        let names: Vec<_> = names.map(|name| format!("'{name}'")).collect();
        names.join(word)
    };
    Err(CompressError::NoSuchTensor {
        patterns: quoted(&mut rules.tensors.only.iter().map(Glob::pattern), " or "),
        names: quoted(
            &mut examples.chain(tensors).map(|(name, _)| *name).take(2),
            " and ",
        ),
    })
}

fn rules(checkpoint: &Checkpoint, options: &CompressOptions) -> CompressionRules {
    let specs = checkpoint.model().map(|model| model.shape.tensors());
    let routers = specs.unwrap_or_default().into_iter();
    let routers = routers.filter(|spec| spec.part == TensorPart::Router);
    CompressionRules {
        tensors: options.tensors.clone(),
        is_trellis: matches!(options.method, CompressionMethod::Trellis(_)),
        all: options.all,
        unquantized: routers.map(|spec| spec.name).collect(),
    }
}

/// Checks the target before hours of work: it must not be part of the source, and must be replaceable.
pub(crate) fn check_target<'a>(
    target: &Path,
    source: &Source,
    mut names: impl Iterator<Item = &'a String>,
) -> Result<(), CompressError> {
    // If it cannot be examined, the error appears when it is written to.
    let Ok(there) = fs::metadata(target) else {
        return Ok(());
    };
    let is_there = |path: PathBuf| {
        // Compared by inode, so that links and other spellings of a path don't matter.
        let found = fs::metadata(path).map(|found| (found.dev(), found.ino()));
        found.is_ok_and(|found| found == (there.dev(), there.ino()))
    };
    let problem = match source {
        _ if !there.is_file() => "it is not a regular file",
        Source::Folder(folder) if names.any(|name| is_there(folder.join(name))) => {
            "it is part of the checkpoint"
        }
        _ => return Ok(()),
    };
    let cause = io::Error::new(io::ErrorKind::InvalidInput, problem);
    Err(CompressError::io("replace", target)(cause))
}

/// Lower bound for a tensor's size before its elements are known. Lossless compression keeps sign and mantissa, which
/// is half of a bf16 and more of others.
fn least_bytes(treatment: TensorTreatment, how: CompressionMethod, entry: &TensorEntry) -> u64 {
    match (treatment, how, dtype(entry)) {
        (
            TensorTreatment::Trellis,
            CompressionMethod::Trellis(TrellisTarget::Bits(bits)),
            Some(number),
        ) => (entry.bytes as f64 / number.bytes() as f64 * bits / 8.0) as u64,
        (TensorTreatment::Trellis, CompressionMethod::Trellis(TrellisTarget::Error(_)), _) => 0,
        // Quantized matrices have any number of bits.
        (TensorTreatment::Lossless, CompressionMethod::Mix(_), _) => 0,
        (TensorTreatment::Plain, ..) | (_, CompressionMethod::Lossless(Lossless::Plain), _) => {
            entry.bytes
        }
        _ => entry.bytes / 2,
    }
}

/// All tensors, or their parts, by extent: in the order of a pass if the model's family is known, otherwise by name. Each layer's
/// tensors are adjacent, so that they form one extent.
pub(crate) fn in_order(checkpoint: &Checkpoint) -> Vec<(&str, &TensorEntry)> {
    let model = checkpoint.model().ok();
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for spec in model.iter().flat_map(|model| model.shape.tensors()) {
        // A tied LM head is the embedding again, which comes first.
        let rank = ranks.len();
        ranks.entry(spec.name).or_insert(rank);
    }
    let rank = |name: &str| ranks.get(name).copied().unwrap_or(usize::MAX);
    let mut tensors: Vec<_> = checkpoint.separate().collect();
    let mut extents: HashMap<&str, usize> = HashMap::new();
    for (name, _) in &tensors {
        // An extent's place is that of its first tensor; tensors that no family knows come last.
        let first = extents.entry(extent_name(name)).or_insert(usize::MAX);
        *first = rank(name).min(*first);
    }
    tensors.sort_by_cached_key(|(name, _)| {
        let extent = extent_name(name);
        // The extent's own place comes first: tensors of one extent must stay adjacent, whatever their ranks.
        (extents[extent], natural(extent), rank(name), natural(name))
    });
    tensors
}

/// Sort key that puts the tenth layer after the ninth.
fn natural(name: &str) -> Vec<(u64, String)> {
    let part = |part: &str| match part.parse() {
        Ok(number) => (number, String::new()),
        Err(_) => (u64::MAX, part.to_owned()),
    };
    name.split('.').map(part).collect()
}

fn planned(name: &str, entry: &TensorEntry) -> PlannedTensor {
    PlannedTensor {
        name: name.to_owned(),
        shape: entry.shape.clone(),
        dtype: dtype_name(entry),
        extent: extent_name(name).to_owned(),
    }
}

/// The headers of all weight files, up to the first tensor.
fn shard_headers(
    checkpoint: &Checkpoint,
    names: Vec<String>,
) -> Result<Vec<(String, Vec<u8>)>, CompressError> {
    let files = names.into_iter().zip(&checkpoint.files);
    let headers = files.map(|(name, file)| {
        let mut length = [0; 8];
        file.read_at(0, &mut length)?;
        // The header was checked when the checkpoint was opened, but the file may have changed since.
        let length = u64::from_le_bytes(length).min(file.len.saturating_sub(8));
        // Kept byte for byte: `decompress` must reproduce the order of keys and the padding.
        let mut header = vec![0; 8 + length as usize];
        file.read_at(0, &mut header)?;
        Ok((name, header))
    });
    headers.collect()
}
