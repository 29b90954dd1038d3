//! Judges a model by program: the real engine answers requests from the held-out half of the language, and what comes
//! back is compared with what the request asked for.
//!
//! Everything is decided by the settings: the engine decodes greedily, and requests follow from a seed.

pub mod answer;
pub mod command;
pub mod curve;
pub mod gap;
pub mod rate;
pub mod repeats;
pub mod report;
pub mod session;
pub mod ways;

use std::{fmt, path::Path};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sluice_engine::CanvasSlot;
use sluice_shared::{decoding::Decoding, policy::PolicyChoice};

use self::{
    answer::Verdict,
    gap::{Gap, Kind},
    rate::Rate,
    session::{Filled, Session, Way},
};
use crate::{
    corpus::{self, Message, Role, Sample, Split, Task},
    random::Random,
    weights_file::WEIGHTS_NAME,
};

/// How many answers a judgement keeps as they are: the first ones.
pub const EXAMPLES: usize = 20;

/// Which requests are judged and how they are answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Number of requests.
    pub prompts: usize,
    /// The seed of the requests.
    pub seed: u64,
    /// Positions of a canvas. An answer that needs more gets the next multiple: nobody asks for a long story on a
    /// short canvas.
    pub length: usize,
    /// Positions decoded together.
    pub block_length: usize,
    /// Which positions a pass commits.
    pub schedule: Schedule,
}

/// Which positions a pass commits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// The most confident ones, in so many passes for a canvas of the usual length.
    Steps(usize),
    /// Those with at least this confidence.
    Threshold(f64),
    /// As many as their confidences allow together.
    Factor(f64),
}

/// The result of a judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The settings that it was made with.
    pub settings: Settings,
    /// The fingerprint of the weights.
    pub weights: String,
    /// Threads that computed.
    pub threads: usize,
    /// Requests that were left out because prompt and canvas together did not fit the model.
    pub left_out: usize,
    /// The scores over all requests.
    pub overall: Scores,
    /// The scores of the right answers: where the program finds fault with them, no model can do better.
    pub right_answers: Scores,
    /// The scores of each task.
    pub tasks: Vec<TaskScores>,
    /// Filling in one word.
    pub word_gaps: GapScores,
    /// Filling in one sentence.
    pub sentence_gaps: GapScores,
    /// The first answers as they are.
    pub examples: Vec<Example>,
}

/// The scores of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskScores {
    /// The task's name.
    pub task: String,
    /// The scores of its answers.
    pub scores: Scores,
}

/// How good some answers are, and how much they cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// How many there are.
    pub answers: usize,
    /// Answers with all names that the conversation asks for.
    pub names_kept: Rate,
    /// Answers with all words that the conversation asks for, names included.
    pub words_kept: Rate,
    /// Answers that name nobody who does not belong.
    pub no_stranger: Rate,
    /// Sentences that the language can produce.
    pub sentences_whole: Rate,
    /// Answers of which all sentences are whole.
    pub answers_whole: Rate,
    /// Answers of which all sentences are whole, and which name all that they should and nobody else.
    #[serde(default)]
    pub flawless: Rate,
    /// How often tokens are followed by the same tokens again; see [`repeats::repeats`].
    #[serde(default)]
    pub repeats: usize,
    /// Answers that end before their canvas is full.
    pub stops: Rate,
    /// Answers to questions, gap sentences and summaries that are the expected one. For questions there is hardly
    /// another; of summaries there are several, and of gap sentences often.
    pub right: Rate,
    /// Tokens, passes and time.
    pub effort: Effort,
}

/// The cost of some texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Number of texts.
    pub texts: usize,
    /// Tokens of the texts, with the one that ends each; padding is not counted.
    pub tokens: usize,
    /// Number of passes.
    pub passes: usize,
    /// Time in seconds.
    pub seconds: f64,
}

