//! As much of HPACK (RFC 7541) as it takes to find `:authority` in a header block and to change its value.

/// The name as it is and with Huffman's code.
const NAME: &[u8] = b":authority";
const NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// Its place in the static table, where its value is empty.
const STATIC_INDEX: usize = 1;
/// Bound on integers, larger than any header block that this daemon takes: lengths come from the client.
const INTEGER_MAX: usize = 1 << 20;

/// The block with hyphens for the value of every `:authority` that it spells out, as many as the value has bytes, and without
/// empty ones, which are as good as none. `None` where nothing is to be changed, or the block cannot be read.
///
/// An empty value that goes into the dynamic table stays: no other has its length.
pub(super) fn with_neutral_authority(block: &[u8]) -> Option<Vec<u8>> {
    let mut made = Vec::with_capacity(block.len());
    let mut is_changed = false;
    let mut left = Reader(block);
    while let Some(&first) = left.0.first() {
        let begin = left.0;
        let (is_dropped, value) = match first {
            0x80.. => (left.integer(7)? == STATIC_INDEX, None),
            // A change of the dynamic table's size.
            0x20..0x40 => {
                left.integer(5)?;
                (false, None)
            }
            _ => {
                let goes_into_table = first & 0x40 != 0;
                let index = left.integer(if goes_into_table { 6 } else { 4 })?;
                let is_authority = match index {
                    0 => left.string()?.is_name(),
                    index => index == STATIC_INDEX,
                };
                let before_value = &begin[..begin.len() - left.0.len()];
                let value = left.string()?;
                match is_authority {
                    false => (false, None),
                    true => match value.decoded_bytes()? {
                        0 => (!goes_into_table, None),
                        bytes => (false, Some((before_value, bytes))),
                    },
                }
            }
        };
        if let Some((before_value, bytes)) = value {
            made.extend_from_slice(before_value);
            push_length(&mut made, bytes);
            made.resize(made.len() + bytes, b'-');
            is_changed = true;
        } else if is_dropped {
            is_changed = true;
        } else {
            made.extend_from_slice(&begin[..begin.len() - left.0.len()]);
        }
    }
    is_changed.then_some(made)
}

/// Writes the length of a string without Huffman coding.
fn push_length(out: &mut Vec<u8>, length: usize) {
    if length < 0x7f {
        return out.push(length as u8);
    }
    out.push(0x7f);
    let mut left = length - 0x7f;
    while left >= 0x80 {
        out.push(0x80 | (left & 0x7f) as u8);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Reads a header block; holds what is left of it. `None` means that the block ends too early or breaks the rules.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// An integer that begins in the lowest `bits` of the next byte.
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let mask = (1 << bits) - 1;
        let mut value = usize::from(self.byte()? & mask);
        if value < usize::from(mask) {
            return Some(value);
        }
        // Three more bytes at most, so that the sum cannot overflow.
        for shift in (0..21).step_by(7) {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return (value <= INTEGER_MAX).then_some(value);
            }
        }
        None
    }

    fn string(&mut self) -> Option<HeaderString<'a>> {
        let is_coded = self.0.first()? & 0x80 != 0;
        let length = self.integer(7)?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(HeaderString {
            bytes,
            is_huffman: is_coded,
        })
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}

/// A string as it stands in the block.
struct HeaderString<'a> {
    bytes: &'a [u8],
    is_huffman: bool,
}

impl HeaderString<'_> {
    fn is_name(&self) -> bool {
        self.bytes == if self.is_huffman { NAME_HUFFMAN } else { NAME }
    }

    /// Bytes of the string itself; `None` where the code is broken.
    fn decoded_bytes(&self) -> Option<usize> {
        match self.is_huffman {
            false => Some(self.bytes.len()),
            true => huffman_symbols(self.bytes),
        }
    }
}

/// How many symbols HPACK's Huffman code has of each length, from 5 bits to 30. The code is canonical, so this is all it takes
/// to tell where each one ends.
const SYMBOLS: [u32; 26] = [
    10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4,
];
const SHORTEST: u32 = 5;

/// Number of symbols that Huffman-coded bytes stand for.
fn huffman_symbols(coded: &[u8]) -> Option<usize> {
    let bits = coded.len() * 8;
    let bit = |at: usize| u32::from(coded[at / 8] >> (7 - at % 8) & 1);
    let (mut at, mut symbols) = (0, 0);
    'symbols: while at < bits {
        // `code` less the first code of its length.
        let (mut code, mut first) = (0, 0);
        let begin = at;
        for length in 1..SHORTEST + SYMBOLS.len() as u32 {
            if at == bits {
                // The rest of the last byte is filled with ones.
                let is_filling = (begin..bits).all(|at| bit(at) == 1);
                return (at - begin < 8 && is_filling).then_some(symbols);
            }
            code = code << 1 | bit(at);
            first <<= 1;
            at += 1;
            let count = length
                .checked_sub(SHORTEST)
                .map_or(0, |index| SYMBOLS[index as usize]);
            if code - first < count {
                symbols += 1;
                continue 'symbols;
            }
            first += count;
        }
        return None;
    }
    Some(symbols)
}
