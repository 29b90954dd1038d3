//! Checkpoints: the repository's fixtures, spoiled copies of them, and a slow one made on
//! the spot.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{OnceLock, atomic::AtomicBool},
};

use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use serde_json::{Value, json};
use sluice_checkpoint::synth::{SynthDType, SynthOptions, SynthRouter};
use sluice_tokenizer::Tokenizer;
use sluice_weights::{LayerKind, Shape, TensorNaming};
use tempfile::TempDir;

/// The demonstration model's folder.
pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("model")
}

/// Every file of a folder, by name.
pub(crate) fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

/// A checkpoint with expected outputs.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("engine/tests/fixtures");
    let folder = fixtures.join(name);
    assert!(folder.is_dir(), "{} is missing", folder.display());
    folder
}

/// A copy of `llada-tiny` to spoil.
pub(crate) fn copy() -> TempDir {
    let folder = TempDir::new().unwrap();
    for file in ["config.json", "model.safetensors"] {
        let bytes = fs::read(fixture("llada-tiny").join(file)).unwrap();
        fs::write(folder.path().join(file), bytes).unwrap();
    }
    folder
}

/// Rewrites the copy's weights.
pub(crate) fn change_weights(
    folder: &Path,
    change: impl FnOnce(&mut BTreeMap<String, (Vec<usize>, Vec<u8>)>),
) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = stored
        .iter()
        .map(|(name, view)| {
            let content = (view.shape().to_vec(), view.data().to_vec());
            (name.to_owned(), content)
        })
        .collect();
    change(&mut tensors);
    write(&path, &tensors);
}

fn write(path: &Path, tensors: &BTreeMap<String, (Vec<usize>, Vec<u8>)>) {
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
        (name, view)
    });
    serialize_to_file(views, None, path).unwrap();
}

/// Rewrites a key of the copy's `config.json`.
pub(crate) fn change_config(folder: &Path, key: &str, value: Value) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[key] = value;
    fs::write(path, config.to_string()).unwrap();
}

/// A checkpoint large enough that 256 positions take seconds, and a pass still takes little.
pub(crate) fn slow() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slow-checkpoint");
        slow_with_seed(&folder, 0);
        folder
    })
}

/// Such a checkpoint in a folder of its own, with weights that follow from a number.
pub(crate) fn slow_with_seed(folder: &Path, seed: u64) {
    fs::create_dir_all(folder).unwrap();
    write_slow(folder, seed + 1);
}

const WIDTH: usize = 256;
const MLP_WIDTH: usize = 688;
const LAYERS: usize = 8;
const VOCABULARY: usize = 2048;

fn write_slow(folder: &Path, seed: u64) {
    let config = json!({
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "block_type": "llama",
        "activation_type": "silu", "layer_norm_type": "rms", "rms_norm_eps": 1e-5,
        "d_model": WIDTH, "n_heads": 4, "n_kv_heads": 4, "n_layers": LAYERS,
        "mlp_hidden_size": MLP_WIDTH, "max_sequence_length": 4096, "rope": true,
        "rope_theta": 10000.0, "vocab_size": VOCABULARY, "embedding_size": VOCABULARY,
        "mask_token_id": 2040, "eos_token_id": 2041, "pad_token_id": 2041,
        "include_bias": false, "include_qkv_bias": false, "weight_tying": false,
        "alibi": false, "attention_layer_norm": false, "scale_logits": false,
        "input_emb_norm": false, "multi_query_attention": null, "block_group_size": 1,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut random = Random(seed);
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| {
        let is_norm = shape.len() == 1;
        let count = shape.iter().product();
        let numbers = std::iter::repeat_with(|| if is_norm { 1.0 } else { random.small() });
        let bytes = numbers.take(count).flat_map(f32::to_le_bytes).collect();
        tensors.insert(
            format!("model.transformer.{name}.weight"),
            (shape.to_vec(), bytes),
        );
    };
    add("wte".to_owned(), &[VOCABULARY, WIDTH]);
    add("ff_out".to_owned(), &[VOCABULARY, WIDTH]);
    add("ln_f".to_owned(), &[WIDTH]);
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("attn_norm", &[WIDTH][..]),
            ("ff_norm", &[WIDTH]),
            ("q_proj", &[WIDTH, WIDTH]),
            ("k_proj", &[WIDTH, WIDTH]),
            ("v_proj", &[WIDTH, WIDTH]),
            ("attn_out", &[WIDTH, WIDTH]),
            ("ff_proj", &[MLP_WIDTH, WIDTH]),
            ("up_proj", &[MLP_WIDTH, WIDTH]),
            ("ff_out", &[WIDTH, MLP_WIDTH]),
        ] {
            add(format!("blocks.{layer}.{name}"), shape);
        }
    }
    write(&folder.join("model.safetensors"), &tensors);
}

/// A linear congruential generator: any spread of small numbers will do.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Any of 2^32 numbers.
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 32) as u32
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    fn small(&mut self) -> f32 {
        ((self.next() >> 8) as f32 / (1 << 24) as f32 - 0.5) * 0.1
    }
}

/// An autoregressive model of random weights that reads and writes with the embedded model's tokenizer, and has a chat template
/// of its own.
pub(crate) fn writer() -> TempDir {
    let folder = TempDir::new().unwrap();
    write_writer(&folder.path().join("writer"), 5, |_| {});
    folder
}

/// Such a model in a folder, with weights that follow from a number, and another shape.
pub(crate) fn write_writer(model: &Path, seed: u64, reshape: impl FnOnce(&mut Shape)) {
    let tokenizer = fs::read(demo().join("tokenizer.json")).unwrap();
    let text = Tokenizer::new(&tokenizer, None).unwrap();
    let mut shape = Shape {
        naming: TensorNaming::HuggingFace,
        layers: 2,
        hidden_size: 64,
        attention_heads: 4,
        kv_heads: 2,
        head_dim: 16,
        intermediate_size: 160,
        padded_vocab_size: text.vocab_size(),
        context_length: 512,
        causal: true,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    };
    reshape(&mut shape);
    let synthesis = SynthOptions {
        shape,
        dtype: SynthDType::F32,
        seed,
        family: None,
        router: SynthRouter::default(),
        threads: 1,
    };
    let never = AtomicBool::new(false);
    synthesis.write(model, &never, &mut |_, _| {}).unwrap();
    fs::write(model.join("tokenizer.json"), tokenizer).unwrap();
    let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";
    fs::write(model.join("chat_template.jinja"), template).unwrap();
}
