//! What a family can be asked for: the function that decides, the table of docs/models.md, and what tiny models of all
//! families answer.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use sluice_checkpoint::{
    Checkpoint, Source,
    compression::{CompressOptions, CompressionMethod, Lossless, SourceCheck, compress},
    family::{Family, ModelConfig},
    features::{Feature, Features},
    pruning::{PruneOptions, PruneShares, prune},
};
use sluice_engine::{
    CanvasSlot, Embed, Engine, EngineError, EngineOptions, Generate, LoadedModel, MeasureFidelity,
    Outcome, PlanSettings, Score, ShareKey, Work,
    calibration::{CalibrateError, CalibrationOptions, calibrate},
    optimization::{OptimizeError, OptimizeGoal, OptimizeOptions, optimize},
    request::Thinking,
    runtime::ModelOutline,
};
use sluice_formats::DType;
use sluice_machine::{GpuProfile, Profile};
use sluice_plan::Machine;
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    pruning::PruneScore,
    sampling::{KvCacheMode, Remasking},
};
use sluice_weights::{LayerKind, Shape, TensorNaming};
use tempfile::TempDir;

use crate::checkpoints::fixture;

/// The families that have a tiny model of their own. Mistral and Qwen2 are read as Llama is.
const TINY: [(Family, &str); 17] = [
    (Family::Llada, "llada-tiny"),
    (Family::Llama, "llama-tiny"),
    (Family::Qwen3, "qwen3-tiny"),
    (Family::Qwen3Moe, "qwen3-moe-tiny"),
    (Family::Dream, "dream-tiny"),
    (Family::Sdar, "sdar-tiny"),
    (Family::SdarMoe, "sdar-moe-tiny"),
    (Family::FastDllm, "fast-dllm-v2-tiny"),
    (Family::LladaMoe, "llada-moe-tiny"),
    (Family::Llada2, "llada2-tiny"),
    (Family::Rnd1, "rnd1-tiny"),
    (Family::Nemotron, "nemotron-ld-tiny"),
    (Family::DiffusionGemma, "diffusion-gemma-tiny"),
    (Family::Rwkv7, "rwkv7-tiny"),
    (Family::LatentThought, "ltm-tiny"),
    (Family::Bert, "bert-tiny"),
    (Family::Model2Vec, "model2vec-tiny"),
];

/// A tiny model, loaded.
struct Tiny {
    name: &'static str,
    engine: Engine,
    model: Arc<LoadedModel>,
    folder: TempDir,
}

impl Tiny {
    fn new(name: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start(EngineOptions {
            threads: 2,
            weight_cache: Some(folder.path().join("converted")),
            ..EngineOptions::default()
        })
        .unwrap();
        let source = Source::Folder(fixture(name));
        let model = engine.load_now(source, PlanSettings::default()).unwrap();
        Self {
            name,
            engine,
            model,
            folder,
        }
    }

    fn source(&self) -> Source {
        Source::Folder(fixture(self.name))
    }

