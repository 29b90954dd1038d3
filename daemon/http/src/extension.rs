//! What is Sluice's own, under the one key `sluice` of a request and of its answer.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Error};
use sluice_proto::{model::DecodingChoice, v1};
use sluice_shared::{
    decoding::{CanvasGrowth, KvCacheReuse, Speculation},
    policy::PolicyChoice,
    preset::Preset,
    prior::PriorSampling,
};

use crate::{
    fields::fields,
    limits::{REQUEST_TIMEOUT_MAX, TEXTS_MAX},
    values::{Few, Switch, Word},
};

fields! {
    /// The key `sluice` of a request.
    pub(crate) struct Extension {
        honoured preset: Word<Preset> = "masked diffusion: `exact`, `quality`, `balanced`, `fast`, `auto`",
        honoured policy: Word<PolicyChoice> = "masked diffusion: which positions a pass commits, such as `threshold:t=0.9`",
        honoured steps: u32 = "masked diffusion: passes of the reference schedule",
        honoured guidance: f64 = "masked diffusion: weight of classifier-free guidance",
        honoured remasking: Word<Remasking> = "masked diffusion: `low_confidence`, `random`, `margin`, `entropy`",
        honoured pins: Few<Pin, TEXTS_MAX> = "masked diffusion: texts fixed from the start, a list of `{\"position\": N, \"text\": T}`",
        honoured kv_cache: Word<KvCacheReuse> = "masked diffusion: KV cache reuse, such as `dual:refresh=4`",
        honoured suffix_window: u32 = "masked diffusion: masks after the open block that a pass computes",
        honoured canvas_growth: Word<CanvasGrowth> = "masked diffusion: `fixed`, `append`, `insert`",
        honoured speculation: Word<Speculation> = "masked diffusion: such as `draft:branches=3`",
        honoured block_length: u32 = "positions decoded together",
        honoured greedy: bool = "the most probable token each time, and nothing made less likely",
        honoured eos_policy: Word<EosPolicy> = "what an end-of-sequence token does: `stop`, `suppress`, `keep`",
        honoured think_steps: u32 = "latent thought models: most steps of inference",
        honoured prior: Word<PriorSampling> = "latent thought models: how the learned prior is sampled, such as `heun:20`",
        honoured regex: String = "autoregressive models: a regular expression that the answer matches",
        honoured lark: String = "autoregressive models: rules that the answer matches ([grammars](grammars.md))",
        honoured memory: Switch<Memory> = "conversations: pieces of what the daemon [remembers](remembering.md) go into the prompt; `true`, or an object that says which",
        honoured canvas: bool = "with `stream` of OpenAI's API: pictures of the canvas between the pieces of text",
        honoured timeout_ms: TimeoutMs = "time for the whole request, its wait included; at most a day",
        honoured when_full: Word<WhenFull> = "where the queue is full: `wait` (the default) or `refuse`, with status 429",
    }
}

fields! {
    /// A text fixed from the start.
    pub(crate) struct Pin {
        honoured position: u32 = "counted from the first position to fill",
        honoured anywhere: bool = "it stands where the model finds it likeliest, instead of at a position ([pins](decoding.md#pins-without-a-position))",
        honoured text: String = "what stands there",
    }
}

fields! {
    /// Which pieces of memory go into a prompt.
    pub(crate) struct Memory {
        honoured max_tokens: u32 = "tokens of the prompt that the pieces may take together; 0: none; absent: 512",
        honoured collections: Few<String, TEXTS_MAX> = "names of the collections to look in, at most 64; absent: all that the caller may read",
        honoured pinned_names: u32 = "masked diffusion: so many [names](remembering.md#names-in-the-answer) out of the pieces are pinned in the answer, at most 4",
    }
}

impl Memory {
    fn options(&self) -> v1::MemoryOptions {
        let collections = self.collections.iter().flat_map(|names| &names.0);
        v1::MemoryOptions {
            max_tokens: self.max_tokens,
            collections: collections.cloned().collect(),
            pinned_names: self.pinned_names.unwrap_or_default(),
        }
    }
}

