//! What faster ways of answering cost in quality: the same requests with presets, or with policies and caches of one's
//! own.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sluice_shared::{
    decoding::Decoding,
    preset::{Preset, ResolvedPreset},
};

use super::{
    OnProgress, Scores, Settings,
    answer::Verdict,
    repeats::repeats,
    requests,
    session::{Session, Way},
};
use sluice_engine::CanvasSlot;

/// The results of all ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ways {
    /// What was asked; the schedule is not used.
    pub settings: Settings,
    /// The fingerprint of the weights.
    pub weights: String,
    /// Threads that computed.
    pub threads: usize,
    /// The ways in the order in which they were asked for.
    pub rows: Vec<Row>,
    /// The same of the right answers.
    pub right_answers: Scores,
}

/// The result of one way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The way, as it was asked for.
    pub way: String,
    /// Over all requests.
    pub scores: Scores,
}

/// Answers the requests in every way.
pub fn ways(
    session: &Session,
    settings: &Settings,
    ways: &[String],
    weights: String,
    threads: usize,
    on_progress: OnProgress<'_>,
) -> Result<Ways> {
    let bundles = ways
        .iter()
        .map(|way| bundle(way))
        .collect::<Result<Vec<_>>>()?;
    let (asked, _) = requests(session, settings)?;
    let total = asked.len() * ways.len();
    let mut done = 0;
    let mut rows = Vec::new();
    for (name, ResolvedPreset { policy, decoding }) in ways.iter().zip(bundles) {
        let mut scores = Scores::default();
        for asked in &asked {
            on_progress(done, total);
            let way = Way {
                block_length: settings.block_length,
                steps: asked.canvas,
                policy,
                decoding,
            };
            let canvas = vec![CanvasSlot::Masked; asked.canvas];
            let filled = session.fill(asked.prompt.clone(), canvas, &way)?;
            scores.add_filled(&Verdict::of(&asked.sample, &filled.text), &filled);
            done += 1;
        }
        rows.push(Row {
            way: name.clone(),
            scores,
        });
    }
    on_progress(total, total);
    let mut right_answers = Scores::default();
    for asked in &asked {
        let answer = &asked.sample.answer;
        right_answers.add(&Verdict::of(&asked.sample, answer), true);
        // The corpus's own answers set the scale: what a perfect model would score, with the repeats that text of this
        // kind has.
        let tokens = session.text()?.encode(answer)?;
        right_answers.repeats += repeats(&tokens);
        right_answers.effort.tokens += tokens.len() + 1;
    }
    Ok(Ways {
        settings: settings.clone(),
        weights,
        threads,
        rows,
        right_answers,
    })
}

/// A preset, or a policy followed by as much as is given of a KV cache, a window or `all`, a canvas growth and a
/// speculation, separated by blanks.
fn bundle(way: &str) -> Result<ResolvedPreset> {
    if let Ok(dial) = way.parse::<Preset>() {
        return Ok(dial.resolve(|_| false));
    }
    let mut words = way.split_whitespace();
    let policy = words.next().context("a way needs a policy")?;
    let policy = policy
        .parse()
        .with_context(|| format!("understand '{way}'"))?;
    let mut decoding = Decoding::default();
    if let Some(caching) = words.next() {
        decoding.kv_cache = caching.parse()?;
    }
    if let Some(masks) = words.next().filter(|masks| *masks != "all") {
        decoding.suffix_window = Some(masks.parse().context("a window takes a number")?);
    }
    if let Some(growth) = words.next() {
        decoding.canvas_growth = growth.parse()?;
    }
    if let Some(speculation) = words.next() {
        decoding.speculation = speculation.parse()?;
    }
    if let Some(more) = words.next() {
        bail!("'{more}' of '{way}' is too much");
    }
    Ok(ResolvedPreset { policy, decoding })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_a_position_of_the_dial_or_its_parts() {
        assert_eq!(
            bundle("balanced").expect("a dial"),
            Preset::Balanced.resolve(|_| false)
        );
        let info = Preset::Fast.info();
        let window = info.suffix_window.expect("fast has a window");
        let parts = format!(
            "{} {} {window} {} none",
            info.policy, info.kv_cache, info.canvas_growth
        );
        assert_eq!(
            bundle(&parts).expect("parts"),
            Preset::Fast.resolve(|_| false)
        );
        let bare = bundle("threshold:t=0.9").expect("a policy");
        assert_eq!(bare.decoding, Decoding::default());
        for wrong in [
            "",
            "quick",
            "reference none x",
            "reference none all fixed none more",
        ] {
            assert!(bundle(wrong).is_err(), "{wrong}");
        }
    }
}
