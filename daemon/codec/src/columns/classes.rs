//! Classes of columns by the spread of their symbols: each has a prefix code and levels, which are part of the format.
//!
//! A column of 256 elements is too short for a table of its own, and spreads differ from column to column. So there is a
//! class for every quarter of an octave of spread, and a column names the one that suits it; a spread that is an eighth
//! of an octave off costs a hundredth of a bit. How often a class's symbols occur is written out in `spreads`, in
//! integers, and codes follow from it in integer arithmetic, so that all machines agree.
//!
//! A code word stands for one, two or four symbols, so that narrow classes take fractions of a bit for each. Words that
//! are too rare for a code share one, the escape; their symbols follow after the column's codes, as they are.

use std::sync::LazyLock;

use super::spreads::{SPREADS, Spread};
use crate::{
    huffman::{self, BITS_MAX, Codes},
    trellis::{BIT_COST, MEANS, MIDDLE, SYMBOLS, SymbolCosts, TrellisLevels, ZERO},
};

/// Entries of a decoding table: the longest code fits its index.
pub(super) const ENTRIES: usize = 1 << BITS_MAX;
/// Symbols of a table entry, at most.
pub(super) const ENTRY_SYMBOLS: usize = 4;
/// What a decoding table has in the place of an escaped symbol.
pub(super) const ESCAPED: u8 = 0x80;
/// Bits of an escaped symbol.
pub(super) const ESCAPED_BITS: u32 = SYMBOLS.ilog2();
/// The symbol that a column's last word is filled up with.
pub(super) const FILL: u8 = ZERO as u8;
/// Words that have a code beside the escape, at most.
const WORDS_MAX: usize = 255;

/// A class of columns.
pub(super) struct Class {
    /// Symbols of a word: 1, 2 or 4.
    pub(super) together: usize,
    /// Symbols by word; the last word is the escape.
    words: Vec<[u8; ENTRY_SYMBOLS]>,
    codes: Codes,
    /// Words by the place of their symbols among `symbols`, the first symbol in the lowest place.
    index: Vec<u8>,
    /// Bits that a symbol takes on its own, escaped or not, where words have one symbol.
    bits: [u8; SYMBOLS],
    /// The first symbol that words have, and how many there are.
    symbols: (usize, usize),
    /// Indexed by the next eleven bits: the bits of as many words as make at most four symbols, how many symbols these
    /// are (from bit 16 on), and the symbols (from bit 32 on).
    pub(super) entries: Box<[u64; ENTRIES]>,
    /// The same for one word alone.
    pub(super) singles: Box<[u64; ENTRIES]>,
    /// For each entry the bits of its first symbols, as far as these are words: four bits each for one, two and three
    /// symbols, from bit 4 on.
    pub(super) parts: Box<[u16; ENTRIES]>,
    /// Levels in parts of a step of 1.
    pub(super) levels: TrellisLevels,
    pub(super) prices: SymbolCosts,
}

/// A class by its index.
pub(super) fn class(index: u8) -> &'static Class {
    // Built once for all matrices, which takes some milliseconds.
    static ALL: LazyLock<Vec<Class>> = LazyLock::new(|| SPREADS.iter().map(Class::new).collect());
    &ALL[usize::from(index)]
}

impl Class {
    pub(super) fn new(spread: &Spread) -> Self {
        let Spread {
            together,
            first,
            shares,
            means,
        } = *spread;
        let count = shares.len();
        // A word's weight is the product of its symbols' shares: at most 2^56 in all, as shares add up to 2^14.
        let total = shares
            .iter()
            .map(|share| u64::from(*share))
            .sum::<u64>()
            .pow(together as u32);
        let mut weights: Vec<(u64, usize)> = (0..count.pow(together as u32))
            .map(|place| {
                let shares = places(place, count, together).map(|at| u64::from(shares[at]));
                (shares.product(), place)
            })
            // Rarer words would have longer codes than there can be.
            .filter(|(weight, _)| *weight >= total >> BITS_MAX)
            .collect();
        // By weight, then by place: the same order on every machine.
        weights.sort_unstable_by_key(|(weight, place)| (u64::MAX - weight, *place));
        weights.truncate(WORDS_MAX);
        let mut index = vec![weights.len() as u8; count.pow(together as u32)];
        let mut counts = [0; 256];
        let mut words = Vec::new();
        for (word, (weight, place)) in weights.iter().enumerate() {
            let mut symbols = [0; ENTRY_SYMBOLS];
            for (symbol, at) in symbols.iter_mut().zip(places(*place, count, together)) {
                *symbol = (first + at) as u8;
            }
            index[*place] = word as u8;
            counts[word] = *weight;
            words.push(symbols);
        }
        let rest = total - counts.iter().sum::<u64>();
        counts[words.len()] = rest.max(total >> BITS_MAX);
        words.push([ESCAPED; ENTRY_SYMBOLS]);
        let lengths = huffman::shortest(&counts, BITS_MAX);
        let codes = Codes::new(&lengths).expect("lengths of a complete code were just made");

        let escape = u32::from(codes.bits((words.len() - 1) as u8));
        let escape = (escape + ESCAPED_BITS * together as u32) as f32;
        let mut prices = SymbolCosts {
            levels: [0.; SYMBOLS],
            costs: [escape * BIT_COST; SYMBOLS],
        };
        let all = shares.iter().map(|share| f32::from(*share)).sum::<f32>();
        for (at, share) in shares.iter().enumerate() {
            // Of words of several symbols the shares say what a symbol takes on average.
            let bits = match together {
                1 if usize::from(index[at]) == words.len() - 1 => escape,
                1 => f32::from(codes.bits(index[at])),
                _ => (all / f32::from(*share)).log2(),
            };
            prices.costs[first + at] = bits * BIT_COST;
        }
        let mut moved = [0; MEANS];
        for (symbol, mean) in (first..).zip(means) {
            if MIDDLE.contains(&symbol) {
                moved[symbol - MIDDLE.start] = *mean;
            }
        }
        let bits = prices.costs.map(|cost| (cost / BIT_COST).round() as u8);
        let levels = TrellisLevels::new(moved, 1.);
        prices.levels = levels.in_steps();
        let (entries, singles, parts) = tables(&words, &codes, together);
        Self {
            together,
            words,
            codes,
            index,
            bits,
            symbols: (first, count),
            entries,
            singles,
            parts,
            levels,
            prices,
        }
    }

