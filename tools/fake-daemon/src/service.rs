//! The services of the fake, which note what they are asked for.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use sluice_proto::{
    operations::OperationResponse,
    v1::{
        generation_service_server::{GenerationService, GenerationServiceServer},
        memory_service_server::MemoryServiceServer,
        model_ref::By,
        model_service_server::{ModelService, ModelServiceServer},
        operation_service_server::{OperationService, OperationServiceServer},
        optimizer_service_server::{OptimizerService, OptimizerServiceServer},
        telemetry_service_server::{TelemetryService, TelemetryServiceServer},
        *,
    },
};
use tokio::{net::UnixListener, runtime::Runtime, sync::Notify};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming, transport};

use crate::{
    ChangeScript, ReceivedCalls, ScriptStep,
    load::{Answers, Teller},
    pictures::{contents, fidelity, job, model, on_disk, operation, plan, snapshot},
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
                .add_service(MemoryServiceServer::new(service.clone()))
                .add_service(ModelServiceServer::new(service.clone()))
                .add_service(OperationServiceServer::new(service.clone()))
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

    /// Whether what is asked for never comes to its end.
    pub(crate) fn hangs(&self) -> bool {
        self.change.hangs
    }

    /// Waits until an operation is cancelled.
    pub(crate) async fn until_cancelled(&self) {
        self.cancelled.notified().await;
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, ReceivedCalls> {
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
    type GenerateWithStateStream = ReceiverStream<Result<GenerateWithStateResponse, Status>>;
    type ScoreStream = ReceiverStream<Result<ScoreResponse, Status>>;
    type WatchGenerationStream = ReceiverStream<Result<WatchGenerationResponse, Status>>;

    async fn generate(&self, request: Request<GenerateRequest>) -> Answers<GenerateResponse> {
        self.seen().generate.push(request.into_inner());
        self.play(|event| GenerateResponse { event: Some(event) })
    }

    async fn generate_with_state(
        &self,
        _: Request<Streaming<GenerateWithStateRequest>>,
    ) -> Answers<GenerateWithStateResponse> {
        // As a daemon from before states would answer.
        Err(Status::unimplemented(""))
    }

    async fn score(&self, _: Request<ScoreRequest>) -> Answers<ScoreResponse> {
        // As a daemon from before scoring would answer.
        Err(Status::unimplemented(""))
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
            self.change.hangs && seen.loaded.len() > seen.operations_cancelled.len()
        };
        if is_loading {
            models.push(Model {
                name: "on-its-way".to_owned(),
                state: ModelState::Loading.into(),
                operation_id: Some(operation(OperationKind::Load).operation_id),
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
            operations: Vec::new(),
            ..Default::default()
        }))
    }

    async fn load_model(&self, request: Request<LoadModelRequest>) -> Answers<LoadModelResponse> {
        self.seen().loaded.push(request.into_inner());
        let begun = operation(OperationKind::Load);
        let done = Operation {
            state: OperationState::Done.into(),
            outcome: Some(operation::Outcome::Load(LoadResult {
                model: Some(model()),
                plan: None,
            })),
            ..begun.clone()
        };
        let script = [&[begun], &self.change.load[..]].concat();
        self.play_operation(&script, done)
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
        let done = Operation {
            state: OperationState::Done.into(),
            outcome: Some(operation::Outcome::Pull(PullResult {
                model: Some(on_disk()),
            })),
            ..operation(OperationKind::Pull)
        };
        self.play_operation(&self.change.pull, done)
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
        let compressed = matches!(&by, Some(By::Path(path)) if path.ends_with(".sluice"));
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
            container: compressed.then(contents),
            not_loadable_reason: not_loadable,
            ..Default::default()
        }))
    }
}

