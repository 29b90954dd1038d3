//! How a masked diffusion model is to fill the canvas: the preset, and what is to take the place of parts of it.

use sluice_shared::{
    decoding::{BRANCHES_DEFAULT, BRANCHES_MAX},
    policy::PolicyChoice,
    sampling::Remasking,
};
pub use sluice_shared::{
    decoding::{CanvasGrowth, KvCacheReuse, Speculation},
    preset::Preset,
};

use super::{
    InvalidField, Pin, at_least_one, checked, invalid, known, not_negative, pin, wire_value,
};
use crate::v1::{self, generate_request::Decoding};

/// Checked [`v1::DiffusionOptions`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DiffusionChoice {
    /// Passes of the reference schedule, at least 1.
    pub steps: Option<u32>,
    /// Finite, at least 0.
    pub guidance: f64,
    /// How positions are ranked; `None`: the model's to say.
    pub remasking: Option<Remasking>,
    /// Tokens fixed in the canvas, with their positions.
    pub pins: Vec<Pin>,
    /// All that a preset stands for.
    pub decoding: DecodingChoice,
}

/// What was said of the preset and its parts, checked; `None` is the daemon's or the preset's to say.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DecodingChoice {
    /// What all the others come from.
    pub preset: Option<Preset>,
    /// Which positions a pass commits.
    pub policy: Option<PolicyChoice>,
    /// What is kept between passes; every setting makes sense.
    pub kv_cache: Option<KvCacheReuse>,
    /// Masks behind the open block that a pass computes.
    pub suffix_window: Option<u32>,
    /// How long the canvas is.
    pub canvas_growth: Option<CanvasGrowth>,
    /// Orders tried beside each other, as few as may be.
    pub speculation: Option<Speculation>,
}

impl TryFrom<v1::DiffusionOptions> for DiffusionChoice {
    type Error = InvalidField;

    fn try_from(wire: v1::DiffusionOptions) -> Result<Self, InvalidField> {
        Ok(Self {
            steps: at_least_one("diffusion.steps", wire.steps)?,
            guidance: not_negative("diffusion.guidance", wire.guidance)?,
            remasking: checked(
                "diffusion.remasking",
                wire.remasking,
                v1::Remasking::checked,
            )?,
            decoding: DecodingChoice::read(&wire)?,
            pins: wire.pins.into_iter().map(pin).collect::<Result<_, _>>()?,
        })
    }
}

impl DiffusionChoice {
    /// The path of the first option that an autoregressive model cannot honour: any but the preset `exact`.
    #[must_use]
    pub fn beyond_exact(&self) -> Option<&'static str> {
        // Taken apart by name, so that a new option cannot be forgotten below.
        let DecodingChoice {
            preset,
            policy,
            kv_cache,
            suffix_window,
            canvas_growth,
            speculation,
        } = &self.decoding;
        // `exact` is accepted for models of both kinds, since `sluice bench` sends it to either.
        let is_inexact = preset.is_some_and(|preset| preset != Preset::Exact);
        let said = [
            ("diffusion.preset", is_inexact),
            ("diffusion.steps", self.steps.is_some()),
            ("diffusion.guidance", self.guidance > 0.0),
            ("diffusion.remasking", self.remasking.is_some()),
            ("diffusion.pins", !self.pins.is_empty()),
            ("diffusion.policy", policy.is_some()),
            ("diffusion.kv_cache", kv_cache.is_some()),
            ("diffusion.suffix_window", suffix_window.is_some()),
            ("diffusion.canvas_growth", canvas_growth.is_some()),
            ("diffusion.speculation", speculation.is_some()),
        ];
        let first = said.into_iter().find(|(_, is_said)| *is_said);
        first.map(|(path, _)| path)
    }
}

impl DecodingChoice {
    /// Reads its part of the options.
    ///
    /// # Errors
    /// When one of them makes no sense.
    pub fn read(wire: &v1::DiffusionOptions) -> Result<Self, InvalidField> {
        Ok(Self {
            preset: checked("diffusion.preset", wire.preset, v1::DecodingPreset::checked)?,
            policy: wire.policy.as_ref().map(policy).transpose()?,
            kv_cache: wire.kv_cache.as_ref().map(kv_cache_reuse).transpose()?,
            suffix_window: wire.suffix_window,
            canvas_growth: checked(
                "diffusion.canvas_growth",
                wire.canvas_growth,
                v1::CanvasGrowth::checked,
            )?,
            speculation: wire.speculation.as_ref().map(speculation).transpose()?,
        })
    }

    /// Writes its part of the options.
    pub fn write(&self, wire: &mut v1::DiffusionOptions) {
        wire.preset = wire_value::<v1::DecodingPreset, _>(self.preset);
        wire.policy = self.policy.as_ref().map(v1::CommitPolicy::from);
        wire.kv_cache = self.kv_cache.map(v1::KvCacheReuse::from);
        wire.suffix_window = self.suffix_window;
        wire.canvas_growth = wire_value::<v1::CanvasGrowth, _>(self.canvas_growth);
        wire.speculation = self.speculation.map(|speculation| {
            let (kind, branches) = match speculation {
                Speculation::None => (v1::SpeculationKind::None, None),
                Speculation::Explore { branches } => (v1::SpeculationKind::Explore, Some(branches)),
                Speculation::Draft { branches } => (v1::SpeculationKind::Draft, Some(branches)),
            };
            v1::Speculation {
                kind: kind.into(),
                branches,
            }
        });
    }
}

