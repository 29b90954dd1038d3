//! How a request's tokens are chosen, and how many positions are decoded together, from all who say something of it.
//!
//! A model fills in what its card says and no more where it fills masks; one that writes from left to right is drawn from,
//! since the most probable token each time leads small models in circles.

use std::fmt::Display;

use sluice_checkpoint::{RecommendedSettings, family::MaskToken};
use sluice_proto::{model::Remasking, v1};
use sluice_shared::sampling::{Sampling, SamplingOptions};

use super::{ResolvedValue, SettingOrigin, resolve, resolved_setting};
use crate::config::ModelTable;

/// Defaults for autoregressive models whose checkpoint recommends nothing.
const TEMPERATURE: f64 = 0.7;
const TOP_P: f64 = 0.9;
/// Default for autoregressive models with a chat template. A base model must be free to repeat its text: code, names.
const REPETITION_PENALTY: f64 = 1.1;
/// Dream's, by its model card. The top-p beside it there is not used: Sluice computes it for autoregressive models alone.
const DREAM_TEMPERATURE: f64 = 0.2;
const DREAM: &str = "Dream";
/// Positions decoded together where nobody says how many.
const BLOCK_LENGTH: u32 = 32;

/// What the choice of a model's tokens depends on.
#[derive(Debug, Clone, Copy)]
pub struct SampledModel<'a> {
    /// As its configuration names it.
    pub family: &'a str,
    /// How it predicts masked positions; `None` for an autoregressive model.
    pub mask: Option<MaskToken>,
    /// Whether it has a chat template.
    pub can_chat: bool,
    /// What its checkpoint says.
    pub recommended: &'a RecommendedSettings,
}

/// How tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    /// Scale of the noise.
    pub temperature: f64,
    /// What may be drawn; nothing that has no effect.
    pub sampling: Sampling,
    /// How the model's card has masked positions ranked, where neither request nor policy says so.
    pub remasking: Option<Remasking>,
    /// All of it, and whose word it is.
    pub settings: Vec<v1::ResolvedSetting>,
}