impl Service {
    /// An operation as its script has it, until it is cancelled where it hangs.
    fn operation<R: OperationResponse>(&self, script: &[Operation], refusal: &str) -> Answers<R> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (is_silent, hangs) = (self.change.silent, self.change.hangs);
        let (script, cancelled) = (script.to_vec(), self.cancelled.clone());
        let refusal = refusal.to_owned();
        tokio::spawn(async move {
            if is_silent {
                return sender.closed().await;
            }
            for picture in script {
                let _ = sender.send(Ok(R::of(picture))).await;
            }
            if hangs {
                cancelled.notified().await;
                let _ = sender.send(Err(Status::cancelled(refusal))).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    /// An operation as its script has it, and `done` at the end unless it hangs.
    fn play_operation<R: OperationResponse>(
        &self,
        script: &[Operation],
        done: Operation,
    ) -> Answers<R> {
        let refusal = refusal(done.kind());
        match self.change.hangs {
            true => self.operation(script, refusal),
            false => self.operation(&[script, &[done]].concat(), refusal),
        }
    }

    fn job<R: OperationResponse>(&self) -> Answers<R> {
        let begun = [Operation {
            progress: None,
            ..job()
        }];
        let refusal = refusal(job().kind());
        self.operation(&[&begun, &self.change.job[..]].concat(), refusal)
    }
}

#[tonic::async_trait]
impl OperationService for Service {
    type WatchOperationStream = ReceiverStream<Result<WatchOperationResponse, Status>>;

    async fn list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        let failed = Operation {
            operation_id: 2,
            kind: OperationKind::Verify.into(),
            state: OperationState::Failed.into(),
            output_path: String::new(),
            error: Some(OperationError {
                message: "it is gone\x1b[2J".into(),
                ..Default::default()
            }),
            ..job()
        };
        let kinds = request.into_inner().kinds;
        let mut operations = vec![failed, job()];
        operations.retain(|one| kinds.is_empty() || kinds.contains(&one.kind));
        Ok(Response::new(ListOperationsResponse { operations }))
    }

    async fn watch_operation(
        &self,
        request: Request<WatchOperationRequest>,
    ) -> Answers<WatchOperationResponse> {
        let request = request.into_inner();
        let id = request.operation_id;
        let present = self.present(id)?;
        if !request.follow {
            let answer = WatchOperationResponse::of(present);
            return Ok(Response::new(ReceiverStream::new(told([Ok(answer)]))));
        }
        self.seen().watched.push(id);
        if self.seen().operations_cancelled.contains(&id) {
            let end = Err(Status::cancelled(refusal(present.kind())));
            return Ok(Response::new(ReceiverStream::new(told([end]))));
        }
        self.job()
    }

    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<CancelOperationResponse>, Status> {
        let id = request.into_inner().operation_id;
        let operation = Some(self.present(id)?);
        self.seen().operations_cancelled.push(id);
        self.cancelled.notify_one();
        Ok(Response::new(CancelOperationResponse {
            was_active: true,
            operation,
        }))
    }
}

/// A stream with these answers and no more.
fn told<T, const COUNT: usize>(
    answers: [Result<T, Status>; COUNT],
) -> tokio::sync::mpsc::Receiver<Result<T, Status>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(COUNT);
    for answer in answers {
        let _ = sender.try_send(answer);
    }
    receiver
}

/// What the end of a cancelled operation says.
fn refusal(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Load => "the load was cancelled",
        OperationKind::Pull => "the download was cancelled",
        kind if kind.is_on_files() => "the job was cancelled; what is done is kept in /p",
        _ => "the request was cancelled",
    }
}

impl Service {
    /// The operation with this id: the job, the load or download that was asked for, or the request of the scripts.
    fn present(&self, id: u64) -> Result<Operation, Status> {
        let begun = match id {
            3 => job(),
            5 if self.seen().pulled.is_empty() => Operation {
                model: "on-its-way".into(),
                ..operation(OperationKind::Load)
            },
            5 => Operation {
                model: "o/m".into(),
                ..operation(OperationKind::Pull)
            },
            7 => operation(OperationKind::Generate),
            _ => return Err(Status::not_found(format!("there is no operation {id}"))),
        };
        Ok(Operation {
            operation_id: id,
            ..begun
        })
    }

    fn change<R: OperationResponse>(&self) -> Answers<R> {
        // Nobody cancels it: one that hangs says no more.
        self.operation(&self.change.apply, "")
    }

    /// The level that was applied last.
    fn level(&self) -> Level {
        let seen = self.seen();
        let options = seen.applied.last().and_then(|applied| applied.options);
        match options.unwrap_or_default().level() {
            Level::Unspecified => Level::Standard,
            level => level,
        }
    }
}

