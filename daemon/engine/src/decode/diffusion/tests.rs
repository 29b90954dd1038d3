//! The sampler against a scripted model: what it asks for, and what it makes of the answers.

use proptest::prelude::*;

use super::*;
use crate::{model::family::Mask, request::ModelId};

const MASK: u32 = 99;
const END: u32 = 90;

/// Always the same token and confidence at a position; remembers what it was asked.
struct Scripted {
    vocabulary: Arc<Vocabulary>,
    prompt: usize,
    answer: Vec<(u32, f64)>,
    /// Positions read, and the canvases, of each pass.
    asked: Vec<Vec<HeadRow>>,
    canvases: Vec<Vec<u32>>,
    unconditional: Vec<Option<Vec<u32>>>,
    cancel_at: Option<usize>,
}

impl Scripted {
    fn new(prompt: usize, answer: impl IntoIterator<Item = (u32, f64)>) -> Self {
        Self {
            vocabulary: Arc::new(Vocabulary {
                size: 100,
                mask: Some(Mask {
                    token_id: MASK,
                    shifted: false,
                }),
                ends: vec![END, 91],
            }),
            prompt,
            answer: answer.into_iter().collect(),
            asked: Vec::new(),
            canvases: Vec::new(),
            unconditional: Vec::new(),
            cancel_at: None,
        }
    }
}

impl Scripted {
    /// Fills until nothing is left to do, or it is cancelled.
    fn drive(&mut self, request: &Generate, emit: &mut dyn FnMut(Event)) -> Generated {
        let mut filling = Diffusion::new(request.clone(), Arc::clone(&self.vocabulary));
        filling.start(emit);
        let cost = PassCost::default();
        while let Some(pass) = filling.pass() {
            if self.cancel_at == Some(pass.number) {
                break;
            }
            let candidates = self.candidates(&pass);
            filling.take(&candidates, &cost, emit);
        }
        filling.generated()
    }

    fn candidates(&mut self, pass: &Pass<'_>) -> Vec<Candidate> {
        assert_eq!(pass.number, self.asked.len());
        self.asked.push(pass.rows.to_vec());
        self.canvases.push(pass.canvas.to_vec());
        self.unconditional
            .push(pass.guidance.map(|(canvas, _)| canvas.to_vec()));
        let candidate = |row: &HeadRow| {
            assert_eq!(pass.canvas[row.position], MASK, "only masks are read");
            let (token, confidence) = self.answer[row.position - self.prompt];
            // A model that may not end here says something else.
            let token = if row.may_end || token < END { token } else { 7 };
            Candidate {
                token,
                confidence,
                rank: confidence,
                target_log_probability: None,
            }
        };
        pass.rows.iter().map(candidate).collect()
    }
}

fn request(length: usize, block_length: usize, steps: usize) -> Generate {
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

fn run(request: &Generate, model: &mut Scripted) -> Generated {
    model.drive(request, &mut |_| {})
}

proptest! {
    #[test]
    fn any_length_block_and_steps_fill_the_canvas(length in 1usize..70, block in 1usize..70, steps in 1usize..150) {
        let block = block.min(length);
        let mut model = Scripted::new(3, rising(length));
        let generated = run(&request(length, block, steps), &mut model);
        let blocks = length.div_ceil(block);
        prop_assert_eq!(generated.finish, Finish::Length);
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
    let slots = vec![Slot::Masked; 20];
    let steps: Vec<usize> = blocks(&slots, 8, 11)
        .iter()
        .map(|block| block.steps)
        .collect();
    assert_eq!(steps, [4, 4, 3]);
    let mut pinned = slots;
    pinned[8..16].fill(Slot::Pinned(5));
    let steps: Vec<usize> = blocks(&pinned, 8, 11)
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
    request.canvas[1] = Slot::Pinned(50);
    request.canvas[2] = Slot::Pinned(51);
    request.canvas[3] = Slot::Pinned(52);
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
    assert_eq!(generated.finish, Finish::Eos);
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
    assert_eq!(generated.finish, Finish::Length);
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
    request.canvas[3] = Slot::Pinned(60);
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
    assert_eq!(generated.finish, Finish::Cancelled);
    assert_eq!(generated.tokens, [MASK, MASK, 12, 13]);
    assert_eq!(generated.passes, 2);
}

#[test]
fn each_pass_is_a_full_picture_of_its_block() {
    let mut model = Scripted::new(3, rising(4));
    let mut request = request(4, 2, 4);
    request.canvas[0] = Slot::Pinned(50);
    let mut reports = Vec::new();
    model.drive(&request, &mut |event| {
        if let Event::Pass(report) = event {
            reports.push(report);
        }
    });
    let first = &reports[0];
    assert_eq!((first.pass, first.block, first.pass_in_block), (1, 0, 1));
    assert_eq!((first.committed, first.rows, first.head_rows), (2, 7, 1));
    assert_eq!(first.positions[0].state, TokenState::Pinned);
    assert!(first.positions[1].fresh);
    let second = &reports[1];
    assert_eq!((second.block, second.positions[0].position), (1, 2));
    assert_eq!(second.positions[0].state, TokenState::Provisional);
    assert_eq!(second.positions[0].token, Some(12));
    assert_eq!(second.positions[1].state, TokenState::Committed);
    assert!(!reports[2].positions[1].fresh);
}
