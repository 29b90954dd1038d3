//! Progress of a request, the phases of its passes, and their bottleneck.

use ratatui::{
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
};
use sluice_proto::v1::{GenerationDone, GenerationPass, GenerationStarted, Level, Tier};
use sluice_shared::{
    decoding::{CanvasGrowth, Speculation},
    sampling::KvCacheMode,
    units,
};

use super::{
    super::{chat::AnswerLimit, screen::Screen},
    bar, ratio, thoughts,
};
use crate::{
    canvas::{Canvas, wrap_text},
    formats, json,
    paint::{Paint, Role},
    phases::PassTime,
    plans,
    text::{clip, sanitise_line},
    thinking,
};

/// Width of the bars of a request's progress.
const GAUGE_COLUMNS: usize = 24;
/// Width of the bar of phases.
const PHASES_COLUMNS: usize = 48;
/// Rows from which on there is room for everything about a request, and for the most important lines.
const ROOMY_ROWS: usize = 16;
const BRIEF_ROWS: usize = 6;
/// Passes from which on the time left is estimated by the pace so far.
const PACE_PASSES: u32 = 3;
/// Marks of the phases, in the order of [`PassTime::parts`]; they tell the phases apart without colour.
const PHASE_MARKS: [(&str, Role); 6] = [
    ("░", Role::Bad),
    ("▓", Role::KvCache),
    ("█", Role::Good),
    ("▒", Role::Host),
    ("▄", Role::Scratch),
    ("·", Role::Dim),
];

/// Progress of a request, in full where there are enough rows, else in three lines or in one. `from` is the tier that weights
/// are streamed from.
pub(in super::super) fn progress(
    canvas: &Canvas,
    from: Option<Tier>,
    (columns, rows): (usize, usize),
    paint: &Paint,
) -> Vec<Line<'static>> {
    let is_roomy = rows >= ROOMY_ROWS;
    let say = |words: String, role| {
        Line::styled(clip(&sanitise_line(&words), columns), paint.style(role))
    };
    // It takes a row from the text, so a tiny screen goes without.
    let thought = match rows >= BRIEF_ROWS || canvas.has_only_thought() {
        true => thoughts::brief(canvas, columns, paint),
        false => None,
    };
    if let Some(failure) = &canvas.failure {
        let mut lines = vec![say(format!("failed: {failure}"), Role::Bad)];
        lines.extend(thought);
        return lines;
    }
    if let Some(done) = &canvas.done {
        let limit = AnswerLimit::of(done);
        let role = if limit.is_some() {
            Role::Warning
        } else {
            Role::Good
        };
        let mut lines = vec![say(result(done, limit), role)];
        lines.extend(thought);
        if is_roomy {
            lines.extend(
                canvas.started.as_ref().map(|started| {
                    say(resolved_settings(started, canvas.pass.as_ref()), Role::Dim)
                }),
            );
            lines.extend(phases(&PassTime::from(done), from, columns, paint));
            lines.push(Line::default());
        }
        return lines;
    }
    let Some(started) = &canvas.started else {
        let ahead = canvas.queued.map_or(0, |queued| queued.ahead);
        return vec![say(format!("waiting, {ahead} ahead"), Role::Warning)];
    };
    let Some(pass) = &canvas.pass else {
        if let Some(thought) = canvas.latent_steps().last() {
            let words = match thought.is_last {
                true => thinking::last(thought),
                false => thinking::step(thought),
            };
            let lines = wrap_text(&words, columns).into_iter();
            return lines.map(|line| say(line, Role::Committed)).collect();
        }
        let words = format!("first pass over {} prompt tokens", started.prompt_tokens);
        return vec![say(words, Role::Committed)];
    };
    let blocks_done = u32::try_from(canvas.blocks.len()).unwrap_or(u32::MAX);
    let pinned = canvas.pinned().count();
    let speed = speed(pinned, pass);
    if !is_roomy {
        let place = format!(
            "block {blocks_done}/{} pass {}/{}",
            started.blocks,
            pass.passes,
            started.steps()
        );
        let left = left_ms(started, pinned, pass);
        let left = left.map(|ms| format!("{} left", units::duration_ms(ms)));
        let first = [Some(place), left, Some(speed)].into_iter().flatten();
        let first = first.collect::<Vec<_>>().join(" · ");
        let mut lines = match rows >= BRIEF_ROWS {
            true => wrap_text(&first, columns),
            false => vec![first],
        };
        // The text matters most, so it keeps most of the rows.
        lines.truncate((rows / 4).max(1));
        let lines = lines.into_iter().map(|line| say(line, Role::Committed));
        let mut lines: Vec<_> = lines.collect();
        if rows >= BRIEF_ROWS {
            let bottleneck = PassTime::from(pass).bottleneck(from);
            lines.extend(bottleneck.map(|why| say(why.to_string(), Role::Title)));
            lines.extend(thought);
        }
        return lines;
    }
    let gauge = |name: &str, part: u32, whole: u32, more: String| {
        let mut spans = vec![Span::raw(format!("{name:<9} "))];
        let wide = GAUGE_COLUMNS.min(columns.saturating_sub(44));
        let share = ratio(part.into(), whole.into());
        spans.extend(bar(share, wide, paint.style(Role::Good), paint));
        spans.push(Span::raw(format!(" {part} of {whole}{more}")));
        Line::from(spans)
    };
    let left = match left_ms(started, pinned, pass) {
        Some(ms) => format!(", {} left", units::duration_ms(ms)),
        None => String::new(),
    };
    let rows = format!(
        "{} rows, {} LM head rows · {}",
        units::count(pass.rows.into()),
        units::count(pass.lm_head_rows.into()),
        exactness(pass.is_exact)
    );
    let in_block = format!(", {} in the open block", pass.passes_in_block);
    let mut lines = vec![
        gauge("blocks", blocks_done, started.blocks, String::new()),
        gauge("passes", pass.passes, started.steps(), in_block),
        gauge("committed", pass.committed_positions, started.length, left),
        say(speed, Role::Committed),
        say(rows, Role::Committed),
        say(resolved_settings(started, Some(pass)), Role::Dim),
    ];
    lines.extend(thought);
    lines.extend(phases(&PassTime::from(pass), from, columns, paint));
    lines.push(Line::default());
    lines
}

