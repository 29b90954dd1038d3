//! Short names for models, and suggestions for misspelt names.
//!
//! The table is the one place for short names, repositories, licences and tokens a pass of published models: `sluice run llada`,
//! `sluice pull smollm2:135m`, `sluice plan --all`. Each short name stands for a repository of a supported family, and for
//! GGUF the label of one file that is a good compromise. Where a shape is known (`sluice_checkpoint::family::PublishedShape`),
//! it has the name of a row.

/// A published model: its short name, its name at the hub, its licence, and what its passes write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PublishedModel {
    /// What people type, in lower case.
    pub short: &'static str,
    /// `OWNER/NAME`, with `:LABEL` for one of several GGUF files.
    pub full: &'static str,
    /// The licence as the model card names it; `None` where no source for it is at hand. What a downloaded model's own
    /// files say is shown for that model, whatever stands here.
    pub licence: Option<&'static str>,
    /// Tokens that a pass commits on average with the authors' own sampler, as published; `None` where no figure is at hand.
    pub tokens_per_pass: Option<f64>,
}

/// The name of the model that is built into the daemon.
pub const DEMONSTRATION: &str = "demo";
/// The same model's name in the daemon's list.
pub const DEMONSTRATION_MODEL: &str = "sluice-demo";

const fn row(
    short: &'static str,
    full: &'static str,
    licence: Option<&'static str>,
) -> PublishedModel {
    PublishedModel {
        short,
        full,
        licence,
        tokens_per_pass: None,
    }
}

impl PublishedModel {
    const fn writing(mut self, tokens_per_pass: f64) -> Self {
        self.tokens_per_pass = Some(tokens_per_pass);
        self
    }
}

const APACHE: Option<&str> = Some("apache-2.0");
const MIT: Option<&str> = Some("mit");

