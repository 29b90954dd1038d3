//! The dashboard without a terminal: what its tests begin with.

mod canvas;
mod chat;
mod jobs;
mod journeys;
mod levels;
mod lists;
mod prompt;
mod recall;
mod screens;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{Terminal, backend::TestBackend};
use sluice_proto::v1::{
    self, CanvasToken, CommitPolicy, Compression, DaemonState, DaemonStatus, DeviceKind,
    DeviceStatus, DiffusionOptions, Dtype, FinishReason, GenerationBlock, GenerationDone,
    GenerationPass, GenerationQueued, GenerationStarted, GenerationThought, GpuStatus, HostStatus,
    LayerStatus, MemoryKind, MemoryUse, Model, ModelKind, ModelShape, ModelState, Operation,
    OperationKind, OperationState, PassPhases, PassStatistics, Plan, PlannedMemory, QueueStatus,
    RequestTotals, SettingsStatus, Snapshot, Tier, TokenState, WeightFormat, WeightGroupKind,
    WeightGroupStatus, Workload, generation_event::Event as WireEvent,
};
use sluice_shared::{
    level::Level,
    options::{Budget, PlanOptions},
};

use super::{
    event::{Effect, Event},
    hit_areas::HitAreas,
    keys::{Mode, Page},
    state::DashboardState,
    update::update,
    view::view,
};
use crate::paint::{Glyphs, Paint, Theme};

const SIZES: [(u16, u16); 3] = [(160, 50), (80, 24), (40, 12)];

fn state() -> DashboardState {
    let paint = Paint::new(Theme::Terminal, Glyphs::Braille, true);
    DashboardState::new("/run/sluice/sluice.sock".into(), paint)
}

fn feed(state: &mut DashboardState, mut event: Event) -> Vec<Effect> {
    let now_ms = state.now_ms;
    // Of our own requests it is the one with that number, else the last that has none yet.
    let own = state.requests.own.iter();
    match &mut event {
        Event::Own {
            serial, request_id, ..
        } if *serial == LAST => {
            let known = own.clone().find(|own| own.request_id == Some(*request_id));
            let meant = known.or(own.clone().rfind(|own| own.request_id.is_none()));
            *serial = meant.map_or(LAST, |own| own.serial);
        }
        Event::OwnFailed { serial, .. } if *serial == LAST => {
            *serial = own.clone().next_back().map_or(LAST, |own| own.serial);
        }
        _ => {}
    }
    update(state, event, now_ms).effects
}