/// How the request of an earlier pass thought, where there are rows for it.
pub(in super::super) fn thought(
    canvas: &Canvas,
    (columns, rows): (usize, usize),
    paint: &Paint,
) -> Option<Line<'static>> {
    let has_room = rows >= BRIEF_ROWS;
    has_room.then(|| thoughts::brief(canvas, columns, paint))?
}

/// The end of a request, in a line.
fn result(done: &GenerationDone, limit: Option<AnswerLimit>) -> String {
    let end = match limit {
        Some(limit) => limit.words().to_owned(),
        None => done.finish_reason().to_string(),
    };
    let seconds = done.elapsed_ms / 1000.0;
    let rate = match seconds > 0.0 {
        true => format!(
            ", {:.1} tokens/s",
            f64::from(done.generated_tokens) / seconds
        ),
        false => String::new(),
    };
    // Positions behind the end of the text were filled, too, so they count for the speed.
    let filled = match done.filled_positions > done.generated_tokens {
        true => format!(" of {} filled", units::count(done.filled_positions.into())),
        false => String::new(),
    };
    let a_pass = json::tokens_per_pass(done);
    let a_pass = a_pass.map_or(String::new(), |tokens| format!(", {tokens:.2} a pass"));
    let edits = formats::edits(done).map_or(String::new(), |edits| format!(", {edits}"));
    format!(
        "{end}: {} tokens{filled} in {} passes{a_pass}{edits}, {}{rate}, peak {}, {}",
        units::count(done.generated_tokens.into()),
        units::count(done.passes.into()),
        units::duration_ms(done.elapsed_ms),
        units::bytes(done.peak_device_bytes),
        exactness(done.is_exact)
    )
}

/// Positions that passes have filled so far, without so many that are pinned.
fn filled(pinned: usize, pass: &GenerationPass) -> u32 {
    let pinned = u32::try_from(pinned).unwrap_or(u32::MAX);
    pass.committed_positions.saturating_sub(pinned)
}

fn speed(pinned: usize, pass: &GenerationPass) -> String {
    let passes = f64::from(pass.passes.max(1));
    let filled = f64::from(filled(pinned, pass));
    let mut words = format!(
        "{} a pass · {:.2} tokens a pass",
        pass_duration(pass.elapsed_ms / passes),
        filled / passes
    );
    if pass.elapsed_ms > 0.0 {
        let rate = filled / pass.elapsed_ms * 1000.0;
        words += &format!(" · {rate:.1} tokens/s");
    }
    if pass.batch_requests > 1 {
        words += &format!(" · {} requests share it", pass.batch_requests);
    }
    words
}

