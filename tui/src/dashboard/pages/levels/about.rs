//! The text about the selected level, and about the present or last change.

use ratatui::{
    layout::Rect,
    text::{Line, Span},
};
use sluice_proto::v1::Plan;
use sluice_report::plan::switch_estimate;
use sluice_report::plan::{experts, staging_buffers};
use sluice_shared::{level::Level, units};

use super::super::{
    super::{
        levels::ChangeStanding,
        panels::memory::kind_look,
        screen::{Screen, ScreenShape},
        state::DashboardState,
    },
    table::bar,
};
use crate::{
    canvas::wrap_text,
    paint::{Paint, Role},
    plans,
    text::{clip, width},
};

/// Width of a progress bar.
const BAR_COLUMNS: usize = 20;

pub(super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let level = state.level();
    // Small screens have no rows for a frame.
    let inner = match screen.shape {
        ScreenShape::Small => area,
        ScreenShape::Wide | ScreenShape::Tall => {
            screen.pane(area, &format!("Level {level}"), false)
        }
    };
    let columns = usize::from(inner.width);
    let mut all = Vec::new();
    if let (ScreenShape::Small, Some(bytes)) = (screen.shape, state.levels.tried) {
        // Without a frame there is no title that tells the budget that is tried.
        let words = format!("as if the budget were {}", units::bytes(bytes));
        all.push(Line::styled(words, screen.style(Role::Warning)));
    }
    all.extend(lines(state, level, columns));
    screen.lines(inner, all);
}

/// The lines, the most important first: a low window cuts the last ones off.
fn lines(state: &DashboardState, level: Level, columns: usize) -> Vec<Line<'static>> {
    let paint = &state.paint;
    let mut lines = Vec::new();
    let mut say = |words: &str, role: Role| {
        let words = wrap_text(words, columns).into_iter();
        lines.extend(words.map(|line| Line::styled(line, paint.style(role))));
    };
    for (words, role) in progress(state) {
        say(&words, role);
    }
    if let Some(problem) = state.levels.problem(level) {
        say(&problem, Role::Bad);
    }
    say(level.summary(), Role::Dim);
    say(&fidelity(state, level), Role::Committed);
    let optimized = optimized(state);
    // It is what level `optimized` is about, and of the others the least important.
    if level == Level::Optimized {
        optimized
            .iter()
            .for_each(|words| say(words, Role::Committed));
    }
    if let Some(plan) = state.levels.plan(level) {
        for words in facts(plan) {
            say(&words, Role::Committed);
        }
        for note in &plan.notes {
            say(&format!("note: {note}"), Role::Warning);
        }
        lines.extend(memory(plan, columns, paint));
    }
    if level != Level::Optimized
        && let Some(words) = optimized
    {
        let words = wrap_text(&words, columns).into_iter();
        lines.extend(words.map(|line| Line::styled(line, paint.style(Role::Dim))));
    }
    lines
}

/// What the latest optimization of the present model came to, or how to begin one; `None` where no model is loaded.
fn optimized(state: &DashboardState) -> Option<String> {
    let Some(known) = state.optimization() else {
        let words = "no optimization of this model is remembered: `sluice optimize` finds the most faithful weights that fit a budget";
        return state.present_model().map(|_| words.to_owned());
    };
    let force = match state.is_mix_in_force(known) {
        true => "in force",
        false => "not in force",
    };
    Some(format!("mix {}, {force}: {}", known.mix, known.words()))
}

/// Progress of the present change, and the effect of the last one.
fn progress(state: &DashboardState) -> Vec<(String, Role)> {
    let mut lines = Vec::new();
    let levels = &state.levels;
    let snapshot = state.snapshot();
    let switch = snapshot.and_then(|snapshot| snapshot.weight_switch);
    let is_stepping = switch.is_some_and(|switch| switch.total_steps > 0);
    let far = |done: u64, total: u64, words: String| {
        let bar = bar(done as f64 / total.max(1) as f64, BAR_COLUMNS);
        (format!("{bar} {words}"), Role::Warning)
    };
    match (levels.converting, switch) {
        // Before the first step the switch shows no progress, but the conversion does.
        (Some((done, total)), _) if !is_stepping => {
            let (done_words, total_words) = (units::bytes(done), units::bytes(total));
            let words = format!("converting {done_words} of {total_words}");
            lines.push(far(done, total, words));
        }
        (_, Some(switch)) => {
            let words = snapshot.and_then(plans::switching).unwrap_or_default();
            let words = format!("switching {words}");
            lines.push(far(
                switch.done_steps.into(),
                switch.total_steps.into(),
                words,
            ));
        }
        _ => {}
    }
    if let Some(change) = &levels.change {
        let role = match change.standing() {
            ChangeStanding::UnderWay => Role::Dim,
            ChangeStanding::Applied => Role::Good,
            ChangeStanding::Failed => Role::Bad,
        };
        lines.push((change.words(), role));
    }
    if let Some(measuring) = &levels.measuring {
        lines.push(match measuring.total {
            0 => (
                format!("measuring {}: waits for its turn", measuring.level),
                Role::Warning,
            ),
            total => far(
                measuring.done.into(),
                total.into(),
                format!(
                    "measuring {}: pass {} of {total}",
                    measuring.level, measuring.done
                ),
            ),
        });
    }
    lines
}