fn press(state: &mut DashboardState, code: KeyCode) -> Vec<Effect> {
    feed(state, Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn write(state: &mut DashboardState, text: &str) {
    for character in text.chars() {
        press(state, KeyCode::Char(character));
    }
}

fn snapshot(requests: Vec<Operation>) -> Event {
    let running = requests
        .iter()
        .filter(|row| row.state() == OperationState::Running)
        .count() as u32;
    let gib = 1 << 30;
    let options = PlanOptions {
        level: Some(Level::Standard),
        budget: Some(Budget::Default),
        ..PlanOptions::default()
    };
    let kind = |kind: MemoryKind, bytes| MemoryUse {
        kind: kind.into(),
        bytes,
        peak_bytes: bytes,
    };
    Event::Snapshot(Box::new(Snapshot {
        daemon: Some(DaemonStatus {
            version: "0.1.0".into(),
            protocol_version: 1,
            process_id: 100,
            uptime_ms: 185_000,
            state: DaemonState::Ready.into(),
            socket_path: "/run/sluice/sluice.sock".into(),
            stall: None,
            file_problems: Vec::new(),
        }),
        device: Some(DeviceStatus {
            kind: DeviceKind::Cpu.into(),
            name: "a processor".into(),
            threads: 8,
            memory: vec![
                kind(MemoryKind::Weights, 900 << 20),
                kind(MemoryKind::Activations, 60 << 20),
                kind(MemoryKind::Logits, 40 << 20),
            ],
            used_bytes: 1000 << 20,
            peak_bytes: 1200 << 20,
            ..Default::default()
        }),
        host: Some(HostStatus {
            total_bytes: Some(32 * gib),
            available_bytes: Some(7 * gib),
            resident_bytes: Some(gib),
            ..Default::default()
        }),
        model: Some(Model {
            name: "sluice-demo".into(),
            state: ModelState::Ready.into(),
            is_demonstration: true,
            shape: Some(ModelShape {
                parameters: 12_345_678,
                formats: vec![Dtype::Bf16.into()],
                kind: ModelKind::Autoregressive.into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        queue: Some(QueueStatus {
            capacity: 16,
            waiting: requests.len() as u32 - running,
            running,
        }),
        operations: requests,
        plan: Some(plan(Level::Standard)),
        settings: Some(SettingsStatus {
            options: Some(options.into()),
            budget_bytes: 4 * gib,
            loaded_with: Some(options.into()),
            loaded_with_budget_bytes: Some(4 * gib),
            ..Default::default()
        }),
        layers: layers(),
        totals: Some(RequestTotals {
            passes: 100,
            committed_tokens: 120,
            ..Default::default()
        }),
        passes: Some(PassStatistics {
            count: 8,
            last_ms: Some(1_850.0),
            streamed_bytes: 8 << 30,
            mean_ms: Some(1_900.0),
            peak_bytes: Some(1200 << 20),
            ..Default::default()
        }),
        ..Default::default()
    }))
}

/// Six layers between embedding and head: two on the device, two streamed from the host, one of them in flight, two from disk.
fn layers() -> Vec<LayerStatus> {
    use WeightGroupKind::{Attention, Down, Embedding, GateUp, LmHead};

    let group = |kind: WeightGroupKind, tier: Tier, format, is_in_flight| WeightGroupStatus {
        kind: kind.into(),
        tier: tier.into(),
        format: Some(format),
        bytes: 24 << 20,
        is_in_flight,
        ..Default::default()
    };
    let bf16 = WeightFormat::from(Dtype::Bf16);
    let huffman = WeightFormat {
        compression: Compression::Huffman.into(),
        ..bf16
    };
    let mut layers = vec![LayerStatus {
        name: "embedding".into(),
        groups: vec![group(Embedding, Tier::Host, bf16, false)],
        ..Default::default()
    }];
    for (layer, tier, format) in [
        (0, Tier::Device, bf16),
        (1, Tier::Device, Dtype::Q80.into()),
        (2, Tier::Host, Dtype::Q80.into()),
        (3, Tier::Host, Dtype::Q80.into()),
        (4, Tier::Disk, Dtype::Q4K.into()),
        (5, Tier::Disk, huffman),
    ] {
        let parts = [Attention, GateUp, Down];
        layers.push(LayerStatus {
            name: layer.to_string(),
            groups: parts
                .map(|kind| group(kind, tier, format, layer == 3 && kind == Down))
                .into(),
            ..Default::default()
        });
    }
    layers.push(LayerStatus {
        name: "lm_head".into(),
        groups: vec![group(LmHead, Tier::Device, bf16, false)],
        ..Default::default()
    });
    layers
}

fn plan(level: Level) -> Plan {
    let index = Level::ALL.iter().position(|other| *other == level);
    let smaller = index.expect("one of all") as u64;
    let peak_bytes = (1200 << 20) / (smaller + 1);
    Plan {
        level: v1::Level::from(level).into(),
        budget_bytes: 4 << 30,
        peak_bytes,
        pass_ms: Some(1_800.0 / (smaller + 1) as f64),
        workload: Some(Workload {
            canvas_length: Some(256),
            block_length: Some(32),
            batch_requests: Some(1),
        }),
        resident_bytes: peak_bytes / 2,
        streamed_bytes_per_pass: u64::from(level == Level::Standard) << 30,
        is_lossless: level.is_lossless() == Some(true),
        is_loadable: level != Level::Mild,
        not_loadable_reason: match level {
            Level::Mild => "this version has no lossless format yet".into(),
            _ => String::new(),
        },
        memory: [
            (MemoryKind::Weights, 880 << 20),
            (MemoryKind::Activations, 64 << 20),
            (MemoryKind::Logits, 40 << 20),
        ]
        .map(|(kind, bytes)| PlannedMemory {
            kind: kind.into(),
            bytes,
        })
        .into(),
        ..Default::default()
    }
}

/// Why level `optimized` is refused where nothing was optimized.
const NO_MIX: &str = "this model has no optimized weights";

/// A busy dashboard whose daemon has a GPU; `change` sets what is known of the device.
fn on_gpu(change: impl FnOnce(&mut DeviceStatus)) -> DashboardState {
    let mut state = busy();
    let rows = vec![summary(3, OperationState::Running)];
    let Event::Snapshot(mut snapshot) = snapshot(rows) else {
        unreachable!("that is what it is");
    };
    let device = snapshot.device.as_mut().expect("was set");
    let kind = |kind: MemoryKind, bytes| MemoryUse {
        kind: kind.into(),
        bytes,
        peak_bytes: bytes,
    };
    *device = DeviceStatus {
        kind: DeviceKind::Cuda.into(),
        name: "NVIDIA GeForce RTX 3060 Laptop GPU".into(),
        threads: 8,
        memory: vec![
            kind(MemoryKind::Context, 180 << 20),
            kind(MemoryKind::Weights, 900 << 20),
            kind(MemoryKind::StagingBuffers, 0),
            kind(MemoryKind::Activations, 60 << 20),
            kind(MemoryKind::Logits, 0),
            kind(MemoryKind::Scratch, 40 << 20),
        ],
        used_bytes: 1180 << 20,
        peak_bytes: 1200 << 20,
        total_bytes: Some(6 << 30),
        free_bytes: Some(3 << 30),
        gpu: Some(GpuStatus {
            compute_dtype: Dtype::Bf16.into(),
            compute_capability: "8.6".into(),
            pci_bus_id: "0000:01:00.0".into(),
            driver_version: Some("570.00".into()),
            cuda_version: "12.8".into(),
            multiprocessors: 30,
            other_processes_bytes: Some(1 << 30),
            pcie_generation: Some(3),
            pcie_generation_max: Some(4),
            pcie_lanes: Some(8),
            pcie_lanes_max: Some(8),
            clock_mhz: Some(1_500),
            memory_clock_mhz: Some(5_000),
            temperature_c: Some(56),
            power_w: Some(61.2),
            power_limit_w: Some(115.0),
            utilization_percent: Some(37),
            ..Default::default()
        }),
        ..Default::default()
    };
    change(device);
    feed(&mut state, Event::Snapshot(snapshot));
    state
}

/// The levels with all answers but the last.
fn choosing() -> DashboardState {
    let mut state = busy();
    let effects = press(&mut state, KeyCode::F(2));
    assert!(matches!(&effects[..], [Effect::AskPlans(levels, _)] if *levels == Level::ALL));
    let refusal = "a budget of 4294967296 bytes is too small: level off needs at least 17179869184";
    for level in Level::ALL {
        let answer = match level {
            Level::Off => Err(refusal.to_owned()),
            Level::Optimized => Err(NO_MIX.to_owned()),
            Level::Auto => continue,
            other => Ok(Box::new(plan(other))),
        };
        feed(&mut state, Event::Planned { level, answer });
    }
    state
}

fn summary(request_id: u64, state: OperationState) -> Operation {
    let detail = v1::RequestDetail {
        length: 24,
        blocks: 3,
        done_blocks: u32::from(state == OperationState::Running),
        passes: 10,
        ..Default::default()
    };
    Operation {
        operation_id: request_id,
        kind: OperationKind::Generate.into(),
        state: state.into(),
        detail: Some(v1::operation::Detail::Request(detail)),
        elapsed_ms: 1_100.0,
        queued_ms: 400.0,
        ..Default::default()
    }
}

fn token(position: u32, piece: &str, state: TokenState, confidence: f32) -> CanvasToken {
    CanvasToken {
        position,
        id: (state != TokenState::Masked).then_some(position + 1),
        piece: piece.as_bytes().to_vec(),
        confidence: Some(confidence),
        state: state.into(),
        is_fresh: false,
        is_edited: false,
        logprobs: None,
    }
}

fn queued(request_id: u64) -> WireEvent {
    WireEvent::Queued(GenerationQueued {
        request_id,
        ahead: 0,
    })
}

/// The events of a request in its second block.
fn generating(request_id: u64) -> Vec<WireEvent> {
    use TokenState::{Committed, Masked, Pinned, Provisional};
    let block = [
        "Once ", "upon ", "a ", "time ", "a ", "river ", "ran ", "dry",
    ];
    let first: Vec<CanvasToken> = block
        .iter()
        .zip(0..)
        .map(|(word, position)| token(position, word, Committed, 0.9))
        .collect();
    let mut fresh = token(9, " so", Committed, 0.2);
    fresh.is_fresh = true;
    let second = vec![
        token(8, ",", Committed, 0.9),
        fresh,
        token(10, " the", Provisional, 0.4),
        token(11, "", Masked, 0.0),
        token(12, " \x1b[2Jmill", Pinned, 0.0),
        token(13, "", Masked, 0.0),
        token(14, " stood", Provisional, 0.1),
        token(15, "", Masked, 0.0),
    ];
    vec![
        queued(request_id),
        WireEvent::Started(GenerationStarted {
            request_id,
            prompt_tokens: 12,
            length: 24,
            block_length: 8,
            blocks: 3,
            prompt_text: b"a prompt".to_vec(),
            is_exact: true,
            seed: 42,
            level: v1::Level::Standard.into(),
            diffusion: Some(DiffusionOptions {
                preset: v1::DecodingPreset::Exact.into(),
                policy: Some(CommitPolicy {
                    name: "reference".into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        WireEvent::BlockDone(GenerationBlock {
            request_id,
            block: 0,
            passes: 8,
            tokens: first,
        }),
        WireEvent::PassDone(GenerationPass {
            request_id,
            passes: 10,
            block: 1,
            passes_in_block: 2,
            tokens: second,
            committed_positions: 11,
            rows: 36,
            lm_head_rows: 6,
            pass_ms: 12.0,
            elapsed_ms: 123.0,
            is_exact: true,
            waited_ms: 8.5,
            batch_requests: 1,
            phases: Some(PassPhases {
                attention_ms: 0.4,
                matmul_ms: 2.0,
                lm_head_ms: 0.8,
                other_ms: 0.3,
                copy_ms: 11.0,
                ..Default::default()
            }),
            ..Default::default()
        }),
    ]
}

fn request(request_id: u64, kind: WireEvent) -> Event {
    Event::Request {
        request_id,
        kind: Box::new(kind),
    }
}

/// Stands for the serial number of the request of ours that is meant.
const LAST: u64 = u64::MAX;

fn own_failed(message: &str) -> Event {
    Event::OwnFailed {
        serial: LAST,
        message: message.into(),
    }
}

/// The daemon's numbers of our own requests.
fn own_ids(state: &DashboardState) -> Vec<Option<u64>> {
    let own = state.requests.own.iter();
    own.map(|own| own.request_id).collect()
}

fn own(request_id: u64, kind: WireEvent) -> Event {
    Event::Own {
        serial: LAST,
        request_id,
        kind: Box::new(kind),
    }
}

/// As the dashboard opens.
fn opened() -> DashboardState {
    let mut state = state();
    feed(&mut state, Event::Connected);
    feed(&mut state, snapshot(vec![]));
    state
}

/// With the keyboard in the prompt.
fn idle() -> DashboardState {
    let mut state = opened();
    press(&mut state, KeyCode::Char('i'));
    state
}

fn busy() -> DashboardState {
    let mut state = idle();
    write(&mut state, "Tell me a story.");
    press(&mut state, KeyCode::Enter);
    for kind in generating(3) {
        feed(&mut state, own(3, kind));
    }
    let rows = vec![
        summary(3, OperationState::Running),
        summary(4, OperationState::Queued),
    ];
    feed(&mut state, snapshot(rows));
    state
}

fn lost() -> DashboardState {
    let mut state = busy();
    write(&mut state, "a draft");
    let event = Event::Lost {
        cause: "cannot reach sluiced at /run/sluice/sluice.sock: no such socket".into(),
        retry_ms: 4_000,
    };
    feed(&mut state, event);
    feed(&mut state, own_failed("lost sluiced"));
    update(&mut state, Event::Tick, 1_500);
    state.message = None;
    state
}

fn draw(state: &DashboardState, size: (u16, u16)) -> Terminal<TestBackend> {
    draw_with_targets(state, size).0
}

fn draw_with_targets(
    state: &DashboardState,
    (columns, rows): (u16, u16),
) -> (Terminal<TestBackend>, HitAreas) {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("infallible");
    let mut targets = HitAreas::default();
    terminal
        .draw(|frame| targets = view(frame, state))
        .expect("infallible");
    (terminal, targets)
}

fn shown(state: &DashboardState, size: (u16, u16)) -> String {
    draw(state, size).backend().to_string()
}

fn pictures(name: &str, state: &DashboardState) {
    for size in SIZES {
        let terminal = draw(state, size);
        let name = format!("{name}_{}x{}", size.0, size.1);
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, terminal.backend());
        });
    }
}
