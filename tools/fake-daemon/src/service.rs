//! The services of the fake, which note what they are asked for.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use sluice_proto::v1::{
    generation_service_server::{GenerationService, GenerationServiceServer},
    job_service_server::{JobService, JobServiceServer},
    model_ref::By,
    model_service_server::{ModelService, ModelServiceServer},
    optimizer_service_server::{OptimizerService, OptimizerServiceServer},
    telemetry_service_server::{TelemetryService, TelemetryServiceServer},
    *,
};
use tokio::{net::UnixListener, runtime::Runtime, sync::Notify};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, transport};

use crate::{
    ChangeScript, ReceivedCalls, ScriptStep,
    load::{Answers, Teller},
    pictures::{contents, fidelity, job, model, on_disk, plan, snapshot},
};

#[derive(Clone)]
pub(crate) struct Service {
    script: Arc<[ScriptStep]>,
    change: Arc<ChangeScript>,
    teller: Option<Teller>,
    pub(crate) seen: Arc<Mutex<ReceivedCalls>>,
    cancelled: Arc<Notify>,
    stop: Arc<Notify>,
}

impl Service {
    pub(crate) fn new(
        script: Vec<ScriptStep>,
        change: ChangeScript,
        teller: Option<Teller>,
    ) -> Self {
        Self {
            script: script.into(),
            change: Arc::new(change),
            teller,
            seen: Arc::default(),
            cancelled: Arc::default(),
            stop: Arc::default(),
        }
    }

