//! A pass of autoregressive requests: what each reads, and its next token.

use std::sync::atomic::AtomicBool;

use sluice_ops::{Activation, LogitsRows, Ops, Phase};
use sluice_weights::TensorPart;

use super::AutoregressiveRequest;
use crate::{
    decode::{autoregressive::share_rows, sampling::ChosenToken},
    error::EngineError,
    model::network::{Interrupt, Sequence, VisibleKeys, acquire},
    runtime::{contain::contained, current_model::CurrentModel},
};

/// What a pass comes to for a request.
#[derive(Clone)]
pub(super) enum Next {
    /// It has not read all.
    None,
    /// Its next token.
    Chosen(ChosenToken),
    /// It has read all, and its grammar did not say in time what may come next: the pass counts for nothing.
    AwaitsGrammar,
}

/// A request's share of a pass.
pub(in crate::runtime) struct ReadRows {
    pub(super) rows: usize,
    pub(super) next: Next,
}

/// Reads tokens that these requests have not read yet, as many as go through the layers at once, and samples the next
/// token of those that have read all.
pub(in crate::runtime) fn pass(
    requests: &mut [&mut AutoregressiveRequest],
    logits: &mut Option<LogitsRows>,
    (ops, current): (&Ops, &CurrentModel),
    cancel: &AtomicBool,
) -> Result<(Vec<ReadRows>, usize), Interrupt> {
    let (model, weights) = (&current.model, &current.weights);
    let unread: Vec<usize> = requests.iter().map(|request| request.unread()).collect();
    // No more rows than go through an MLP at once: the plan counted activations for so many.
    let rows_max = (requests.first()).map_or(0, |request| {
        request.memory.shape().pass_rows(current.mlp_rows)
    });
    let shares = share_rows(&unread, rows_max);
    let wanted: Vec<Vec<usize>> = shares
        .iter()
        .zip(&unread)
        .map(|(&rows, &unread)| match rows > 0 && rows == unread {
            true => vec![rows - 1],
            false => Vec::new(),
        })
        .collect();
    let positions: Vec<Vec<usize>> = (requests.iter().zip(&shares))
        .map(|(request, rows)| (request.memory.len()..request.memory.len() + rows).collect())
        .collect();
    let mut next = Vec::new();
    let parts = positions.iter().zip(&wanted);
    for (request, (positions, wanted)) in requests.iter_mut().zip(parts) {
        let AutoregressiveRequest {
            continuation,
            memory,
            search: _,
            fork,
            saving: _,
            prompt_len,
            watch,
            awaits_grammar: _,
            notices,
        } = &mut **request;
        if watch.look(weights, !memory.is_empty()) {
            notices.push(format!(
                "the weights changed: the {} of the first {} positions was computed with the previous weights",
                memory.shape().name(),
                memory.len()
            ));
        }
        let Some(&first) = positions.first() else {
            continue;
        };
        // The memory's length says how far the sequence was read, so a pass that failed simply reads the same tokens
        // again.
        let tokens = &continuation.sequence()[first..][..positions.len()];
        let before_last = (*prompt_len - 1).saturating_sub(first);
        let mut sees = memory.sees();
        if let (VisibleKeys::State { fork: place, .. }, Some(fork)) = (&mut sees, fork)
            && (1..tokens.len()).contains(&before_last)
        {
            *place = Some((before_last, fork));
        }
        next.push(Sequence {
            tokens,
            positions,
            wanted,
            sees,
        });
    }
    let hidden = model.forward(ops, weights, &mut next, cancel)?;
    let chosen = match hidden.is_empty() {
        true => Ok(vec![Next::None; requests.len()]),
        false => choose(requests, &wanted, hidden, logits, (ops, current)),
    };
    if chosen.is_err() {
        // Memory may have run short after the layers: the rows are read again by the next try.
        for (request, &rows) in requests.iter_mut().zip(&shares) {
            request.memory.take_back(rows);
        }
    }
    let reads = requests.iter_mut().zip(&shares).zip(chosen?);
    let reads = reads.map(|((request, &rows), next)| {
        if matches!(next, Next::AwaitsGrammar) {
            // Read again once the grammar is ready.
            request.memory.take_back(rows);
        }
        ReadRows { rows, next }
    });
    Ok((reads.collect(), shares.iter().sum()))
}

/// Samples the next token of requests that have read all, from their logits.
fn choose(
    requests: &mut [&mut AutoregressiveRequest],
    wanted: &[Vec<usize>],
    hidden: Activation,
    logits: &mut Option<LogitsRows>,
    (ops, current): (&Ops, &CurrentModel),
) -> Result<Vec<Next>, EngineError> {
    let CurrentModel { model, weights, .. } = current;
    let x = model.final_norm(ops, weights, &hidden)?;
    // Returned to the arena before the logits are computed.
    drop(hidden);
    // All logits of a row at once, unlike a masked diffusion model's, because top-p needs all of them.
    let logits = match logits {
        Some(logits) if logits.count() >= x.len() => logits,
        logits => {
            // The old memory is freed first: both may not fit.
            *logits = None;
            let head_rows = current.planner.config.shape.padded_vocab_size;
            logits.insert(ops.logits_rows(requests.len(), head_rows)?)
        }
    };
    for (group, first) in weights.lm_head_parts() {
        let head = acquire(ops, weights, group)?;
        ops.take_logits(logits, &x, &head.weight(TensorPart::LmHead), first)?;
    }
    let mut row = 0;
    let pairs = requests.iter_mut().zip(wanted);
    pairs
        .map(|(request, wanted)| {
            if wanted.is_empty() {
                return Ok(Next::None);
            }
            // Reading logits waits for a GPU, so it is a phase of its own.
            let _timed = ops.timed(Phase::Sampling);
            let (logits, order) = ops.read_logits(logits, row)?;
            row += 1;
            // Its own state is left as it was, and the weights are not touched.
            let chosen = contained(|| request.continuation.choose(logits, order)).flatten()?;
            Ok(chosen.map_or(Next::AwaitsGrammar, Next::Chosen))
        })
        .collect()
}
