//! A container of a folder's weights.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use safetensors::SafeTensors;
use sluice_codec::{
    Lossless, Number, Scheme,
    container::{CHUNK_ROWS, Hash, Plan, PlannedTensor, Writer, extent_name},
    encode,
};

/// How matrices are coded.
#[derive(Debug, Clone, Copy)]
pub enum Coder {
    Huffman,
    Palette,
}

/// Writes all of a folder in bf16 into one file; matrices coded, but for the embedding.
pub fn write(folder: &Path, target: &Path, coder: Coder, tile: usize) {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let names = tensors.names();
    let planned = |name: &&str| PlannedTensor {
        name: (*name).to_owned(),
        shape: tensors.tensor(name).unwrap().shape().to_vec(),
        number: "bf16".to_owned(),
        extent: extent_name(name).to_owned(),
    };
    let file = |name: &str| Some((name.to_owned(), fs::read(folder.join(name)).ok()?));
    let files = ["config.json", "tokenizer.json", "tokenizer_config.json"];
    let plan = Plan {
        tile,
        tensors: names.iter().map(planned).collect(),
        shards: Vec::new(),
        files: files.into_iter().filter_map(file).collect(),
        identity: format!("{coder:?} {tile}"),
    };
    let never = AtomicBool::new(false);
    let mut writer = Writer::begin(target, plan, &never, &mut |_| {}).unwrap();
    for name in names {
        let tensor = tensors.tensor(name).unwrap();
        let data = tensor.data();
        match tensor.shape() {
            [rows, width] if !name.contains("wte") && !name.contains("embed") => {
                let scheme = match coder {
                    Coder::Huffman => Scheme::Huffman,
                    Coder::Palette => Scheme::Palette,
                };
                writer.begin_tensor(scheme).unwrap();
                for first in (0..*rows).step_by(CHUNK_ROWS) {
                    let count = CHUNK_ROWS.min(rows - first);
                    let data = &data[first * width * 2..(first + count) * width * 2];
                    let lossless = |scheme| encode(Number::Bf16, count, *width, data, scheme, tile);
                    let encoded = match coder {
                        Coder::Huffman => lossless(Lossless::Huffman),
                        Coder::Palette => lossless(Lossless::Palette),
                    }
                    .unwrap();
                    writer.chunk(&encoded.layout, &encoded.bytes).unwrap();
                }
            }
            _ => {
                writer.begin_tensor(Scheme::Plain).unwrap();
                writer.plain(data).unwrap();
            }
        }
        writer.end_tensor(Hash::of(data)).unwrap();
    }
    writer.finish(true).unwrap();
}
