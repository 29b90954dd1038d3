//! What the process holds of memory: no more than its account says and a little, however often models and levels change.

use std::path::Path;

use sluice_proto::v1::{self, model_ref::By};
use tempfile::TempDir;

use crate::support::{self, Daemon, apply, chat, generate, run, tokens, within};

const MIB: u64 = 1 << 20;
/// What may be resident beyond what is held: program, tokenizers, calls.
const BEYOND_MAX: u64 = 44 * MIB;
/// What may be resident without a model, on two threads, beside pages of the program, which is not optimised here and larger with
/// more features.
const UNLOADED_MAX: u64 = 16 * MIB;

/// 113 million parameters, 215 MiB in bf16.
const SYNTH: [&str; 7] = [
    "synth",
    "--layers=6",
    "--hidden-size=1024",
    "--attention-heads=16",
    "--intermediate-size=3072",
    "--vocab-size=15360",
    "model",
];

async fn synth(folder: &TempDir) -> String {
    let output = run(folder.path(), &SYNTH).await;
    assert!(output.status.success());
    let model = folder.path().join("model");
    model.to_str().unwrap().to_owned()
}

/// Held and resident bytes; what is resident keeps to its bound.
async fn look(daemon: &Daemon, when: &str) -> (u64, u64) {
    let snapshot = daemon.snapshot().await;
    let host = snapshot.host.unwrap();
    let held = snapshot.device.unwrap().used_bytes;
    let resident = host.resident_bytes.unwrap();
    assert!(
        resident <= held + BEYOND_MAX,
        "{when}: {} MiB resident, {} held",
        resident / MIB,
        held / MIB
    );
    let beyond = resident.saturating_sub(held);
    assert_eq!(host.resident_other_bytes, Some(beyond));
    (held, resident)
}

async fn unload(daemon: &Daemon) {
    let mut models = daemon.models().await;
    let went = models.unload_model(v1::UnloadModelRequest::default()).await;
    let went = went.unwrap().into_inner();
    let (_, resident) = look(daemon, "unloaded").await;
    let program = daemon.snapshot().await.host.unwrap().resident_program_bytes;
    let most = program.unwrap() + UNLOADED_MAX;
    assert!(resident <= most, "{} MiB resident", resident / MIB);
    assert!(went.resident_bytes_after.unwrap() <= most);
}

async fn load(daemon: &Daemon, model: &By) {
    let request = v1::LoadModelRequest {
        model: model.clone().into(),
        ..Default::default()
    };
    let mut models = daemon.models().await;
    let mut stream = models.load_model(request).await.unwrap().into_inner();
    while within("the load", stream.message())
        .await
        .unwrap()
        .is_some()
    {}
}

#[tokio::test]
async fn levels_that_change_leave_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let model = synth(&folder).await;
    let arguments = ["--device", "cpu", "--threads", "2", "--budget", "140MiB"];
    let daemon = Daemon::with_model(Path::new(&model), &arguments).await;
    look(&daemon, "loaded").await;
    for change in 0..20 {
        let level = if change % 2 == 0 {
            v1::Level::Moderate
        } else {
            v1::Level::Standard
        };
        apply(&daemon, support::level(level)).await.unwrap();
        look(&daemon, &level.to_string()).await;
    }
    generate(&daemon, tokens(&[1, 2, 3], 8)).await.unwrap();
    look(&daemon, "asked").await;
    unload(&daemon).await;
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn models_that_take_turns_leave_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let model = synth(&folder).await;
    let demo = By::Name("sluice-demo".to_owned());
    let synthetic = By::Path(model.clone());
    // In each other's place, and beside each other.
    for loaded_models in ["1", "2"] {
        let arguments = ["--device", "cpu", "--threads", "2"];
        let arguments = [&arguments[..], &["--loaded-models", loaded_models]].concat();
        let daemon = Daemon::with_model(Path::new(&model), &arguments).await;
        for turn in 0..10 {
            let (model, name) = match turn % 2 {
                0 => (&demo, "the demonstration model"),
                _ => (&synthetic, "the synthetic model"),
            };
            load(&daemon, model).await;
            generate(&daemon, tokens(&[1, 2, 3], 8)).await.unwrap();
            look(&daemon, name).await;
        }
        if loaded_models == "2" {
            let request = v1::UnloadModelRequest::default();
            daemon.models().await.unload_model(request).await.unwrap();
        }
        unload(&daemon).await;
    }
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn long_prompts_leave_nothing_behind() {
    let daemon = Daemon::embedded().await;
    // No text of the context's length is longer, and one byte more is refused before it is tokenized.
    let refused = generate(&daemon, chat(&"a".repeat(1 << 20)))
        .await
        .unwrap_err();
    let bound: usize = refused.message.rsplit(' ').next().unwrap().parse().unwrap();
    let longest = "a".repeat(bound);
    let ask = async || {
        let error = generate(&daemon, chat(&longest)).await.unwrap_err();
        assert_eq!(error.reason.as_deref(), Some("CONTEXT_EXCEEDED"), "{error}");
    };
    // The allocator's arenas and the runtime's threads take their part within the first few.
    for _ in 0..50 {
        ask().await;
    }
    let (_, before) = look(&daemon, "asked fifty times").await;
    for _ in 0..1000 {
        ask().await;
    }
    let (_, after) = look(&daemon, "asked a thousand times").await;
    // A hundredth; a thread that is first used now has a stack, too.
    let more = (before / 100).max(MIB);
    assert!(after <= before + more, "{before} to {after} bytes");
}
