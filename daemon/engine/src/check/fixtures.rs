//! Checkpoints with the outputs that reference implementations made of them: a folder with the checkpoint,
//! `expected.json` and `expected.safetensors`.

mod canvases;
mod passes;
mod requests;

use std::{
    fs,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use safetensors::SafeTensors;
use serde_json::Value;
use sluice_checkpoint::{Checkpoint, CheckpointError, Source, family::ModelConfig};
use sluice_formats::{DType, Format};
use sluice_ops::{KvCacheShape, Ops};
use sluice_plan::{Plan, PlanError, resolve_kv_cache_format};
use sluice_shared::{level::KvCacheFormat, sampling::EosPolicy};
use sluice_weights::{Shape, SourceTensor};

use self::{canvases::canvas_logits, passes::reference_passes, requests::request_of};
use super::{CheckResult, worse};
use crate::{
    Engine, EngineOptions, Generate, LoadedModel, Outcome, PlanSettings, Work,
    error::EngineError,
    event::GenerationResult,
    model::{
        network::{Interrupt, Network, Sequence, VisibleKeys, logits},
        sequence_memory::{SequenceMemory, SequenceShape},
    },
    posterior::Posterior,
    request::Thinking,
    residency::{LoadOutcome, Residency, WeightReader},
};

/// How far logits in `f32` may be from the reference's: an independent implementation in `f64` differs by 1.4e-4.
pub const F32_TOLERANCE: f64 = 5e-4;

/// How far computed logits are from the reference's, as a measure's name and value, and the tolerance of a correct
/// implementation.
fn distance(reference: &[f32], found: &[f32], dtype: DType) -> (&'static str, f64, f64) {
    let pairs = reference.iter().zip(found);
    let differences = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    let tolerance = match dtype {
        DType::F32 => {
            return ("absolute", differences.fold(0.0, worse), F32_TOLERANCE);
        }
        // About three times what the stand-in for a GPU shows.
        DType::F16 => 1.5e-2,
        DType::Bf16 => 0.12,
    };
    // In 16 bits single logits say little: the root mean square of all of them is compared.
    let squares: f64 = differences.map(|difference| difference * difference).sum();
    let all: f64 = reference
        .iter()
        .map(|&logit| f64::from(logit).powi(2))
        .sum();
    (
        "root mean square, relative",
        (squares / all).sqrt(),
        tolerance,
    )
}

/// Makes the plan for a model with these tensors; `None` where there is no such plan, so nothing to compare.
pub type PlanFor<'a> = dyn Fn(&Shape, &[SourceTensor]) -> Result<Option<Plan>, PlanError> + 'a;

/// Compares the logits of every position with the reference's; all rows of a case share one pass.
///
/// # Errors
/// When the folder is not such a fixture, or a pass fails.
pub fn fixture_logits(
    folder: &Path,
    ops: &Ops,
    plan_for: &PlanFor<'_>,
) -> Result<Vec<CheckResult>, EngineError> {
    let forwards = fixture_forwards(folder, ops, plan_for)?;
    let compare = |forward: FixtureLogits| {
        let FixtureLogits {
            name,
            reference,
            found,
            ..
        } = forward;
        let (measure, error, tolerance) = distance(&reference, &found, ops.device().dtype());
        CheckResult {
            name: format!("{} {name}: logits, {measure}", label(folder)),
            // A missing row must not pass as equal.
            error: match reference.len() == found.len() {
                true => error,
                false => f64::NAN,
            },
            tolerance,
            cause: None,
        }
    };
    Ok(forwards.into_iter().map(compare).collect())
}

/// A case of a fixture, computed: logits of `rows x vocabulary`, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct FixtureLogits {
    /// The case's name.
    pub name: String,
    /// Elements of a row of logits.
    pub vocabulary: usize,
    /// The reference's logits.
    pub reference: Vec<f32>,
    /// The computed logits.
    pub found: Vec<f32>,
}

/// A fixture's model, loaded.
pub(super) struct FixtureModel {
    pub(super) shape: Shape,
    pub(super) model: Network,
    pub(super) weights: Residency,
}

impl FixtureModel {
    /// Loads a fixture's model by this plan; `None` where there is none.
    pub(super) fn load(
        folder: &Path,
        ops: &Ops,
        plan_for: &PlanFor<'_>,
    ) -> Result<Option<Self>, EngineError> {
        Self::altered(folder, ops, plan_for, |_| ())
    }