/// A request's own time, in milliseconds: what a call can be told has an end, and beyond it the library panics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeoutMs(Duration);

impl<'de> Deserialize<'de> for TimeoutMs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let ms = u64::deserialize(from)?;
        let timeout = Duration::from_millis(ms);
        match timeout <= REQUEST_TIMEOUT_MAX {
            true => Ok(Self(timeout)),
            false => {
                let most = REQUEST_TIMEOUT_MAX.as_millis();
                let problem =
                    format!("is at most {most}, a day, not {ms}; leave it out for no end");
                Err(D::Error::custom(problem))
            }
        }
    }
}

/// Makes a value that is read by the word that people type.
macro_rules! word {
    ($name:ident($value:ty) $words:literal, $read:expr) => {
        #[doc = concat!("A value by one of the words ", $words)]
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name($value);

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                let read: fn(&str) -> Option<$value> = $read;
                read(word)
                    .map(Self)
                    .ok_or_else(|| format!(concat!("'{}' is none of ", $words), word))
            }
        }
    };
}

word!(Remasking(v1::Remasking) "low_confidence, random, margin, entropy", |word| {
    let value = v1::Remasking::from_str_name(&format!("REMASKING_{}", word.to_uppercase()));
    value.filter(|value| value.checked().is_some())
});
word!(EosPolicy(v1::EosPolicy) "stop, suppress, keep", |word| {
    let value = v1::EosPolicy::from_str_name(&format!("EOS_POLICY_{}", word.to_uppercase()));
    value.filter(|value| value.checked().is_some())
});
word!(WhenFull(bool) "wait, refuse", |word| match word {
    "wait" => Some(false),
    "refuse" => Some(true),
    _ => None,
});

impl Extension {
    /// The request's own time.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(|TimeoutMs(timeout)| timeout)
    }

    /// Whether it is refused where the queue is full, rather than waiting.
    pub(crate) fn is_impatient(&self) -> bool {
        self.when_full.is_some_and(|Word(WhenFull(refuse))| refuse)
    }

    /// Whether pictures of the canvas are asked for.
    pub(crate) fn shows_canvas(&self) -> bool {
        self.canvas.unwrap_or_default()
    }

    /// Writes the options into a request.
    pub(crate) fn apply(&self, request: &mut v1::GenerateRequest) {
        request.block_length = self.block_length;
        let memory = self.memory.as_ref();
        let memory = memory.and_then(|Switch(memory)| memory.as_ref());
        request.memory = memory.map(Memory::options);
        let sampling = request.sampling_mut();
        sampling.greedy = self.greedy.unwrap_or_default();
        sampling.eos_policy = (self.eos_policy).map_or(0, |Word(EosPolicy(value))| value.into());
        let thinking = v1::ThinkingOptions {
            steps: self.think_steps,
            prior: self.prior.map(|Word(prior)| prior.into()),
            ..Default::default()
        };
        request.thinking = (thinking != v1::ThinkingOptions::default()).then_some(thinking);
        let diffusion = self.diffusion();
        if diffusion != v1::DiffusionOptions::default() {
            *request.diffusion_mut() = diffusion;
        }
    }

    /// The first option that is only for masked diffusion models.
    pub(crate) fn of_diffusion(&self) -> Option<&'static str> {
        let said = [
            ("sluice.preset", self.preset.is_some()),
            ("sluice.policy", self.policy.is_some()),
            ("sluice.steps", self.steps.is_some()),
            ("sluice.guidance", self.guidance.is_some()),
            ("sluice.remasking", self.remasking.is_some()),
            ("sluice.pins", self.pins.is_some()),
            ("sluice.kv_cache", self.kv_cache.is_some()),
            ("sluice.suffix_window", self.suffix_window.is_some()),
            ("sluice.canvas_growth", self.canvas_growth.is_some()),
            ("sluice.speculation", self.speculation.is_some()),
        ];
        let first = said.into_iter().find(|(_, is_said)| *is_said);
        first.map(|(name, _)| name)
    }

    fn diffusion(&self) -> v1::DiffusionOptions {
        let pins = self
            .pins
            .iter()
            .flat_map(|pins| &pins.0)
            .map(|pin| v1::CanvasPin {
                position: pin.position.unwrap_or_default(),
                content: (pin.text.clone()).map(v1::canvas_pin::Content::Text),
                anywhere: pin.anywhere.unwrap_or_default(),
            });
        let mut options = v1::DiffusionOptions {
            steps: self.steps,
            guidance: self.guidance,
            remasking: (self.remasking).map_or(0, |Word(Remasking(value))| value.into()),
            pins: pins.collect(),
            ..Default::default()
        };
        let choice = DecodingChoice {
            preset: self.preset.map(|Word(preset)| preset),
            policy: self.policy.map(|Word(policy)| policy),
            kv_cache: self.kv_cache.map(|Word(kv_cache)| kv_cache),
            suffix_window: self.suffix_window,
            canvas_growth: self.canvas_growth.map(|Word(growth)| growth),
            speculation: self.speculation.map(|Word(speculation)| speculation),
        };
        choice.write(&mut options);
        options
    }
}

