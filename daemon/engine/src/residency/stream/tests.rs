//! A reader that fails: who is told, and who is not.

use std::{fs, path::PathBuf, sync::atomic::AtomicBool, time::SystemTime};

use sluice_checkpoint::{
    Checkpoint, Source,
    synth::{SynthDType, SynthOptions, SynthRouter},
};
use sluice_ops::device::Device;
use sluice_weights::{LayerKind, Shape, TensorNaming, Tier, layout, weight_groups};
use tempfile::TempDir;

use super::*;

/// A file that can be cut short and made whole again, as if nothing had been.
struct Weights {
    path: PathBuf,
    bytes: Vec<u8>,
    modified: SystemTime,
}

impl Weights {
    fn cut(&self) {
        fs::write(&self.path, b"short").unwrap();
    }

    fn restore(&self) {
        fs::write(&self.path, &self.bytes).unwrap();
        let file = fs::File::options().write(true).open(&self.path).unwrap();
        file.set_modified(self.modified).unwrap();
    }
}

/// A stream through three staging buffers, and its file.
fn setup() -> (TempDir, Weights, WeightStream) {
    setup_limited(None)
}

/// One that reads so many bytes a second at most.
fn setup_limited(bytes_per_s: Option<u64>) -> (TempDir, Weights, WeightStream) {
    let folder = TempDir::new().unwrap();
    let shape = Shape {
        naming: TensorNaming::Llada,
        layers: 2,
        hidden_size: 64,
        attention_heads: 2,
        kv_heads: 2,
        head_dim: 32,
        intermediate_size: 128,
        padded_vocab_size: 256,
        context_length: 64,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    };
    let synthesis = SynthOptions {
        shape: shape.clone(),
        dtype: SynthDType::Bf16,
        seed: 1,
        family: None,
        router: SynthRouter::default(),
        threads: 1,
    };
    let model = folder.path().join("model");
    let never = AtomicBool::new(false);
    synthesis.write(&model, &never, &mut |_, _| {}).unwrap();
    let path = model.join("model.safetensors");
    let weights = Weights {
        bytes: fs::read(&path).unwrap(),
        modified: fs::metadata(&path).unwrap().modified().unwrap(),
        path,
    };
    let checkpoint = Arc::new(Checkpoint::open(&Source::Folder(model)).unwrap());
    let sources = checkpoint.sources(shape.tensors()).unwrap();
    let mut cycle = weight_groups(&sources);
    cycle.retain(|group| group.group.layer().is_some());
    for group in &mut cycle {
        group.tier = Tier::Host;
    }
    assert_eq!(cycle.len(), 6);
    let largest = cycle
        .iter()
        .map(|group| layout::staging(group.sizes()).bytes);
    let slots = StagingBuffers {
        count: 3,
        bytes_each: largest.max().unwrap(),
        ..StagingBuffers::default()
    };
    let slots = WeightStream::staging(slots, &Device::cpu(1).unwrap(), &Ledger::default()).unwrap();
    let reader = Arc::new(WeightReader::new(checkpoint, &sources).with_limit(bytes_per_s));
    let stream = WeightStream::start(reader, cycle, slots, None).unwrap();
    (folder, weights, stream)
}

/// Waits until the reader has nothing to do.
fn wait_for(stream: &WeightStream, is_met: impl Fn(&StreamState) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_met(&stream.shared.monitor.state()) {
        assert!(Instant::now() < end, "{:?}", stream.shared.monitor.state());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Goes through places 0 to 2; the file is cut before the reader comes to 3, and whole again after it failed there.
fn fail_ahead(weights: &Weights, stream: &WeightStream) {
    let held = [0, 1, 2].map(|place| stream.take(place).unwrap());
    weights.cut();
    drop(held);
    wait_for(stream, |state| matches!(state.failed, Some((3, _))));
    weights.restore();
}

#[test]
fn a_failure_that_nobody_waited_for_fails_nobody() {
    let (_folder, weights, stream) = setup();
    // The weight group that failed, the one after it, and one that the next pass begins with.
    for wanted in [3, 4, 0] {
        fail_ahead(&weights, &stream);
        drop(stream.take(wanted).unwrap());
        for place in [3, 4, 5] {
            drop(stream.take(place).unwrap());
        }
    }
}

#[test]
fn whoever_waits_for_what_cannot_be_read_is_told() {
    let (_folder, weights, stream) = setup();
    fail_ahead(&weights, &stream);
    weights.cut();
    for wanted in [3, 3, 0] {
        let error = stream.take(wanted).unwrap_err();
        assert!(matches!(error, EngineError::Checkpoint(_)), "{error}");
    }
    weights.restore();
    for place in 0..6 {
        drop(stream.take(place).unwrap());
    }
}

#[test]
fn units_come_no_faster_than_the_limit() {
    const BYTES_PER_S: u64 = 4_000_000;
    let begun = Instant::now();
    let (_folder, _weights, stream) = setup_limited(Some(BYTES_PER_S));
    for place in (0..6).chain(0..6) {
        drop(stream.take(place).unwrap());
    }
    let least = Duration::from_secs_f64(stream.stats().bytes as f64 / BYTES_PER_S as f64);
    assert!(
        begun.elapsed() >= least,
        "{:?} of {least:?}",
        begun.elapsed()
    );
}

#[test]
fn a_limit_holds_nobody_up_who_wants_it_to_end() {
    let (_folder, _weights, stream) = setup_limited(Some(1));
    wait_for(&stream, |state| state.filling == Some(0));
    assert_eq!(stream.end().staging.len(), 3);
}
