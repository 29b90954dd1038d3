//! Sentence encoders: their vectors beside those of transformers, sentence-transformers and model2vec, and what a text's vector
//! does not depend on. `tools/measure/encoder_fixtures.py` made the fixtures.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use safetensors::SafeTensors;
use serde_json::Value;
use sluice_checkpoint::{Checkpoint, Source, family::ModelConfig};
use sluice_engine::{
    Budget, Embed, Engine, EngineOptions, Generate, LoadedModel, Outcome, PlanOptions,
    PlanSettings, Work,
    admission::EMBED_TEXTS_MAX,
    check::resident,
    event::EmbeddingResult,
    model::network::{Network, Sequence, VisibleKeys},
    residency::{LoadOutcome, Residency, WeightReader},
};
use sluice_formats::DType;
use sluice_ops::{
    Ops,
    device::{Device, DeviceChoice},
    ledger::Ledger,
};
use sluice_shared::level::Level;
use testkit::{here, not_run};

use crate::checkpoints::fixture;

/// How far an element may be from the reference's.
const TOLERANCE: f32 = 1e-4;

/// What a reference says of a folder's texts.
struct Reference {
    texts: Vec<String>,
    /// How many tokens each text has before it is truncated.
    lengths: Vec<usize>,
    ids: Vec<Vec<u32>>,
    tensors: Vec<u8>,
}

impl Reference {
    fn of(folder: &Path) -> Self {
        let said: Value =
            serde_json::from_slice(&fs::read(folder.join("vectors.json")).unwrap()).unwrap();
        let texts = said["texts"].as_array().unwrap().iter();
        let lengths = said["lengths"].as_array().unwrap().iter();
        let ids = said["ids"].as_array().unwrap().iter();
        let of_text = |ids: &Value| {
            let ids = ids.as_array().unwrap().iter();
            ids.map(|id| id.as_u64().unwrap() as u32).collect()
        };
        Self {
            texts: texts
                .map(|text| text.as_str().unwrap().to_owned())
                .collect(),
            lengths: lengths
                .map(|length| length.as_u64().unwrap() as usize)
                .collect(),
            ids: ids.map(of_text).collect(),
            tensors: fs::read(folder.join("vectors.safetensors")).unwrap(),
        }
    }

    /// The rows of a tensor.
    fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.tensors).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        let bytes = tensor.data().as_chunks::<4>().0;
        let values: Vec<f32> = bytes.iter().map(|four| f32::from_le_bytes(*four)).collect();
        let rows = values.chunks_exact(tensor.shape()[1]);
        rows.map(<[f32]>::to_vec).collect()
    }
}

struct Loaded {
    engine: Engine,
    model: Arc<LoadedModel>,
}

impl Loaded {
    fn new(folder: &Path, settings: PlanSettings) -> Self {
        Self::on(DeviceChoice::Cpu, None, folder, settings)
    }

    fn on(
        device: DeviceChoice,
        compute_dtype: Option<DType>,
        folder: &Path,
        settings: PlanSettings,
    ) -> Self {
        let engine = Engine::start(EngineOptions {
            device,
            compute_dtype,
            threads: 2,
            ..EngineOptions::default()
        })
        .unwrap();
        let source = Source::Folder(folder.to_owned());
        let model = engine.load_now(source, settings).unwrap();
        Self { engine, model }
    }

