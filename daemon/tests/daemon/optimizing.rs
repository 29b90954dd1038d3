//! Optimizations by a real client, and what is left of one when the daemon is killed.

use std::{fs, mem, path::PathBuf};

use rustix::process::Signal;
use sluice_proto::{
    client::CallError,
    v1::{self, OperationStage, operation::Outcome},
};
use tempfile::TempDir;
use tonic::Streaming;

use crate::support::{Daemon, command, done, generate, pictures, rest_of, tokens, within};

/// Less than the demonstration model's plan takes with its own weights, and more than a measurement needs.
const BUDGET_BYTES: u64 = 13 << 20;
/// What the demonstration model is calibrated on when nobody names a text.
const STORIES: &str = include_str!("../../model/calibration.txt");

/// A daemon with the demonstration model, which can be killed and started again in its folder.
struct Setting {
    daemon: Daemon,
}

impl Setting {
    async fn new() -> Self {
        Self {
            daemon: start(TempDir::new().unwrap()).await,
        }
    }

    /// Kills the daemon, and starts another one in its folder.
    async fn kill(&mut self) {
        self.daemon.signal(Signal::KILL);
        self.daemon.ended().await;
        let folder = mem::replace(&mut self.daemon.folder, TempDir::new().unwrap());
        self.daemon = start(folder).await;
    }

    fn cache(&self) -> PathBuf {
        self.daemon.folder.path().join("cache")
    }

    /// Names of files that are whole.
    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(self.cache()).into_iter().flatten();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".partial")).collect()
    }

    async fn begin(&self, request: v1::OptimizeRequest) -> Streaming<v1::OptimizeResponse> {
        let answer = self.daemon.optimizer().await.optimize(request).await;
        answer.unwrap().into_inner()
    }

    async fn optimize(
        &self,
        request: v1::OptimizeRequest,
    ) -> Result<Vec<v1::Operation>, CallError> {
        pictures(self.daemon.optimizer().await.optimize(request).await).await
    }

    /// Begins one, and reads it until it has done some of this stage. Returns its id.
    async fn begun(&self, request: v1::OptimizeRequest, stage: OperationStage) -> u64 {
        let mut stream = self.begin(request).await;
        loop {
            let picture = within("progress", stream.message()).await.unwrap().unwrap();
            let job = picture.operation.unwrap();
            assert!(job.is_active(), "it ended too soon: {job:?}");
            let is_there = |step: &v1::OperationProgress| step.stage() == stage && step.done > 0;
            if job.progress.as_ref().is_some_and(is_there) {
                return job.operation_id;
            }
        }
    }

    /// What the daemon says of an operation of its predecessor.
    async fn reason(&self, id: u64) -> Option<String> {
        let request = v1::ListOperationsRequest::default();
        let all = self
            .daemon
            .operations()
            .await
            .list_operations(request)
            .await;
        let mut all = all.unwrap().into_inner().operations.into_iter();
        let found = all.find(|operation| operation.operation_id == id)?;
        Some(found.error?.reason)
    }

    async fn answer(&self) -> Vec<u32> {
        let events = generate(&self.daemon, tokens(&[1, 2, 3], 24))
            .await
            .unwrap();
        done(&events).token_ids.clone()
    }
}

async fn start(folder: TempDir) -> Daemon {
    let socket = folder.path().join("s");
    let mut command = command(folder.path());
    command
        .arg("--socket")
        .arg(&socket)
        .args(["--device", "cpu"])
        .arg("--weight-cache")
        .arg(folder.path().join("cache"));
    let daemon = Daemon::spawn(folder, socket, command).await;
    daemon.model_state(v1::ModelState::Ready).await;
    daemon
}

fn quickly() -> v1::OptimizeRequest {
    v1::OptimizeRequest {
        budget_bytes: Some(BUDGET_BYTES),
        uncalibrated: true,
        max_samples: Some(4),
        ..Default::default()
    }
}

