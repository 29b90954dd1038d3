//! Requests for jobs, checked.

use std::path::PathBuf;

use sluice_shared::coding::{
    self, Coder, TILE_DEFAULT, check_bits, check_pattern_count, check_tile, parse_pattern,
};

use super::{InvalidField, Subject, at_least_one, invalid};
use crate::v1;

/// Longest path, as the system has it.
const PATH_BYTES_MAX: usize = 4096;

/// A checked [`v1::CompressRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct Compressing {
    /// What to code; a path is absolute.
    pub source: Subject,
    /// File to write: absolute, with an ending of its own.
    pub output: PathBuf,
    /// How numbers are coded.
    pub how: How,
    /// Numbers of a tile, one of those that there are.
    pub tile: u32,
    /// Patterns of tensors that stay as they are; few and short.
    pub keep: Vec<String>,
    /// Whether embeddings are coded, too, and with bits the head.
    pub all: bool,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
}

/// How numbers are coded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum How {
    /// Every bit is kept.
    Lossless(Coder),
    /// To so many bits, within the limits.
    Bits(f64),
}

/// A checked [`v1::DecompressRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decompressing {
    /// A coded file, absolute.
    pub file: PathBuf,
    /// Folder to write, absolute.
    pub output: PathBuf,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
}

/// A checked [`v1::VerifyRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verifying {
    /// A coded file, absolute.
    pub file: PathBuf,
}

impl TryFrom<v1::CompressRequest> for Compressing {
    type Error = InvalidField;

    fn try_from(wire: v1::CompressRequest) -> Result<Self, InvalidField> {
        use v1::compress_request::How as Wire;

        bounded("name", &wire.name)?;
        if !wire.path.is_empty() {
            absolute("path", &wire.path)?;
        }
        let how = match wire.how {
            Some(Wire::BitsPerWeight(bits)) => {
                How::Bits(check_bits(bits).map_err(|problem| invalid("bits", problem))?)
            }
            Some(Wire::Coder(coder)) => How::Lossless(match v1::Coder::try_from(coder) {
                Ok(v1::Coder::Unspecified) => Coder::default(),
                Ok(v1::Coder::Huffman) => Coder::Huffman,
                Ok(v1::Coder::Palette) => Coder::Palette,
                Err(_) => return Err(invalid("coder", format!("{coder} is unknown"))),
            }),
            None => How::Lossless(Coder::default()),
        };
        let tile = check_tile(wire.tile_elements.unwrap_or(TILE_DEFAULT));
        Ok(Self {
            source: Subject::new(wire.name, wire.path)?,
            output: coded_file("output", &wire.output_path)?,
            how,
            tile: tile.map_err(|problem| invalid("tile", problem))?,
            keep: patterns(wire.keep_tensors)?,
            all: wire.all_tensors,
            threads: at_least_one("threads", wire.threads)?,
        })
    }
}

impl TryFrom<v1::DecompressRequest> for Decompressing {
    type Error = InvalidField;

    fn try_from(wire: v1::DecompressRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            file: absolute("path", &wire.input_path)?,
            output: absolute("output", &wire.output_path)?,
            threads: at_least_one("threads", wire.threads)?,
        })
    }
}

impl TryFrom<v1::VerifyRequest> for Verifying {
    type Error = InvalidField;

    fn try_from(wire: v1::VerifyRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            file: absolute("path", &wire.input_path)?,
        })
    }
}

fn bounded(field: &'static str, text: &str) -> Result<(), InvalidField> {
    match text.len() > PATH_BYTES_MAX {
        true => Err(invalid(
            field,
            format!("has {} bytes; {PATH_BYTES_MAX} at most", text.len()),
        )),
        false => Ok(()),
    }
}

/// The daemon has a current folder of its own.
fn absolute(field: &'static str, path: &str) -> Result<PathBuf, InvalidField> {
    bounded(field, path)?;
    if path.is_empty() {
        return Err(invalid(field, "is missing"));
    }
    if !path.starts_with('/') {
        return Err(invalid(field, format!("must be absolute, not '{path}'")));
    }
    if path.contains('\0') {
        return Err(invalid(field, "has a zero byte, which no path has"));
    }
    Ok(path.into())
}