    /// The same with another configuration.
    fn altered(
        folder: &Path,
        ops: &Ops,
        plan_for: &PlanFor<'_>,
        alter: impl FnOnce(&mut ModelConfig),
    ) -> Result<Option<Self>, EngineError> {
        let checkpoint = Checkpoint::open(&Source::Folder(folder.to_owned()))?;
        let mut config = checkpoint.model()?;
        alter(&mut config);
        let shape = config.shape.clone();
        let model = Network::new(config, ops)?;
        let sources = checkpoint.model_sources(&shape)?;
        let Some(plan) = plan_for(&shape, &sources)? else {
            return Ok(None);
        };
        let reader = WeightReader::new(Arc::new(checkpoint), &sources);
        // No more than the plan counts with, so that the groups beyond it are really read in every pass.
        let reader = Arc::new(reader.with_pinned_memory_limit(plan.pinned_bytes));
        let (device, ledger) = (ops.device(), ops.ledger());
        let never = AtomicBool::new(false);
        let loaded = Residency::load(&plan, reader, device, ledger, &never, &mut |_| {})?;
        let LoadOutcome::Done(weights) = loaded else {
            unreachable!("nobody cancels");
        };
        Ok(Some(Self {
            shape,
            model,
            weights,
        }))
    }
}

/// Computes the logits of every position, or of the last ones where the reference kept no others.
///
/// # Errors
/// When the folder is not such a fixture, or a pass fails.
pub fn fixture_forwards(
    folder: &Path,
    ops: &Ops,
    plan_for: &PlanFor<'_>,
) -> Result<Vec<FixtureLogits>, EngineError> {
    let rounds = ops.device().dtype() != DType::F32;
    let alter = |config: &mut ModelConfig| {
        if rounds {
            canvases::go_through_all_experts(config);
        }
    };
    let Some(fixture) = FixtureModel::altered(folder, ops, plan_for, alter)? else {
        return Ok(Vec::new());
    };
    let unrounded = match rounds && fixture.model.reads_text_apart() {
        true => canvases::unrounded_model(folder)?,
        false => None,
    };
    let FixtureModel {
        shape,
        model,
        weights,
    } = &fixture;
    let blocks = model.info(weights).mask.and_then(|mask| mask.blocks);
    let never = AtomicBool::new(false);
    let bytes = read(&folder.join("expected.safetensors"))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|_| broken(folder))?;
    let mut forwards = Vec::new();
    for case in cases(&expected(folder)?, "forward", folder)? {
        let (Some(rows), Some(name)) = (case["input_ids"].as_array(), case["name"].as_str()) else {
            return Err(broken(folder));
        };
        if model.reads_text_apart() {
            let of_case = |ops: &Ops, fixture: &FixtureModel| {
                let found = canvas_logits(ops, fixture, &tensors, case)?;
                found.ok_or_else(|| broken(folder))
            };
            let mut found = of_case(ops, &fixture)?;
            if let Some((cpu, model)) = &unrounded {
                for (found, unrounded) in found.iter_mut().zip(of_case(cpu, model)?) {
                    found.reference = unrounded.found;
                }
            }
            forwards.extend(found);
            continue;
        }
        let rows: Vec<Vec<u32>> = rows.iter().map(ids).collect();
        // Of long texts, the reference kept only the last rows.
        let kept = case["logits_shape"][1].as_u64().unwrap_or(0) as usize;
        let wanted: Vec<Vec<usize>> = (rows.iter())
            .map(|row| (row.len().saturating_sub(kept)..row.len()).collect())
            .collect();
        let z = latents(&tensors, &format!("forward.{name}.z"), rows.len());
        let tensor = tensors.tensor(&format!("forward.{name}.logits"));
        let reference = floats(tensor.map_err(|_| broken(folder))?.data());
        if let Some(blocks) = blocks {
            let visible = ids(&case["visible"]);
            let found = block_logits(ops, model, weights, shape, (&rows[0], &visible))?;
            forwards.push(FixtureLogits {
                name: format!("{name}, block after block"),
                vocabulary: shape.padded_vocab_size,
                reference: reference.clone(),
                found,
            });
            // All rows at once are cut into the model's own blocks.
            let of_model = |(position, seen): (usize, &u32)| {
                let end = (position / blocks.length + 1) * blocks.length;
                *seen as usize == end.min(visible.len())
            };
            if !visible.iter().enumerate().all(of_model) {
                continue;
            }
        }
        let found = match shape.causal {
            true => autoregressive_logits(ops, model, weights, shape, (&rows, &z), kept)?,
            false => {
                let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
                let positions: Vec<_> = (0..longest).collect();
                let mut sequences: Vec<_> = (rows.iter().zip(&wanted))
                    .map(|(tokens, wanted)| Sequence {
                        tokens,
                        positions: &positions[..tokens.len()],
                        wanted,
                        sees: VisibleKeys::Each { checks: 0 },
                    })
                    .collect();
                let hidden = model
                    .forward(ops, weights, &mut sequences, &never)
                    .map_err(failed)?;
                let hidden = model.final_norm(ops, weights, &hidden)?;
                logits(ops, weights, &hidden)?
            }
        };
        forwards.push(FixtureLogits {
            name: name.to_owned(),
            vocabulary: shape.padded_vocab_size,
            reference,
            found,
        });
    }
    Ok(forwards)
}

