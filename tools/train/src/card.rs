//! The model card: what the model is, how it was made, how good it was found to be, and what it looks like at work.

pub mod command;
pub mod picture;

use std::fmt::Write;

use crate::{
    judge::{Example, Judgement, Schedule, curve::Curve, report},
    objective::Objective,
    progress::Progress,
    quantization::QuantizationOptions,
};

/// The picture of loss against tokens, beside the card.
pub const LOSS_PICTURE: &str = "loss.svg";
/// The picture of quality against tokens a pass.
pub const QUALITY_PICTURE: &str = "quality.svg";

/// The contents of the model card.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The run that trained the model.
    pub run: Run,
    /// A run of the same network on the same text that reads from left to right.
    pub yardstick: Option<Run>,
    /// The judgement of its answers.
    pub judgement: Judgement,
    /// Its quality against tokens a pass.
    pub curve: Curve,
}

/// A training run that has come to an end.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its settings, and how far it got.
    pub progress: Progress,
    /// Entries of the tokenizer, special tokens included.
    pub vocabulary: usize,
    /// Nats for each held-out answer token.
    pub held_out: f64,
    /// The same with the weights of the level that it was trained for, if it was.
    pub held_out_rounded: Option<f64>,
    /// Held-out samples by which that was measured.
    pub samples: u64,
}

/// The text of the model card, in Markdown.
#[must_use]
pub fn text(facts: &Facts) -> String {
    let sections = [
        introduction(&facts.run.progress),
        making(facts),
        data(),
        training(facts),
        judgement(&facts.judgement),
        curve(&facts.curve),
        examples(&facts.judgement),
        LIMITS.to_owned(),
        LICENCE.to_owned(),
    ];
    sections.join("\n")
}

