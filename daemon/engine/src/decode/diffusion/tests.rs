//! The sampler against a scripted model: what it asks for, and what it makes of the answers.

use std::ops::Range;

use proptest::prelude::*;
use sluice_checkpoint::family::{BlockDiffusion, MaskToken};
use sluice_ops::CandidateEvidence;
use sluice_shared::decoding::{Decoding, KvCacheReuse};

use super::*;
use crate::request::{AnywherePins, ModelId};

const MASK: u32 = 99;
const END: u32 = 90;

/// Always the same token and confidence at a position; remembers what it was asked.
pub(super) struct Scripted {
    pub(super) vocabulary: Arc<Vocabulary>,
    prompt: usize,
    answer: Vec<(u32, f64)>,
    /// Positions read, and the canvases, of each pass.
    asked: Vec<Vec<LmHeadRow>>,
    canvases: Vec<Vec<u32>>,
    unconditional: Vec<Option<Vec<u32>>>,
    cancel_at: Option<usize>,
    /// Positions that are doubted in a pass.
    doubted: Vec<(usize, usize)>,
}

impl Scripted {
    pub(super) fn new(prompt: usize, answer: impl IntoIterator<Item = (u32, f64)>) -> Self {
        Self {
            vocabulary: Arc::new(Vocabulary {
                size: 100,
                mask: Some(MaskToken {
                    token_id: Some(MASK),
                    shifted: false,
                    blocks: None,
                    reserved: None,
                }),
                ends: vec![END, 91],
            }),
            prompt,
            answer: answer.into_iter().collect(),
            asked: Vec::new(),
            canvases: Vec::new(),
            unconditional: Vec::new(),
            cancel_at: None,
            doubted: Vec::new(),
        }
    }
}

impl Scripted {
    /// Fills until nothing is left to do, or it is cancelled.
    fn drive(&mut self, request: &Generate, emit: &mut dyn FnMut(Event)) -> GenerationResult {
        let mut filling = Diffusion::new(request.clone(), Arc::clone(&self.vocabulary));
        filling.start(emit);
        let cost = PassCost::default();
        while !filling.is_done() {
            let passes = filling.passes();
            if self.cancel_at == Some(passes[0].number) {
                break;
            }
            let candidates = self.candidates(&passes[0]);
            drop(passes);
            filling.take(&[candidates], &cost, emit);
        }
        filling.generated()
    }

    /// What a second look makes of a token.
    fn doubts(&self, row: &LmHeadRow, pass: usize) -> f64 {
        match self.doubted.contains(&(row.position - self.prompt, pass)) {
            true => 0.1,
            false => 0.95,
        }
    }

    fn candidates(&mut self, pass: &Pass<'_>) -> Vec<Candidate> {
        assert_eq!(pass.number, self.asked.len());
        self.asked.push(pass.rows.to_vec());
        self.canvases.push(pass.canvas.to_vec());
        self.unconditional
            .push(pass.guidance.map(|(canvas, _)| canvas.to_vec()));
        let candidate = |row: &LmHeadRow| {
            let read = pass.canvas[row.position];
            match row.is_check {
                true => assert_eq!(row.target, Some(read), "what is committed is checked"),
                false => assert_eq!(read, MASK, "only masks are read"),
            }
            let (token, confidence) = self.answer[row.position - self.prompt];
            // A model that may not end here says something else.
            let token = if row.may_end || token < END { token } else { 7 };
            Candidate {
                token,
                confidence,
                rank: confidence,
                target_log_probability: row.target.map(|_| self.doubts(row, pass.number).ln()),
                evidence: CandidateEvidence::default(),
            }
        };
        pass.rows.iter().map(candidate).collect()
    }
}

pub(super) fn request(length: usize, block_length: usize, steps: usize) -> Generate {
    Generate {
        block_length,
        steps,
        eos: EosPolicy::Stop,
        seed: 1,
        ..Generate::greedy(ModelId(1), vec![1, 2, 3], length)
    }
}

fn rising(length: usize) -> impl Iterator<Item = (u32, f64)> {
    (0..length).map(move |i| (10 + i as u32, i as f64 / length as f64))
}

fn run(request: &Generate, model: &mut Scripted) -> GenerationResult {
    model.drive(request, &mut |_| {})
}