impl v1::GenerateRequest {
    /// How tokens are chosen, to be written.
    pub fn sampling_mut(&mut self) -> &mut v1::SamplingOptions {
        self.sampling.get_or_insert_default()
    }

    /// The options of masked diffusion models, if the request has some.
    #[must_use]
    pub fn diffusion(&self) -> Option<&v1::DiffusionOptions> {
        match &self.decoding {
            Some(Decoding::Diffusion(options)) => Some(options),
            Some(Decoding::Autoregressive(_)) | None => None,
        }
    }

    /// The same, to be written; they replace those of autoregressive models.
    pub fn diffusion_mut(&mut self) -> &mut v1::DiffusionOptions {
        if self.diffusion().is_none() {
            self.decoding = Some(Decoding::Diffusion(v1::DiffusionOptions::default()));
        }
        match &mut self.decoding {
            Some(Decoding::Diffusion(options)) => options,
            _ => unreachable!("they were put there"),
        }
    }

    /// The options of autoregressive models, to be written; they replace those of masked diffusion models.
    pub fn autoregressive_mut(&mut self) -> &mut v1::AutoregressiveOptions {
        if !matches!(self.decoding, Some(Decoding::Autoregressive(_))) {
            self.decoding = Some(Decoding::Autoregressive(
                v1::AutoregressiveOptions::default(),
            ));
        }
        match &mut self.decoding {
            Some(Decoding::Autoregressive(options)) => options,
            _ => unreachable!("they were put there"),
        }
    }
}

impl v1::GenerationStarted {
    /// What the request comes to, as people read it; nothing for an autoregressive model, or where it isn't understood.
    #[must_use]
    pub fn decoding(&self) -> DecodingChoice {
        let mut wire = self.diffusion.clone().unwrap_or_default();
        // A policy of a newer daemon hides nothing else.
        let policy = wire.policy.take().and_then(|wire| policy(&wire).ok());
        let rest = DecodingChoice::read(&wire).unwrap_or_default();
        DecodingChoice { policy, ..rest }
    }

    /// Passes of the schedule; an autoregressive model takes one for each position.
    #[must_use]
    pub fn steps(&self) -> u32 {
        let steps = self.diffusion.as_ref().and_then(|options| options.steps);
        steps.unwrap_or(self.length)
    }
}

fn policy(wire: &v1::CommitPolicy) -> Result<PolicyChoice, InvalidField> {
    let parameters = wire.parameters.iter();
    let parameters = parameters.map(|(key, value)| (key.as_str(), *value));
    PolicyChoice::new(&wire.name, parameters)
        .map_err(|error| invalid("diffusion.policy", error.to_string()))
}

impl From<&PolicyChoice> for v1::CommitPolicy {
    fn from(choice: &PolicyChoice) -> Self {
        Self {
            name: choice.name().to_owned(),
            parameters: choice
                .parameters()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        }
    }
}

fn kv_cache_reuse(wire: &v1::KvCacheReuse) -> Result<KvCacheReuse, InvalidField> {
    const FIELD: &str = "diffusion.kv_cache";
    let mode = checked(FIELD, wire.mode, v1::KvCacheMode::checked)?;
    let usual = KvCacheReuse::default();
    let reuse = KvCacheReuse {
        mode: mode.ok_or_else(|| invalid(FIELD, "has no mode"))?,
        refresh_passes: wire.refresh_passes,
        recompute_before: wire.recompute_before,
        recompute_around: wire.recompute_around.unwrap_or(usual.recompute_around),
        keep_share: wire.keep_share.unwrap_or(usual.keep_share),
    };
    match reuse.problem() {
        Some((option, problem)) => Err(invalid(FIELD, format!("{option} {problem}"))),
        None => Ok(reuse),
    }
}

impl From<KvCacheReuse> for v1::KvCacheReuse {
    fn from(reuse: KvCacheReuse) -> Self {
        let mode = v1::KvCacheMode::from(reuse.mode);
        if matches!(mode, v1::KvCacheMode::None | v1::KvCacheMode::Blocks) {
            // The rest has no effect.
            return Self {
                mode: mode.into(),
                ..Self::default()
            };
        }
        Self {
            mode: mode.into(),
            refresh_passes: reuse.refresh_passes,
            recompute_before: reuse.recompute_before,
            recompute_around: Some(reuse.recompute_around),
            keep_share: Some(reuse.keep_share),
        }
    }
}

