//! Canonical Huffman codes of at most eleven bits, and a decoder that yields several symbols per table lookup.
//!
//! Codes are written least significant bit first, so that the next code is in the low bits of a word. Shorter codes
//! come first, and among codes of one length those of smaller symbols. A code is always complete: a matrix with a
//! single symbol gets a second one that never occurs. With eleven bits the table fits the first-level cache: at most
//! 2048 entries of up to four symbols, 3.6 on average for the exponents of a language model. Several tiles are decoded
//! in turn, because a single one would leave the processor waiting for table loads (Giesen, "Reading bits in far too
//! many ways", explains the latencies).

use crate::{layout::CODE_LENGTHS_BYTES, simd::SimdPath};

/// Bits of the longest code.
pub(crate) const BITS_MAX: usize = 11;
const ENTRIES: usize = 1 << BITS_MAX;

/// Tiles that are decoded in turn. With fewer, the processor waits for table loads; with more, it runs out of registers
/// (four are slower by a tenth, eight by a quarter).
pub(crate) const STREAMS: usize = 6;
/// Lookups per 64-bit word: five codes, after up to seven bits of a started byte, are 62 bits.
const LOOKUPS: usize = 5;
/// Most symbols that one lookup yields.
const SYMBOLS: usize = 4;
/// Symbols of the longest tile, as in [`TILES`](crate::layout::TILES).
const TILE_MAX: usize = 512;
/// Words that the slowest tile reads: one symbol per lookup.
const STEPS_MAX: usize = TILE_MAX.div_ceil(LOOKUPS);
/// Most bytes that a stream reads: the longest codes and one word.
const READ_BYTES: usize = STEPS_MAX * LOOKUPS * BITS_MAX / 8 + 8;
/// Symbols of a tile while it is decoded, including what is written past its end until the slowest stream has finished.
pub(crate) const STAGE_BYTES: usize = STEPS_MAX * LOOKUPS * SYMBOLS + 4;

// `progress` packs both counts into one `u32`: bits and symbols must fit 16 bits each. The bits of one step must fit a
// word.
const _: () = assert!(STEPS_MAX * LOOKUPS * BITS_MAX < 1 << 16 && STAGE_BYTES < 1 << 16);
const _: () = assert!(7 + BITS_MAX * LOOKUPS <= 64);

/// Code lengths by symbol; 0 for symbols that don't occur. Codes of at most ten bits halve the table and decode a tenth
/// faster; they are taken where they are at most 1/64 longer than codes of eleven bits.
pub(crate) fn code_lengths(counts: &[u64; 256]) -> [u8; 256] {
    // Both codes are built and compared by their exact size; building costs little beside coding a chunk.
    let lengths = [BITS_MAX - 1, BITS_MAX].map(|bits| shortest(counts, bits));
    let [fast, short] = lengths.each_ref().map(|lengths| {
        let bits = counts.iter().zip(lengths);
        bits.map(|(count, bits)| count * u64::from(*bits))
            .sum::<u64>()
    });
    lengths[usize::from(fast > short + short / 64)]
}

/// Builds an optimal length-limited prefix code (package-merge, Larmore and Hirschberg 1990).
pub(crate) fn shortest(counts: &[u64; 256], bits_max: usize) -> [u8; 256] {
    let mut weights: Vec<(u64, u8)> = (0..=255)
        .map(|symbol| (counts[usize::from(symbol)], symbol))
        .filter(|(count, _)| *count > 0)
        .collect();
    // A complete code needs two symbols; the decoder could not advance on a code of zero bits.
    for symbol in 0..2 {
        if weights.len() < 2 && counts[usize::from(symbol)] == 0 {
            weights.push((0, symbol));
        }
    }
    // By count, then by symbol: equal counts must give the same code on every machine.
    weights.sort_unstable();

    // A package is its weight and the symbols in it, with repetitions. A symbol's code length is the number of selected
    // packages that it is in.
    type Package = (u64, Vec<u8>);
    let single: Vec<Package> = weights
        .iter()
        .map(|(weight, symbol)| (*weight, vec![*symbol]))
        .collect();
    let mut level = single.clone();
    // Each round pairs up the cheapest packages and merges them with the single symbols again: one round for each bit a
    // code may have. 256 symbols and 11 rounds make this cheap enough to run twice a chunk.
    for _ in 1..bits_max {
        let pairs = level.chunks_exact(2).map(|pair| {
            let symbols = [&pair[0].1[..], &pair[1].1[..]].concat();
            (pair[0].0 + pair[1].0, symbols)
        });
        let mut merged: Vec<Package> = single.iter().cloned().chain(pairs).collect();
        // Stable: among equal weights single symbols stay before pairs, on every machine.
        merged.sort_by_key(|(weight, _)| *weight);
        level = merged;
    }
    let mut lengths = [0; 256];
    // The 2(n - 1) cheapest packages of the last round give the optimal lengths.
    for (_, symbols) in &level[..2 * (weights.len() - 1)] {
        for symbol in symbols {
            lengths[usize::from(*symbol)] += 1;
        }
    }
    lengths
}

