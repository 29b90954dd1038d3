//! Computing on a GPU, and doing without one: against the stand-in for NVIDIA's libraries, whatever this machine has.

use std::{fs, path::Path};

use sluice_proto::{
    client::CallError,
    v1::{self, ModelState, model_ref::By, plan_options::Budget::BudgetBytes},
};
use sluice_shared::exit;
use tempfile::TempDir;
use testkit::stand_in;
use tokio::process::Command;

use crate::support::{self, Daemon, RequestOptions, chat, done, generate, within};

/// `sluiced` where `libraries` is the first place to look for NVIDIA's.
pub(crate) fn command(folder: &Path, libraries: &Path, environment: &[(&str, &str)]) -> Command {
    let mut command = support::command(folder);
    command
        .env("LD_LIBRARY_PATH", libraries)
        .envs(environment.iter().copied());
    command
}

async fn start(libraries: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Daemon {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("s");
    let mut command = command(folder.path(), libraries, environment);
    command.arg("--socket").arg(&socket).args(arguments);
    let daemon = Daemon::spawn(folder, socket, command).await;
    daemon.model_state(ModelState::Ready).await;
    daemon
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_gpu_writes_what_the_cpu_writes() {
    let libraries = stand_in::build();
    let request = || {
        v1::GenerateRequest {
            length: Some(16),
            ..chat("Tell me a story.")
        }
        .sampled(|sampling| sampling.temperature = Some(0.7))
    };
    let cpu = start(libraries, &[], &["--device", "cpu"]).await;
    let expected = generate(&cpu, request()).await.unwrap();
    let expected = done(&expected);
    assert!(expected.text.as_ref().is_some_and(|text| !text.is_empty()));
    let device = cpu.snapshot().await.device.unwrap();
    assert_eq!(device.kind(), v1::DeviceKind::Cpu);
    // Nobody asked for one.
    assert_eq!((device.gpu, device.gpu_unavailable), (None, None));
    drop(cpu);

    let held = [("STAND_IN_HELD", "1073741824")];
    let cache = TempDir::new().unwrap();
    let cache_flag = format!("--weight-cache={}", cache.path().display());
    let arguments = ["--device", "cuda:0", "--compute-dtype", "f32", &cache_flag];
    let gpu = start(libraries, &held, &arguments).await;
    let events = generate(&gpu, request()).await.unwrap();
    let text = &done(&events).text;
    assert_eq!(
        (text, done(&events).is_exact),
        (&expected.text, expected.is_exact)
    );

    let device = gpu.snapshot().await.device.unwrap();
    assert_eq!(
        (device.kind(), device.gpu_unavailable),
        (v1::DeviceKind::Cuda, None)
    );
    assert_eq!(device.total_bytes, Some(4 << 30));
    let kinds: Vec<_> = device.memory.iter().map(v1::MemoryUse::kind).collect();
    assert_eq!(
        kinds[..2],
        [v1::MemoryKind::Context, v1::MemoryKind::Weights]
    );
    let facts = device.gpu.unwrap();
    assert_eq!(
        (facts.compute_dtype(), &*facts.compute_capability),
        (v1::Dtype::F32, "8.6")
    );
    assert_eq!(facts.other_processes_bytes, Some(1 << 30));
    assert_eq!(facts.utilization_percent, Some(37));
    assert!(gpu.log().contains("running on a GPU"), "{}", gpu.log());
    assert!(cache.path().join("kernels").is_dir(), "for compiled ones");
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn what_nobody_tells_of_a_gpu_is_not_set() {
    let libraries = stand_in::build();
    let silent = [("STAND_IN_NVML", "absent-figures")];
    let daemon = start(libraries, &silent, &["--device", "cuda"]).await;
    let device = daemon.snapshot().await.device.unwrap();
    assert!(
        device
            .memory
            .iter()
            .all(|kind| kind.kind() != v1::MemoryKind::Context)
    );
    let gpu = device.gpu.unwrap();
    assert_eq!(gpu.other_processes_bytes, None);
    assert_eq!(gpu.utilization_percent, None);
    assert_eq!((gpu.temperature_c, gpu.power_w), (None, None));
    assert_eq!((gpu.pcie_generation, gpu.clock_mhz), (None, None));
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_gpu_that_fails_for_good_ends_the_daemon_so_that_it_can_start_again() {
    let libraries = stand_in::build();
    let failing = [("STAND_IN_FAIL_KERNEL", "head_reduce")];
    let mut daemon = start(libraries, &failing, &["--device", "cuda"]).await;
    let request = chat("Tell me a story.");
    let error = generate(&daemon, request).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("GPU_FAILED"));
    let hint = error.hint.unwrap_or_default();
    assert!(hint.contains("sluiced exits"), "{hint}");
    let (status, _, log) = daemon.ended().await;
    assert_eq!(status.code(), Some(exit::FAILURE.into()), "{log}");
    assert!(
        log.contains("the GPU failed; exiting for a clean restart"),
        "{log}"
    );
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_gpu_computes_what_the_fixtures_expect() {
    let libraries = stand_in::build();
    let folder = TempDir::new().unwrap();
    let fixture = support::checkpoints::fixture("llama-tiny");
    let output = command(folder.path(), libraries, &[])
        .args(["check", "--device", "cuda:0", "--fixtures"])
        .arg(fixture)
        .output();
    let output = within("sluiced to end", output).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(
        said.ends_with("on cuda:0: 7 equal, 0 differ, 0 unknown, 0 failed\n"),
        "{said}"
    );
}

/// Memory of the GPU that the driver has given this daemon, once it has told `want` of it, with nobody else on the GPU.
async fn taken(daemon: &Daemon, what: &str, want: impl Fn(u64, &v1::DeviceStatus) -> bool) {
    // Figures of the GPU may be a second old.
    support::until(what, async || {
        let device = daemon.snapshot().await.device.unwrap();
        let taken = device.total_bytes.zip(device.free_bytes);
        taken.is_some_and(|(total, free)| want(total - free, &device))
    })
    .await;
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn unloading_gives_all_of_the_gpu_back_but_what_its_driver_takes() {
    let libraries = stand_in::build();
    let daemon = start(libraries, &[], &["--device", "cuda"]).await;
    generate(&daemon, chat("Tell me a story.")).await.unwrap();
    taken(&daemon, "a model on the GPU", |taken, device| {
        let mut kinds = device.memory.iter();
        let weights = kinds
            .find(|kind| kind.kind() == v1::MemoryKind::Weights)
            .unwrap();
        weights.bytes > 0 && taken >= device.used_bytes
    })
    .await;
    let request = v1::UnloadModelRequest::default();
    daemon.models().await.unload_model(request).await.unwrap();
    taken(&daemon, "the memory back", |taken, device| {
        let mut kinds = device.memory.iter();
        let context = kinds
            .find(|kind| kind.kind() == v1::MemoryKind::Context)
            .unwrap();
        let weights = kinds
            .find(|kind| kind.kind() == v1::MemoryKind::Weights)
            .unwrap();
        // Beside the context there is what cuBLAS works in, and nothing else.
        weights.bytes == 0 && taken == device.used_bytes && taken <= context.bytes + (8 << 20)
    })
    .await;
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn memory_that_another_program_takes_refuses_a_request_with_figures_and_no_more() {
    let libraries = stand_in::build();
    let folder = TempDir::new().unwrap();
    let held = folder.path().join("held");
    let held_file = held.to_str().unwrap();
    let environment = [
        ("STAND_IN_MEMORY", "0x40000000"),
        ("STAND_IN_HELD_FILE", held_file),
    ];
    let daemon = start(libraries, &environment, &["--device", "cuda"]).await;
    let request = || chat("Tell me a story.");
    generate(&daemon, request()).await.unwrap();

    fs::write(&held, (1u64 << 30).to_string()).unwrap();
    let error = generate(&daemon, request()).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("OUT_OF_MEMORY"));
    assert!(error.message.contains("0 are free"), "{}", error.message);

    fs::remove_file(&held).unwrap();
    let events = generate(&daemon, request()).await.unwrap();
    assert!(done(&events).text.is_some());
}

/// A machine without a usable GPU.
struct Refusal {
    environment: &'static [(&'static str, &'static str)],
    reason: &'static str,
    hint: &'static str,
}

const REFUSALS: [Refusal; 5] = [
    Refusal {
        environment: &[("STAND_IN_DRIVER_VERSION", "11080")],
        reason: "NVIDIA's driver is too old: it supports CUDA 11.8, and 12.0 is required",
        hint: "update NVIDIA's driver to version 525 or newer",
    },
    Refusal {
        environment: &[("STAND_IN_DEVICES", "0")],
        reason: "NVIDIA's driver finds no GPU",
        hint: "/dev/nvidia*",
    },
    Refusal {
        environment: &[("CUDA_VISIBLE_DEVICES", "")],
        reason: "CUDA_VISIBLE_DEVICES=\"\" hides every NVIDIA GPU",
        hint: "unset CUDA_VISIBLE_DEVICES",
    },
    Refusal {
        environment: &[("STAND_IN_CAPABILITY", "7.0")],
        reason: "is too old: its compute capability is 7.0, and 7.5 is required",
        hint: "Turing",
    },
    Refusal {
        environment: &[
            ("STAND_IN_MEMORY", "0x40000000"),
            ("STAND_IN_HELD", "0x3f000000"),
        ],
        reason: "has too little free memory",
        hint: "end other programs on the GPU, which `nvidia-smi` lists, or use the CPU",
    },
];

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_gpu_that_can_not_be_used_is_refused_where_it_was_asked_for() {
    let libraries = stand_in::build();
    for refusal in &REFUSALS {
        is_refused(libraries, refusal).await;
    }
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_gpu_that_can_not_be_used_is_done_without_and_said_where_none_was_asked_for() {
    let libraries = stand_in::build();
    for refusal in &REFUSALS {
        is_done_without(libraries, refusal).await;
    }
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_model_that_a_gpu_has_no_room_for_is_computed_by_the_cpu_unless_the_gpu_was_asked_for() {
    let libraries = stand_in::build();
    // What the GPU's driver takes counts there, and not on the CPU.
    let arguments = ["--budget", "64MiB"];
    let on_gpu = [&arguments[..], &["--device", "cuda:0"]].concat();
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("s");
    let mut command = command(folder.path(), libraries, &[]);
    command.arg("--socket").arg(&socket).args(&on_gpu);
    let daemon = Daemon::spawn(folder, socket, command).await;
    let model = daemon.model_state(ModelState::Failed).await;
    assert!(model.error.contains("is too small"), "{}", model.error);
    drop(daemon);

    let auto = [&arguments[..], &["--device", "auto"]].concat();
    let daemon = start(libraries, &[], &auto).await;
    let device = daemon.snapshot().await.device.unwrap();
    assert_eq!((device.kind(), &device.gpu), (v1::DeviceKind::Cpu, &None));
    let no_gpu = device.gpu_unavailable.expect("the reason");
    assert!(
        no_gpu
            .reason
            .contains("cannot run sluice-demo: the budget of 64.0 MiB")
    );
    assert!(no_gpu.hint.contains("raise --budget"), "{}", no_gpu.hint);
    let log = daemon.log();
    let warned = log.matches("no usable GPU, running on the CPU").count();
    assert_eq!(warned, 1, "{log}");
    generate(&daemon, chat("Tell me a story.")).await.unwrap();
    drop(daemon);

    // One that is loaded later finds the GPU taken.
    let daemon = start(libraries, &[], &["--device", "auto"]).await;
    assert_eq!(
        daemon.snapshot().await.device.unwrap().kind(),
        v1::DeviceKind::Cuda
    );
    let load = v1::LoadModelRequest {
        options: Some(v1::PlanOptions {
            budget: Some(BudgetBytes(64 << 20)),
            ..Default::default()
        }),
        model: By::Name("sluice-demo".to_owned()).into(),
        ..Default::default()
    };
    let mut models = daemon.models().await;
    let mut loaded = models.load_model(load).await.unwrap().into_inner();
    let error = loop {
        match within("the load", loaded.message()).await {
            Ok(answer) => assert!(answer.is_some(), "it is refused"),
            Err(status) => break CallError::from(status),
        }
    };
    assert_eq!(error.reason.as_deref(), Some("BUDGET_TOO_SMALL"));
    assert!(error.message.contains("cannot run the model:"), "{error}");
    assert!(error.hint.unwrap().contains("sluiced --device cpu"));
}

#[tokio::test]
async fn a_machine_without_the_driver_is_told_so_and_computes() {
    // Found before anything that this machine may have.
    let libraries = TempDir::new().unwrap();
    fs::write(libraries.path().join("libcuda.so.1"), "no library").unwrap();
    let refusal = Refusal {
        environment: &[],
        reason: "cannot use NVIDIA's driver: ",
        hint: "install NVIDIA's driver",
    };
    is_refused(libraries.path(), &refusal).await;
    is_done_without(libraries.path(), &refusal).await;
}

async fn is_refused(libraries: &Path, refusal: &Refusal) {
    let folder = TempDir::new().unwrap();
    let output = command(folder.path(), libraries, refusal.environment)
        .args(["--device", "cuda:0", "--socket", "s"])
        .output();
    let output = within("sluiced to end", output).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit::FAILURE.into()), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let [.., problem, hint] = lines[..] else {
        panic!("{said}");
    };
    assert!(problem.starts_with("sluiced: "), "{said}");
    assert!(problem.contains(refusal.reason), "{said}");
    assert!(hint.starts_with("hint: "), "{said}");
    assert!(hint.contains(refusal.hint), "{said}");
    assert!(
        !folder.path().join("s").exists(),
        "no socket is left behind"
    );
}

async fn is_done_without(libraries: &Path, refusal: &Refusal) {
    let daemon = start(libraries, refusal.environment, &["--device", "auto"]).await;
    let device = daemon.snapshot().await.device.unwrap();
    assert_eq!((device.kind(), &device.gpu), (v1::DeviceKind::Cpu, &None));
    let no_gpu = device.gpu_unavailable.expect("the reason");
    assert!(no_gpu.reason.contains(refusal.reason), "{}", no_gpu.reason);
    assert!(no_gpu.hint.contains(refusal.hint), "{}", no_gpu.hint);
    let log = daemon.log();
    assert!(log.contains("no usable GPU, running on the CPU"), "{log}");
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_plan_says_which_gpu_it_is_for() {
    let libraries = stand_in::build();
    let folder = TempDir::new().unwrap();
    let plan = async |environment: &[(&str, &str)], device: &[&str]| {
        let output = command(folder.path(), libraries, environment)
            .args(["plan", "--shape", "llada-8b", "--budget", "16GiB"])
            .args(device)
            .output();
        let output = within("the plan", output).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let gpu = plan(&[], &["--device", "cuda", "--compute-dtype", "f16"]).await;
    assert!(gpu.contains("\ncontext "), "{gpu}");
    assert!(gpu.contains("which computes in f16"), "{gpu}");
    let cpu = plan(&[("STAND_IN_DEVICES", "0")], &[]).await;
    assert!(!cpu.contains("\ncontext "), "{cpu}");
    let why = "for the CPU, since no GPU is usable: NVIDIA's driver finds no GPU";
    assert!(cpu.contains(why), "{cpu}");
    let asked = plan(&[], &["--device", "cpu"]).await;
    assert!(!asked.contains("for the CPU"), "{asked}");
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[tokio::test]
async fn nothing_of_nvidias_is_needed_to_start() {
    let folder = TempDir::new().unwrap();
    // Has the system's loader list what it would load, as `ldd` does.
    let output = support::command(folder.path())
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .output();
    let output = within("the list", output).await.unwrap();
    let libraries = String::from_utf8_lossy(&output.stdout);
    assert!(libraries.contains("libc.so"), "{libraries}");
    for name in ["libcu", "libnv"] {
        assert!(!libraries.contains(name), "{libraries}");
    }
}
