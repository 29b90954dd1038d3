//! What one generation allocates at LLaDA-8B's true widths and vocabulary of 126,464, with random weights and one
//! layer: transient memory does not depend on the number of layers.
//!
//! `cargo run --release -p sluice-measure --example peak_memory [CANVAS] [PASSES]` writes a checkpoint of 2.5 GB to the
//! temporary folder and prints the ledger beside the reference's figures (`float64` logits, noise and softmax of canvas
//! × vocabulary, five at once).

use std::{
    error::Error,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use half::bf16;
use serde_json::{Map, Value, json};
use sluice_checkpoint::{Source, family::ModelConfig};
use sluice_engine::{Engine, EngineOptions, Generate, Outcome, PlanSettings, Work};
use sluice_formats::noise::Noise;
use sluice_machine::MemoryKind;
use sluice_shared::units;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let canvas = arguments.next().transpose()?.unwrap_or(1024);
    let passes = arguments.next().transpose()?.unwrap_or(4);
    let block = 32.min(canvas);

    let folder = tempfile::tempdir()?;
    let vocabulary = write_checkpoint(folder.path())?;
    let engine = Engine::start(EngineOptions {
        threads: 0,
        queue_max: 1,
        ..EngineOptions::default()
    })?;
    let source = Source::Folder(folder.path().to_owned());
    let model = engine.load_now(source, PlanSettings::default())?;
    let weights = engine.memory().used_bytes;

    let prompt = (0..canvas - block).map(|i| (i * 97 % 126_000) as u32);
    let request = Generate {
        steps: passes,
        temperature: 1.0,
        seed: 1,
        ..Generate::greedy(model.id, prompt.collect(), block)
    };
    let Outcome::Generated(generated) = engine.run(Work::Generate(request))? else {
        unreachable!("nobody cancels")
    };

    println!("canvas {canvas}, block {block}, temperature 1, vocabulary {vocabulary}");
    println!(
        "loaded (weights, rotations, scratch)  {}",
        units::bytes(weights)
    );
    let report = engine.memory();
    for kind in report
        .kinds
        .iter()
        .filter(|kind| kind.kind != MemoryKind::Weights)
    {
        let name = kind.kind.name();
        println!("peak of {name:<30}{}", units::bytes(kind.peak_bytes));
    }
    let transient = generated.peak_device_bytes - weights;
    println!(
        "transient, all at once                {}",
        units::bytes(transient)
    );
    let row = (canvas * vocabulary) as u64;
    let reference = row * 2 + 4 * row * 8;
    println!(
        "reference sampler, logits alone       {} (bf16 logits and four float64 copies)",
        units::bytes(reference)
    );
    println!(
        "ratio                                 1 : {:.0}",
        reference as f64 / transient as f64
    );
    let per_pass = generated.elapsed.as_secs_f64() * 1000.0 / generated.passes as f64;
    println!(
        "a pass                                {}",
        units::duration_ms(per_pass)
    );
    Ok(())
}

/// One layer of LLaDA-8B with random bf16 weights; returns the vocabulary.
fn write_checkpoint(folder: &Path) -> Result<usize, Box<dyn Error>> {
    let config = json!({
        "model_type": "llada", "d_model": 4096, "n_layers": 1, "n_heads": 32,
        "n_kv_heads": 32, "mlp_hidden_size": 12288, "vocab_size": 126_464,
        "embedding_size": 126_464, "max_sequence_length": 4096, "rope_theta": 500_000.0,
        "mask_token_id": 126_336, "eos_token_id": 126_081,
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let config = config.as_object().expect("written as one just above");
    let config = ModelConfig::read(config, None)?;
    let specs = config.shape.tensors();

    let mut header = Map::new();
    let mut end = 0;
    for spec in &specs {
        let start = end;
        end += spec.shape.iter().product::<usize>() * 2;
        let entry = json!({"dtype": "BF16", "shape": spec.shape, "data_offsets": [start, end]});
        header.insert(spec.name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    // Memory does not depend on the values: one random stretch, repeated.
    let noise = Noise::new(1);
    let stretch: Vec<u8> = (0..1 << 19)
        .flat_map(|i| bf16::from_f64((noise.uniform(0, i, 0) - 0.5) / 20.0).to_le_bytes())
        .collect();
    let mut left = end;
    while left > 0 {
        let part = left.min(stretch.len());
        file.write_all(&stretch[..part])?;
        left -= part;
    }
    file.flush()?;
    Ok(config.vocab_size)
}
