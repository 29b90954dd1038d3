//! The card of a latent thought model: what thinking does to its answers, and what its prior is worth.

use super::{
    ASKING, PROGRAM, Run, capital, data, header, joined, making, megabytes, quoted, shape,
    train_command, training,
};
use crate::{
    config::ModelConfig,
    judge::{report::Table, ways::Ways},
    latent::bound::Bound,
    prior::{Origin, PriorConfig, comparison::Comparison},
};

/// Requests whose answers are shown.
const EXAMPLES: usize = 4;

/// What was found about a latent thought model.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// The likelihood of held-out texts, and of answers after each number of steps.
    pub bound: Bound,
    /// Samples of each posterior.
    pub draws: usize,
    /// The numbers of steps.
    pub thinking: Vec<usize>,
    /// Its answers after each number of steps.
    pub ways: Ways,
    /// The learned prior, if the model has one.
    pub prior: Option<PriorFindings>,
}

/// What was found about a learned prior.
#[derive(Debug, Clone, PartialEq)]
pub struct PriorFindings {
    /// The shape of its network.
    pub config: PriorConfig,
    /// How it was trained, where its file says so.
    pub origin: Option<Origin>,
    /// Its samples beside other latents.
    pub comparison: Comparison,
}

pub(super) fn text(run: &Run, findings: &Findings) -> String {
    joined([
        introduction(run),
        making(run, &commands(run, findings)),
        data(),
        training(run, &likelihood(run, findings)),
        thinking(run, findings),
        prior(findings),
        examples(findings),
    ])
}

