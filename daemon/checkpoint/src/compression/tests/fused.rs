//! Models whose files have in one tensor what a container has in several.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use sluice_weights::{ExpertShape, TensorPart};

use super::*;
use crate::family::Family;

const LAYERS: usize = 3;
const EXPERTS: usize = 8;

/// A mixture of LLaDA2's whose matrices are just large enough to be compressed: queries, keys and values of a layer are
/// in one tensor, and so are the experts of the second layer, while those of the third are apart.
fn mixture(folder: &Path) -> PathBuf {
    let shape = Shape {
        naming: TensorNaming::Llada2,
        layers: LAYERS,
        hidden_size: 256,
        attention_heads: 4,
        kv_heads: 2,
        // Keys and values have as many elements as a tensor that is compressed must have, and are no whole chunk.
        head_dim: 132,
        intermediate_size: 300,
        padded_vocab_size: 300,
        context_length: 64,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: true,
        layer_kind: LayerKind::Mixture(ExpertShape {
            count: EXPERTS,
            per_token: 2,
            intermediate_size: 260,
            shared_intermediate_size: 260,
            has_choice_bias: true,
            dense_layers: 1,
            layer_step: 1,
        }),
    };
    let synthesis = SynthOptions {
        shape,
        dtype: SynthDType::Bf16,
        seed: 3,
        family: Some(Family::Llada2),
        router: SynthRouter::default(),
        threads: 2,
    };
    let target = folder.join("mixture");
    synthesis.write(&target, &GO_ON, &mut |_, _| {}).unwrap();
    let weights = target.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let mut tensors: BTreeMap<_, _> = tensors
        .into_iter()
        .map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec())))
        .collect();
    for (to, parts) in [
        ("gate_up_proj", &["gate_proj", "up_proj"][..]),
        ("down_proj", &["down_proj"]),
    ] {
        let (mut shape, mut bytes) = (vec![EXPERTS, 0, 0], Vec::new());
        for expert in 0..EXPERTS {
            for part in parts {
                let name = format!("model.layers.1.mlp.experts.{expert}.{part}.weight");
                let (of_part, elements) = tensors.remove(&name).unwrap();
                shape[1..].copy_from_slice(&[of_part[0] * parts.len(), of_part[1]]);
                bytes.extend(elements);
            }
        }
        tensors.insert(format!("model.layers.1.mlp.experts.{to}"), (shape, bytes));
    }
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        let view = TensorView::new(Dtype::BF16, shape.clone(), bytes);
        (name, view.unwrap())
    });
    fs::write(&weights, safetensors::serialize(views, None).unwrap()).unwrap();
    target
}

/// Checks that a container has every tensor of a folder's model, with the same bytes.
fn assert_same_weights(container: &Path, folder: &Path) {
    let open = |path: &Path| Checkpoint::open(&Source::Folder(path.to_owned())).unwrap();
    let (found, expected) = (open(container), open(folder));
    let model = expected.model().unwrap();
    assert_eq!(found.model().unwrap(), model);
    found.model_sources(&model.shape).unwrap();
    for spec in model.shape.tensors() {
        let read = |checkpoint: &Checkpoint| {
            let entry = checkpoint.tensor(&spec.name).unwrap();
            assert_eq!(entry.shape, spec.shape, "{}", spec.name);
            let mut bytes = vec![0; entry.bytes as usize];
            let all = 0..entry.bytes;
            checkpoint.read_part(entry, all, &mut bytes).unwrap();
            bytes
        };
        assert!(read(&found) == read(&expected), "{}", spec.name);
    }
}

