//! The merges of BPE: which pairs of tokens become one, and in which order.

use super::{
    super::{super::CheckpointError, metadata::Metadata},
    TOKENS_KEY, Vocabulary,
};

const MERGES_KEY: &str = "tokenizer.ggml.merges";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
/// Longest token that is merged from others, in bytes: only a file made to cost time has longer ones.
const TOKEN_BYTES_MAX: usize = 512;
/// Most pairs per token: published vocabularies have about two, one made to cost memory has hundreds.
const PAIRS_PER_TOKEN_MAX: usize = 16;

/// The pairs that the file lists, each as two tokens with a space between.
pub(super) fn listed<'a>(
    metadata: &'a Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Vec<(&'a str, &'a str)>, CheckpointError> {
    let merges = metadata.texts(MERGES_KEY)?.ok_or_else(|| {
        metadata.problem(
            MERGES_KEY,
            "is missing; convert the model with a newer version of the program that wrote the file",
        )
    })?;
    let mut pairs = Vec::with_capacity(merges.len());
    // One buffer for all merges, of which there are hundreds of thousands.
    let mut joined = String::new();
    for (number, merge) in merges.iter().enumerate() {
        // Searched from the second byte on, because a token may begin with a space.
        let pair = (1..merge.len())
            .find(|&at| merge.as_bytes()[at] == b' ')
            .map(|at| (&merge[..at], &merge[at + 1..]));
        let is_known = pair.is_some_and(|(left, right)| {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            [left, right, &joined]
                .iter()
                .all(|token| vocabulary.id(token).is_some())
        });
        match pair {
            Some(pair) if is_known => pairs.push(pair),
            _ => {
                let merge: String = merge.chars().take(100).collect();
                return Err(metadata.problem(
                    MERGES_KEY,
                    format!("entry {number} does not merge two tokens into one: {merge:?}"),
                ));
            }
        }
    }
    Ok(pairs)
}

/// All pairs that make a token, in the order of falling scores; for equal scores the longer left part first, then the
/// longer right one, as in Hugging Face's conversion.
pub(super) fn by_score<'a>(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'a>,
) -> Result<Vec<(&'a str, &'a str)>, CheckpointError> {
    let scores = metadata
        .numbers(SCORES_KEY)?
        .ok_or_else(|| metadata.problem(SCORES_KEY, "is missing"))?;
    if scores.len() != vocabulary.tokens.len() {
        return Err(metadata.problem(
            SCORES_KEY,
            format!(
                "has {} scores for {} tokens",
                scores.len(),
                vocabulary.tokens.len()
            ),
        ));
    }
    // SentencePiece files list no merges: every split of a token into two tokens is one.
    let pairs_max = PAIRS_PER_TOKEN_MAX * vocabulary.tokens.len();
    let mut pairs = Vec::new();
    for (id, score) in scores.floats().enumerate() {
        let token = vocabulary.tokens.get(id).unwrap_or_default();
        // Splits of a long token take quadratic time to look up.
        if token.len() > TOKEN_BYTES_MAX {
            continue;
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if vocabulary.id(left).is_some() && vocabulary.id(right).is_some() {
                pairs.push((score, left, right));
            }
        }
        // Looked at for each token, so that memory is bounded while pairs are collected, not afterwards.
        if pairs.len() > pairs_max {
            return Err(metadata.problem(
                TOKENS_KEY,
                format!("has tokens with more than {pairs_max} possible merges"),
            ));
        }
    }
    pairs.sort_by(|(a, left_a, right_a), (b, left_b, right_b)| {
        b.total_cmp(a)
            .then(left_b.len().cmp(&left_a.len()))
            .then(right_b.len().cmp(&right_a.len()))
    });
    Ok(pairs
        .into_iter()
        .map(|(_, left, right)| (left, right))
        .collect())
}
