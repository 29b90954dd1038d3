//! Rotary embedding (RoPE): the frequency of each pair of a head.

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// Element i with i + [`Rope::pair_distance`].
    HalfSplit,
    /// Neighbours: element 2i with 2i + 1.
    Interleaved,
}

/// RoPE's frequencies and pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Radians per position, for each pair of the elements that are rotated.
    pub frequencies: Vec<f32>,
    /// Elements of a head. Those behind the ones that are rotated stay as they are.
    pub head_dim: usize,
    /// The pairs.
    pub pairs: RopePairs,
    /// Elements between the first of a pair and the second, where they are no neighbours: half of what is rotated or, where
    /// only some pairs of a whole head are, half of the head.
    pub pair_distance: usize,
    /// How queries are scaled besides; `None`: they are not.
    pub query_scale: Option<QueryScale>,
}

/// Queries at far positions are longer: at position p by 1 + beta · ln(1 + p div original_context), as in Llama 4.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScale {
    /// How fast they grow.
    pub beta: f32,
    /// Positions of the original context, at which they begin to.
    pub original_context: usize,
}

impl QueryScale {
    /// The factor at a position.
    #[must_use]
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.beta * (1.0 + (position / self.original_context) as f32).ln()
    }
}

/// YaRN (`rope_type` `yarn`, arXiv 2309.00071): pairs of low frequency are slowed down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct YarnScaling {
    /// Factor by which low frequencies are divided.
    pub factor: f32,
    /// Pairs with more turns than this over the original context are left as they are.
    pub beta_fast: f32,
    /// Pairs with fewer turns than this are slowed down in full; between both, frequencies are interpolated by the pair's
    /// index.
    pub beta_slow: f32,
    /// Positions of the original context.
    pub original_context: f32,
}

/// Llama 3.1's context extension (`rope_type` `llama3`): pairs of low frequency are slowed down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3Scaling {
    /// Factor by which low frequencies are divided.
    pub factor: f32,
    /// Pairs with fewer turns than this over the original context are slowed down in full.
    pub low_freq_factor: f32,
    /// Pairs with more turns than this are left as they are; between both, frequencies are interpolated.
    pub high_freq_factor: f32,
    /// Positions of the original context.
    pub original_context: f32,
}

impl Rope {
    /// `base^(-2i / head_dim)` for pair i, computed in `f32`.
    #[must_use]
    pub fn plain(base: f32, head_dim: usize) -> Self {
        // In `f32`, as the reference computes it: another rounding is another angle at large positions.
        let frequency = |i: usize| base.powf((2 * i) as f32 / head_dim as f32).recip();
        Self {
            frequencies: (0..head_dim / 2).map(frequency).collect(),
            head_dim,
            pairs: RopePairs::HalfSplit,
            pair_distance: head_dim / 2,
            query_scale: None,
        }
    }

    /// The plain frequencies of the first pairs of a head: of this share, or the whole number below. The others are not
    /// rotated.
    ///
    /// Reference: `rope_type` `proportional` of transformers, which gives those a frequency of 0.
    #[must_use]
    pub fn proportional(base: f32, head_dim: usize, share: f32) -> Self {
        let mut rope = Self::plain(base, head_dim);
        let pairs = share * rope.frequencies.len() as f32;
        rope.frequencies.truncate(pairs as usize);
        rope
    }

    /// The plain frequencies, slowed down as in Llama 3.1.
    ///
    /// Reference: `_compute_llama3_parameters` of transformers' `modeling_rope_utils.py`.
    #[must_use]
    pub fn llama3(base: f32, head_dim: usize, scaling: Llama3Scaling) -> Self {
        let Llama3Scaling {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_context,
        } = scaling;
        let mut rope = Self::plain(base, head_dim);
        for frequency in &mut rope.frequencies {
            let turns = original_context * *frequency / std::f32::consts::TAU;
            if turns < low {
                *frequency /= factor;
            } else if turns <= high {
                // Interpolated, so that no neighbouring pairs differ by the whole factor.
                let kept = (turns - low) / (high - low);
                *frequency = (1.0 - kept) * *frequency / factor + kept * *frequency;
            }
        }
        rope
    }

    /// The plain frequencies, slowed down as in YaRN.
    ///
    /// Reference: `_compute_yarn_parameters` of transformers' `modeling_rope_utils.py`.
    #[must_use]
    pub fn yarn(base: f32, head_dim: usize, scaling: YarnScaling) -> Self {
        let mut rope = Self::plain(base, head_dim);
        // The index of the pair that makes so many turns over the original context.
        let pair = |turns: f32| {
            let wavelength = f64::from(scaling.original_context) / f64::from(turns);
            let ratio = (wavelength / std::f64::consts::TAU).ln() / f64::from(base).ln();
            head_dim as f64 * ratio / 2.0
        };
        let low = pair(scaling.beta_fast).floor().max(0.0);
        let high = pair(scaling.beta_slow).ceil().min(head_dim as f64 - 1.0);
        // The reference's way not to divide by zero.
        let high = if high > low { high } else { low + 0.001 };
        for (index, frequency) in rope.frequencies.iter_mut().enumerate() {
            let slowed = ((index as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
            *frequency = *frequency / scaling.factor * slowed + *frequency * (1.0 - slowed);
        }
        rope
    }

    /// The same rotation of the first elements of longer heads.
    #[must_use]
    pub fn of_heads(self, head_dim: usize) -> Self {
        Self { head_dim, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_pairs_are_slowed_down_and_fast_ones_left_alone() {
        let scaling = Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        let plain = Rope::plain(500_000.0, 128).frequencies;
        let scaled = Rope::llama3(500_000.0, 128, scaling).frequencies;
        let ratios: Vec<f32> = plain.iter().zip(&scaled).map(|(a, b)| a / b).collect();
        assert_eq!(
            (ratios[0], plain[0], plain[32]),
            (1.0, 1.0, 500_000f32.sqrt().recip())
        );
        assert!((ratios[63] - 8.0).abs() < 1e-5, "{}", ratios[63]);
        assert!(ratios.is_sorted(), "{ratios:?}");
        assert!(ratios.iter().any(|&ratio| ratio > 1.5 && ratio < 7.0));
    }

    #[test]
    fn yarn_slows_pairs_down_by_their_index() {
        let scaling = YarnScaling {
            factor: 16.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 16_384.0,
        };
        let plain = Rope::plain(1e6, 128).frequencies;
        let scaled = Rope::yarn(1e6, 128, scaling).frequencies;
        let ratios: Vec<f32> = plain.iter().zip(&scaled).map(|(a, b)| a / b).collect();
        // By hand: 64 ln(16384 / 64π) / ln 1e6 = 20.4…, 64 ln(16384 / 2π) / ln 1e6 = 36.4…
        assert_eq!((ratios[20], ratios[37]), (1.0, 16.0));
        assert!(ratios[21] > 1.0 && ratios[36] < 16.0 && ratios.is_sorted());
    }

    #[test]
    fn queries_grow_with_each_original_context() {
        let scale = QueryScale {
            beta: 0.1,
            original_context: 32,
        };
        assert_eq!((scale.at(0), scale.at(31)), (1.0, 1.0));
        assert_eq!(scale.at(32), 1.0 + 0.1 * 2f32.ln());
        assert_eq!(scale.at(95), 1.0 + 0.1 * 3f32.ln());
    }
}