/// The request's resolved settings, and the level of its latest pass.
fn resolved_settings(started: &GenerationStarted, pass: Option<&GenerationPass>) -> String {
    let now = pass.map(GenerationPass::level);
    let now = now.filter(|level| *level != Level::Unspecified && *level != started.level());
    let level = match now {
        Some(level) => format!("level {level} (began at {})", started.level()),
        None => format!("level {}", started.level()),
    };
    let diffusion = started.diffusion.as_ref();
    let policy = diffusion.and_then(|options| options.policy.as_ref());
    let policy = policy.map(|policy| {
        let mut parameters: Vec<_> = policy.parameters.iter().collect();
        parameters.sort_by_key(|(key, _)| *key);
        let parameters = parameters
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        let parameters = parameters.collect::<Vec<_>>().join(",");
        match parameters.is_empty() {
            true => policy.name.clone(),
            false => format!("{}:{parameters}", policy.name),
        }
    });
    let decoding = started.decoding();
    let reuse = decoding
        .kv_cache
        .filter(|reuse| reuse.mode != KvCacheMode::None);
    let growth = decoding.canvas_growth;
    let growth = growth.filter(|growth| *growth != CanvasGrowth::Fixed);
    let speculation = decoding.speculation;
    let speculation = speculation.filter(|speculation| *speculation != Speculation::None);
    let parts = [
        Some(level).filter(|_| started.level() != Level::Unspecified),
        decoding.preset.map(|preset| format!("preset {preset}")),
        policy,
        reuse.map(|reuse| format!("KV cache {reuse}")),
        (decoding.suffix_window).map(|window| format!("suffix window {window}")),
        growth.map(|growth| growth.to_string()),
        speculation.map(|speculation| speculation.to_string()),
        Some(format!("seed {}", started.seed)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// Time left in milliseconds by the pace so far; before there is a pace, the daemon's estimate.
fn left_ms(started: &GenerationStarted, pinned: usize, pass: &GenerationPass) -> Option<f64> {
    let left = started.length.saturating_sub(pass.committed_positions);
    let filled = filled(pinned, pass);
    if pass.passes >= PACE_PASSES && filled > 0 {
        return Some(pass.elapsed_ms / f64::from(filled) * f64::from(left));
    }
    let estimated = started.estimated_ms?;
    Some((estimated - pass.elapsed_ms).max(0.0))
}

/// The phases as a bar, as shares, and the bottleneck as a sentence.
fn phases(
    time: &PassTime,
    from: Option<Tier>,
    columns: usize,
    paint: &Paint,
) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let parts = time.parts();
    let wide = PHASES_COLUMNS.min(columns.saturating_sub(10));
    let known = parts.iter().filter_map(|(_, ms)| *ms);
    if known.count() > 1 {
        let mut spans = vec![Span::raw("time      ")];
        let mut words = vec![Span::raw(" ".repeat(10))];
        let mut used = 10;
        // Ends of parts are rounded, not their lengths: rounding errors must not add up to a longer bar.
        let mut end = 0.0;
        let mut filled = 0;
        for ((name, ms), (mark, role)) in parts.iter().zip(PHASE_MARKS) {
            let share = ms.and_then(|ms| time.share(ms)).unwrap_or(0.0);
            end += share;
            let to = ((end * wide as f64).round() as usize).min(wide);
            let more = to.saturating_sub(filled);
            spans.push(Span::styled(mark.repeat(more), paint.style(role)));
            filled += more;
            let said = format!("{mark} {name} {:.0} %  ", share * 100.0);
            let wide = crate::text::width(&said);
            if share >= 0.005 && used + wide <= columns + 2 {
                used += wide;
                words.push(Span::styled(said, paint.style(role)));
            }
        }
        lines.push(Line::from(spans));
        lines.push(Line::from(words));
    }
    if let Some(bottleneck) = time.bottleneck(from) {
        let words = clip(&bottleneck.to_string(), columns);
        lines.push(Line::styled(words, paint.style(Role::Title)));
    }
    lines
}

/// Milliseconds with a decimal below 100: passes of small models take a few milliseconds.
fn pass_duration(ms: f64) -> String {
    if ms < 100.0 {
        format!("{ms:.1} ms")
    } else {
        units::duration_ms(ms)
    }
}

fn exactness(exact: bool) -> &'static str {
    if exact { "exact" } else { "not exact" }
}

/// The tier that weights are streamed from at present.
pub(in super::super) fn streamed_from(state: &super::super::state::DashboardState) -> Option<Tier> {
    let plan = state.snapshot()?.plan.as_ref()?;
    plans::streamed_from(plan)
}

/// Draws a request that has thought but not written: its progress, and the curves where its text will be.
pub(in super::super) fn draw_thinking(screen: &mut Screen<'_, '_>, area: Rect, canvas: &Canvas) {
    let (columns, rows) = (usize::from(area.width), usize::from(area.height));
    let from = streamed_from(screen.state);
    let lines = progress(canvas, from, (columns, rows), screen.paint());
    let above = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let [words, below] =
        Layout::vertical([Constraint::Length(above), Constraint::Min(0)]).areas(area);
    screen.lines(words, lines);
    thoughts::draw_curves(screen, below, canvas);
}

#[cfg(test)]
mod tests {
    use sluice_proto::model::DecodingChoice;
    use sluice_shared::preset::Preset;

    use super::*;

    fn started() -> GenerationStarted {
        GenerationStarted {
            length: 100,
            estimated_ms: Some(10_000.0),
            ..Default::default()
        }
    }

    #[test]
    fn what_is_left_follows_the_pace_once_there_is_one() {
        let mut pass = GenerationPass {
            passes: 1,
            committed_positions: 1,
            elapsed_ms: 4_000.0,
            ..Default::default()
        };
        assert_eq!(left_ms(&started(), 0, &pass), Some(6_000.0));
        pass.passes = 10;
        pass.committed_positions = 50;
        assert_eq!(left_ms(&started(), 0, &pass), Some(4_000.0));
        let unknown = GenerationStarted {
            estimated_ms: None,
            ..started()
        };
        pass.passes = 1;
        assert_eq!(left_ms(&unknown, 0, &pass), None);
    }

    #[test]
    fn an_edit_counts_the_positions_that_it_fills() {
        // 128 tokens of which 26 are written anew.
        let started = GenerationStarted {
            length: 128,
            ..Default::default()
        };
        let pass = GenerationPass {
            passes: 13,
            committed_positions: 115,
            elapsed_ms: 1_300.0,
            ..Default::default()
        };
        assert_eq!(
            speed(102, &pass),
            "100 ms a pass · 1.00 tokens a pass · 10.0 tokens/s"
        );
        assert_eq!(left_ms(&started, 102, &pass), Some(1_300.0));
        let done = GenerationDone {
            passes: 26,
            text_tokens: 128,
            generated_tokens: 26,
            filled_positions: 26,
            elapsed_ms: 2_600.0,
            ..Default::default()
        };
        let words = result(&done, None);
        assert!(
            words.contains("26 tokens in 26 passes, 1.00 a pass, 2.6 s, 10.0 tokens/s"),
            "{words}"
        );
        // An answer that ends early has filled what lies behind its end, too.
        let early = GenerationDone {
            passes: 128,
            text_tokens: 106,
            generated_tokens: 106,
            filled_positions: 128,
            ..Default::default()
        };
        let words = result(&early, None);
        assert!(
            words.contains("106 tokens of 128 filled in 128 passes, 1.00 a pass"),
            "{words}"
        );
    }

    #[test]
    fn the_level_in_force_is_told_and_the_one_that_it_began_at() {
        let started = GenerationStarted {
            level: Level::Standard.into(),
            ..Default::default()
        };
        let at = |level: Level| GenerationPass {
            level: level.into(),
            ..Default::default()
        };
        let words = |pass: &GenerationPass| resolved_settings(&started, Some(pass));
        assert_eq!(words(&at(Level::Standard)), "level standard · seed 0");
        assert_eq!(
            words(&at(Level::Moderate)),
            "level moderate (began at standard) · seed 0"
        );
    }

    #[test]
    fn a_request_says_what_it_was_resolved_to() {
        let mut policy = sluice_proto::v1::CommitPolicy {
            name: "threshold".into(),
            ..Default::default()
        };
        policy.parameters.insert("t".into(), 0.8);
        let mut diffusion = sluice_proto::v1::DiffusionOptions::default();
        let choice = DecodingChoice {
            preset: Some(Preset::Balanced),
            kv_cache: Some("dual:recompute-before=32".parse().expect("one of them")),
            suffix_window: Some(64),
            canvas_growth: Some(CanvasGrowth::Fixed),
            speculation: Some(Speculation::None),
            policy: None,
        };
        choice.write(&mut diffusion);
        diffusion.policy = Some(policy);
        let started = GenerationStarted {
            diffusion: Some(diffusion),
            seed: 7,
            level: Level::Standard.into(),
            ..Default::default()
        };
        assert_eq!(
            resolved_settings(&started, None),
            "level standard · preset balanced · threshold:t=0.8 · KV cache dual:recompute-before=32 · suffix window 64 · seed 7"
        );
    }
}