fn introduction(run: &Run) -> String {
    let config = &run.progress.config;
    let latents = match config {
        ModelConfig::LatentThought(config) => format!(
            "Attention sees {} positions;
what reaches further has to come from {} latent vectors of {} elements for each of its layers, which belong to one text.",
            config.window_size,
            config.latents_per_layer(),
            config.dim
        ),
        _ => String::new(),
    };
    format!(
        "{header}
A latent thought model ([arXiv 2502.01567](https://arxiv.org/abs/2502.01567)) with {parameters:.1} million parameters
({megabytes}): {shape}. {latents}
Before it writes, the latents are inferred from the prompt: it thinks, with `--think N` for at most N steps. It tells very
short children's stories, and it is here to show what thinking does.

{ASKING}
",
        header = header("A small demonstration model that thinks in latents"),
        parameters = config.parameters() as f64 / 1e6,
        megabytes = megabytes(config),
        shape = shape(config),
    )
}

fn commands(run: &Run, findings: &Findings) -> String {
    let mut text = train_command("run", run);
    text += &format!("{PROGRAM} export --checkpoint run --output model\n");
    if let Some(PriorFindings {
        config,
        origin: Some(Origin {
            options,
            posteriors,
        }),
        ..
    }) = &findings.prior
    {
        text += &format!(
            "{PROGRAM} posteriors --checkpoint run --count {posteriors} --output posteriors.safetensors
{PROGRAM} --threads {threads} prior --model model --posteriors posteriors.safetensors --seed {seed} \\
    --steps {steps} --texts {texts} --learning-rate {rate} --width {width} --layers {layers} --heads {heads}
",
            threads = options.threads,
            seed = options.seed,
            steps = options.steps,
            texts = options.texts,
            rate = options.learning_rate,
            width = config.width,
            layers = config.layers,
            heads = config.heads,
        );
    }
    let ways = &findings.ways;
    let each: String = (ways.rows.iter())
        .map(|row| format!(" --way \"{}\"", row.way))
        .collect();
    text + &format!(
        "{PROGRAM} judge --model model --json --prompts {prompts} --seed {seed} --length {length} \\
   {each} > think.json
{PROGRAM} card --checkpoint run --model model --judgement think.json --samples {samples}{prior_samples}
",
        prompts = ways.settings.prompts,
        seed = ways.settings.seed,
        length = ways.settings.length,
        samples = run.samples,
        prior_samples = (findings.prior.as_ref())
            .map_or(String::new(), |prior| format!(" --prior-samples {}", prior.comparison.options.samples)),
    )
}

fn likelihood(run: &Run, findings: &Findings) -> String {
    let bound = &findings.bound;
    format!(
        "| held-out texts, the request included | nats for each token |
|---|---:|
| tokens, with latents of the text's posterior (NLL) | {nll:.3} |
| latents: KL divergence of the posterior from N(0, 1) | {kl:.3} |
| their sum, the evidence bound of −log p(x) | {evidence:.3} |
| the bound of {draws} samples (arXiv 1509.00519) | {many:.3} |

Measured on {samples} held-out samples, {draws} draws of latents for each, with fresh noise. Latents are learned in {steps} steps
with the KL divergence at a weight of {weight:.2}, so the sum is not as low as a bound could be: see docs/training.md.",
        nll = bound.nll,
        kl = bound.kl,
        evidence = bound.evidence(),
        many = bound.multi_sample,
        draws = findings.draws,
        samples = run.samples,
        steps = run.progress.latent.map_or(0, |latent| latent.steps),
        weight = run.progress.latent.map_or(1.0, |latent| latent.at(1.0).kl_weight),
    )
}

fn thinking(run: &Run, findings: &Findings) -> String {
    let ways = &findings.ways;
    let mut table = Table::new(&[
        "steps on the prompt",
        "nats an answer token",
        "names kept",
        "words kept",
        "no stranger",
        "sentences whole",
        "stops",
    ]);
    let nats = findings.bound.answers.iter();
    for ((row, steps), nats) in ways.rows.iter().zip(&findings.thinking).zip(nats) {
        let scores = &row.scores;
        table.add(
            &steps.to_string(),
            [
                format!("{nats:.3}"),
                scores.names_kept.to_string(),
                scores.words_kept.to_string(),
                scores.no_stranger.to_string(),
                scores.sentences_whole.to_string(),
                scores.stops.to_string(),
            ],
        );
    }
    format!(
        "## What thinking does

{table}
- *steps on the prompt*: with 0, latents are drawn from N(0, 1) and know nothing of the prompt.
- *nats an answer token*: −log p of the answers of {samples} held-out samples, by the trainer's own network, with {draws} draws of
  latents that were learned from the prompt alone in exactly so many steps.
- The other columns: what a program finds in the engine's answers to the first {prompts} held-out requests of seed {seed} (`--think N`,
  temperature 0, the number of the request for the seed of its noise, the same for all rows). The engine stops thinking
  where the bound no longer falls. *Names kept, words kept*: the answer has all the names, and all the words (names, animals,
  things, places, helpers), that the request asks for. *No stranger*: it names nobody who does not belong there.
  *Sentences whole*: the language can produce the sentence. *Stops*: it ends within {length} tokens, or the next multiple of
  that if the right answer needs more.
",
        table = table.markdown(),
        samples = run.samples,
        draws = findings.draws,
        prompts = ways.settings.prompts,
        seed = ways.settings.seed,
        length = ways.settings.length,
    )
}

fn prior(findings: &Findings) -> String {
    let Some(prior) = &findings.prior else {
        return "## The prior\n\nLatents that were not inferred are drawn from N(0, 1); no other prior was learned.\n".to_owned();
    };
    let found = &prior.comparison;
    let mut table = Table::new(&[
        "latents",
        "evaluations",
        "NLL",
        "bound with the set as prior",
        "energy distance",
    ]);
    for set in &found.sets {
        table.add(
            &set.name,
            [
                set.evaluations
                    .map_or("–".to_owned(), |count| count.to_string()),
                format!("{:.3}", set.nll),
                format!("{:.3}", set.mixture),
                format!("{:.4}", set.distance),
            ],
        );
    }
    format!(
        "## The prior

A diffusion transformer with {parameters:.1} million weights in F32 (`prior.safetensors`) was trained on posteriors of training texts.
Samples of it by the engine's solvers, beside posterior samples:

{table}
Each row is a set of {count} latents; all but the first begin with the same noise.

- *NLL*: nats for each token of {measured} held-out texts by the decoder, the mean over the texts and the first {measured} latents of the set.
  No latents were inferred from the text that they are measured on.
- *bound with the set as prior*: −log of the mean of p(x | z) over the same latents, in nats for each token: the cost of a text for
  somebody who has the set in the place of the prior.
- *energy distance*: 2·E|x − y| − E|x − x′| − E|y − y′|, x from the set and y from posterior samples of {count} other held-out texts,
  |·| the root mean square over the elements; without bias, so that it may come out below zero. The first row is the
  yardstick: two sets of posterior samples.
",
        parameters = prior.config.parameters() as f64 / 1e6,
        table = table.markdown(),
        count = found.latents,
        measured = found.measured,
    )
}

/// The same requests with each number of steps.
fn examples(findings: &Findings) -> String {
    let rows = &findings.ways.rows;
    let stories = rows.first().map_or(&[][..], |row| &row.examples);
    let stories = stories.iter().enumerate();
    let stories = stories.filter(|(_, example)| example.task == "story");
    let mut text = format!(
        "## Samples

The first {EXAMPLES} requests for a story, with each number of steps and the same seed, not selected.
"
    );
    for (number, (which, example)) in stories.take(EXAMPLES).enumerate() {
        let answers: Vec<(String, &str)> = (rows.iter())
            .filter_map(|row| Some((capital(&row.way), row.examples.get(which)?.answer.as_str())))
            .collect();
        text += &format!("\n{}", quoted(number + 1, example, &answers));
    }
    text
}
