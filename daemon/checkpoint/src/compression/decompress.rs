//! Decompresses a container to a folder with the files that it was made from.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::AtomicBool,
};

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::tensor::{Metadata, TensorInfo};
use sluice_codec::{
    CompressedMatrix, DecompressError, Scheme,
    container::{Chunk, Container, ContainerError, Damage, FileRecord, Hasher, TensorRecord},
};
use sluice_formats::DType;

use super::{BATCH_BYTES, CompressError, Progress, ProgressBytes, check_free_space, pool, stop_if};
use crate::{
    family::ModelConfig,
    folder::{PartialFolder, clear_up, free_target, partial_prefix},
    fused::part_names,
};

/// Unfinished folders have it in their names.
const WORK: &str = "decompress";
/// What is wrong with a weight file's tensor that the container lacks.
const MISSING: &str = "isn't in the container";

/// Removes unfinished folders that killed runs left beside `target`: those that have a name of ours and that no process works in.
pub fn remove_abandoned(target: &Path) {
    clear_up(target, &partial_prefix(WORK));
}

/// Result of a decompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecompressResult {
    /// Bytes of the container.
    pub bytes: u64,
    /// Bytes of the uncompressed weights.
    pub original_bytes: u64,
    /// Number of files that were written.
    pub files: usize,
}

