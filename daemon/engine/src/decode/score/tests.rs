//! The estimator against a model that ignores its context: there the estimate is exact.

use sluice_checkpoint::family::MaskToken;
use sluice_ops::{Candidate, CandidateEvidence};

use super::*;
use crate::request::ModelId;

/// Each token has its own log-probability, wherever it stands.
struct ContextFree {
    vocabulary: Arc<Vocabulary>,
    masked: Vec<usize>,
}

fn log_probability(token: u32) -> f64 {
    -1.0 - f64::from(token) / 10.0
}

impl ContextFree {
    fn candidates(&mut self, pass: &Pass<'_>) -> Vec<Candidate> {
        self.masked.push(pass.rows.len());
        let masks = pass
            .canvas
            .iter()
            .filter(|&&id| id == self.vocabulary.mask_id());
        assert_eq!(
            masks.count(),
            pass.rows.len(),
            "all masks are read, and only they"
        );
        let candidate = |row: &LmHeadRow| Candidate {
            token: 4,
            confidence: 0.5 + row.position as f64 / 1000.0,
            rank: 0.5 + row.position as f64 / 1000.0,
            target_log_probability: row.target.map(log_probability),
            evidence: CandidateEvidence::default(),
        };
        pass.rows.iter().map(candidate).collect()
    }
}

fn run(answer: &[u32], draws: usize) -> (ScoreResult, Vec<usize>) {
    let mut model = ContextFree {
        vocabulary: Arc::new(Vocabulary {
            size: 50,
            mask: Some(MaskToken {
                token_id: Some(49),
                shifted: false,
                blocks: None,
                reserved: None,
            }),
            ends: vec![],
        }),
        masked: Vec::new(),
    };
    let request = Score {
        model: ModelId(1),
        prompt: vec![1, 2],
        answer: answer.to_vec(),
        draws,
        guidance: 0.0,
        seed: 3,
        check_greedy: true,
        think_steps: None,
    };
    let mut estimate = Box::new(ScoreEstimate::new(request, Arc::clone(&model.vocabulary)));
    estimate.start(&mut |_| {});
    while !estimate.is_done() {
        let candidates = model.candidates(&estimate.passes()[0]);
        estimate.take(&[candidates], &PassCost::default(), &mut |_| {});
    }
    match estimate.outcome() {
        Outcome::Scored(scored) => (scored, model.masked),
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_tokens_are_scored_exactly() {
    // (L/ℓ) Σ over ℓ equal terms is the whole sum, whatever ℓ is.
    let (scored, _) = run(&[4; 7], 9);
    assert!((scored.log_likelihood - 7.0 * log_probability(4)).abs() < 1e-9);
    assert!(scored.standard_error.unwrap() < 1e-9);
    assert_eq!(scored.is_greedy, Some(true));
}

#[test]
fn the_estimate_is_unbiased() {
    let answer: Vec<u32> = (0..12).collect();
    let exact: f64 = answer.iter().copied().map(log_probability).sum();
    let (scored, _) = run(&answer, 6_000);
    let error = scored.standard_error.unwrap();
    // Four standard errors: once in 16,000 seeds.
    assert!((scored.log_likelihood - exact).abs() < 4.0 * error);
    assert_eq!(scored.is_greedy, Some(false));
}

#[test]
fn the_number_of_masks_is_stratified() {
    let (_, masked) = run(&[1, 2, 3, 4, 5], 10);
    let mut counts = [0; 6];
    for &count in &masked[..10] {
        counts[count] += 1;
    }
    assert_eq!(counts, [0, 2, 2, 2, 2, 2]);
}