proptest! {
    #[test]
    fn any_length_block_and_steps_fill_the_canvas(length in 1usize..70, block in 1usize..70, steps in 1usize..150) {
        let block = block.min(length);
        let mut model = Scripted::new(3, rising(length));
        let generated = run(&request(length, block, steps), &mut model);
        let blocks = length.div_ceil(block);
        prop_assert_eq!(generated.finish_reason, FinishReason::Length);
        prop_assert_eq!(&generated.tokens, &rising(length).map(|(token, _)| token).collect::<Vec<_>>());
        // Every block has a pass, and no pass commits nothing.
        prop_assert!(generated.passes >= blocks && generated.passes <= steps.max(blocks).min(length));
        // Only the open block's masks are read.
        for rows in &model.asked {
            let first = (rows[0].position - 3) / block;
            prop_assert!(rows.iter().all(|row| (row.position - 3) / block == first));
        }
    }
}

#[test]
fn steps_are_shared_out_with_the_remainder_first() {
    let slots = vec![CanvasSlot::Masked; 20];
    let steps: Vec<usize> = cut(&slots, 0, 8, 11)
        .iter()
        .map(|block| block.steps)
        .collect();
    assert_eq!(steps, [4, 4, 3]);
    let mut pinned = slots;
    pinned[8..16].fill(CanvasSlot::Pinned(5));
    let steps: Vec<usize> = cut(&pinned, 0, 8, 11)
        .iter()
        .map(|block| block.steps)
        .collect();
    assert_eq!(steps, [6, 0, 5]);
}

#[test]
fn the_most_confident_are_committed_first_and_ties_go_left() {
    let mut model = Scripted::new(3, [(10, 0.5), (11, 0.9), (12, 0.5), (13, 0.1)]);
    run(&request(4, 4, 4), &mut model);
    let after: Vec<&[u32]> = model.canvases.iter().map(|canvas| &canvas[3..]).collect();
    assert_eq!(after[1], [MASK, 11, MASK, MASK]);
    assert_eq!(after[2], [10, 11, MASK, MASK]);
    assert_eq!(after[3], [10, 11, 12, MASK]);
}

#[test]
fn pinned_positions_stay_and_cost_no_pass() {
    let mut model = Scripted::new(3, rising(6));
    let mut request = request(6, 2, 6);
    request.canvas[1] = CanvasSlot::Pinned(50);
    request.canvas[2] = CanvasSlot::Pinned(51);
    request.canvas[3] = CanvasSlot::Pinned(52);
    request.guidance = 1.0;
    let mut states = Vec::new();
    let generated = model.drive(&request, &mut |event| {
        if let Event::BlockDone { positions, .. } = event {
            states.extend(positions.iter().map(|position| position.state));
        }
    });
    assert_eq!(generated.tokens, [10, 50, 51, 52, 14, 15]);
    assert_eq!(generated.passes, 3);
    use TokenState::{Committed, Pinned};
    assert_eq!(
        states,
        [Committed, Pinned, Pinned, Pinned, Committed, Committed]
    );
    // Guidance counts what was pinned as prompt.
    assert_eq!(model.unconditional[0], Some(vec![MASK; 9]));
    assert_eq!(
        model.unconditional[1],
        Some([[MASK; 3].as_slice(), &[10], &[MASK; 5]].concat())
    );
}

#[test]
fn the_text_ends_at_eos_once_nothing_before_it_is_masked() {
    // The end token is the most confident, but what comes before it is filled first.
    let answer = [
        (10, 0.2),
        (11, 0.3),
        (91, 0.9),
        (13, 0.8),
        (14, 0.7),
        (15, 0.6),
    ];
    let mut model = Scripted::new(3, answer);
    let generated = run(&request(6, 6, 6), &mut model);
    assert_eq!(generated.finish_reason, FinishReason::Eos);
    assert_eq!(generated.tokens, [10, 11, 91, END, END, END]);

    let mut later = request(6, 3, 6);
    let mut model = Scripted::new(3, answer);
    assert_eq!(
        run(&later, &mut model).passes,
        3,
        "the second block is never opened"
    );

    later.eos = EosPolicy::Keep;
    let generated = run(&later, &mut Scripted::new(3, answer));
    assert_eq!(generated.tokens, [10, 11, 91, 13, 14, 15]);
    assert_eq!(generated.finish_reason, FinishReason::Length);
}

