//! The layout of a synthetic checkpoint: shards, their headers and the index.

use serde_json::{Map, Value, json};
use sluice_weights::Shape;

use super::{SynthDType, SynthRouter, fresh::FreshTensor};

/// File name of the shard index.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Elements of a block, which a thread generates and writes at once: a megabyte or two.
pub(super) const BLOCK_ELEMENTS: usize = 1 << 19;
/// Largest shard in bytes, unless a single tensor is larger.
const SHARD_BYTES_MAX: u64 = 4 << 30;
/// Weights begin at a multiple of this, as direct reads want.
const ALIGNMENT: usize = 4096;
/// Most bytes that a tensor adds to a header besides its name.
const ENTRY_BYTES_MAX: u64 = 160;

/// All tensors, and their distribution to shards.
pub(super) struct ShardLayout {
    dtype: SynthDType,
    tensors: Vec<Tensor>,
    /// Index of the first tensor of each shard, and the end.
    bounds: Vec<usize>,
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    fresh: FreshTensor,
}

impl Tensor {
    fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}

/// Elements that are generated and written together.
#[derive(Debug)]
pub(super) struct ElementBlock {
    /// Index of the tensor among all.
    pub(super) tensor: u64,
    /// Index of the block in the tensor.
    pub(super) block: u64,
    /// What its elements are. Vectors are one block.
    pub(super) fresh: FreshTensor,
    /// Number of elements.
    pub(super) count: usize,
    /// Offset in the shard's file.
    pub(super) offset: u64,
}

impl ShardLayout {
    pub(super) fn new(shape: &Shape, element: SynthDType, router: SynthRouter) -> Self {
        let tensors = shape.stored().map(|spec| Tensor {
            fresh: FreshTensor::of(&spec, shape, router),
            name: spec.name,
            shape: spec.shape,
        });
        let mut layout = Self {
            dtype: element,
            tensors: tensors.collect(),
            bounds: vec![0],
        };
        // Shards are filled before their headers exist, so headers are reckoned with by their upper bound.
        let mut file = ALIGNMENT as u64;
        for (index, tensor) in layout.tensors.iter().enumerate() {
            // The header grows with each tensor as well, so its entry counts.
            let bytes =
                tensor.elements() * element.bytes() + tensor.name.len() as u64 + ENTRY_BYTES_MAX;
            // A tensor that is larger than a shard gets one of its own; no shard stays empty.
            if file + bytes > SHARD_BYTES_MAX && layout.bounds.last() != Some(&index) {
                layout.bounds.push(index);
                file = ALIGNMENT as u64;
            }
            file += bytes;
        }
        layout.bounds.push(layout.tensors.len());
        layout
    }

    pub(super) fn shards(&self) -> usize {
        self.bounds.len() - 1
    }

    pub(super) fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| self.bytes(tensor)).sum()
    }

    pub(super) fn file_name(&self, shard: usize) -> String {
        match self.shards() {
            1 => "model.safetensors".to_owned(),
            shards => format!("model-{:05}-of-{shards:05}.safetensors", shard + 1),
        }
    }

    /// The index that names each tensor's shard; `None` for a single file.
    pub(super) fn index(&self) -> Option<Value> {
        if self.shards() == 1 {
            return None;
        }
        let mut files = Map::new();
        for shard in 0..self.shards() {
            for tensor in self.shard(shard) {
                files.insert(tensor.name.clone(), self.file_name(shard).into());
            }
        }
        Some(json!({"metadata": {"total_size": self.weight_bytes()}, "weight_map": files}))
    }

    /// A shard's header, padded with spaces as the format allows.
    pub(super) fn header(&self, shard: usize) -> Vec<u8> {
        let dtype = match self.dtype {
            SynthDType::Bf16 => "BF16",
            SynthDType::F16 => "F16",
            SynthDType::F32 => "F32",
        };
        let mut header = Map::new();
        // transformers refuses to load files without this key.
        header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        let mut end = 0;
        for tensor in self.shard(shard) {
            let start = end;
            end += self.bytes(tensor);
            let entry =
                json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]});
            header.insert(tensor.name.clone(), entry);
        }
        let mut text = Value::Object(header).to_string();
        // Eight bytes of length come before the text.
        let len = (8 + text.len()).next_multiple_of(ALIGNMENT) - 8;
        text.extend(std::iter::repeat_n(' ', len - text.len()));
        [&(len as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    /// All blocks of a shard, in file order.
    pub(super) fn jobs(&self, shard: usize) -> impl Iterator<Item = ElementBlock> + Send {
        let first = self.bounds[shard];
        // Offsets must be those of the header, so they come from the header itself.
        let mut end = self.header(shard).len() as u64;
        let tensors = self.shard(shard).iter().enumerate();
        tensors.flat_map(move |(index, tensor)| {
            let start = end;
            end += self.bytes(tensor);
            let numbers = tensor.elements();
            // Blocks don't span tensors: each depends on its tensor's index and its own.
            let stride = BLOCK_ELEMENTS as u64;
            (0..numbers.div_ceil(stride)).map(move |block| ElementBlock {
                tensor: (first + index) as u64,
                block,
                fresh: tensor.fresh,
                count: stride.min(numbers - block * stride) as usize,
                offset: start + block * stride * self.dtype.bytes(),
            })
        })
    }

    fn shard(&self, shard: usize) -> &[Tensor] {
        &self.tensors[self.bounds[shard]..self.bounds[shard + 1]]
    }

    fn bytes(&self, tensor: &Tensor) -> u64 {
        tensor.elements() * self.dtype.bytes()
    }
}
