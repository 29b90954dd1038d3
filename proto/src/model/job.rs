//! Requests for jobs, checked.

use std::path::PathBuf;

use sluice_shared::{
    compression::{
        self, Coder, TILE_ELEMENTS_DEFAULT, check_bits_per_weight, check_mix_bits,
        check_pattern_count, check_tensor_pattern, check_tile_elements,
    },
    mix::MixId,
    pruning::{PruneScore, check_share},
};

use super::{
    InvalidField, ModelRef, at_least_one, invalid, optimizer::budget_bytes, reference::absolute,
};
use crate::v1;

/// A checked [`v1::CompressRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct CompressJob {
    /// What to code; it has weights.
    pub source: ModelRef,
    /// File to write: absolute, with an ending of its own.
    pub output: PathBuf,
    /// How weights are compressed.
    pub method: CompressionMethod,
    /// Elements of a tile, one of the supported sizes.
    pub tile_elements: u32,
    /// Patterns of tensors that stay as they are; few and short.
    pub keep_tensors: Vec<String>,
    /// Patterns of the only tensors that are compressed; few and short. None: all.
    pub only_tensors: Vec<String>,
    /// Tensors with fewer bytes stay as they are.
    pub min_bytes: u64,
    /// Whether embeddings are compressed too, and the LM head where bits are given.
    pub all_tensors: bool,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
}

/// How weights are compressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CompressionMethod {
    /// Every bit is kept.
    Lossless(Coder),
    /// To so many bits, within the limits.
    BitsPerWeight(f64),
    /// As a mix has them.
    Mix(MixId),
}

impl CompressionMethod {
    /// What is unspecified is lossless, unless bits are given.
    fn new(compression: i32, bits_per_weight: Option<f64>) -> Result<Self, InvalidField> {
        use v1::Compression as Wire;

        let unknown = || invalid("compression", format!("{compression} is unknown"));
        let compression = Wire::try_from(compression).map_err(|_| unknown())?;
        match (compression, bits_per_weight) {
            (Wire::Trellis | Wire::Unspecified, Some(bits)) => check_bits_per_weight(bits)
                .map(Self::BitsPerWeight)
                .map_err(|problem| invalid("bits_per_weight", problem)),
            (Wire::Trellis, None) => Err(invalid("bits_per_weight", "is required for trellis")),
            (Wire::Unspecified, None) => Ok(Self::Lossless(Coder::default())),
            (Wire::Huffman, None) => Ok(Self::Lossless(Coder::Huffman)),
            (Wire::Dictionary, None) => Ok(Self::Lossless(Coder::Dictionary)),
            // What this takes besides bits has no request yet.
            (Wire::Columns, _) => Err(invalid("compression", "columns cannot be asked for")),
            (Wire::None, _) => Err(invalid("compression", "none compresses nothing")),
            (Wire::Huffman | Wire::Dictionary, Some(_)) => {
                let problem = format!("cannot be combined with {compression}, which is lossless");
                Err(invalid("bits_per_weight", problem))
            }
        }
    }
}

/// A checked [`v1::DecompressRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecompressJob {
    /// Path of a compressed file, absolute.
    pub file: PathBuf,
    /// Folder to write, absolute.
    pub output: PathBuf,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
}

/// A checked [`v1::VerifyRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyJob {
    /// Path of a compressed file, absolute.
    pub file: PathBuf,
}

/// A checked [`v1::PruneRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct PruneJob {
    /// What to prune; it has weights.
    pub source: ModelRef,
    /// File to write: absolute, with an ending of its own.
    pub output: PathBuf,
    /// Share of the KV heads to remove, at least 0 and below 1.
    pub head_share: f64,
    /// Share of the MLP channels to remove, at least 0 and below 1.
    pub channel_share: f64,
    /// What units are chosen by.
    pub score: PruneScore,
    /// Whether the weights that stay make up for those that go.
    pub compensate: bool,
    /// Path of the calibration, absolute; there is one where score or compensation need it.
    pub calibration: Option<PathBuf>,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
}