/// The key `sluice` of an answer: what the request came to.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AnswerFacts {
    operation_id: u64,
    /// In force at the end.
    level: String,
    is_exact: bool,
    is_truncated: bool,
    finish_reason: String,
    seed: u64,
    passes: u32,
    tokens_per_pass: Option<f64>,
    elapsed_ms: f64,
    pass_ms: f64,
    waited_ms: f64,
    peak_device_bytes: u64,
    settings: BTreeMap<String, Resolved>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diffusion: Option<v1::DiffusionOptions>,
    /// What of memory stands in the prompt, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<v1::PromptMemory>,
    /// Where texts without a position stand.
    #[serde(skip_serializing_if = "Option::is_none")]
    placed: Option<v1::GenerationPlaced>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// A setting in force, and who set it.
#[derive(Debug, Clone, Serialize)]
struct Resolved {
    value: String,
    origin: String,
}

impl AnswerFacts {
    /// What a generation came to; `level` is that of its last pass.
    pub(crate) fn new(
        started: &v1::GenerationStarted,
        level: v1::Level,
        done: &v1::GenerationDone,
        placed: Option<&v1::GenerationPlaced>,
    ) -> Self {
        let resolved = started.settings.iter().cloned().map(|setting| {
            let v1::ResolvedSetting {
                name,
                value,
                origin,
            } = setting;
            (name, Resolved { value, origin })
        });
        Self {
            operation_id: done.request_id,
            level: level.to_string(),
            is_exact: done.is_exact,
            is_truncated: done.is_truncated,
            finish_reason: done.finish_reason().to_string(),
            seed: done.seed,
            passes: done.passes,
            tokens_per_pass: (done.passes > 0)
                .then(|| f64::from(done.filled_positions) / f64::from(done.passes)),
            elapsed_ms: done.elapsed_ms,
            pass_ms: done.pass_ms,
            waited_ms: done.waited_ms,
            peak_device_bytes: done.peak_device_bytes,
            settings: resolved.collect(),
            diffusion: started.diffusion.clone(),
            memory: started.memory.clone(),
            placed: placed.cloned(),
            warnings: started.warnings.clone(),
        }
    }
}

/// A picture of the open block after a pass, for who draws it.
#[derive(Debug, Serialize)]
pub(crate) struct CanvasEvent<'a> {
    /// Which answer.
    pub(crate) index: u32,
    /// The block with its tokens, provisional ones included (docs/json.md).
    pub(crate) canvas: &'a v1::GenerationPass,
}
