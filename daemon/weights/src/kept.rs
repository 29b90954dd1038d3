//! The KV heads that a pruned layer has.

use std::sync::Arc;

/// The KV heads that a pruned layer keeps: their indices in the model's shape, rising. Each has all of its query heads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeptKvHeads(Arc<[u16]>);

impl KeptKvHeads {
    /// These of `kv_heads` heads; `None` unless they rise, there is one at least, and each is one of the model's.
    #[must_use]
    pub fn new(heads: &[u16], kv_heads: usize) -> Option<Self> {
        let rises = heads.windows(2).all(|pair| pair[0] < pair[1]);
        let last = usize::from(*heads.last()?);
        (rises && last < kv_heads).then(|| Self(heads.into()))
    }

    /// How many heads are kept.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a layer keeps one at least")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Their indices in the model's shape.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> + Clone {
        self.0.iter().map(|&head| usize::from(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_heads_rise_and_are_the_models() {
        let kept = |heads: &[u16]| KeptKvHeads::new(heads, 4).map(|kept| kept.iter().collect());
        assert_eq!(kept(&[0, 3]), Some(vec![0, 3]));
        for wrong in [&[][..], &[1, 1], &[2, 1], &[4]] {
            assert_eq!(kept(wrong), None::<Vec<_>>, "{wrong:?}");
        }
    }
}
