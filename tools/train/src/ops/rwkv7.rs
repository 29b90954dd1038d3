//! What is fixed about RWKV-7's recurrence, in whichever form it runs.

/// Channels of a head.
pub(super) const WIDTH: usize = 64;
/// e^(−1/2): the fastest decay of a step, as a logarithm.
pub(super) const FASTEST_DECAY: f32 = 0.606_530_66;
