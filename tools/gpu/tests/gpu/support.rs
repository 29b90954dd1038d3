//! Running the program, and a model for it.

use std::{path::Path, process::Stdio, sync::atomic::AtomicBool};

use sluice_checkpoint::synth::{SynthDType, SynthOptions, SynthRouter};
use sluice_weights::{LayerKind, Shape, TensorNaming};
use testkit::PATIENCE;
use tokio::process::Command;

/// `sluice-gpu` where `libraries` is the first place to look for NVIDIA's.
pub(crate) fn command(libraries: &Path, environment: &[(&str, &str)]) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-gpu"));
    command
        .env_clear()
        .env("PATH", path)
        .env("LD_LIBRARY_PATH", libraries)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Waits, but not for ever.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// A model of random weights, of which a GPU holds a part.
pub(crate) fn write_model(folder: &Path) {
    let synthesis = SynthOptions {
        shape: Shape {
            naming: TensorNaming::Llada,
            layers: 6,
            hidden_size: 512,
            attention_heads: 8,
            kv_heads: 8,
            head_dim: 64,
            intermediate_size: 1024,
            padded_vocab_size: 256,
            context_length: 16,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
        dtype: SynthDType::Bf16,
        seed: 0,
        family: None,
        router: SynthRouter::default(),
        threads: 2,
    };
    let never = AtomicBool::new(false);
    synthesis.write(folder, &never, &mut |_, _| {}).unwrap();
}
