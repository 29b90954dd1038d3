//! The card of a masked diffusion model.

use std::fmt::Write;

use super::{
    ASKING, MEASURES, PROGRAM, QUALITY_PICTURE, Run, capital, data, examples, header, joined,
    left_out, making, shape, train_command, training,
};
use crate::judge::{Judgement, Schedule, curve::Curve, report};

/// What was found about a masked diffusion model.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// A run of the same network on the same text that reads from left to right.
    pub yardstick: Option<Run>,
    /// The judgement of its answers.
    pub judgement: Judgement,
    /// Its quality against tokens a pass.
    pub curve: Curve,
}

pub(super) fn text(run: &Run, findings: &Findings) -> String {
    let judged = &findings.judgement;
    joined([
        introduction(run),
        making(run, &commands(run, findings)),
        data(),
        training(run, &likelihood(run, findings)),
        judgement(judged),
        curve(&findings.curve),
        examples(judged, &judged.settings.schedule_in_words()),
    ])
}

fn introduction(run: &Run) -> String {
    format!(
        "{header}
A masked-diffusion language model with {parameters:.1} million parameters in the shape of LLaDA
([arXiv 2502.09992](https://arxiv.org/abs/2502.09992)): {shape}. It tells very
short children's stories, and it is here to show Sluice at work without a download.

{ASKING}
With tokens pinned on both sides it fills what is open between them.

Good questions: \"Tell me a story about Mia and a lost kite.\", \"Write a story with these words: Theo, fox, lake.\",
\"Tell me a bedtime story about a girl named Greta who wants a drum.\", \"Who are you?\"
",
        header = header("A small demonstration model"),
        parameters = run.progress.config.parameters() as f64 / 1e6,
        shape = shape(&run.progress.config),
    )
}

fn commands(run: &Run, findings: &Findings) -> String {
    let judged = &findings.judgement.settings;
    let curve = &findings.curve.settings;
    let mut commands = train_command("run", run);
    let mut yardstick = "";
    if let Some(run) = &findings.yardstick {
        commands += &train_command("yardstick", run);
        yardstick = " --yardstick yardstick";
    }
    let schedule = match judged.schedule {
        Schedule::Steps(steps) => format!("--steps {steps}"),
        Schedule::Threshold(confidence) => format!("--threshold {confidence}"),
        Schedule::Factor(factor) => format!("--factor {factor}"),
    };
    format!(
        "{commands}{PROGRAM} export --checkpoint run --output daemon/model
{PROGRAM} judge --model daemon/model --json \\
    --prompts {prompts} --seed {seed} --length {length} --block-length {block_length} {schedule} > judge.json
{PROGRAM} judge --model daemon/model --json --curve \\
    --prompts {curve_prompts} --seed {curve_seed} --length {curve_length} --block-length {curve_block} > curve.json
{PROGRAM} card --checkpoint run --model daemon/model \\
    --judgement judge.json --curve curve.json --samples {samples}{yardstick}
",
        prompts = judged.prompts,
        seed = judged.seed,
        length = judged.length,
        block_length = judged.block_length,
        curve_prompts = curve.prompts,
        curve_seed = curve.seed,
        curve_length = curve.length,
        curve_block = curve.block_length,
        samples = run.samples,
    )
}

fn likelihood(run: &Run, findings: &Findings) -> String {
    let mut text = format!(
        "| | nats for each held-out answer token |
|---|---:|
| this model, upper bound | {held_out:.3} |
",
        held_out = run.held_out,
    );
    if let (Some(quantization), Some(nats)) = (&run.progress.quantization, run.held_out_rounded) {
        let level = quantization.level;
        writeln!(
            text,
            "| this model at level `{level}`, upper bound | {nats:.3} |"
        )
        .expect("a string takes everything");
    }
    if let Some(yardstick) = &findings.yardstick {
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
        run.samples
    )
    .expect("a string takes everything");
    if let Some(yardstick) = &findings.yardstick {
        let millions = yardstick.progress.config.parameters() as f64 / 1e6;
        write!(
            text,
            " The
yardstick is an autoregressive network with {millions:.1} million parameters, trained on text from the same generator.
Its number is exact, so the two are not alike, and a higher one for this model does not say by how much it is worse."
        )
        .expect("a string takes everything");
    }
    if let Some(quantization) = &run.progress.quantization {
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
    text
}

fn judgement(judgement: &Judgement) -> String {
    let settings = &judgement.settings;
    format!(
        "## Quality

The engine of Sluice answers the first {prompts} held-out requests of seed {seed} at temperature 0, in blocks of
{block_length} positions. A program judges the answers.{left_out}

{answers}
{MEASURES}
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
        left_out = left_out(judgement.left_out),
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
