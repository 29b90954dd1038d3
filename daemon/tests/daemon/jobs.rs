//! Coding and decoding as jobs of the daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Signal;
use sluice_proto::{
    client::CallError,
    v1::{self, model_ref::By, operation::Outcome},
};
use tempfile::TempDir;
use tonic::{Code, Streaming};

use crate::support::{
    Daemon,
    checkpoints::{self, contents, demo},
    done, generate, pictures, rest_of, run, tokens, until, within,
};

/// A daemon with the small fixture loaded, and a folder to work in.
struct Setting {
    daemon: Daemon,
    folder: TempDir,
}

impl Setting {
    async fn new() -> Self {
        let model = checkpoints::fixture("llada-tiny");
        Self {
            daemon: Daemon::with_model(&model, &[]).await,
            folder: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A checkpoint that takes a while to code.
    async fn large(&self) {
        let arguments = [
            "synth",
            "--layers=10",
            "--hidden-size=512",
            "--attention-heads=8",
            "--intermediate-size=1024",
            "--vocab-size=600",
            "source",
        ];
        let output = run(self.folder.path(), &arguments).await;
        assert!(output.status.success(), "{output:?}");
    }

    /// Makes `output` of a folder here, slowly: to a rate.
    fn slowly(&self, output: &str) -> v1::CompressRequest {
        v1::CompressRequest {
            model: By::Path(self.text("source")).into(),
            output_path: self.text(output),
            bits_per_weight: Some(4.5),
            threads: Some(1),
            ..Default::default()
        }
    }

    async fn compress(
        &self,
        request: v1::CompressRequest,
    ) -> Result<Vec<v1::Operation>, CallError> {
        pictures(self.daemon.optimizer().await.compress(request).await).await
    }

    async fn decompress(&self, file: &str, output: &str) -> Result<Vec<v1::Operation>, CallError> {
        let request = v1::DecompressRequest {
            input_path: self.text(file),
            output_path: self.text(output),
            threads: None,
        };
        pictures(self.daemon.optimizer().await.decompress(request).await).await
    }

    async fn verify(&self, file: &str) -> Result<Vec<v1::Operation>, CallError> {
        let path = self.text(file);
        let request = v1::VerifyRequest { input_path: path };
        pictures(self.daemon.optimizer().await.verify(request).await).await
    }

    /// Begins a job, and reads it until some of it is done.
    async fn begun(&self, request: v1::CompressRequest) -> (u64, Streaming<v1::CompressResponse>) {
        let answer = self.daemon.optimizer().await.compress(request).await;
        let mut stream = answer.unwrap().into_inner();
        loop {
            let picture = within("progress", stream.message()).await.unwrap().unwrap();
            let job = picture.operation.unwrap();
            assert!(job.is_active(), "it ended too soon: {job:?}");
            if job.progress.is_some_and(|step| step.done > 0) {
                return (job.operation_id, stream);
            }
        }
    }

    async fn cancel(&self, operation_id: u64) -> bool {
        self.daemon.cancel(operation_id).await.unwrap()
    }

    async fn list(&self) -> Vec<v1::Operation> {
        let request = v1::ListOperationsRequest {
            kinds: v1::OperationKind::FILES.map(Into::into).into(),
            ..Default::default()
        };
        let mut client = self.daemon.operations().await;
        let answer = client.list_operations(request).await;
        answer.unwrap().into_inner().operations
    }
}

/// The result that a job ended with.
fn result(pictures: &[v1::Operation]) -> &Outcome {
    let last = pictures.last().expect("there is one at once");
    assert_eq!(last.state(), v1::OperationState::Done);
    last.outcome.as_ref().expect("it is done")
}

#[tokio::test]
async fn a_model_goes_into_a_file_and_back() {
    let setting = Setting::new().await;
    let request = v1::CompressRequest {
        model: By::Path(demo().to_str().unwrap().to_owned()).into(),
        output_path: setting.text("a.sluice"),
        all_tensors: true,
        ..Default::default()
    };
    let events = setting.compress(request.clone()).await.unwrap();
    let job = &events[0];
    assert_eq!(job.kind(), v1::OperationKind::Compress);
    assert!(job.is_cancellable && job.created_unix_ms > 0);
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(job.threads, Some((cores / 2).max(1) as u32));
    let Outcome::Compress(made) = result(&events) else {
        panic!("{events:?}")
    };
    let length = fs::metadata(setting.path("a.sluice")).unwrap().len();
    assert_eq!(made.file_bytes, length);
    assert!(made.file_bytes < made.original_bytes && made.relative_error.is_none());

    // It isn't written twice.
    let before = fs::read(setting.path("a.sluice")).unwrap();
    let error = setting.compress(request).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::AlreadyExists, Some("OUTPUT_EXISTS"))
    );
    assert!(fs::read(setting.path("a.sluice")).unwrap() == before);