#[test]
fn the_text_does_not_end_before_a_pin() {
    let answer = [
        (10, 0.2),
        (END, 0.9),
        (12, 0.5),
        (13, 0.5),
        (END, 0.5),
        (15, 0.5),
    ];
    let mut request = request(6, 6, 6);
    request.canvas[3] = CanvasSlot::Pinned(60);
    let generated = run(&request, &mut Scripted::new(3, answer));
    assert_eq!(generated.tokens, [10, 7, 12, 60, END, END]);
}

#[test]
fn random_remasking_follows_its_seed() {
    let order = |seed: u64| {
        let mut request = request(16, 16, 16);
        request.remasking = Remasking::Random;
        request.seed = seed;
        let mut model = Scripted::new(3, rising(16));
        run(&request, &mut model);
        model.canvases
    };
    assert_eq!(order(5), order(5));
    assert_ne!(order(5), order(6));
}

#[test]
fn a_cancelled_run_tells_how_far_it_came() {
    let mut model = Scripted::new(3, rising(4));
    model.cancel_at = Some(2);
    let generated = run(&request(4, 4, 4), &mut model);
    assert_eq!(generated.finish_reason, FinishReason::Cancelled);
    assert_eq!(generated.tokens, [MASK, MASK, 12, 13]);
    assert_eq!(generated.passes, 2);
}

#[test]
fn each_pass_is_a_full_picture_of_its_block() {
    let mut model = Scripted::new(3, rising(4));
    let mut request = request(4, 2, 4);
    request.canvas[0] = CanvasSlot::Pinned(50);
    let mut reports = Vec::new();
    model.drive(&request, &mut |event| {
        if let Event::Pass(report) = event {
            reports.push(report);
        }
    });
    let first = &reports[0];
    assert_eq!(
        (first.passes, first.block, first.passes_in_block),
        (1, 0, 1)
    );
    assert_eq!((first.committed, first.rows, first.lm_head_rows), (2, 7, 1));
    assert_eq!(first.positions[0].state, TokenState::Pinned);
    assert!(first.positions[1].is_fresh);
    let second = &reports[1];
    assert_eq!((second.block, second.positions[0].position), (1, 2));
    assert_eq!(second.positions[0].state, TokenState::Provisional);
    assert_eq!(second.positions[0].token, Some(12));
    assert_eq!(second.positions[1].state, TokenState::Committed);
    assert!(!reports[2].positions[1].is_fresh);
}

/// A model whose answer at a position depends on all that stands in the canvas, though seldom: most guesses are right.
pub(super) fn moody(pass: &Pass<'_>, seed: u64) -> Vec<Candidate> {
    let noise = Noise::new(seed);
    let at = |row: &LmHeadRow| {
        let place = row.position as u64;
        // What stands in a few places near by.
        let near = pass.canvas.iter().enumerate().filter(|(position, _)| {
            position.abs_diff(row.position) < 4 && *position != row.position
        });
        let near = near.map(|(position, &token)| (position as u64) << 32 | u64::from(token));
        let mood = near.fold(0, |mood, one| mood ^ noise.uniform(1, one, 2).to_bits());
        let changes = noise.uniform(3, mood, place) < 0.3;
        let token = 10 + (noise.uniform(4, place, u64::from(changes)) * 60.0) as u32;
        let confidence = noise.uniform(5, place, if changes { mood } else { 0 });
        let watched = row.watched.iter();
        let watched = watched.map(|&token| noise.uniform(6, place, token.into()).ln());
        let drawn = pass.temperature * pass.noise.uniform(pass.number as u64, place, 0);
        Candidate {
            token: token + (drawn * 5.0) as u32,
            confidence,
            rank: confidence,
            target_log_probability: row.target.map(|_| confidence.ln()),
            evidence: CandidateEvidence {
                watched: watched.collect(),
                ..CandidateEvidence::default()
            },
        }
    };
    pass.rows.iter().map(at).collect()
}