/// How well gaps were filled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GapScores {
    /// Gaps after which every sentence of the text is whole.
    pub whole: Rate,
    /// Of all gaps, those after which it is whole and that bring in no person, thing, place or helper of their own.
    pub consistent: Rate,
    /// Gaps with the very words that were there before.
    pub right: Rate,
    /// Tokens, passes and time.
    pub effort: Effort,
}

/// An answer, unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    /// What kind of request it is.
    pub task: String,
    /// The conversation that it answers.
    pub messages: Vec<Turn>,
    /// What the model answers.
    pub answer: String,
}

/// One message of an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Who says it.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A request that fits the model.
struct Asked {
    sample: Sample,
    number: u64,
    prompt: Vec<u32>,
    canvas: usize,
}

/// Called with how many texts are done, and how many there are.
pub type OnProgress<'a> = &'a mut dyn FnMut(usize, usize);

/// Judges the model of a session: answers to requests and, of a model that fills masks, gaps in the right answers of those
/// that ask for a story.
pub fn judge(
    session: &Session,
    settings: &Settings,
    weights: String,
    threads: usize,
    on_progress: OnProgress<'_>,
) -> Result<Judgement> {
    let (asked, left_out) = requests(session, settings)?;
    let stories = asked
        .iter()
        .filter(|asked| session.fills_gaps() && asked.sample.task == Task::Story);
    let gaps: Vec<(Kind, Gap)> = stories
        .flat_map(|asked| {
            // A stream for each request, so that its gaps do not depend on how many requests are judged.
            let mut random = Random::new(settings.seed ^ 0x67_6170, asked.number);
            [Kind::Word, Kind::Sentence]
                .map(|kind| Some((kind, Gap::draw(&asked.sample, kind, &mut random)?)))
        })
        .flatten()
        .collect();
    let total = asked.len() + gaps.len();
    let mut judgement = Judgement {
        settings: settings.clone(),
        weights,
        threads,
        left_out,
        overall: Scores::default(),
        right_answers: Scores::default(),
        tasks: Vec::new(),
        word_gaps: GapScores::default(),
        sentence_gaps: GapScores::default(),
        examples: Vec::new(),
    };
    let mut tasks = Task::ALL.map(|_| Scores::default());
    for (done, asked) in asked.iter().enumerate() {
        on_progress(done, total);
        let filled = answer(session, settings, asked)?;
        let sample = &asked.sample;
        let verdict = Verdict::of(sample, &filled.text);
        let of_task = Task::ALL.iter().position(|task| *task == sample.task);
        for scores in of_task
            .map(|task| &mut tasks[task])
            .into_iter()
            .chain([&mut judgement.overall])
        {
            scores.add_filled(&verdict, &filled);
        }
        judgement
            .right_answers
            // The program also judges the right answers: that tells how often it finds fault where there is none.
            .add(&Verdict::of(sample, &sample.answer), true);
        if judgement.examples.len() < EXAMPLES {
            judgement.examples.push(Example::new(sample, filled.text));
        }
    }
    for (done, (kind, gap)) in gaps.iter().enumerate() {
        on_progress(asked.len() + done, total);
        let scores = match kind {
            Kind::Word => &mut judgement.word_gaps,
            Kind::Sentence => &mut judgement.sentence_gaps,
        };
        fill_gap(session, settings, gap, scores)?;
    }
    on_progress(total, total);
    let named = Task::ALL
        .iter()
        .zip(tasks)
        .filter(|(_, scores)| scores.answers > 0);
    judgement.tasks = named
        .map(|(task, scores)| TaskScores {
            task: task.name().to_owned(),
            scores,
        })
        .collect();
    Ok(judgement)
}