    let events = setting.verify("a.sluice").await.unwrap();
    let Outcome::Verify(found) = result(&events) else {
        panic!("{events:?}")
    };
    assert_eq!((found.damaged_places, found.file_bytes), (0, length));

    let events = setting.decompress("a.sluice", "back").await.unwrap();
    assert!(matches!(result(&events), Outcome::Decompress(_)));
    assert!(contents(&setting.path("back")) == contents(&demo()));
    let error = setting.decompress("a.sluice", "back").await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("OUTPUT_EXISTS"));

    let states: Vec<_> = setting
        .list()
        .await
        .iter()
        .map(v1::Operation::state)
        .collect();
    use v1::OperationState::{Done, Failed};
    assert_eq!(states, [Done, Failed, Done, Done, Failed]);
}

#[tokio::test]
async fn a_model_is_compressed_by_its_name_and_inspected() {
    let setting = Setting::new().await;
    let request = v1::CompressRequest {
        model: By::Name("sluice-demo".to_owned()).into(),
        output_path: setting.text("demo.sluice"),
        bits_per_weight: Some(5.0),
        tile_elements: Some(128),
        keep_tensors: vec!["*.0.*".to_owned()],
        ..Default::default()
    };
    let of_nothing = v1::CompressRequest {
        only_tensors: vec!["model.nothing*".to_owned()],
        ..request.clone()
    };
    let error = setting.compress(of_nothing).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("NO_SUCH_TENSOR"));
    assert!(
        error.message.contains("'model.nothing*'"),
        "{}",
        error.message
    );
    let events = setting.compress(request).await.unwrap();
    let Outcome::Compress(made) = result(&events) else {
        panic!("{events:?}")
    };
    assert!(made.relative_error.is_some_and(|error| error < 0.2));

    let request = v1::InspectModelRequest {
        model: By::Path(setting.text("demo.sluice")).into(),
    };
    let answer = setting.daemon.models().await.inspect_model(request).await;
    let answer = answer.unwrap().into_inner();
    assert_eq!(answer.not_loadable_reason, "");
    let model = answer.model.unwrap();
    assert_eq!(
        (model.family.as_str(), model.parameters),
        ("llada", Some(3_934_976))
    );
    assert_eq!(
        (model.file_format(), model.disk_bytes),
        (v1::FileFormat::Sluice, made.file_bytes)
    );
    let compressed = answer.container.unwrap();
    assert_eq!(
        (compressed.tile_elements, compressed.file_bytes),
        (128, made.file_bytes)
    );
    let schemes: Vec<_> = compressed
        .summaries
        .iter()
        .map(v1::CompressionSummary::compression)
        .collect();
    assert_eq!(
        schemes,
        [
            v1::Compression::None,
            v1::Compression::Huffman,
            v1::Compression::Trellis
        ]
    );
    let numbers: u64 = compressed.summaries.iter().map(|sum| sum.elements).sum();
    assert_eq!(numbers, 3_934_976);
    let is_kept = |tensor: &&v1::ContainerTensor| tensor.name.contains(".0.");
    assert!(
        compressed
            .tensors
            .iter()
            .filter(is_kept)
            .all(|tensor| tensor.compression() == v1::Compression::None)
    );
    let has = |name: &str| compressed.files.iter().any(|file| file.name == name);
    assert!(has("config.json") && has("tokenizer.json") && has("model.safetensors"));
    let facts: Vec<_> = answer.facts.iter().map(|fact| fact.name.as_str()).collect();
    assert!(
        facts.contains(&"layers") && facts.contains(&"tokenizer"),
        "{facts:?}"
    );
}

