use std::{fs, path::PathBuf};

use tempfile::TempDir;

use super::*;

fn identity() -> ModelIdentity {
    ModelIdentity {
        name: "tiny".to_owned(),
        family: "llada".to_owned(),
        fingerprint: "0123456789abcdef".to_owned(),
        layers: 2,
        hidden_size: 6,
        attention_size: 4,
        intermediate_size: 9,
        pruned: [(MatrixInput::Down(1), 7)].into(),
    }
}

fn origin(is_full: bool) -> CalibrationOrigin {
    CalibrationOrigin {
        model: identity(),
        text_hash: 7,
        texts: vec![3, 0x89ab_cdef],
        seed: 3,
        passes: 8,
        positions: 600,
        is_full,
        is_lossless: true,
    }
}

/// Statistics that differ from input to input.
fn moments(input: MatrixInput, kind: PositionKind, is_full: bool) -> Moments {
    let width = identity().width(input);
    let mut moments = Moments::new(width, is_full);
    let seed = format!("{input}{kind}").len();
    let rows: Vec<f32> = (0..5 * width)
        .map(|at| ((at * 31 + seed * 7) % 17) as f32 - 8.0)
        .collect();
    moments.add(&rows).unwrap();
    moments
}

/// All inputs, but none at clean positions of the LM head.
fn inputs() -> Vec<InputRows> {
    let all = MatrixInput::all(2).flat_map(|input| {
        PositionKind::ALL.map(|kind| InputRows {
            input,
            kind,
            rows: 5,
        })
    });
    all.filter(|of| (of.input, of.kind) != (MatrixInput::LmHead, PositionKind::Clean))
        .collect()
}

struct Written {
    _folder: TempDir,
    path: PathBuf,
    partial: PathBuf,
}

fn written(origin: CalibrationOrigin) -> Written {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.calibration.safetensors");
    let partial = folder.path().join("tiny.calibration.safetensors.partial");
    let is_full = origin.is_full;
    let writer = CalibrationWriter::create(&path, origin, &inputs(), false).unwrap();
    for InputRows { input, kind, .. } in inputs() {
        let mut moments = moments(input, kind, is_full);
        writer.put(input, kind, &mut moments).unwrap();
    }
    assert!(partial.exists());
    let bytes = writer.finish(true).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
    assert!(!partial.exists());
    Written {
        _folder: folder,
        path,
        partial,
    }
}

#[test]
fn what_was_written_is_read_one_input_at_a_time() {
    for is_full in [true, false] {
        let written = written(origin(is_full));
        let calibration = Calibration::open_for(&written.path, &identity()).unwrap();
        assert_eq!(calibration.origin(), &origin(is_full));
        for InputRows { input, kind, .. } in inputs() {
            let mut expected = moments(input, kind, is_full);
            let mut found = calibration.input(input, kind).unwrap().unwrap();
            assert_eq!(found.rows(), 5);
            assert_eq!(found.means(), expected.means());
            assert_eq!(found.mean_squares(), expected.mean_squares());
            assert_eq!(found.second_moments(), expected.second_moments());
        }
        let none = calibration.input(MatrixInput::LmHead, PositionKind::Clean);
        assert!(none.unwrap().is_none());
    }
}

