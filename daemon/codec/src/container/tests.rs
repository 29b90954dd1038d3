//! Containers made on the spot, whole and otherwise.

mod columns;
mod hostile;
mod resume;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use tempfile::TempDir;

use super::*;
use sluice_formats::DType;

use crate::{
    encode::{Encoded, Lossless, encode},
    layout::{MatrixLayout, Scheme},
};

const TILE: usize = 128;
pub(super) static GO_ON: AtomicBool = AtomicBool::new(false);

/// Pseudo-random bytes, the same each time.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// A compressed chunk of weight-like elements, and these elements.
fn chunk(scheme: Lossless, rows: usize, width: usize, random: &mut Random) -> (Encoded, Vec<u8>) {
    let numbers = (0..rows * width).map(|_| {
        let exponent = match random.below(50) {
            0 => random.below(256),
            _ => 120 - random.next().leading_zeros() as usize,
        };
        ((exponent << 7) as u16) | (random.next() as u16 & 0x807f)
    });
    let bytes: Vec<u8> = numbers.flat_map(u16::to_le_bytes).collect();
    let compressed = encode(DType::Bf16, rows, width, &bytes, scheme, TILE).unwrap();
    (compressed, bytes)
}

/// A tensor of the model and its chunks.
enum Content {
    Plain(Vec<u8>),
    Compressed(Vec<(Encoded, Vec<u8>)>),
}

/// A model of two layers, with a plain embedding, a compressed LM head of two chunks, a tensor of another dtype and an
/// empty one.
pub(super) struct Model {
    tensors: Vec<(PlannedTensor, Content)>,
}

impl Model {
    pub(super) fn new() -> Self {
        let random = &mut Random(0x51_u64 << 32 | 7);
        let mut tensors = Vec::new();
        let mut add = |name: &str, shape: &[usize], number: &str, content| {
            let planned = PlannedTensor {
                name: name.to_owned(),
                shape: shape.to_vec(),
                dtype: number.to_owned(),
                extent: extent_name(name).to_owned(),
            };
            tensors.push((planned, content));
        };
        add(
            "wte.weight",
            &[5, 100],
            "bf16",
            Content::Plain(random.bytes(1000)),
        );
        for layer in 0..2 {
            for (part, scheme) in [("up", Lossless::Huffman), ("down", Lossless::Dictionary)] {
                let chunks = vec![chunk(scheme, 40, 130, random)];
                let name = format!("layers.{layer}.{part}");
                add(&name, &[40, 130], "bf16", Content::Compressed(chunks));
            }
            let norm = Content::Plain(random.bytes(130 * 4));
            add(&format!("layers.{layer}.norm"), &[130], "f32", norm);
        }
        let chunks = [256, 20].map(|rows| chunk(Lossless::Huffman, rows, 17, random));
        add(
            "head",
            &[276, 17],
            "bf16",
            Content::Compressed(chunks.to_vec()),
        );
        add("steps", &[3], "i64", Content::Plain(random.bytes(24)));
        add("nothing", &[0, 3], "f16", Content::Plain(Vec::new()));
        Self { tensors }
    }

    pub(super) fn plan(&self) -> ContainerPlan {
        ContainerPlan {
            tile: TILE,
            tensors: self
                .tensors
                .iter()
                .map(|(planned, _)| planned.clone())
                .collect(),
            shards: vec![("model.safetensors".to_owned(), b"a header".to_vec())],
            files: vec![
                ("config.json".to_owned(), b"{\"a\": 1}".to_vec()),
                ("empty.txt".to_owned(), Vec::new()),
            ],
            identity: "this model".to_owned(),
        }
    }

    /// Writes the next tensor, or as many of its chunks or pieces.
    pub(super) fn write(&self, writer: &mut ContainerWriter, chunks_max: usize) {
        let (_, content) = &self.tensors[writer.next().unwrap()];
        match content {
            Content::Plain(bytes) => {
                writer.begin_tensor(Scheme::Plain).unwrap();
                for piece in bytes.chunks(TILE * 8).take(chunks_max) {
                    writer.plain(piece).unwrap();
                }
            }
            Content::Compressed(chunks) => {
                let scheme = chunks[0].0.layout.scheme();
                writer.begin_tensor(scheme).unwrap();
                for (compressed, _) in chunks.iter().take(chunks_max) {
                    writer.chunk(&compressed.layout, &compressed.bytes).unwrap();
                }
            }
        }
    }

    pub(super) fn write_whole(&self, writer: &mut ContainerWriter) {
        let (_, content) = &self.tensors[writer.next().unwrap()];
        let mut original = Hasher::default();
        match content {
            Content::Plain(bytes) => original.update(bytes),
            Content::Compressed(chunks) => {
                chunks.iter().for_each(|(_, bytes)| original.update(bytes));
            }
        }
        self.write(writer, usize::MAX);
        writer.end_tensor(original.finish()).unwrap();
    }

