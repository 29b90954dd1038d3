//! Bit streams, least significant bit first.

/// Writes a bit stream.
#[derive(Clone, Debug, Default)]
pub(super) struct BitWriter {
    bytes: Vec<u8>,
    word: u64,
    filled: u32,
}

impl BitWriter {
    /// Appends the low `count` bits of `bits`, at most 32; the others are zero.
    pub(super) fn put(&mut self, bits: u32, count: u32) {
        self.word |= u64::from(bits) << self.filled;
        self.filled += count;
        // At most 31 bits stay, so the next 32 fit.
        if self.filled >= 32 {
            self.bytes
                .extend_from_slice(&(self.word as u32).to_le_bytes());
            self.word >>= 32;
            self.filled -= 32;
        }
    }

    /// The bytes, the last one filled with zero bits.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let rest = self.filled.div_ceil(8) as usize;
        self.bytes
            .extend_from_slice(&self.word.to_le_bytes()[..rest]);
        self.bytes
    }
}

/// Reads a bit stream that may end anywhere: zeros follow.
#[derive(Clone, Debug)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Bits that were read.
    pub(super) at: usize,
}

impl<'a> BitReader<'a> {
    /// Begins with bit `at` of `bytes`.
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The bytes from the next bit's on.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at / 8..).unwrap_or_default()
    }

    /// The next bits, 57 at least.
    pub(super) fn peek(&self) -> u64 {
        let rest = self.rest();
        let word = match rest.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; 8];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        };
        word >> (self.at % 8)
    }

    /// Reads `count` bits, at most 32.
    pub(super) fn take(&mut self, count: u32) -> u32 {
        let bits = self.peek() & ((1 << count) - 1);
        self.at += count as usize;
        bits as u32
    }
}
