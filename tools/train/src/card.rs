//! The model card: what the model is, how it was made, how good it was found to be, and what it looks like at work. A
//! module for each kind of model; here is what their cards share.

mod autoregressive;
pub mod command;
mod diffusion;
mod latent_thought;
pub mod picture;

use crate::{
    config::ModelConfig,
    judge::{Example, Judgement},
    objective::Objective,
    progress::Progress,
    quantization::QuantizationOptions,
};

pub use self::{
    autoregressive::Findings as AutoregressiveFindings, diffusion::Findings as DiffusionFindings,
    latent_thought::Findings as LatentThoughtFindings,
};

/// The picture of loss against tokens, beside the card.
pub const LOSS_PICTURE: &str = "loss.svg";
/// The picture of quality against tokens a pass.
pub const QUALITY_PICTURE: &str = "quality.svg";

/// How the commands on a card begin.
const PROGRAM: &str = "cargo run --release -p sluice-train --";

/// The contents of the model card.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The run that trained the model.
    pub run: Run,
    /// What was found about it.
    pub findings: Findings,
}

/// What was found about a model, by its kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Findings {
    /// A masked diffusion model.
    Diffusion(Box<DiffusionFindings>),
    /// An autoregressive model.
    Autoregressive(Box<AutoregressiveFindings>),
    /// A latent thought model.
    LatentThought(Box<LatentThoughtFindings>),
}

/// A training run that has come to an end.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its settings, and how far it got.
    pub progress: Progress,
    /// Entries of the tokenizer, special tokens included.
    pub vocabulary: usize,
    /// Nats for each held-out answer token; of a latent thought model the evidence bound for each held-out token.
    pub held_out: f64,
    /// The same with the weights of the level that it was trained for, if it was.
    pub held_out_rounded: Option<f64>,
    /// Held-out samples by which that was measured.
    pub samples: u64,
}

/// The text of the model card, in Markdown.
#[must_use]
pub fn text(facts: &Facts) -> String {
    match &facts.findings {
        Findings::Diffusion(found) => diffusion::text(&facts.run, found),
        Findings::Autoregressive(found) => autoregressive::text(&facts.run, found),
        Findings::LatentThought(found) => latent_thought::text(&facts.run, found),
    }
}

/// The sections of a card, and those that end every card.
fn joined<const COUNT: usize>(sections: [String; COUNT]) -> String {
    sections.join("\n") + "\n" + LIMITS + "\n" + LICENCE
}

/// What a page of models reads, and the title.
fn header(title: &str) -> String {
    format!("---\nlicense: apache-2.0\nlanguage: en\n---\n\n# {title}\n")
}

fn shape(config: &ModelConfig) -> String {
    format!(
        "{layers} blocks, width {width}, {heads} heads,
{mlp} wide inside the gated layers, {vocabulary} embedding rows, {length} positions at most, weights in BF16",
        layers = config.layers(),
        width = config.width(),
        heads = config.heads(),
        mlp = config.inner(),
        vocabulary = config.vocab_size(),
        length = config.length_max(),
    )
}

/// Bytes of the weights in BF16, in words.
fn megabytes(config: &ModelConfig) -> String {
    format!("{:.1} MB", 2.0 * config.parameters() as f64 / 1e6)
}

const ASKING: &str = "It can be asked for a story about somebody or something, for one with given words or a given beginning, for the rest of
a story, a missing sentence, a short form, the same story with another hero, and for answers to questions about a story.";

fn making(run: &Run, commands: &str) -> String {
    format!(
        "## How it was made

```
{commands}```

{origin}
",
        origin = origin(&run.progress),
    )
}

