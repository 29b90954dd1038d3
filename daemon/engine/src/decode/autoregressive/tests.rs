//! The loop against a scripted model: what it asks for, and what it makes of the answers.

use super::*;
use crate::request::ModelId;

const END: u32 = 9;

/// After n tokens says token n modulo ten; knows the first few of any sequence.
struct Counting {
    vocabulary: Arc<Vocabulary>,
    known: usize,
    /// Rows of each pass.
    passes: Vec<usize>,
    cancel_at: Option<usize>,
}

impl Counting {
    fn new(known: usize) -> Self {
        Self {
            vocabulary: Arc::new(Vocabulary {
                size: 10,
                mask: None,
                ends: vec![END],
            }),
            known,
            passes: Vec::new(),
            cancel_at: None,
        }
    }
}

impl Counting {
    /// Reads what is unread, at most four rows a pass, until the continuation is done or cancelled.
    fn drive(&mut self, mut asked: Continuation, emit: &mut dyn FnMut(Event)) -> GenerationResult {
        asked.start(true, emit);
        let mut known = self.known.min(asked.sequence().len() - 1);
        while !asked.is_done() && self.cancel_at != Some(self.passes.len()) {
            let unread = asked.sequence().len() - known;
            let rows = share_rows(&[unread], 4)[0];
            known += rows;
            self.passes.push(rows);
            // Two rows more than the vocabulary has, never chosen.
            let mut logits = [0.0; 12];
            logits[known % 10] = 5.0;
            logits[11] = 9.0;
            let chosen =
                (rows == unread).then(|| asked.choose(&mut logits, &mut [0; 12]).unwrap().unwrap());
            asked.take(rows, chosen, &PassCost::default(), emit);
        }
        asked.generated()
    }
}

fn request(prompt: usize, length: usize) -> Generate {
    let prompt = (0..prompt as u32).map(|id| id % 10).collect();
    Generate {
        block_length: 3,
        eos: EosPolicy::Stop,
        seed: 1,
        ..Generate::greedy(ModelId(1), prompt, length)
    }
}

fn run(request: &Generate, model: &mut Counting) -> (GenerationResult, Vec<Event>) {
    let mut events = Vec::new();
    let asked = Continuation::new(request.clone(), None, Arc::clone(&model.vocabulary));
    let generated = model.drive(asked, &mut |event| events.push(event));
    (generated, events)
}