fn coded_file(field: &'static str, path: &str) -> Result<PathBuf, InvalidField> {
    coding::coded_file(absolute(field, path)?).map_err(|problem| invalid(field, problem))
}

fn patterns(keep: Vec<String>) -> Result<Vec<String>, InvalidField> {
    let refused = |problem| invalid("keep", problem);
    check_pattern_count(keep.len()).map_err(refused)?;
    let each = keep.iter().map(|pattern| parse_pattern(pattern));
    each.collect::<Result<_, _>>().map_err(refused)
}

#[cfg(test)]
mod tests {
    use v1::compress_request::How as Wire;

    use super::*;

    fn compress() -> v1::CompressRequest {
        v1::CompressRequest {
            path: "/m".to_owned(),
            output_path: "/a.sluice".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn what_nobody_says_has_a_default() {
        let asked = Compressing::try_from(compress()).unwrap();
        assert_eq!(asked.source, Subject::Path("/m".to_owned()));
        assert_eq!(asked.how, How::Lossless(Coder::Huffman));
        assert_eq!((asked.tile, asked.threads), (TILE_DEFAULT, None));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let field = |change: fn(&mut v1::CompressRequest)| {
            let mut wire = compress();
            change(&mut wire);
            Compressing::try_from(wire).unwrap_err().field
        };
        assert_eq!(field(|wire| wire.name = "a".to_owned()), "name");
        assert_eq!(field(|wire| wire.name = "a".repeat(5000)), "name");
        assert_eq!(field(|wire| wire.path = "m".to_owned()), "path");
        assert_eq!(field(|wire| wire.path = "/m\0".to_owned()), "path");
        for output in [
            "",
            "a.sluice",
            "/",
            "/a",
            "/.sluice",
            "/a.sluice/..",
            "/a.gguf",
        ] {
            let wire = v1::CompressRequest {
                output_path: output.to_owned(),
                ..compress()
            };
            assert_eq!(Compressing::try_from(wire).unwrap_err().field, "output");
        }
        assert_eq!(
            field(|wire| wire.output_path = format!("/{}.sluice", "a".repeat(5000))),
            "output"
        );
        assert_eq!(
            field(|wire| wire.how = Some(Wire::BitsPerWeight(0.5))),
            "bits"
        );
        assert_eq!(
            field(|wire| wire.how = Some(Wire::BitsPerWeight(f64::NAN))),
            "bits"
        );
        assert_eq!(field(|wire| wire.how = Some(Wire::Coder(9))), "coder");
        assert_eq!(field(|wire| wire.tile_elements = Some(100)), "tile");
        assert_eq!(field(|wire| wire.threads = Some(0)), "threads");
        assert_eq!(
            field(|wire| wire.keep_tensors = vec!["*".to_owned(); 65]),
            "keep"
        );
        assert_eq!(
            field(|wire| wire.keep_tensors = vec!["*".repeat(257)]),
            "keep"
        );
        assert_eq!(
            field(|wire| wire.keep_tensors = vec![String::new()]),
            "keep"
        );
    }

    #[test]
    fn files_and_folders_are_absolute() {
        let wire = |path: &str, output: &str| v1::DecompressRequest {
            input_path: path.to_owned(),
            output_path: output.to_owned(),
            threads: None,
        };
        assert!(Decompressing::try_from(wire("/a.sluice", "/m")).is_ok());
        let field = |path, output| {
            Decompressing::try_from(wire(path, output))
                .unwrap_err()
                .field
        };
        assert_eq!(field("", "/m"), "path");
        assert_eq!(field("/a.sluice", "m"), "output");
        let path = "a".to_owned();
        assert_eq!(
            Verifying::try_from(v1::VerifyRequest { input_path: path })
                .unwrap_err()
                .field,
            "path"
        );
    }
}
