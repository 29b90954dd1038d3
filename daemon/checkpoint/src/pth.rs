//! `.pth` files, as PyTorch's `torch.save` writes a dict of tensors: a zip archive of stored entries, one of which is a
//! pickle that describes the tensors, and one for each storage.
//!
//! Unpickling such a file with Python runs whatever it asks for. Here nothing runs: the pickle is read as a
//! description, by a few opcodes and names, and everything else in it is refused. Tensors stay in the file and are
//! read from their offsets, as those of safetensors are.
//!
//! Reference: torch/serialization.py (`_save`) and caffe2/serialize/inline_container.cc.

mod pickle;
mod zip;

use std::collections::{BTreeMap, HashMap};

use self::{
    pickle::PickledTensor,
    zip::{Archive, ZipEntry},
};
use super::{CheckpointError, TensorEntry, file::CheckpointFile, stored_order::StoredOrder};

/// Largest pickle in bytes: one of 65,536 tensors has about 7 MB.
const PICKLE_BYTES_MAX: u64 = 16 << 20;
/// Name of the pickle below the archive's own folder.
const PICKLE: &str = "data.pkl";
/// Says the order of bytes; files of early versions don't have it, and are little-endian.
const BYTE_ORDER: &str = "byteorder";
const BYTE_ORDER_BYTES_MAX: u64 = 16;

/// Every tensor of a file with its absolute offset.
pub(super) fn read_header(
    file: &CheckpointFile,
    index: usize,
) -> Result<Vec<(String, TensorEntry)>, CheckpointError> {
    let malformed = |cause: String| CheckpointError::MalformedFile {
        path: file.path.clone(),
        cause,
    };
    let archive = Archive::read(file)?;
    let root = root(&archive).map_err(malformed)?;
    if let Some(entry) = archive.find(&format!("{root}/{BYTE_ORDER}")) {
        let order = read_whole(file, &entry, BYTE_ORDER, BYTE_ORDER_BYTES_MAX)?;
        if order != b"little" {
            let order = String::from_utf8_lossy(&order).into_owned();
            return Err(malformed(format!(
                "its byte order is {order:?}; only little-endian files are supported"
            )));
        }
    }
    let entry = archive.find(&format!("{root}/{PICKLE}"));
    let entry = entry.expect("the root was found by it");
    let bytes = read_whole(file, &entry, PICKLE, PICKLE_BYTES_MAX)?;
    let tensors = pickle::read(&bytes).map_err(|cause| malformed(format!("{PICKLE}: {cause}")))?;
    let mut storages = Storages {
        archive: &archive,
        root,
        dtypes: HashMap::new(),
    };
    let mut entries = BTreeMap::new();
    for (name, tensor) in tensors {
        let entry = storages.entry(&tensor, index);
        let entry = entry.map_err(|cause| malformed(format!("tensor {name} {cause}")))?;
        if entries.insert(name.clone(), entry).is_some() {
            return Err(malformed(format!("{PICKLE} has the tensor {name} twice")));
        }
    }
    check_overlaps(&entries).map_err(malformed)?;
    Ok(entries.into_iter().collect())
}

/// The archive's own folder, which has the name that it was saved under.
fn root(archive: &Archive) -> Result<&str, String> {
    let roots = archive.names().filter_map(|name| {
        let (root, rest) = name.split_once('/')?;
        (rest == PICKLE).then_some(root)
    });
    let mut roots = roots.take(2);
    match (roots.next(), roots.next()) {
        (Some(root), None) => Ok(root),
        (Some(_), Some(_)) => Err(format!("it has several {PICKLE}")),
        (None, _) => Err(format!(
            "it has no {PICKLE}, so it wasn't written by torch.save"
        )),
    }
}

fn read_whole(
    file: &CheckpointFile,
    entry: &ZipEntry,
    name: &str,
    max: u64,
) -> Result<Vec<u8>, CheckpointError> {
    if entry.bytes > max {
        return Err(CheckpointError::TooLarge {
            path: format!("{name} in {}", file.path),
            bytes: entry.bytes,
            max,
        });
    }
    let mut bytes = vec![0; entry.bytes as usize];
    file.read_at(entry.offset, &mut bytes)?;
    Ok(bytes)
}

/// The entries of an archive that hold tensors.
struct Storages<'a> {
    archive: &'a Archive,
    root: &'a str,
    /// The dtype and elements that each storage was said to have.
    dtypes: HashMap<String, (sluice_formats::DType, u64)>,
}

impl Storages<'_> {
    /// The place of a tensor, which must lie inside its storage, and that inside its entry.
    fn entry(&mut self, tensor: &PickledTensor, file: usize) -> Result<TensorEntry, String> {
        let storage = &*tensor.storage;
        let name = format!("{}/data/{}", self.root, storage.key);
        let entry = self.archive.find(&name);
        let entry = entry.ok_or_else(|| format!("lies in {name}, which the archive lacks"))?;
        let said = (storage.dtype, storage.elements);
        let first = *self.dtypes.entry(storage.key.to_string()).or_insert(said);
        if first != said {
            return Err(format!("gives {name} another type or length than before"));
        }
        let element_bytes = storage.dtype.bytes() as u64;
        let whole = storage.elements.checked_mul(element_bytes);
        if whole.is_none_or(|whole| whole > entry.bytes) {
            return Err(format!(
                "lies in {name}, which would have {} elements in {} bytes",
                storage.elements, entry.bytes
            ));
        }
        let elements = tensor.shape.iter().try_fold(1u64, |elements, &size| {
            elements.checked_mul(u64::try_from(size).ok()?)
        });
        let end = elements.and_then(|elements| tensor.offset.checked_add(elements));
        let (Some(elements), Some(_)) = (elements, end.filter(|&end| end <= storage.elements))
        else {
            return Err(format!(
                "of shape {:?} doesn't fit the {} elements of {name}",
                tensor.shape, storage.elements
            ));
        };
        // No overflow: all of it lies inside the storage, which lies inside the file.
        Ok(TensorEntry {
            format: Ok(storage.dtype.into()),
            shape: tensor.shape.clone(),
            file,
            offset: entry.offset + tensor.offset * element_bytes,
            bytes: elements * element_bytes,
            order: StoredOrder::Rows,
            compressed: None,
        })
    }
}

/// Refuses tensors that share some of their bytes. Tied ones share all.
fn check_overlaps(entries: &BTreeMap<String, TensorEntry>) -> Result<(), String> {
    let mut places: Vec<_> = entries
        .iter()
        .filter(|(_, entry)| entry.bytes > 0)
        .map(|(name, entry)| (entry.offset, entry.offset + entry.bytes, name))
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        let ((start, end, first), (next, next_end, second)) = (pair[0], pair[1]);
        if next < end && (start, end) != (next, next_end) {
            return Err(format!("tensors {first} and {second} overlap"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