/// All short names, by family.
pub const SHORT_NAMES: &[PublishedModel] = &[
    row("llada", "GSAI-ML/LLaDA-8B-Instruct", MIT),
    row("llada:8b", "GSAI-ML/LLaDA-8B-Instruct", MIT),
    row("llada-8b", "GSAI-ML/LLaDA-8B-Instruct", MIT),
    row("llada:1.5", "GSAI-ML/LLaDA-1.5", MIT),
    row("llada:base", "GSAI-ML/LLaDA-8B-Base", MIT),
    row("llada-moe", "inclusionAI/LLaDA-MoE-7B-A1B-Instruct", APACHE),
    row(
        "llada-moe-7b",
        "inclusionAI/LLaDA-MoE-7B-A1B-Instruct",
        APACHE,
    ),
    // Averages of the technical report of LLaDA2.1; of 2.1 its quality mode's.
    row("llada2-mini", "inclusionAI/LLaDA2.0-mini", APACHE).writing(2.6),
    row("llada2-flash", "inclusionAI/LLaDA2.0-flash", APACHE).writing(3.08),
    row("llada2.1-mini", "inclusionAI/LLaDA2.1-mini", APACHE).writing(3.12),
    row("llada2.1-flash", "inclusionAI/LLaDA2.1-flash", APACHE).writing(3.64),
    row("dream", "Dream-org/Dream-v0-Instruct-7B", APACHE),
    row("dream:7b", "Dream-org/Dream-v0-Instruct-7B", APACHE),
    row("dream-7b", "Dream-org/Dream-v0-Instruct-7B", APACHE),
    row("dream:base", "Dream-org/Dream-v0-Base-7B", APACHE),
    row(
        "dream-coder",
        "Dream-org/Dream-Coder-v0-Instruct-7B",
        APACHE,
    ),
    row("sdar-1.7b", "JetLM/SDAR-1.7B-Chat", None),
    row("sdar-4b", "JetLM/SDAR-4B-Chat", None),
    row("sdar-8b", "JetLM/SDAR-8B-Chat", APACHE),
    row("sdar-30b-a3b", "JetLM/SDAR-30B-A3B-Chat", None),
    row("trado-4b", "Gen-Verse/TraDo-4B-Instruct", None),
    row("trado-8b", "Gen-Verse/TraDo-8B-Instruct", MIT),
    row(
        "fast-dllm-1.5b",
        "Efficient-Large-Model/Fast_dLLM_v2_1.5B",
        APACHE,
    ),
    row(
        "fast-dllm-7b",
        "Efficient-Large-Model/Fast_dLLM_v2_7B",
        APACHE,
    ),
    row(
        "nemotron-ld-8b",
        "nvidia/Nemotron-Labs-Diffusion-8B",
        Some("nvidia-nemotron-open-model-license"),
    ),
    row(
        "diffusion-gemma-26b-a4b",
        "google/diffusiongemma-26B-A4B-it",
        APACHE,
    )
    // A canvas of 256 in some 34 passes of prose; code takes 20.
    .writing(7.5),
    row("rnd1-base", "radicalnumerics/RND1-Base-0910", APACHE),
    row(
        "smollm2",
        "bartowski/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "smollm2:1.7b",
        "bartowski/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "smollm2:360m",
        "bartowski/SmolLM2-360M-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "smollm2:135m",
        "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row("qwen2.5", "bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M", None),
    row(
        "qwen2.5:7b",
        "bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "qwen2.5:3b",
        "bartowski/Qwen2.5-3B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "qwen2.5:1.5b",
        "bartowski/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "qwen2.5:0.5b",
        "bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row("qwen3", "Qwen/Qwen3-8B-GGUF:Q4_K_M", None),
    row("qwen3:8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M", None),
    row("qwen3:4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M", None),
    row("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF:Q8_0", None),
    row("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0", None),
    row(
        "llama3.2",
        "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "llama3.2:3b",
        "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "llama3.2:1b",
        "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "llama3.1",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row(
        "llama3.1:8b",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
        None,
    ),
    row("qwen3-0.6b", "Qwen/Qwen3-0.6B", APACHE),
    row("qwen3-1.7b", "Qwen/Qwen3-1.7B", APACHE),
    row("qwen3-4b", "Qwen/Qwen3-4B", APACHE),
    row("qwen3-8b", "Qwen/Qwen3-8B", APACHE),
    row("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", APACHE),
    row(
        "tinyllama-1.1b",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        APACHE,
    ),
    row(
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        Some("llama3.1"),
    ),
    row(
        "llama-3-70b",
        "meta-llama/Meta-Llama-3-70B-Instruct",
        Some("llama3"),
    ),
];

/// Published models with a shape to plan and to synthesize, and no repository that a download takes as a whole.
pub const ONLY_SHAPES: &[PublishedModel] = &[
    row(
        "llada-1b",
        "arXiv 2502.09992, the model of 1.49 B parameters",
        None,
    ),
    row("rwkv7-0.1b", "BlinkDL/rwkv-7-world", APACHE),
    row("rwkv7-0.4b", "BlinkDL/rwkv-7-world", APACHE),
    row("rwkv7-1.5b", "BlinkDL/rwkv-7-world", APACHE),
    row("rwkv7-2.9b", "BlinkDL/rwkv-7-world", APACHE),
];

/// Most names that are suggested at once.
const SUGGESTIONS_MAX: usize = 3;
/// Longest name that others are compared with: the comparison takes time quadratic in the length.
const NAME_BYTES_MAX: usize = 200;
/// Similarity from 0 to 1 from which on a name is suggested for another.
const ALIKE_MIN: f64 = 0.8;

/// The full name of a short name, in upper or lower case; `None` where it is not one.
#[must_use]
pub fn full(name: &str) -> Option<&'static str> {
    let row = SHORT_NAMES
        .iter()
        .find(|row| row.short.eq_ignore_ascii_case(name));
    row.map(|row| row.full)
}

/// The published model whose shape has this name.
#[must_use]
pub fn published(shape: &str) -> Option<&'static PublishedModel> {
    let mut rows = SHORT_NAMES.iter().chain(ONLY_SHAPES);
    rows.find(|row| row.short == shape)
}

/// The short names of each model, the names of one model together, in the order of the table.
#[must_use]
pub fn by_model() -> Vec<(Vec<&'static str>, &'static PublishedModel)> {
    let mut models: Vec<(Vec<&str>, &PublishedModel)> = Vec::new();
    for row in SHORT_NAMES {
        match models.iter_mut().find(|(_, known)| known.full == row.full) {
            Some((names, _)) => names.push(row.short),
            None => models.push((vec![row.short], row)),
        }
    }
    models
}

