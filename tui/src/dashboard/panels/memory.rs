//! Panels of the memory of host, process and device.

use ratatui::text::{Line, Span};
use sluice_proto::v1::{
    DeviceStatus, GpuUnavailable, HostStatus, MemoryKind, MemoryUse, Plan, Snapshot, Tier,
};
use sluice_report::plan::{memory_label, staging_buffers};
use sluice_shared::units;

use super::{super::state::DashboardState, bar, level::level_lines, ratio};
use crate::{
    gpu,
    paint::{Paint, Role},
    plans,
    text::{clip, sanitise_line, width},
};

/// Shares of the host's or the GPU's memory from which on the bar warns.
const MEMORY_HIGH: f64 = 0.75;
const MEMORY_VERY_HIGH: f64 = 0.90;
/// Width from which on the host's line has figures, too.
const FREE_FROM_COLUMNS: usize = 60;
const HOST_BAR_COLUMNS: usize = 40;

const UNKNOWN: &str = "unknown";

/// Importance of a line where there are fewer rows than lines; the least important lines are left out first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinePriority {
    /// A kind of memory of which nothing is held.
    Nothing,
    /// Details of what another line tells.
    Detail,
    /// One of several similar lines.
    Part,
    /// Is never left out.
    Much,
}

/// Memory of the host, the process and the device, in full where there are enough rows.
pub(in super::super) fn in_full(
    state: &DashboardState,
    (columns, rows): (usize, usize),
) -> Vec<Line<'static>> {
    let paint = &state.paint;
    let snapshot = state.snapshot();
    let host = snapshot.and_then(|s| s.host).unwrap_or_default();
    let sluiced = format!(
        "sluiced  {} resident, peak {}",
        known(host.resident_bytes),
        known(host.resident_peak_bytes)
    );
    let beyond = host.resident_other_bytes;
    let beyond = beyond.map(|bytes| format!("{} outside the ledger", units::bytes(bytes)));
    let mut lines = vec![
        (LinePriority::Much, host_line(&host, columns, paint)),
        (
            LinePriority::Detail,
            said("", &host_figures(&host), columns),
        ),
        (LinePriority::Detail, Line::raw(sluiced)),
    ];
    lines.extend(beyond.map(|words| (LinePriority::Detail, said("", &words, columns))));
    match snapshot.and_then(|s| s.device.as_ref()) {
        Some(device) => {
            lines.extend(gpu_lines(device, columns, paint));
            lines.extend(device_lines(state, device, columns));
        }
        None => lines.push((LinePriority::Much, said("device", UNKNOWN, columns))),
    }
    for (name, value) in level_lines(state) {
        // No other line tells the kinds of memory, so they go last.
        let worth = match name {
            "peak" | "a pass" => LinePriority::Detail,
            _ => LinePriority::Much,
        };
        lines.push((worth, said(name, &value, columns)));
    }
    fit(lines, rows)
}

