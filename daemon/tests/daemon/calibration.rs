//! Calibrations by a real client.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Signal;
use sluice_checkpoint::calibration::{Calibration, PositionKind};
use sluice_proto::{
    client::CallError,
    v1::{self, operation::Outcome},
};
use sluice_weights::MatrixInput;
use tempfile::TempDir;
use tonic::{Code, Streaming};

use crate::support::{Daemon, checkpoints, done, generate, pictures, tokens, within};

/// A daemon with the embedded model, and a folder to work in.
struct Setting {
    daemon: Daemon,
    folder: TempDir,
}

impl Setting {
    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn with(arguments: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let cache = format!("--weight-cache={}", folder.path().join("cache").display());
        let daemon = Daemon::start(&[&[&*cache], arguments].concat()).await;
        daemon.model_state(v1::ModelState::Ready).await;
        Self { daemon, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A short calibration on the built-in text.
    fn request(&self, name: &str) -> v1::CalibrateRequest {
        v1::CalibrateRequest {
            output_path: self.path(name).to_str().unwrap().to_owned(),
            max_positions: Some(1500),
            ..Default::default()
        }
    }

    async fn calibrate(
        &self,
        request: v1::CalibrateRequest,
    ) -> Result<Vec<v1::Operation>, CallError> {
        pictures(self.daemon.optimizer().await.calibrate(request).await).await
    }

    /// Begins one that takes long, and reads it until the file is begun.
    async fn begun(&self, name: &str) -> (u64, Streaming<v1::CalibrateResponse>) {
        let request = v1::CalibrateRequest {
            max_positions: Some(1 << 20),
            texts: vec!["Mia had a red kite. ".repeat(100)],
            ..self.request(name)
        };
        let answer = self.daemon.optimizer().await.calibrate(request).await;
        let mut stream = answer.unwrap().into_inner();
        loop {
            let picture = within("progress", stream.message()).await.unwrap().unwrap();
            let job = picture.operation.unwrap();
            assert!(job.is_active(), "it ended too soon: {job:?}");
            let is_computing = |step: v1::OperationProgress| {
                step.unit() == v1::ProgressUnit::Passes && step.done > 0
            };
            if job.progress.is_some_and(is_computing) {
                return (job.operation_id, stream);
            }
        }
    }
}

fn result(pictures: &[v1::Operation]) -> v1::CalibrateResult {
    match pictures.last().unwrap().outcome {
        Some(Outcome::Calibrate(result)) => result,
        _ => panic!("{pictures:?}"),
    }
}

fn files(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).into_iter().flatten();
    let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("calibration")).collect()
}

#[tokio::test]
async fn a_calibration_is_a_file_of_the_loaded_model() {
    let setting = Setting::new().await;
    // Nobody names a file.
    let request = v1::CalibrateRequest {
        output_path: String::new(),
        seed: Some(3),
        ..setting.request("")
    };
    let pictures = setting.calibrate(request.clone()).await.unwrap();
    let job = &pictures[0];
    assert_eq!(job.kind(), v1::OperationKind::Calibrate);
    assert!(job.is_cancellable && job.threads.is_some_and(|threads| threads > 0));
    let made = result(&pictures);
    assert!(made.is_lossless && !made.diagonal && made.sweeps == 1 && made.seed == 3);
    assert!(
        made.positions > 1000 && made.masked_positions > 300,
        "{made:?}"
    );
    let last = pictures.last().unwrap();
    assert!(last.notices[0].contains("positions are few"), "{last:?}");

    let path = PathBuf::from(&job.output_path);
    assert!(path.starts_with(setting.path("cache")));
    assert_eq!(fs::metadata(&path).unwrap().len(), made.file_bytes);
    let calibration = Calibration::open(&path).unwrap();
    let origin = calibration.origin();
    assert_eq!(origin.model.name, "sluice-demo");
    assert_eq!(
        (origin.passes, origin.positions),
        (made.passes, made.positions)
    );
    let input = calibration.input(MatrixInput::LmHead, PositionKind::Masked);
    assert!(input.unwrap().unwrap().is_full());

    // It isn't written twice, unless that is asked for; the same request gives the same bytes.
    let before = fs::read(&path).unwrap();
    let error = setting.calibrate(request.clone()).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::AlreadyExists, Some("OUTPUT_EXISTS"))
    );
    let again = v1::CalibrateRequest {
        replace: true,
        ..request
    };
    setting.calibrate(again).await.unwrap();
    assert!(fs::read(&path).unwrap() == before);
}

