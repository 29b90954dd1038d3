//! Codes of a column's symbols.

use super::{
    bits::{BitReader, BitWriter},
    classes::{Class, ENTRIES, ENTRY_SYMBOLS, ESCAPED, ESCAPED_BITS, FILL, class},
    header::{ColumnHeader, HeaderCoder},
};
use crate::simd::SimdPath;

/// Bits of a column's codes.
pub(super) fn codes_bits(class: &Class, symbols: &[u8]) -> usize {
    if class.together == 1 {
        let bits = symbols.iter().map(|symbol| class.bits(*symbol));
        return bits.sum();
    }
    let words = words(class, symbols).map(|(word, count)| {
        let (_, bits, is_escape) = class.code(&word[..class.together]);
        let escaped = if is_escape { count } else { 0 };
        usize::from(bits) + escaped * ESCAPED_BITS as usize
    });
    words.sum()
}

/// Writes a column's codes, and after them the symbols that have none.
fn write_codes(class: &Class, symbols: &[u8], out: &mut BitWriter) {
    let mut has_escaped = false;
    for (word, _) in words(class, symbols) {
        let (code, bits, is_escape) = class.code(&word[..class.together]);
        out.put(code.into(), bits.into());
        has_escaped |= is_escape;
    }
    if !has_escaped {
        return;
    }
    for (word, count) in words(class, symbols) {
        if class.code(&word[..class.together]).2 {
            for symbol in &word[..count] {
                out.put((*symbol).into(), ESCAPED_BITS);
            }
        }
    }
}

/// The words of a column, the last one filled up, and how many symbols of each are the column's.
fn words(class: &Class, symbols: &[u8]) -> impl Iterator<Item = ([u8; ENTRY_SYMBOLS], usize)> {
    symbols.chunks(class.together).map(|symbols| {
        let mut word = [FILL; ENTRY_SYMBOLS];
        word[..symbols.len()].copy_from_slice(symbols);
        (word, symbols.len())
    })
}

/// Reads a column's codes word by word: what tests and checks hold the fast decoder to. `symbols` is as long as whole
/// words make it; what is beyond the column's `count` are the fillings.
pub(super) fn read_codes(
    class: &Class,
    from: &mut BitReader<'_>,
    count: usize,
    symbols: &mut Vec<u8>,
) {
    symbols.clear();
    while symbols.len() < count {
        let entry = class.singles[from.peek() as usize % ENTRIES];
        from.at += (entry & 0xffff) as usize;
        let word = ((entry >> 32) as u32).to_le_bytes();
        symbols.extend_from_slice(&word[..class.together]);
    }
    read_escaped(&mut symbols[..count], from);
}

/// Reads the symbols that follow a column's codes, to where they belong.
pub(super) fn read_escaped(symbols: &mut [u8], from: &mut BitReader<'_>) {
    // Eight symbols at a time, as few are escaped.
    let (words, rest) = symbols.as_chunks_mut::<8>();
    for word in words {
        let mut escaped = u64::from_le_bytes(*word) & u64::from_le_bytes([ESCAPED; 8]);
        while escaped != 0 {
            word[escaped.trailing_zeros() as usize / 8] = from.take(ESCAPED_BITS) as u8;
            escaped &= escaped - 1;
        }
    }
    for symbol in rest.iter_mut().filter(|symbol| **symbol == ESCAPED) {
        *symbol = from.take(ESCAPED_BITS) as u8;
    }
}

/// Reads the low bits of a wide column's elements, which are before its codes.
pub(super) fn read_raw(path: SimdPath, from: &mut BitReader<'_>, raw_bits: u8, raw: &mut [u8]) {
    match path {
        SimdPath::Portable => read_raw_any(from, raw_bits, raw, |word| {
            let each = |at: usize| (word >> (at * usize::from(raw_bits))) as u8;
            std::array::from_fn(|at| each(at) & ((1 << raw_bits) - 1))
        }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is no such path on a processor without these features.
        SimdPath::Avx2(_) => unsafe { read_raw_bmi2(from, raw_bits, raw) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi2")]
fn read_raw_bmi2(from: &mut BitReader<'_>, raw_bits: u8, raw: &mut [u8]) {
    let mask = 0x0101_0101_0101_0101 * ((1 << raw_bits) - 1);
    read_raw_any(from, raw_bits, raw, |word| {
        std::arch::x86_64::_pdep_u64(word.into(), mask).to_le_bytes()
    });
}

/// `spread` makes bytes of a word's fields.
#[inline(always)]
fn read_raw_any(
    from: &mut BitReader<'_>,
    raw_bits: u8,
    raw: &mut [u8],
    spread: impl Fn(u32) -> [u8; 8],
) {
    let (eights, rest) = raw.as_chunks_mut::<8>();
    let mut next = || {
        // Those of eight elements have at most 32 bits.
        let word = from.peek() as u32;
        from.at += 8 * usize::from(raw_bits);
        spread(word)
    };
    for eight in eights {
        *eight = next();
    }
    if !rest.is_empty() {
        let count = rest.len();
        rest.copy_from_slice(&next()[..count]);
        from.at -= (8 - count) * usize::from(raw_bits);
    }
}

/// Writes the low bits of a wide column's elements.
fn write_raw(raw: &[u8], raw_bits: u8, out: &mut BitWriter) {
    for raw in raw {
        out.put((*raw).into(), raw_bits.into());
    }
}

/// The bytes of a tile. `symbols` and the low bits `raw`, which count in wide columns alone, are those of all columns.
pub(super) fn write_tile(
    rows: usize,
    headers: &[ColumnHeader],
    symbols: &[u8],
    raw: &[u8],
) -> Vec<u8> {
    let mut coder = HeaderCoder::new();
    let mut out = BitWriter::default();
    let columns = symbols.chunks(rows).zip(raw.chunks(rows));
    for (header, (symbols, raw)) in headers.iter().zip(columns) {
        coder.write(*header, &mut out);
        if let Some(index) = header.class {
            // What others have there may be of an earlier choice.
            if header.raw_bits > 0 {
                write_raw(raw, header.raw_bits, &mut out);
            }
            write_codes(class(index), symbols, &mut out);
        }
    }
    out.finish()
}
