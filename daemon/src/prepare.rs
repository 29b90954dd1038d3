//! From a checked message to what the engine computes: text becomes ids, defaults become
//! figures, pins and edits become a canvas.

mod calibration;
mod canvas;
mod embedding;
mod encoder;
mod memory;
mod names;
mod preset;
mod samples;
mod template;

use std::{collections::BTreeSet, sync::Arc};

use sluice_checkpoint::features::Feature;
use sluice_engine::{
    CanvasSlot, EngineError, Generate, RequestError, Score, Work,
    admission::{ANYWHERE_TEXTS_MAX, ANYWHERE_TOKENS_MAX},
    decode::policy::policy,
    grammar::RequestGrammar,
    model::ModelInfo,
    posterior::Posterior,
    request::{AnywherePins, Thinking},
    saved_state::StateOptions,
};
use sluice_proto::{
    model::{
        Conversation, EosPolicy, Generation, Input, KindOptions, PinContent, Preset, Prompt,
        Remasking, Role, Scoring, ThinkingChoice, Turn,
    },
    v1,
};
use sluice_shared::{
    decoding::{CanvasGrowth, Decoding},
    level::AdvisedLimits,
    policy::{PolicyChoice, RENOISE},
    prior::PriorSampling,
};
use sluice_tokenizer::Patience;

use self::encoder::{TextEncoder, empty};
pub use self::{
    calibration::{TextSplit, calibration_samples},
    embedding::{PreparedEmbedding, embedding},
    encoder::TEXT_BYTES_MAX,
    memory::Recalled,
    samples::{measuring, spread},
};
use crate::{
    config::ModelTable,
    failure::Failure,
    grammar::CheckedGrammar,
    models::ServingModel,
    settings::{self, SampledModel, SettingOrigin},
};

/// Ids in one request.
pub const IDS_MAX: usize = 1 << 20;

/// Positions to fill when nobody says how many.
const LENGTH_DEFAULT: usize = 128;
/// Draws of an estimate when nobody says how many.
const DRAWS_DEFAULT: usize = 128;
/// The same for a latent thought model, whose draws differ less: their noise is that of a fitted posterior.
const LATENT_DRAWS_DEFAULT: usize = 16;

/// Names of memory of which some are pinned, and tokens of one, at most.
const NAMES_MAX: usize = 16;
const NAME_TOKENS_MAX: usize = 8;
/// The field that asks for it.
const PINNED_NAMES: &str = "memory.pinned_names";

/// What a request gets that does not say otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestDefaults {
    /// The preset.
    pub preset: Preset,
    /// The length, and the limits of blocks and steps; `None`: as built in.
    pub limits: Option<AdvisedLimits>,
}

/// A generation as the engine takes it.
#[derive(Debug)]
pub struct PreparedGeneration {
    /// What is asked of the engine.
    pub work: Generate,
    /// The preset in force; `None` for autoregressive models.
    pub preset: Option<Preset>,
    /// How tokens are chosen, the system prompt where it is the model's own, and who said so.
    pub settings: Vec<v1::ResolvedSetting>,
    /// What was asked for and changes nothing.
    pub warnings: Vec<String>,
    /// Chance has a part in it, with a seed that nobody asked for.
    pub seed_drawn: bool,
    /// What of memory stands in the prompt; `None`: it was not asked for.
    pub memory: Option<v1::PromptMemory>,
}

/// A checked request with what belongs to it.
#[derive(Debug)]
pub struct GenerationRequest {
    /// The request.
    pub asked: Generation,
    /// What it has to do with states.
    pub state: StateOptions,
    /// What was found for its prompt, where it asks for memory.
    pub recalled: Option<Recalled>,
}

