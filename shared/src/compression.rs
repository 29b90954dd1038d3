//! How a checkpoint's weights are compressed, as people ask for it: names and limits.

use std::{
    ffi::OsStr,
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
};

/// A lossless entropy coder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coder {
    /// Huffman codes: the smallest files.
    #[default]
    Huffman,
    /// Dictionary codes: the fastest to decompress.
    Dictionary,
}

impl Coder {
    /// All coders, the default first.
    pub const ALL: [Self; 2] = [Self::Huffman, Self::Dictionary];

    /// The name that people type.
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

/// Elements of a tile, as containers may have them.
pub const TILE_ELEMENTS: [u32; 3] = [128, 256, 512];
/// Elements of a tile by default.
pub const TILE_ELEMENTS_DEFAULT: u32 = 512;
/// Bits per weight of a trellis-quantized tensor.
pub const BITS_PER_WEIGHT: RangeInclusive<f64> = 1.5..=6.0;
/// Most patterns of tensors that are kept as they are, and of those that alone are compressed.
pub const KEEP_PATTERNS_MAX: usize = 64;
/// Most bytes of such a pattern.
pub const KEEP_PATTERN_BYTES_MAX: usize = 256;
/// The extension of a compressed file.
const EXTENSION: &str = "sluice";

/// The hint for a compressed file that is damaged.
pub const DAMAGED_HINT: &str =
    "compress the checkpoint again, or copy the file again from an intact one";

/// Whether a path is that of a compressed file, by its extension.
#[must_use]
pub fn is_container_path(path: &Path) -> bool {
    path.extension() == Some(OsStr::new(EXTENSION))
}

/// The path of a compressed file to write, checked.
///
/// # Errors
/// When it has another extension.
pub fn check_container_path(path: PathBuf) -> Result<PathBuf, String> {
    match is_container_path(&path) {
        true => Ok(path),
        false => Err(format!(
            "must end in NAME.{EXTENSION}, not '{}'",
            path.display()
        )),
    }
}

/// The elements of a tile, checked.
///
/// # Errors
/// The sizes that are allowed.
pub fn check_tile_elements(tile: u32) -> Result<u32, String> {
    match TILE_ELEMENTS.contains(&tile) {
        true => Ok(tile),
        false => Err(format!(
            "must be one of {}, not {tile}",
            TILE_ELEMENTS.map(|tile| tile.to_string()).join(", ")
        )),
    }
}

/// The elements of a tile, parsed and checked.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_tile_elements(text: &str) -> Result<u32, String> {
    let tile = text.parse();
    check_tile_elements(
        tile.map_err(|_| format!("{text:?} is not a number, such as {TILE_ELEMENTS_DEFAULT}"))?,
    )
}

/// The bits per weight, checked.
///
/// # Errors
/// When they are outside of [`BITS_PER_WEIGHT`], or NaN.
pub fn check_bits_per_weight(bits: f64) -> Result<f64, String> {
    // NaN lies in no range.
    match BITS_PER_WEIGHT.contains(&bits) {
        true => Ok(bits),
        false => {
            let (least, most) = (BITS_PER_WEIGHT.start(), BITS_PER_WEIGHT.end());
            Err(format!("must be between {least} and {most}, not {bits}"))
        }
    }
}

/// The bits per weight, parsed and checked.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_bits_per_weight(text: &str) -> Result<f64, String> {
    let bits = text.parse();
    check_bits_per_weight(bits.map_err(|_| format!("{text:?} is not a number, such as 4.5"))?)
}

/// Bits per weight that matrices of a mix are quantized to. Below, losses rise faster than 4^-R with the rate R; above,
/// the demonstration model has less than 0.0001 nats left to lose.
pub const MIX_BITS: RangeInclusive<f64> = 1.75..=8.0;

/// A rate of a mix, checked.
///
/// # Errors
/// When it lies outside of [`MIX_BITS`].
pub fn check_mix_bits(bits: f64) -> Result<f64, String> {
    let (least, most) = (MIX_BITS.start(), MIX_BITS.end());
    match MIX_BITS.contains(&bits) {
        true => Ok(bits),
        false => Err(format!("must be between {least} and {most}, not {bits}")),
    }
}

/// A rate of a mix, as people write it.
///
/// # Errors
/// When it is no number, or lies outside of [`MIX_BITS`].
pub fn parse_mix_bits(text: &str) -> Result<f64, String> {
    let bits = text.parse();
    check_mix_bits(bits.map_err(|_| format!("{text:?} is not a number, such as 3.5"))?)
}

/// A pattern of tensors, checked.
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

/// The number of patterns, checked.
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
    fn compressed_files_are_known_by_their_names() {
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