    /// Serves until what is returned is notified.
    pub(crate) fn serve(&self, socket: &Path) -> Arc<Notify> {
        let service = Self {
            cancelled: Arc::default(),
            stop: Arc::default(),
            ..self.clone()
        };
        let stop = service.stop.clone();
        let runtime = Runtime::new().expect("a runtime");
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).expect("bind")
        };
        runtime.spawn(
            transport::Server::builder()
                .add_service(GenerationServiceServer::new(service.clone()))
                .add_service(JobServiceServer::new(service.clone()))
                .add_service(ModelServiceServer::new(service.clone()))
                .add_service(OptimizerServiceServer::new(service.clone()))
                .add_service(TelemetryServiceServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        let thread = std::thread::Builder::new().name("stop".into());
        let stopped = stop.clone();
        let started = thread.spawn(move || {
            runtime.block_on(stopped.notified());
            runtime.shutdown_background();
        });
        started.expect("start a thread");
        stop
    }

    fn seen(&self) -> MutexGuard<'_, ReceivedCalls> {
        self.seen.lock().expect("no test panics with it")
    }

    fn play<T: Send + 'static>(&self, wrap: fn(GenerationEvent) -> T) -> Answers<T> {
        // A daemon refuses before the stream begins.
        if let Some(ScriptStep::Fail(status)) = self.script.first() {
            return Err(status.clone());
        }
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (script, stop) = (self.script.clone(), self.stop.clone());
        tokio::spawn(async move {
            for step in script.iter() {
                let answer = match step.clone() {
                    ScriptStep::Send(kind) => Ok(wrap(GenerationEvent { event: Some(kind) })),
                    ScriptStep::Fail(status) => Err(status),
                    ScriptStep::Hang => return sender.closed().await,
                    ScriptStep::Die => {
                        // Let what was sent reach the client first.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        stop.notify_one();
                        return sender.closed().await;
                    }
                };
                if sender.send(answer).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl GenerationService for Service {
    type GenerateStream = ReceiverStream<Result<GenerateResponse, Status>>;
    type ScoreStream = ReceiverStream<Result<ScoreResponse, Status>>;
    type WatchGenerationStream = ReceiverStream<Result<WatchGenerationResponse, Status>>;

    async fn generate(&self, request: Request<GenerateRequest>) -> Answers<GenerateResponse> {
        self.seen().generate.push(request.into_inner());
        self.play(|event| GenerateResponse { event: Some(event) })
    }

    async fn score(&self, _: Request<ScoreRequest>) -> Answers<ScoreResponse> {
        // As a daemon from before scoring would answer.
        Err(Status::unimplemented(""))
    }

    async fn list_requests(
        &self,
        _: Request<ListRequestsRequest>,
    ) -> Result<Response<ListRequestsResponse>, Status> {
        Ok(Response::new(ListRequestsResponse::default()))
    }

    async fn watch_generation(
        &self,
        _: Request<WatchGenerationRequest>,
    ) -> Answers<WatchGenerationResponse> {
        let wrap = |event| WatchGenerationResponse { event: Some(event) };
        match &self.teller {
            Some(teller) => teller.follow(wrap),
            None => self.play(wrap),
        }
    }

    async fn cancel_request(
        &self,
        request: Request<CancelRequestRequest>,
    ) -> Result<Response<CancelRequestResponse>, Status> {
        self.seen().cancelled.push(request.into_inner().request_id);
        Ok(Response::new(CancelRequestResponse { was_active: true }))
    }
}

#[tonic::async_trait]
impl ModelService for Service {
    type LoadModelStream = ReceiverStream<Result<LoadModelResponse, Status>>;
    type PullModelStream = ReceiverStream<Result<PullModelResponse, Status>>;

    async fn list_models(
        &self,
        _: Request<ListModelsRequest>,
    ) -> Result<Response<ListModelsResponse>, Status> {
        let mut models = vec![model(), on_disk()];
        let is_loading = {
            let seen = self.seen();
            self.change.hangs && seen.loaded.len() as u32 > seen.loads_cancelled
        };
        if is_loading {
            models.push(Model {
                name: "on-its-way".to_owned(),
                state: ModelState::Loading.into(),
                ..Default::default()
            });
        }
        let kept = ConvertedWeights {
            model: "tiny".to_owned(),
            level: Level::Moderate.into(),
            bytes: 3 << 20,
            is_in_use: true,
            ..Default::default()
        };
        Ok(Response::new(ListModelsResponse {
            models,
            converted_weights: vec![kept],
            converted_weights_folder: "/cache".to_owned(),
            converted_weights_bytes_max: Some(32 << 30),
        }))
    }

    async fn load_model(&self, request: Request<LoadModelRequest>) -> Answers<LoadModelResponse> {
        self.seen().loaded.push(request.into_inner());
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (change, cancelled) = (self.change.clone(), self.cancelled.clone());
        tokio::spawn(async move {
            for kind in &change.load {
                let kind = Some(kind.clone());
                let _ = sender.send(Ok(LoadModelResponse { kind })).await;
            }
            let last = if change.hangs {
                cancelled.notified().await;
                Err(Status::cancelled("the load was cancelled"))
            } else {
                let kind = Some(load_model_response::Kind::Model(model()));
                Ok(LoadModelResponse { kind })
            };
            let _ = sender.send(last).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn cancel_load(
        &self,
        _: Request<CancelLoadRequest>,
    ) -> Result<Response<CancelLoadResponse>, Status> {
        self.seen().loads_cancelled += 1;
        self.cancelled.notify_one();
        Ok(Response::new(CancelLoadResponse { was_loading: true }))
    }

    async fn unload_model(
        &self,
        _: Request<UnloadModelRequest>,
    ) -> Result<Response<UnloadModelResponse>, Status> {
        Ok(Response::new(UnloadModelResponse {
            model: "fake".into(),
            device_bytes_before: 3 << 30,
            device_bytes_after: 8 << 20,
            resident_bytes_before: Some(4 << 30),
            resident_bytes_after: Some(40 << 20),
        }))
    }

    async fn pull_model(&self, request: Request<PullModelRequest>) -> Answers<PullModelResponse> {
        self.seen().pulled.push(request.into_inner());
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (change, cancelled) = (self.change.clone(), self.cancelled.clone());
        tokio::spawn(async move {
            for kind in &change.pull {
                let kind = Some(kind.clone());
                let _ = sender.send(Ok(PullModelResponse { kind })).await;
            }
            let last = if change.hangs {
                cancelled.notified().await;
                Err(Status::cancelled("the download was cancelled"))
            } else {
                let kind = Some(pull_model_response::Kind::Model(on_disk()));
                Ok(PullModelResponse { kind })
            };
            let _ = sender.send(last).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn cancel_pull(
        &self,
        request: Request<CancelPullRequest>,
    ) -> Result<Response<CancelPullResponse>, Status> {
        self.seen().pulls_cancelled.push(request.into_inner().name);
        self.cancelled.notify_one();
        Ok(Response::new(CancelPullResponse { was_pulling: true }))
    }

    async fn remove_model(
        &self,
        request: Request<RemoveModelRequest>,
    ) -> Result<Response<RemoveModelResponse>, Status> {
        self.seen().removed.push(request.into_inner());
        let freed_bytes = 3 << 30;
        Ok(Response::new(RemoveModelResponse {
            freed_bytes,
            ..Default::default()
        }))
    }

    async fn inspect_model(
        &self,
        request: Request<InspectModelRequest>,
    ) -> Result<Response<InspectModelResponse>, Status> {
        let mut seen = self.seen();
        let request = request.into_inner();
        let by = request.model.clone().and_then(|model| model.by);
        let coded = matches!(&by, Some(By::Path(path)) if path.ends_with(".sluice"));
        let not_loadable = match by {
            Some(By::Name(name)) if name == "o/odd" => {
                "its model_type 'odd' is not known\x1b[2J".to_owned()
            }
            _ => String::new(),
        };
        seen.inspected.push(request);
        Ok(Response::new(InspectModelResponse {
            model: Some(on_disk()),
            facts: vec![CheckpointFact {
                name: "licence".into(),
                value: "mit\x1b[2J".into(),
            }],
            tensors: vec![TensorSummary {
                dtype: "BF16".into(),
                tensors: 12,
                parameters: 1_500_000_000,
                bytes: 3_000_000_000,
            }],
            levels: [Level::Mild, Level::Moderate]
                .map(|level| LevelEstimate {
                    level: level.into(),
                    peak_bytes: 2 << 30,
                    weight_bytes: 1 << 30,
                    fits: true,
                    not_loadable_reason: match level {
                        Level::Mild => "not yet".into(),
                        _ => String::new(),
                    },
                })
                .into(),
            container: coded.then(contents),
            not_loadable_reason: not_loadable,
            ..Default::default()
        }))
    }
}

impl Service {
    fn job(&self) -> Answers<JobEvent> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (change, cancelled) = (self.change.clone(), self.cancelled.clone());
        tokio::spawn(async move {
            if change.silent {
                return sender.closed().await;
            }
            let begun = job_event::Kind::Job(job());
            for kind in [begun].iter().chain(&change.job) {
                let kind = Some(kind.clone());
                let _ = sender.send(Ok(JobEvent { kind })).await;
            }
            if change.hangs {
                cancelled.notified().await;
                let status = Status::cancelled("the job was cancelled; what is done is kept in /p");
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl JobService for Service {
    type CompressStream = ReceiverStream<Result<JobEvent, Status>>;
    type DecompressStream = ReceiverStream<Result<JobEvent, Status>>;
    type VerifyStream = ReceiverStream<Result<JobEvent, Status>>;
    type WatchJobStream = ReceiverStream<Result<JobEvent, Status>>;

    async fn compress(&self, request: Request<CompressRequest>) -> Answers<JobEvent> {
        self.seen().compressed.push(request.into_inner());
        self.job()
    }

    async fn decompress(&self, request: Request<DecompressRequest>) -> Answers<JobEvent> {
        self.seen().decompressed.push(request.into_inner());
        self.job()
    }

    async fn verify(&self, request: Request<VerifyRequest>) -> Answers<JobEvent> {
        self.seen().verified.push(request.into_inner());
        self.job()
    }

    async fn list_jobs(
        &self,
        _: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        let failed = Job {
            job_id: 2,
            kind: JobKind::Verify.into(),
            state: JobState::Failed.into(),
            output: String::new(),
            error: "it is gone\x1b[2J".into(),
            ..job()
        };
        let jobs = vec![failed, job()];
        Ok(Response::new(ListJobsResponse { jobs }))
    }

    async fn watch_job(&self, request: Request<WatchJobRequest>) -> Answers<JobEvent> {
        self.seen().watched.push(request.into_inner().job_id);
        self.job()
    }

    async fn cancel_job(
        &self,
        request: Request<CancelJobRequest>,
    ) -> Result<Response<CancelJobResponse>, Status> {
        self.seen().jobs_cancelled.push(request.into_inner().job_id);
        self.cancelled.notify_one();
        Ok(Response::new(CancelJobResponse { was_running: true }))
    }
}

impl Service {
    fn change(&self) -> Answers<ApplyResponse> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let change = self.change.clone();
        tokio::spawn(async move {
            for kind in &change.apply {
                let kind = Some(kind.clone());
                let _ = sender.send(Ok(ApplyResponse { kind })).await;
            }
            if change.hangs {
                sender.closed().await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl OptimizerService for Service {
    type ApplyStream = ReceiverStream<Result<ApplyResponse, Status>>;
    type RestoreStream = ReceiverStream<Result<ApplyResponse, Status>>;
    type MeasureFidelityStream = ReceiverStream<Result<MeasureFidelityResponse, Status>>;

    async fn plan(&self, request: Request<PlanRequest>) -> Result<Response<PlanResponse>, Status> {
        let mut seen = self.seen();
        let request = request.into_inner();
        let level = match request.options.unwrap_or_default().level() {
            Level::Unspecified => Level::Standard,
            level => level,
        };
        seen.planned.push(request);
        let plan = Some(plan(level));
        Ok(Response::new(PlanResponse { plan }))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Answers<ApplyResponse> {
        self.seen().applied.push(request.into_inner());
        self.change()
    }

    async fn restore(&self, request: Request<RestoreRequest>) -> Answers<ApplyResponse> {
        self.seen().restored.push(request.into_inner().target());
        self.change()
    }

    async fn measure_fidelity(
        &self,
        request: Request<MeasureFidelityRequest>,
    ) -> Answers<MeasureFidelityResponse> {
        use measure_fidelity_response::Kind;

        let request = request.into_inner();
        let kinds = [
            Kind::Progress(FidelityProgress {
                request_id: 7,
                done: 1,
                total: 6,
            }),
            Kind::Result(fidelity(&request)),
        ];
        self.seen().measured.push(request);
        let (sender, receiver) = tokio::sync::mpsc::channel(kinds.len());
        // Without its end, the stream is as one of a daemon that broke.
        let sent = if self.change.hangs { 1 } else { kinds.len() };
        for kind in kinds.into_iter().take(sent) {
            let answer = MeasureFidelityResponse { kind: Some(kind) };
            sender.try_send(Ok(answer)).expect("room for all");
        }
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn list_fidelity(
        &self,
        _: Request<ListFidelityRequest>,
    ) -> Result<Response<ListFidelityResponse>, Status> {
        let seen = self.seen();
        let measurement = |request| FidelityMeasurement {
            model: "fake".into(),
            measured_at_s: 1_700_000_000,
            result: Some(fidelity(request)),
            ..Default::default()
        };
        let measurements = seen.measured.iter().map(measurement).collect();
        Ok(Response::new(ListFidelityResponse { measurements }))
    }
}

#[tonic::async_trait]
impl TelemetryService for Service {
    type WatchSnapshotsStream = ReceiverStream<Result<WatchSnapshotsResponse, Status>>;

    async fn get_snapshot(
        &self,
        _: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let snapshot = Some(match &self.teller {
            Some(teller) => teller.snapshot(),
            None => snapshot(),
        });
        Ok(Response::new(GetSnapshotResponse { snapshot }))
    }

    async fn watch_snapshots(
        &self,
        _: Request<WatchSnapshotsRequest>,
    ) -> Answers<WatchSnapshotsResponse> {
        if let Some(teller) = &self.teller {
            return teller.watch();
        }
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let snapshot = Some(snapshot());
                let answer = Ok(WatchSnapshotsResponse { snapshot });
                if sender.send(answer).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
