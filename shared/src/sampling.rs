//! Settings of the sampler that command line, wire and engine name alike.

/// How the masked positions of a pass are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remasking {
    /// By the probability of their token.
    #[default]
    LowConfidence,
    /// By a seeded random number.
    Random,
}

/// What an end-of-sequence token does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EosPolicy {
    /// Ends the text once nothing before it is masked; words after it are dropped.
    #[default]
    Stop,
    /// Is never chosen.
    Suppress,
    /// Is a token like any other, as in the reference sampler.
    Keep,
}

/// Keys and values kept between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cache {
    /// None: every pass computes the whole canvas.
    #[default]
    None,
    /// Those before the block.
    Prefix,
    /// Those before and after the block.
    Dual,
    /// Those away from the block.
    Vicinity,
}