    fn target(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A request of the model's own kind that asks for nothing else.
    fn request(&self) -> Generate {
        let blocks = self.model.info.mask.and_then(|mask| mask.blocks);
        let length = blocks.map_or(8, |blocks| blocks.length);
        let renoises = self.model.info.mask.is_some_and(|mask| mask.is_random());
        let policy = if renoises { "renoise" } else { "reference" };
        Generate {
            policy: policy.parse().unwrap(),
            block_length: length,
            causal_attention_before: blocks.is_some_and(|blocks| blocks.causal_attention_before),
            decoding: Decoding {
                kv_cache: KvCacheReuse {
                    mode: match blocks {
                        Some(_) => KvCacheMode::Blocks,
                        None => KvCacheMode::None,
                    },
                    ..KvCacheReuse::default()
                },
                ..Decoding::default()
            },
            ..Generate::greedy(self.model.id, ids(3), length)
        }
    }

    fn samples(&self) -> Vec<Vec<u32>> {
        let mask = self.model.info.mask.and_then(|mask| mask.token_id);
        let sample = |first: u32| {
            let ids = (0..40).map(|at| (first * 31 + at * 7) % 200 + 3);
            ids.filter(|id| Some(*id) != mask).collect()
        };
        (0..16).map(sample).collect()
    }

    /// Asks the model for a feature. `Err`: it was refused, and why.
    fn ask(&self, feature: Feature) -> Result<(), String> {
        let of_policy = |policy: &str| Generate {
            policy: policy.parse().unwrap(),
            ..self.request()
        };
        let keeping = |mode| Generate {
            decoding: Decoding {
                kv_cache: KvCacheReuse {
                    mode,
                    ..KvCacheReuse::default()
                },
                ..Decoding::default()
            },
            ..self.request()
        };
        let mut request = match feature {
            Feature::Policies => Generate {
                remasking: Remasking::Random,
                ..self.request()
            },
            Feature::ReplaceTokens => of_policy("edit"),
            Feature::VerifyTokens => of_policy("revoke"),
            Feature::NextToken => of_policy("autoregressive"),
            Feature::Renoise => of_policy("renoise"),
            Feature::Generate => self.request(),
            Feature::Embed => return self.embed(),
            Feature::Fidelity => return self.measure_fidelity(),
            Feature::PassCache => keeping(KvCacheMode::Prefix),
            Feature::BlockCache => keeping(KvCacheMode::Blocks),
            Feature::Score => return self.score(),
            Feature::Calibrate => return self.calibrate(),
            Feature::Optimize => return self.optimize(),
            Feature::Prune => return self.prune(),
            Feature::Compress => return self.compress(),
            Feature::Gpu => return self.plan_for_a_gpu(),
            Feature::Pins
            | Feature::Lookahead
            | Feature::NextTokenChoice
            | Feature::Think
            | Feature::States => self.request(),
        };
        match feature {
            Feature::Pins => request.canvas[1] = CanvasSlot::Pinned(5),
            Feature::Lookahead => request.decoding.suffix_window = Some(0),
            Feature::NextTokenChoice => request.sampling.top_k = Some(3),
            Feature::Think => {
                request.thinking = Some(Box::new(Thinking {
                    steps: 1,
                    start: None,
                    prior: None,
                    returns_posterior: false,
                }));
            }
            Feature::States => request.state.returns_state = true,
            _ => {}
        }
        self.run(Work::Generate(request))
    }

    fn run(&self, work: Work) -> Result<(), String> {
        match self.engine.run(work) {
            Ok(
                Outcome::Generated(_)
                | Outcome::Scored(_)
                | Outcome::Fidelity(_)
                | Outcome::Embedded(_),
            ) => Ok(()),
            Ok(other) => panic!("{}: {other:?}", self.name),
            Err(EngineError::Request(refused)) => Err(refused.to_string()),
            Err(error) => Err(format!("not refused: {error}")),
        }
    }

    fn embed(&self) -> Result<(), String> {
        self.run(Work::Embed(Embed {
            model: self.model.id,
            texts: vec![ids(3), ids(4)],
        }))
    }

    fn score(&self) -> Result<(), String> {
        self.run(Work::Score(Score {
            model: self.model.id,
            prompt: ids(3),
            answer: ids(4),
            draws: 2,
            guidance: 0.0,
            seed: 1,
            check_greedy: false,
            think_steps: None,
        }))
    }

    fn measure_fidelity(&self) -> Result<(), String> {
        self.run(Work::MeasureFidelity(MeasureFidelity {
            model: self.model.id,
            level: None,
            samples: self.samples()[..2].to_vec(),
            seed: 1,
        }))
    }

    fn calibrate(&self) -> Result<(), String> {
        let options = CalibrationOptions {
            share: ShareKey::default(),
            model_name: self.name.to_owned(),
            samples: self.samples(),
            text_hash: 1,
            seed: 5,
            positions_max: 600,
            is_full: false,
            memory_bytes: 1 << 30,
            threads: 1,
            target: self.target("a.calibration.safetensors"),
            may_replace: false,
        };
        let never = AtomicBool::new(false);
        match calibrate(&self.engine, &options, &never, &mut |_| {}) {
            Ok(_) => Ok(()),
            Err(refused @ CalibrateError::Layers { .. }) => Err(refused.to_string()),
            Err(error) => Err(format!("not refused: {error}")),
        }
    }

    fn optimize(&self) -> Result<(), String> {
        let options = OptimizeOptions {
            share: ShareKey::default(),
            model_name: self.name.to_owned(),
            samples: self.samples(),
            test_samples: self.samples(),
            text_hash: 1,
            seed: 5,
            calibration: None,
            goal: OptimizeGoal::Rate(4.0),
            threads: 2,
        };
        let never = AtomicBool::new(false);
        match optimize(&self.engine, &options, &never, &mut |_| {}) {
            Ok(_) => Ok(()),
            Err(refused @ OptimizeError::Layers(_)) => Err(refused.to_string()),
            Err(error) => Err(format!("not refused: {error}")),
        }
    }

    fn prune(&self) -> Result<(), String> {
        let options = PruneOptions {
            shares: PruneShares {
                heads: 0.0,
                channels: 0.3,
            },
            score: PruneScore::L2,
            compensate: false,
            calibration: None,
            threads: 2,
            replace: false,
        };
        let check = SourceCheck {
            remembered: None,
            progress: &mut |_| {},
        };
        let never = AtomicBool::new(false);
        let target = self.target("pruned.sluice");
        let pruned = prune(
            &self.source(),
            &target,
            &options,
            check,
            &never,
            &mut |_, _| {},
        );
        pruned.map(|_| ()).map_err(|error| error.to_string())
    }

    fn compress(&self) -> Result<(), String> {
        let options = CompressOptions {
            method: CompressionMethod::Lossless(Lossless::Huffman),
            tile: 256,
            tensors: Default::default(),
            all: false,
            threads: 2,
            replace: false,
        };
        let never = AtomicBool::new(false);
        let target = self.target("whole.sluice");
        let done = compress(&self.source(), &target, &options, &never, &mut |_, _| {});
        done.map_err(|error| error.to_string())?;
        // It can be loaded, too.
        let checkpoint = Checkpoint::open(&Source::Folder(target)).unwrap();
        let model = checkpoint.model().map_err(|error| error.to_string())?;
        let sources = checkpoint.model_sources(&model.shape);
        sources.map(|_| ()).map_err(|error| error.to_string())
    }

    fn plan_for_a_gpu(&self) -> Result<(), String> {
        let gpu = GpuProfile {
            total_bytes: 8 << 30,
            dtype: DType::Bf16,
            context_bytes: 0,
            workspace_bytes: 0,
        };
        let profile = Profile {
            gpu: Some(gpu),
            ..Profile::cpu(2)
        };
        let machine = Machine::unmeasured(profile, 8 << 30);
        match ModelOutline::of_checkpoint(&self.source(), machine) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("not refused: {error}")),
        }
    }
}

