//! The loop against a scripted model: what it asks for, and what it makes of the answers.

use super::*;
use crate::request::ModelId;

const END: u32 = 9;

/// After n tokens says token n modulo ten; knows the first few of any sequence.
struct Counting {
    vocabulary: Vocabulary,
    known: usize,
    len: usize,
    /// Rows of each pass.
    passes: Vec<usize>,
    cancel_at: Option<usize>,
}

impl Counting {
    fn new(known: usize) -> Self {
        Self {
            vocabulary: Vocabulary {
                size: 10,
                mask: None,
                ends: vec![END],
            },
            known,
            len: known,
            passes: Vec::new(),
            cancel_at: None,
        }
    }
}

impl Predictor for Counting {
    fn known(&self) -> usize {
        self.known
    }

    fn keeps_precision(&self) -> bool {
        true
    }

    fn rows_max(&self) -> usize {
        4
    }

    fn extend(&mut self, tokens: &[u32]) -> Result<(), Interrupt> {
        if self.cancel_at == Some(self.passes.len()) {
            return Err(Interrupt::Cancelled);
        }
        self.passes.push(tokens.len());
        self.len += tokens.len();
        Ok(())
    }

    fn predict(&mut self, tokens: &[u32], choose: Choose<'_>) -> Result<Candidate, Interrupt> {
        // A known last token is computed again.
        if self.passes.is_empty() {
            self.len = self.len.min(self.known);
        }
        self.extend(tokens)?;
        // Two rows more than the vocabulary has, never chosen.
        let mut logits = [0.0; 12];
        logits[self.len % 10] = 5.0;
        logits[11] = 9.0;
        Ok(choose(&mut logits, &mut [0; 12]).unwrap())
    }

    fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    fn device_bytes(&self) -> u64 {
        0
    }

    fn weights(&self) -> WeightsState {
        WeightsState {
            is_lossless: true,
            ..WeightsState::default()
        }
    }

    fn take_notices(&mut self) -> Vec<String> {
        Vec::new()
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

fn run(request: &Generate, predictor: &mut Counting) -> (Generated, Vec<Event>) {
    let mut events = Vec::new();
    let generated = generate(request, None, predictor, &mut |event| events.push(event));
    (generated.unwrap(), events)
}

#[test]
fn the_prompt_goes_in_chunks_and_tokens_one_by_one() {
    let mut predictor = Counting::new(0);
    let (generated, events) = run(&request(10, 7), &mut predictor);
    assert_eq!(predictor.passes, [4, 4, 2, 1, 1, 1, 1, 1, 1]);
    assert_eq!(generated.tokens, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((generated.finish, generated.passes), (Finish::Length, 9));
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
        let mut predictor = Counting::new(known);
        predictor.known = known;
        let (generated, _) = run(&request(10, 1), &mut predictor);
        assert_eq!(predictor.passes, passes);
        assert_eq!(generated.tokens.len(), 1);
    }
}

#[test]
fn an_end_token_ends_the_text_unless_it_is_kept_or_suppressed() {
    let mut asked = request(17, 5);
    let (generated, _) = run(&asked, &mut Counting::new(0));
    assert_eq!(generated.tokens, [7, 8, END]);
    assert_eq!(generated.finish, Finish::Eos);
    asked.eos = EosPolicy::Keep;
    let (generated, _) = run(&asked, &mut Counting::new(0));
    assert_eq!(generated.tokens, [7, 8, END, 0, 1]);
    asked.eos = EosPolicy::Suppress;
    let (generated, _) = run(&asked, &mut Counting::new(0));
    assert_eq!(generated.tokens, [7, 8, 0, 0, 1]);
    assert_eq!(generated.finish, Finish::Length);
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
    let text = Text::new(tokenizer, None).unwrap();
    let mut asked = request(10, 7);
    asked.stops = vec![b"<|next|>".to_vec()];
    let generated = generate(&asked, Some(&text), &mut Counting::new(0), &mut |_| {}).unwrap();
    assert_eq!(generated.tokens, [0, 1, 2]);
    assert_eq!(generated.finish, Finish::Stop);
}

#[test]
fn a_cancelled_request_tells_how_far_it_came() {
    let mut predictor = Counting::new(0);
    predictor.cancel_at = Some(5);
    let (generated, _) = run(&request(10, 7), &mut predictor);
    assert_eq!(generated.tokens, [0, 1, 2]);
    assert_eq!(generated.finish, Finish::Cancelled);
}