/// What is written, in how many passes, and with how many canvases in each.
fn write(request: &Generate, seed: u64) -> (Vec<u32>, usize, Vec<usize>) {
    let vocabulary = Scripted::new(3, []).vocabulary;
    let mut filling = Diffusion::new(request.clone(), vocabulary);
    filling.start(&mut |_| {});
    let mut canvases = Vec::new();
    while !filling.is_done() {
        let passes = filling.passes();
        let candidates: Vec<_> = passes.iter().map(|pass| moody(pass, seed)).collect();
        canvases.push(passes.len());
        drop(passes);
        filling.take(&candidates, &PassCost::default(), &mut |_| {});
    }
    let generated = filling.generated();
    (generated.tokens, generated.passes, canvases)
}

fn speculating(speculation: &str, of: Generate) -> Generate {
    let speculation = speculation.parse().unwrap();
    Generate {
        decoding: Decoding {
            speculation,
            ..Decoding::default()
        },
        ..of
    }
}

proptest! {
    #[test]
    fn passes_that_are_guessed_ahead_change_no_token(
        seed in any::<u64>(),
        branches in 1u32..6,
        steps in 8usize..25,
        temperature in prop_oneof![Just(0.0), Just(1.0)],
        policy in prop_oneof![Just("reference"), Just("threshold:t=0.7"), Just("factor:f=1")],
        remasking in prop_oneof![Just(Remasking::LowConfidence), Just(Remasking::Random)],
    ) {
        let plain = Generate {
            temperature,
            remasking,
            seed,
            policy: policy.parse().unwrap(),
            ..request(24, 8, steps)
        };
        let (expected, passes, _) = write(&plain, seed);
        let drafted = speculating(&format!("draft:branches={branches}"), plain);
        let (found, fewer, canvases) = write(&drafted, seed);
        prop_assert_eq!(found, expected);
        prop_assert!(fewer <= passes);
        prop_assert!(canvases.iter().all(|&count| count <= branches as usize + 1));
    }
}

fn anything() -> impl Strategy<Value = Decoding> {
    let kind = prop_oneof![
        Just(KvCacheMode::None),
        Just(KvCacheMode::Prefix),
        Just(KvCacheMode::Dual),
        Just(KvCacheMode::Vicinity)
    ];
    let some = |most: u32| prop::option::of(0..most);
    let growth = prop_oneof![
        Just(CanvasGrowth::Fixed),
        Just(CanvasGrowth::Append),
        Just(CanvasGrowth::Insert)
    ];
    let all = (
        kind,
        some(4),
        some(40),
        0u32..20,
        prop::bool::ANY,
        some(30),
        growth,
    );
    all.prop_map(
        |(kind, refresh, behind, around, is_sparse, window, growth)| {
            let is_sparse = is_sparse && kind == KvCacheMode::Dual && behind.is_none();
            Decoding {
                kv_cache: KvCacheReuse {
                    mode: kind,
                    refresh_passes: refresh.map(|passes| passes + 1),
                    recompute_before: behind,
                    recompute_around: around,
                    keep_share: if is_sparse { 0.4 } else { 1.0 },
                },
                suffix_window: window,
                canvas_growth: growth,
                ..Decoding::default()
            }
        },
    )
}