#[test]
fn the_prompt_goes_in_chunks_and_tokens_one_by_one() {
    let mut model = Counting::new(0);
    let (generated, events) = run(&request(10, 7), &mut model);
    assert_eq!(model.passes, [4, 4, 2, 1, 1, 1, 1, 1, 1]);
    assert_eq!(generated.tokens, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(
        (generated.finish_reason, generated.passes),
        (FinishReason::Length, 9)
    );
    let passes: Vec<_> = (events.iter())
        .filter_map(|event| match event {
            Event::Pass(report) => Some((report.block, report.committed, report.positions.len())),
            _ => None,
        })
        .collect();
    let of_chunks = [(0, 0, 0), (0, 0, 0)];
    let of_tokens = [
        (0, 1, 1),
        (0, 2, 2),
        (0, 3, 3),
        (1, 4, 1),
        (1, 5, 2),
        (1, 6, 3),
        (2, 7, 1),
    ];
    assert_eq!(passes, [&of_chunks[..], &of_tokens].concat());
    let blocks: Vec<_> = (events.iter())
        .filter_map(|event| match event {
            Event::BlockDone {
                block,
                passes,
                positions,
            } => Some((*block, *passes, positions.len())),
            _ => None,
        })
        .collect();
    assert_eq!(blocks, [(0, 5, 3), (1, 3, 3), (2, 1, 1)]);
}

#[test]
fn what_is_known_is_not_computed_again_but_for_the_last_token() {
    for (known, passes) in [(5, &[4, 1][..]), (9, &[1]), (10, &[1])] {
        let mut model = Counting::new(known);
        let (generated, _) = run(&request(10, 1), &mut model);
        assert_eq!(model.passes, passes);
        assert_eq!(generated.tokens.len(), 1);
    }
}

#[test]
fn an_end_token_ends_the_text_unless_it_is_kept_or_suppressed() {
    let mut asked = request(17, 5);
    let (generated, _) = run(&asked, &mut Counting::new(0));
    assert_eq!(generated.tokens, [7, 8, END]);
    assert_eq!(generated.finish_reason, FinishReason::Eos);
    asked.eos = EosPolicy::Keep;
    let (generated, _) = run(&asked, &mut Counting::new(0));
    assert_eq!(generated.tokens, [7, 8, END, 0, 1]);
    asked.eos = EosPolicy::Suppress;
    let (generated, _) = run(&asked, &mut Counting::new(0));
    assert_eq!(generated.tokens, [7, 8, 0, 0, 1]);
    assert_eq!(generated.finish_reason, FinishReason::Length);
}

#[test]
fn a_special_token_may_be_a_stop() {
    let tokenizer = br#"{
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null,
        "added_tokens": [{
            "id": 2, "content": "<|next|>", "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        }],
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": {"a": 0, "b": 1}, "merges": []
        }
    }"#;
    let text = Tokenizer::new(tokenizer, None).unwrap();
    let mut asked = request(10, 7);
    asked.stops = vec![b"<|next|>".to_vec()];
    let mut model = Counting::new(0);
    let vocabulary = Arc::clone(&model.vocabulary);
    let continuation = Continuation::new(asked, Some(Arc::new(text)), vocabulary);
    let generated = model.drive(continuation, &mut |_| {});
    assert_eq!(generated.tokens, [0, 1, 2]);
    assert_eq!(generated.finish_reason, FinishReason::Stop);
}

#[test]
fn a_cancelled_request_tells_how_far_it_came() {
    let mut model = Counting::new(0);
    model.cancel_at = Some(5);
    let (generated, _) = run(&request(10, 7), &mut model);
    assert_eq!(generated.tokens, [0, 1, 2]);
    assert_eq!(generated.finish_reason, FinishReason::Cancelled);
}

#[test]
fn rows_are_shared_out_so_that_nobody_waits_for_anothers_prompt() {
    assert_eq!(share_rows(&[3], 8), [3]);
    assert_eq!(share_rows(&[700], 512), [512]);
    assert_eq!(share_rows(&[1, 700, 1, 20], 512), [1, 490, 1, 20]);
    assert_eq!(share_rows(&[20, 1, 5], 16), [10, 1, 5]);
    assert_eq!(share_rows(&[600, 700], 512), [512, 0]);
    assert_eq!(share_rows(&[1; 4], 64), [1; 4]);
}

/// As in transformers: whatever stands in prompt or answer, however often.
#[test]
fn the_penalty_is_for_all_that_stands_before_and_once() {
    let mut asked = Generate::greedy(ModelId(1), vec![3], 4);
    asked.sampling.repetition_penalty = Some(2.0);
    let vocabulary = Arc::clone(&Counting::new(0).vocabulary);
    let mut asked = Continuation::new(asked, None, vocabulary);
    asked.start(true, &mut |_| {});
    while !asked.is_done() {
        // 3 would be said for ever.
        let mut logits = [-1.0, -1.0, -1.0, 5.0, 4.0, 3.0, -1.0, -1.0, -1.0, -1.0];
        let chosen = asked.choose(&mut logits, &mut [0; 10]).unwrap().unwrap();
        asked.take(1, Some(chosen), &PassCost::default(), &mut |_| {});
    }
    // 3 stands in the prompt and 4 and 5 then in the answer; said again, 3 is worth no less than the first time.
    assert_eq!(asked.generated().tokens, [4, 5, 3, 3]);
}
