//! Groups of weights beside each other: a search for the best scale adds up one weight after another, and that order
//! decides the last bits of its result. So each lane of a vector has a group of its own, and adds up in that order.
//! Everything here is branchless: the compiler makes vectors of the loops over lanes.

/// `GROUPS` groups of `LEN` weights, the first weights of all groups first.
pub(super) type Groups<const GROUPS: usize, const LEN: usize> = [[f32; GROUPS]; LEN];

/// Puts groups that follow one another beside each other.
#[inline(always)]
pub(super) fn beside<const GROUPS: usize, const LEN: usize>(values: &[f32]) -> Groups<GROUPS, LEN> {
    let (groups, rest) = values.as_chunks::<LEN>();
    assert!(rest.is_empty() && groups.len() == GROUPS);
    let mut out = [[0.0; GROUPS]; LEN];
    for (lane, group) in groups.iter().enumerate() {
        for (out, &value) in out.iter_mut().zip(group) {
            out[lane] = value;
        }
    }
    out
}

/// The nearest whole number, ties away from zero, as [`f32::round`], for which CPUs have no instruction. The number before
/// one half is added, so that nothing below one half is rounded up.
#[inline(always)]
pub(super) fn nearest(value: f32) -> f32 {
    const BELOW_HALF: f32 = 0.499_999_97;
    (value + BELOW_HALF.copysign(value)).trunc()
}

/// Between two whole numbers, and 0 for what is no number: what `clamp` makes of a cast to an integer.
#[inline(always)]
pub(super) fn clamp(value: f32, min: f32, max: f32) -> f32 {
    let value = if value.is_nan() { 0.0 } else { value };
    let value = if value > min { value } else { min };
    let value = if value < max { value } else { max };
    // Integers have no negative zero.
    value + 0.0
}

/// The low byte of a whole number whose magnitude is less than 2²²: added to this, its bits are the float's last ones.
#[inline(always)]
pub(super) fn low_byte(whole: f32) -> u8 {
    const SHIFT: f32 = (3 << 22) as f32;
    (whole + SHIFT).to_bits() as u8
}

/// All bits set, or none: what [`pick`] chooses by.
#[inline(always)]
pub(super) fn mask(is_set: bool) -> u32 {
    u32::from(is_set).wrapping_neg()
}

/// The first value where the mask is set, else the second. In bits, since the compiler turns a choice between values in
/// memory into one between addresses, a lane at a time.
#[inline(always)]
pub(super) fn pick(mask: u32, set: f32, unset: f32) -> f32 {
    f32::from_bits(set.to_bits() & mask | unset.to_bits() & !mask)
}

/// Whether a mask is set in any lane.
#[inline(always)]
pub(super) fn any<const GROUPS: usize>(masks: &[u32; GROUPS]) -> bool {
    masks.iter().fold(0, |all, mask| all | mask) != 0
}