#[test]
fn parts_are_tensors_of_a_container_and_come_back_as_one() {
    let folder = TempDir::new().unwrap();
    let fixture = |name: &str| repository("engine/tests/fixtures").join(name);
    let sources = [
        mixture(folder.path()),
        fixture("llada2-tiny"),
        fixture("diffusion-gemma-tiny"),
    ];
    for (index, source) in sources.iter().enumerate() {
        for (how, tile) in [(Lossless::Huffman, 256), (Lossless::Dictionary, 512)] {
            let container = folder.path().join(format!("{index}-{how:?}.sluice"));
            let options = CompressOptions {
                method: CompressionMethod::Lossless(how),
                tile,
                ..options()
            };
            let made = make(source, &container, &options).unwrap();
            assert_same_weights(&container, source);
            let found = Container::open(&container).unwrap();
            assert_eq!(found.verify(&GO_ON, &mut |_| {}).unwrap(), []);
            let names = found.header().tensors.iter().map(|tensor| &tensor.name);
            let is_whole = |name: &&String| {
                name.contains("query_key_value") || name.ends_with("experts.gate_up_proj")
            };
            assert_eq!(names.filter(is_whole).count(), 0);

            let back = folder.path().join(format!("{index}-{how:?}"));
            let restored = restore(&container, &back).unwrap();
            assert_eq!(restored.original_bytes, made.original_bytes);
            let mut expected = contents(source);
            expected.retain(|(name, _)| !made.skipped_files.contains(name));
            assert!(contents(&back) == expected, "{source:?} by {how:?}");
        }
    }
}

#[test]
fn parts_are_compressed_in_the_order_of_a_pass() {
    let folder = TempDir::new().unwrap();
    let source = mixture(folder.path());
    let target = folder.path().join("a.sluice");
    let mut last = (0, 0);
    let made = compress(
        &Source::Folder(source),
        &target,
        &options(),
        &GO_ON,
        &mut |_, progress| {
            assert!(progress.done_bytes >= last.0);
            last = (progress.done_bytes, progress.total_bytes);
        },
    );
    let made = made.unwrap();
    assert_eq!(last, (made.original_bytes, made.original_bytes));
    assert!(made.bytes < made.original_bytes * 4 / 5);
    let container = Container::open(&target).unwrap();
    let checkpoint = Checkpoint::open(&Source::Folder(target)).unwrap();
    let specs = checkpoint.model().unwrap().shape.tensors();
    let tensors = &container.header().tensors;
    assert!(
        specs
            .iter()
            .map(|spec| &spec.name)
            .eq(tensors.iter().map(|tensor| &tensor.name))
    );
    let extents = container.header().extents.iter();
    let layers = extents.filter(|extent| extent.name.starts_with("model.layers."));
    assert_eq!(layers.count(), LAYERS);
    for (spec, tensor) in specs.iter().zip(tensors) {
        let is_compressed = spec.shape.len() == 2
            && !matches!(spec.part, TensorPart::Embedding | TensorPart::Router);
        let scheme = tensor.scheme() == Some(Scheme::Huffman);
        assert_eq!(scheme, is_compressed, "{}", tensor.name);
    }
}

#[test]
fn routers_are_never_quantized() {
    let folder = TempDir::new().unwrap();
    let [router, up] =
        ["gate", "experts.0.up_proj"].map(|name| format!("model.layers.1.mlp.{name}.weight"));
    let bytes: Vec<u8> = (0..65_536u32)
        .flat_map(|at| (0x3c00 | at.wrapping_mul(77_777) as u16 & 0x81ff).to_le_bytes())
        .collect();
    let view = || TensorView::new(Dtype::BF16, vec![256, 256], &bytes).unwrap();
    let weights = safetensors::serialize([(&router, view()), (&up, view())], None).unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("model.safetensors"), weights).unwrap();
    let config = repository("engine/tests/fixtures/qwen3-moe-tiny/config.json");
    fs::copy(config, model.join("config.json")).unwrap();
    let target = folder.path().join("a.sluice");
    let options = CompressOptions {
        method: CompressionMethod::Trellis(TrellisTarget::Bits(4.)),
        all: true,
        ..options()
    };
    make(&model, &target, &options).unwrap();
    let container = Container::open(&target).unwrap();
    for (name, scheme) in [(router, Scheme::Huffman), (up, Scheme::Trellis)] {
        assert_eq!(container.tensor(&name).unwrap().scheme(), Some(scheme));
    }
}