/// Turns a checked request, and what it has to do with states, into the engine's. Tokenizing takes time: not for async code.
///
/// Where it leaves out how tokens are chosen, or begins no conversation with instructions, the model's `table` counts.
/// `defaults` are for what it leaves out otherwise; their limits are about masks that are filled together, so they are for
/// masked diffusion models alone. `is_bus_bound` tells whether a request is possible and its passes wait for
/// streamed weights longer than they compute; only some presets ask.
///
/// # Errors
/// What the request asks for that cannot be done with this model.
pub fn generation(
    request: GenerationRequest,
    (serving, patience): (&ServingModel, &Patience),
    table: &ModelTable,
    defaults: RequestDefaults,
    is_bus_bound: impl Fn(&Work) -> bool,
) -> Result<PreparedGeneration, Failure> {
    check_generates(serving)?;
    let GenerationRequest {
        asked: request,
        state,
        recalled,
    } = request;
    let info = &serving.loaded.info;
    let defaults = match info.mask {
        Some(_) => defaults,
        None => {
            check_autoregressive(&request, serving)?;
            RequestDefaults::default()
        }
    };
    let by_limits =
        |name, value: usize| settings::resolved_setting(name, value, SettingOrigin::SmallMemory);
    let mut told_limits = Vec::new();
    let mut texts = TextEncoder::new(serving, patience);
    check_size(&request, texts.text_bytes_max())?;
    let (diffusion, autoregressive) = request.kind_options.into_parts();
    let mut told = Vec::new();
    let mut used_memory = None;
    let mut pins_anywhere = Vec::new();
    let mut names_in_memory = Vec::new();
    let pinned_names = request
        .memory
        .as_ref()
        .map_or(0, |memory| memory.pinned_names);
    if let (true, Some(refusal)) = (
        pinned_names > 0,
        info.features().refusal(Feature::Lookahead),
    ) {
        return Err(EngineError::from(RequestError::of_feature(refusal, PINNED_NAMES)).into());
    }
    let is_edit = matches!(request.input, Input::Edit { .. });
    let (prompt, canvas) = match request.input {
        Input::Prompt { prompt, length } => {
            let prompt = match &state.start {
                Some(_) => prompt,
                None => with_system(prompt, table, &mut told),
            };
            let prompt = match (prompt, &request.memory, recalled) {
                (Prompt::Chat(mut chat), Some(asked), Some(recalled)) => {
                    let without = texts.chat(&chat)?.len();
                    let answer = length.map_or(LENGTH_DEFAULT, |length| length as usize);
                    let room = info.context_length.saturating_sub(without + answer);
                    let count = |text: &str| Ok(texts.session()?.encode(text)?.len());
                    let max_tokens = asked.max_tokens.min(room);
                    let said = chat.turns.iter().rfind(|turn| turn.role == Role::User);
                    let said = said.map_or_else(String::new, |turn| turn.content.clone());
                    let used = memory::put(&mut chat, recalled, max_tokens, count)?;
                    if pinned_names > 0 {
                        let pieces = used.pieces.iter().filter_map(|used| used.hit.as_ref());
                        let pieces = pieces.filter_map(|hit| hit.piece.as_ref());
                        names_in_memory =
                            names::names(pieces.map(|piece| piece.text.as_str()), &said);
                    }
                    used_memory = Some(used);
                    Prompt::Chat(chat)
                }
                (prompt, ..) => prompt,
            };
            let prompt = match &state.start {
                Some(start) => texts.prompt_after(start, prompt)?,
                None => texts.prompt(prompt)?,
            };
            let length = match length {
                Some(length) => length as usize,
                None => {
                    let limit = defaults.limits.map(|limits| limits.length as usize);
                    let reserved = info.mask.and_then(|mask| mask.reserved);
                    let others = prompt.len() + usize::from(reserved.is_some());
                    let length = limit
                        .unwrap_or(LENGTH_DEFAULT)
                        .min(info.context_length.saturating_sub(others))
                        .max(1);
                    told_limits.extend(limit.map(|_| by_limits("length", length)));
                    length
                }
            };
            // Checked before a canvas of that length is made.
            info.check_context(prompt.len(), length)?;
            let mut pins = Vec::with_capacity(diffusion.pins.len());
            for pin in diffusion.pins {
                let content = with_space_before(pin.position, pin.content);
                let ids = texts.content("diffusion.pins", content)?;
                match pin.position {
                    Some(position) => pins.push((position, ids)),
                    None => pins_anywhere.push(ids),
                }
            }
            (prompt, canvas::with_pins(length, &pins)?)
        }
        Input::Edit {
            turns,
            text,
            span,
            span_length,
        } => {
            let prompt = match &turns[..] {
                [] if text.is_empty() => {
                    return Err(empty("edit.text", "the text to edit is empty").into());
                }
                [] => Vec::new(),
                turns => texts.chat(&Conversation {
                    turns: with_model_instructions(turns.to_vec(), table, &mut told),
                    tools: None,
                })?,
            };
            let tokens = texts.session()?.encode_with_spans(&text)?;
            let span_length = span_length.map(|length| length as usize);
            let masks = span_length.unwrap_or(1);
            info.check_context(prompt.len(), masks)?;
            let canvas = canvas::with_span_masked(&tokens, span, span_length);
            (prompt, canvas)
        }
    };
    let masked = canvas
        .iter()
        .filter(|slot| **slot == CanvasSlot::Masked)
        .count();
    let masked = canvas::left_after(&pins_anywhere, masked)?;
    let mut anywhere: Vec<AnywherePins> = (pins_anywhere.into_iter())
        .map(|text| AnywherePins {
            texts: vec![text],
            most: 1,
        })
        .collect();
    let mut warnings = Vec::new();
    if pinned_names > 0 {
        let (names, ids) = names_to_pin(&mut texts, names_in_memory, &anywhere)?;
        match (&mut used_memory, names.is_empty()) {
            (Some(used), false) => {
                used.names = names;
                anywhere.push(AnywherePins {
                    texts: ids,
                    most: pinned_names,
                });
            }
            _ => warnings.push(
                "nothing that is remembered about this has a name in it, so none is pinned"
                    .to_owned(),
            ),
        }
    }
    let subject = SampledModel {
        family: info.family,
        mask: info.mask,
        can_chat: serving.can_chat(),
        recommended: &serving.loaded.recommended,
    };
    let sampler = subject.sampler(&request.sampling.options, table);
    let block_limit = defaults.limits.map(|limits| limits.block_length);
    let (block_length, told_block) = subject.block_length(request.block_length, block_limit);
    let steps = match (diffusion.steps, defaults.limits) {
        (Some(steps), _) => steps as usize,
        (None, None) => masked.max(1),
        (None, Some(limits)) => {
            let steps = masked.clamp(1, limits.steps as usize);
            told_limits.push(by_limits("steps", steps));
            steps
        }
    };
    let grammar = match autoregressive.grammar {
        Some(_) if info.mask.is_some() => {
            let what = "autoregressive.grammar";
            return Err(EngineError::from(RequestError::OnlyAutoregressive { what }).into());
        }
        Some(grammar) => {
            let tokenizer = serving.tokenizer()?;
            Some(CheckedGrammar::new(tokenizer.clone(), grammar, patience)?)
        }
        None => None,
    };
    let blocks = info.mask.and_then(|mask| mask.blocks);
    let mut work = Generate {
        model: serving.loaded.id,
        prompt,
        block_length: match request.block_length {
            // The engine refuses a requested length that is too long.
            Some(length) => length as usize,
            None if subject.diffusion_block().is_some() => block_length as usize,
            None => (block_length as usize).min(canvas.len()),
        },
        steps,
        canvas,
        anywhere,
        reserved: info.mask.and_then(|mask| mask.reserved),
        causal_attention_before: blocks.is_some_and(|blocks| blocks.causal_attention_before),
        temperature: sampler.temperature,
        guidance: diffusion.guidance,
        remasking: diffusion.remasking.unwrap_or_default(),
        eos: request.sampling.eos.unwrap_or(if is_edit {
            EosPolicy::Suppress
        } else {
            EosPolicy::Stop
        }),
        policy: PolicyChoice::default(),
        decoding: Decoding::default(),
        sampling: sampler.sampling,
        stops: (autoregressive.stops.into_iter())
            .map(String::into_bytes)
            .collect(),
        top_logprobs: autoregressive.top_logprobs,
        grammar: grammar.map(|grammar| RequestGrammar(Arc::new(grammar))),
        seed: request.sampling.seed.map_or_else(draw_seed, Ok)?,
        draws: None,
        thinking: None,
        state,
    };
    work.thinking = thinking(request.thinking, (info, work.prompt.len()), &mut told);
    let dial = preset::apply_preset(
        &mut work,
        &diffusion.decoding,
        diffusion.steps.is_some(),
        defaults.preset,
        info.mask,
        is_bus_bound,
    );
    if work.policy.name() == RENOISE
        && diffusion.steps.is_some()
        && diffusion.decoding.policy.is_some()
    {
        let problem = format!(
            "policy '{RENOISE}' says itself how many passes a canvas has; leave one of both out"
        );
        let what = "diffusion.steps";
        return Err(EngineError::from(RequestError::Sampling { what, problem }).into());
    }
    if pinned_names > 0 && work.decoding.canvas_growth != CanvasGrowth::Fixed {
        let problem = "a canvas that grows isn't all there when places for names are found";
        return Err(EngineError::from(RequestError::Sampling {
            what: PINNED_NAMES,
            problem: problem.to_owned(),
        })
        .into());
    }
    let mut sampling_settings = sampler.settings;
    if work.policy.name() == RENOISE
        && work.temperature > 0.0
        && request.sampling.skips_unused_temperature
    {
        sampling_settings.retain(|setting| setting.name != "temperature");
        warnings.push(format!(
            "temperature {} changes nothing: policy '{RENOISE}' has temperatures of its own, tmin and tmax",
            work.temperature
        ));
        work.temperature = 0.0;
    }
    // The end of a canvas that grows isn't known from the start.
    if work.decoding.canvas_growth != CanvasGrowth::Fixed {
        work.reserved = None;
    }
    let first = sampling_settings.into_iter().chain(told_block);
    told.splice(0..0, first.chain(told_limits));
    // A policy that ranks positions itself takes no other ranking.
    let is_open = policy(&work.policy).needs().ranking.is_none();
    if let (None, Some(ranking), true) = (diffusion.remasking, sampler.remasking, is_open) {
        work.remasking = ranking;
        told.push(settings::resolved_setting(
            "remasking",
            "entropy",
            SettingOrigin::BuiltIn,
        ));
    }
    // Latents are drawn, too.
    let draws = work.policy.name() == RENOISE
        || work.temperature > 0.0
        || work.remasking == Remasking::Random
        || work.thinking.is_some();
    Ok(PreparedGeneration {
        settings: told,
        warnings,
        seed_drawn: draws && request.sampling.seed.is_none(),
        memory: used_memory,
        work,
        preset: info.mask.map(|_| dial),
    })
}