/// Known names and short names that may have been meant, the likeliest first; none for a text too long to be a name.
#[must_use]
pub fn near<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    if name.len() > NAME_BYTES_MAX {
        return Vec::new();
    }
    let name = name.to_ascii_lowercase();
    let short = SHORT_NAMES.iter().map(|row| row.short);
    let mut alike: Vec<(f64, &str)> = known
        .into_iter()
        .chain(short)
        .chain([DEMONSTRATION])
        .map(|known| (likeness(&name, &known.to_ascii_lowercase()), known))
        .filter(|(likeness, _)| *likeness >= ALIKE_MIN)
        .collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0));
    alike.dedup_by(|a, b| a.1 == b.1);
    let alike = alike.into_iter().take(SUGGESTIONS_MAX);
    alike.map(|(_, known)| known.to_owned()).collect()
}

/// The known word that may have been meant; `None` where none is similar enough.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > NAME_BYTES_MAX {
        return None;
    }
    let alike = known.into_iter();
    // Jaro-Winkler weighs a common beginning more, which is what misspelt names mostly keep.
    let alike = alike.map(|known| (strsim::jaro_winkler(word, known), known));
    let nearest = alike.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (nearest.0 >= ALIKE_MIN).then_some(nearest.1)
}

/// The similarity of the whole name, of what follows the owner, and of what stands before the label.
fn likeness(name: &str, known: &str) -> f64 {
    let own = known.rsplit('/').next().unwrap_or(known);
    let family = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    let whole = strsim::jaro_winkler(name, known).max(strsim::jaro_winkler(name, own));
    // The right family with a size that is not known is a good guess, but not as good as a whole name.
    let of_family = strsim::jaro_winkler(&family(name), &family(known)) * 0.95;
    match name.contains(':') {
        true => whole.max(of_family),
        false => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_stand_for_models_of_the_hub() {
        assert_eq!(full("LLaDA"), Some("GSAI-ML/LLaDA-8B-Instruct"));
        assert_eq!(full("gpt-4"), None);
        for row in SHORT_NAMES {
            assert_eq!(row.short, row.short.to_ascii_lowercase());
            let (owner, name) = row.full.split_once('/').expect("OWNER/NAME");
            assert!(!owner.is_empty() && !name.contains('/'), "{}", row.full);
            // GGUF repositories have several files, of which one has to be named.
            assert_eq!(name.contains("GGUF"), name.contains(':'), "{}", row.full);
            let all = SHORT_NAMES.iter().chain(ONLY_SHAPES);
            let same = all.filter(|other| other.short == row.short);
            assert_eq!(same.count(), 1, "{}", row.short);
            // A model has one licence, whatever it is called.
            let of_model = SHORT_NAMES.iter().filter(|other| other.full == row.full);
            assert!(of_model.clone().all(|other| other.licence == row.licence));
        }
    }

    #[test]
    fn the_documentation_has_each_model_with_its_names_and_licence() {
        let page = include_str!("../../docs/models.md");
        for (short, model) in by_model() {
            let short: Vec<_> = short.iter().map(|name| format!("`{name}`")).collect();
            let licence = model.licence.unwrap_or_default();
            let row = format!("| {} | {} | {licence} |", short.join(", "), model.full);
            assert!(page.lines().any(|line| line == row), "{row}");
        }
    }

    #[test]
    fn the_nearest_word_is_found_if_one_is_near() {
        let known = ["queue", "parallel", "cache", "cache_limit"];
        for (word, expected) in [
            ("quue", Some("queue")),
            ("cache-limit", Some("cache_limit")),
            ("nonsense", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        let long = "queue".repeat(100);
        assert_eq!(nearest(&long, [&*long]), None);
    }

    #[test]
    fn misspelt_names_are_recognised() {
        assert_eq!(near("lada", [])[0], "llada");
        assert_eq!(near("llada2-mni", [])[0], "llada2-mini");
        assert_eq!(near("llada2mini", [])[0], "llada2-mini");
        assert_eq!(near("smolm2", [])[0], "smollm2");
        assert_eq!(near("llama3.2:2b", [])[0], "llama3.2:3b");
        assert!(
            near("qwen2.5:9b", [])
                .iter()
                .all(|name| name.starts_with("qwen2.5"))
        );
        assert_eq!(near("my-modle", ["o/my-model"])[0], "o/my-model");
        assert!(near("gpt-4o", []).is_empty());
        assert!(near("", []).is_empty());
        let long = "llada".repeat(100);
        assert!(near(&long, [&*long]).is_empty());
    }
}