proptest! {
    /// Every place that a pass sees was written, and no pass computes more rows than was planned.
    #[test]
    fn passes_see_what_is_there_and_take_what_was_planned(
        decoding in anything(),
        pins in prop::collection::vec(0usize..100, 0..80),
        (prompt, length, block) in (0usize..20, 1usize..100, 1usize..40),
        (is_shifted, is_reserved, places) in any::<(bool, bool, bool)>(),
        seed in any::<u64>(),
    ) {
        const RESERVED: u32 = 6;
        let is_fixed = decoding.canvas_growth == CanvasGrowth::Fixed;
        let reserved = (is_reserved && is_fixed).then_some(RESERVED);
        let mut all = Generate {
            prompt: vec![1; prompt],
            decoding,
            policy: "threshold:t=0.5".parse().unwrap(),
            reserved,
            ..request(length, block.min(length), length)
        };
        if decoding.canvas_growth != CanvasGrowth::Insert {
            for pin in pins.into_iter().filter(|&pin| pin < length) {
                all.canvas[pin] = CanvasSlot::Pinned(5);
            }
        }
        if places && is_fixed {
            all.anywhere = vec![AnywherePins { texts: vec![vec![5], vec![6, 7]], most: 1 }];
        }
        let mut vocabulary = Vocabulary::clone(&Scripted::new(prompt, []).vocabulary);
        vocabulary.mask.as_mut().unwrap().shifted = is_shifted;
        let planned = crate::request::Work::Generate(all.clone()).workload();
        let mut filling = Diffusion::new(all, Arc::new(vocabulary));
        filling.start(&mut |_| {});
        let mut written = vec![false; prompt + length + 1];
        while !filling.is_done() {
            let passes = filling.passes();
            let pass = &passes[0];
            if reserved.is_some() {
                prop_assert_eq!(pass.canvas.len(), prompt + length + 1);
                prop_assert_eq!(pass.canvas.last(), Some(&RESERVED));
                prop_assert!(pass.rows.iter().all(|row| row.position < prompt + length));
            }
            prop_assert!(pass.layer_rows() <= planned.rows(), "{} of {}", pass.layer_rows(), planned.rows());
            prop_assert!(pass.rows.len() <= planned.lm_head_rows());
            let reach = pass.reach;
            prop_assert!(pass.rows.iter().all(|row| reach.row_of(row.position).is_some()));
            if let Some(kept) = &reach.cached {
                let places = reach.cache_positions.clone().map_or(reach.computed.clone(), |places| vec![places]);
                places.into_iter().flatten().for_each(|place| written[place] = true);
                prop_assert!(kept.iter().cloned().flatten().all(|place| written[place]));
            }
            if let Some((places, count)) = &reach.selects {
                prop_assert!(*count <= places.iter().map(Range::len).sum::<usize>());
                written.fill(false);
                written[..*count].fill(true);
            }
            let candidates = moody(pass, seed);
            drop(passes);
            filling.take(&[candidates], &PassCost::default(), &mut |_| {});
        }
        prop_assert!(filling.committed() > 0 || length == 0);
        let told = filling.generated().tokens;
        prop_assert!(told.len() <= length && (!is_fixed || told.len() == length));
    }
}

#[test]
fn right_guesses_save_passes() {
    let sum = |speculation: &str| -> usize {
        let passes =
            (0..20).map(|seed| write(&speculating(speculation, request(24, 8, 24)), seed).1);
        passes.sum()
    };
    let (plain, drafted) = (sum("none"), sum("draft:branches=3"));
    assert_eq!(plain, 20 * 24);
    assert!(drafted < plain * 4 / 5, "{drafted} of {plain}");
}

#[test]
fn the_most_promising_order_goes_on() {
    let explored = speculating("explore:branches=3", request(8, 8, 8));
    let vocabulary = Scripted::new(3, []).vocabulary;
    let mut filling = Diffusion::new(explored, vocabulary);
    filling.start(&mut |_| {});
    let answer = |pass: &Pass<'_>, sure: f64| -> Vec<Candidate> {
        let candidate = |row: &LmHeadRow| Candidate {
            token: row.position as u32 + 20,
            confidence: sure / row.position as f64,
            rank: sure / row.position as f64,
            target_log_probability: None,
            evidence: CandidateEvidence::default(),
        };
        pass.rows.iter().map(candidate).collect()
    };
    let passes = filling.passes();
    assert_eq!(passes.len(), 1, "there is nothing yet to choose orders by");
    let first = vec![answer(&passes[0], 0.5)];
    drop(passes);
    filling.take(&first, &PassCost::default(), &mut |_| {});
    let passes = filling.passes();
    // The first commits position 3; the others besides it the next most confident ones.
    let filled = |pass: &Pass<'_>| -> Vec<usize> {
        let all = pass.canvas.iter().enumerate();
        all.filter(|(at, token)| *at >= 3 && **token != MASK)
            .map(|(at, _)| at)
            .collect()
    };
    let orders: Vec<_> = passes.iter().map(filled).collect();
    assert_eq!(orders, [vec![3], vec![3, 4], vec![3, 5], vec![3, 6]]);
    let sure = [0.1, 0.1, 0.9, 0.1];
    let second: Vec<_> = (passes.iter().zip(sure))
        .map(|(pass, sure)| answer(pass, sure))
        .collect();
    drop(passes);
    filling.take(&second, &PassCost::default(), &mut |_| {});
    assert_eq!(filled(&filling.passes()[0]), [3, 4, 5]);
}