/// Packs lengths as files store them: four bits each.
pub(crate) fn pack_lengths(lengths: &[u8; 256]) -> [u8; CODE_LENGTHS_BYTES] {
    let (pairs, _) = lengths.as_chunks::<2>();
    std::array::from_fn(|i| pairs[i][0] | pairs[i][1] << 4)
}

/// The codes of all symbols, for the encoder: bits and their count.
pub(crate) struct Codes([(u16, u8); 256]);

impl Codes {
    /// `None` if the lengths aren't those of a complete code of at most eleven bits.
    pub(crate) fn new(lengths: &[u8; 256]) -> Option<Self> {
        // Kraft sum, scaled by 2^11: it is exactly one for a complete code. The decoder relies on that, because then
        // every entry of its table is filled.
        let mut used = 0;
        for length in lengths.iter().map(|length| usize::from(*length)) {
            if length > BITS_MAX {
                return None;
            }
            if length > 0 {
                used += ENTRIES >> length;
            }
        }
        if used != ENTRIES {
            return None;
        }
        let mut codes = [(0, 0); 256];
        let mut next = 0_u16;
        for length in 1..=BITS_MAX as u8 {
            for (code, _) in codes.iter_mut().zip(lengths).filter(|(_, l)| **l == length) {
                // Canonical codes are counted from the most significant bit; the stream is read from the least
                // significant one.
                *code = (next.reverse_bits() >> (16 - length), length);
                // The last code of a complete code steps to 2048; nothing is read from `next` after that.
                next += 1;
            }
            next <<= 1;
        }
        Some(Self(codes))
    }

    /// Bits of a symbol's code.
    pub(crate) fn bits(&self, symbol: u8) -> u8 {
        self.0[usize::from(symbol)].1
    }

    /// A symbol's code, least significant bit first, and its bits.
    pub(crate) fn code(&self, symbol: u8) -> (u16, u8) {
        self.0[usize::from(symbol)]
    }

    /// Bytes of these symbols' codes.
    pub(crate) fn bytes(&self, symbols: &[u8]) -> usize {
        let bits = symbols.iter().map(|symbol| usize::from(self.bits(*symbol)));
        bits.sum::<usize>().div_ceil(8)
    }

    /// Writes codes, padded with zero bits to a whole byte.
    pub(crate) fn write(&self, symbols: &[u8], out: &mut Vec<u8>) {
        let (mut word, mut filled) = (0_u64, 0);
        for symbol in symbols {
            let (code, bits) = self.0[usize::from(*symbol)];
            word |= u64::from(code) << filled;
            filled += u32::from(bits);
            // At most 31 bits stay, so the next code of up to 11 bits always fits.
            if filled >= 32 {
                out.extend_from_slice(&(word as u32).to_le_bytes());
                word >>= 32;
                filled -= 32;
            }
        }
        out.extend_from_slice(&word.to_le_bytes()[..filled.div_ceil(8) as usize]);
    }
}

/// Indexed by the next ten or eleven bits: low 16 bits the number of bits of up to four codes, next 16 how many codes
/// these are, then their symbols. The decoder adds the low half to its progress in one addition.
#[derive(Clone, Debug)]
enum Entries {
    Few(Boxed<{ ENTRIES / 2 }>),
    Many(Boxed<ENTRIES>),
}

/// The decoder takes entries by this type. Of a plain reference the compiler would know that no store changes them,
/// hoist loads, and spill registers, which costs a tenth.
#[derive(Clone, Debug)]
struct Boxed<const LENGTH: usize>(Box<[u64; LENGTH]>);

/// The decoder's tables, built from code lengths.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    entries: Entries,
    /// Indexed by the next eleven bits: the first symbol and the bits of its code.
    singles: Box<[(u8, u8); ENTRIES]>,
}