    /// Bits of a symbol, in a class whose words have one symbol.
    pub(super) fn bits(&self, symbol: u8) -> usize {
        self.bits[usize::from(symbol)].into()
    }

    /// The code of a word, its bits, and whether it is the escape.
    pub(super) fn code(&self, word: &[u8]) -> (u16, u8, bool) {
        let (first, count) = self.symbols;
        let mut place = 0;
        for symbol in word.iter().rev() {
            let at = usize::from(*symbol).wrapping_sub(first);
            if at >= count {
                return self.escape();
            }
            place = place * count + at;
        }
        let word = self.index[place];
        if usize::from(word) == self.words.len() - 1 {
            return self.escape();
        }
        let (code, bits) = self.codes.code(word);
        (code, bits, false)
    }

    fn escape(&self) -> (u16, u8, bool) {
        let (code, bits) = self.codes.code((self.words.len() - 1) as u8);
        (code, bits, true)
    }
}

/// The places of a word's symbols.
fn places(place: usize, count: usize, together: usize) -> impl Iterator<Item = usize> {
    (0..together).scan(place, move |rest, _| {
        let at = *rest % count;
        *rest /= count;
        Some(at)
    })
}

type Entries<T> = Box<[T; ENTRIES]>;

/// The decoding tables of a code.
fn tables(
    words: &[[u8; ENTRY_SYMBOLS]],
    codes: &Codes,
    together: usize,
) -> (Entries<u64>, Entries<u64>, Entries<u16>) {
    let (mut entries, mut singles, mut parts) = (boxed(0), boxed(0), boxed(0));
    for (word, symbols) in words.iter().enumerate() {
        let (code, bits) = codes.code(word as u8);
        let mut kept = [0; ENTRY_SYMBOLS];
        kept[..together].copy_from_slice(&symbols[..together]);
        let entry = u64::from(u32::from_le_bytes(kept)) << 32;
        let entry = entry | (together as u64) << 16 | u64::from(bits);
        for place in singles[usize::from(code)..].iter_mut().step_by(1 << bits) {
            *place = entry;
        }
    }
    for (window, (entry, parts)) in entries.iter_mut().zip(&mut parts[..]).enumerate() {
        let (mut bits, mut count) = (0, 0);
        while count < ENTRY_SYMBOLS {
            let single: u64 = singles[window >> bits];
            let more = (single & 0xffff) as usize;
            if bits + more > BITS_MAX {
                break;
            }
            *entry |= (single >> 32) << (32 + 8 * count);
            *parts |= (bits << (4 * count)) as u16;
            bits += more;
            count += together;
        }
        *entry |= bits as u64 | (count as u64) << 16;
    }
    (entries, singles, parts)
}

fn boxed<T: Clone>(value: T) -> Entries<T> {
    let entries = vec![value; ENTRIES].into_boxed_slice();
    entries
        .try_into()
        .unwrap_or_else(|_| unreachable!("made with as many entries"))
}

#[test]
fn words_have_no_outliers() {
    use crate::trellis::LINEAR_MAX;
    for index in 0..super::spreads::CLASSES as u8 {
        let class = class(index);
        let (escape, words) = class.words.split_last().expect("there is an escape");
        assert_eq!(*escape, [ESCAPED; ENTRY_SYMBOLS]);
        for symbol in words.iter().flat_map(|word| &word[..class.together]) {
            assert!((f32::from(*symbol) - ZERO as f32).abs() <= LINEAR_MAX);
        }
    }
}