/// The latents of each sequence of a case; none where the fixture has none.
fn latents(tensors: &SafeTensors<'_>, name: &str, sequences: usize) -> Vec<Vec<f32>> {
    let Ok(tensor) = tensors.tensor(name) else {
        return Vec::new();
    };
    let all = floats(tensor.data());
    let of_each = all.len() / sequences.max(1);
    all.chunks_exact(of_each.max(1))
        .map(<[f32]>::to_vec)
        .collect()
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    let four = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    bytes.as_chunks::<4>().0.iter().map(four).collect()
}

/// Rows of an autoregressive sequence that go through the layers together: few, so that most of them read what was kept of the rows before.
const AUTOREGRESSIVE_ROWS: usize = 7;

/// Keys and values that the reference did not round: a GPU has only the dtype that it computes in.
fn unrounded(ops: &Ops) -> Result<Format, EngineError> {
    let profile = ops.device().profile();
    let format = resolve_kv_cache_format(KvCacheFormat::F32, &profile)
        .or_else(|_| resolve_kv_cache_format(KvCacheFormat::Auto, &profile));
    Ok(format?)
}

/// Blocks of a text that go through the layers together: most rows read what was kept of blocks before, and some what the
/// same pass computes of them.
const BLOCKS_OF_PASS: usize = 2;

/// The logits of all positions of a text, of which each sees so many positions from the first on; what a pass has computed
/// is kept for the next.
fn block_logits(
    ops: &Ops,
    model: &Network,
    weights: &Residency,
    shape: &Shape,
    (text, visible): (&[u32], &[u32]),
) -> Result<Vec<f32>, EngineError> {
    let never = AtomicBool::new(false);
    let cache = KvCacheShape::of(shape, unrounded(ops)?);
    let mut cache = ops.kv_cache(cache, text.len())?;
    let last_seen: Vec<usize> = visible.iter().map(|&seen| seen as usize - 1).collect();
    let positions: Vec<usize> = (0..text.len()).collect();
    let blocks: Vec<&[usize]> = last_seen.chunk_by(|a, b| a == b).collect();
    let mut all = Vec::new();
    for blocks in blocks.chunks(BLOCKS_OF_PASS) {
        let count: usize = blocks.iter().map(|block| block.len()).sum();
        let rows = cache.len()..cache.len() + count;
        let wanted: Vec<usize> = (0..count).collect();
        let mut sequence = [Sequence {
            tokens: &text[rows.clone()],
            positions: &positions[rows.clone()],
            wanted: &wanted,
            sees: VisibleKeys::Blocks {
                cache: &mut cache,
                last_seen: &last_seen[rows],
            },
        }];
        let hidden = model.forward(ops, weights, &mut sequence, &never);
        let hidden = model.final_norm(ops, weights, &hidden.map_err(failed)?)?;
        all.extend(logits(ops, weights, &hidden)?);
        cache.advance(count);
    }
    Ok(all)
}