/// How a model with latents comes to them after a prompt of so many tokens; what others are asked, the engine refuses.
fn thinking(
    choice: Option<ThinkingChoice>,
    (info, prompt): (&ModelInfo, usize),
    told: &mut Vec<v1::ResolvedSetting>,
) -> Option<Box<Thinking>> {
    if choice.is_none() && info.inference.is_none() {
        return None;
    }
    let ThinkingChoice {
        steps,
        thoughts,
        prior,
        returns_thoughts,
    } = choice.unwrap_or_default();
    // A single token is given, and tells nothing.
    let has_evidence = prompt > 1;
    let start = thoughts.map(|(mu, log_var)| Arc::new(Posterior { mu, log_var }));
    let steps = match (steps, &start) {
        (Some(steps), _) => steps as usize,
        (None, Some(_)) => 0,
        (None, None) => {
            let steps = match has_evidence {
                true => info.inference.unwrap_or_default().steps,
                false => 0,
            };
            let setting = settings::resolved_setting("think", steps, SettingOrigin::BuiltIn);
            told.push(setting);
            steps
        }
    };
    let is_drawn = start.is_none() && !(steps > 0 && has_evidence);
    let prior = match prior {
        // As it was trained, inference begins near zero: its divergence is that from N(0, I).
        None if is_drawn && info.has_prior => {
            let usual = PriorSampling::default();
            told.push(settings::resolved_setting(
                "prior",
                usual,
                SettingOrigin::BuiltIn,
            ));
            Some(usual)
        }
        prior => prior,
    };
    Some(Box::new(Thinking {
        steps,
        start,
        prior,
        returns_posterior: returns_thoughts,
    }))
}