    fn embed(&self, texts: &[Vec<u32>]) -> Result<EmbeddingResult, String> {
        let work = Work::Embed(Embed {
            model: self.model.id,
            texts: texts.to_vec(),
        });
        match self.engine.run(work) {
            Ok(Outcome::Embedded(result)) => Ok(result),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    fn vectors(&self, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
        self.embed(texts).unwrap().vectors
    }
}

fn loaded(name: &str) -> Loaded {
    Loaded::new(&fixture(name), PlanSettings::default())
}

/// The largest difference of two elements.
fn difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected).flat_map(|(found, expected)| {
        assert_eq!(found.len(), expected.len());
        found.iter().zip(expected)
    });
    let differences = pairs.map(|(found, expected)| (found - expected).abs());
    differences.fold(0.0, |most, next| match next <= most {
        true => most,
        false => next,
    })
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn vectors_are_the_reference_s() {
    for name in ["bert-tiny", "model2vec-tiny"] {
        let reference = Reference::of(&fixture(name));
        let found = loaded(name).embed(&reference.ids).unwrap();
        let most = difference(&found.vectors, &reference.rows("mean"));
        assert!(most < TOLERANCE, "{name}: {most}");
        assert!(found.is_lossless, "{name}");
    }
}

/// Of a static table, unknown words are left out by whoever asks; all else is the tokenizer's.
#[test]
fn texts_become_the_reference_s_ids() {
    for name in ["bert-tiny", "model2vec-tiny"] {
        let model = loaded(name).model;
        let tokenizer = model.tokenizer.as_ref().unwrap();
        let most = model.info.context_length;
        let Reference {
            texts,
            ids,
            lengths,
            ..
        } = Reference::of(&fixture(name));
        for ((text, expected), length) in texts.iter().zip(&ids).zip(lengths) {
            let (before, behind) = (tokenizer.bos_tokens(), tokenizer.end_tokens());
            let mut own = tokenizer.encode(text).unwrap();
            assert_eq!(
                own.len() + before.len() + behind.len(),
                length,
                "{name}: {text}"
            );
            own.truncate(most - before.len() - behind.len());
            if model.info.layers == 0 {
                own.retain(|id| Some(*id) != tokenizer.unknown_token());
            }
            assert_eq!(&[before, &own, behind].concat(), expected, "{name}: {text}");
        }
    }
}

#[test]
fn the_first_row_without_normalizing_is_the_reference_s() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("bert-tiny"), folder.path());
    let pooling = r#"{ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false }"#;
    fs::write(folder.path().join("1_Pooling/config.json"), pooling).unwrap();
    let modules = fs::read_to_string(folder.path().join("modules.json")).unwrap();
    let mut modules: Vec<Value> = serde_json::from_str(&modules).unwrap();
    modules.pop();
    let modules = serde_json::to_string(&modules).unwrap();
    fs::write(folder.path().join("modules.json"), modules).unwrap();
    let reference = Reference::of(folder.path());
    let found = Loaded::new(folder.path(), PlanSettings::default()).vectors(&reference.ids);
    let most = difference(&found, &reference.rows("first"));
    assert!(most < TOLERANCE, "{most}");
    // Without the file that says so it is no guess.
    fs::remove_file(folder.path().join("1_Pooling/config.json")).unwrap();
    let opened = Checkpoint::open(&Source::Folder(folder.path().to_owned())).unwrap();
    let refused = opened.model().unwrap_err().to_string();
    assert!(
        refused.contains("names 1_Pooling/config.json, which is missing"),
        "{refused}"
    );
}

/// After the embeddings, and after each layer.
#[test]
fn rows_after_each_layer_are_the_reference_s() {
    let folder = fixture("bert-tiny");
    let checkpoint = Arc::new(Checkpoint::open(&Source::Folder(folder.clone())).unwrap());
    let config = checkpoint.model().unwrap();
    let reference = Reference::of(&folder);
    for layers in 0..=config.shape.layers {
        let mut cut = ModelConfig::clone(&config);
        cut.shape.layers = layers;
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let sources = checkpoint.model_sources(&cut.shape).unwrap();
        let profile = ops.device().profile();
        let plan = resident(profile, &cut.shape, &sources, Level::Off).unwrap();
        let reader = Arc::new(WeightReader::new(Arc::clone(&checkpoint), &sources));
        let never = AtomicBool::new(false);
        let (device, ledger) = (ops.device(), ops.ledger());
        let loaded = Residency::load(&plan, reader, device, ledger, &never, &mut |_| {});
        let LoadOutcome::Done(weights) = loaded.unwrap() else {
            unreachable!("nobody cancels");
        };
        let model = Network::new(cut, &ops).unwrap();
        for text in [1, 2] {
            let ids = &reference.ids[text];
            let positions: Vec<usize> = (0..ids.len()).collect();
            let mut sequences = [Sequence {
                tokens: ids,
                positions: &positions,
                wanted: &positions,
                sees: VisibleKeys::Each { checks: 0 },
            }];
            let hidden = model.forward(&ops, &weights, &mut sequences, &never);
            let hidden = ops.read(&hidden.unwrap()).unwrap();
            let found: Vec<_> = hidden.chunks_exact(64).map(<[f32]>::to_vec).collect();
            let most = difference(&found, &reference.rows(&format!("hidden.{text}.{layers}")));
            assert!(
                most < TOLERANCE,
                "text {text} after {layers} layers: {most}"
            );
        }
    }
}

/// Whatever stands beside it, in whichever order, and in how many passes.
#[test]
fn a_text_s_vector_depends_on_no_other_text() {
    for name in ["bert-tiny", "model2vec-tiny"] {
        let model = loaded(name);
        let texts = Reference::of(&fixture(name)).ids;
        let together = model.vectors(&texts);
        for (text, vector) in texts.iter().zip(&together) {
            assert_eq!(
                &model.vectors(std::slice::from_ref(text))[0],
                vector,
                "{name}"
            );
        }
        // Several passes, each with other texts than before.
        let many: Vec<_> = (0..60)
            .map(|at| texts[at * 5 % texts.len()].clone())
            .collect();
        for (at, vector) in model.vectors(&many).iter().enumerate() {
            assert_eq!(vector, &together[at * 5 % texts.len()], "{name}");
        }
    }
}

