//! Resolves a preset and a request's own options to the engine's decoding options.

use sluice_checkpoint::family::MaskToken;
use sluice_engine::{CanvasSlot, Generate, Work, decode::policy::policy};
use sluice_proto::model::{CanvasGrowth, DecodingChoice, KvCacheReuse, Preset, Speculation};
use sluice_shared::{
    decoding::Decoding,
    policy::{PolicyChoice, RENOISE, STEPS_MAX},
    preset::ResolvedPreset,
    sampling::{KvCacheMode, Remasking},
};

/// Writes decoding options into the request: its own, and the preset's for all else. `default` is used where it names no
/// preset, except where it sets steps without a policy, which is the reference's schedule and so means `exact`.
/// `is_bus_bound` tells whether a possible request's passes wait for streamed weights longer than they compute. Returns the
/// preset in force.
pub(super) fn apply_preset(
    work: &mut Generate,
    asked: &DecodingChoice,
    has_steps: bool,
    default: Preset,
    mask: Option<MaskToken>,
    is_bus_bound: impl Fn(&Work) -> bool,
) -> Preset {
    let is_scheduled = has_steps && asked.policy.is_none();
    let preset = asked.preset.unwrap_or(match is_scheduled {
        true => Preset::Exact,
        false => default,
    });
    let writes_on = !has_steps && writes_on(work);
    let renoise = mask.filter(MaskToken::is_random);
    let renoise = renoise.map(|_| renoise_policy(work, has_steps));
    let with_blocks = |bundle: &ResolvedPreset| match mask.and_then(|mask| mask.blocks) {
        Some(blocks) => {
            let bundle = of_blocks(bundle, blocks.causal_attention_before && writes_on);
            ResolvedPreset {
                policy: renoise.unwrap_or(bundle.policy),
                ..bundle
            }
        }
        None => *bundle,
    };
    let bundle = preset.resolve(|bundle| {
        let mut work = work.clone();
        overlay(&mut work, asked, &with_blocks(bundle));
        is_bus_bound(&Work::Generate(work))
    });
    overlay(work, asked, &with_blocks(&bundle));
    preset
}

/// What a preset comes to for a block diffusion model: finished blocks are kept, and behind the open one nothing is seen, so
/// that nothing can be left out there. One that can also be asked for the next token of a text is, `causally`, where the
/// preset is exact: that is its own default. It drafts where others guess passes ahead, which changes no token either.
fn of_blocks(bundle: &ResolvedPreset, causally: bool) -> ResolvedPreset {
    let name = match bundle.decoding.speculation {
        Speculation::Draft { .. } => "verify",
        Speculation::None | Speculation::Explore { .. } => "autoregressive",
    };
    let next_token = PolicyChoice::new(name, []).ok();
    let is_schedule = bundle.policy == PolicyChoice::default();
    ResolvedPreset {
        policy: next_token
            .filter(|_| causally && is_schedule)
            .unwrap_or(bundle.policy),
        decoding: Decoding {
            kv_cache: KvCacheReuse {
                mode: KvCacheMode::Blocks,
                ..KvCacheReuse::default()
            },
            ..Decoding::default()
        },
    }
}

/// What each preset comes to for a model that denoises canvases of random tokens: its only policy, whose passes are counted
/// by canvas.
fn renoise_policy(work: &Generate, has_steps: bool) -> PolicyChoice {
    let canvases = work.canvas.len().div_ceil(work.block_length.max(1)).max(1);
    let steps = (work.steps.div_ceil(canvases) as f64).clamp(1.0, STEPS_MAX);
    let steps = has_steps.then_some(("steps", steps));
    PolicyChoice::new(RENOISE, steps).unwrap_or_default()
}

/// Whether a request can be filled from left to right.
fn writes_on(work: &Generate) -> bool {
    let is_masked = |slot: &CanvasSlot| *slot == CanvasSlot::Masked;
    !work.prompt.is_empty()
        && work.canvas.iter().all(is_masked)
        && work.guidance == 0.0
        && work.remasking == Remasking::default()
}