/// What decides the weights besides the commands.
fn origin(progress: &Progress) -> String {
    let [first, drawn] = match progress.batch.objective {
        Objective::Diffusion => ["text, masks", "Text and masks follow"],
        Objective::Autoregressive => ["text", "Text follows"],
        Objective::Latent => ["text, noise", "Text and noise follow"],
    };
    let mut text = match &progress.began_with {
        None => format!(
            "Tokenizer, {first} and initial weights all follow from the seed, and so do the requests by which it is judged; there
is no other source of data."
        ),
        Some(weights) => format!(
            "`BEFORE` is the model before this one, with the weights {weights}; shape and tokenizer are its own. It was trained
in the same way, and the first of the line from a seed alone; the project's history has the cards of those that were
published. {drawn} from the seed, and so do the requests by which it is judged; there is no other source
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
fn train_command(output: &str, run: &Run) -> String {
    let Run {
        progress,
        vocabulary,
        ..
    } = run;
    let Progress { config, batch, .. } = progress;
    let kind = match config {
        ModelConfig::Rwkv7(_) => " --model rwkv7",
        ModelConfig::LatentThought(_) => " --model ltm",
        ModelConfig::Transformer(_) => match batch.objective {
            Objective::Autoregressive => " --objective autoregressive",
            _ => "",
        },
    };
    let until = match progress.seconds_planned {
        Some(seconds) => format!("--seconds {seconds}"),
        None => format!("--steps {}", progress.steps_planned),
    };
    // Of another model come shape and tokenizer, too.
    let mut shape = match &progress.began_with {
        Some(_) => " --from BEFORE".to_owned(),
        None => format!(
            " --sequence-length {} --vocabulary {vocabulary} --layers {} --width {} --mlp {} --heads {}",
            config.length_max(),
            config.layers(),
            config.width(),
            config.inner(),
            config.heads()
        ),
    };
    if let (ModelConfig::LatentThought(config), None) = (config, &progress.began_with) {
        shape += &format!(
            " \\\n    --window {} --latents-per-layer {}",
            config.window_size,
            config.latents_per_layer()
        );
    }
    if let Some(latent) = &progress.latent {
        shape += &format!(
            " \\\n    --fast-steps {} --fast-learning-rate {} --fast-learning-rate-last {} \\
    --initial-log-variance {} --kl-warm-up {} --prefix-share {}",
            latent.steps,
            latent.first_rate,
            latent.last_rate,
            latent.initial_log_variance,
            latent.kl_warm_up,
            latent.prefix_share
        );
    }
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
        "{PROGRAM} train --output {output}{kind} --seed {} {until} \\
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

/// How long it was trained, and how likely held-out text is to it.
fn training(run: &Run, likelihood: &str) -> String {
    let Progress {
        step,
        steps_planned,
        tokens,
        train_seconds,
        ..
    } = run.progress;
    let planned = if step == steps_planned || run.progress.seconds_planned.is_some() {
        String::new()
    } else {
        format!(" of {steps_planned} planned")
    };
    format!(
        "## Training

{step} steps{planned}, {millions:.1} million tokens (prompts and padding included), {minutes:.0} minutes,
{speed:.0} tokens a second.

{likelihood}

![Training loss and held-out likelihood against training tokens]({LOSS_PICTURE})
",
        millions = tokens as f64 / 1e6,
        minutes = train_seconds / 60.0,
        speed = tokens as f64 / train_seconds,
    )
}

/// What the columns of a judgement mean.
const MEASURES: &str = "- *names kept, words kept*: the answer has all the names, and all the words (names, animals, things, places, helpers),
  that it needs. Of the answers to questions, *words kept* says how many name what was asked for.
- *no stranger*: it names nobody who does not belong there. The rule finds fault with about one in a hundred right
  stories; the last row says with how many of these.
- *sentences whole, all whole*: the language can produce the sentence; all sentences of the answer.
- *flawless*: all sentences are whole, and it names all whom it should and nobody else.
- *stops*: it ends by itself, before its room is full.
- *right*: it is the expected answer, letter by letter. Of summaries there are several, and of missing sentences often,
  so nothing can reach 100 % there; of answers to questions there is hardly another one.
";

fn left_out(requests: usize) -> String {
    match requests {
        0 => String::new(),
        count => format!(" {count} were left out because they did not fit the model."),
    }
}

fn examples(judgement: &Judgement, how: &str) -> String {
    let mut text = format!(
        "## Samples

The first {} requests of the judgement and their answers ({how}), not selected.
",
        judgement.examples.len(),
    );
    for (number, example) in judgement.examples.iter().enumerate() {
        let answers = [("The model".to_owned(), example.answer.as_str())];
        text += &format!("\n{}", quoted(number + 1, example, &answers));
    }
    text
}

/// A request, and answers with who gave them.
fn quoted(number: usize, example: &Example, answers: &[(String, &str)]) -> String {
    let mut text = format!("**{number}.** *{}*\n\n", example.task);
    for message in &example.messages {
        let role = capital(&message.role);
        text += &format!("> **{role}:** {}\n>\n", verbatim(&message.content));
    }
    let answers: Vec<String> = (answers.iter())
        .map(|(who, answer)| format!("> **{who}:** {}\n", verbatim(answer)))
        .collect();
    text + &answers.join(">\n")
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
