//! What a column has besides its codes: its class and its step.
//!
//! Both are stored as differences from the column before, whose class and step are mostly near: small numbers have short
//! codes (Elias's gamma codes, 1975).

use std::ops::Range;

use super::{
    bits::{BitReader, BitWriter},
    spreads::{CLASSES, SINGLES_FIRST},
};

/// Steps an octave.
const STEPS_AN_OCTAVE: i32 = 4;
/// Steps are this far from the chunk's at most, in either direction: 16 octaves.
const STEP_MAX: i32 = 16 * STEPS_AN_OCTAVE - 1;
/// 2^(i/4), written out so that every machine computes the same steps.
const STEP_RATIOS: [f32; STEPS_AN_OCTAVE as usize] =
    [1., 1.189_207_1, std::f32::consts::SQRT_2, 1.681_792_8];
/// What the first column of a tile is compared with: the class of 3 bits a weight.
const KIND_FIRST: i32 = 13;
/// Bits that the two numbers of a column are expected to have: it is not known before its neighbours are.
pub(super) const HEADER_BITS: u32 = 5;
/// Most low bits of an element that a wide column stores as they are.
pub(super) const RAW_BITS_MAX: u8 = 4;
/// Classes that wide columns have: those whose words have one symbol.
pub(super) const WIDE_CLASSES: Range<u8> = SINGLES_FIRST as u8..CLASSES as u8;
/// Wide columns come after the others: all classes with one low bit, then all with two, and so on.
const WIDE_FIRST: u8 = CLASSES as u8 + 1;
/// What a header's first number is below: 0 for zeros, then a column's class and one, then wide columns.
const KINDS: u8 = WIDE_FIRST + RAW_BITS_MAX * (CLASSES - SINGLES_FIRST) as u8;
/// Most zeros that a number's code begins with: more than any code has, so that damaged ones end.
const ZEROS_MAX: u32 = 9;

/// The class and the step of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ColumnHeader {
    /// Index of its class, or `None` where all elements are zero; then the step doesn't matter, and isn't stored.
    pub(super) class: Option<u8>,
    /// How many low bits of each element are stored as they are: some in wide columns, none in others.
    pub(super) raw_bits: u8,
    /// Its step beside the chunk's, in quarters of an octave.
    step: i8,
}

impl ColumnHeader {
    /// A column of zeros.
    pub(super) const ZERO: Self = Self {
        class: None,
        raw_bits: 0,
        step: 0,
    };

    /// A column of this class, with the step that is nearest to `ratio` times the chunk's.
    pub(super) fn new(class: u8, ratio: f32) -> Self {
        // Only the encoder computes a logarithm: what it finds is stored.
        Self::with_step(class, (ratio.log2() * STEPS_AN_OCTAVE as f32).round())
    }

    /// A column of this class, with the least step that is `ratio` times the chunk's or more.
    pub(super) fn at_least(class: u8, ratio: f32) -> Self {
        Self::with_step(class, (ratio.log2() * STEPS_AN_OCTAVE as f32).ceil())
    }

    fn with_step(class: u8, step: f32) -> Self {
        Self {
            class: Some(class),
            raw_bits: 0,
            step: (step as i32).clamp(-STEP_MAX, STEP_MAX) as i8,
        }
    }

    /// The same step, another class.
    pub(super) fn with_class(self, class: u8, raw_bits: u8) -> Self {
        Self {
            class: Some(class),
            raw_bits,
            ..self
        }
    }

    /// The number that stands for class and low bits.
    fn kind(self) -> i32 {
        let kind = match (self.class, self.raw_bits) {
            (None, _) => 0,
            (Some(class), 0) => class + 1,
            (Some(class), raw_bits) => {
                WIDE_FIRST + (raw_bits - 1) * WIDE_CLASSES.len() as u8 + class - WIDE_CLASSES.start
            }
        };
        kind.into()
    }

    /// What a number other than 0 stands for: the class, and how many low bits.
    fn of_kind(kind: u8) -> (u8, u8) {
        match kind.checked_sub(WIDE_FIRST) {
            None => (kind - 1, 0),
            Some(wide) => {
                let classes = WIDE_CLASSES.len() as u8;
                (WIDE_CLASSES.start + wide % classes, 1 + wide / classes)
            }
        }
    }

    /// The factor from the chunk's step to this one.
    pub(super) fn ratio(self) -> f32 {
        let step = i32::from(self.step);
        // Powers of two are built from exponent bits, which is exact.
        let power = (127 + step.div_euclid(STEPS_AN_OCTAVE)) as u32;
        STEP_RATIOS[step.rem_euclid(STEPS_AN_OCTAVE) as usize] * f32::from_bits(power << 23)
    }
}

/// Codes the headers of a tile's columns, one after the other.
pub(super) struct HeaderCoder {
    kind: i32,
    step: i32,
}