#[test]
fn a_canvas_grows_until_the_model_sees_an_end() {
    let growing = |length: usize| Generate {
        decoding: Decoding {
            canvas_growth: CanvasGrowth::Insert,
            ..Decoding::default()
        },
        policy: "threshold:t=0.5".parse().unwrap(),
        ..request(length, 8, length)
    };
    // The mean of the last 32 sees an end once half of them lie behind the eightieth place.
    let run = |request: &Generate, unsure: Option<usize>| {
        let vocabulary = Scripted::new(3, []).vocabulary;
        let mut filling = Diffusion::new(request.clone(), vocabulary);
        filling.start(&mut |_| {});
        let mut lengths = Vec::new();
        while !filling.is_done() {
            let passes = filling.passes();
            lengths.push(passes[0].canvas.len() - 3);
            let candidate = |row: &LmHeadRow| {
                let place = row.position - 3;
                let sure = unsure != Some(place);
                Candidate {
                    token: 10 + (place % 80) as u32,
                    confidence: if sure { 0.9 } else { 0.05 },
                    rank: if sure { 0.9 } else { 0.05 },
                    target_log_probability: Some(if place >= 80 { 0.0 } else { -9.0 }),
                    evidence: CandidateEvidence::default(),
                }
            };
            let candidates = passes[0].rows.iter().map(candidate).collect();
            drop(passes);
            filling.take(&[candidates], &PassCost::default(), &mut |_| {});
        }
        (filling.generated().tokens.len(), lengths)
    };
    let (length, lengths) = run(&growing(400), None);
    assert_eq!((length, &lengths[..5]), (96, &[64, 72, 80, 88, 96][..]));
    assert_eq!(run(&growing(70), None).0, 70);
    // A place that the model is unsure of is eight; in the same block it happens once.
    let (length, lengths) = run(&growing(400), Some(9));
    assert_eq!(length, 103);
    assert_eq!(lengths.last(), Some(&103));
    assert_eq!(run(&growing(64), Some(9)).0, 64);
}

#[test]
fn caches_are_computed_anew_when_a_block_opens() {
    let cached = |caching: &str| Generate {
        decoding: Decoding {
            kv_cache: caching.parse().unwrap(),
            suffix_window: Some(4),
            ..Decoding::default()
        },
        ..request(24, 8, 24)
    };
    let rows = |request: &Generate| -> Vec<usize> {
        let vocabulary = Scripted::new(3, []).vocabulary;
        let mut filling = Diffusion::new(request.clone(), vocabulary);
        filling.start(&mut |_| {});
        let mut rows = Vec::new();
        while !filling.is_done() {
            let passes = filling.passes();
            rows.push(passes[0].layer_rows());
            let candidates = moody(&passes[0], 1);
            drop(passes);
            filling.take(&[candidates], &PassCost::default(), &mut |_| {});
        }
        rows
    };
    let found = rows(&cached("dual:behind=6"));
    // Prompt, block, window and last; then what stands six before; of the last block nothing lies behind.
    assert_eq!(found[..3], [3 + 8 + 4 + 1, 8, 8]);
    assert_eq!(found[8..10], [6 + 8 + 4 + 1, 8]);
    assert_eq!(found[16..18], [6 + 8, 8]);
    let most = crate::decode::most_rows(&cached("dual:behind=6"));
    assert_eq!(most, 19);
    let found = rows(&cached("prefix:refresh=3"));
    assert_eq!(found[8..12], [3 + 16 + 4 + 1, 13, 13, 24]);
}
#[test]
fn what_is_taken_back_is_masked_again() {
    let answer = [
        (10, 0.9),
        (11, 0.8),
        (12, 0.7),
        (13, 0.6),
        (14, 0.5),
        (15, 0.4),
    ];
    let mut model = Scripted::new(3, answer);
    model.doubted = vec![(0, 1), (1, 1), (2, 2)];
    let mut request = request(6, 6, 6);
    request.policy = "revoke:t=0.3,share=1,most=2".parse().unwrap();
    request.canvas[5] = CanvasSlot::Pinned(50);
    let mut pictures = Vec::new();
    let generated = model.drive(&request, &mut |event| {
        if let Event::Pass(report) = event {
            pictures.push(report);
        }
    });
    let after: Vec<&[u32]> = model.canvases.iter().map(|canvas| &canvas[3..]).collect();
    assert_eq!(after[1], [10, 11, MASK, MASK, MASK, 50]);
    // Two are doubted, but of two that are committed only one may be undone.
    assert_eq!(after[2], [MASK, 11, 12, 13, MASK, 50]);
    assert_eq!(after[3], [10, 11, MASK, 13, 14, 50]);
    assert_eq!(generated.tokens, [10, 11, 12, 13, 14, 50]);
    assert_eq!(generated.passes, 4);
    // Neither pins nor masks are checked.
    let checked = |pass: usize| -> Vec<usize> {
        let checks = model.asked[pass].iter().filter(|row| row.is_check);
        checks.map(|row| row.position - 3).collect()
    };
    assert!(checked(0).is_empty());
    assert_eq!(checked(1), [0, 1]);
    assert_eq!(checked(2), [1, 2, 3]);
    let committed: Vec<usize> = pictures.iter().map(|picture| picture.committed).collect();
    assert_eq!(committed, [3, 4, 5, 6]);
    let taken_back = &pictures[1].positions[0];
    assert_eq!(
        (taken_back.state, taken_back.token, taken_back.is_fresh),
        (TokenState::Provisional, Some(10), false)
    );
}