fn fidelity(state: &DashboardState, level: Level) -> String {
    match (state.is_lossless(level), state.fidelity_of(level)) {
        (Some(true), _) if state.rounds_to_bf16() => {
            "fidelity: the checkpoint's weights, which are multiplied in bf16".into()
        }
        (Some(true), _) => "fidelity: exact; answers are those of the checkpoint's weights".into(),
        (_, Some(known)) => format!(
            "fidelity: {} of {} rows",
            known.words(),
            units::count(known.rows.into())
        ),
        (_, None) => "fidelity: not measured; m measures".to_owned(),
    }
}

fn facts(plan: &Plan) -> Vec<String> {
    let mut streamed = format!("streamed: {}", plans::streamed(plan));
    if let Some(tier) = plans::streamed_from(plan) {
        streamed += &format!(" from the {tier}");
    }
    let slots = plan
        .staging_buffers
        .as_ref()
        .filter(|slots| slots.count > 0 || slots.expert_buffers > 0);
    if let Some(slots) = slots.filter(|_| plan.streamed_bytes_per_pass > 0) {
        streamed += &format!(" through {}", staging_buffers(slots));
    }
    if plan.pinned_host_bytes > 0 {
        streamed += &format!(
            ", from {} of pinned memory",
            units::bytes(plan.pinned_host_bytes)
        );
    }
    if let Some(experts) = experts(plan) {
        streamed += &format!("; {experts}");
    }
    streamed += &match plan.resident_bytes {
        0 => "; how much of the weights stays on the device is unknown".to_owned(),
        bytes => format!("; {} of weights stay on the device", units::bytes(bytes)),
    };
    let mut pass = format!("a pass: {} predicted", plans::pass_time(plan));
    let parts = [
        ("computing", plan.compute_ms),
        ("copying", plan.copy_ms),
        ("reading the disk", plan.disk_ms),
        ("the first one", plan.first_pass_ms),
    ];
    for (name, ms) in parts {
        if let Some(ms) = ms {
            pass += &format!(", {name} {}", units::duration_ms(ms));
        }
    }
    let known = |count: Option<u32>| match count {
        None | Some(0) => "unknown".to_owned(),
        Some(count) => units::count(count.into()),
    };
    let workload = plan.workload.unwrap_or_default();
    let mut for_what = format!(
        "for a canvas of {}, blocks of {}, requests in a pass: {}",
        known(workload.canvas_length),
        known(workload.block_length),
        known(workload.batch_requests)
    );
    if let Some(kv) = plans::kv_cache_format(plan) {
        for_what += &format!("; KV cache in {kv}");
    }
    let mut facts = vec![streamed, pass];
    if let Some(time) = &plan.switch_estimate {
        facts.push(format!("switch: {}", switch_estimate(time)));
    }
    facts.push(for_what);
    facts
}

/// Largest width of the bar of planned memory.
const MEMORY_COLUMNS: usize = 100;

/// The budget as a bar with the planned memory by kind, and the legend of its parts.
fn memory(plan: &Plan, columns: usize, paint: &Paint) -> Vec<Line<'static>> {
    let kinds = plan.memory.iter().filter(|kind| kind.bytes > 0);
    let kinds: Vec<_> = kinds
        .map(|kind| {
            let (mark, role) = kind_look(kind.kind());
            (kind, mark, paint.style(role))
        })
        .collect();
    if kinds.is_empty() {
        return Vec::new();
    }
    let room = columns.saturating_sub(2).min(MEMORY_COLUMNS);
    let sum = kinds
        .iter()
        .fold(0_u64, |sum, (kind, ..)| sum.saturating_add(kind.bytes));
    let whole = plan.budget_bytes.max(sum).max(1);
    let mut spans = vec![Span::raw("[")];
    let (mut bytes, mut filled) = (0_u64, 0);
    for (kind, mark, style) in &kinds {
        bytes = bytes.saturating_add(kind.bytes);
        let end = (bytes as f64 / whole as f64 * room as f64).round() as usize;
        let part = mark.repeat(end.saturating_sub(filled));
        spans.push(Span::styled(part, *style));
        filled = filled.max(end);
    }
    let rest = " ".repeat(room.saturating_sub(filled));
    spans.push(Span::raw(rest + "]"));
    let mut lines = vec![Line::from(spans)];
    let mut legend: Vec<Span<'_>> = Vec::new();
    let mut used = 0;
    let free = plan.budget_bytes.saturating_sub(sum);
    let free = (format!("{} of the budget left", units::bytes(free)), None);
    let kinds = kinds.iter().map(|(kind, mark, style)| {
        let words = format!("{} {}", kind.kind(), units::bytes(kind.bytes));
        (words, Some((*mark, *style)))
    });
    for (words, mark) in kinds.chain([free]) {
        let needed = width(&words) + 4;
        if used > 0 && used + needed > columns {
            lines.push(Line::from(std::mem::take(&mut legend)));
            used = 0;
        }
        used += needed;
        if let Some((mark, style)) = mark {
            legend.push(Span::styled(mark, style));
        }
        legend.push(Span::raw(clip(&format!(" {words}  "), columns)));
    }
    lines.push(Line::from(legend));
    lines
}
