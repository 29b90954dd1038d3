//! A small random number generator whose whole state is one word, so that any step of a training run can be
//! reproduced from the seed and the step number alone.

/// SplitMix64 (Steele, Lea and Flood 2014): fast, well mixed, and good enough for choosing words and masks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator for one purpose: different streams of the same seed are independent of each other.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut base = Self { state: seed };
        let mixed = base.next_u64();
        // One step of mixing separates the seed from the stream: neighbouring streams would otherwise begin alike.
        let mut random = Self {
            state: mixed ^ stream.wrapping_mul(0xd134_2543_de82_ef95),
        };
        random.next_u64();
        random
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A whole number in `0..bound`; `bound` must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        // The bias of a multiply-shift is below 2^-50 for the small bounds used here.
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Puts the items in random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// A standard normal number (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        // 1 − u lies above 0, so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}