/// The first requests of a seed that fit the model, and how many did not.
fn requests(session: &Session, settings: &Settings) -> Result<(Vec<Asked>, usize)> {
    ensure!(settings.length > 0, "a canvas needs a position");
    let mut asked = Vec::new();
    let mut number = 0;
    while asked.len() < settings.prompts {
        let sample = corpus::sample(Split::HeldOut, settings.seed, number);
        let prompt = session.encode(&sample.messages)?;
        let answer = session.text()?.encode(&sample.answer)?.len() + 1;
        let canvas = answer.next_multiple_of(settings.length);
        if session.has_room(prompt.len(), canvas) {
            asked.push(Asked {
                sample,
                number,
                prompt,
                canvas,
            });
        }
        number += 1;
        // Ends the loop for a model whose context no request fits.
        ensure!(
            number < 1000 || !asked.is_empty(),
            "no request leaves room for a canvas of {} tokens",
            settings.length
        );
    }
    let left_out = number as usize - asked.len();
    Ok((asked, left_out))
}

fn answer(session: &Session, settings: &Settings, asked: &Asked) -> Result<Filled> {
    let way = settings.way(settings.block_length, asked.canvas)?;
    let canvas = vec![CanvasSlot::Masked; asked.canvas];
    session.fill(asked.prompt.clone(), canvas, &way)
}

fn fill_gap(
    session: &Session,
    settings: &Settings,
    gap: &Gap,
    scores: &mut GapScores,
) -> Result<()> {
    let prompt = session.encode(&[Message {
        role: Role::User,
        content: gap::REQUEST.to_owned(),
    }])?;
    let text = session.text()?;
    let canvas = gap.on_canvas(text, session.end()?)?;
    let slots = canvas.slots();
    if !session.has_room(prompt.len(), slots.len()) {
        return Ok(());
    }
    // A gap is one block: shared out over several, its steps would not be even.
    let way = settings.way(slots.len(), canvas.masked())?;
    let filled = session.fill(prompt, slots, &way)?;
    let sentence = text.decode(canvas.sentence(&filled.tokens));
    let verdict = gap.judge(&filled.text, String::from_utf8_lossy(&sentence).trim());
    scores.whole.add(verdict.whole);
    scores.consistent.add(verdict.consistent);
    scores.right.add(verdict.right);
    scores.effort.texts += 1;
    scores.effort.tokens += canvas.masked();
    scores.effort.passes += filled.passes;
    scores.effort.seconds += filled.seconds;
    Ok(())
}

impl Settings {
    /// How to fill so many positions.
    fn way(&self, block_length: usize, positions: usize) -> Result<Way> {
        // As many steps for a position on a long canvas as on one of the usual length.
        let steps = match self.schedule {
            Schedule::Steps(steps) => (positions * steps).div_ceil(self.length),
            Schedule::Threshold(_) | Schedule::Factor(_) => positions,
        };
        Ok(Way {
            block_length,
            steps,
            policy: self.schedule.policy()?,
            decoding: Decoding::default(),
            thinking: None,
            seed: 0,
        })
    }

    /// The schedule in words.
    #[must_use]
    pub fn schedule_in_words(&self) -> String {
        match self.schedule {
            Schedule::Steps(steps) => {
                let tokens = self.length as f64 / steps as f64;
                let rounded = (tokens * 100.0).round() / 100.0;
                let unit = if rounded == 1.0 { "token" } else { "tokens" };
                format!("reference, {rounded} {unit} a pass")
            }
            Schedule::Threshold(_) | Schedule::Factor(_) => self.schedule.to_string(),
        }
    }
}

impl Schedule {
    fn policy(self) -> Result<PolicyChoice> {
        Ok(match self {
            Self::Steps(_) => PolicyChoice::default(),
            Self::Threshold(confidence) => PolicyChoice::new("threshold", [("t", confidence)])?,
            Self::Factor(factor) => PolicyChoice::new("factor", [("f", factor)])?,
        })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(formatter, "reference, {steps} steps"),
            Self::Threshold(confidence) => write!(formatter, "threshold {confidence}"),
            Self::Factor(factor) => write!(formatter, "factor {factor}"),
        }
    }
}

