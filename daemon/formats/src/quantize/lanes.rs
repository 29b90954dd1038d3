//! Groups of weights side by side. A search for the best scale adds up one weight after another, and that order decides
//! the last bits of its result. So each lane of a vector processes a group of its own, in that order. Everything here
//! is branchless, so that the compiler vectorizes the loops over lanes.

/// `GROUPS` groups of `LEN` weights: the first weights of all groups, then the second ones, and so on.
pub(super) type Groups<const GROUPS: usize, const LEN: usize> = [[f32; GROUPS]; LEN];

/// Transposes groups that follow one another into lanes.
#[inline(always)]
pub(super) fn beside<const GROUPS: usize, const LEN: usize>(values: &[f32]) -> Groups<GROUPS, LEN> {
    let (groups, rest) = values.as_chunks::<LEN>();
    assert!(rest.is_empty() && groups.len() == GROUPS);
    // Transposed once; every round of a search then runs over contiguous lanes.
    let mut out = [[0.0; GROUPS]; LEN];
    for (lane, group) in groups.iter().enumerate() {
        for (out, &value) in out.iter_mut().zip(group) {
            out[lane] = value;
        }
    }
    out
}

/// Rounds to the nearest integer, ties away from zero, as [`f32::round`] does, for which CPUs have no instruction. It
/// adds the largest number below one half, so that nothing below one half is rounded up.
#[inline(always)]
pub(super) fn nearest(value: f32) -> f32 {
    const BELOW_HALF: f32 = 0.499_999_97;
    (value + BELOW_HALF.copysign(value)).trunc()
}

/// Clamps to a range of integers; NaN becomes 0, as in a cast to an integer.
#[inline(always)]
pub(super) fn clamp(value: f32, min: f32, max: f32) -> f32 {
    let value = if value.is_nan() { 0.0 } else { value };
    let value = if value > min { value } else { min };
    let value = if value < max { value } else { max };
    // Adding 0 turns -0 into 0: integers have no negative zero.
    value + 0.0
}

/// The low byte of an integer whose magnitude is less than 2²²: adding this constant moves it to the lowest bits of the
/// mantissa.
#[inline(always)]
pub(super) fn low_byte(whole: f32) -> u8 {
    const SHIFT: f32 = (3 << 22) as f32;
    (whole + SHIFT).to_bits() as u8
}

/// All bits set or none, for [`pick`].
#[inline(always)]
pub(super) fn mask(is_set: bool) -> u32 {
    u32::from(is_set).wrapping_neg()
}

/// The first value where the mask is set, else the second. Computed in bits, because the compiler turns a choice
/// between values in memory into one between addresses, one lane at a time.
#[inline(always)]
pub(super) fn pick(mask: u32, set: f32, unset: f32) -> f32 {
    f32::from_bits(set.to_bits() & mask | unset.to_bits() & !mask)
}

/// Whether the mask of any lane is set.
#[inline(always)]
pub(super) fn any<const GROUPS: usize>(masks: &[u32; GROUPS]) -> bool {
    masks.iter().fold(0, |all, mask| all | mask) != 0
}
