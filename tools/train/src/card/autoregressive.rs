//! The card of an autoregressive model: RWKV-7 or Llama.

use super::{
    ASKING, MEASURES, PROGRAM, Run, data, examples, header, joined, left_out, making, megabytes,
    shape, train_command, training,
};
use crate::{
    config::ModelConfig,
    judge::{Judgement, report},
};

/// What was found about an autoregressive model.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// The judgement of its answers.
    pub judgement: Judgement,
}

pub(super) fn text(run: &Run, findings: &Findings) -> String {
    joined([
        introduction(run),
        making(run, &commands(run, findings)),
        data(),
        training(run, &likelihood(run)),
        judgement(&findings.judgement),
        examples(&findings.judgement, "at temperature 0"),
    ])
}

fn introduction(run: &Run) -> String {
    let config = &run.progress.config;
    let [name, paper] = match config {
        ModelConfig::Rwkv7(_) => ["RWKV-7", "2503.14456"],
        _ => ["Llama", "2302.13971"],
    };
    format!(
        "{header}
An autoregressive language model with {parameters:.1} million parameters ({megabytes}) in the shape of {name}
([arXiv {paper}](https://arxiv.org/abs/{paper})): {shape}. It tells very
short children's stories, and it is here to show Sluice at work.

{ASKING}
",
        header = header(&format!("A small {name} demonstration model")),
        parameters = config.parameters() as f64 / 1e6,
        megabytes = megabytes(config),
        shape = shape(config),
    )
}

fn commands(run: &Run, findings: &Findings) -> String {
    let judged = &findings.judgement.settings;
    format!(
        "{train}{PROGRAM} export --checkpoint run --output model
{PROGRAM} judge --model model --json --prompts {prompts} --seed {seed} --length {length} > judge.json
{PROGRAM} card --checkpoint run --model model --judgement judge.json --samples {samples}
",
        train = train_command("run", run),
        prompts = judged.prompts,
        seed = judged.seed,
        length = judged.length,
        samples = run.samples,
    )
}

fn likelihood(run: &Run) -> String {
    let mut text = format!(
        "| | nats for each held-out answer token |\n|---|---:|\n| this model | {:.4} |\n",
        run.held_out
    );
    if let (Some(quantization), Some(nats)) = (&run.progress.quantization, run.held_out_rounded) {
        let level = quantization.level;
        text += &format!("| this model at level `{level}` | {nats:.4} |\n");
    }
    text + &format!(
        "
Measured on {} held-out samples, exactly: the tokens of an answer given what stands before them, the end of turn included.",
        run.samples
    )
}

fn judgement(judgement: &Judgement) -> String {
    let settings = &judgement.settings;
    let effort = &judgement.overall.effort;
    format!(
        "## Quality

The engine of Sluice answers the first {prompts} held-out requests of seed {seed} at temperature 0. A program judges the
answers.{left_out}

{answers}
{MEASURES}
An answer may take {length} tokens, or the next multiple of that if the right one needs more. It took {tokens:.1} tokens and
{seconds:.2} s on {threads} threads.
",
        prompts = settings.prompts,
        seed = settings.seed,
        length = settings.length,
        left_out = left_out(judgement.left_out),
        answers = report::answers(judgement).markdown(),
        tokens = effort.tokens as f64 / effort.texts.max(1) as f64,
        seconds = effort.seconds_per_text(),
        threads = judgement.threads,
    )
}
