//! The model inside the program, trained by `sluice-train`.

use std::sync::LazyLock;

use sluice_checkpoint::{Checkpoint, Source};
use sluice_proto::v1;

use crate::allocator;

/// Name of the embedded demonstration model.
pub const EMBEDDED_NAME: &str = sluice_shared::names::DEMONSTRATION_MODEL;

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/model/", $name)))),*]
    };
}

/// Names and contents of the embedded model's files.
pub(crate) static EMBEDDED_FILES: &[(&str, &[u8])] = embedded![
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
];

/// Its licence, as its card names it, which is not inside the program.
const LICENCE: &str = "apache-2.0";

/// What its files say, read once.
struct EmbeddedFacts {
    family: String,
    parameters: Option<u64>,
}

static FACTS: LazyLock<EmbeddedFacts> = LazyLock::new(|| {
    let checkpoint = Checkpoint::open(&Source::Embedded(EMBEDDED_FILES)).ok();
    let config = checkpoint.as_ref().and_then(|opened| opened.config().ok());
    let family = config.as_ref().and_then(|config| config.get("model_type"));
    let parameters = checkpoint.as_ref().map(|opened| {
        let sizes = opened.tensors().map(|(tensor, _)| &tensor.shape);
        let counts = sizes.map(|shape| shape.iter().map(|size| *size as u64).product::<u64>());
        counts.sum()
    });
    EmbeddedFacts {
        family: family
            .and_then(|name| name.as_str())
            .unwrap_or_default()
            .to_owned(),
        parameters,
    }
});

/// Lets go of its weights' pages, which a load has copied from.
pub(crate) fn forget() {
    for (_, bytes) in EMBEDDED_FILES {
        allocator::forget(bytes);
    }
}

/// Adds what is known of it without loading it.
pub(crate) fn described(model: v1::Model) -> v1::Model {
    let weights = EMBEDDED_FILES
        .iter()
        .filter(|(name, _)| name.ends_with(".safetensors"));
    v1::Model {
        disk_bytes: weights.map(|(_, bytes)| bytes.len() as u64).sum(),
        file_format: v1::FileFormat::Safetensors.into(),
        family: FACTS.family.clone(),
        parameters: FACTS.parameters,
        license: Some(LICENCE.to_owned()),
        ..model
    }
}
