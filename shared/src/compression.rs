//! How a checkpoint's weights are coded, as people ask for it: names and limits.

use std::{
    ffi::OsStr,
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
};

/// A coder that keeps every bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coder {
    /// The least space.
    #[default]
    Huffman,
    /// Decoded the fastest.
    Dictionary,
}

impl Coder {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Huffman, Self::Dictionary];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Huffman => "huffman",
            Self::Dictionary => "dictionary",
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
            format!("unknown lossless coder '{text}'; known are {known}")
        })
    }
}

/// Numbers of a tile.
pub const TILE_ELEMENTS: [u32; 3] = [128, 256, 512];
/// The same where nobody says.
pub const TILE_ELEMENTS_DEFAULT: u32 = 512;
/// Bits of a number that is coded to a rate.
pub const BITS_PER_WEIGHT: RangeInclusive<f64> = 1.5..=6.0;
/// Most patterns of tensors that stay as they are.
pub const KEEP_PATTERNS_MAX: usize = 64;
/// Longest of them.
pub const KEEP_PATTERN_BYTES_MAX: usize = 256;
/// How the name of a coded file ends.
const EXTENSION: &str = "sluice";

/// What to do about a coded file that is damaged.
pub const DAMAGED_HINT: &str =
    "compress the checkpoint again, or copy the file again from an intact one";

/// Whether a path is that of a coded file, by its name.
#[must_use]
pub fn is_container_path(path: &Path) -> bool {
    path.extension() == Some(OsStr::new(EXTENSION))
}

/// A coded file to write, by its name.
///
/// # Errors
/// When that ends otherwise.
pub fn check_container_path(path: PathBuf) -> Result<PathBuf, String> {
    match is_container_path(&path) {
        true => Ok(path),
        false => Err(format!(
            "must end in NAME.{EXTENSION}, not '{}'",
            path.display()
        )),
    }
}

/// A tile's size, checked.
///
/// # Errors
/// The sizes that there are.
pub fn check_tile_elements(tile: u32) -> Result<u32, String> {
    match TILE_ELEMENTS.contains(&tile) {
        true => Ok(tile),
        false => Err(format!(
            "must be one of {}, not {tile}",
            TILE_ELEMENTS.map(|tile| tile.to_string()).join(", ")
        )),
    }
}

/// The same, as people type it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_tile_elements(text: &str) -> Result<u32, String> {
    let tile = text.parse();
    check_tile_elements(
        tile.map_err(|_| format!("{text:?} is not a number, such as {TILE_ELEMENTS_DEFAULT}"))?,
    )
}

/// A rate, checked.
///
/// # Errors
/// When it is outside of [`BITS_PER_WEIGHT`], or no number.
pub fn check_bits_per_weight(bits: f64) -> Result<f64, String> {
    match BITS_PER_WEIGHT.contains(&bits) {
        true => Ok(bits),
        false => {
            let (least, most) = (BITS_PER_WEIGHT.start(), BITS_PER_WEIGHT.end());
            Err(format!("must be between {least} and {most}, not {bits}"))
        }
    }
}

/// The same, as people type it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_bits_per_weight(text: &str) -> Result<f64, String> {
    let bits = text.parse();
    check_bits_per_weight(bits.map_err(|_| format!("{text:?} is not a number, such as 4.5"))?)
}

/// A pattern of tensors that stay as they are, checked.
///
/// # Errors
/// When it is empty or too long.
pub fn check_tensor_pattern(pattern: &str) -> Result<String, String> {
    match pattern.len() {
        0 => Err("has an empty pattern".to_owned()),
        bytes if bytes > KEEP_PATTERN_BYTES_MAX => Err(format!(
            "has a pattern of {bytes} bytes; the limit is {KEEP_PATTERN_BYTES_MAX}"
        )),
        _ => Ok(pattern.to_owned()),
    }
}

/// So many patterns, checked.
///
/// # Errors
/// When there are too many.
pub fn check_pattern_count(count: usize) -> Result<(), String> {
    match count > KEEP_PATTERNS_MAX {
        true => Err(format!(
            "has {count} patterns; the limit is {KEEP_PATTERNS_MAX}"
        )),
        false => Ok(()),
    }
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
        assert!(
            problem.ends_with("known are huffman, dictionary"),
            "{problem}"
        );
    }

    #[test]
    fn coded_files_are_known_by_their_names() {
        for right in ["a.sluice", "/m/llada-8b.q4.sluice"] {
            assert_eq!(check_container_path(right.into()), Ok(right.into()));
        }
        for wrong in [
            "a",
            ".sluice",
            "/m/.sluice",
            "a.sluice/..",
            "a.gguf",
            "/",
            "",
        ] {
            assert!(check_container_path(wrong.into()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_are_few_and_short() {
        assert_eq!(check_tensor_pattern("*.wte.*").as_deref(), Ok("*.wte.*"));
        assert!(check_tensor_pattern("").is_err());
        assert!(check_tensor_pattern(&"*".repeat(KEEP_PATTERN_BYTES_MAX + 1)).is_err());
        assert!(check_pattern_count(KEEP_PATTERNS_MAX).is_ok());
        assert!(check_pattern_count(KEEP_PATTERNS_MAX + 1).is_err());
    }

    #[test]
    fn tiles_and_rates_are_held_to_what_there_is() {
        assert_eq!(parse_tile_elements("512"), Ok(512));
        assert!(
            parse_tile_elements("100")
                .unwrap_err()
                .contains("128, 256, 512")
        );
        assert!(parse_tile_elements("-1").is_err());
        assert_eq!(parse_bits_per_weight("4.5"), Ok(4.5));
        for wrong in ["1.4", "6.1", "NaN", "inf", "many"] {
            assert!(parse_bits_per_weight(wrong).is_err(), "{wrong}");
        }
    }
}
