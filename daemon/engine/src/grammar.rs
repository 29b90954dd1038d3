//! The grammar that a text is written by, as decoding sees it: which tokens may come next. What a grammar is, and where that
//! is found out, the engine does not know.

use std::{fmt, sync::Arc, time::Duration};

use sluice_tokenizer::{TokenizerError, grammar::AllowedTokens};

/// Time that a pass waits for the tokens that may come next, which are looked for while it computes. A request whose grammar
/// takes longer sits out until they are there, so that the others wait no longer for it.
pub const GRAMMAR_WAIT: Duration = Duration::from_millis(20);

/// A grammar that texts can be written by.
pub trait GrammarSource: Send + Sync {
    /// Begins a text. Called on the engine's thread: must not block.
    fn begin(&self) -> Box<dyn TextGrammar>;
}

/// A grammar at a place in a text.
pub trait TextGrammar: Send {
    /// The tokens that may come next; `None` where they are not known within `wait`.
    ///
    /// # Errors
    /// When no token will ever be known to come next, each time from then on.
    fn allowed(&mut self, wait: Duration) -> Result<Option<&AllowedTokens>, TokenizerError>;

    /// Takes the token that comes next. Must not block.
    fn accept(&mut self, token: u32);
}

/// A grammar in a request.
#[derive(Clone)]
pub struct RequestGrammar(pub Arc<dyn GrammarSource>);

impl fmt::Debug for RequestGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestGrammar")
    }
}

impl PartialEq for RequestGrammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Makes the logits of all tokens −∞ that may not come next; of `ends`, unless the text may end.
pub(crate) fn restrict(logits: &mut [f32], allowed: &AllowedTokens, ends: &[u32]) {
    let logit_of = |&end: &u32| Some((end as usize, *logits.get(end as usize)?));
    let ends: Vec<_> = ends.iter().filter_map(logit_of).collect();
    let (chunks, masks) = (logits.chunks_mut(u32::BITS as usize), allowed.mask.iter());
    // What the mask does not reach is not allowed.
    for (logits, mask) in chunks.zip(masks.copied().chain(std::iter::repeat(0))) {
        for (bit, logit) in logits.iter_mut().enumerate() {
            if mask >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    // Also where an end token has text, which the mask allows.
    for (end, logit) in ends {
        logits[end] = match allowed.may_end {
            true => logit,
            false => f32::NEG_INFINITY,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_cannot_be_chosen() {
        let left = |mask: &[u32], may_end, ends: &[u32]| {
            let mut logits: Vec<f32> = (0..70).map(|id| id as f32).collect();
            let mask = mask.to_vec();
            restrict(&mut logits, &AllowedTokens { mask, may_end }, ends);
            let kept = logits.iter().enumerate();
            kept.filter(|(_, logit)| logit.is_finite())
                .map(|(id, logit)| {
                    assert_eq!(*logit, id as f32);
                    id
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(left(&[0b101, 1 << 31], false, &[1, 2]), [0, 63]);
        assert_eq!(
            left(&[0b101, 1 << 31], true, &[1, 69, 99]),
            [0, 1, 2, 63, 69]
        );
        assert_eq!(left(&[0, 0, 1 << 5, u32::MAX], false, &[]), [69]);
        assert_eq!(left(&[], true, &[]), [0; 0]);
        assert_eq!(left(&[], true, &[3]), [3]);
    }
}