impl Scores {
    /// Adds an answer and what it took.
    fn add_filled(&mut self, verdict: &Verdict, filled: &Filled) {
        self.add(verdict, filled.stopped);
        self.repeats += repeats::repeats(&filled.tokens);
        self.effort.add(filled);
    }

    fn add(&mut self, verdict: &Verdict, stopped: bool) {
        self.answers += 1;
        self.names_kept.add_if_some(verdict.names_kept);
        self.words_kept.add_if_some(verdict.words_kept);
        self.no_stranger.add(verdict.no_stranger);
        self.sentences_whole
            .add_many(verdict.sentences_whole, verdict.sentences);
        self.answers_whole.add(verdict.is_whole());
        self.flawless.add(verdict.is_flawless());
        self.stops.add(stopped);
        self.right.add_if_some(verdict.right);
    }
}

impl Scores {
    /// How often tokens are followed by the same tokens again, for each hundred tokens.
    #[must_use]
    pub fn repeats_per_hundred(&self) -> f64 {
        100.0 * self.repeats as f64 / self.effort.tokens.max(1) as f64
    }
}

impl Effort {
    fn add(&mut self, filled: &Filled) {
        self.texts += 1;
        self.tokens += filled.tokens.len() + usize::from(filled.stopped);
        self.passes += filled.passes;
        self.seconds += filled.seconds;
    }

    /// Tokens of the text for each pass.
    #[must_use]
    pub fn tokens_per_pass(&self) -> f64 {
        self.tokens as f64 / self.passes.max(1) as f64
    }

    /// Passes for each text.
    #[must_use]
    pub fn passes_per_text(&self) -> f64 {
        self.passes as f64 / self.texts.max(1) as f64
    }

    /// Seconds for each text.
    #[must_use]
    pub fn seconds_per_text(&self) -> f64 {
        self.seconds / self.texts.max(1) as f64
    }
}

impl Example {
    fn new(sample: &Sample, answer: String) -> Self {
        Self {
            task: sample.task.name().to_owned(),
            messages: sample
                .messages
                .iter()
                .map(|message| Turn {
                    role: message.role.name().to_owned(),
                    content: message.content.clone(),
                })
                .collect(),
            answer,
        }
    }
}

/// The FNV-1a hash of the weights in a folder, which shows whether a judgement is of the same model.
pub fn fingerprint(folder: &Path) -> Result<String> {
    let path = folder.join(WEIGHTS_NAME);
    let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(format!("{hash:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(schedule: Schedule) -> Settings {
        Settings {
            prompts: 1,
            seed: 1,
            length: 128,
            block_length: 32,
            schedule,
        }
    }

    #[test]
    fn steps_are_meant_for_the_usual_canvas() {
        let steps = |schedule, positions| settings(schedule).way(32, positions).expect("way").steps;
        assert_eq!(steps(Schedule::Steps(64), 128), 64);
        assert_eq!(steps(Schedule::Steps(64), 256), 128);
        assert_eq!(steps(Schedule::Steps(64), 5), 3);
        assert_eq!(steps(Schedule::Threshold(0.9), 256), 256);
    }

    #[test]
    fn a_schedule_is_shown_in_tokens_a_pass() {
        let words = |steps| settings(Schedule::Steps(steps)).schedule_in_words();
        assert_eq!(words(128), "reference, 1 token a pass");
        assert_eq!(words(48), "reference, 2.67 tokens a pass");
        assert_eq!(
            settings(Schedule::Threshold(0.9)).schedule_in_words(),
            "threshold 0.9"
        );
    }

    #[test]
    fn settings_survive_being_written() {
        let before = settings(Schedule::Threshold(0.95));
        let text = serde_json::to_string(&before).expect("write");
        assert_eq!(
            serde_json::from_str::<Settings>(&text).expect("read"),
            before
        );
    }
}
