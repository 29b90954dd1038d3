//! The sizes of RWKV-7's layers, and the roles of their tensors.

/// Elements of a head, of all published models.
pub const RWKV7_HEAD_DIM: usize = 64;

/// Inner sizes of the low-rank products of an RWKV-7 layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rwkv7Ranks {
    /// Of the decay.
    pub decay: usize,
    /// Of the in-context learning rate.
    pub learning_rate: usize,
    /// Of how much a value takes over from the first layer's.
    pub value: usize,
    /// Of the gate.
    pub gate: usize,
}

/// A tensor of RWKV-7's layers that no other layers have. Where no shape is given it is a vector of the hidden size; in
/// brackets its official name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rwkv7Part {
    /// Weight of the norm between the embedding and the first layer (`ln0.weight`).
    FirstNorm,
    /// Bias of that norm (`ln0.bias`).
    FirstNormBias,
    /// Share of the token before in the input of the receptance (`x_r`).
    MixReceptance,
    /// The same of the decay (`x_w`).
    MixDecay,
    /// The same of the key (`x_k`).
    MixKey,
    /// The same of the value (`x_v`).
    MixValue,
    /// The same of the learning rate (`x_a`).
    MixLearningRate,
    /// The same of the gate (`x_g`).
    MixGate,
    /// The decay's bias (`w0`).
    DecayBias,
    /// [decay rank, hidden size] (`w1`).
    DecayDown,
    /// [hidden size, decay rank] (`w2`).
    DecayUp,
    /// The learning rate's bias (`a0`).
    LearningRateBias,
    /// [learning-rate rank, hidden size] (`a1`).
    LearningRateDown,
    /// [hidden size, learning-rate rank] (`a2`).
    LearningRateUp,
    /// Bias of how much a value takes over (`v0`); from the second layer on.
    ValueBias,
    /// [value rank, hidden size] (`v1`).
    ValueDown,
    /// [hidden size, value rank] (`v2`).
    ValueUp,
    /// [gate rank, hidden size] (`g1`).
    GateDown,
    /// [hidden size, gate rank] (`g2`).
    GateUp,
    /// Factor of the key that is removed from the state (`k_k`).
    KeyScale,
    /// How much the learning rate scales the key (`k_a`).
    KeyLearningRate,
    /// Weight of the present token, by channel (`r_k`).
    Bonus,
    /// Weight of the norm of each head's output (`ln_x.weight`).
    HeadNorm,
    /// Bias of that norm (`ln_x.bias`).
    HeadNormBias,
    /// Share of the token before in the input of the channel mix (`ffn.x_k`).
    MixMlp,
}

impl Rwkv7Part {
    /// Whether it belongs to the channel mix and not to the time mix.
    pub(super) fn is_of_channel_mix(self) -> bool {
        self == Self::MixMlp
    }
}