impl Table {
    /// `None` if these aren't the lengths of a complete code.
    pub(crate) fn new(packed: &[u8; CODE_LENGTHS_BYTES]) -> Option<Self> {
        let lengths: [u8; 256] =
            std::array::from_fn(|symbol| packed[symbol / 2] >> (symbol % 2 * 4) & 15);
        let codes = Codes::new(&lengths)?;
        // Eleven bits whatever the longest code: the packed entries below are looked up in it.
        let mut singles: Box<[(u8, u8); ENTRIES]> = boxed((0, 0));
        for (symbol, (code, bits)) in (0..=255).zip(codes.0) {
            if bits > 0 {
                // All words that begin with this code: its bits are the low ones, so the others are multiples of 2^bits
                // above it.
                for entry in singles[usize::from(code)..].iter_mut().step_by(1 << bits) {
                    *entry = (symbol, bits);
                }
            }
        }
        // The size follows from the code lengths themselves, so the format needs no flag for it.
        let longest = lengths.into_iter().max()?;
        let mut entries = if usize::from(longest) < BITS_MAX {
            Entries::Few(Boxed(boxed(0)))
        } else {
            Entries::Many(Boxed(boxed(0)))
        };
        let all = match &mut entries {
            Entries::Few(entries) => &mut entries.0[..],
            Entries::Many(entries) => &mut entries.0[..],
        };
        let bits_max = all.len().trailing_zeros() as usize;
        for (window, entry) in all.iter_mut().enumerate() {
            // Packs as many whole codes as the index has bits for. At least one always fits, since the index is as long
            // as the longest code.
            let (mut bits, mut count) = (0, 0);
            while count < SYMBOLS {
                let (symbol, more) = singles[window >> bits];
                if bits + usize::from(more) > bits_max {
                    break;
                }
                *entry |= u64::from(symbol) << (32 + 8 * count);
                bits += usize::from(more);
                count += 1;
            }
            *entry |= bits as u64 | (count as u64) << 16;
        }
        Some(Self { entries, singles })
    }