/// Decompresses a container to a folder with the files that it was made from, byte by byte unless weights were
/// trellis-quantized. Every checksum is compared on the way. The folder has a temporary name until it is complete;
/// after a failure, nothing is left of it.
///
/// # Errors
/// A container that cannot be read, is damaged or malformed, a target that exists, a file operation that failed, or
/// `cancel` set.
pub fn decompress(
    container: &Container,
    target: &Path,
    threads: usize,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<DecompressResult, CompressError> {
    let target = free_target(target)?;
    let header = container.header();
    if header.shards.is_empty() && !header.tensors.is_empty() {
        return Err(CompressError::NoOriginal {
            path: container.path().to_owned(),
        });
    }
    let shards = shards(container, cancel)?;
    // Not those of all tensors: an LM head beside the embedding that it is tied to is not written.
    let written = shards.iter().flat_map(|shard| &shard.tensors);
    let original_bytes = written.map(|(tensor, _)| tensor.original_bytes()).sum();
    // Created before the check of free space, since it first removes what killed runs left.
    let partial = PartialFolder::create(&target, WORK)?;
    check_free_space(&target, original_bytes)?;
    let pool = pool(threads)?;
    for file in &header.files {
        let path = partial.path(&file.name);
        let bytes = container.read_file(file)?;
        // The folder is new, so a file that exists would be another entry of the same name.
        let written = File::create_new(&path).and_then(|file| {
            file.write_all_at(&bytes, 0)?;
            file.sync_all()
        });
        written.map_err(CompressError::io("write", &path))?;
    }
    let mut done_bytes = 0;
    for shard in &shards {
        let path = partial.path(&shard.record.name);
        let refused = || CompressError::io("write", &path);
        let file = File::create_new(&path).map_err(refused())?;
        file.write_all_at(&shard.header, 0).map_err(refused())?;
        for &(tensor, offset) in &shard.tensors {
            let mut at = offset;
            let mut write = |bytes: &[u8]| {
                file.write_all_at(bytes, at)?;
                at += bytes.len() as u64;
                let done = ProgressBytes {
                    done_bytes: done_bytes + (at - offset),
                    total_bytes: original_bytes,
                };
                progress(&tensor.name, done);
                Ok(())
            };
            let mut work = Work {
                container,
                tensor,
                cancel,
                path: &path,
                write: &mut write,
            };
            pool.install(|| work.restore())?;
            done_bytes += tensor.original_bytes();
        }
        // A full disk may show only now.
        file.sync_all().map_err(refused())?;
    }
    // The last moment at which a cancel leaves nothing behind.
    stop_if(cancel)?;
    // Every file is verified and synced by now.
    partial.keep_as(&target)?;
    Ok(DecompressResult {
        bytes: header.bytes,
        original_bytes,
        files: header.files.len() + shards.len(),
    })
}

/// A weight file to write.
pub(super) struct WeightShard<'a> {
    record: &'a FileRecord,
    /// Its safetensors header, as it was.
    header: Vec<u8>,
    /// Its tensors with their offsets in the file, in file order.
    tensors: Vec<(&'a TensorRecord, u64)>,
}

/// The weight files, by their own headers: each tensor of the container must be in exactly one of them.
pub(super) fn shards<'a>(
    container: &'a Container,
    cancel: &AtomicBool,
) -> Result<Vec<WeightShard<'a>>, CompressError> {
    let malformed = |record: &FileRecord, problem: String| ContainerError::Malformed {
        path: container.path().to_owned(),
        problem: format!("{}: {problem}", record.name),
    };
    let records = container.header().tensors.iter();
    let records: HashMap<&str, &TensorRecord> =
        records.map(|record| (&record.name[..], record)).collect();
    let mut seen: HashSet<&String> = HashSet::new();
    let mut shards = Vec::new();
    for record in &container.header().shards {
        let header = container.read_file(record)?;
        let metadata = metadata(&header).map_err(|problem| malformed(record, problem))?;
        let mut tensors = Vec::new();
        for (name, info) in metadata.tensors() {
            stop_if(cancel)?;
            let about = |problem: &str| malformed(record, format!("tensor {name:?} {problem}"));
            let parts = parts_of(&records, &name, info).map_err(about)?;
            // Offsets in a safetensors header count from the header's end.
            let offset = (header.len() as u64).checked_add(info.data_offsets.0 as u64);
            let mut offset = offset.ok_or_else(|| about("lies beyond any file"))?;
            for tensor in parts {
                // Exactly once: a second copy would be written over something else, a missing one would leave a hole.
                if !seen.insert(&tensor.name) {
                    return Err(about("stands twice").into());
                }
                tensors.push((tensor, offset));
                let end = offset.checked_add(tensor.original_bytes());
                offset = end.ok_or_else(|| about("lies beyond any file"))?;
            }
        }
        // In file order, so that each file is written from its beginning to its end.
        tensors.sort_unstable_by_key(|&(_, offset)| offset);
        shards.push(WeightShard {
            record,
            header,
            tensors,
        });
    }
    let tensors = container.header().tensors.iter();
    let mut unlisted = tensors
        .filter(|tensor| !seen.contains(&tensor.name))
        .peekable();
    let head = unlisted.peek().and_then(|_| tied_lm_head(container));
    let is_head = |tensor: &TensorRecord| {
        tensor.scheme() == Some(Scheme::Columns) && head.as_ref() == Some(&tensor.name)
    };
    if let Some(tensor) = unlisted.find(|tensor| !is_head(tensor)) {
        let problem = format!("tensor {} is listed in no weight file", tensor.name);
        return Err(ContainerError::Malformed {
            path: container.path().to_owned(),
            problem,
        }
        .into());
    }
    Ok(shards)
}

/// What a container has of a weight file's tensor: the tensor, or the parts of a fused one, one after another.
fn parts_of<'a>(
    records: &HashMap<&str, &'a TensorRecord>,
    name: &str,
    info: &TensorInfo,
) -> Result<Vec<&'a TensorRecord>, &'static str> {
    let (parts, is_same) = match (records.get(name), part_names(name, &info.shape)) {
        (Some(tensor), _) => (vec![*tensor], tensor.shape == info.shape),
        (None, Some(names)) => {
            // A hostile shape may have any number of parts: the first that isn't there ends the list.
            let parts = names.map(|name| records.get(&name[..]).copied());
            let parts: Vec<_> = parts.collect::<Option<_>>().ok_or(MISSING)?;
            let is_row = |part: &&TensorRecord| {
                part.shape.len() == 2 && part.shape.last() == info.shape.last()
            };
            let is_same = parts.iter().all(is_row);
            (parts, is_same)
        }
        (None, None) => return Err(MISSING),
    };
    let (from, to) = info.data_offsets;
    let dtype = format!("{:?}", info.dtype).to_lowercase();
    let bytes = parts.iter().map(|part| u128::from(part.original_bytes()));
    // The shard's header and the container's both describe each tensor; a hostile container could let them disagree.
    match is_same
        && bytes.sum::<u128>() == (to - from) as u128
        && parts.iter().all(|part| part.dtype == dtype)
    {
        true => Ok(parts),
        false => Err("does not match the one in the container"),
    }
}

