//! A container into a folder: the very files that it was made of.

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
use safetensors::tensor::Metadata;
use sluice_codec::{
    CompressedMatrix, DecompressError, Scheme,
    container::{Chunk, Container, ContainerError, Damage, FileRecord, Hasher, TensorRecord},
};
use sluice_formats::DType;

use super::{BATCH_BYTES, CompressError, Progress, ProgressBytes, check_free_space, pool, stop_if};
use crate::folder::{PartialFolder, free_target};

/// What was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecompressResult {
    /// Bytes of the container.
    pub bytes: u64,
    /// Bytes of the weights.
    pub original_bytes: u64,
    /// Files that were written.
    pub files: usize,
}

/// Makes a folder of a container, with the same files as the one that it was made of, but for those that were left out: byte
/// by byte, unless numbers were coded to a rate. Every checksum is compared on the way. The folder has another name until
/// it is whole; after a failure, nothing is left of it.
///
/// # Errors
/// A container that can't be read, is damaged or malformed, a target that exists, what the system refused, or `cancel` set.
pub fn decompress(
    container: &Container,
    target: &Path,
    threads: usize,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<DecompressResult, CompressError> {
    let target = free_target(target)?;
    let header = container.header();
    let shards = shards(container, cancel)?;
    let original_bytes = header
        .tensors
        .iter()
        .map(TensorRecord::original_bytes)
        .sum();
    let partial = PartialFolder::create(&target, "decompress")?;
    check_free_space(&target, original_bytes)?;
    let pool = pool(threads)?;
    for file in &header.files {
        let path = partial.path(&file.name);
        let bytes = container.read_file(file)?;
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
        // A disk may turn out to be full only now.
        file.sync_all().map_err(refused())?;
    }
    stop_if(cancel)?;
    partial.keep_as(&target)?;
    Ok(DecompressResult {
        bytes: header.bytes,
        original_bytes,
        files: header.files.len() + shards.len(),
    })
}

/// A file of weights to be written.
pub(super) struct WeightShard<'a> {
    record: &'a FileRecord,
    /// Its first bytes.
    header: Vec<u8>,
    /// And where in it each tensor begins.
    tensors: Vec<(&'a TensorRecord, u64)>,
}

/// The files of weights, whose own headers say what is where: each tensor of the container in one of them, and no others.
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
    let mut seen = HashSet::new();
    let mut shards = Vec::new();
    for record in &container.header().shards {
        let header = container.read_file(record)?;
        let metadata = metadata(&header).map_err(|problem| malformed(record, problem))?;
        let mut tensors = Vec::new();
        for (name, info) in metadata.tensors() {
            stop_if(cancel)?;
            let about = |problem: &str| malformed(record, format!("tensor {name:?} {problem}"));
            let &tensor = records
                .get(&name[..])
                .ok_or_else(|| about("isn't in the container"))?;
            let (from, to) = info.data_offsets;
            if format!("{:?}", info.dtype).to_lowercase() != tensor.dtype
                || info.shape != tensor.shape
                || (to - from) as u64 != tensor.original_bytes()
            {
                return Err(about("does not match the one in the container").into());
            }
            if !seen.insert(name.clone()) {
                return Err(about("stands twice").into());
            }
            let offset = (header.len() as u64).checked_add(from as u64);
            tensors.push((tensor, offset.ok_or_else(|| about("lies beyond any file"))?));
        }
        tensors.sort_unstable_by_key(|&(_, offset)| offset);
        shards.push(WeightShard {
            record,
            header,
            tensors,
        });
    }
    let tensors = &container.header().tensors;
    if let Some(tensor) = tensors.iter().find(|tensor| !seen.contains(&tensor.name)) {
        let problem = format!("tensor {} is listed in no weight file", tensor.name);
        return Err(ContainerError::Malformed {
            path: container.path().to_owned(),
            problem,
        }
        .into());
    }
    Ok(shards)
}

/// What the header of a safetensors file says.
fn metadata(header: &[u8]) -> Result<Metadata, String> {
    let (length, text) = header
        .split_first_chunk::<8>()
        .ok_or("too short for a safetensors header")?;
    if u64::from_le_bytes(*length) != text.len() as u64 {
        return Err("the length of its safetensors header does not match".to_owned());
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// One tensor on its way.
struct Work<'a> {
    container: &'a Container,
    tensor: &'a TensorRecord,
    cancel: &'a AtomicBool,
    /// What is written.
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
        if hash.finish() != self.tensor.hash {
            // Where in it, the checks of its tiles may tell.
            let found = self
                .container
                .verify_tensor(self.tensor, self.cancel, &mut |_| {})?;
            let damage = found.into_iter().next();
            let damage = damage.unwrap_or(Damage::Tensor { tensor });
            return Err(self.container.damaged(damage).into());
        }
        // Of what was coded to a rate, nobody has the original any more.
        let is_original = original_hash.finish() == self.tensor.original_hash;
        if self.tensor.scheme() != Some(Scheme::Trellis) && !is_original {
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
            let start = end;
            let mut originals = first.layout.plain_bytes();
            let mut batch = vec![first];
            // Coded bytes may be more than what they mean.
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

    /// What to say of chunks that can't be decoded: where the damage is, if their checksums tell.
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

/// Decodes chunks by all threads; `bytes` begin at the byte `start` of the container.
fn decompress_batch(
    batch: &[Chunk],
    start: u64,
    bytes: &[u8],
    out: &mut [u8],
) -> Result<(), DecompressError> {
    let mut rest = out;
    let mut parts = Vec::with_capacity(batch.len());
    for chunk in batch {
        let (part, more) = rest.split_at_mut(chunk.layout.plain_bytes());
        parts.push((chunk, part));
        rest = more;
    }
    parts.into_par_iter().try_for_each(|(chunk, out)| {
        let from = (chunk.offset - start) as usize;
        let bytes = &bytes[from..from + chunk.layout.bytes()];
        let coded = CompressedMatrix::new(chunk.layout.clone(), bytes)?;
        let rows = 0..chunk.layout.rows();
        if chunk.layout.scheme() != Scheme::Trellis {
            return coded.decompress_rows(rows, out);
        }
        let mut values = vec![0.0; chunk.layout.elements()];
        coded.decompress_rows_f32(rows, &mut values)?;
        round(&values, chunk.layout.dtype(), out);
        Ok(())
    })
}

/// Stores numbers that were coded to a rate as what they were before.
fn round(values: &[f32], dtype: DType, out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.chunks_exact_mut(dtype.bytes())) {
        match dtype {
            DType::Bf16 => out.copy_from_slice(&bf16::from_f32(*value).to_le_bytes()),
            DType::F16 => out.copy_from_slice(&f16::from_f32(*value).to_le_bytes()),
            DType::F32 => out.copy_from_slice(&value.to_le_bytes()),
        }
    }
}