fn introduction(progress: &Progress) -> String {
    let config = &progress.config;
    format!(
        "---
license: apache-2.0
language: en
---

# A small demonstration model

A masked-diffusion language model with {parameters:.1} million parameters in the shape of LLaDA
([arXiv 2502.09992](https://arxiv.org/abs/2502.09992)): {layers} blocks, width {width}, {heads} heads,
{mlp} wide inside the gated layers, {vocabulary} embedding rows, {length} positions at most, weights in BF16. It tells very
short children's stories, and it is here to show Sluice at work without a download.

It can be asked for a story about somebody or something, for one with given words or a given beginning, for the rest of
a story, a missing sentence, a short form, the same story with another hero, and for answers to questions about a story.
With tokens pinned on both sides it fills what is open between them.

Good questions: \"Tell me a story about Mia and a lost kite.\", \"Write a story with these words: Theo, fox, lake.\",
\"Tell me a bedtime story about a girl named Greta who wants a drum.\", \"Who are you?\"
",
        parameters = config.parameters() as f64 / 1e6,
        layers = config.layers(),
        width = config.width(),
        heads = config.heads(),
        mlp = config.inner(),
        vocabulary = config.vocab_size(),
        length = config.length_max(),
    )
}

fn making(facts: &Facts) -> String {
    let judged = &facts.judgement.settings;
    let curve = &facts.curve.settings;
    let program = "cargo run --release -p sluice-train --";
    let mut commands = train_command(program, "run", &facts.run);
    let mut yardstick = "";
    if let Some(run) = &facts.yardstick {
        commands += &train_command(program, "yardstick", run);
        yardstick = " --yardstick yardstick";
    }
    let schedule = match judged.schedule {
        Schedule::Steps(steps) => format!("--steps {steps}"),
        Schedule::Threshold(confidence) => format!("--threshold {confidence}"),
        Schedule::Factor(factor) => format!("--factor {factor}"),
    };
    format!(
        "## How it was made

```
{commands}{program} export --checkpoint run --output daemon/model
{program} judge --model daemon/model --json \\
    --prompts {prompts} --seed {seed} --length {length} --block-length {block_length} {schedule} > judge.json
{program} judge --model daemon/model --json --curve \\
    --prompts {curve_prompts} --seed {curve_seed} --length {curve_length} --block-length {curve_block} > curve.json
{program} card --checkpoint run --model daemon/model \\
    --judgement judge.json --curve curve.json --samples {samples}{yardstick}
```

{origin}
",
        origin = origin(&facts.run.progress),
        prompts = judged.prompts,
        seed = judged.seed,
        length = judged.length,
        block_length = judged.block_length,
        curve_prompts = curve.prompts,
        curve_seed = curve.seed,
        curve_length = curve.length,
        curve_block = curve.block_length,
        samples = facts.run.samples,
    )
}

/// What decides the weights besides the commands.
fn origin(progress: &Progress) -> String {
    let mut text = match &progress.began_with {
        None => "Tokenizer, text, masks and initial weights all follow from the seed, and so do the requests by which it is \
judged; there
is no other source of data."
            .to_owned(),
        Some(weights) => format!(
            "`BEFORE` is the model before this one, with the weights {weights}; shape and tokenizer are its own. It was trained
in the same way, and the first of the line from a seed alone; the project's history has the cards of those that were
published. Text and masks follow from the seed, and so do the requests by which it is judged; there is no other source
of data."
        ),
    };
    text += match progress.seconds_planned {
        None => " The number of threads does not change the training.",
        Some(_) => {
            " How many steps fit the time is up to the machine, so that the same command gives other weights elsewhere."
        }
    };
    text
}

/// The command with everything that decides the weights, also where it is the default: defaults change.
fn train_command(program: &str, output: &str, run: &Run) -> String {
    let Run {
        progress,
        vocabulary,
        ..
    } = run;
    let Progress { config, batch, .. } = progress;
    let objective = match batch.objective {
        Objective::Diffusion => "",
        Objective::Autoregressive => " --objective autoregressive",
        Objective::Latent => " --objective latent",
    };
    let until = match progress.seconds_planned {
        Some(seconds) => format!("--seconds {seconds}"),
        None => format!("--steps {}", progress.steps_planned),
    };
    // With weights of another model, shape and tokenizer are that model's and cannot be chosen.
    // Of another model come shape and tokenizer, too.
    let shape = match &progress.began_with {
        Some(_) => " --from BEFORE".to_owned(),
        None => format!(
            " --vocabulary {vocabulary} --layers {} --width {} --mlp {} --heads {}",
            config.layers(),
            config.width(),
            config.inner(),
            config.heads()
        ),
    };
    let quantization = match &progress.quantization {
        None => String::new(),
        Some(QuantizationOptions {
            level,
            share,
            task_weight,
            kl_weight,
        }) => format!(
            " \\\n    --quantize {level} --quantize-share {share} --task-weight {task_weight} --kl-weight {kl_weight}"
        ),
    };
    format!(
        "{program} train --output {output}{objective} --seed {} {until} \\
    --learning-rate {} --warm-up-steps {} --exercise-steps {} --length-warm-up-steps {} \\
    --parts {} --part-tokens {}{shape}{quantization}\n",
        batch.seed,
        progress.learning_rate,
        progress.warm_up_steps,
        batch.exercise_steps,
        batch.length_warm_up_steps,
        batch.parts,
        batch.part_tokens,
    )
}

fn data() -> String {
    "## Data

All text comes from the generator in `tools/train/src/corpus.rs`: a dozen plots told with a few hundred words, about
names, things, places and helpers from its lists, and the ways to ask for them. A quarter of the names are from a list
of seldom ones, so that a name has to be copied from the request and cannot be known by heart; six in a hundred have no
token of their own and are copied in pieces. Whom a story brings in unasked goes by whom it is about: a girl meets Ben, a
boy Mia, and an animal Luna the rabbit or Theo the bear.

The tokenizer has the words of this language as they are, one token each, and byte-level BPE for all others.

About one story in sixteen is held out. A hash of plot, hero and main thing decides, so no story about the same three
is in both halves, in whatever words; plots, words and names as such are shared. Everything below is measured with
requests from the held-out half. It shows how well the model has learned this language, not how it would fare with
another.
"
    .to_owned()
}

fn training(facts: &Facts) -> String {
    let Progress {
        step,
        steps_planned,
        tokens,
        train_seconds,
        ..
    } = facts.run.progress;
    let planned = if step == steps_planned || facts.run.progress.seconds_planned.is_some() {
        String::new()
    } else {
        format!(" of {steps_planned} planned")
    };
    let mut text = format!(
        "## Training

{step} steps{planned}, {millions:.1} million tokens (prompts and padding included), {minutes:.0} minutes,
{speed:.0} tokens a second.

| | nats for each held-out answer token |
|---|---:|
| this model, upper bound | {held_out:.3} |
",
        millions = tokens as f64 / 1e6,
        minutes = train_seconds / 60.0,
        speed = tokens as f64 / train_seconds,
        held_out = facts.run.held_out,
    );
    if let (Some(quantization), Some(nats)) =
        (&facts.run.progress.quantization, facts.run.held_out_rounded)
    {
        let level = quantization.level;
        writeln!(
            text,
            "| this model at level `{level}`, upper bound | {nats:.3} |"
        )
        .expect("a string takes everything");
    }
    if let Some(yardstick) = &facts.yardstick {
        let progress = &yardstick.progress;
        writeln!(
            text,
            "| the yardstick after {:.1} million tokens, exact | {:.3} |",
            progress.tokens as f64 / 1e6,
            yardstick.held_out
        )
        .expect("a string takes everything");
    }
    write!(
        text,
        "
Measured on {} held-out samples. For a masked-diffusion model this is an estimate of an upper bound of the negative
log-likelihood (arXiv 2502.09992, equation 14), the padding of the canvas included; the true value may be lower.",
        facts.run.samples
    )
    .expect("a string takes everything");
    if let Some(yardstick) = &facts.yardstick {
        let millions = yardstick.progress.config.parameters() as f64 / 1e6;
        write!(
            text,
            " The
yardstick is an autoregressive network with {millions:.1} million parameters, trained on text from the same generator.
Its number is exact, so the two are not alike, and a higher one for this model does not say by how much it is worse."
        )
        .expect("a string takes everything");
    }
    if let Some(quantization) = &facts.run.progress.quantization {
        write!(
            text,
            "

The last {share:.0} % of the run computed with the weights that level `{level}` deploys, at a tenth of the learning
rate, so that the model loses less at that level (quantization-aware training, docs/demonstration-model.md).",
            share = 100.0 * quantization.share,
            level = quantization.level,
        )
        .expect("a string takes everything");
    }
    text += &format!(
        "\n\n![Training loss and held-out likelihood against training tokens]({LOSS_PICTURE})\n"
    );
    text
}

fn judgement(judgement: &Judgement) -> String {
    let settings = &judgement.settings;
    let left_out = match judgement.left_out {
        0 => String::new(),
        count => format!(" {count} were left out because they did not fit the model."),
    };
    format!(
        "## Quality

The engine of Sluice answers the first {prompts} held-out requests of seed {seed} at temperature 0, in blocks of
{block_length} positions. A program judges the answers.{left_out}

{answers}
- *names kept, words kept*: the answer has all the names, and all the words (names, animals, things, places, helpers),
  that it needs. Of the answers to questions, *words kept* says how many name what was asked for.
- *no stranger*: it names nobody who does not belong there. The rule finds fault with about one in a hundred right
  stories; the last row says with how many of these.
- *sentences whole, all whole*: the language can produce the sentence; all sentences of the answer.
- *flawless*: all sentences are whole, and it names all whom it should and nobody else.
- *stops*: it ends before its canvas is full.
- *right*: it is the expected answer, letter by letter. Of summaries there are several, and of missing sentences often,
  so nothing can reach 100 % there; of answers to questions there is hardly another one.

The canvas has {length} positions, or the next multiple of that if the right answer needs more.
{effort}.

Gaps in held-out stories, with everything before and after pinned; the request says only \"Tell me a story.\":

{gaps}
- *text whole*: every sentence of the text is whole afterwards.
- *consistent*: the text is whole, and no person, animal, thing, place or helper comes up in the gap that stands nowhere
  else in it.
- *the very words*: the gap is as it was before. For a word this is what should be; for a sentence there are others.
",
        prompts = settings.prompts,
        seed = settings.seed,
        block_length = settings.block_length,
        length = settings.length,
        answers = report::answers(judgement).markdown(),
        gaps = report::gaps(judgement).markdown(),
        effort = capital(&report::effort(judgement)),
    )
}

fn curve(curve: &Curve) -> String {
    format!(
        "## Quality against speed

The first {prompts} held-out requests of seed {seed}, answered with the reference schedule of LLaDA at a given number of
tokens a pass and with the threshold policy of Fast-dLLM ([arXiv 2505.22618](https://arxiv.org/abs/2505.22618)), which
commits all tokens of at least the given confidence. Tokens a pass are those of the text; padding is not counted. Passes
and seconds are for one answer, on {threads} threads.

{table}
![Quality against tokens a pass]({QUALITY_PICTURE})
",
        prompts = curve.settings.prompts,
        seed = curve.settings.seed,
        threads = curve.threads,
        table = report::curve(curve).markdown(),
    )
}

fn examples(judgement: &Judgement) -> String {
    let mut text = format!(
        "## Samples

The first {} requests of the judgement and their answers ({}), not selected.
",
        judgement.examples.len(),
        judgement.settings.schedule_in_words(),
    );
    for (number, example) in judgement.examples.iter().enumerate() {
        write!(text, "\n{}", quoted(number + 1, example)).expect("a string takes everything");
    }
    text
}

fn quoted(number: usize, example: &Example) -> String {
    let mut text = format!("**{number}.** *{}*\n\n", example.task);
    for message in &example.messages {
        let role = capital(&message.role);
        text += &format!("> **{role}:** {}\n>\n", verbatim(&message.content));
    }
    text + &format!("> **The model:** {}\n", verbatim(&example.answer))
}

/// Text inside a quote that Markdown leaves as it is.
fn verbatim(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.trim().chars() {
        match letter {
            '\n' => escaped.push_str("  \n> "),
            '\\' | '`' | '*' | '_' | '<' | '>' | '[' | ']' | '#' | '|' => {
                escaped.extend(['\\', letter]);
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

const LIMITS: &str = "## Limits

It knows nothing but its stories: no facts, no other language, no other kind of text. Asked for anything else it
may say that it can only tell stories, or it answers with something that looks like one of them. Words that are not on
the generator's lists it has never seen, and it has only ever copied names from a list of about two hundred. It was not
tested on requests worded by people, and it was never meant for children or anybody else to rely on.
";

const LICENCE: &str = "## Licence

Apache-2.0. The chat template is LLaDA's (MIT).
";

#[cfg(test)]
mod tests;
