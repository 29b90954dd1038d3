//! Pins without a position against a scripted model: where they come to stand, and that nothing else differs from pins with one.

use proptest::prelude::*;
use sluice_ops::CandidateEvidence;
use sluice_shared::{decoding::Decoding, sampling::Remasking};

use super::{
    super::tests::{Scripted, moody, request},
    *,
};
use crate::{
    decode::{DiffusionRequest, Pass},
    event::{CanvasPosition, PassCost, TokenState},
    request::PLACING_ROWS,
};

fn one(text: &[u32]) -> AnywherePins {
    AnywherePins {
        texts: vec![text.to_vec()],
        most: 1,
    }
}

/// What was placed, the first picture, the answer, and how many passes there were.
struct Run {
    placed: Option<Vec<PlacedText>>,
    first: Vec<CanvasPosition>,
    tokens: Vec<u32>,
    passes: usize,
}

fn run(request: &Generate, answer: &dyn Fn(&Pass<'_>) -> Vec<Candidate>) -> Run {
    let mut filling = Diffusion::new(request.clone(), Scripted::new(3, []).vocabulary);
    let (mut placed, mut first) = (None, None);
    let mut tell = |event| match event {
        Event::Placed(texts) => placed = Some(texts),
        Event::Pass(report) => {
            first.get_or_insert(report.positions);
        }
        _ => {}
    };
    filling.start(&mut tell);
    while !filling.is_done() {
        let passes = filling.passes();
        let candidates = vec![answer(&passes[0])];
        drop(passes);
        filling.take(&candidates, &PassCost::default(), &mut tell);
    }
    let generated = filling.generated();
    Run {
        placed,
        first: first.unwrap_or_default(),
        tokens: generated.tokens,
        passes: generated.passes,
    }
}

/// A model that finds tokens as likely as said at each position, from the first one to fill.
fn likely(table: &[(u32, &[f64])]) -> impl Fn(&Pass<'_>) -> Vec<Candidate> + use<> {
    let table: Vec<(u32, Vec<f64>)> = table
        .iter()
        .map(|(token, row)| (*token, row.to_vec()))
        .collect();
    move |pass| {
        let candidate = |row: &LmHeadRow| {
            let watched = row.watched.iter().map(|token| {
                let (_, row_of_token) = table.iter().find(|(known, _)| known == token).unwrap();
                row_of_token[row.position - 3].ln()
            });
            Candidate {
                token: 10,
                confidence: 0.5,
                rank: 0.5,
                target_log_probability: None,
                evidence: CandidateEvidence {
                    watched: watched.collect(),
                    ..CandidateEvidence::default()
                },
            }
        };
        pass.rows.iter().map(candidate).collect()
    }
}

#[test]
fn a_text_stands_where_its_tokens_are_likeliest_together() {
    // The first token alone would stand at 1, where the second is all but impossible.
    let model = likely(&[
        (50, &[0.1, 0.9, 0.3, 0.2, 0.1, 0.1]),
        (51, &[0.1, 0.1, 0.01, 0.4, 0.1, 0.1]),
    ]);
    let mut asked = request(6, 6, 6);
    asked.anywhere = vec![one(&[50, 51])];
    let found = run(&asked, &model);
    let placed = found.placed.unwrap();
    assert_eq!((placed[0].position, placed[0].tokens.len()), (2, 2));
    let mean = (0.3_f64.ln() + 0.4_f64.ln()) / 2.0;
    assert!((placed[0].log_probability - mean).abs() < 1e-12);
    // The pass that found the place shows what stands there.
    let states: Vec<_> = found
        .first
        .iter()
        .map(|at| (at.state, at.token, at.is_fresh))
        .collect();
    assert_eq!(states[2], (TokenState::Pinned, Some(50), false));
    assert_eq!(states[4], (TokenState::Masked, None, false));
    assert_eq!(found.tokens, [10, 10, 50, 51, 10, 10]);
    // One pass more than there are masks left.
    assert_eq!(found.passes, 1 + 4);
}

#[test]
fn what_is_taken_is_no_place_and_ties_go_left() {
    let even = [0.5; 6];
    let model = likely(&[(50, &even), (51, &even), (52, &even)]);
    let mut asked = request(6, 3, 6);
    asked.canvas[0] = CanvasSlot::Pinned(7);
    asked.canvas[3] = CanvasSlot::Pinned(8);
    asked.anywhere = vec![one(&[50]), one(&[51, 52]), one(&[52, 51])];
    let found = run(&asked, &model);
    let at: Vec<_> = found
        .placed
        .unwrap()
        .iter()
        .map(|text| (text.group, text.position))
        .collect();
    // At 2 alone there is no room for two; nor is there any for the last text.
    assert_eq!(at, [(0, 1), (1, 4)]);
    assert_eq!(found.tokens, [7, 50, 10, 8, 51, 52]);
}

#[test]
fn of_a_group_only_the_likeliest_are_pinned() {
    let model = likely(&[
        (50, &[0.1, 0.2, 0.3, 0.1, 0.1, 0.1]),
        (51, &[0.1, 0.1, 0.9, 0.1, 0.1, 0.1]),
        (52, &[0.1, 0.1, 0.8, 0.7, 0.4, 0.1]),
    ]);
    let mut asked = request(6, 6, 6);
    asked.anywhere = vec![AnywherePins {
        texts: vec![vec![50], vec![51], vec![52]],
        most: 2,
    }];
    let placed = run(&asked, &model).placed.unwrap();
    let at: Vec<_> = placed
        .iter()
        .map(|text| (text.text, text.position))
        .collect();
    // The third would rather stand where the second does, or right behind it, where nothing could be written between them.
    assert_eq!(at, [(1, 2), (2, 4)]);
}

#[test]
fn a_long_canvas_is_read_in_several_passes() {
    let length = PLACING_ROWS + 10;
    let mut row = vec![0.1; length];
    row[length - 3] = 0.2;
    let model = likely(&[(50, &row)]);
    let mut asked = request(length, length, 1);
    asked.anywhere = vec![one(&[50])];
    assert_eq!(asked.placing_passes(), 2);
    let found = run(&asked, &model);
    assert_eq!(found.placed.unwrap()[0].position, length - 3);
    assert_eq!(found.passes, 2 + 1);
}

#[test]
fn nothing_to_place_costs_no_pass() {
    let asked = request(6, 3, 6);
    let found = run(&asked, &|pass| moody(pass, 1));
    assert!(found.placed.is_none() && found.passes == 6);
    let mut none_left = asked;
    none_left.canvas.fill(CanvasSlot::Pinned(7));
    none_left.anywhere = vec![one(&[50])];
    assert_eq!(run(&none_left, &|pass| moody(pass, 1)).passes, 0);
}

/// The worth of each place, counted anew for each text and each turn.
fn slowly(request: &Generate, seed: u64) -> Vec<(usize, usize, usize)> {
    let noise = sluice_formats::noise::Noise::new(seed);
    let log =
        |position: usize, token: u32| noise.uniform(6, (3 + position) as u64, token.into()).ln();
    let mut canvas = request.canvas.clone();
    let mut touches = vec![false; canvas.len()];
    let mut placed = Vec::new();
    for (group, pins) in request.anywhere.iter().enumerate() {
        let mut used = Vec::new();
        while used.len() < pins.most {
            let worth = |position: usize, text: &[u32]| {
                let logs = text.iter().enumerate();
                let logs = logs.map(|(at, &token)| log(position + at, token));
                logs.sum::<f64>() / text.len() as f64
            };
            let fits = |position: usize, text: &[u32]| {
                let slots = canvas.get(position..position + text.len());
                slots.is_some_and(|slots| slots.iter().all(|slot| *slot == CanvasSlot::Masked))
            };
            let stands_apart = |position: usize, text: &[u32]| {
                !touches[position..position + text.len()].contains(&true)
            };
            let mut best: Option<(f64, usize, usize)> = None;
            for (index, text) in pins.texts.iter().enumerate() {
                let room = (0..canvas.len()).filter(|&at| fits(at, text));
                let room: Vec<usize> = room.collect();
                let apart = room.iter().copied().filter(|&at| stands_apart(at, text));
                let apart: Vec<usize> = apart.collect();
                for at in if apart.is_empty() { room } else { apart } {
                    let this = (worth(at, text), at, index);
                    let is_better = |most: (f64, usize, usize)| {
                        this.0 > most.0 || (this.0 == most.0 && (at, index) < (most.1, most.2))
                    };
                    if !used.contains(&index) && best.is_none_or(is_better) {
                        best = Some(this);
                    }
                }
            }
            let Some((_, position, index)) = best else {
                break;
            };
            let end = position + pins.texts[index].len();
            for (offset, &token) in pins.texts[index].iter().enumerate() {
                canvas[position + offset] = CanvasSlot::Pinned(token);
            }
            touches[position.saturating_sub(1)..(end + 1).min(canvas.len())].fill(true);
            used.push(index);
            placed.push((group, index, position));
        }
    }
    placed
}

proptest! {
    /// Texts stand where a slow search finds them, and from there on nothing differs from pins that were given these positions.
    #[test]
    fn what_is_placed_is_pinned_as_if_it_had_been_given_there(
        length in 1usize..40,
        block in 1usize..40,
        pins in prop::collection::vec(0usize..40, 0..10),
        texts in prop::collection::vec(prop::collection::vec(50u32..60, 1..4), 1..6),
        most in 1usize..4,
        (is_guided, is_drawn) in any::<(bool, bool)>(),
        way in prop_oneof![Just("none"), Just("dual"), Just("prefix:refresh=2")],
        window in prop::option::of(0u32..10),
        policy in prop_oneof![Just("reference"), Just("threshold:t=0.7"), Just("klass")],
        seed in any::<u64>(),
    ) {
        let mut asked = Generate {
            guidance: if is_guided { 0.5 } else { 0.0 },
            temperature: if is_drawn { 1.0 } else { 0.0 },
            remasking: if is_drawn { Remasking::Random } else { Remasking::default() },
            policy: policy.parse().unwrap(),
            decoding: Decoding {
                kv_cache: way.parse().unwrap(),
                suffix_window: window,
                ..Decoding::default()
            },
            ..request(length, block.min(length), length)
        };
        for pin in pins.into_iter().filter(|&pin| pin < length) {
            asked.canvas[pin] = CanvasSlot::Pinned(5);
        }
        asked.anywhere = vec![one(&texts[0]), AnywherePins { texts: texts[1..].to_vec(), most }];
        let expected = slowly(&asked, seed);
        let answer = |pass: &Pass<'_>| {
            // Given what it is not asked for, this policy has no need of distributions.
            let mut candidates = moody(pass, seed);
            for candidate in &mut candidates {
                candidate.evidence.divergence = Some(0.0);
            }
            candidates
        };
        let found = run(&asked, &answer);
        let placed = found.placed.unwrap_or_default();
        let at: Vec<_> = placed.iter().map(|text| (text.group, text.text, text.position)).collect();
        prop_assert_eq!(at, expected);
        let passes = asked.placing_passes();
        asked.anywhere.clear();
        for text in placed {
            for (offset, &token) in text.tokens.iter().enumerate() {
                asked.canvas[text.position + offset] = CanvasSlot::Pinned(token);
            }
        }
        let given = run(&asked, &answer);
        prop_assert_eq!((found.tokens, found.passes), (given.tokens, given.passes + passes));
    }
}