/// Turns a checked estimate into the engine's. Tokenizing takes time: not for async code.
///
/// # Errors
/// What the request asks for that cannot be done with this model.
pub fn scoring(
    request: Scoring,
    serving: &ServingModel,
    patience: &Patience,
) -> Result<Score, Failure> {
    check_generates(serving)?;
    let mut texts = TextEncoder::new(serving, patience);
    let (prompt, answer) = (size_of_prompt(&request.prompt), turns_size(&request.answer));
    prompt
        .plus(answer)
        .check("prompt", texts.text_bytes_max())?;
    let prompt = texts.prompt(request.prompt)?;
    let answer = texts.content("answer_text", request.answer)?;
    let inference = serving.loaded.info.inference;
    let draws = match (request.draws, answer.len()) {
        (Some(draws), _) => draws as usize,
        (None, _) if inference.is_some() => LATENT_DRAWS_DEFAULT,
        // A single masked position has only one way to be drawn.
        (None, 1) => 1,
        (None, _) => DRAWS_DEFAULT,
    };
    let think_steps = request.think_steps.map(|steps| steps as usize);
    Ok(Score {
        model: serving.loaded.id,
        prompt,
        answer,
        draws,
        guidance: request.guidance,
        seed: request.seed.map_or_else(draw_seed, Ok)?,
        check_greedy: request.check_greedy,
        think_steps: think_steps.or(inference.map(|inference| inference.steps)),
    })
}

