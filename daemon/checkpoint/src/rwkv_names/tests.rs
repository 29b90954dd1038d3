//! The fixture's tensors under their official names, as a safetensors file, against Hugging Face's of the same model.

use std::{fs, path::PathBuf};

use ::safetensors::{SafeTensors, tensor::TensorView};
use tempfile::TempDir;

use super::*;
use crate::{Checkpoint, Source, family::ModelConfig, tests::assert_same_model};

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures/rwkv7-tiny")
}

/// A tensor under its official name: shape and bytes.
type Official = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

/// The fixture's tensors as the training code names and stores them.
fn official() -> Official {
    let bytes = fs::read(fixture().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let convert = |(name, view): (&str, TensorView<'_>)| {
        let name = translated(name, HUGGING_FACE, OFFICIAL).unwrap();
        let (mut shape, mut bytes) = (view.shape().to_vec(), view.data().to_vec());
        let kind = name.rsplit('.').next().unwrap();
        if let (true, &[rows, columns]) = (TRANSPOSED.contains(&kind), &shape[..]) {
            let element =
                |row: usize, column: usize| &view.data()[(row * columns + column) * 2..][..2];
            let elements =
                (0..columns).flat_map(|column| (0..rows).map(move |row| element(row, column)));
            bytes = elements.collect::<Vec<_>>().concat();
            shape = vec![columns, rows];
        }
        (name, (shape, bytes))
    };
    tensors.iter().map(convert).collect()
}

fn open(tensors: &Official) -> Result<(TempDir, Checkpoint), CheckpointError> {
    let folder = TempDir::new().unwrap();
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        let view = TensorView::new(::safetensors::Dtype::BF16, shape.clone(), bytes);
        (name, view.unwrap())
    });
    let file = folder.path().join("rwkv7-tiny.safetensors");
    fs::write(&file, ::safetensors::serialize(views, None).unwrap()).unwrap();
    let checkpoint = Checkpoint::open(&Source::Folder(file))?;
    Ok((folder, checkpoint))
}

fn refusal(change: impl FnOnce(&mut Official)) -> String {
    let mut tensors = official();
    change(&mut tensors);
    let refused = open(&tensors).and_then(|(_folder, checkpoint)| {
        let model = checkpoint.model()?;
        checkpoint.sources(model.shape.tensors()).map(drop)
    });
    let error = refused.unwrap_err().to_string();
    match error.split_once("rwkv7-tiny.safetensors") {
        Some((_, rest)) => rest.to_owned(),
        None => error,
    }
}

#[test]
fn official_names_give_the_same_model_as_hugging_face_s() {
    let (_folder, found) = open(&official()).unwrap();
    assert_same_model(&found, &fixture());
}

#[test]
fn the_first_layer_s_values_mix_in_nothing() {
    let mut tensors = official();
    let v0 = tensors["blocks.1.att.v0"].clone();
    tensors.insert("blocks.0.att.v0".to_owned(), v0);
    let (_folder, checkpoint) = open(&tensors).unwrap();
    assert!(
        checkpoint
            .tensor("model.layers.0.attn.v_lora.lora.2.bias")
            .is_none()
    );
}

#[test]
fn every_name_is_translated_there_and_back() {
    let config = ModelConfig::read(&config(&entries()), None).unwrap();
    for spec in config.shape.tensors() {
        let official = translated(&spec.name, HUGGING_FACE, OFFICIAL).unwrap();
        let back = translated(&official, OFFICIAL, HUGGING_FACE);
        assert_eq!(back.as_deref(), Some(&spec.name[..]), "{official}");
    }
    assert_eq!(
        translated("blocks.01.ln1.bias", OFFICIAL, HUGGING_FACE),
        None
    );
    assert_eq!(
        translated("blocks.1.ln0.bias", OFFICIAL, HUGGING_FACE),
        None
    );
}

/// Entries of the fixture's official tensors.
fn entries() -> BTreeMap<String, TensorEntry> {
    let entry = |(name, (shape, bytes)): (String, (Vec<usize>, Vec<u8>))| {
        let entry = TensorEntry {
            format: Ok(sluice_formats::Format::Bf16),
            shape,
            file: 0,
            offset: 0,
            bytes: bytes.len() as u64,
            order: StoredOrder::Rows,
            compressed: None,
        };
        (name, entry)
    };
    official().into_iter().map(entry).collect()
}

#[test]
fn other_models_are_refused_by_what_tells_them_apart() {
    let error = refusal(|tensors| drop(tensors.remove("blocks.0.att.x_r")));
    assert_eq!(
        error,
        " is an RWKV model of another version: it lacks blocks.0.att.x_r"
    );
    let error = refusal(|tensors| {
        let more = tensors["blocks.0.ffn.x_k"].clone();
        tensors.insert("blocks.0.ffn.s_emb.weight".to_owned(), more);
    });
    assert_eq!(
        error,
        " has the tensor blocks.0.ffn.s_emb.weight, which is not part of RWKV-7"
    );
    let error = refusal(|tensors| drop(tensors.remove("blocks.1.att.g2")));
    assert_eq!(error, "tensor blocks.1.att.g2 is missing");
    let error = refusal(|tensors| tensors.get_mut("blocks.0.att.r_k").unwrap().0 = vec![4, 32]);
    assert_eq!(
        error,
        ": head_dim, by its tensors, is 32; only 64, as in all published models, is supported"
    );
    let error = refusal(|tensors| {
        let (shape, bytes) = tensors.get_mut("blocks.1.att.w1").unwrap();
        *shape = vec![0, HIDDEN_SIZE_MAX + 1];
        bytes.clear();
    });
    assert_eq!(
        error,
        " is malformed: tensor blocks.1.att.w1 would have the shape [0, 65537]"
    );
}

#[test]
fn a_container_of_official_names_is_refused() {
    use crate::compression::{CompressOptions, CompressionMethod, Lossless, compress};
    let (folder, checkpoint) = open(&official()).unwrap();
    drop(checkpoint);
    let options = CompressOptions {
        method: CompressionMethod::Lossless(Lossless::Huffman),
        tile: 128,
        tensors: Default::default(),
        all: true,
        threads: 1,
        replace: false,
    };
    let source = Source::Folder(folder.path().join("rwkv7-tiny.safetensors"));
    let target = folder.path().join("a.sluice");
    let never = std::sync::atomic::AtomicBool::new(false);
    let error = compress(&source, &target, &options, &never, &mut |_, _| {}).unwrap_err();
    assert!(
        error.to_string().contains("RWKV's official names"),
        "{error}"
    );
}
