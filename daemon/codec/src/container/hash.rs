//! Checksums: xxh3 of 64 bits, which finds what disks and transfers do to bytes, not what an enemy does.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use twox_hash::XxHash3_64;

/// Sixteen hexadecimal digits in headers: not every reader of JSON keeps 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash(pub u64);

impl Hash {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_64::oneshot(bytes))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_hash = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hash
            .then(|| u64::from_str_radix(&text, 16).ok())
            .flatten()
            .map(Self)
            .ok_or_else(|| de::Error::custom("a hash has 16 hexadecimal digits"))
    }
}

/// The same of bytes that come in pieces.
#[derive(Default)]
pub struct Hasher(XxHash3_64);

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hasher").finish_non_exhaustive()
    }
}

impl Hasher {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        std::hash::Hasher::write(&mut self.0, bytes);
    }

    /// Of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> Hash {
        Hash(std::hash::Hasher::finish(&self.0))
    }

    /// A text with its end, so that two texts aren't one.
    pub(super) fn text(&mut self, text: &str) {
        self.update(&(text.len() as u64).to_le_bytes());
        self.update(text.as_bytes());
    }
}

/// Sixteen bits for a tile.
pub(super) fn fold(hash: Hash) -> u16 {
    let half = hash.0 ^ (hash.0 >> 32);
    (half ^ (half >> 16)) as u16
}