/// The logits of the last `kept` positions of each text; all texts go through the model together, a few rows at a time.
fn autoregressive_logits(
    ops: &Ops,
    model: &Network,
    weights: &Residency,
    shape: &Shape,
    (texts, z): (&[Vec<u32>], &[Vec<f32>]),
    kept: usize,
) -> Result<Vec<f32>, EngineError> {
    let never = AtomicBool::new(false);
    let memory = SequenceShape::of(shape, unrounded(ops)?);
    let memories = texts
        .iter()
        .map(|text| SequenceMemory::new(ops, memory, text.len()));
    let mut memories = memories.collect::<Result<Vec<_>, _>>()?;
    for (memory, z) in memories.iter_mut().zip(z) {
        memory.set_latents(z.clone());
    }
    let mut all = vec![Vec::new(); texts.len()];
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    for start in (0..longest).step_by(AUTOREGRESSIVE_ROWS) {
        // An empty range for texts that have ended.
        let rows =
            |text: &[u32]| start.min(text.len())..text.len().min(start + AUTOREGRESSIVE_ROWS);
        let wanted = |text: &Vec<u32>| -> Vec<usize> {
            let first = text.len().saturating_sub(kept);
            rows(text)
                .filter(|&row| row >= first)
                .map(|row| row - start)
                .collect()
        };
        let wanted: Vec<_> = texts.iter().map(wanted).collect();
        let positions: Vec<_> = (0..longest).collect();
        let mut next: Vec<_> = (texts.iter().zip(&wanted).zip(&mut memories))
            .map(|((text, wanted), memory)| Sequence {
                tokens: &text[rows(text)],
                positions: &positions[rows(text)],
                wanted,
                sees: memory.sees(),
            })
            .collect();
        let hidden = model.forward(ops, weights, &mut next, &never);
        let hidden = hidden.map_err(failed)?;
        if hidden.is_empty() {
            continue;
        }
        let hidden = model.final_norm(ops, weights, &hidden)?;
        let found = logits(ops, weights, &hidden)?;
        let mut of_rows = found.chunks_exact(shape.padded_vocab_size);
        for (all, wanted) in all.iter_mut().zip(&wanted) {
            all.extend(of_rows.by_ref().take(wanted.len()).flatten());
        }
    }
    Ok(all.concat())
}

pub(super) fn failed(interrupt: Interrupt) -> EngineError {
    match interrupt {
        Interrupt::Failed(error) => error,
        Interrupt::Cancelled => unreachable!("nobody cancels"),
    }
}

/// A case of a sampler.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The case's name.
    pub name: String,
    /// The sampler, as the reference names it; `None` for an autoregressive model.
    pub algorithm: Option<String>,
    /// The answer to each prompt; `None` where the sampler, or its parameters, are unknown here.
    pub answers: Option<Vec<Answer>>,
}

/// What the reference and Sluice wrote for a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The reference's tokens.
    pub reference: Vec<u32>,
    /// The tokens that Sluice wrote.
    pub found: Vec<u32>,
    /// Passes of the reference and of Sluice, where they differ and should not.
    pub passes: Option<[u64; 2]>,
}

impl Answer {
    /// The index of the first token that differs, or that only one of them has.
    #[must_use]
    pub fn first_difference(&self) -> Option<usize> {
        let shorter = self.reference.len().min(self.found.len());
        (0..shorter)
            .find(|&place| self.reference[place] != self.found[place])
            .or((self.reference.len() != self.found.len()).then_some(shorter))
    }

    /// How many tokens differ, or are only in one of them.
    fn differing(&self) -> usize {
        let pairs = self.found.iter().zip(&self.reference);
        let differing = pairs.filter(|(found, expected)| found != expected).count();
        differing + self.found.len().abs_diff(self.reference.len())
    }
}

/// Runs every case of the samplers through an engine, and counts tokens and passes that differ. Unknown samplers are
/// left out.
///
/// # Errors
/// When the folder is not such a fixture, or a request fails.
pub fn fixture_tokens(
    folder: &Path,
    options: EngineOptions,
) -> Result<Vec<CheckResult>, EngineError> {
    let check = |case: Sampled| {
        let answers = case.answers?;
        let differing = |answer: &Answer| answer.differing() + usize::from(answer.passes.is_some());
        let differing: usize = answers.iter().map(differing).sum();
        Some(CheckResult {
            name: format!(
                "{} {}: tokens and passes that differ",
                label(folder),
                case.name
            ),
            error: differing as f64,
            tolerance: 0.0,
            cause: None,
        })
    };
    let sampled = fixture_samples(folder, options)?;
    Ok(sampled.into_iter().filter_map(check).collect())
}