/// A checked [`v1::CalibrateRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrateJob {
    /// Texts with at least one line that is not blank; none: the built-in text.
    pub texts: Vec<String>,
    /// File to write, absolute; `None`: in the folder of converted weights.
    pub output: Option<PathBuf>,
    /// Whether a file of that name may be replaced.
    pub may_replace: bool,
    /// Seed of masks and decodes.
    pub seed: u64,
    /// Most positions, at least 1.
    pub max_positions: Option<u32>,
    /// Whether whole matrices are measured.
    pub is_full: bool,
    /// Host memory for statistics.
    pub memory_bytes: Option<u64>,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
}

/// Most positions of a calibration.
const CALIBRATION_POSITIONS_MAX: u32 = 1 << 20;

impl TryFrom<v1::CalibrateRequest> for CalibrateJob {
    type Error = InvalidField;

    fn try_from(wire: v1::CalibrateRequest) -> Result<Self, InvalidField> {
        let is_blank = |text: &String| text.trim().is_empty();
        if !wire.texts.is_empty() && wire.texts.iter().all(is_blank) {
            return Err(invalid("texts", "have no line that is not blank"));
        }
        let max_positions = at_least_one("max_positions", wire.max_positions)?;
        if max_positions.is_some_and(|most| most > CALIBRATION_POSITIONS_MAX) {
            let problem = format!("are more than {CALIBRATION_POSITIONS_MAX}");
            return Err(invalid("max_positions", problem));
        }
        Ok(Self {
            texts: wire.texts,
            output: match wire.output_path.is_empty() {
                true => None,
                false => Some(calibration_path(wire.output_path)?),
            },
            may_replace: wire.replace,
            seed: wire.seed.unwrap_or_default(),
            max_positions,
            is_full: !wire.diagonal,
            memory_bytes: wire.memory_bytes,
            threads: at_least_one("threads", wire.threads)?,
        })
    }
}

/// A checked [`v1::OptimizeRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizeJob {
    /// Texts with at least one line that is not blank; none: the built-in text.
    pub texts: Vec<String>,
    /// Device memory; `None`: the budget in force.
    pub budget_bytes: Option<u64>,
    /// Calibration to quantize by.
    pub calibration: CalibrationChoice,
    /// Seed of the masks.
    pub seed: u64,
    /// Most texts of a measurement, at least 1.
    pub max_samples: Option<u32>,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
    /// How long a pass may take, above 0 and finite.
    pub max_pass_ms: Option<f64>,
    /// One rate for all, within [`compression::MIX_BITS`], without limits of memory and time.
    pub bits_per_weight: Option<f64>,
}

/// Which calibration an optimization quantizes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CalibrationChoice {
    /// The one of the loaded model in the folder of converted weights, which is made where it is missing.
    Own,
    /// This file, absolute.
    File(PathBuf),
    /// None: all inputs count alike.
    Without,
}

impl TryFrom<v1::OptimizeRequest> for OptimizeJob {
    type Error = InvalidField;

    fn try_from(wire: v1::OptimizeRequest) -> Result<Self, InvalidField> {
        let is_blank = |text: &String| text.trim().is_empty();
        if !wire.texts.is_empty() && wire.texts.iter().all(is_blank) {
            return Err(invalid("texts", "have no line that is not blank"));
        }
        let budget_bytes = wire.budget_bytes.map(budget_bytes).transpose()?;
        if wire.bits_per_weight.is_some() && (budget_bytes.is_some() || wire.max_pass_ms.is_some())
        {
            let problem = "cannot be used together with `budget_bytes` or `max_pass_ms`";
            return Err(invalid("bits_per_weight", problem));
        }
        let bits_per_weight = wire.bits_per_weight.map(|bits| {
            check_mix_bits(bits).map_err(|problem| invalid("bits_per_weight", problem))
        });
        let calibration = match (wire.uncalibrated, wire.calibration_path.is_empty()) {
            (true, true) => CalibrationChoice::Without,
            (false, true) => CalibrationChoice::Own,
            (false, false) => {
                CalibrationChoice::File(absolute("calibration_path", wire.calibration_path)?)
            }
            (true, false) => {
                let problem = "cannot be used together with `uncalibrated`";
                return Err(invalid("calibration_path", problem));
            }
        };
        Ok(Self {
            texts: wire.texts,
            budget_bytes,
            calibration,
            seed: wire.seed.unwrap_or_default(),
            max_samples: at_least_one("max_samples", wire.max_samples)?,
            threads: at_least_one("threads", wire.threads)?,
            max_pass_ms: match wire.max_pass_ms {
                Some(ms) if !(ms.is_finite() && ms > 0.0) => {
                    return Err(invalid("max_pass_ms", "must be a finite number above 0"));
                }
                ms => ms,
            },
            bits_per_weight: bits_per_weight.transpose()?,
        })
    }
}