/// Refuses sentence encoders before anything is made of a request's texts.
fn check_generates(serving: &ServingModel) -> Result<(), Failure> {
    match serving.loaded.info.features().refusal(Feature::Generate) {
        Some(refusal) => Err(EngineError::from(RequestError::of_feature(refusal, "model")).into()),
        None => Ok(()),
    }
}

fn with_system(prompt: Prompt, table: &ModelTable, told: &mut Vec<v1::ResolvedSetting>) -> Prompt {
    match prompt {
        Prompt::Chat(chat) => Prompt::Chat(Conversation {
            turns: with_model_instructions(chat.turns, table, told),
            ..chat
        }),
        prompt => prompt,
    }
}

/// The turns behind the model's own instructions, unless they begin with others.
fn with_model_instructions(
    mut turns: Vec<Turn>,
    table: &ModelTable,
    told: &mut Vec<v1::ResolvedSetting>,
) -> Vec<Turn> {
    let has_its_own = turns.first().is_some_and(|turn| turn.role == Role::System);
    if let (false, Some(system)) = (has_its_own, &table.system) {
        told.push(settings::resolved_setting(
            "system",
            system,
            SettingOrigin::ModelFile,
        ));
        turns.insert(0, Turn::new(Role::System, system.clone()));
    }
    turns
}

/// A word pinned behind others stands apart from them, as in the LLaDA authors' demonstration.
fn with_space_before(position: Option<u32>, content: PinContent) -> PinContent {
    match content {
        PinContent::Text(text)
            if position != Some(0) && text.starts_with(char::is_alphanumeric) =>
        {
            PinContent::Text(format!(" {text}"))
        }
        content => content,
    }
}

/// The first of these names that can be looked for beside texts that may stand anywhere, and their ids.
fn names_to_pin(
    texts: &mut TextEncoder<'_>,
    names: Vec<String>,
    beside: &[AnywherePins],
) -> Result<(Vec<String>, Vec<Vec<u32>>), Failure> {
    let others = beside.iter().flat_map(|pins| &pins.texts);
    let mut tokens: BTreeSet<u32> = others.flatten().copied().collect();
    let most = NAMES_MAX.min(ANYWHERE_TEXTS_MAX.saturating_sub(beside.len()));
    let mut taken = (Vec::new(), Vec::new());
    for name in names {
        if taken.0.len() == most {
            break;
        }
        let ids = texts.session()?.encode(&format!(" {name}"))?;
        let all: BTreeSet<u32> = tokens.iter().chain(&ids).copied().collect();
        let is_short = (1..=NAME_TOKENS_MAX).contains(&ids.len());
        if is_short && all.len() <= ANYWHERE_TOKENS_MAX {
            tokens = all;
            taken.0.push(name);
            taken.1.push(ids);
        }
    }
    Ok(taken)
}

