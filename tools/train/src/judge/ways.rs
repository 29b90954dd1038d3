//! What ways of answering do to quality: the same requests with presets, with policies and caches of one's own, or after
//! some steps of thinking.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sluice_shared::{
    decoding::Decoding,
    policy::PolicyChoice,
    preset::{Preset, ResolvedPreset},
};

use super::{
    EXAMPLES, Example, OnProgress, Scores, Settings,
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
    /// The first answers as they are.
    #[serde(default)]
    pub examples: Vec<Example>,
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
    let parsed: Vec<Way> = (ways.iter())
        .map(|way| parse(way, settings))
        .collect::<Result<_>>()?;
    let (asked, _) = requests(session, settings)?;
    let total = asked.len() * ways.len();
    let mut done = 0;
    let mut rows = Vec::new();
    for (name, way) in ways.iter().zip(parsed) {
        let mut scores = Scores::default();
        let mut examples = Vec::new();
        for asked in &asked {
            on_progress(done, total);
            let way = Way {
                steps: asked.canvas,
                seed: asked.number,
                ..way.clone()
            };
            let canvas = vec![CanvasSlot::Masked; asked.canvas];
            let filled = session.fill(asked.prompt.clone(), canvas, &way)?;
            scores.add_filled(&Verdict::of(&asked.sample, &filled.text), &filled);
            if examples.len() < EXAMPLES {
                examples.push(Example::new(&asked.sample, filled.text));
            }
            done += 1;
        }
        rows.push(Row {
            way: name.clone(),
            scores,
            examples,
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

/// `think N`, a preset, or a policy followed by as much as is given of a KV cache, a window or `all`, a canvas growth and
/// a speculation, separated by blanks. Passes and seed are those of the request.
fn parse(way: &str, settings: &Settings) -> Result<Way> {
    let thinking = way.strip_prefix("think ").map(str::parse);
    let thinking = thinking
        .transpose()
        .context("thinking takes a number of steps")?;
    let ResolvedPreset { policy, decoding } = match (thinking, way.parse::<Preset>()) {
        (Some(_), _) => ResolvedPreset {
            policy: PolicyChoice::default(),
            decoding: Decoding::default(),
        },
        (None, Ok(dial)) => dial.resolve(|_| false),
        (None, Err(_)) => bundle(way)?,
    };
    Ok(Way {
        block_length: settings.block_length,
        steps: 1,
        policy,
        decoding,
        thinking,
        seed: 0,
    })
}

fn bundle(way: &str) -> Result<ResolvedPreset> {
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
    use crate::judge::Schedule;

    fn way(words: &str) -> Result<Way> {
        let settings = Settings {
            prompts: 1,
            seed: 1,
            length: 128,
            block_length: 32,
            schedule: Schedule::Steps(128),
        };
        parse(words, &settings)
    }

    fn bundle(words: &str) -> Result<ResolvedPreset> {
        let Way {
            policy, decoding, ..
        } = way(words)?;
        Ok(ResolvedPreset { policy, decoding })
    }

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
            "think",
            "think much",
            "reference none x",
            "reference none all fixed none more",
        ] {
            assert!(way(wrong).is_err(), "{wrong}");
        }
    }
    #[test]
    fn a_way_is_so_many_steps_of_thinking() {
        let thinks = way("think 16").expect("steps");
        assert_eq!(thinks.thinking, Some(16));
        assert_eq!(way("reference").expect("a policy").thinking, None);
    }
}