#[tonic::async_trait]
impl OptimizerService for Service {
    type ApplyStream = ReceiverStream<Result<ApplyResponse, Status>>;
    type RestoreStream = ReceiverStream<Result<RestoreResponse, Status>>;
    type MeasureFidelityStream = ReceiverStream<Result<MeasureFidelityResponse, Status>>;
    type CompressStream = ReceiverStream<Result<CompressResponse, Status>>;
    type DecompressStream = ReceiverStream<Result<DecompressResponse, Status>>;
    type VerifyStream = ReceiverStream<Result<VerifyResponse, Status>>;
    type PruneStream = ReceiverStream<Result<PruneResponse, Status>>;
    type CalibrateStream = ReceiverStream<Result<CalibrateResponse, Status>>;
    type OptimizeStream = ReceiverStream<Result<OptimizeResponse, Status>>;

    async fn compress(&self, request: Request<CompressRequest>) -> Answers<CompressResponse> {
        self.seen().compressed.push(request.into_inner());
        self.job()
    }

    async fn decompress(&self, request: Request<DecompressRequest>) -> Answers<DecompressResponse> {
        self.seen().decompressed.push(request.into_inner());
        self.job()
    }

    async fn verify(&self, request: Request<VerifyRequest>) -> Answers<VerifyResponse> {
        self.seen().verified.push(request.into_inner());
        self.job()
    }

    async fn prune(&self, request: Request<PruneRequest>) -> Answers<PruneResponse> {
        self.seen().pruned.push(request.into_inner());
        self.job()
    }

    async fn optimize(&self, request: Request<OptimizeRequest>) -> Answers<OptimizeResponse> {
        self.seen().optimized.push(request.into_inner());
        self.job()
    }

    async fn calibrate(&self, request: Request<CalibrateRequest>) -> Answers<CalibrateResponse> {
        self.seen().calibrated.push(request.into_inner());
        self.job()
    }

    async fn plan(&self, request: Request<PlanRequest>) -> Result<Response<PlanResponse>, Status> {
        let mut seen = self.seen();
        let request = request.into_inner();
        let level = match request.options.unwrap_or_default().level() {
            Level::Unspecified => Level::Standard,
            level => level,
        };
        seen.planned.push(request);
        let plan = Some(plan(level));
        Ok(Response::new(PlanResponse {
            plan,
            ..Default::default()
        }))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Answers<ApplyResponse> {
        self.seen().applied.push(request.into_inner());
        self.change()
    }

    async fn restore(&self, request: Request<RestoreRequest>) -> Answers<RestoreResponse> {
        self.seen().restored.push(request.into_inner().target());
        self.change()
    }

    async fn measure_fidelity(
        &self,
        request: Request<MeasureFidelityRequest>,
    ) -> Answers<MeasureFidelityResponse> {
        let request = request.into_inner();
        let begun = Operation {
            operation_id: 7,
            ..operation(OperationKind::MeasureFidelity)
        };
        let measuring = Operation {
            progress: Some(OperationProgress {
                stage: OperationStage::Computing.into(),
                unit: ProgressUnit::Passes.into(),
                done: 1,
                total: Some(6),
                ..Default::default()
            }),
            ..begun.clone()
        };
        let done = Operation {
            state: OperationState::Done.into(),
            elapsed_ms: 1_500.0,
            outcome: Some(operation::Outcome::Fidelity(fidelity(&request))),
            ..begun
        };
        self.seen().measured.push(request);
        // Without its end, the stream is as one of a daemon that broke.
        let sent = if self.change.hangs { 1 } else { 2 };
        let (sender, receiver) = tokio::sync::mpsc::channel(2);
        for picture in [measuring, done].into_iter().take(sent) {
            let answer = MeasureFidelityResponse::of(picture);
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
            measured_unix_ms: 1_700_000_000_000,
            result: Some(fidelity(request)),
            ..Default::default()
        };
        let measurements = seen.measured.iter().map(measurement).collect();
        Ok(Response::new(ListFidelityResponse { measurements }))
    }

    async fn list_mixes(
        &self,
        _: Request<ListMixesRequest>,
    ) -> Result<Response<ListMixesResponse>, Status> {
        Ok(Response::new(ListMixesResponse::default()))
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
            None => Snapshot {
                plan: Some(plan(self.level())),
                ..snapshot()
            },
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

    async fn examine(
        &self,
        _: Request<ExamineRequest>,
    ) -> Result<Response<ExamineResponse>, Status> {
        Ok(Response::new(ExamineResponse::default()))
    }
}