fn result(pictures: &[v1::Operation]) -> &v1::OptimizeResult {
    match &pictures.last().unwrap().outcome {
        Some(Outcome::Optimize(result)) => result,
        _ => panic!("{pictures:?}"),
    }
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn killed_in_the_calibration_it_says_so_and_the_next_begins_with_it() {
    let mut setting = Setting::new().await;
    let before = setting.answer().await;
    let calibrated = v1::OptimizeRequest {
        uncalibrated: false,
        ..quickly()
    };
    let id = setting
        .begun(calibrated.clone(), OperationStage::Computing)
        .await;
    setting.kill().await;
    assert_eq!(setting.reason(id).await.as_deref(), Some("INTERRUPTED"));
    // Nothing looks finished, and the model is what it was.
    assert_eq!(setting.files(), [""; 0]);
    assert_eq!(setting.answer().await, before);
    // Few lines take a moment.
    let lines: Vec<_> = STORIES.lines().take(24).collect();
    let again = v1::OptimizeRequest {
        texts: vec![lines.join("\n")],
        ..calibrated
    };
    let made = setting.optimize(again).await.unwrap();
    assert!(result(&made).mix != 0);
    assert!(
        setting
            .files()
            .iter()
            .any(|name| name.ends_with(".calibration.safetensors")),
        "{:?}",
        setting.files()
    );
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn killed_in_the_measurements_the_next_goes_on_with_them() {
    let mut setting = Setting::new().await;
    // More texts than usual here, so that measurements take longer than a kill does.
    let request = v1::OptimizeRequest {
        max_samples: Some(24),
        ..quickly()
    };
    let id = setting
        .begun(request.clone(), OperationStage::Measuring)
        .await;
    setting.kill().await;
    assert_eq!(setting.reason(id).await.as_deref(), Some("INTERRUPTED"));
    let mut stream = setting.begin(request).await;
    let first = loop {
        let picture = within("progress", stream.message()).await.unwrap().unwrap();
        let job = picture.operation.unwrap();
        let step = job.progress.unwrap_or_default();
        match step.stage() {
            OperationStage::Measuring => break step.done,
            // Matrices that were quantized to be measured are not again.
            OperationStage::Quantizing => panic!("{step:?}"),
            _ => {}
        }
    };
    assert!(first > 0);
    let rest = rest_of(stream).await.unwrap();
    let made = result(&rest);
    assert!(made.prediction.is_some() && made.measured_kl_nats > 0.0);
}

#[tokio::test]
async fn texts_that_serve_for_both_are_told_and_mixes_are_listed_after_a_restart() {
    let mut setting = Setting::new().await;
    let notices = |pictures: &[v1::Operation]| pictures.last().unwrap().notices.join("\n");
    let told = "is measured on texts that it is calibrated or chosen by";
    let enough = setting.optimize(quickly()).await.unwrap();
    assert!(!notices(&enough).contains(told), "{}", notices(&enough));
    // One line, which is cut into three or four.
    let few = STORIES[..2600].replace('\n', " ");
    let request = v1::OptimizeRequest {
        texts: vec![few],
        budget_bytes: None,
        bits_per_weight: Some(3.0),
        ..quickly()
    };
    let few = setting.optimize(request).await.unwrap();
    assert!(notices(&few).contains(told), "{}", notices(&few));

    let (optimized, quantized) = (result(&enough).clone(), result(&few).mix);
    setting.kill().await;
    let request = v1::ListMixesRequest {};
    let kept = setting.daemon.optimizer().await.list_mixes(request).await;
    let kept = kept.unwrap().into_inner();
    assert_eq!(kept.model, "sluice-demo");
    let [first, last] = &kept.mixes[..] else {
        panic!("{kept:?}");
    };
    assert_eq!((first.mix, last.mix), (optimized.mix, quantized));
    assert_eq!(first.budget_bytes, Some(BUDGET_BYTES));
    assert!(first.chosen_unix_ms < last.chosen_unix_ms && first.file_bytes > 0);
    let curve = |prediction: &Option<v1::LossPrediction>| prediction.as_ref().unwrap().curve.len();
    assert_eq!(curve(&first.prediction), curve(&optimized.prediction));
    assert!(last.prediction.is_none() && last.measured_kl_nats > Some(0.0));
}