/// Leaves out the least important lines, from the end, until the rest fits.
fn fit(mut lines: Vec<(LinePriority, Line<'static>)>, rows: usize) -> Vec<Line<'static>> {
    for worth in [
        LinePriority::Nothing,
        LinePriority::Detail,
        LinePriority::Part,
    ] {
        while lines.len() > rows
            && let Some(last) = lines.iter().rposition(|(its, _)| *its == worth)
        {
            lines.remove(last);
        }
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// A line behind its name.
fn said(name: &str, words: &str, columns: usize) -> Line<'static> {
    let words = format!("{name:<8} {words}");
    Line::raw(clip(&sanitise_line(&words), columns))
}

/// The GPU and how much of its memory is whose; without one, the reason in dim words.
fn gpu_lines(
    device: &DeviceStatus,
    columns: usize,
    paint: &Paint,
) -> Vec<(LinePriority, Line<'static>)> {
    // A machine without a GPU is as it should be; a GPU or driver that cannot be used may be a fault to look at.
    if let Some(no_gpu) = device.gpu_unavailable.as_ref().filter(|why| why.is_fault) {
        let line = said("no GPU", &no_gpu.reason, columns).style(paint.style(Role::Dim));
        return vec![(LinePriority::Detail, line)];
    }
    let Some(gpu) = &device.gpu else {
        return Vec::new();
    };
    let detail = |words: &str| (LinePriority::Detail, said("", words, columns));
    let mut lines = vec![
        (LinePriority::Much, said("GPU", &device.name, columns)),
        detail(&gpu::compute_capability(gpu)),
    ];
    if let Some(activity) = gpu::activity(gpu) {
        lines.push((LinePriority::Part, said("", &activity, columns)));
    }
    let speed = [
        gpu.clock_mhz
            .map(|mhz| format!("{} MHz", units::count(mhz.into()))),
        gpu::pcie_link(gpu),
    ];
    lines.extend(gpu::joined(speed, ", ").map(|words| detail(&words)));
    if let Some((used, total)) = gpu_used(device) {
        let share = ratio(used, total);
        let (role, word) = fullness(share);
        let style = paint.style(role);
        let mut spans = vec![Span::raw("memory   ")];
        spans.extend(bar(share, columns.saturating_sub(25), style, paint));
        let words = format!(" {:>3.0} %{word}", share * 100.0);
        spans.push(Span::styled(words, style));
        lines.push((LinePriority::Much, Line::from(spans)));
        lines.push(detail(&used_of(used, total)));
    }
    if let Some(bytes) = gpu.other_processes_bytes {
        lines.push(detail(&format!("others hold {}", units::bytes(bytes))));
    }
    lines
}

fn gpu_used(device: &DeviceStatus) -> Option<(u64, u64)> {
    let (total, free) = (device.total_bytes?, device.free_bytes?);
    (total > 0).then(|| (total.saturating_sub(free), total))
}

fn used_of(used: u64, total: u64) -> String {
    format!("{} of {} used", units::bytes(used), units::bytes(total))
}

/// Memory that Sluice holds on the device: one bar against the budget, then each kind beside its plan.
fn device_lines(
    state: &DashboardState,
    device: &DeviceStatus,
    columns: usize,
) -> Vec<(LinePriority, Line<'static>)> {
    let paint = &state.paint;
    let budget = budget(state);
    let of = budget.map_or(String::new(), |bytes| {
        format!(" of {}", units::bytes(bytes))
    });
    let words = format!(
        "{}: {}{of}, peak {}",
        device.kind(),
        units::bytes(device.used_bytes),
        units::bytes(device.peak_bytes)
    );
    let mut lines = vec![(LinePriority::Much, said("device", &words, columns))];
    let whole = budget.unwrap_or(device.used_bytes).max(device.used_bytes);
    let mut spans = vec![Span::raw(" ".repeat(9))];
    spans.extend(stack(device, whole, columns.saturating_sub(10), paint));
    lines.push((LinePriority::Part, Line::from(spans)));
    for kind in &device.memory {
        let worth = match kind.bytes {
            0 => LinePriority::Nothing,
            _ => LinePriority::Part,
        };
        lines.push((worth, kind_line(state, kind, device.used_bytes, columns)));
    }
    let beside = state.snapshot().map(other_models).unwrap_or_default();
    for (index, words) in beside.iter().enumerate() {
        let name = if index == 0 { "beside" } else { "" };
        lines.push((LinePriority::Part, said(name, words, columns)));
    }
    lines
}

/// What models hold beside the one that is shown: part of each figure of the device.
fn other_models(snapshot: &Snapshot) -> Vec<String> {
    let others = snapshot.loaded_models.iter();
    let others = others.filter(|loaded| !loaded.is_present);
    let words = others.filter_map(|loaded| {
        let (model, plan) = (loaded.model.as_ref()?, loaded.plan.as_ref()?);
        let pinned = if loaded.is_pinned { ", pinned" } else { "" };
        Some(format!(
            "{} for {}, level {}{pinned}",
            units::bytes(loaded.device_bytes),
            model.name,
            plan.level()
        ))
    });
    words.collect()
}

/// A kind of memory: its bytes, its planned bytes, and its share of what is held.
fn kind_line(state: &DashboardState, kind: &MemoryUse, used: u64, columns: usize) -> Line<'static> {
    let paint = &state.paint;
    let (mark, role) = kind_look(kind.kind());
    let planned = planned(state, kind.kind());
    let planned = planned.map_or(String::new(), |bytes| {
        format!("plan {}", units::bytes(bytes))
    });
    let name = clip(&memory_label(kind.kind()), 11);
    let words = format!("{name:<11} {:>9}  {planned:<15}", units::bytes(kind.bytes));
    let mut spans = vec![
        Span::styled(format!("{mark} "), paint.style(role)),
        Span::raw(clip(&words, columns.saturating_sub(2))),
    ];
    let room = columns.saturating_sub(42);
    if room >= 6 {
        spans.extend(bar(ratio(kind.bytes, used), room, paint.style(role), paint));
    }
    Line::from(spans)
}

/// Mark and role of a kind of memory; the mark tells kinds apart without colour.
pub(in super::super) fn kind_look(kind: MemoryKind) -> (&'static str, Role) {
    match kind {
        MemoryKind::Weights => ("█", Role::Device),
        MemoryKind::StagingBuffers => ("▓", Role::InFlight),
        // No model has both.
        MemoryKind::KvCache | MemoryKind::State => ("▒", Role::KvCache),
        MemoryKind::Activations => ("░", Role::Scratch),
        MemoryKind::Logits => ("▄", Role::Logits),
        MemoryKind::Context => ("▀", Role::Context),
        MemoryKind::Scratch | MemoryKind::Unspecified => ("■", Role::Others),
    }
}

/// What all models may hold together, in bytes.
pub(in super::super) fn budget(state: &DashboardState) -> Option<u64> {
    let snapshot = state.snapshot()?;
    // A daemon of before several models tells of the one's alone.
    let of_all = snapshot.device.as_ref()?.budget_bytes;
    match of_all {
        0 => Some(snapshot.settings.as_ref()?.budget_bytes),
        of_all => Some(of_all),
    }
}

/// Bytes that the plans in force have for a kind, at their peak: of all models, as the device's figures are.
fn planned(state: &DashboardState, kind: MemoryKind) -> Option<u64> {
    let snapshot = state.snapshot()?;
    let of = |plan: &Plan| {
        let planned = plan.memory.iter().find(|planned| planned.kind() == kind);
        planned.map(|planned| planned.bytes)
    };
    let all = snapshot.loaded_models.iter();
    let all = all.filter_map(|loaded| of(loaded.plan.as_ref()?));
    match (snapshot.loaded_models.len(), kind) {
        (0, _) => of(snapshot.plan.as_ref()?),
        // All models have these in common.
        (_, MemoryKind::Context | MemoryKind::Scratch) => all.max(),
        _ => Some(all.sum()),
    }
}

/// All kinds in one bar; what is left of `whole` is free.
pub(in super::super) fn stack(
    device: &DeviceStatus,
    whole: u64,
    columns: usize,
    paint: &Paint,
) -> Vec<Span<'static>> {
    let mut spans = Vec::new();
    let (mut sum, mut filled) = (0, 0);
    for kind in &device.memory {
        sum = u64::saturating_add(sum, kind.bytes);
        let mut to = (ratio(sum, whole) * columns as f64).round() as usize;
        // A kind that holds anything has at least one cell.
        if kind.bytes > 0 && to == filled && filled < columns {
            to += 1;
        }
        let (mark, role) = kind_look(kind.kind());
        spans.push(Span::styled(
            mark.repeat(to.saturating_sub(filled)),
            paint.style(role),
        ));
        filled = filled.max(to);
    }
    let free = "─".repeat(columns.saturating_sub(filled));
    spans.push(Span::styled(free, paint.style(Role::Dim)));
    spans
}

/// The same in three lines, and a fourth for a GPU.
pub(in super::super) fn in_brief(state: &DashboardState, columns: usize) -> Vec<Line<'static>> {
    let paint = &state.paint;
    let snapshot = state.snapshot();
    let host = snapshot.and_then(|s| s.host).unwrap_or_default();
    let first = host_line(&host, columns, paint);
    let device = snapshot.and_then(|s| s.device.as_ref());
    let held = match device {
        None => UNKNOWN.to_owned(),
        Some(device) => {
            let kinds = device.memory.iter().filter(|kind| kind.bytes > 0);
            let kinds = kinds.map(|kind| {
                format!(
                    ", {} {}",
                    memory_label(kind.kind()),
                    units::bytes(kind.bytes)
                )
            });
            let is_fault = |why: &GpuUnavailable| why.is_fault;
            let without = if device.gpu_unavailable.as_ref().is_some_and(is_fault) {
                " (no GPU)"
            } else {
                ""
            };
            let used = units::bytes(device.used_bytes);
            format!(
                "{}{without} {used}{}",
                device.kind(),
                kinds.collect::<String>()
            )
        }
    };
    let words = format!("{} resident · device {held}", known(host.resident_bytes));
    let mut lines = vec![first, said("sluiced", &words, columns)];
    lines.extend(device.and_then(|device| gpu_brief(device, columns)));
    let facts = level_lines(state).into_iter();
    let facts = facts.map(|(name, value)| match name {
        "level" => format!("level    {value}"),
        name => format!("{name} {value}"),
    });
    let last = facts.collect::<Vec<_>>().join(" · ");
    lines.push(Line::raw(clip(&sanitise_line(&last), columns)));
    lines
}