impl SampledModel<'_> {
    /// Whether it fills masks, or canvases of random tokens.
    pub(crate) fn is_masked_diffusion(&self) -> bool {
        self.mask.is_some()
    }

    /// Positions of a block, where it is a block diffusion model.
    pub(crate) fn diffusion_block(&self) -> Option<u32> {
        self.mask?.diffusion_block()
    }

    /// How tokens are chosen where this is asked for, and the model's own table says that.
    #[must_use]
    pub fn sampler(&self, asked: &SamplingOptions, table: &ModelTable) -> Sampler {
        let of_table = table.sampling_options();
        let of_checkpoint = match self.mask {
            // What transformers writes into all files means nothing where temperatures are the policy's.
            Some(mask) if mask.is_random() => SamplingOptions::default(),
            Some(_) => self.recommended.drawing,
            None => self.recommended.whole(),
        };
        let said = [
            (SettingOrigin::Request, *asked),
            (SettingOrigin::ModelFile, of_table),
            (SettingOrigin::Checkpoint, of_checkpoint),
            (SettingOrigin::BuiltIn, self.built_in()),
        ];
        let mut all = Vec::new();
        let mut tell =
            |name, value: String, origin| all.push(self.sampling_setting(name, value, origin));
        let temperature = resolve(said.map(|(origin, drawing)| (origin, drawing.temperature)))
            .expect("there is a temperature for all");
        // What is above 0 there, the engine refuses.
        let is_the_policys =
            self.mask.is_some_and(|mask| mask.is_random()) && temperature.value <= 0.0;
        if !is_the_policys {
            tell(
                "temperature",
                temperature.value.to_string(),
                temperature.origin,
            );
        }
        let sampling = match self.is_masked_diffusion() {
            // The engine refuses requested options that only autoregressive models take.
            true => asked.sampling.effective(),
            false => {
                let of = |read: fn(&Sampling) -> Option<f64>| {
                    resolve(said.map(|(origin, drawing)| (origin, read(&drawing.sampling))))
                };
                let top_k = of(|sampling| sampling.top_k.map(f64::from));
                let top_p = of(|sampling| sampling.top_p);
                let min_p = of(|sampling| sampling.min_p);
                let penalty = of(|sampling| sampling.repetition_penalty);
                let value = |found: Option<ResolvedValue<f64>>| found.map(|found| found.value);
                let sampling = Sampling {
                    // It was an integer before `of` made it an `f64`.
                    top_k: value(top_k).map(|top_k| top_k as u32),
                    top_p: value(top_p),
                    min_p: value(min_p),
                    repetition_penalty: value(penalty),
                }
                .effective();
                for (name, has_effect, found) in [
                    ("top_k", sampling.top_k.is_some(), top_k),
                    ("top_p", sampling.top_p.is_some(), top_p),
                    ("min_p", sampling.min_p.is_some(), min_p),
                    (
                        "repetition_penalty",
                        sampling.repetition_penalty.is_some(),
                        penalty,
                    ),
                ] {
                    if let Some(found) = found.filter(|_| has_effect) {
                        tell(name, found.value.to_string(), found.origin);
                    }
                }
                sampling
            }
        };
        // Dream's card recommends temperature and ranking together, so another temperature keeps the usual ranking.
        let is_card = temperature.origin == SettingOrigin::BuiltIn;
        let ranking = is_card && self.is_masked_diffusion() && self.family == DREAM;
        Sampler {
            temperature: temperature.value,
            sampling,
            remasking: ranking.then_some(Remasking::Entropy),
            settings: all,
        }
    }

    /// Positions decoded together where so many are asked for, within the daemon's limit for those that are not, and what to
    /// tell of it where the checkpoint or that limit decided.
    #[must_use]
    pub fn block_length(
        &self,
        asked: Option<u32>,
        limit: Option<u32>,
    ) -> (u32, Option<v1::ResolvedSetting>) {
        let limit = limit.filter(|_| self.is_masked_diffusion());
        // A checkpoint that was trained with shorter blocks keeps them.
        let recommended = self.recommended.block_length.filter(|recommended| {
            self.is_masked_diffusion() && limit.is_none_or(|limit| *recommended <= limit)
        });
        let length = resolve([
            (SettingOrigin::Request, asked),
            // What the model was trained with, not how it is sampled.
            (SettingOrigin::BuiltIn, self.diffusion_block()),
            (SettingOrigin::Checkpoint, recommended),
            (SettingOrigin::SmallMemory, limit),
            (SettingOrigin::BuiltIn, Some(BLOCK_LENGTH)),
        ])
        .expect("there is one for all");
        let is_told = matches!(
            length.origin,
            SettingOrigin::Checkpoint | SettingOrigin::SmallMemory
        );
        let told =
            is_told.then(|| self.sampling_setting("block_length", length.value, length.origin));
        (length.value, told)
    }

    /// A setting as clients get it, with the file's name where it is the checkpoint's word.
    fn sampling_setting(
        &self,
        name: &str,
        value: impl Display,
        origin: SettingOrigin,
    ) -> v1::ResolvedSetting {
        let told = resolved_setting(name, value, origin);
        match origin {
            SettingOrigin::Checkpoint => v1::ResolvedSetting {
                origin: self.recommended.place.to_owned(),
                ..told
            },
            _ => told,
        }
    }

    fn built_in(&self) -> SamplingOptions {
        let temperature = match (self.is_masked_diffusion(), self.family) {
            (true, DREAM) => DREAM_TEMPERATURE,
            (true, _) => 0.0,
            (false, _) => TEMPERATURE,
        };
        SamplingOptions {
            temperature: Some(temperature),
            sampling: Sampling {
                top_p: Some(TOP_P),
                repetition_penalty: self.can_chat.then_some(REPETITION_PENALTY),
                ..Sampling::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: MaskToken = MaskToken {
        token_id: Some(0),
        shifted: false,
        blocks: None,
        reserved: None,
    };

    fn subject(recommended: &RecommendedSettings) -> SampledModel<'_> {
        SampledModel {
            family: "llama",
            mask: None,
            can_chat: true,
            recommended,
        }
    }

    /// As people read it.
    fn told(sampler: &Sampler) -> String {
        let told = sampler.settings.iter();
        let line = |setting: &v1::ResolvedSetting| {
            format!("{} {} ({})", setting.name, setting.value, setting.origin)
        };
        told.map(line).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn without_a_word_a_model_that_talks_is_drawn_from() {
        let nothing = RecommendedSettings::default();
        let sampler =
            subject(&nothing).sampler(&SamplingOptions::default(), &ModelTable::default());
        assert_eq!(
            told(&sampler),
            "temperature 0.7 (built-in), top_p 0.9 (built-in), repetition_penalty 1.1 (built-in)"
        );
        assert_eq!(sampler.sampling.repetition_penalty, Some(1.1));
        let base = SampledModel {
            can_chat: false,
            ..subject(&nothing)
        };
        let sampler = base.sampler(&SamplingOptions::default(), &ModelTable::default());
        assert_eq!(
            told(&sampler),
            "temperature 0.7 (built-in), top_p 0.9 (built-in)"
        );
    }

    #[test]
    fn each_value_is_the_first_word_on_it() {
        let recommended = RecommendedSettings {
            drawing: SamplingOptions {
                temperature: Some(0.6),
                sampling: Sampling {
                    top_k: Some(20),
                    top_p: Some(0.95),
                    ..Sampling::default()
                },
            },
            place: "generation_config.json",
            ..RecommendedSettings::default()
        };
        let subject = subject(&recommended);
        // What a checkpoint leaves out is not there: no built-in penalty beside its advice.
        let sampler = subject.sampler(&SamplingOptions::default(), &ModelTable::default());
        let place = "(generation_config.json)";
        assert_eq!(
            told(&sampler),
            format!("temperature 0.6 {place}, top_k 20 {place}, top_p 0.95 {place}")
        );
        let table = ModelTable {
            temperature: Some(0.3),
            top_k: Some(0),
            ..ModelTable::default()
        };
        let mut asked = SamplingOptions::default();
        asked.sampling.min_p = Some(0.1);
        assert_eq!(
            told(&subject.sampler(&asked, &table)),
            format!("temperature 0.3 (models.toml), top_p 0.95 {place}, min_p 0.1 (request)")
        );
        asked.temperature = Some(1.5);
        assert!(told(&subject.sampler(&asked, &table)).starts_with("temperature 1.5 (request)"));
        // The reference's way leaves nothing of all that.
        let greedy = subject.sampler(&SamplingOptions::greedy(), &table);
        assert_eq!(told(&greedy), "temperature 0 (request)");
        assert_eq!(greedy.sampling, Sampling::default());
        let table = ModelTable {
            greedy: true,
            repetition_penalty: Some(1.2),
            ..ModelTable::default()
        };
        assert_eq!(
            told(&subject.sampler(&SamplingOptions::default(), &table)),
            "temperature 0 (models.toml), repetition_penalty 1.2 (models.toml)"
        );
    }

    #[test]
    fn a_block_is_as_long_as_asked_or_recommended() {
        let nothing = RecommendedSettings::default();
        let recommended = RecommendedSettings {
            block_length: Some(8),
            place: "generation_config.json",
            ..RecommendedSettings::default()
        };
        let of = |recommended, asked, is_masked: bool| {
            let subject = SampledModel {
                mask: is_masked.then_some(MASK),
                ..subject(recommended)
            };
            let (length, told) = subject.block_length(asked, None);
            (length, told.map(|told| told.origin))
        };
        let place = Some("generation_config.json".to_owned());
        assert_eq!(of(&recommended, None, true), (8, place));
        assert_eq!(of(&recommended, Some(64), true), (64, None));
        assert_eq!(of(&nothing, None, true), (32, None));
        // An autoregressive model writes one token after another, whatever its checkpoint says.
        assert_eq!(of(&recommended, None, false), (32, None));
    }

    #[test]
    fn a_limit_of_the_daemon_shortens_blocks_that_nobody_asked_for() {
        let of = |recommended: Option<u32>, asked, is_masked: bool| {
            let recommended = RecommendedSettings {
                block_length: recommended,
                place: "generation_config.json",
                ..RecommendedSettings::default()
            };
            let subject = SampledModel {
                mask: is_masked.then_some(MASK),
                ..subject(&recommended)
            };
            let (length, told) = subject.block_length(asked, Some(16));
            (length, told.map(|told| told.origin))
        };
        let small = Some("small_memory".to_owned());
        assert_eq!(of(None, None, true), (16, small.clone()));
        assert_eq!(of(Some(64), None, true), (16, small));
        let place = Some("generation_config.json".to_owned());
        assert_eq!(of(Some(4), None, true), (4, place));
        assert_eq!(of(Some(4), Some(64), true), (64, None));
        assert_eq!(of(None, None, false), (32, None));
    }

    #[test]
    fn models_that_fill_masks_do_as_their_cards_say() {
        let nothing = RecommendedSettings::default();
        let masked = |family| SampledModel {
            family,
            mask: Some(MASK),
            ..subject(&nothing)
        };
        let table = ModelTable::default();
        let llada = masked("llada").sampler(&SamplingOptions::default(), &table);
        assert_eq!(
            (told(&llada).as_str(), llada.remasking),
            ("temperature 0 (built-in)", None)
        );
        assert_eq!(llada.sampling, Sampling::default());
        // Its policy has temperatures of its own.
        let random = SampledModel {
            mask: Some(MaskToken {
                token_id: None,
                ..MASK
            }),
            ..masked("diffusion_gemma")
        };
        assert_eq!(
            told(&random.sampler(&SamplingOptions::default(), &table)),
            ""
        );
        let dream = masked("Dream").sampler(&SamplingOptions::default(), &table);
        assert_eq!(told(&dream), "temperature 0.2 (built-in)");
        assert_eq!(dream.remasking, Some(Remasking::Entropy));
        let greedy = masked("Dream").sampler(&SamplingOptions::greedy(), &table);
        assert_eq!((greedy.temperature, greedy.remasking), (0.0, None));
        // Nothing that the engine would take for an option of an autoregressive model.
        assert_eq!(greedy.sampling, Sampling::default());
        let mut asked = SamplingOptions::default();
        asked.sampling.top_k = Some(4);
        assert_eq!(
            masked("llada").sampler(&asked, &table).sampling,
            asked.sampling
        );
    }
}