#[test]
fn another_models_file_is_refused_and_both_are_named() {
    let written = written(origin(false));
    let other = ModelIdentity {
        name: "large".to_owned(),
        fingerprint: "fedcba9876543210".to_owned(),
        ..identity()
    };
    let refused = Calibration::open_for(&written.path, &other).unwrap_err();
    let said = refused.to_string();
    for part in ["tiny", "0123456789abcdef", "large", "fedcba9876543210"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(refused.hint().is_some());
    // A name alone makes no other model.
    let renamed = ModelIdentity {
        name: "moved".to_owned(),
        ..identity()
    };
    Calibration::open_for(&written.path, &renamed).unwrap();
}

#[test]
fn a_file_of_too_little_text_says_how_much_is_needed() {
    let written = written(CalibrationOrigin {
        positions: 511,
        ..origin(false)
    });
    let said = Calibration::open(&written.path).unwrap_err().to_string();
    assert!(said.contains("511") && said.contains("512"), "{said}");
}

#[test]
fn a_file_is_never_overwritten_unasked_and_an_unfinished_one_leaves_nothing() {
    let written = written(origin(true));
    let before = fs::read(&written.path).unwrap();
    let again = |may_replace| {
        CalibrationWriter::create(&written.path, origin(false), &inputs(), may_replace)
    };
    let refused = again(false).unwrap_err();
    assert!(matches!(refused, CalibrationError::Exists { .. }));
    let writer = again(true).unwrap();
    let second = again(true).unwrap_err().to_string();
    assert!(second.contains("another process"), "{second}");
    remove_abandoned(&written.path);
    assert!(written.partial.exists());
    drop(writer);
    assert!(!written.partial.exists());
    assert_eq!(fs::read(&written.path).unwrap(), before);
    fs::write(&written.partial, "left by a kill").unwrap();
    remove_abandoned(&written.path);
    assert!(!written.partial.exists());
}

#[test]
fn changed_bytes_are_refused_or_read_but_never_panic() {
    let written = written(origin(true));
    let bytes = fs::read(&written.path).unwrap();
    let read = || -> Result<(), CalibrationError> {
        let calibration = Calibration::open_for(&written.path, &identity())?;
        for InputRows { input, kind, .. } in inputs() {
            calibration.input(input, kind)?;
        }
        Ok(())
    };
    let mut random = 1_u64;
    let mut refused = 0;
    for _ in 0..600 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut changed = bytes.clone();
        let at = (random >> 20) as usize % bytes.len();
        match random >> 60 {
            0 => changed.truncate(at),
            1 => changed.extend_from_slice(&bytes[at..]),
            2..=7 => changed[at] = (random >> 8) as u8,
            // Most of what matters is in the header.
            _ => changed[at % 2048] = (random >> 8) as u8,
        }
        fs::write(&written.path, changed).unwrap();
        refused += usize::from(read().is_err());
    }
    assert!(refused > 120, "{refused}");
    fs::write(&written.path, &bytes).unwrap();
    read().unwrap();
}

#[test]
fn impossible_statistics_are_refused() {
    assert!(check_sums(2, &[2.0], &[2.0]).is_ok());
    assert!(check_sums(0, &[0.0], &[0.0]).is_err());
    assert!(check_sums(2, &[3.0], &[2.0]).is_err());
    assert!(check_sums(2, &[0.0], &[-1.0]).is_err());
    assert!(check_sums(2, &[f64::NAN], &[1.0]).is_err());
    assert!(check_sums(2, &[1.0], &[f64::INFINITY]).is_err());
    let roots = [1.0, 2.0];
    assert!(check_products(1, &[-2.0, 4.0], &roots).is_ok());
    assert!(check_products(1, &[2.1, 4.0], &roots).is_err());
    assert!(check_products(1, &[0.0, 4.1], &roots).is_err());
    assert!(check_products(1, &[f32::NAN, 4.0], &roots).is_err());
}

#[test]
fn pruned_inputs_that_cannot_be_are_refused() {
    for (pruned, is_possible) in [
        (r#"{"layers.0.down_input":9}"#, true),
        (r#"{"layers.0.down_input":10}"#, false),
        (r#"{"layers.0.down_input":0}"#, false),
        (r#"{"layers.2.down_input":3}"#, false),
        (r#"{"layers.0.down_input":"3"}"#, false),
        ("[]", false),
    ] {
        let mut said: std::collections::HashMap<String, String> = origin(true)
            .to_metadata()
            .into_iter()
            .map(|(key, value)| (key, value.as_str().unwrap().to_owned()))
            .collect();
        said.insert("sluice.pruned".to_owned(), pruned.to_owned());
        assert_eq!(
            CalibrationOrigin::read(&said).is_ok(),
            is_possible,
            "{pruned}"
        );
    }
}