#[tokio::test]
async fn the_diagonal_of_ones_own_text_takes_a_small_file() {
    let setting = Setting::new().await;
    let request = v1::CalibrateRequest {
        texts: vec!["Mia had a red kite and a blue one.\n".repeat(60)],
        diagonal: true,
        ..setting.request("a.safetensors")
    };
    let made = result(&setting.calibrate(request).await.unwrap());
    assert!(made.diagonal && made.file_bytes < 1 << 20, "{made:?}");
    assert_eq!(files(setting.folder.path()), [""; 0]);
}

#[tokio::test]
async fn a_cancelled_one_leaves_nothing_and_requests_are_answered_meanwhile() {
    let setting = Setting::new().await;
    let (id, mut stream) = setting.begun("a.calibration.safetensors").await;
    assert_eq!(files(setting.folder.path()).len(), 1);
    // Another job waits for nobody, a request is served.
    let error = setting.calibrate(setting.request("b.safetensors")).await;
    let error = error.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("OPERATION_IN_PROGRESS"));
    done(
        &generate(&setting.daemon, tokens(&[1, 2, 3], 8))
            .await
            .unwrap(),
    );
    assert!(setting.daemon.cancel(id).await.unwrap());
    let ended = loop {
        match within("the end", stream.message()).await {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert_eq!(ended.unwrap_err().code(), Code::Cancelled);
    assert_eq!(files(setting.folder.path()), [""; 0]);
    done(
        &generate(&setting.daemon, tokens(&[1, 2, 3], 8))
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn an_idle_daemon_keeps_the_model_that_is_calibrated() {
    let setting = Setting::with(&["--idle-unload=1s"]).await;
    let (id, _stream) = setting.begun("a.calibration.safetensors").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let model = setting.daemon.snapshot().await.model.unwrap();
    assert_eq!(model.state(), v1::ModelState::Ready);
    assert!(
        setting.daemon.cancel(id).await.unwrap(),
        "it ended too soon"
    );
}

#[tokio::test]
async fn a_shutdown_stops_it_and_leaves_nothing() {
    let mut setting = Setting::new().await;
    let (_, stream) = setting.begun("a.calibration.safetensors").await;
    // Whoever asked is gone; the job goes on.
    drop(stream);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(files(setting.folder.path()).len(), 1);
    setting.daemon.signal(Signal::TERM);
    let (status, _, log) = setting.daemon.ended().await;
    assert!(status.success(), "{log}");
    assert_eq!(files(setting.folder.path()), [""; 0]);
}

#[tokio::test]
async fn what_can_not_be_calibrated_is_explained() {
    let setting = Setting::new().await;
    let request = || setting.request("a.safetensors");
    let text = |text: &str| vec![text.to_owned()];
    for (request, reason, code) in [
        (
            v1::CalibrateRequest {
                texts: text("too short"),
                ..request()
            },
            "TOO_LITTLE_TEXT",
            Code::InvalidArgument,
        ),
        (
            v1::CalibrateRequest {
                memory_bytes: Some(1 << 20),
                ..request()
            },
            "CALIBRATION_MEMORY",
            Code::FailedPrecondition,
        ),
        (
            v1::CalibrateRequest {
                output_path: setting.path("a.gguf").to_str().unwrap().to_owned(),
                ..request()
            },
            "INVALID_FIELD",
            Code::InvalidArgument,
        ),
        (
            v1::CalibrateRequest {
                texts: text(" \n"),
                ..request()
            },
            "INVALID_FIELD",
            Code::InvalidArgument,
        ),
        (
            v1::CalibrateRequest {
                max_positions: Some(u32::MAX),
                ..request()
            },
            "INVALID_FIELD",
            Code::InvalidArgument,
        ),
        (
            v1::CalibrateRequest {
                output_path: "/proc/none/a.safetensors".to_owned(),
                ..request()
            },
            "FILE_NOT_FOUND",
            Code::NotFound,
        ),
    ] {
        let error = setting.calibrate(request).await.unwrap_err();
        assert_eq!((error.reason.as_deref(), error.code), (Some(reason), code));
        assert!(!setting.path("a.safetensors").exists());
    }
    let plain = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let answer = plain.optimizer().await.calibrate(request()).await;
    let error = pictures(answer).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("NO_TOKENIZER"));
}