/// A container with these parts of two rows, and the header of a weight file that has them in one tensor of this shape.
fn container(target: &Path, parts: &[(&str, usize)], shape: &[usize]) {
    let bytes: usize = shape.iter().product();
    let header = format!(
        r#"{{"model.layers.1.mlp.experts.up_proj":{{"dtype":"I8","shape":{shape:?},"data_offsets":[0,{bytes}]}}}}"#
    );
    let mut shard = (header.len() as u64).to_le_bytes().to_vec();
    shard.extend(header.bytes());
    let planned = |(expert, width): &(&str, usize)| PlannedTensor {
        name: format!("model.layers.1.mlp.experts.{expert}.up_proj.weight"),
        shape: vec![2, *width],
        dtype: "i8".to_owned(),
        extent: "all".to_owned(),
    };
    let plan = ContainerPlan {
        tile: 256,
        tensors: parts.iter().map(planned).collect(),
        shards: vec![("model.safetensors".to_owned(), shard)],
        files: Vec::new(),
        identity: String::new(),
    };
    let mut writer = ContainerWriter::begin(target, plan, &GO_ON, &mut |_| {}).unwrap();
    for (expert, width) in parts {
        let bytes = vec![expert.len() as u8; 2 * width];
        writer.begin_tensor(Scheme::Plain).unwrap();
        writer.plain(&bytes).unwrap();
        writer.end_tensor(Hash::of(&bytes)).unwrap();
    }
    writer.finish(false).unwrap();
}

#[test]
fn parts_that_are_not_a_whole_are_refused() {
    let folder = TempDir::new().unwrap();
    let restored = |name: &str, parts: &[(&str, usize)], shape: &[usize]| {
        let target = folder.path().join(format!("{name}.sluice"));
        container(&target, parts, shape);
        let error = restore(&target, &folder.path().join(name)).err();
        error.map(|error| error.to_string())
    };
    let both = [("0", 3), ("1", 3)];
    assert_eq!(restored("a", &both, &[2, 2, 3]), None);
    for (name, parts, shape, words) in [
        ("b", &both[..1], &[2, 2, 3][..], "isn't in the container"),
        // Of so many parts nobody could make a list.
        ("c", &both, &[1 << 60, 0, 3], "isn't in the container"),
        ("d", &both, &[2, 3, 3], "does not match the one in"),
        (
            "e",
            &[("0", 2), ("1", 4)],
            &[2, 2, 3],
            "does not match the one in",
        ),
        (
            "f",
            &[("0", 3), ("1", 3), ("2", 3)],
            &[2, 2, 3],
            "is listed in no weight file",
        ),
    ] {
        let error = restored(name, parts, shape).unwrap();
        assert!(error.contains(words), "{name}: {error}");
        assert!(error.contains("model.layers.1.mlp.experts."), "{error}");
    }
}

#[test]
fn damage_is_told_by_the_part() {
    let folder = TempDir::new().unwrap();
    let source = mixture(folder.path());
    let target = folder.path().join("a.sluice");
    make(&source, &target, &options()).unwrap();
    let whole = fs::read(&target).unwrap();
    let header = Container::open(&target).unwrap().header().clone();
    for name in ["attention.key.weight", "mlp.experts.5.down_proj.weight"] {
        let name = format!("model.layers.1.{name}");
        let tensor = header.tensors.iter().find(|tensor| tensor.name == name);
        let tensor = tensor.unwrap();
        let mut damaged = whole.clone();
        damaged[(tensor.offset + tensor.length / 2) as usize] ^= 0x10;
        fs::write(&target, damaged).unwrap();
        let checkpoint = Checkpoint::open(&Source::Folder(target.clone())).unwrap();
        let loaded = checkpoint.verify(None, &GO_ON, &mut |_, _| {}).unwrap_err();
        let restored = restore(&target, &folder.path().join("back")).unwrap_err();
        for error in [loaded.to_string(), restored.to_string()] {
            assert!(error.contains(&name) && error.contains("tile"), "{error}");
        }
    }
}
