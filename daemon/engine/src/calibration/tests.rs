//! Calibrations of tiny models beside a plain computation of the same passes.

mod plain;

use std::{fs, path::Path, sync::atomic::Ordering, thread, time::Duration};

use sluice_checkpoint::{Source, calibration::Calibration};
use sluice_shared::level::{KvCacheFormat, Level};
use tempfile::TempDir;

use self::plain::PlainModel;
use super::*;
use crate::{
    command::PlanSettings,
    request::{Generate, ModelId},
    runtime::EngineOptions,
};

/// How far sums may differ from those in `f64`, relative to the root of the squares that they are made of: passes
/// compute in `f32`.
const TOLERANCE: f64 = 2e-4;

struct World {
    engine: Engine,
    folder: TempDir,
}

fn fixture(name: &str) -> Source {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    Source::Folder(fixtures.join(name))
}

impl World {
    fn new(model: &str) -> Self {
        let engine = Engine::start(EngineOptions {
            threads: 2,
            ..EngineOptions::default()
        });
        let engine = engine.unwrap();
        let settings = PlanSettings {
            level: Level::Off,
            // An autoregressive model rounds its KV cache otherwise.
            kv_cache_format: KvCacheFormat::F32,
            ..PlanSettings::default()
        };
        engine.load_now(fixture(model), settings).unwrap();
        Self {
            engine,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn options(&self) -> CalibrationOptions {
        let sample = |first: u32| (0..40 + first).map(move |at| (first * 31 + at * 7) % 240 + 3);
        CalibrationOptions {
            share: ShareKey::default(),
            model_name: "tiny".to_owned(),
            samples: (0..14).map(|first| sample(first).collect()).collect(),
            text_hash: 1,
            seed: 5,
            positions_max: 1500,
            is_full: true,
            memory_bytes: 1 << 30,
            threads: 1,
            target: self.folder.path().join("tiny.calibration.safetensors"),
            may_replace: false,
        }
    }

    fn calibrate(
        &self,
        options: &CalibrationOptions,
    ) -> Result<CalibrationSummary, CalibrateError> {
        calibrate(&self.engine, options, &AtomicBool::new(false), &mut |_| {})
    }

    fn open(&self, options: &CalibrationOptions) -> Calibration {
        let model = self.engine.model_identity("tiny").unwrap();
        Calibration::open_for(&options.target, &model).unwrap()
    }

    /// The passes of a calibration with these options.
    fn passes(&self, options: &CalibrationOptions) -> Vec<InputPass> {
        let turns = Turns {
            engine: &self.engine,
            share: options.share,
            stop: &AtomicBool::new(false),
        };
        let model = self.engine.model().unwrap();
        passes(&turns, options, &model, &mut |_| {}).unwrap().passes
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(self.folder.path()).unwrap().next().is_none()
    }
}

#[test]
fn moments_are_those_of_a_plain_computation_of_the_same_passes() {
    for name in ["llada-tiny", "dream-tiny", "llama-tiny"] {
        let world = World::new(name);
        let options = world.options();
        let summary = world.calibrate(&options).unwrap();
        let passes = world.passes(&options);
        assert_eq!(summary.origin.passes, passes.len() as u64);
        assert!(summary.origin.is_lossless && summary.origin.positions <= 1500 + 512);
        let mask = world.engine.model().unwrap().info.mask;
        let mut plain = PlainModel::open(&fixture(name), mask);
        passes.iter().for_each(|pass| plain.pass(pass));
        let found = world.open(&options);
        let expected = plain.sums();
        for ((input, kind), expected) in expected {
            let mut moments = found.input(*input, *kind).unwrap().unwrap();
            assert_eq!(moments.rows(), expected.rows, "{name}: {input} {kind}");
            let width = moments.width();
            let root = |at: usize| expected.products[at * width + at].sqrt();
            let mut row = vec![0.0; width];
            for i in 0..width {
                let near = |found: f64, expected: f64, scale: f64| {
                    let differs = (found - expected).abs();
                    assert!(
                        differs <= TOLERANCE * scale,
                        "{name}: {input} {kind}, column {i}: {found}, not {expected}"
                    );
                };
                let rows = (moments.rows() as f64).sqrt();
                near(moments.sums()[i], expected.sums[i], root(i) * rows);
                near(
                    moments.squares()[i],
                    expected.products[i * width + i],
                    root(i) * root(i),
                );
                moments.copy_products_row(i, &mut row[..=i]);
                for (j, found) in row[..=i].iter().enumerate() {
                    let scale = root(i) * root(j);
                    near(f64::from(*found), expected.products[i * width + j], scale);
                }
            }
        }
        // Nothing besides, and masked and clean positions apart.
        let has_masks = expected
            .keys()
            .any(|(_, kind)| *kind == PositionKind::Masked);
        assert_eq!(has_masks, mask.is_some(), "{name}");
        let all = MatrixInput::all(4).flat_map(|input| PositionKind::ALL.map(|kind| (input, kind)));
        for (input, kind) in all {
            let is_there = found.input(input, kind).unwrap().is_some();
            assert_eq!(
                is_there,
                expected.contains_key(&(input, kind)),
                "{input} {kind}"
            );
        }
    }
}

#[test]
fn passes_are_mostly_what_the_model_decodes_itself_and_follow_from_the_seed() {
    let world = World::new("llada-tiny");
    let options = world.options();
    let one = world.passes(&options);
    assert_eq!(one, world.passes(&options));
    let other = CalibrationOptions {
        seed: 6,
        ..options.clone()
    };
    assert_ne!(one, world.passes(&other));
    let mask = world.engine.model().unwrap().info.mask.unwrap();
    let own = (0..one.len()).find(|count| positions(&one[..*count]) >= 1000);
    let (own, text) = one.split_at(own.unwrap());
    assert!(positions(own) < 1000 + 128);
    let left = options.positions_max - positions(own);
    assert_eq!(text, masked_texts(&options.samples, mask, 5, left).passes);
    for pass in own {
        // All masks are behind a clean beginning, and it reads those of one block.
        let is_mask = |at: &usize| Some(pass.tokens[*at]) == mask.token_id;
        let masked: Vec<usize> = (0..pass.tokens.len()).filter(is_mask).collect();
        assert!(masked[0] >= 10, "{masked:?}");
        assert_eq!(pass.rows, masked[..pass.rows.len()]);
        assert!((1..=32).contains(&pass.rows.len()));
    }
    // Some blocks are filled in part, by what the model chose.
    assert!(own.iter().any(|pass| pass.rows.len() % 32 != 0));
}

#[test]
fn texts_that_no_pass_was_made_of_are_not_among_those_that_were() {
    for (name, positions_max) in [("llada-tiny", 700), ("llama-tiny", 520)] {
        let world = World::new(name);
        let options = CalibrationOptions {
            positions_max,
            ..world.options()
        };
        let summary = world.calibrate(&options).unwrap();
        let found = world.open(&options);
        let texts = &found.origin().texts;
        assert_eq!(texts, &summary.origin.texts, "{name}");
        // Eleven texts of 40 tokens and more have 495.
        let count = match name {
            "llama-tiny" => 12,
            _ => texts.len(),
        };
        assert!((1..14).contains(&count), "{name}: {count}");
        assert_eq!(texts, &text_marks(&options.samples[..count]), "{name}");
    }
}

#[test]
fn several_sweeps_give_what_one_gives() {
    let world = World::new("llada-tiny");
    let options = world.options();
    let once = world.calibrate(&options).unwrap();
    assert_eq!(once.sweeps, 1);
    let expected = fs::read(&options.target).unwrap();
    let model = world.engine.model_identity("tiny").unwrap();
    let refused = Memory::of(&model, true, 1).check(&model).unwrap_err();
    let CalibrateError::Memory { needed_bytes, .. } = refused else {
        panic!("{refused}");
    };
    let several = CalibrationOptions {
        // As little as works: the widest input alone.
        memory_bytes: needed_bytes,
        target: world.folder.path().join("several.safetensors"),
        ..options.clone()
    };
    let several_times = world.calibrate(&several).unwrap();
    assert!(several_times.sweeps > 1);
    assert_eq!(fs::read(&several.target).unwrap(), expected);
    let too_little = CalibrationOptions {
        memory_bytes: 1000,
        target: world.folder.path().join("none.safetensors"),
        ..options
    };
    let error = world.calibrate(&too_little).unwrap_err().to_string();
    assert!(error.contains("the limit is 1000"), "{error}");
    assert!(!too_little.target.exists());
}

#[test]
fn the_diagonal_alone_is_that_of_the_matrices() {
    let world = World::new("llada-tiny");
    let full = world.options();
    world.calibrate(&full).unwrap();
    let diagonal = CalibrationOptions {
        is_full: false,
        target: world.folder.path().join("diagonal.safetensors"),
        ..full.clone()
    };
    let summary = world.calibrate(&diagonal).unwrap();
    assert!(summary.file_bytes < fs::metadata(&full.target).unwrap().len() / 8);
    let input = MatrixInput::Down(1);
    let of = |options| {
        let found = world.open(options).input(input, PositionKind::Masked);
        found.unwrap().unwrap()
    };
    assert_eq!(of(&full).squares(), of(&diagonal).squares());
    assert!(of(&full).is_full() && !of(&diagonal).is_full());
}

#[test]
fn a_cancelled_calibration_leaves_nothing_and_others_are_served_meanwhile() {
    let world = World::new("llada-tiny");
    let options = CalibrationOptions {
        positions_max: POSITIONS_MAX,
        ..world.options()
    };
    let stop = AtomicBool::new(false);
    let model = world.engine.model().unwrap();
    thread::scope(|scope| {
        let calibration = scope.spawn(|| calibrate(&world.engine, &options, &stop, &mut |_| {}));
        // It begins the file after the decodes.
        while world.is_empty() {
            assert!(!calibration.is_finished());
            thread::sleep(Duration::from_millis(5));
        }
        let request = Generate::greedy(model.id, vec![5, 6, 7], 8);
        let answer = world.engine.run(Work::Generate(request)).unwrap();
        assert!(matches!(answer, Outcome::Generated(_)));
        assert!(!calibration.is_finished());
        stop.store(true, Ordering::Relaxed);
        let error = calibration.join().unwrap().unwrap_err();
        assert!(matches!(error, CalibrateError::Cancelled), "{error}");
    });
    assert!(world.is_empty());
    // And the engine goes on.
    let request = Generate::greedy(model.id, vec![5, 6, 7], 8);
    world.engine.run(Work::Generate(request)).unwrap();
}

#[test]
fn what_can_not_be_calibrated_is_refused_before_a_pass() {
    let world = World::new("llada-tiny");
    let short = CalibrationOptions {
        samples: vec![vec![5; 100]],
        ..world.options()
    };
    let error = world.calibrate(&short).unwrap_err().to_string();
    assert!(
        error.contains("100 positions") && error.contains("512"),
        "{error}"
    );
    let options = world.options();
    world.calibrate(&options).unwrap();
    let before = fs::read(&options.target).unwrap();
    let again = world.calibrate(&options).unwrap_err();
    assert!(matches!(
        again,
        CalibrateError::File(CalibrationError::Exists { .. })
    ));
    assert_eq!(fs::read(&options.target).unwrap(), before);
    let other = World::new("dream-tiny");
    let model = other.engine.model_identity("other").unwrap();
    let error = Calibration::open_for(&options.target, &model).unwrap_err();
    assert!(error.to_string().contains("not of other"), "{error}");
}

#[test]
fn requests_for_inputs_keep_their_rules() {
    let world = World::new("llada-tiny");
    let id = world.engine.model().unwrap().id;
    let refused = |model: ModelId, tokens: Vec<u32>, rows: Vec<usize>| {
        let work = Work::CollectInputs(CollectInputs {
            model,
            passes: vec![InputPass { tokens, rows }],
            inputs: vec![MatrixInput::LmHead],
            sink: InputSink(Arc::new(|_| true)),
        });
        world.engine.run(work).is_err()
    };
    assert!(!refused(id, vec![5, 250, 6], vec![1]));
    assert!(refused(ModelId(77), vec![5, 250, 6], vec![1]));
    assert!(refused(id, vec![5, 9999, 6], vec![1]));
    assert!(refused(id, vec![5, 250, 6], vec![]));
    assert!(refused(id, vec![5, 250, 6], vec![3]));
    assert!(refused(id, vec![5, 250, 6], vec![1, 1]));
    assert!(refused(id, vec![5; 300], vec![1]));
}