/// Lays what was asked for over the bundle, word by word.
fn overlay(work: &mut Generate, asked: &DecodingChoice, bundle: &ResolvedPreset) {
    let ResolvedPreset { policy, decoding } = bundle;
    let growth = asked.canvas_growth.unwrap_or(decoding.canvas_growth);
    let speculation = asked.speculation.unwrap_or(decoding.speculation);
    // A window as wide as the canvas leaves nothing out, and a canvas that is appended to has nothing behind its block.
    let proposed = decoding
        .suffix_window
        .filter(|_| growth != CanvasGrowth::Append);
    let window = asked.suffix_window.or(proposed);
    let window = window.filter(|masks| (*masks as usize) < work.canvas.len());
    work.policy = asked.policy.unwrap_or(*policy);
    let caching = match asked.kv_cache {
        Some(caching) => caching,
        None if refuses_kv_cache(work, speculation) => KvCacheReuse::default(),
        None => decoding.kv_cache,
    };
    work.decoding = Decoding {
        kv_cache: caching,
        suffix_window: window,
        canvas_growth: growth,
        speculation,
    };
}

/// What nobody asked for gives way to what somebody did.
fn refuses_kv_cache(work: &Generate, speculation: Speculation) -> bool {
    speculation != Speculation::None || policy(&work.policy).needs().checks
}

#[cfg(test)]
mod tests {
    use sluice_checkpoint::family::BlockDiffusion;
    use sluice_engine::ModelId;
    use sluice_proto::model::KvCacheMode;

    use super::*;

    /// What a request with these words comes to, on a machine where computing takes the time.
    fn settled(asked: &DecodingChoice, has_steps: bool, default: Preset) -> (Preset, Generate) {
        let mut work = Generate::greedy(ModelId(1), vec![1], 128);
        let preset = apply_preset(&mut work, asked, has_steps, default, None, |_| false);
        (preset, work)
    }

    #[test]
    fn without_a_word_the_daemons_preset_is_meant() {
        let nothing = DecodingChoice::default();
        for default in [Preset::Exact, Preset::Balanced] {
            let (preset, work) = settled(&nothing, false, default);
            let ResolvedPreset { policy, decoding } = default.resolve(|_| false);
            assert_eq!(preset, default);
            assert_eq!((work.policy, work.decoding), (policy, decoding));
        }
    }

    #[test]
    fn steps_alone_are_the_references() {
        let mut asked = DecodingChoice::default();
        assert_eq!(settled(&asked, true, Preset::Fast).0, Preset::Exact);
        asked.policy = Some("factor".parse().unwrap());
        assert_eq!(settled(&asked, true, Preset::Fast).0, Preset::Fast);
        let asked = DecodingChoice {
            preset: Some(Preset::Quality),
            ..DecodingChoice::default()
        };
        assert_eq!(settled(&asked, true, Preset::Fast).0, Preset::Quality);
    }

    #[test]
    fn each_word_takes_the_place_of_the_presets_and_no_other() {
        let fast = settled(&DecodingChoice::default(), false, Preset::Fast).1;
        let with = |change: fn(&mut DecodingChoice)| {
            let mut asked = DecodingChoice {
                preset: Some(Preset::Fast),
                ..DecodingChoice::default()
            };
            change(&mut asked);
            settled(&asked, false, Preset::Exact).1
        };
        let mut expected = fast.clone();
        expected.policy = "factor".parse().unwrap();
        assert_eq!(
            with(|asked| asked.policy = Some("factor".parse().unwrap())),
            expected
        );
        let mut expected = fast.clone();
        expected.decoding.kv_cache = "prefix".parse().unwrap();
        assert_eq!(
            with(|asked| asked.kv_cache = Some("prefix".parse().unwrap())),
            expected
        );
        let mut expected = fast.clone();
        expected.decoding.canvas_growth = CanvasGrowth::Append;
        expected.decoding.suffix_window = None;
        assert_eq!(
            with(|asked| asked.canvas_growth = Some(CanvasGrowth::Append)),
            expected
        );
        let mut expected = fast;
        expected.decoding.suffix_window = Some(127);
        assert_eq!(with(|asked| asked.suffix_window = Some(127)), expected);
        // All of them.
        expected.decoding.suffix_window = None;
        assert_eq!(with(|asked| asked.suffix_window = Some(128)), expected);
    }

    #[test]
    fn a_cache_that_nobody_asked_for_gives_way() {
        let draft = Speculation::Draft { branches: 2 };
        let mut asked = DecodingChoice {
            preset: Some(Preset::Balanced),
            speculation: Some(draft),
            ..DecodingChoice::default()
        };
        let (_, work) = settled(&asked, false, Preset::Exact);
        assert_eq!(work.decoding.speculation, draft);
        assert_eq!(work.decoding.kv_cache.mode, KvCacheMode::None);
        // One that somebody asked for is left for the engine to refuse.
        asked.kv_cache = Some("dual".parse().unwrap());
        let (_, work) = settled(&asked, false, Preset::Exact);
        assert_eq!(work.decoding.kv_cache.mode, KvCacheMode::Dual);
    }