/// An autoregressive model has no use for what the engine could not tell from a default, and stop strings need a tokenizer.
fn check_autoregressive(request: &Generation, serving: &ServingModel) -> Result<(), Failure> {
    match &request.kind_options {
        KindOptions::Diffusion(choice) => match choice.beyond_exact() {
            Some(what) => Err(EngineError::from(RequestError::OnlyMaskedDiffusion { what }).into()),
            None => Ok(()),
        },
        KindOptions::Autoregressive(choice) if !choice.stops.is_empty() => {
            serving.tokenizer().map(drop)
        }
        KindOptions::Autoregressive(_) | KindOptions::Unsaid => Ok(()),
    }
}

/// The size of a request's texts and ids, checked before anything is tokenized.
#[derive(Debug, Clone, Copy, Default)]
struct RequestSize {
    text_bytes: usize,
    ids: usize,
}

impl RequestSize {
    fn plus(self, other: Self) -> Self {
        Self {
            text_bytes: self.text_bytes + other.text_bytes,
            ids: self.ids + other.ids,
        }
    }

    fn check(self, field: &'static str, text_bytes_max: usize) -> Result<(), Failure> {
        for (unit, found, max) in [
            ("bytes of text", self.text_bytes, text_bytes_max),
            ("ids", self.ids, IDS_MAX),
        ] {
            if found > max {
                return Err(Failure::TooLong {
                    field,
                    unit,
                    found,
                    max,
                });
            }
        }
        Ok(())
    }
}

fn check_size(request: &Generation, text_bytes_max: usize) -> Result<(), Failure> {
    let input = match &request.input {
        Input::Prompt { prompt, .. } => size_of_prompt(prompt),
        Input::Edit { turns, text, .. } => RequestSize {
            text_bytes: text.len() + turns_bytes(turns),
            ids: 0,
        },
    };
    let pins = match &request.kind_options {
        KindOptions::Diffusion(choice) => &choice.pins[..],
        KindOptions::Autoregressive(_) | KindOptions::Unsaid => &[],
    };
    let pins = pins.iter().map(|pin| turns_size(&pin.content));
    let size = pins.fold(input, RequestSize::plus);
    size.check("input", text_bytes_max)
}

fn size_of_prompt(prompt: &Prompt) -> RequestSize {
    let (text_bytes, ids) = match prompt {
        Prompt::Chat(chat) => {
            let tools = chat.tools.as_ref().map_or(0, String::len);
            (turns_bytes(&chat.turns) + tools, 0)
        }
        Prompt::Raw(text) => (text.len(), 0),
        Prompt::Tokens(ids) => (0, ids.len()),
    };
    RequestSize { text_bytes, ids }
}

fn turns_size(content: &PinContent) -> RequestSize {
    let (text_bytes, ids) = match content {
        PinContent::Text(text) => (text.len(), 0),
        PinContent::Tokens(ids) => (0, ids.len()),
    };
    RequestSize { text_bytes, ids }
}

fn turns_bytes(turns: &[Turn]) -> usize {
    let calls = |turn: &Turn| -> usize {
        let of_call =
            |call: &v1::ToolCall| call.name.len() + call.id.len() + call.arguments_json.len();
        turn.tool_calls.iter().map(of_call).sum()
    };
    let bytes =
        |turn: &Turn| turn.content.len() + turn.name.len() + turn.tool_call_id.len() + calls(turn);
    turns.iter().map(bytes).sum()
}

/// A seed that nobody asked for: any will do, as long as the user is told.
fn draw_seed() -> Result<u64, Failure> {
    // Half of what a seed can be: people type it again.
    let mut bytes = [0; 4];
    // So few bytes come whole.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Failure::NoSeed(errno.into()))?;
    Ok(u32::from_le_bytes(bytes).into())
}

#[cfg(test)]
pub(crate) mod tests;
