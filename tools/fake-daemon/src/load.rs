//! Telling much at a steady rate: snapshots, and the passes of one long request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use sluice_proto::v1::{generation_event::Event, *};
use tokio::{
    sync::mpsc::{Sender, error::TrySendError},
    time::MissedTickBehavior,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

use crate::pictures::plan;

const REQUEST_ID: u64 = 1;
const BLOCK: u32 = 32;
const LAYERS: u64 = 32;
const WORDS: [&str; 8] = [
    "the ", "kite ", "flew ", "over ", "a ", "green ", "hill, ", "and ",
];

pub(crate) type Answers<T> = Result<Response<ReceiverStream<Result<T, Status>>>, Status>;

/// What is told, and how often.
#[derive(Debug, Clone, Copy)]
pub struct StressLoad {
    /// Positions of the request's canvas.
    pub length: u32,
    /// Passes of that request.
    pub passes_per_second: u32,
    /// Snapshots for each who watches.
    pub snapshots_per_second: u32,
    /// How long the request goes on.
    pub lasts: Duration,
}

/// Events so far.
#[derive(Debug, Default)]
pub struct EventCounts {
    /// Those that the daemon had to tell.
    pub sent: AtomicUsize,
    /// Those of them that the client took.
    pub received: AtomicUsize,
}

#[derive(Clone)]
pub(crate) struct Teller {
    load: StressLoad,
    start: Instant,
    pub(crate) counts: Arc<EventCounts>,
}

impl Teller {
    pub(crate) fn new(load: StressLoad) -> Self {
        Self {
            load,
            start: Instant::now(),
            counts: Arc::default(),
        }
    }

    /// Sends what `next` makes, so many times a second, until nobody listens. As with the daemon, a client that is slower
    /// misses pictures, the last of what `next` makes, and nothing else.
    fn tell<T: Send + 'static>(
        &self,
        per_second: u32,
        first: Vec<T>,
        mut next: impl FnMut() -> Vec<T> + Send + 'static,
    ) -> Answers<T> {
        let (sender, receiver) = tokio::sync::mpsc::channel(2);
        let counts = self.counts.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut all = first;
            while send(&sender, all, &counts).await.is_some() {
                ticks.tick().await;
                all = next();
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    /// Passes of the request so far.
    fn passes(&self) -> u32 {
        (self.start.elapsed().as_secs_f64() * f64::from(self.load.passes_per_second)) as u32
    }

    /// Positions that are committed after so many passes.
    fn committed(&self, passes: u32) -> u32 {
        let all = self.load.lasts.as_secs_f64() * f64::from(self.load.passes_per_second);
        let done = f64::from(passes) / all * f64::from(self.load.length);
        (done as u32).min(self.load.length - 1)
    }

    fn block(&self, block: u32, committed: u32, passes: u32) -> Vec<CanvasToken> {
        let first = block * BLOCK;
        let positions = first..(first + BLOCK).min(self.load.length);
        positions
            .map(|position| {
                let is_committed = position < committed;
                // Guesses change from pass to pass.
                let seed = if is_committed {
                    position
                } else {
                    position + passes
                };
                CanvasToken {
                    position,
                    id: Some(seed),
                    piece: WORDS[seed as usize % WORDS.len()].into(),
                    confidence: Some((seed % 10) as f32 / 10.0),
                    state: match is_committed {
                        true => TokenState::Committed.into(),
                        false => TokenState::Provisional.into(),
                    },
                    is_fresh: position + 1 == committed,
                    is_edited: false,
                    logprobs: None,
                }
            })
            .collect()
    }

    fn pass(&self, passes: u32) -> Event {
        let committed = self.committed(passes);
        let block = committed / BLOCK;
        Event::PassDone(GenerationPass {
            request_id: REQUEST_ID,
            passes,
            block,
            passes_in_block: passes,
            tokens: self.block(block, committed, passes),
            committed_positions: committed,
            rows: 151,
            lm_head_rows: BLOCK,
            pass_ms: 1.5 + f64::from(passes % 7),
            elapsed_ms: f64::from(passes) * 2.0,
            device_bytes: 3 << 30,
            batch_requests: 1,
            waited_ms: f64::from(passes % 3),
            streamed_bytes: 64 << 20,
            phases: Some(PassPhases {
                attention_ms: 0.5,
                matmul_ms: 1.0,
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    fn done(&self, block: u32) -> Event {
        Event::BlockDone(GenerationBlock {
            request_id: REQUEST_ID,
            block,
            passes: BLOCK,
            tokens: self.block(block, u32::MAX, 0),
        })
    }

    pub(crate) fn follow<T: Send + 'static>(&self, wrap: fn(GenerationEvent) -> T) -> Answers<T> {
        let teller = self.clone();
        let event = move |kind| wrap(GenerationEvent { event: Some(kind) });
        let length = self.load.length;
        let started = GenerationStarted {
            request_id: REQUEST_ID,
            prompt_tokens: 23,
            length,
            block_length: BLOCK,
            blocks: length.div_ceil(BLOCK),
            model: "load".into(),
            prompt_text: b"Tell me a story.".to_vec(),
            is_exact: true,
            level: Level::Standard.into(),
            ..Default::default()
        };
        let queued = GenerationQueued {
            request_id: REQUEST_ID,
            ahead: 0,
        };
        let mut first = vec![Event::Queued(queued), Event::Started(started)];
        let mut passes = self.passes();
        let mut open = self.committed(passes) / BLOCK;
        first.extend((0..open).map(|block| self.done(block)));
        let first = first.into_iter().map(event).collect();
        self.tell(self.load.passes_per_second, first, move || {
            passes += 1;
            let block = teller.committed(passes) / BLOCK;
            let mut kinds = Vec::new();
            if block > open {
                kinds.push(teller.done(open));
                open = block;
            }
            kinds.push(teller.pass(passes));
            kinds.into_iter().map(event).collect()
        })
    }

    pub(crate) fn watch(&self) -> Answers<WatchSnapshotsResponse> {
        let teller = self.clone();
        self.tell(self.load.snapshots_per_second, vec![], move || {
            let snapshot = Some(teller.snapshot());
            vec![WatchSnapshotsResponse { snapshot }]
        })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let passes = self.passes();
        let detail = RequestDetail {
            length: self.load.length,
            blocks: self.load.length.div_ceil(BLOCK),
            passes,
            committed_positions: self.committed(passes),
            ..Default::default()
        };
        let request = |operation_id: u64| Operation {
            operation_id,
            kind: OperationKind::Generate.into(),
            state: match operation_id {
                REQUEST_ID => OperationState::Running.into(),
                _ => OperationState::Queued.into(),
            },
            elapsed_ms: f64::from(passes) * 2.0,
            queued_ms: f64::from(passes) * 2.0,
            detail: Some(operation::Detail::Request(detail)),
            ..Default::default()
        };
        let job = Operation {
            operation_id: 9,
            kind: OperationKind::Compress.into(),
            state: OperationState::Running.into(),
            input_path: "/models/m".into(),
            output_path: "/models/m.sluice".into(),
            progress: Some(OperationProgress {
                stage: OperationStage::Compressing.into(),
                item: "blocks.1.ff_out.weight".into(),
                unit: ProgressUnit::Bytes.into(),
                done: u64::from(passes) << 16,
                total: Some(8 << 30),
            }),
            elapsed_ms: f64::from(passes) * 2.0,
            threads: Some(2),
            ..Default::default()
        };
        let kinds = [
            MemoryKind::Weights,
            MemoryKind::StagingBuffers,
            MemoryKind::Activations,
            MemoryKind::Logits,
            MemoryKind::Scratch,
        ];
        Snapshot {
            daemon: Some(DaemonStatus {
                version: "0.1.0".into(),
                protocol_version: sluice_proto::PROTOCOL,
                process_id: 1,
                uptime_ms: u64::from(passes) * 2,
                state: DaemonState::Ready.into(),
                ..Default::default()
            }),
            device: Some(DeviceStatus {
                kind: DeviceKind::Cpu.into(),
                name: "cpu".into(),
                threads: 8,
                memory: kinds
                    .map(|kind| MemoryUse {
                        kind: kind.into(),
                        bytes: (1 << 28) + (u64::from(passes % 100) << 20),
                        peak_bytes: 1 << 29,
                    })
                    .into(),
                used_bytes: (5 << 28) + (u64::from(passes % 100) << 20),
                peak_bytes: 3 << 30,
                total_bytes: Some(16 << 30),
                free_bytes: Some(8 << 30),
                default_budget_bytes: 8 << 30,
                ..Default::default()
            }),
            host: Some(HostStatus {
                total_bytes: Some(32 << 30),
                available_bytes: Some((16 << 30) - (u64::from(passes % 100) << 20)),
                resident_bytes: Some(4 << 30),
                resident_peak_bytes: Some(5 << 30),
                ..Default::default()
            }),
            model: Some(model()),
            queue: Some(QueueStatus {
                capacity: 16,
                waiting: 7,
                running: 1,
            }),
            operations: (REQUEST_ID..=8).map(request).chain([job]).collect(),
            totals: Some(RequestTotals {
                done_requests: 12,
                passes: passes.into(),
                committed_tokens: self.committed(passes).into(),
                ..Default::default()
            }),
            plan: Some(plan(Level::Standard)),
            passes: Some(PassStatistics {
                count: passes.into(),
                mean_ms: Some(2.0),
                last_ms: Some(1.5 + f64::from(passes % 7)),
                last_rows: 151,
                streamed_bytes: u64::from(passes) << 26,
                peak_bytes: Some(3 << 30),
                ..Default::default()
            }),
            layers: (0..LAYERS)
                .map(|layer| weight_groups(layer, passes))
                .collect(),
            settings: Some(SettingsStatus {
                options: Some(PlanOptions {
                    level: Level::Standard.into(),
                    budget: Some(plan_options::Budget::BudgetBytes(4 << 30)),
                    ..Default::default()
                }),
                budget_bytes: 4 << 30,
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

async fn send<T>(
    sender: &Sender<Result<T, Status>>,
    mut all: Vec<T>,
    counts: &EventCounts,
) -> Option<()> {
    counts.sent.fetch_add(all.len(), Ordering::Relaxed);
    let Some(picture) = all.pop() else {
        return Some(());
    };
    for one in all {
        sender.send(Ok(one)).await.ok()?;
        counts.received.fetch_add(1, Ordering::Relaxed);
    }
    match sender.try_send(Ok(picture)) {
        Ok(()) => counts.received.fetch_add(1, Ordering::Relaxed),
        Err(TrySendError::Full(_)) => 0,
        Err(TrySendError::Closed(_)) => return None,
    };
    Some(())
}

fn weight_groups(layer: u64, passes: u32) -> LayerStatus {
    let kinds = [
        WeightGroupKind::Attention,
        WeightGroupKind::GateUp,
        WeightGroupKind::Down,
    ];
    LayerStatus {
        name: layer.to_string(),
        groups: kinds
            .map(|kind| WeightGroupStatus {
                kind: kind.into(),
                tier: match layer % 3 {
                    0 => Tier::Device,
                    1 => Tier::Host,
                    _ => Tier::Disk,
                }
                .into(),
                format: Some(Dtype::Bf16.into()),
                bytes: 32 << 20,
                is_in_flight: u64::from(passes) % LAYERS == layer,
                ..WeightGroupStatus::default()
            })
            .into(),
        ..LayerStatus::default()
    }
}

fn model() -> Model {
    Model {
        name: "load".into(),
        state: ModelState::Ready.into(),
        family: "llada".into(),
        parameters: Some(8_000_000_000),
        shape: Some(ModelShape {
            family: "llada".into(),
            parameters: 8_000_000_000,
            weight_bytes: 16_000_000_000,
            formats: vec![Dtype::Bf16.into()],
            layers: 32,
            context_length: 8192,
            has_tokenizer: true,
            mask_token_id: Some(7),
            kind: ModelKind::MaskedDiffusion.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}
