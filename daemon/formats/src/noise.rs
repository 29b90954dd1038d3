//! Random numbers by position instead of by order: the same seed gives the same number for a position and token,
//! whatever threads, pieces of the vocabulary and devices do.

/// A counter-based random generator, fixed by its seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise {
    key: u64,
}

impl Noise {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { key: mix(seed) }
    }

    /// The generator's key, from which a GPU kernel computes the same numbers.
    pub fn key(self) -> u64 {
        self.key
    }

    /// A generator for `stream`, independent of the others of this seed.
    #[must_use]
    pub fn stream(self, stream: u64) -> Self {
        Self {
            // Hashed twice, so that the keys of neighbouring streams are unrelated.
            key: mix(self.key ^ mix(stream.wrapping_add(0xA076_1D64_78BD_642F))),
        }
    }

    /// A number strictly between 0 and 1, for a pass, a position and a token.
    #[must_use]
    pub fn uniform(self, pass: u64, position: u64, token: u64) -> f64 {
        // Pass and position share a word, so that one hash covers both.
        let place = self.key ^ mix((pass << 32) | position);
        to_unit(mix(
            place.wrapping_add(token.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        ))
    }

    /// A standard normal number (Box and Muller).
    #[must_use]
    pub fn normal(self, pass: u64, position: u64, token: u64) -> f64 {
        let radius = (-2.0 * self.uniform(pass, position, 2 * token).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.uniform(pass, position, 2 * token + 1);
        radius * angle.cos()
    }

    /// A Gumbel-distributed number: the token with the largest `logit + T · gumbel` is a sample of `softmax(logit / T)`
    /// (the Gumbel-max trick).
    #[must_use]
    pub fn gumbel(self, pass: u64, position: u64, token: u64) -> f64 {
        // `f64`, as in LLaDA's reference sampler: with `f32` the tail would end early, and tokens of low probability
        // never win.
        -(-self.uniform(pass, position, token).ln()).ln()
    }
}

/// The 53 upper bits as a fraction, centred in their interval so that 0 never occurs; 1 could only come of the largest
/// value, by rounding.
fn to_unit(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gumbel_choice_follows_the_softmax() {
        // Chi-square of 20,000 draws over four tokens at temperature 0.7; the bound is the
        // 0.1 % point of three degrees of freedom.
        let logits = [1.0f64, 0.2, -0.5, 0.9];
        let temperature = 0.7;
        let weights = logits.map(|logit| (logit / temperature).exp());
        let total: f64 = weights.iter().sum();
        let draws = 20_000;
        let mut counts = [0u32; 4];
        let noise = Noise::new(7);
        for draw in 0..draws {
            let score = |token: usize| {
                logits[token] + temperature * noise.gumbel(draw, draw % 13, token as u64)
            };
            let best = (0..4)
                .max_by(|&a, &b| score(a).total_cmp(&score(b)))
                .unwrap();
            counts[best] += 1;
        }
        let chi_square: f64 = (0..4)
            .map(|token| {
                let expected = weights[token] / total * draws as f64;
                (f64::from(counts[token]) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi_square < 16.27, "{chi_square} with {counts:?}");
    }

    #[test]
    fn normal_numbers_have_the_moments_of_a_normal_distribution() {
        let noise = Noise::new(3);
        let count = 100_000;
        let powers = (0..count).map(|at| noise.normal(at % 7, at % 11, at));
        let sums = powers.fold([0.0; 4], |sums, x| {
            [1, 2, 3, 4].map(|power| sums[power as usize - 1] + x.powi(power))
        });
        let [first, second, third, fourth] = sums.map(|sum| sum / count as f64);
        // Five standard errors of each.
        assert!(first.abs() < 0.016 && (second - 1.0).abs() < 0.023);
        assert!(third.abs() < 0.062 && (fourth - 3.0).abs() < 0.16);
    }

    #[test]
    fn places_differ_and_repeat() {
        let noise = Noise::new(1);
        assert_eq!(noise.uniform(1, 2, 3), Noise::new(1).uniform(1, 2, 3));
        let others = [
            noise.uniform(2, 1, 3),
            noise.uniform(1, 3, 2),
            Noise::new(2).uniform(1, 2, 3),
            noise.stream(1).uniform(1, 2, 3),
        ];
        assert!(others.iter().all(|&other| other != noise.uniform(1, 2, 3)));
    }
}