fn gpu_brief(device: &DeviceStatus, columns: usize) -> Option<Line<'static>> {
    let gpu = device.gpu.as_ref()?;
    let others = gpu.other_processes_bytes;
    let words = [
        gpu_used(device).map(|(used, total)| used_of(used, total)),
        gpu::activity(gpu),
        others.map(|bytes| format!("others hold {}", units::bytes(bytes))),
        // Figures that change come first: narrow screens cut the end.
        Some(device.name.clone()),
    ];
    Some(said("GPU", &gpu::joined(words, " · ")?, columns))
}

/// Role and word for the share of a memory in use.
fn fullness(share: f64) -> (Role, &'static str) {
    match share {
        s if s >= MEMORY_VERY_HIGH => (Role::Bad, " very high"),
        s if s >= MEMORY_HIGH => (Role::Warning, " high"),
        _ => (Role::Good, ""),
    }
}

fn host_line(host: &HostStatus, columns: usize, paint: &Paint) -> Line<'static> {
    let Some((used, total)) = host_used(host) else {
        return Line::raw(format!("host     {UNKNOWN}"));
    };
    let share = ratio(used, total);
    let (role, word) = fullness(share);
    let free = match columns >= FREE_FROM_COLUMNS {
        true => format!(
            ", {} free of {}",
            units::bytes(total - used),
            units::bytes(total)
        ),
        false => String::new(),
    };
    let words = format!(" {:>3.0} %{word}{free}", share * 100.0);
    let room = columns
        .saturating_sub(10 + width(&words))
        .min(HOST_BAR_COLUMNS);
    let filled = (share * room as f64).round() as usize;
    // sluiced's own part has a mark of its own, where it is known.
    let own = ratio(host.resident_bytes.unwrap_or(0), total);
    let own = ((own * room as f64).round() as usize).min(filled);
    let style = paint.style(role);
    Line::from(vec![
        Span::raw("host     "),
        Span::styled("█".repeat(own), style),
        Span::styled("━".repeat(filled - own), style),
        Span::styled("─".repeat(room - filled), paint.style(Role::Dim)),
        Span::styled(words, style),
    ])
}

