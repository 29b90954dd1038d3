//! From a checkpoint to a folder that reads like any LLaDA model: configuration, BF16 weights, tokenizer, model card.

use std::path::Path;

use anyhow::{Context, Result};
use half::bf16;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;

use crate::{checkpoint::Progress, model::Model, vocabulary::Vocabulary};

/// Writes the folder; files already there are replaced one by one, each as a whole.
pub fn export(
    folder: &Path,
    model: &Model,
    vocabulary: &Vocabulary,
    progress: &Progress,
) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let config = model
        .config
        .to_llada_json(vocabulary.mask_id, vocabulary.end_id);
    write_json(&folder.join("config.json"), &config)?;
    write_json(
        &folder.join("tokenizer_config.json"),
        &vocabulary.config_json(),
    )?;
    write_json(
        &folder.join("generation_config.json"),
        &vocabulary.generation_json(),
    )?;
    vocabulary.save(&folder.join("tokenizer.json"))?;
    write_weights(folder, model)?;
    std::fs::write(folder.join("README.md"), card(progress)).context("write model card")
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn write_weights(folder: &Path, model: &Model) -> Result<()> {
    let mut parts = Vec::new();
    for (name, variable) in model.variables() {
        let values = variable.flatten_all()?.to_vec1::<f32>()?;
        let data: Vec<u8> = values
            .iter()
            .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
            .collect();
        parts.push((name, variable.dims().to_vec(), data));
    }
    let views = parts
        .iter()
        .map(|(name, shape, data)| {
            Ok((
                name.as_str(),
                TensorView::new(Dtype::BF16, shape.clone(), data)?,
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let temporary = folder.join("model.partial");
    std::fs::write(&temporary, safetensors::serialize(views, Some(metadata))?)
        .context("write weights")?;
    std::fs::rename(&temporary, folder.join("model.safetensors")).context("rename weights")
}

/// The model card.
fn card(progress: &Progress) -> String {
    let Progress {
        config,
        seed,
        rows,
        step,
        steps_planned,
        tokens,
        loss,
        train_seconds,
    } = progress;
    let parameters = config.parameters() as f64 / 1e6;
    let (tokens, minutes) = (*tokens as f64 / 1e6, train_seconds / 60.0);
    format!(
        "---
license: apache-2.0
language: en
---

# A small demonstration model

A masked-diffusion language model with {parameters:.1} million parameters in the shape of LLaDA
([arXiv 2502.09992](https://arxiv.org/abs/2502.09992)): {layers} blocks, width {width}, {heads} heads. It tells very
short children's stories, and it is here to show Sluice at work without a download. It knows nothing else: it was trained
only on text from the generator in `daemon/train/src/corpus.rs`, about the names, things and places listed there. Asked
for anything else, it answers with something that looks like one of its stories.

Good questions: \"Tell me a story about Mia and a lost kite.\", \"Tell a story about a fox named Theo at the lake.\",
\"Write a story about Tom and Lily.\", \"Who are you?\"

## How it was made

```
cargo run --release -p sluice-train -- train --output run --seed {seed} --batch {rows} --steps {steps_planned}
cargo run --release -p sluice-train -- export --checkpoint run --output daemon/model
```

Step {step} of {steps_planned}, {tokens:.1} million tokens (prompts and padding included), {minutes:.0} minutes on a
CPU. The loss, averaged over about a hundred steps, was {loss:.3} (1/t-weighted cross-entropy for each answer token).
Tokenizer, text, masks and initial weights all follow from the seed; the number of threads changes only the order of
sums. The weights are stored in BF16.

The chat template is LLaDA's (MIT).
",
        layers = config.n_layers,
        width = config.d_model,
        heads = config.n_heads,
    )
}