/// Name of the tensor that an LM head has beside the embedding which the configuration ties it to. One that a mix quantized is
/// in no file of the original.
fn tied_lm_head(container: &Container) -> Option<String> {
    let mut files = container.header().files.iter();
    let config = files.find(|file| file.name == "config.json")?;
    let keys = serde_json::from_slice(&container.read_file(config).ok()?).ok()?;
    let shape = ModelConfig::read(&keys, None).ok()?.shape;
    shape.tied.then(|| shape.own_lm_head_name())
}

/// Parses the header of a safetensors file.
fn metadata(header: &[u8]) -> Result<Metadata, String> {
    let (length, text) = header
        .split_first_chunk::<8>()
        .ok_or("too short for a safetensors header")?;
    // The record is a weight file's exact beginning, so its length must be that of the record.
    if u64::from_le_bytes(*length) != text.len() as u64 {
        return Err("the length of its safetensors header does not match".to_owned());
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Decompression of one tensor.
struct Work<'a> {
    container: &'a Container,
    tensor: &'a TensorRecord,
    cancel: &'a AtomicBool,
    /// Path of the file, for messages.
    path: &'a Path,
    write: &'a mut (dyn FnMut(&[u8]) -> io::Result<()> + Send),
}

impl Work<'_> {
    fn restore(&mut self) -> Result<(), CompressError> {
        let (hash, original_hash) = match self.tensor.scheme() {
            Some(Scheme::Plain) => self.restore_plain()?,
            _ => self.restore_compressed()?,
        };
        let tensor = self.tensor.name.clone();
        // Compared after writing: the folder is still temporary, and is deleted after an error.
        if hash.finish() != self.tensor.hash {
            // The checks of its tiles may tell where the damage is.
            let found = self
                .container
                .verify_tensor(self.tensor, self.cancel, &mut |_| {})?;
            let damage = found.into_iter().next();
            let damage = damage.unwrap_or(Damage::Tensor { tensor });
            return Err(self.container.damaged(damage).into());
        }
        // Of lossy schemes there is no original to compare with.
        let is_lossless = self.tensor.scheme().is_none_or(Scheme::is_lossless);
        let is_original = original_hash.finish() == self.tensor.original_hash;
        if is_lossless && !is_original {
            let cause = "its decompressed bytes do not match their hash".to_owned();
            let damage = Damage::Original { tensor, cause };
            return Err(self.container.damaged(damage).into());
        }
        Ok(())
    }

    fn restore_plain(&mut self) -> Result<(Hasher, Hasher), CompressError> {
        let (mut hash, mut original_hash) = (Hasher::default(), Hasher::default());
        let length = self.tensor.length;
        let mut buffer = vec![0; length.min(BATCH_BYTES as u64) as usize];
        let mut done = 0;
        while done < length {
            stop_if(self.cancel)?;
            let count = (length - done).min(BATCH_BYTES as u64);
            let buffer = &mut buffer[..count as usize];
            self.container.read_part(self.tensor, done, buffer)?;
            hash.update(buffer);
            original_hash.update(buffer);
            (self.write)(buffer).map_err(CompressError::io("write", self.path))?;
            done += count;
        }
        Ok((hash, original_hash))
    }

    fn restore_compressed(&mut self) -> Result<(Hasher, Hasher), CompressError> {
        let (mut hash, mut original_hash) = (Hasher::default(), Hasher::default());
        let mut chunks = self.container.chunks(self.tensor).peekable();
        let mut end = self.tensor.offset;
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        while let Some(first) = chunks.next() {
            stop_if(self.cancel)?;
            // From the end of the batch before, so that the zeros between chunks are hashed, too.
            let start = end;
            let mut originals = first.layout.plain_bytes();
            let mut batch = vec![first];
            // Both limits: a container may claim more compressed bytes than decompressed ones.
            while let Some(next) = chunks.next_if(|chunk| {
                originals + chunk.layout.plain_bytes() <= BATCH_BYTES
                    && chunk.end() - start <= BATCH_BYTES as u64
            }) {
                originals += next.layout.plain_bytes();
                batch.push(next);
            }
            end = batch.last().expect("there is a first one").end();
            bytes.resize((end - start) as usize, 0);
            let from = start - self.tensor.offset;
            self.container.read_part(self.tensor, from, &mut bytes)?;
            out.resize(originals, 0);
            // Hashing the compressed bytes takes one core while the others decompress.
            let (decoded, ()) = rayon::join(
                || decompress_batch(&batch, start, &bytes, &mut out),
                || hash.update(&bytes),
            );
            if let Err(cause) = decoded {
                return Err(self.decompress_failure(&cause)?);
            }
            original_hash.update(&out);
            (self.write)(&out).map_err(CompressError::io("write", self.path))?;
        }
        Ok((hash, original_hash))
    }

    /// The error for chunks that cannot be decompressed: the damaged place, if checksums show it.
    fn decompress_failure(&self, cause: &DecompressError) -> Result<CompressError, CompressError> {
        let found = self
            .container
            .verify_tensor(self.tensor, self.cancel, &mut |_| {})?;
        let meaning = || Damage::Original {
            tensor: self.tensor.name.clone(),
            cause: cause.to_string(),
        };
        let damage = found.into_iter().next().unwrap_or_else(meaning);
        Ok(self.container.damaged(damage).into())
    }
}