fn ids(count: u32) -> Vec<u32> {
    (5..5 + count).collect()
}

/// A configuration of a family, small.
fn config(family: Family) -> ModelConfig {
    if let Some((_, name)) = TINY.iter().find(|(of, _)| *of == family) {
        let checkpoint = Checkpoint::open(&Source::Folder(fixture(name))).unwrap();
        return checkpoint.model().unwrap();
    }
    ModelConfig::of(
        family,
        &Shape {
            naming: TensorNaming::HuggingFace,
            layers: 2,
            hidden_size: 64,
            attention_heads: 2,
            kv_heads: 1,
            head_dim: 32,
            intermediate_size: 128,
            padded_vocab_size: 256,
            context_length: 64,
            causal: true,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    )
}

#[test]
fn tiny_models_answer_as_their_features_say() {
    let mut wrong = Vec::new();
    for (family, name) in TINY {
        let tiny = Tiny::new(name);
        let features = Features::of(&config(family));
        for feature in Feature::ALL {
            let answer = tiny.ask(feature);
            let refusal = features.refusal(feature);
            if answer.is_err() != refusal.is_some() {
                wrong.push(format!(
                    "{name}, {}: {answer:?}, {refusal:?}",
                    feature.name()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The table of families by features as docs/models.md has it: families of the same answers share a column, and each reason
/// has a letter.
fn table() -> String {
    let refusals = |family: Family| {
        let features = Features::of(&config(family));
        Feature::ALL.map(|feature| features.refusal(feature))
    };
    let mut columns: Vec<(Vec<&str>, _)> = Vec::new();
    for family in Family::ALL {
        let refusals = refusals(family);
        match columns.iter_mut().find(|(_, known)| *known == refusals) {
            Some((names, _)) => names.push(family.name()),
            None => columns.push((vec![family.name()], refusals)),
        }
    }
    let mut reasons = Vec::new();
    let mut rows = String::new();
    for (place, feature) in Feature::ALL.iter().enumerate() {
        rows += &format!("| {} |", feature.name());
        for (_, refusals) in &columns {
            let cell = refusals[place].map_or_else(
                || "yes".to_owned(),
                |refusal| {
                    let known = reasons.iter().position(|reason| *reason == refusal);
                    let number = known.unwrap_or_else(|| {
                        reasons.push(refusal);
                        reasons.len() - 1
                    });
                    char::from(b'a' + number as u8).to_string()
                },
            );
            rows += &format!(" {cell} |");
        }
        rows.push('\n');
    }
    let names: Vec<String> = columns.iter().map(|(names, _)| names.join(", ")).collect();
    let mut table = format!(
        "| | {} |\n|{}\n{rows}\n",
        names.join(" | "),
        "---|".repeat(names.len() + 1)
    );
    for (number, reason) in reasons.iter().enumerate() {
        table += &format!("- {}: {reason}\n", char::from(b'a' + number as u8));
    }
    table
}

#[test]
fn the_documentation_says_what_each_family_can_do() {
    let page = include_str!("../../../../docs/models.md");
    let table = table();
    assert!(page.contains(&table), "docs/models.md lacks this:\n{table}");
}