    pub(super) fn begin(&self, target: &Path) -> ContainerWriter {
        ContainerWriter::begin(target, self.plan(), &GO_ON, &mut |_| {}).unwrap()
    }

    /// Writes all that is left.
    pub(super) fn go_on(&self, mut writer: ContainerWriter) -> WrittenContainer {
        while writer.next().is_some() {
            self.write_whole(&mut writer);
        }
        writer.finish(false).unwrap()
    }

    /// The bytes of the container.
    pub(super) fn container(&self) -> Vec<u8> {
        let folder = Folder::new();
        self.go_on(self.begin(&folder.target()));
        folder.only_target()
    }
}

/// A folder for one container.
pub(super) struct Folder(TempDir);

impl Folder {
    pub(super) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(super) fn target(&self) -> PathBuf {
        self.0.path().join("model.sluice")
    }

    /// The container, beside which there is nothing.
    pub(super) fn only_target(&self) -> Vec<u8> {
        assert_eq!(fs::read_dir(self.0.path()).unwrap().count(), 1);
        fs::read(self.target()).unwrap()
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<Container<&[u8]>, ContainerError> {
    Container::read(bytes, "a.sluice".to_owned())
}

fn damage(container: &Container<&[u8]>) -> Vec<Damage> {
    container.verify(&GO_ON, &mut |_| {}).unwrap()
}

#[test]
fn what_was_written_is_read() {
    let model = Model::new();
    let bytes = model.container();

    let container = read(&bytes).unwrap();
    let header = container.header();
    assert_eq!(header.bytes, bytes.len() as u64);
    let extents: Vec<&str> = header.extents.iter().map(|e| &e.name[..]).collect();
    assert_eq!(
        extents,
        [
            "wte.weight",
            "layers.0",
            "layers.1",
            "head",
            "steps",
            "nothing"
        ]
    );
    assert_eq!(
        container.file("config.json").unwrap().unwrap(),
        b"{\"a\": 1}"
    );
    assert_eq!(container.file("empty.txt").unwrap().unwrap(), b"");
    assert!(container.file("model.safetensors").unwrap().is_none());
    assert_eq!(container.read_file(&header.shards[0]).unwrap(), b"a header");
    for (planned, content) in &model.tensors {
        let tensor = container.tensor(&planned.name).unwrap();
        let mut buffer = vec![0; tensor.length as usize];
        match content {
            Content::Plain(bytes) => {
                container.read_part(tensor, 0, &mut buffer).unwrap();
                assert_eq!(&buffer, bytes);
                assert_eq!(container.chunks(tensor).count(), 0);
            }
            Content::Compressed(chunks) => {
                let found: Vec<Chunk> = container.chunks(tensor).collect();
                assert_eq!(found.len(), chunks.len());
                for (found, (compressed, _)) in found.iter().zip(chunks) {
                    container.read_chunk(found, &mut buffer).unwrap();
                    assert_eq!(
                        (&found.layout, &buffer),
                        (&compressed.layout, &compressed.bytes)
                    );
                }
            }
        }
    }
    assert_eq!(damage(&container), []);
    // It can be written again, bit for bit.
    assert!(model.container() == bytes);
}

#[test]
fn a_tensor_may_be_begun_again_in_another_way() {
    let model = Model::new();
    let folder = Folder::new();
    let mut writer = model.begin(&folder.target());
    while let Some(next) = writer.next() {
        if !matches!(model.tensors[next].1, Content::Plain(_)) {
            // What is written first is longer.
            writer.begin_tensor(Scheme::Huffman).unwrap();
            let (compressed, _) = chunk(Lossless::Huffman, 256, 200, &mut Random(9));
            writer.chunk(&compressed.layout, &compressed.bytes).unwrap();
            assert_eq!(writer.tensor_bytes(), compressed.bytes.len() as u64);
        }
        model.write_whole(&mut writer);
    }
    writer.finish(false).unwrap();
    assert!(folder.only_target() == model.container());
}

#[test]
fn an_existing_file_is_replaced_only_if_that_is_asked_for() {
    let model = Model::new();
    let folder = Folder::new();
    fs::write(folder.target(), "precious").unwrap();
    let whole = || {
        let mut writer = model.begin(&folder.target());
        while writer.next().is_some() {
            model.write_whole(&mut writer);
        }
        writer
    };

    let refused = whole().finish(false).unwrap_err();
    assert!(matches!(refused, ContainerError::Exists { .. }));
    assert_eq!(fs::read(folder.target()).unwrap(), b"precious");

    whole().finish(true).unwrap();
    assert!(folder.only_target() == model.container());
}