#[tokio::test]
async fn damage_is_told_with_tensor_and_tile() {
    let setting = Setting::new().await;
    let request = v1::CompressRequest {
        model: By::Path(demo().to_str().unwrap().to_owned()).into(),
        output_path: setting.text("a.sluice"),
        ..Default::default()
    };
    setting.compress(request).await.unwrap();
    let path = setting.path("a.sluice");
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&path, damaged).unwrap();
    let events = setting.verify("a.sluice").await.unwrap();
    let Outcome::Verify(found) = result(&events) else {
        panic!("{events:?}")
    };
    assert_eq!(found.damaged_places, 1);
    let damage = &found.damage[0];
    assert!(
        damage.starts_with("tensor model.") && damage.contains("tile"),
        "{damage}"
    );
    let error = setting.decompress("a.sluice", "back").await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::DataLoss, Some("CONTAINER_DAMAGED"))
    );
    assert!(error.message.contains(damage.as_str()), "{}", error.message);
    assert!(!setting.path("back").exists());

    fs::write(&path, &whole[..middle]).unwrap();
    let error = setting.verify("a.sluice").await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("CONTAINER_DAMAGED"));
    // A pipe would keep the job waiting.
    let pipe = std::process::Command::new("mkfifo")
        .arg(setting.path("pipe.sluice"))
        .status();
    assert!(pipe.unwrap().success());
    let error = setting.verify("pipe.sluice").await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("NOT_A_CONTAINER"));
    let error = setting.verify("nothing.sluice").await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::NotFound, Some("FILE_NOT_FOUND"))
    );
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_its_reason() {
    let setting = Setting::new().await;
    let request = || v1::CompressRequest {
        model: By::Path(demo().to_str().unwrap().to_owned()).into(),
        output_path: setting.text("a.sluice"),
        ..Default::default()
    };
    let with = |change: fn(&mut v1::CompressRequest)| {
        let mut request = request();
        change(&mut request);
        request
    };
    for (request, words) in [
        (
            with(|r| r.model = By::Path("model".to_owned()).into()),
            "model: must be absolute",
        ),
        (
            with(|r| r.output_path = "a.sluice".to_owned()),
            "output_path: must be absolute",
        ),
        (
            with(|r| r.output_path = "/tmp/a.gguf".to_owned()),
            "output_path: must end in NAME.sluice",
        ),
        (
            with(|r| r.output_path = String::new()),
            "output_path: is missing",
        ),
        (
            with(|r| r.tile_elements = Some(100)),
            "tile_elements: must be one of 128, 256, 512",
        ),
        (
            with(|r| r.bits_per_weight = Some(9.0)),
            "bits_per_weight: must be between 1.5 and 6",
        ),
        (with(|r| r.compression = 7), "compression: 7 is unknown"),
        (with(|r| r.threads = Some(0)), "threads: must be at least 1"),
        (
            with(|r| r.keep_tensors = vec!["*".to_owned(); 65]),
            "keep_tensors: has 65 patterns",
        ),
        (
            with(|r| r.only_tensors = vec!["*".to_owned(); 65]),
            "only_tensors: has 65 patterns",
        ),
        (
            with(|r| r.model = By::Shape("llada-8b".to_owned()).into()),
            "model: the shape llada-8b has no weights",
        ),
    ] {
        let error = setting.compress(request).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert_eq!(error.reason.as_deref(), Some("INVALID_FIELD"));
        assert!(error.message.starts_with(words), "{}", error.message);
    }
    let nobody = v1::CompressRequest {
        model: By::Name("nobody".to_owned()).into(),
        ..request()
    };
    let error = setting.compress(nobody).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("UNKNOWN_MODEL"));
    assert!(setting.list().await.is_empty(), "none of them is a job");

    // What only a look at the disk can tell, the job does.
    for (request, code, reason) in [
        (
            with(|r| r.model = By::Path("/nowhere".to_owned()).into()),
            Code::NotFound,
            "CHECKPOINT_NOT_FOUND",
        ),
        (
            with(|r| r.output_path = "/nowhere/a.sluice".to_owned()),
            Code::NotFound,
            "FILE_NOT_FOUND",
        ),
    ] {
        let error = setting.compress(request).await.unwrap_err();
        assert_eq!((error.code, error.reason.as_deref()), (code, Some(reason)));
    }
    let mut client = setting.daemon.operations().await;
    let request = v1::WatchOperationRequest {
        operation_id: 99,
        follow: true,
    };
    let error = CallError::from(client.watch_operation(request).await.unwrap_err());
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::NotFound, Some("UNKNOWN_OPERATION"))
    );
    let request = v1::CancelOperationRequest { operation_id: 99 };
    let error = CallError::from(client.cancel_operation(request).await.unwrap_err());
    assert_eq!(error.reason.as_deref(), Some("UNKNOWN_OPERATION"));
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn a_cancelled_job_leaves_no_output_and_the_next_goes_on_with_it() {
    let setting = Setting::new().await;
    setting.large().await;
    let source = contents(&setting.path("source"));
    let (id, stream) = setting.begun(setting.slowly("a.sluice")).await;

    // Others see it, and have to wait.
    let snapshot = setting.daemon.snapshot().await;
    let running: Vec<_> = snapshot.jobs().collect();
    assert_eq!(running.len(), 1);
    assert_eq!(
        (running[0].operation_id, &running[0].output_path),
        (id, &setting.text("a.sluice"))
    );
    let error = setting.verify("a.sluice").await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::ResourceExhausted, Some("OPERATION_IN_PROGRESS"))
    );

    assert!(setting.cancel(id).await);
    let error = rest_of(stream).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::Cancelled, Some("CANCELLED"))
    );
    assert!(
        error.message.contains("a.sluice.partial"),
        "{}",
        error.message
    );
    assert!(!setting.path("a.sluice").exists());
    assert!(contents(&setting.path("source")) == source);
    assert_eq!(
        setting.list().await[0].state(),
        v1::OperationState::Cancelled
    );
    assert!(setting.daemon.snapshot().await.jobs().count() == 0);
    assert!(!setting.cancel(id).await, "it has ended");

    let events = setting.compress(setting.slowly("a.sluice")).await.unwrap();
    let Outcome::Compress(made) = result(&events) else {
        panic!("{events:?}")
    };
    assert!(made.resumed_tensors > 0);
    setting.compress(setting.slowly("b.sluice")).await.unwrap();
    let read = |name: &str| fs::read(setting.path(name)).unwrap();
    assert!(read("a.sluice") == read("b.sluice"));
}

