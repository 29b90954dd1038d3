//! Quality against tokens a pass: the same requests answered in faster and faster ways.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{
    OnProgress, Schedule, Scores, Settings, answer, answer::Verdict, requests, session::Session,
};
use crate::corpus::Task;

/// Tokens a pass of the reference schedule.
const REFERENCE_TOKENS: [usize; 4] = [1, 2, 4, 8];
/// Least confidences of the threshold policy.
const THRESHOLDS: [f64; 8] = [0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4];

/// The results of all schedules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// What was asked; the schedule is that of the first row.
    pub settings: Settings,
    /// The fingerprint of the weights.
    pub weights: String,
    /// Threads that computed.
    pub threads: usize,
    /// The ways, each policy from slow to fast.
    pub rows: Vec<Row>,
}

/// The result of one schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which positions a pass commits.
    pub schedule: Schedule,
    /// The same in words.
    pub setting: String,
    /// Over all requests.
    pub scores: Scores,
    /// Over the questions.
    pub questions: Scores,
}

/// Answers the requests in every way; the schedule of the settings is not used.
pub fn curve(
    session: &Session,
    settings: &Settings,
    weights: String,
    threads: usize,
    on_progress: OnProgress<'_>,
) -> Result<Curve> {
    let ways = ways(settings);
    let (asked, _) = requests(session, settings)?;
    let total = asked.len() * ways.len();
    let mut done = 0;
    let mut rows = Vec::new();
    for settings in &ways {
        let mut row = Row {
            schedule: settings.schedule,
            setting: settings.schedule_in_words(),
            scores: Scores::default(),
            questions: Scores::default(),
        };
        for asked in &asked {
            on_progress(done, total);
            let filled = answer(session, settings, asked)?;
            let verdict = Verdict::of(&asked.sample, &filled.text);
            let is_question = asked.sample.task == Task::Question;
            for scores in [&mut row.scores]
                .into_iter()
                .chain(is_question.then_some(&mut row.questions))
            {
                scores.add_filled(&verdict, &filled);
            }
            done += 1;
        }
        rows.push(row);
    }
    on_progress(total, total);
    Ok(Curve {
        settings: ways[0].clone(),
        weights,
        threads,
        rows,
    })
}

fn ways(settings: &Settings) -> Vec<Settings> {
    let reference =
        REFERENCE_TOKENS.map(|tokens| Schedule::Steps((settings.length / tokens).max(1)));
    let schedules = reference
        .into_iter()
        .chain(THRESHOLDS.map(Schedule::Threshold));
    schedules
        .map(|schedule| Settings {
            schedule,
            ..settings.clone()
        })
        .collect()
}