/// Decompresses chunks on all threads; `bytes` begin at offset `start` of the container.
fn decompress_batch(
    batch: &[Chunk],
    start: u64,
    bytes: &[u8],
    out: &mut [u8],
) -> Result<(), DecompressError> {
    let mut rest = out;
    let mut parts = Vec::with_capacity(batch.len());
    for chunk in batch {
        // Disjoint parts of the output, so that threads write without locks.
        let (part, more) = rest.split_at_mut(chunk.layout.plain_bytes());
        parts.push((chunk, part));
        rest = more;
    }
    parts.into_par_iter().try_for_each(|(chunk, out)| {
        let from = (chunk.offset - start) as usize;
        let bytes = &bytes[from..from + chunk.layout.bytes()];
        let compressed = CompressedMatrix::new(chunk.layout.clone(), bytes)?;
        let rows = 0..chunk.layout.rows();
        if chunk.layout.scheme().is_lossless() {
            return compressed.decompress_rows(rows, out);
        }
        // Quantized weights have no original bytes: they are rounded to the dtype that they had.
        let mut values = vec![0.0; chunk.layout.elements()];
        compressed.decompress_rows_f32(rows, &mut values)?;
        round(&values, chunk.layout.dtype(), out);
        Ok(())
    })
}

/// Rounds quantized weights to their original dtype.
fn round(values: &[f32], dtype: DType, out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.chunks_exact_mut(dtype.bytes())) {
        match dtype {
            DType::Bf16 => out.copy_from_slice(&bf16::from_f32(*value).to_le_bytes()),
            DType::F16 => out.copy_from_slice(&f16::from_f32(*value).to_le_bytes()),
            DType::F32 => out.copy_from_slice(&value.to_le_bytes()),
        }
    }
}
