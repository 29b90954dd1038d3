//! Checksums: 64-bit xxh3. They detect corruption by disks and transfers, not deliberate changes.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use twox_hash::XxHash3_64;

/// A checksum. JSON holds it as 16 hexadecimal digits, since not every JSON reader keeps 64-bit integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash(pub u64);

impl Hash {
    /// The hash of these bytes.
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

/// Hashes bytes that come in pieces.
#[derive(Default)]
pub struct Hasher(XxHash3_64);

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hasher").finish_non_exhaustive()
    }
}

impl Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        std::hash::Hasher::write(&mut self.0, bytes);
    }

    /// The hash of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> Hash {
        Hash(std::hash::Hasher::finish(&self.0))
    }

    /// Adds a text with its length, so that "ab", "c" and "a", "bc" differ.
    pub(super) fn text(&mut self, text: &str) {
        self.update(&(text.len() as u64).to_le_bytes());
        self.update(text.as_bytes());
    }
}

/// Folds a hash to the 16 bits of a tile's check.
pub(super) fn fold(hash: Hash) -> u16 {
    let half = hash.0 ^ (hash.0 >> 32);
    (half ^ (half >> 16)) as u16
}
