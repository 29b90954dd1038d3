//! How a checkpoint's weights are coded, as people ask for it: names and limits.

use std::{fmt, ops::RangeInclusive, str::FromStr};

/// A coder that keeps every bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coder {
    /// The least space.
    #[default]
    Huffman,
    /// Decoded the fastest.
    Palette,
}

impl Coder {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Huffman, Self::Palette];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Huffman => "huffman",
            Self::Palette => "palette",
        }
    }
}

impl fmt::Display for Coder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Coder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|coder| coder.name() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown coder '{text}'; known are {known}")
        })
    }
}

/// Numbers of a tile.
pub const TILES: [u32; 3] = [128, 256, 512];
/// The same where nobody says.
pub const TILE_DEFAULT: u32 = 512;
/// Bits of a number that is coded to a rate.
pub const BITS: RangeInclusive<f64> = 1.0..=8.0;
/// Most patterns of tensors that stay as they are.
pub const KEEP_MAX: usize = 64;
/// Longest of them.
pub const KEEP_BYTES_MAX: usize = 256;

/// A tile's size, checked.
///
/// # Errors
/// The sizes that there are.
pub fn check_tile(tile: u32) -> Result<u32, String> {
    match TILES.contains(&tile) {
        true => Ok(tile),
        false => Err(format!(
            "must be one of {}, not {tile}",
            TILES.map(|tile| tile.to_string()).join(", ")
        )),
    }
}

/// The same, as people type it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_tile(text: &str) -> Result<u32, String> {
    let tile = text.parse();
    check_tile(tile.map_err(|_| format!("{text:?} is not a number, such as {TILE_DEFAULT}"))?)
}

/// A rate, checked.
///
/// # Errors
/// When it is outside of [`BITS`], or no number.
pub fn check_bits(bits: f64) -> Result<f64, String> {
    match BITS.contains(&bits) {
        true => Ok(bits),
        false => {
            let (least, most) = (BITS.start(), BITS.end());
            Err(format!("must lie between {least} and {most}, not {bits}"))
        }
    }
}

/// The same, as people type it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_bits(text: &str) -> Result<f64, String> {
    let bits = text.parse();
    check_bits(bits.map_err(|_| format!("{text:?} is not a number, such as 4.5"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coders_are_read_by_their_names() {
        for coder in Coder::ALL {
            assert_eq!(coder.name().parse(), Ok(coder));
        }
        let problem = "zip".parse::<Coder>().unwrap_err();
        assert!(problem.ends_with("known are huffman, palette"), "{problem}");
    }

    #[test]
    fn tiles_and_rates_are_held_to_what_there_is() {
        assert_eq!(parse_tile("512"), Ok(512));
        assert!(parse_tile("100").unwrap_err().contains("128, 256, 512"));
        assert!(parse_tile("-1").is_err());
        assert_eq!(parse_bits("4.5"), Ok(4.5));
        for wrong in ["0.9", "8.1", "NaN", "inf", "many"] {
            assert!(parse_bits(wrong).is_err(), "{wrong}");
        }
    }
}