/// A file of its own kind, so that no name of another file is taken by mistake.
fn calibration_path(path: String) -> Result<PathBuf, InvalidField> {
    let path = absolute("output_path", path)?;
    match path
        .extension()
        .is_some_and(|ending| ending == "safetensors")
    {
        true => Ok(path),
        false => Err(invalid("output_path", "must end in .safetensors")),
    }
}

impl TryFrom<v1::CompressRequest> for CompressJob {
    type Error = InvalidField;

    fn try_from(wire: v1::CompressRequest) -> Result<Self, InvalidField> {
        let method = match wire.mix {
            None => CompressionMethod::new(wire.compression, wire.bits_per_weight)?,
            Some(_) if wire.compression != 0 || wire.bits_per_weight.is_some() => {
                let problem = "cannot be used together with `compression` or `bits_per_weight`";
                return Err(invalid("mix", problem));
            }
            Some(mix) => CompressionMethod::Mix(
                MixId::from_number(mix).ok_or_else(|| invalid("mix", "must not be 0"))?,
            ),
        };
        let tile = check_tile_elements(wire.tile_elements.unwrap_or(TILE_ELEMENTS_DEFAULT));
        Ok(Self {
            source: ModelRef::try_from(wire.model)?.with_weights()?,
            output: container_path("output_path", wire.output_path)?,
            method,
            tile_elements: tile.map_err(|problem| invalid("tile_elements", problem))?,
            keep_tensors: tensor_patterns("keep_tensors", wire.keep_tensors)?,
            only_tensors: tensor_patterns("only_tensors", wire.only_tensors)?,
            min_bytes: wire.min_bytes.unwrap_or_default(),
            all_tensors: wire.all_tensors,
            threads: at_least_one("threads", wire.threads)?,
        })
    }
}

impl TryFrom<v1::PruneRequest> for PruneJob {
    type Error = InvalidField;

    fn try_from(wire: v1::PruneRequest) -> Result<Self, InvalidField> {
        let share = |field, share| check_share(share).map_err(|problem| invalid(field, problem));
        let score = match v1::PruneScore::try_from(wire.score) {
            Ok(v1::PruneScore::Unspecified) => Some(PruneScore::default()),
            Ok(score) => score.checked(),
            Err(_) => None,
        };
        let job = Self {
            source: ModelRef::try_from(wire.model)?.with_weights()?,
            output: container_path("output_path", wire.output_path)?,
            head_share: share("head_share", wire.head_share)?,
            channel_share: share("channel_share", wire.channel_share)?,
            score: score.ok_or_else(|| invalid("score", format!("{} is unknown", wire.score)))?,
            compensate: wire.compensate,
            calibration: match wire.calibration_path.is_empty() {
                true => None,
                false => Some(absolute("calibration_path", wire.calibration_path)?),
            },
            threads: at_least_one("threads", wire.threads)?,
        };
        let needs_calibration = job.compensate || job.score.needs_calibration();
        if needs_calibration && job.calibration.is_none() {
            let problem = "is required for this score, or for compensation";
            return Err(invalid("calibration_path", problem));
        }
        match job.head_share == 0.0 && job.channel_share == 0.0 {
            true => Err(invalid("head_share", "and channel_share are both 0")),
            false => Ok(job),
        }
    }
}

impl TryFrom<v1::DecompressRequest> for DecompressJob {
    type Error = InvalidField;