#[test]
fn a_budget_streams_layers_and_changes_nothing() {
    let reference = Reference::of(&fixture("bert-tiny"));
    let whole = loaded("bert-tiny");
    let expected = whole.vectors(&reference.ids);
    let work = Work::Embed(Embed {
        model: whole.model.id,
        texts: reference.ids.clone(),
    });
    let plan = whole.engine.plan(&PlanOptions::default(), work.workload());
    let plan = plan.unwrap();
    assert_eq!(plan.streamed_bytes(), 0);
    let budget = plan.peak_bytes() - plan.weight_bytes() / 2;
    let settings = PlanSettings {
        budget: Budget::Bytes(budget),
        ..PlanSettings::default()
    };
    let streamed = Loaded::new(&fixture("bert-tiny"), settings);
    assert_eq!(streamed.vectors(&reference.ids), expected);
    assert!(streamed.engine.in_force().unwrap().plan.streamed_bytes() > 0);
    let held = streamed.engine.in_force().unwrap().passes.peak_bytes;
    assert!(held <= budget, "{held} of {budget}");
}

/// On the stand-in: in `f32` the reference's, in `bf16` near them.
#[test]
fn a_gpu_s_vectors_are_the_reference_s() {
    here::open_stand_in();
    for (name, level, number) in [
        ("bert-tiny", Level::Off, DType::F32),
        ("bert-tiny", Level::Standard, DType::Bf16),
        ("model2vec-tiny", Level::Standard, DType::F32),
    ] {
        let reference = Reference::of(&fixture(name));
        let expected = reference.rows("mean");
        let settings = PlanSettings {
            level,
            ..PlanSettings::default()
        };
        let device = DeviceChoice::Cuda(0);
        let model = Loaded::on(device, Some(number), &fixture(name), settings);
        let found = model.vectors(&reference.ids);
        if number == DType::F32 {
            let most = difference(&found, &expected);
            assert!(most < TOLERANCE, "{name}: {most}");
        }
        for (found, expected) in found.iter().zip(&expected) {
            let is_zero = expected.iter().all(|value| *value == 0.0);
            let near = cosine(found, expected);
            assert!(is_zero || near > 0.999, "{name}: {near}");
        }
    }
}

#[test]
fn fewer_bits_leave_vectors_near() {
    let reference = Reference::of(&fixture("bert-tiny"));
    for (level, least) in [(Level::Off, 0.999_999), (Level::Moderate, 0.999)] {
        let settings = PlanSettings {
            level,
            ..PlanSettings::default()
        };
        let found = Loaded::new(&fixture("bert-tiny"), settings)
            .embed(&reference.ids)
            .unwrap();
        for (found, expected) in found.vectors.iter().zip(reference.rows("mean")) {
            let near = cosine(found, &expected);
            assert!(near > least, "{level}: {near}");
        }
        assert_eq!(found.is_lossless, level == Level::Off);
    }
}

#[test]
fn tensors_may_have_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("bert-tiny"), folder.path());
    let bytes = fs::read(folder.path().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let renamed = tensors
        .iter()
        .map(|(name, view)| (format!("bert.{name}"), view));
    let bytes = safetensors::serialize(renamed, None).unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let reference = Reference::of(folder.path());
    let found = Loaded::new(folder.path(), PlanSettings::default()).vectors(&reference.ids);
    assert_eq!(found, loaded("bert-tiny").vectors(&reference.ids));
}

#[test]
fn what_encoders_and_others_cannot_do_is_refused() {
    let encoder = loaded("bert-tiny");
    let refused = |result: Result<EmbeddingResult, String>, part: &str| {
        let error = result.unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    let generate = Generate::greedy(encoder.model.id, vec![5], 4);
    let error = encoder.engine.run(Work::Generate(generate)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "this model is a sentence encoder, which embeds texts and does nothing else"
    );
    refused(
        loaded("llada-tiny").embed(&[vec![5]]),
        "only sentence encoders embed texts",
    );
    refused(encoder.embed(&[]), "texts");
    refused(
        encoder.embed(&vec![vec![5]; EMBED_TEXTS_MAX + 1]),
        "exceed the limit",
    );
    refused(encoder.embed(&[vec![5; 25]]), "context");
    refused(encoder.embed(&[vec![5000]]), "5000");
}

/// Beside the vectors of sentence-transformers, where the model's files are.
#[test]
fn vectors_of_all_minilm_l6_v2_are_the_reference_s() {
    let Some(folder) = env::var_os("SLUICE_MINILM").map(PathBuf::from) else {
        return not_run("SLUICE_MINILM names no folder with all-MiniLM-L6-v2");
    };
    let reference = Reference::of(&fixture("all-minilm-l6-v2"));
    let found = Loaded::new(&folder, PlanSettings::default()).vectors(&reference.ids);
    let most = difference(&found, &reference.rows("mean"));
    assert!(most < TOLERANCE, "{most}");
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => {
                fs::create_dir(&place).unwrap();
                copy(&entry.path(), &place);
            }
            false => drop(fs::copy(entry.path(), place).unwrap()),
        }
    }
}
