//! Mixes: which format the optimizer chose for each weight group. The weights of a mix are a file of their own, which
//! level `optimized` computes with; this is the name that people, plans and files have for it.

use std::{fmt, num::NonZeroU32, str::FromStr};

/// The name of a mix: eight hexadecimal digits, which follow from what was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MixId(NonZeroU32);

impl MixId {
    /// The name of a mix whose contents have this hash.
    #[must_use]
    pub fn of_hash(hash: u64) -> Self {
        let folded = (hash ^ hash >> 32) as u32;
        // 0 stands for no mix wherever numbers are compared.
        Self(NonZeroU32::new(folded).unwrap_or(NonZeroU32::MIN))
    }

    /// The name of a mix that is described by a text.
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        // FNV-1a: unlike std's hashers, it gives the same result in every version of the compiler.
        Self::of_hash(text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    /// The name as a number, which is never 0.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0.get()
    }

    /// The mix with this number; `None` for 0.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }
}

impl fmt::Display for MixId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for MixId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_whole = text.len() == 8 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_whole
            .then(|| u32::from_str_radix(text, 16).ok())
            .flatten();
        let mix = number.and_then(NonZeroU32::new).map(Self);
        mix.ok_or_else(|| format!("{text:?} is not the name of a mix, such as 3f2a91c4"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for hash in [0, 1, u64::MAX, 0xdead_beef_0123_4567, 5 << 32 | 5] {
            let mix = MixId::of_hash(hash);
            assert_eq!(mix.to_string().parse(), Ok(mix), "{hash:x}");
            assert_eq!(MixId::from_number(mix.number()), Some(mix));
        }
        assert_eq!(MixId::from_number(0), None);
        assert_eq!(MixId::of_hash(0x3f2a_91c4).to_string(), "3f2a91c4");
        for wrong in [
            "",
            "3f2a91c",
            "3f2a91c40",
            "+f2a91c4",
            "00000000",
            "optimal1",
        ] {
            assert!(wrong.parse::<MixId>().is_err(), "{wrong}");
        }
    }
}
