//! Applying a level or a budget. The daemon is asked for the plan first, and the user where the plan is lossy or slow.

use sluice_proto::v1::{Plan, SettingsStatus, Snapshot};
use sluice_report::plan::switch_estimate;
use sluice_shared::{
    level::Level,
    mix::MixId,
    options::{Budget, PlanOptions},
    units,
};

use super::super::super::{
    event::Effect,
    keys::Mode,
    levels::PendingChoice,
    state::{AfterYes, DashboardState},
};
use crate::plans;

/// A pass that is predicted to take more than this many times as long as now is asked about.
const SLOW_FACTOR: f64 = 1.5;

/// Applies a level, a budget, or both; `None` keeps what is in force. Asks first where the plan is lossy or slow.
pub(in super::super) fn choose(
    state: &mut DashboardState,
    level: Option<Level>,
    budget_bytes: Option<u64>,
    effects: &mut Vec<Effect>,
) {
    // The page shows this mix, so it is the one that is meant, whichever was in force before.
    let mix = state.optimization().map(|known| known.mix);
    let options = PlanOptions {
        level,
        budget: budget_bytes.map(Budget::Bytes),
        mix: mix.filter(|_| level == Some(Level::Optimized)),
        ..PlanOptions::default()
    };
    if is_in_force(state, &options) {
        let named = named(&options);
        state.tell(format!("{named} is already in force"));
        return;
    }
    let levels = &mut state.levels;
    let is_tried = budget_bytes == levels.tried;
    // The plans on the page are for the budget that is tried; for any other the daemon is asked.
    let answer = level.filter(|_| is_tried);
    let answer = answer.and_then(|level| levels.answers.get(&level));
    if let Some(answer) = answer.cloned() {
        judge(state, options, answer, effects);
        return;
    }
    levels.serial += 1;
    let serial = levels.serial;
    state.tell(format!("asking what {} leads to", named(&options)));
    state.levels.pending = Some(PendingChoice { serial, options });
    effects.push(Effect::AskPlan { serial, options });
}

/// Returns to the daemon's default budget. Its size is known to the daemon alone, so the user is always asked.
pub(in super::super) fn default_budget(state: &mut DashboardState) {
    let settings = latest(state).and_then(|latest| latest.settings.as_ref());
    if settings.is_some_and(SettingsStatus::is_default_budget) && !is_switching(state) {
        state.tell("no budget was set: the daemon's default is already in force");
        return;
    }
    let options = PlanOptions {
        budget: Some(Budget::Default),
        ..PlanOptions::default()
    };
    state.ask(
        "Go back to the daemon's default budget? Its memory and time are unknown.",
        vec![Effect::Apply(options)],
        AfterYes::Nothing,
    );
}

/// Takes the plan of a pending choice; plans of earlier choices are ignored.
pub(super) fn predicted(
    state: &mut DashboardState,
    serial: u64,
    answer: Result<Box<Plan>, String>,
    effects: &mut Vec<Effect>,
) {
    let levels = &mut state.levels;
    if let Some(wanted) = levels.pending.take_if(|wanted| wanted.serial == serial) {
        judge(state, wanted.options, answer, effects);
    }
}

/// Drops the pending choice: the state that its plan would be compared with is no longer in force.
pub(super) fn forget(state: &mut DashboardState) {
    if let Some(wanted) = state.levels.pending.take() {
        let named = named(&wanted.options);
        state.warn(format!(
            "{named} was not asked for: the model or the settings changed meanwhile"
        ));
    }
}

/// Applies a choice whose plan is known, or asks the user first.
fn judge(
    state: &mut DashboardState,
    options: PlanOptions,
    answer: Result<Box<Plan>, String>,
    effects: &mut Vec<Effect>,
) {
    let plan = match answer {
        Ok(plan) if plan.is_loadable => plan,
        Ok(plan) => return state.warn(plan.not_loadable_reason),
        Err(problem) => return state.warn(problem),
    };
    let named = named(&options);
    let doubts = warnings(state, &plan);
    let takes = takes(&plan);
    let effect = Effect::Apply(options);
    if doubts.is_empty() {
        let takes = takes.map_or_else(String::new, |takes| format!(": {takes}"));
        state.tell(format!("{named} was asked for{takes}"));
        effects.push(effect);
    } else if state.mode() == Mode::Page {
        let mut text = format!("Put {named} in force? {}", doubts.join(" "));
        if let Some(takes) = takes {
            text += &format!(" The switch takes {takes}.");
        }
        state.ask(text, vec![effect], AfterYes::Nothing);
    } else {
        // The user began to write while the daemon planned: a typed `y` must not answer a question that just appeared.
        let doubts = doubts.join(" ");
        state.warn(format!("{named} was not asked for. {doubts}"));
    }
}

/// Estimated work of switching to a plan, in words; `None` if nothing is read or converted.
fn takes(plan: &Plan) -> Option<String> {
    let time = plan.switch_estimate.as_ref();
    let time = time.filter(|time| time.read_bytes > 0 || time.converted_weights > 0);
    time.map(switch_estimate)
}

/// The choice in words.
fn named(options: &PlanOptions) -> String {
    let budget = options.budget.and_then(Budget::bytes).map(units::bytes);
    let level = options.level.map(|level| match options.mix {
        Some(mix) => format!("level {level} with mix {mix}"),
        None => format!("level {level}"),
    });
    match (level, budget) {
        (None, Some(budget)) => format!("a budget of {budget}"),
        (None, None) => "what is in force".to_owned(),
        (Some(level), Some(budget)) => format!("{level} within {budget}"),
        (Some(level), None) => level,
    }
}

/// The latest snapshot: decisions do not depend on whether the screen is frozen.
fn latest(state: &DashboardState) -> Option<&Snapshot> {
    state.latest.as_ref().map(|(latest, _)| &**latest)
}