fn speculation(wire: &v1::Speculation) -> Result<Speculation, InvalidField> {
    let branches = wire.branches.unwrap_or(BRANCHES_DEFAULT);
    if !(1..=BRANCHES_MAX).contains(&branches) {
        let problem = format!("branches must be between 1 and {BRANCHES_MAX}, not {branches}");
        return Err(invalid("diffusion.speculation", problem));
    }
    match known("diffusion.speculation", wire.kind)? {
        v1::SpeculationKind::Unspecified => Err(invalid("diffusion.speculation", "has no kind")),
        v1::SpeculationKind::None => Ok(Speculation::None),
        v1::SpeculationKind::Explore => Ok(Speculation::Explore { branches }),
        v1::SpeculationKind::Draft => Ok(Speculation::Draft { branches }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(change: impl FnOnce(&mut v1::DiffusionOptions)) -> Result<DecodingChoice, String> {
        let mut wire = v1::DiffusionOptions::default();
        change(&mut wire);
        DecodingChoice::read(&wire).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_read_again() {
        let nothing = DecodingChoice::default();
        assert_eq!(read(|wire| nothing.write(wire)), Ok(nothing));
        for (kv_cache, growth, speculation) in [
            ("none", "fixed", "none"),
            ("prefix", "append", "explore:branches=4"),
            (
                "dual:refresh=8,recompute-before=0",
                "insert",
                "draft:branches=15",
            ),
            (
                "vicinity:recompute-around=4,keep=0.5",
                "fixed",
                "explore:branches=1",
            ),
        ] {
            let choice = DecodingChoice {
                preset: Some(Preset::Fast),
                policy: Some("threshold:t=0.7".parse().unwrap()),
                kv_cache: Some(kv_cache.parse().unwrap()),
                suffix_window: Some(0),
                canvas_growth: Some(growth.parse().unwrap()),
                speculation: Some(speculation.parse().unwrap()),
            };
            assert_eq!(read(|wire| choice.write(wire)), Ok(choice));
        }
    }

    #[test]
    fn what_is_not_said_of_a_cache_is_as_published() {
        let dual = v1::KvCacheReuse {
            mode: v1::KvCacheMode::Dual.into(),
            ..Default::default()
        };
        let choice = read(|wire| wire.kv_cache = Some(dual)).unwrap();
        assert_eq!(choice.kv_cache, Some("dual".parse().unwrap()));
    }

    #[test]
    fn an_autoregressive_model_takes_the_exact_preset_alone() {
        let first = |change: fn(&mut v1::DiffusionOptions)| {
            let mut wire = v1::DiffusionOptions::default();
            wire.set_preset(v1::DecodingPreset::Exact);
            change(&mut wire);
            DiffusionChoice::try_from(wire).unwrap().beyond_exact()
        };
        assert_eq!(first(|_| {}), None);
        assert_eq!(first(|wire| wire.guidance = Some(0.0)), None);
        for (path, first) in [
            (
                "diffusion.preset",
                first(|wire| wire.set_preset(v1::DecodingPreset::Auto)),
            ),
            ("diffusion.steps", first(|wire| wire.steps = Some(1))),
            (
                "diffusion.kv_cache",
                first(|wire| wire.kv_cache = Some(KvCacheReuse::default().into())),
            ),
            (
                "diffusion.suffix_window",
                first(|wire| wire.suffix_window = Some(0)),
            ),
        ] {
            assert_eq!(first, Some(path));
        }
    }

    #[test]
    fn each_broken_field_is_named() {
        let problem = |change: fn(&mut v1::DiffusionOptions)| read(change).unwrap_err();
        assert_eq!(
            problem(|wire| wire.preset = 9),
            "diffusion.preset: has no value 9"
        );
        assert_eq!(
            problem(|wire| wire.canvas_growth = 9),
            "diffusion.canvas_growth: has no value 9"
        );
        let reuse = |reuse: v1::KvCacheReuse| read(|wire| wire.kv_cache = Some(reuse)).unwrap_err();
        assert_eq!(
            reuse(v1::KvCacheReuse::default()),
            "diffusion.kv_cache: has no mode"
        );
        let unknown = v1::KvCacheReuse {
            mode: 9,
            ..Default::default()
        };
        assert_eq!(reuse(unknown), "diffusion.kv_cache: has no value 9");
        let never = v1::KvCacheReuse {
            mode: v1::KvCacheMode::Dual.into(),
            refresh_passes: Some(0),
            ..Default::default()
        };
        assert_eq!(
            reuse(never),
            "diffusion.kv_cache: refresh must be at least 1, not 0"
        );
        let speculation = |kind, branches| {
            let speculation = v1::Speculation { kind, branches };
            read(|wire| wire.speculation = Some(speculation)).unwrap_err()
        };
        assert_eq!(speculation(0, None), "diffusion.speculation: has no kind");
        assert_eq!(
            speculation(9, None),
            "diffusion.speculation: has no value 9"
        );
        assert_eq!(
            speculation(v1::SpeculationKind::Draft.into(), Some(16)),
            "diffusion.speculation: branches must be between 1 and 15, not 16"
        );
    }
}
