//! Drafts and their verification, with a scripted model.

use proptest::prelude::*;
use sluice_checkpoint::family::{BlockDiffusion, MaskToken};
use sluice_ops::CandidateEvidence;
use sluice_shared::{decoding::Decoding, policy::PolicyChoice};

use super::*;
use crate::{decode::most_rows, request::ModelId};

const MASK: u32 = 90;
const END: u32 = 7;

fn vocabulary() -> Arc<Vocabulary> {
    let blocks = BlockDiffusion {
        length: 8,
        filled_together: 8,
        causal_attention_before: true,
    };
    Arc::new(Vocabulary {
        size: 100,
        mask: Some(MaskToken {
            token_id: Some(MASK),
            shifted: false,
            blocks: Some(blocks),
            reserved: None,
        }),
        ends: vec![END],
    })
}

/// The token after these: any below 40, which depends on all of them.
fn after(text: &[u32]) -> u32 {
    let mixed = text.iter().fold(17, |hash: u32, &token| {
        hash.wrapping_mul(31).wrapping_add(token + 1)
    });
    (mixed >> 3) % 40
}

fn candidate(token: u32) -> Candidate {
    Candidate {
        token,
        confidence: 0.5,
        rank: 0.5,
        target_log_probability: None,
        evidence: CandidateEvidence::default(),
    }
}

/// What the model makes of a pass; of a draft so many tokens are right.
fn candidates(pass: &Pass<'_>, right: usize) -> Vec<Candidate> {
    let mut text = pass.canvas.to_vec();
    let found = pass.rows.iter().enumerate().map(|(index, row)| {
        let token = after(&text[..row.position]);
        match pass.reach.sight {
            Some(BlockSight::Open) => {
                assert_eq!(text[row.position], MASK);
                text[row.position] = token;
                candidate(if index < right { token } else { 41 })
            }
            _ => candidate(token),
        }
    });
    found.collect()
}

fn request(length: usize, policy: &str, eos: EosPolicy) -> Generate {
    Generate {
        block_length: 8,
        eos,
        policy: policy.parse::<PolicyChoice>().unwrap(),
        causal_attention_before: true,
        decoding: Decoding {
            kv_cache: "blocks".parse().unwrap(),
            ..Decoding::default()
        },
        ..Generate::greedy(ModelId(1), vec![3, 1, 2], length)
    }
}

/// The result, what each pass computed, and the positions of finished blocks.
fn write(
    request: &Generate,
    right: impl Fn(usize) -> usize,
) -> (GenerationResult, Vec<Range<usize>>, Vec<usize>) {
    let mut text = DraftedText::new(request, &vocabulary()).expect("such a policy");
    let (mut computed, mut shown) = (Vec::new(), Vec::new());
    text.start(&mut |_| {});
    while !text.is_done() {
        let passes = text.passes();
        let held = text.finished().unwrap().tokens.len();
        assert_eq!(
            passes[0].reach.computed[0].start, held,
            "rows follow the cache"
        );
        assert!(passes[0].reach.computed[0].end <= passes[0].canvas.len());
        assert!(passes[0].reach.rows() <= most_rows(request), "as planned");
        computed.push(passes[0].reach.computed[0].clone());
        let found = candidates(&passes[0], right(computed.len()));
        drop(passes);
        text.take(&[found], &PassCost::default(), &mut |event| {
            if let Event::BlockDone { positions, .. } = event {
                shown.extend(positions.iter().map(|position| position.position));
                let is_final = |p: &CanvasPosition| p.state == TokenState::Committed;
                assert!(positions.iter().all(is_final));
            }
        });
        // What is held was computed of final tokens.
        let finished = text.finished().unwrap();
        let mut expected = request.prompt.clone();
        while expected.len() < finished.tokens.len() {
            expected.push(after(&expected));
        }
        assert!(expected.starts_with(finished.tokens));
    }
    (text.generated(), computed, shown)
}

proptest! {
    #[test]
    fn drafts_change_no_token(
        length in 1usize..50,
        window in 1u32..12,
        least in 1u32..12,
        right in prop::collection::vec(0usize..12, 1..8),
        stops in any::<bool>(),
    ) {
        let eos = if stops { EosPolicy::Stop } else { EosPolicy::Keep };
        let plain = request(length, "autoregressive", eos);
        let (expected, _, _) = write(&plain, |_| 0);
        prop_assert_eq!(expected.passes, expected.tokens.len());
        let policy = format!("verify:window={window},least={least}");
        let drafted = request(length, &policy, eos);
        let (found, computed, shown) = write(&drafted, |pass| right[pass % right.len()]);
        prop_assert_eq!(&found.tokens, &expected.tokens);
        prop_assert_eq!(found.finish_reason, expected.finish_reason);
        prop_assert!(found.passes <= 2 * found.tokens.len());
        prop_assert!(computed[1..].iter().all(|rows| rows.len() <= window as usize));
        prop_assert_eq!(shown, (0..found.tokens.len()).collect::<Vec<_>>());
    }
}

#[test]
fn a_long_prompt_is_read_in_pieces() {
    let long = Generate {
        prompt: vec![3; 1100],
        ..request(3, "verify:window=2,least=2", EosPolicy::Keep)
    };
    let (_, computed, _) = write(&long, |_| 0);
    assert_eq!(
        computed[..5],
        [0..512, 512..1024, 1024..1100, 1100..1102, 1100..1102]
    );
}

#[test]
fn windows_grow_with_right_drafts_and_shrink_with_wrong_ones() {
    let rows = |policy: &str, right: usize| -> Vec<usize> {
        let (_, computed, _) = write(&request(60, policy, EosPolicy::Keep), |_| right);
        computed.iter().map(Range::len).collect()
    };
    // A draft and its verification each.
    assert_eq!(
        rows("verify:window=16,least=4", 99)[1..8],
        [4, 4, 8, 8, 16, 16, 16]
    );
    assert_eq!(rows("verify:window=16,least=16", 0)[1..5], [16; 4]);
    assert_eq!(rows("verify:window=16,least=4", 0)[1..5], [4; 4]);
    assert_eq!(rows("autoregressive", 0)[1..5], [1; 4]);
}