/// Runs every case of the samplers through an engine.
///
/// # Errors
/// When the folder is not such a fixture, or a request fails.
pub fn fixture_samples(folder: &Path, options: EngineOptions) -> Result<Vec<Sampled>, EngineError> {
    let engine = Engine::start(options)?;
    let model = &load(&engine, folder)?;
    let bytes = read(&folder.join("expected.safetensors"))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|_| broken(folder))?;
    let mut sampled = Vec::new();
    for case in cases(&expected(folder)?, "generate", folder)? {
        let (Some(prompts), Some(answers)) =
            (batch(&case["prompt_ids"]), batch(&case["generated"]))
        else {
            return Err(broken(folder));
        };
        // A short list would leave prompts unchecked, and the case would still pass.
        if prompts.len() != answers.len() {
            return Err(broken(folder));
        }
        let name = case["name"].as_str().unwrap_or_default();
        let z = latents(&tensors, &format!("generate.{name}.z"), prompts.len());
        let answers = request_of(case, model, prompts).map(|request| {
            // Latents as they are: a posterior that leaves them no room.
            let thinking = z.first().map(|z| {
                Box::new(Thinking {
                    steps: 0,
                    start: Some(Arc::new(Posterior::at_point(z.clone()))),
                    prior: None,
                    returns_posterior: false,
                })
            });
            let request = Generate {
                thinking,
                ..request
            };
            let pairs = prompts.iter().zip(answers);
            let answer =
                |(prompt, answer)| sample(&engine, case, &request, model, (prompt, answer));
            pairs.map(answer).collect::<Result<_, _>>()
        });
        sampled.push(Sampled {
            name: name.to_owned(),
            algorithm: case["algorithm"].as_str().map(str::to_owned),
            answers: answers.transpose()?,
        });
    }
    Ok(sampled)
}

fn sample(
    engine: &Engine,
    case: &Value,
    request: &Generate,
    model: &LoadedModel,
    (prompt, answer): (&Value, &Value),
) -> Result<Answer, EngineError> {
    let request = Generate {
        prompt: ids(prompt),
        ..request.clone()
    };
    let mut generated = run(engine, request.clone())?;
    let mut answer = ids(answer);
    if request.eos == EosPolicy::Stop {
        // What is left behind the end is filled.
        for tokens in [&mut generated.tokens, &mut answer] {
            let end = |token: &u32| model.info.eos_token_ids.contains(token);
            let end = tokens.iter().position(end);
            tokens.truncate(end.map_or(usize::MAX, |end| end + 1));
        }
    }
    let found = generated.passes as u64;
    // The reference tells it as the answer's last token.
    if request.reserved.is_some() && answer.last() == request.reserved.as_ref() {
        answer.pop();
    }
    let reference = reference_passes(case, &request, &model.info, &answer);
    let passes = reference.filter(|&reference| {
        // Dream's sampler runs passes that commit nothing, which are skipped here: only more passes are wrong.
        match case["algorithm"] == "Dream sampler" {
            true => found > reference,
            false => found != reference,
        }
    });
    Ok(Answer {
        reference: answer,
        found: generated.tokens,
        passes: passes.map(|reference| [reference, found]),
    })
}

pub(super) fn label(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, EngineError> {
    let read = fs::read(path).map_err(|cause| CheckpointError::Io {
        path: path.to_owned(),
        cause,
    });
    Ok(read?)
}

pub(super) fn broken(folder: &Path) -> EngineError {
    let error = CheckpointError::MalformedFile {
        path: folder.join("expected.json").display().to_string(),
        cause: "it doesn't tell a reference's outputs".to_owned(),
    };
    error.into()
}

pub(super) fn expected(folder: &Path) -> Result<Value, EngineError> {
    let bytes = read(&folder.join("expected.json"))?;
    serde_json::from_slice(&bytes).map_err(|_| broken(folder))
}

pub(super) fn cases<'a>(
    expected: &'a Value,
    kind: &str,
    folder: &Path,
) -> Result<&'a Vec<Value>, EngineError> {
    expected[kind].as_array().ok_or_else(|| broken(folder))
}

/// The sequences of a case: a list of lists, or the only one by itself.
fn batch(value: &Value) -> Option<&[Value]> {
    let list = value.as_array()?;
    match list.first() {
        Some(Value::Array(_)) | None => Some(list),
        Some(_) => Some(std::slice::from_ref(value)),
    }
}

pub(super) fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().into_iter().flatten();
    ids.filter_map(Value::as_u64).map(|id| id as u32).collect()
}

fn load(engine: &Engine, folder: &Path) -> Result<Arc<LoadedModel>, EngineError> {
    // The reference's KV cache is not rounded; a GPU has one format for it.
    let settings = PlanSettings {
        kv_cache_format: match engine.device().is_gpu() {
            true => KvCacheFormat::Auto,
            false => KvCacheFormat::F32,
        },
        ..PlanSettings::default()
    };
    engine.load_now(Source::Folder(folder.to_owned()), settings)
}

fn run(engine: &Engine, request: Generate) -> Result<GenerationResult, EngineError> {
    match engine.run(Work::Generate(request))? {
        Outcome::Generated(generated) => Ok(generated),
        other => unreachable!("asked to generate: {other:?}"),
    }
}