#[tokio::test]
async fn a_job_outlives_its_caller_and_generation_goes_on_beside_it() {
    let setting = Setting::new().await;
    setting.large().await;
    let (id, stream) = setting.begun(setting.slowly("a.sluice")).await;
    drop(stream);
    let events = generate(&setting.daemon, tokens(&[1, 2, 3], 16))
        .await
        .unwrap();
    assert_eq!(done(&events).token_ids.len(), 16);
    assert_eq!(setting.list().await[0].state(), v1::OperationState::Running);

    let watch = async |follow: bool| {
        let request = v1::WatchOperationRequest {
            operation_id: id,
            follow,
        };
        let mut client = setting.daemon.operations().await;
        pictures(client.watch_operation(request).await)
            .await
            .unwrap()
    };
    let one = watch(false).await;
    assert_eq!(
        (one.len(), one[0].state()),
        (1, v1::OperationState::Running)
    );
    let events = watch(true).await;
    assert_eq!(events[0].operation_id, id);
    assert!(matches!(result(&events), Outcome::Compress(_)));
    assert!(setting.path("a.sluice").exists());

    // Its end is remembered.
    assert_eq!(watch(true).await.len(), 1);
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn the_end_of_the_daemon_cancels_a_job_cleanly() {
    let mut setting = Setting::new().await;
    setting.large().await;
    let (_, stream) = setting.begun(setting.slowly("a.sluice")).await;
    setting.daemon.signal(Signal::TERM);
    let error = rest_of(stream).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::Cancelled, Some("CANCELLED"))
    );
    assert!(
        error.message.contains("sluiced is shutting down"),
        "{}",
        error.message
    );
    let (status, took, log) = setting.daemon.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(!setting.path("a.sluice").exists() && setting.path("a.sluice.partial").exists());

    // Another daemon goes on with what it left.
    let next = Setting {
        daemon: Daemon::embedded().await,
        folder: setting.folder,
    };
    let events = next.compress(next.slowly("a.sluice")).await.unwrap();
    let Outcome::Compress(made) = result(&events) else {
        panic!("{events:?}")
    };
    assert!(made.resumed_tensors > 0);
    let events = next.verify("a.sluice").await.unwrap();
    assert!(matches!(result(&events), Outcome::Verify(found) if found.damaged_places == 0));
}

#[tokio::test]
async fn a_cancelled_way_back_leaves_nothing() {
    let setting = Setting::new().await;
    setting.large().await;
    let request = v1::CompressRequest {
        model: By::Path(setting.text("source")).into(),
        output_path: setting.text("a.sluice"),
        ..Default::default()
    };
    setting.compress(request).await.unwrap();
    let request = v1::DecompressRequest {
        input_path: setting.text("a.sluice"),
        output_path: setting.text("back"),
        threads: Some(1),
    };
    let answer = setting.daemon.optimizer().await.decompress(request).await;
    let mut stream = answer.unwrap().into_inner();
    let first = within("the job", stream.message()).await.unwrap().unwrap();
    let job = first.operation.unwrap();
    // It may be done already on a fast machine; then it is whole.
    match setting.cancel(job.operation_id).await {
        true => match rest_of(stream).await {
            Err(error) => assert!(
                error.message.contains("nothing is left"),
                "{}",
                error.message
            ),
            Ok(_) => assert!(setting.path("back").exists()),
        },
        false => assert!(setting.path("back").exists()),
    }
    until("the end of it", || async {
        setting.daemon.snapshot().await.jobs().count() == 0
    })
    .await;
    let names: Vec<_> = names(setting.folder.path());
    let expected = match setting.path("back").exists() {
        true => vec!["a.sluice", "back", "source"],
        false => vec!["a.sluice", "source"],
    };
    assert_eq!(names, expected);
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