impl HeaderCoder {
    pub(super) fn new() -> Self {
        Self {
            kind: KIND_FIRST,
            step: 0,
        }
    }

    pub(super) fn write(&mut self, header: ColumnHeader, out: &mut BitWriter) {
        // After a column of zeros the next one is compared with the one before.
        put(header.kind() - self.kind, out);
        if header.class.is_some() {
            put(i32::from(header.step) - self.step, out);
            (self.kind, self.step) = (header.kind(), header.step.into());
        }
    }

    /// Reads a header. What no encoder writes becomes one that is possible.
    pub(super) fn read(&mut self, from: &mut BitReader<'_>) -> ColumnHeader {
        // Both numbers are in one word, whatever the bits are.
        let word = from.peek();
        let (kind, bits) = take(word);
        let kind = (self.kind + kind).clamp(0, i32::from(KINDS) - 1);
        if kind == 0 {
            from.at += bits as usize;
            return ColumnHeader::ZERO;
        }
        let (step, more) = take(word >> bits);
        let step = (self.step + step).clamp(-STEP_MAX, STEP_MAX);
        from.at += (bits + more) as usize;
        (self.kind, self.step) = (kind, step);
        let (class, raw_bits) = ColumnHeader::of_kind(kind as u8);
        ColumnHeader {
            class: Some(class),
            raw_bits,
            step: step as i8,
        }
    }
}

fn put(number: i32, out: &mut BitWriter) {
    // 0, -1, 1, -2, ... in turn, from 1 on.
    let turned = (number << 1 ^ number >> 31) as u32 + 1;
    let bits = turned.ilog2();
    // As many zeros as bits, a one, then the bits below the leading one.
    out.put(1 << bits, bits + 1);
    out.put(turned & !(1 << bits), bits);
}

/// The number that the low bits of a word begin with, and its bits.
fn take(word: u64) -> (i32, u32) {
    let bits = (word as u32).trailing_zeros().min(ZEROS_MAX);
    let rest = (word >> (bits + 1)) as u32 & ((1 << bits) - 1);
    let turned = (1 << bits | rest) - 1;
    ((turned >> 1) as i32 ^ -((turned & 1) as i32), 2 * bits + 1)
}

const _: () = assert!(2 * (2 * ZEROS_MAX + 1) <= 57);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let mut out = BitWriter::default();
        for number in -300..=300 {
            put(number, &mut out);
        }
        let bytes = out.finish();
        let mut from = BitReader::new(&bytes, 0);
        for number in -300..=300 {
            let (found, bits) = take(from.peek());
            assert_eq!(found, number);
            from.at += bits as usize;
        }
    }

    #[test]
    fn each_class_has_a_number() {
        let narrow = (0..CLASSES as u8).map(|class| (class, 0));
        let wide = (1..=RAW_BITS_MAX).flat_map(|raw| WIDE_CLASSES.map(move |class| (class, raw)));
        for ((class, raw_bits), kind) in narrow.chain(wide).zip(1..) {
            let header = ColumnHeader::new(0, 1.).with_class(class, raw_bits);
            assert_eq!(header.kind(), kind);
            assert_eq!(ColumnHeader::of_kind(kind as u8), (class, raw_bits));
            assert!(kind < KINDS.into());
        }
    }

    #[test]
    fn near_headers_are_short() {
        let mut out = BitWriter::default();
        let mut coder = HeaderCoder::new();
        for _ in 0..10 {
            coder.write(ColumnHeader::new(KIND_FIRST as u8 - 1, 1.), &mut out);
        }
        assert_eq!(out.finish().len(), (10_usize * (1 + 1)).div_ceil(8));
    }

    #[test]
    fn steps_are_near_what_they_should_be() {
        for ratio in [1e-4_f32, 0.7, 1., 1.09, 3., 6e4] {
            let found = ColumnHeader::new(3, ratio).ratio();
            assert!((found / ratio).log2().abs() < 0.126, "{found} for {ratio}");
        }
        assert_eq!(ColumnHeader::new(3, 0.).step, -63);
        assert_eq!(ColumnHeader::new(3, f32::INFINITY).step, 63);
    }

    #[test]
    fn any_bits_are_some_header() {
        for bytes in [[0; 8], [0xff; 8], [0x55; 8], [0, 0, 0, 7, 0xaa, 1, 2, 3]] {
            let mut from = BitReader::new(&bytes, 0);
            let mut coder = HeaderCoder::new();
            while from.at < 200 {
                let before = from.at;
                let header = coder.read(&mut from);
                assert!(from.at > before);
                assert!(
                    header
                        .class
                        .is_none_or(|class| usize::from(class) < CLASSES)
                );
                assert!(header.raw_bits <= RAW_BITS_MAX);
            }
        }
    }
}