    /// Decodes `STREAMS` tiles, one into each stage, `count` symbols each. Bytes of a stage beyond `count` are
    /// arbitrary. `codes` must end with its padding; past it the decoder sees zeros, so any start, even a hostile one,
    /// is safe.
    pub(crate) fn decode(
        &self,
        path: SimdPath,
        codes: &[u8],
        starts: [usize; STREAMS],
        count: usize,
        stages: &mut [[u8; STAGE_BYTES]; STREAMS],
    ) {
        // The unchecked loads of `decode_any` may reach `READ_BYTES` past a start. Near the end of the codes they read
        // from zero-extended copies instead.
        let near_end = |start| {
            codes
                .get(start..)
                .is_none_or(|codes| codes.len() < READ_BYTES)
        };
        let mut copies = None;
        if starts.into_iter().any(near_end) {
            let copies = copies.insert([[0; READ_BYTES]; STREAMS]);
            for (copy, start) in copies.iter_mut().zip(starts) {
                let codes = codes.get(start..).unwrap_or_default();
                let codes = &codes[..codes.len().min(READ_BYTES)];
                copy[..codes.len()].copy_from_slice(codes);
            }
        }
        let from = std::array::from_fn(|n| match &copies {
            Some(copies) => &copies[n],
            None => codes[starts[n]..]
                .first_chunk()
                .expect("it isn't near the end"),
        });
        match (path, &self.entries) {
            (SimdPath::Portable, Entries::Few(entries)) => decode_any(entries, from, count, stages),
            (SimdPath::Portable, Entries::Many(entries)) => {
                decode_any(entries, from, count, stages);
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: there is no such path on a processor without these features.
            (SimdPath::Avx2(_), entries) => unsafe {
                match entries {
                    Entries::Few(entries) => decode_bmi2(entries, from, count, stages),
                    Entries::Many(entries) => decode_bmi2(entries, from, count, stages),
                }
            },
        }
    }

    /// Decodes one tile, a symbol at a time: the reference that tests hold the fast decoder to. Returns the bits that
    /// it consumed.
    pub(crate) fn decode_slowly(&self, codes: &[u8], start: usize, out: &mut [u8]) -> usize {
        let mut bits = 0;
        for out in out {
            // Three bytes hold any code of eleven bits at any bit offset. Bytes past the end read as zeros.
            let place = start.saturating_add(bits / 8);
            let word = codes.get(place..).unwrap_or_default().iter().take(3);
            let word = word
                .rev()
                .fold(0, |word, byte| word << 8 | usize::from(*byte));
            let (symbol, more) = self.singles[(word >> (bits % 8)) % ENTRIES];
            *out = symbol;
            bits += usize::from(more);
        }
        bits
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2")]
// Compiled a second time for `shrx`, which takes its count from any register, where `shr` takes it from `cl` alone.
fn decode_bmi2<const ENTRIES: usize>(
    entries: &Boxed<ENTRIES>,
    from: [&[u8; READ_BYTES]; STREAMS],
    count: usize,
    stages: &mut [[u8; STAGE_BYTES]; STREAMS],
) {
    decode_any(entries, from, count, stages);
}

#[inline(always)]
fn decode_any<const ENTRIES: usize>(
    entries: &Boxed<ENTRIES>,
    from: [&[u8; READ_BYTES]; STREAMS],
    count: usize,
    stages: &mut [[u8; STAGE_BYTES]; STREAMS],
) {
    assert!(count <= TILE_MAX);
    // Low half: bits read; high half: symbols written. One addition of an entry advances both.
    let mut progress = [0_u32; STREAMS];
    let written = |progress: u32| (progress >> 16) as usize;
    while let least = progress
        .into_iter()
        .map(written)
        .fold(usize::MAX, usize::min)
        && least < count
    {
        // No stream can finish in fewer steps, which saves checks in the inner loop. The total is at most `STEPS_MAX`,
        // because each step advances the slowest stream by `LOOKUPS` symbols or more.
        let most = progress.into_iter().map(written).fold(0, usize::max);
        let steps = count.saturating_sub(most) / (LOOKUPS * SYMBOLS);
        for _ in 0..steps.max(1) {
            // Streams are independent: their loads and shifts overlap, which hides the latency of table lookups.
            let mut words = [0_u64; STREAMS];
            for n in 0..STREAMS {
                let bits = progress[n] as usize & 0xffff;
                // SAFETY: within `READ_BYTES` for at most `STEPS_MAX` steps, and `from[n]` has that many bytes.
                let word = unsafe {
                    from[n]
                        .as_ptr()
                        .add(bits / 8)
                        .cast::<u64>()
                        .read_unaligned()
                };
                words[n] = u64::from_le(word) >> (bits % 8);
            }
            for _ in 0..LOOKUPS {
                for n in 0..STREAMS {
                    let entry = entries.0[words[n] as usize % ENTRIES];
                    let symbols = ((entry >> 32) as u32).to_le_bytes();
                    let at = (progress[n] >> 16) as usize;
                    // SAFETY: within `STAGE_BYTES` for at most `STEPS_MAX` steps.
                    unsafe {
                        let out = stages[n].as_mut_ptr().add(at);
                        // Always four bytes, even where the entry has fewer symbols: a fixed-size store is faster, and
                        // the next lookup overwrites the rest.
                        out.cast::<[u8; SYMBOLS]>().write(symbols);
                    }
                    // The low six bits of an entry are its count of bits. x86 shifts by 64 bits look at no others, so
                    // the remainder compiles to nothing.
                    words[n] >>= entry % 64;
                    progress[n] = progress[n].wrapping_add(entry as u32);
                }
            }
        }
    }
}

fn boxed<T: Clone, const LENGTH: usize>(value: T) -> Box<[T; LENGTH]> {
    let entries = vec![value; LENGTH].into_boxed_slice();
    entries
        .try_into()
        .unwrap_or_else(|_| unreachable!("made with as many entries"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::PAD_BYTES;

    fn table(lengths: &[u8; 256]) -> Option<Table> {
        Table::new(&pack_lengths(lengths))
    }

    fn padded(mut codes: Vec<u8>) -> Vec<u8> {
        codes.resize(codes.len() + PAD_BYTES, 0);
        codes
    }

    /// Encodes symbols, and decodes them by both decoders.
    fn there_and_back(counts: &[u64; 256], symbols: &[u8]) {
        for bits_max in [BITS_MAX - 1, BITS_MAX] {
            there_and_back_by(&shortest(counts, bits_max), symbols);
        }
    }

    fn there_and_back_by(lengths: &[u8; 256], symbols: &[u8]) {
        let codes = Codes::new(lengths).unwrap();
        let table = table(lengths).unwrap();
        let mut bytes = vec![0xaa; 3];
        codes.write(symbols, &mut bytes);
        assert_eq!(bytes.len(), 3 + codes.bytes(symbols));
        let bytes = padded(bytes);

        let mut slow = vec![0; symbols.len()];
        let bits = table.decode_slowly(&bytes, 3, &mut slow);
        assert_eq!(slow, symbols);
        assert_eq!(bits.div_ceil(8), codes.bytes(symbols));
        for path in SimdPath::all() {
            let mut stages = [[0; STAGE_BYTES]; STREAMS];
            table.decode(path, &bytes, [3; STREAMS], symbols.len(), &mut stages);
            for stage in &stages {
                assert_eq!(&stage[..symbols.len()], symbols);
            }
        }
    }

    #[test]
    fn few_and_many_symbols_have_codes() {
        let mut counts = [0; 256];
        assert_eq!(code_lengths(&counts)[..3], [1, 1, 0]);
        counts[0] = 9;
        there_and_back(&counts, &[0; 100]);
        counts = [0; 256];
        counts[200] = 1;
        there_and_back(&counts, &[200; 512]);
        there_and_back(&[1; 256], &(0..=255).collect::<Vec<_>>());
        assert_eq!(code_lengths(&[7; 256]), [8; 256]);
    }

    #[test]
    fn no_code_is_too_long() {
        // Fibonacci numbers make the longest codes.
        let mut counts = [0; 256];
        let (mut a, mut b) = (1_u64, 1);
        for count in &mut counts[..60] {
            *count = a;
            (a, b) = (b, a + b);
        }

        for bits_max in [BITS_MAX - 1, BITS_MAX] {
            let lengths = shortest(&counts, bits_max);

            assert_eq!(lengths.iter().max(), Some(&(bits_max as u8)));
            there_and_back_by(&lengths, &(0..60).collect::<Vec<_>>());
        }
    }

    #[test]
    fn codes_are_as_short_as_can_be() {
        let mut counts = [0; 256];
        counts[..5].copy_from_slice(&[45, 13, 12, 16, 9]);
        assert_eq!(code_lengths(&counts)[..6], [1, 3, 3, 3, 3, 0]);
        counts[5] = 5;
        assert_eq!(code_lengths(&counts)[..6], [1, 3, 3, 3, 4, 4]);
    }

    #[test]
    fn incomplete_codes_are_refused() {
        let mut lengths = [0; 256];
        assert!(table(&lengths).is_none());
        lengths[3] = 1;
        assert!(table(&lengths).is_none());
        lengths[4] = 1;
        assert!(table(&lengths).is_some());
        lengths[5] = 11;
        assert!(table(&lengths).is_none());
        assert!(table(&[15; 256]).is_none());
    }

    proptest! {
        #[test]
        fn any_symbols_come_back(
            counts in prop::collection::vec(prop_oneof![Just(0_u64), 1..100_u64, 1..1_000_000_u64], 256),
            seeds in prop::collection::vec(any::<prop::sample::Index>(), 1..=512),
        ) {
            let counts: [u64; 256] = counts.try_into().unwrap();
            let used: Vec<u8> = (0..=255).filter(|s| counts[usize::from(*s)] > 0).collect();
            prop_assume!(!used.is_empty());
            let symbols: Vec<u8> = seeds.iter().map(|seed| *seed.get(&used)).collect();
            there_and_back(&counts, &symbols);
        }

        #[test]
        fn any_bytes_mean_the_same_in_both_ways(
            counts in prop::collection::vec(0..1000_u64, 256),
            bits_max in BITS_MAX - 1..=BITS_MAX,
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            starts in prop::array::uniform6(prop_oneof![0..400_usize, Just(usize::MAX)]),
            count in 0..=512_usize,
        ) {
            let counts = counts.try_into().unwrap();
            let table = table(&shortest(&counts, bits_max)).unwrap();
            let bytes = padded(bytes);
            for path in SimdPath::all() {
                let mut stages = [[0; STAGE_BYTES]; STREAMS];
                table.decode(path, &bytes, starts, count, &mut stages);
                for (stage, start) in stages.iter().zip(starts) {
                    let mut slow = vec![0; count];
                    table.decode_slowly(&bytes, start, &mut slow);
                    prop_assert_eq!(&stage[..count], &slow);
                }
            }
        }
    }
}
