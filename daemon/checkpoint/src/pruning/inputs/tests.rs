//! Pruning by a calibration whose inputs are known.

use std::{fs, path::PathBuf, sync::atomic::AtomicBool};

use sluice_formats::noise::Noise;
use sluice_weights::TensorPart;
use tempfile::TempDir;

use super::*;
use crate::{
    Source,
    calibration::{CalibrationOrigin, CalibrationWriter, InputRows},
    compression::SourceCheck,
    pruning::{PruneOptions, PruneResult, PruneShares, prune},
};

const ROWS: usize = 600;
/// Channels of each layer whose inputs are as good as zero.
const FAINT: [usize; 3] = [7, 100, 511];

fn demonstration() -> Source {
    Source::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../model"))
}

/// Inputs of which each has much of the one before, so that others can make up for it.
fn rows(input: MatrixInput, width: usize) -> Vec<f32> {
    let noise = Noise::new(format!("{input}").len() as u64);
    let mut rows = Vec::with_capacity(ROWS * width);
    for row in 0..ROWS {
        let mut before = 0.0;
        for column in 0..width {
            let own = noise.uniform(row as u64, column as u64, 0) as f32 - 0.4;
            before = 0.8 * before + own;
            let is_faint = matches!(input, MatrixInput::Down(_)) && FAINT.contains(&column);
            rows.push(if is_faint { 1e-3 * own } else { before });
        }
    }
    rows
}

struct Calibrated {
    folder: TempDir,
    path: PathBuf,
}

fn calibrated(is_full: bool, fingerprint: Option<&str>) -> Calibrated {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demonstration.calibration.safetensors");
    let checkpoint = Checkpoint::open(&demonstration()).unwrap();
    let shape = checkpoint.model().unwrap().shape;
    let own = checkpoint.fingerprint().unwrap();
    let fingerprint = fingerprint.map_or(own, str::to_owned);
    let origin = CalibrationOrigin {
        model: ModelIdentity::new("demonstration", "llada", fingerprint, &shape, &[]),
        text_hash: 7,
        texts: Vec::new(),
        seed: 3,
        passes: 8,
        positions: ROWS as u64,
        is_full,
        is_lossless: true,
    };
    let inputs: Vec<_> = MatrixInput::all(shape.layers)
        .map(|input| InputRows {
            input,
            kind: PositionKind::Masked,
            rows: ROWS as u64,
        })
        .collect();
    let writer = CalibrationWriter::create(&path, origin, &inputs, false).unwrap();
    for InputRows { input, kind, .. } in inputs {
        let width = input.width(&shape);
        let mut moments = Moments::new(width, is_full);
        moments.add(&rows(input, width)).unwrap();
        writer.put(input, kind, &mut moments).unwrap();
    }
    writer.finish(true).unwrap();
    Calibrated { folder, path }
}

impl Calibrated {
    fn prune(
        &self,
        name: &str,
        score: PruneScore,
        compensate: bool,
    ) -> Result<PruneResult, CompressError> {
        let options = PruneOptions {
            shares: PruneShares {
                heads: 0.1,
                channels: 0.1,
            },
            score,
            compensate,
            calibration: Some(self.path.clone()),
            threads: 2,
            replace: false,
        };
        let check = SourceCheck {
            remembered: None,
            progress: &mut |_| {},
        };
        let never = AtomicBool::new(false);
        let target = self.folder.path().join(name);
        prune(
            &demonstration(),
            &target,
            &options,
            check,
            &never,
            &mut |_, _| {},
        )
    }

    /// What the first layer's `down` of a file puts out otherwise than the whole model's, squared and summed.
    fn error(&self, name: &str, made: &PruneResult) -> f64 {
        let whole = Checkpoint::open(&demonstration()).unwrap();
        let pruned = Checkpoint::open(&Source::Folder(self.folder.path().join(name))).unwrap();
        let shape = whole.model().unwrap().shape;
        let mut specs = shape.tensors().into_iter();
        let spec = specs.find(|spec| spec.part == TensorPart::Down).unwrap();
        let read = |checkpoint: &Checkpoint| {
            let entry = checkpoint.tensor(&spec.name).unwrap();
            let mut bytes = vec![0; entry.bytes as usize];
            checkpoint
                .read_part(entry, 0..entry.bytes, &mut bytes)
                .unwrap();
            let format = entry.format.clone().unwrap();
            let mut values = vec![0.0; entry.shape.iter().product()];
            format.dequantize(&bytes, &mut values);
            (values, entry.shape[1])
        };
        let ((before, width), (after, kept_width)) = (read(&whole), read(&pruned));
        let removed = &made.record.layers[0].removed_channels;
        let kept: Vec<_> = (0..width)
            .filter(|&column| !removed.contains(&(column as u32)))
            .collect();
        assert_eq!(kept.len(), kept_width);
        let mut sum = 0.0;
        for x in rows(MatrixInput::Down(0), width)
            .chunks_exact(width)
            .take(20)
        {
            let kept: Vec<f32> = kept.iter().map(|&column| x[column]).collect();
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum()
            };
            let outputs = before
                .chunks_exact(width)
                .zip(after.chunks_exact(kept_width));
            sum += outputs
                .map(|(before, after)| (dot(before, x) - dot(after, &kept)).powi(2))
                .sum::<f64>();
        }
        sum
    }
}

#[test]
fn what_is_hardly_used_goes_and_the_others_make_up_for_it() {
    let calibrated = calibrated(true, None);
    for score in [PruneScore::Wanda, PruneScore::Flap, PruneScore::Obs] {
        let file = |compensate| format!("{score}-{compensate}.sluice");
        let plain = calibrated.prune(&file(false), score, false).unwrap();
        let made = calibrated.prune(&file(true), score, true).unwrap();
        assert_eq!(plain.record.layers, made.record.layers, "{score}");
        assert!(made.record.is_compensated && made.record.calibration_hash.is_some());
        assert_eq!(made.record.removed_kv_heads(), (2, 20));
        for layer in &made.record.layers {
            let removed = &layer.removed_channels;
            let is_gone = |channel: &usize| removed.contains(&(*channel as u32));
            assert!(FAINT.iter().all(is_gone), "{score}: {removed:?}");
        }
        let before = calibrated.error(&file(false), &plain);
        let after = calibrated.error(&file(true), &made);
        assert!(after < 0.5 * before, "{score}: {after} of {before}");
    }
}

#[test]
fn a_calibration_that_is_missing_or_of_no_use_is_refused() {
    let diagonal = calibrated(false, None);
    let file = |score| diagonal.prune("a.sluice", score, false);
    assert!(file(PruneScore::Flap).is_ok());
    for (score, compensate) in [(PruneScore::Obs, false), (PruneScore::L2, true)] {
        let refused = diagonal.prune("b.sluice", score, compensate);
        assert!(matches!(
            refused,
            Err(CompressError::Prune(PruneError::DiagonalOnly))
        ));
    }
    let other = calibrated(true, Some("0123456789abcdef"));
    let refused = other
        .prune("a.sluice", PruneScore::Wanda, false)
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("is the calibration of demonstration"),
        "{refused}"
    );
    fs::remove_file(&other.path).unwrap();
    let missing = other.prune("a.sluice", PruneScore::Wanda, false);
    assert!(matches!(
        missing,
        Err(CompressError::Prune(PruneError::Calibration(_)))
    ));
}