/// Where the weights are between passes, and what is streamed of them.
pub(in super::super) fn weights(state: &DashboardState, columns: usize) -> Vec<Line<'static>> {
    let Some(snapshot) = state.snapshot() else {
        return Vec::new();
    };
    let groups = snapshot.layers.iter().flat_map(|layer| &layer.groups);
    let mut tiers = vec![(Tier::Device, 0), (Tier::Host, 0), (Tier::Disk, 0)];
    for group in groups {
        match tiers.iter_mut().find(|(tier, _)| *tier == group.tier()) {
            Some((_, bytes)) => *bytes = u64::saturating_add(*bytes, group.bytes),
            None => tiers.push((group.tier(), group.bytes)),
        }
    }
    let tiers = tiers.into_iter().filter(|(_, bytes)| *bytes > 0);
    let tiers = tiers.map(|(tier, bytes)| format!("{} {tier}", units::bytes(bytes)));
    let tiers = tiers.collect::<Vec<_>>().join(" · ");
    let mut lines = Vec::new();
    if !tiers.is_empty() {
        lines.push(said("weights", &tiers, columns));
    }
    if let Some(plan) = &snapshot.plan {
        let streamed = plans::streamed(plan);
        lines.push(said("streamed", &streamed, columns));
        if let Some(slots) = plan
            .staging_buffers
            .as_ref()
            .filter(|slots| slots.count > 0 || slots.expert_buffers > 0)
        {
            lines.push(said("through", &staging_buffers(slots), columns));
        }
        if let Some(kv) = plans::kv_cache_format(plan) {
            lines.push(said("kv", &format!("cache in {kv}"), columns));
        }
    }
    if let Some(measured) = snapshot.passes.filter(|measured| measured.count > 0) {
        let waited = units::duration_ms(measured.waited_ms / measured.count as f64);
        let passes = units::count(measured.count);
        let words = format!("{waited} a pass, over {passes} passes");
        lines.push(said("waited", &words, columns));
        if let Some(counts) = &measured.experts {
            lines.push(said("experts", &plans::expert_hits(counts), columns));
        }
    }
    lines
}

fn host_figures(host: &HostStatus) -> String {
    match (host_used(host), host.resident_bytes) {
        (Some((used, total)), Some(resident)) => format!(
            "{} of {} used, {} by others",
            units::bytes(used),
            units::bytes(total),
            units::bytes(used.saturating_sub(resident)),
        ),
        (Some((used, total)), None) => used_of(used, total),
        (None, _) => format!(
            "{} available of {}",
            known(host.available_bytes),
            known(host.total_bytes)
        ),
    }
}

fn host_used(host: &HostStatus) -> Option<(u64, u64)> {
    let (total, available) = (host.total_bytes?, host.available_bytes?);
    (total > 0).then(|| (total.saturating_sub(available), total))
}

fn known(bytes: Option<u64>) -> String {
    bytes.map_or(UNKNOWN.into(), units::bytes)
}