fn is_switching(state: &DashboardState) -> bool {
    latest(state).is_some_and(|latest| latest.weight_switch.is_some())
}

/// Whether a choice changes nothing. While a switch runs every choice does: the settings are still those before it.
fn is_in_force(state: &DashboardState, options: &PlanOptions) -> bool {
    let settings = latest(state).and_then(|latest| latest.settings.as_ref());
    let Some(settings) = settings.filter(|_| !is_switching(state)) else {
        return false;
    };
    let level = options.level;
    let is_level = level.is_none_or(|level| settings.level() == level.into());
    let is_budget = match (level, options.budget.and_then(Budget::bytes)) {
        (_, None) => true,
        // The same size differs from the default: it stays fixed where the default changes with the daemon's start.
        (None, Some(_)) if settings.is_default_budget() => false,
        (_, Some(bytes)) => bytes == settings.budget_bytes,
    };
    // A daemon that says none may have taken another than the one on the page.
    let in_force = MixId::from_number(settings.options.unwrap_or_default().mix);
    let is_mix = options.mix.is_none_or(|mix| in_force == Some(mix));
    is_level && is_budget && is_mix
}

/// Reasons to ask before a plan is applied, as sentences; empty if there is none.
fn warnings(state: &DashboardState, plan: &Plan) -> Vec<String> {
    let present = latest(state).and_then(|latest| latest.plan.as_ref());
    let mut doubts: Vec<_> = loss(state, plan, present).into_iter().collect();
    let before = present.and_then(|present| present.pass_ms);
    match (plan.pass_ms, before) {
        (Some(pass), Some(before)) if pass > before * SLOW_FACTOR => doubts.push(format!(
            "It is slow: a pass is predicted to take {}, {:.1} times as long as now.",
            units::duration_ms(pass),
            pass / before
        )),
        (Some(_), _) => {}
        (None, _) => doubts.push("The time of a pass cannot be predicted.".to_owned()),
    }
    doubts
}

/// The fidelity that a plan loses against the present one, as a sentence; `None` if it loses none.
fn loss(state: &DashboardState, plan: &Plan, present: Option<&Plan>) -> Option<String> {
    if plan.is_lossless {
        return None;
    }
    let level_of = |plan: &Plan| plan.level().checked();
    let fidelity = |plan: &Plan| state.fidelity_of(level_of(plan)?);
    let Some(present) = present.filter(|present| !present.is_lossless) else {
        let measured = match fidelity(plan) {
            Some(fidelity) => format!("measured: {}", fidelity.words()),
            None => "by how much was not measured".to_owned(),
        };
        return Some(format!(
            "It is lossy: answers will differ from those of the checkpoint's weights; {measured}."
        ));
    };
    let both = fidelity(plan).zip(fidelity(present));
    let levels = level_of(plan).zip(level_of(present));
    // A mix may lose less than either of the other lossy levels, or more: that is for its budget to say.
    let is_of_mix = levels.is_some_and(|(after, before)| {
        after != before && [after, before].contains(&Level::Optimized)
    });
    let (is_worse, loses) = match (both, levels) {
        (Some((after, before)), _) => (after.mean_kl_nats > before.mean_kl_nats, "loses"),
        (None, _) if is_of_mix => (true, "may lose"),
        // The others are ordered by how much they lose.
        (None, Some((after, before))) => (after > before, "loses"),
        (None, None) => (plan.level != present.level, "loses"),
    };
    let measured = match both {
        Some((after, before)) => format!("measured: {}, after {}", after.words(), before.words()),
        None => "by how much was not measured".to_owned(),
    };
    is_worse.then(|| {
        let (after, before) = (plan.level(), present.level());
        format!("Level {after} {loses} more than {before}; {measured}.")
    })
}

/// Returns to the settings that the model was loaded with. Asks first if that takes more memory or time.
pub(in super::super) fn restore(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    let words = "the settings the model was loaded with";
    let levels = &state.levels;
    let settings = state
        .snapshot()
        .and_then(|snapshot| snapshot.settings.as_ref());
    // The plans on the page are for the budget in force, so they tell of this change only if it keeps the budget.
    let is_foreseen = levels.tried.is_none()
        && settings.is_some_and(|settings| {
            settings.loaded_with_budget_bytes == Some(settings.budget_bytes)
        });
    let before = settings.and_then(|settings| settings.loaded_with);
    let level = before.and_then(|before| before.level().checked());
    let plan = level.filter(|_| is_foreseen);
    let plan = plan.and_then(|level| levels.plan(level));
    let present = latest(state).and_then(|latest| latest.plan.as_ref());
    let question = match (plan, present) {
        (Some(plan), Some(present)) => {
            let grows = plan.peak_bytes > present.peak_bytes;
            let slows = match (plan.pass_ms, present.pass_ms) {
                (Some(after), Some(before)) => after > before,
                _ => true,
            };
            (grows || slows).then(|| {
                let takes = takes(plan).map_or_else(String::new, |takes| format!(" It takes {takes}."));
                format!(
                    "Go back to {words}, level {}? Memory {} → {}, a pass {} → {}, predicted.{takes}",
                    plan.level(),
                    units::bytes(present.peak_bytes),
                    units::bytes(plan.peak_bytes),
                    plans::pass_time(present),
                    plans::pass_time(plan),
                )
            })
        }
        _ => Some(format!(
            "Go back to {words}? Its memory and time are unknown."
        )),
    };
    match question {
        Some(question) => state.ask(question, vec![Effect::Restore], AfterYes::Nothing),
        None => {
            state.tell(format!("{words} was requested"));
            effects.push(Effect::Restore);
        }
    }
}