    fn try_from(wire: v1::DecompressRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            file: absolute("input_path", wire.input_path)?,
            output: absolute("output_path", wire.output_path)?,
            threads: at_least_one("threads", wire.threads)?,
        })
    }
}

impl TryFrom<v1::VerifyRequest> for VerifyJob {
    type Error = InvalidField;

    fn try_from(wire: v1::VerifyRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            file: absolute("input_path", wire.input_path)?,
        })
    }
}

fn container_path(field: &'static str, path: String) -> Result<PathBuf, InvalidField> {
    compression::check_container_path(absolute(field, path)?)
        .map_err(|problem| invalid(field, problem))
}

fn tensor_patterns(
    field: &'static str,
    patterns: Vec<String>,
) -> Result<Vec<String>, InvalidField> {
    let refused = |problem| invalid(field, problem);
    check_pattern_count(patterns.len()).map_err(refused)?;
    let each = patterns.iter().map(|pattern| check_tensor_pattern(pattern));
    each.collect::<Result<_, _>>().map_err(refused)
}

#[cfg(test)]
mod tests {
    use v1::model_ref::By;

    use super::*;

    fn compress() -> v1::CompressRequest {
        v1::CompressRequest {
            model: By::Path("/m".to_owned()).into(),
            output_path: "/a.sluice".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn what_nobody_says_has_a_default() {
        let asked = CompressJob::try_from(compress()).unwrap();
        assert_eq!(asked.source, ModelRef::Path("/m".into()));
        assert_eq!(asked.method, CompressionMethod::Lossless(Coder::Huffman));
        assert_eq!(
            (asked.tile_elements, asked.threads),
            (TILE_ELEMENTS_DEFAULT, None)
        );
        assert!(asked.only_tensors.is_empty() && asked.min_bytes == 0);
    }

    #[test]
    fn a_mix_is_no_other_compression() {
        let with = |mix, change: fn(&mut v1::CompressRequest)| {
            let mut wire = v1::CompressRequest {
                mix: Some(mix),
                ..compress()
            };
            change(&mut wire);
            CompressJob::try_from(wire)
        };
        let asked = with(7, |_| {}).unwrap();
        assert_eq!(
            asked.method,
            CompressionMethod::Mix(MixId::from_number(7).unwrap())
        );
        for refused in [
            with(0, |_| {}),
            with(7, |wire| wire.bits_per_weight = Some(4.0)),
            with(7, |wire| wire.compression = v1::Compression::Huffman.into()),
        ] {
            assert_eq!(refused.unwrap_err().field, "mix");
        }
    }

    #[test]
    fn an_optimization_has_limits_or_a_rate() {
        let request = |budget_bytes, max_pass_ms, bits_per_weight| v1::OptimizeRequest {
            budget_bytes,
            max_pass_ms,
            bits_per_weight,
            ..Default::default()
        };
        let asked = |wire| OptimizeJob::try_from(wire).unwrap();
        let limited = asked(request(Some(1 << 30), Some(40.0), None));
        assert_eq!(
            (limited.budget_bytes, limited.max_pass_ms),
            (Some(1 << 30), Some(40.0))
        );
        assert_eq!(
            asked(request(None, None, Some(3.5))).bits_per_weight,
            Some(3.5)
        );
        for (wire, field) in [
            (request(None, Some(0.0), None), "max_pass_ms"),
            (request(None, Some(f64::NAN), None), "max_pass_ms"),
            (request(None, Some(f64::INFINITY), None), "max_pass_ms"),
            (request(None, None, Some(1.7)), "bits_per_weight"),
            (request(None, None, Some(f64::NAN)), "bits_per_weight"),
            (request(Some(1 << 30), None, Some(3.5)), "bits_per_weight"),
            (request(None, Some(40.0), Some(3.5)), "bits_per_weight"),
        ] {
            assert_eq!(OptimizeJob::try_from(wire).unwrap_err().field, field);
        }
    }

    #[test]
    fn shares_to_prune_are_checked() {
        let request = |heads, channels, score| v1::PruneRequest {
            model: By::Path("/m".to_owned()).into(),
            output_path: "/a.sluice".to_owned(),
            head_share: heads,
            channel_share: channels,
            score,
            ..Default::default()
        };
        let job = PruneJob::try_from(request(0.2, 0.0, 0)).unwrap();
        assert_eq!((job.head_share, job.score), (0.2, PruneScore::L2));
        for (heads, channels, score, field) in [
            (0.0, 0.0, 0, "head_share"),
            (1.0, 0.0, 0, "head_share"),
            (f64::NAN, 0.1, 0, "head_share"),
            (0.1, -0.1, 0, "channel_share"),
            (0.1, f64::INFINITY, 0, "channel_share"),
            (0.1, 0.1, 77, "score"),
            (0.1, 0.1, 5, "calibration_path"),
        ] {
            let refused = PruneJob::try_from(request(heads, channels, score)).unwrap_err();
            assert_eq!(refused.field, field);
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let field = |change: fn(&mut v1::CompressRequest)| {
            let mut wire = compress();
            change(&mut wire);
            CompressJob::try_from(wire).unwrap_err().field
        };
        let shape = |wire: &mut v1::CompressRequest| {
            wire.model = By::Shape("llada-8b".to_owned()).into();
        };
        assert_eq!(field(shape), "model");
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
            assert_eq!(
                CompressJob::try_from(wire).unwrap_err().field,
                "output_path"
            );
        }
        assert_eq!(
            field(|wire| wire.output_path = format!("/{}.sluice", "a".repeat(5000))),
            "output_path"
        );
        assert_eq!(
            field(|wire| wire.bits_per_weight = Some(0.5)),
            "bits_per_weight"
        );
        assert_eq!(
            field(|wire| wire.bits_per_weight = Some(f64::NAN)),
            "bits_per_weight"
        );
        for compression in [v1::Compression::None as i32, 9] {
            let wire = v1::CompressRequest {
                compression,
                ..compress()
            };
            let error = CompressJob::try_from(wire).unwrap_err();
            assert_eq!(error.field, "compression");
        }
        let trellis = |wire: &mut v1::CompressRequest| {
            wire.set_compression(v1::Compression::Trellis);
        };
        assert_eq!(field(trellis), "bits_per_weight");
        let both = |wire: &mut v1::CompressRequest| {
            wire.set_compression(v1::Compression::Dictionary);
            wire.bits_per_weight = Some(4.0);
        };
        assert_eq!(field(both), "bits_per_weight");
        assert_eq!(
            field(|wire| wire.tile_elements = Some(100)),
            "tile_elements"
        );
        assert_eq!(field(|wire| wire.threads = Some(0)), "threads");
        assert_eq!(
            field(|wire| wire.keep_tensors = vec!["*".to_owned(); 65]),
            "keep_tensors"
        );
        assert_eq!(
            field(|wire| wire.keep_tensors = vec!["*".repeat(257)]),
            "keep_tensors"
        );
        assert_eq!(
            field(|wire| wire.keep_tensors = vec![String::new()]),
            "keep_tensors"
        );
        for patterns in [
            vec!["*".to_owned(); 65],
            vec!["*".repeat(257)],
            vec![String::new()],
        ] {
            let wire = v1::CompressRequest {
                only_tensors: patterns,
                ..compress()
            };
            let error = CompressJob::try_from(wire).unwrap_err();
            assert_eq!(error.field, "only_tensors");
        }
    }

    #[test]
    fn files_and_folders_are_absolute() {
        let wire = |path: &str, output: &str| v1::DecompressRequest {
            input_path: path.to_owned(),
            output_path: output.to_owned(),
            threads: None,
        };
        assert!(DecompressJob::try_from(wire("/a.sluice", "/m")).is_ok());
        let field = |path, output| {
            DecompressJob::try_from(wire(path, output))
                .unwrap_err()
                .field
        };
        assert_eq!(field("", "/m"), "input_path");
        assert_eq!(field("/a.sluice", "m"), "output_path");
        let path = "a".to_owned();
        assert_eq!(
            VerifyJob::try_from(v1::VerifyRequest { input_path: path })
                .unwrap_err()
                .field,
            "input_path"
        );
    }
}
