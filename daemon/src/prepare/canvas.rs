//! The part to fill, as it stands before the first pass.

use std::ops::Range;

use sluice_engine::CanvasSlot;
use sluice_proto::model::InvalidField;

use crate::failure::Failure;

/// `length` masks, with pins at their positions.
pub(super) fn with_pins(
    length: usize,
    pins: &[(u32, Vec<u32>)],
) -> Result<Vec<CanvasSlot>, Failure> {
    let mut canvas = vec![CanvasSlot::Masked; length];
    for (position, ids) in pins {
        let start = *position as usize;
        let places = canvas.get_mut(start..start.saturating_add(ids.len()));
        let Some(places) = places else {
            return Err(Failure::PinOutside {
                position: *position,
                tokens: ids.len(),
                length,
            });
        };
        for (offset, (place, id)) in places.iter_mut().zip(ids).enumerate() {
            if *place != CanvasSlot::Masked {
                let position = start + offset;
                return Err(Failure::PinTwice { position, length });
            }
            *place = CanvasSlot::Pinned(*id);
        }
    }
    Ok(canvas)
}

/// How many of so many masks are left once these texts stand among them, wherever that will be.
pub(super) fn left_after(texts: &[Vec<u32>], masks: usize) -> Result<usize, InvalidField> {
    let tokens: usize = texts.iter().map(Vec::len).sum();
    masks.checked_sub(tokens).ok_or_else(|| InvalidField {
        field: "diffusion.pins",
        problem: format!(
            "texts that may stand anywhere have {tokens} tokens, and {masks} positions are free"
        ),
    })
}

/// The tokens of a text, those that `span` touches replaced by masks: `span_length` of them,
/// or as many as there were, at least one.
pub(super) fn with_span_masked(
    tokens: &[(u32, Range<usize>)],
    span: Range<usize>,
    span_length: Option<usize>,
) -> Vec<CanvasSlot> {
    let touched =
        |token: &(u32, Range<usize>)| token.1.start < span.end && token.1.end > span.start;
    let first = tokens.iter().position(touched);
    let last = tokens.iter().rposition(touched);
    let replaced = match (first, last) {
        (Some(first), Some(last)) => first..last + 1,
        // The span is empty and between two tokens: insert before the first token after it.
        _ => {
            let at = tokens.partition_point(|token| token.1.end <= span.start);
            at..at
        }
    };
    let masks = span_length.unwrap_or(replaced.len()).max(1);
    let pinned = |token: &(u32, Range<usize>)| CanvasSlot::Pinned(token.0);
    let mut canvas: Vec<_> = tokens[..replaced.start].iter().map(pinned).collect();
    canvas.extend(std::iter::repeat_n(CanvasSlot::Masked, masks));
    canvas.extend(tokens[replaced.end..].iter().map(pinned));
    canvas
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `_` for a mask, else the id.
    fn drawn(canvas: &[CanvasSlot]) -> String {
        let draw = |slot: &CanvasSlot| match slot {
            CanvasSlot::Masked => "_".to_owned(),
            CanvasSlot::Pinned(id) => id.to_string(),
        };
        canvas.iter().map(draw).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn pins_stand_where_they_were_put() {
        let canvas = with_pins(6, &[(1, vec![7, 8]), (5, vec![9])]).unwrap();
        assert_eq!(drawn(&canvas), "_ 7 8 _ _ 9");
    }

    #[test]
    fn a_pin_outside_names_position_and_length() {
        let error =
            |position, ids: Vec<u32>| with_pins(6, &[(position, ids)]).unwrap_err().to_string();
        assert_eq!(
            error(5, vec![7, 8]),
            "a pin of 2 tokens at position 5 exceeds the length of 6"
        );
        assert!(error(u32::MAX, vec![7]).contains("position 4294967295"));
    }

    #[test]
    fn two_pins_at_one_position_are_refused() {
        let error = with_pins(6, &[(1, vec![7, 8]), (2, vec![9])]).unwrap_err();
        let message = "two pins overlap at position 2 of the length of 6";
        assert_eq!(error.to_string(), message);
    }

    /// Tokens 10, 11, 12 of two bytes each, as in "aabbcc".
    fn edited(span: Range<usize>, span_length: Option<usize>) -> String {
        let tokens = [(10, 0..2), (11, 2..4), (12, 4..6)];
        drawn(&with_span_masked(&tokens, span, span_length))
    }

    #[test]
    fn tokens_that_the_span_touches_are_masked_whole() {
        assert_eq!(edited(2..4, None), "10 _ 12");
        assert_eq!(edited(3..5, None), "10 _ _");
        assert_eq!(edited(0..6, None), "_ _ _");
        assert_eq!(edited(2..4, Some(3)), "10 _ _ _ 12");
        assert_eq!(edited(1..5, Some(1)), "_");
    }

    #[test]
    fn an_empty_span_inserts_between_tokens() {
        assert_eq!(edited(0..0, Some(2)), "_ _ 10 11 12");
        assert_eq!(edited(2..2, Some(2)), "10 _ _ 11 12");
        assert_eq!(edited(6..6, Some(1)), "10 11 12 _");
        // Inside a token there is no between.
        assert_eq!(edited(3..3, Some(2)), "10 _ _ 12");
    }

    #[test]
    fn bytes_without_a_token_get_a_mask_all_the_same() {
        let tokens = [(10, 0..2), (12, 4..6)];
        assert_eq!(drawn(&with_span_masked(&tokens, 2..4, None)), "10 _ 12");
        assert_eq!(drawn(&with_span_masked(&[], 0..0, Some(2))), "_ _");
    }
}