proptest! {
    /// Whatever is doubted, a block of n masks takes n passes at most, and nothing is lost.
    #[test]
    fn doubts_do_not_go_on_for_ever(
        length in 1usize..30,
        doubted in prop::collection::vec((0usize..30, 0usize..30), 0..400),
    ) {
        let mut model = Scripted::new(3, rising(length));
        model.doubted = doubted;
        let mut request = request(length, length, 1);
        request.policy = "revoke:t=0".parse().unwrap();
        let generated = run(&request, &mut model);
        prop_assert!(generated.passes <= length);
        prop_assert_eq!(generated.tokens, rising(length).map(|(token, _)| token).collect::<Vec<_>>());
    }
}

#[test]
fn a_token_in_the_place_of_another_is_an_edit() {
    let mut vocabulary = Vocabulary::clone(&Scripted::new(4, []).vocabulary);
    vocabulary.mask.as_mut().unwrap().blocks = Some(BlockDiffusion {
        length: 4,
        filled_together: 4,
        causal_attention_before: false,
    });
    let request = Generate {
        prompt: vec![1, 2, 3, 4],
        policy: "edit:t=0.5,edit=0.5".parse().unwrap(),
        decoding: Decoding {
            kv_cache: "blocks".parse().unwrap(),
            ..Decoding::default()
        },
        ..request(4, 4, 4)
    };
    let mut filling = Diffusion::new(request, Arc::new(vocabulary));
    let mut edited = Vec::new();
    let mut tell = |event: Event| {
        if let Event::Pass(report) = event {
            let positions = report.positions.iter();
            edited.push(positions.map(|at| (at.is_fresh, at.is_edited)).collect());
        }
    };
    filling.start(&mut tell);
    while !filling.is_done() {
        let passes = filling.passes();
        let has_written = passes[0].canvas[4] != MASK;
        // Once it has read what stands there, it thinks better of the second token.
        let candidate = |row: &LmHeadRow| Candidate {
            token: match (row.position, has_written) {
                (5, true) => 20,
                (position, _) => 10 + position as u32,
            },
            confidence: 0.9,
            rank: 0.9,
            target_log_probability: None,
            evidence: CandidateEvidence::default(),
        };
        let candidates = passes[0].rows.iter().map(candidate).collect();
        drop(passes);
        filling.take(&[candidates], &PassCost::default(), &mut tell);
    }
    let generated = filling.generated();
    assert_eq!(
        (&generated.tokens[..], generated.edits),
        (&[14, 20, 16, 17][..], 1)
    );
    let changed: Vec<Vec<(bool, bool)>> = edited;
    let old = (false, false);
    assert_eq!(changed[changed.len() - 3], [(true, false); 4]);
    assert_eq!(changed[changed.len() - 2], [old, (true, true), old, old]);
    assert_eq!(changed[changed.len() - 1], [old; 4]);
}