    #[test]
    fn a_model_that_reads_text_causally_is_asked_for_the_next_token() {
        let resolved = |asked: &DecodingChoice, has_steps: bool, prompt: Vec<u32>, waits: bool| {
            let mut work = Generate::greedy(ModelId(1), prompt, 128);
            let blocks = BlockDiffusion {
                length: 32,
                filled_together: 32,
                causal_attention_before: true,
            };
            let exact = Preset::Exact;
            let mask = MaskToken {
                token_id: Some(9),
                shifted: false,
                blocks: Some(blocks),
                reserved: None,
            };
            apply_preset(&mut work, asked, has_steps, exact, Some(mask), |_| waits);
            assert_eq!(work.decoding.kv_cache.mode, KvCacheMode::Blocks);
            work.policy.name()
        };
        let policy = |asked: &_, has_steps, prompt| resolved(asked, has_steps, prompt, false);
        let nothing = DecodingChoice::default();
        assert_eq!(policy(&nothing, false, vec![1]), "autoregressive");
        // Where rows cost nothing.
        assert_eq!(resolved(&nothing, false, vec![1], true), "verify");
        // With a schedule blocks are filled, and without a text there is no next token.
        assert_eq!(policy(&nothing, true, vec![1]), "reference");
        assert_eq!(policy(&nothing, false, Vec::new()), "reference");
        let fast = DecodingChoice {
            preset: Some(Preset::Fast),
            ..DecodingChoice::default()
        };
        assert_eq!(policy(&fast, false, vec![1]), "factor");
    }

    #[test]
    fn a_model_without_a_mask_token_has_one_policy() {
        let policy = |preset: Preset, steps: Option<usize>| {
            let mut work = Generate {
                block_length: 256,
                ..Generate::greedy(ModelId(1), vec![1], 512)
            };
            work.steps = steps.unwrap_or(work.steps);
            let mask = MaskToken {
                token_id: None,
                shifted: false,
                blocks: Some(BlockDiffusion {
                    length: 256,
                    filled_together: 256,
                    causal_attention_before: true,
                }),
                reserved: None,
            };
            let asked = DecodingChoice::default();
            apply_preset(
                &mut work,
                &asked,
                steps.is_some(),
                preset,
                Some(mask),
                |_| true,
            );
            assert_eq!(work.decoding.kv_cache.mode, KvCacheMode::Blocks);
            assert_eq!(work.decoding.speculation, Speculation::None);
            work.policy.to_string()
        };
        let usual = "renoise:bound=0.1,tmin=0.4,tmax=0.8,sure=0.005,steps=48";
        for preset in [Preset::Exact, Preset::Balanced, Preset::Auto] {
            assert_eq!(policy(preset, None), usual);
        }
        // Two canvases share them.
        let fewer = "renoise:bound=0.1,tmin=0.4,tmax=0.8,sure=0.005,steps=12";
        assert_eq!(policy(Preset::Exact, Some(24)), fewer);
    }

    #[test]
    fn a_preset_asks_about_what_would_be_done() {
        let bound = |asked: DecodingChoice, is_bus_bound: fn(&Generate) -> bool| {
            let mut work = Generate::greedy(ModelId(1), vec![1], 128);
            apply_preset(&mut work, &asked, false, Preset::Exact, None, |work| {
                let Work::Generate(work) = work else {
                    panic!("a generation");
                };
                is_bus_bound(work)
            });
            work.decoding
        };
        let draft = Speculation::Draft { branches: 3 };
        let nothing = DecodingChoice::default;
        assert_eq!(bound(nothing(), |_| true).speculation, draft);
        // With the cache that was asked for, which refuses it.
        let cached = DecodingChoice {
            kv_cache: Some("dual".parse().unwrap()),
            ..nothing()
        };
        let can_be_done = |work: &Generate| work.decoding.kv_cache.mode == KvCacheMode::None;
        assert_eq!(bound(cached, can_be_done).speculation, Speculation::None);
        let alone = DecodingChoice {
            speculation: Some(Speculation::None),
            ..nothing()
        };
        assert_eq!(bound(alone, |_| true).speculation, Speculation::None);
        let auto = DecodingChoice {
            preset: Some(Preset::Auto),
            ..nothing()
        };
        let explore = Speculation::Explore { branches: 3 };
        assert_eq!(bound(auto, |_| true).speculation, explore);
    }
}
