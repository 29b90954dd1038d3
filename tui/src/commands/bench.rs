//! `sluice bench`: the speed of the loaded model, and how much of it each preset gains.

mod figures;
mod row;

use std::{
    cell::{Cell, RefCell},
    path::PathBuf,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use sluice_proto::{
    client::CallError,
    v1::{
        Chat, ChatRole, GenerateRequest, GenerationDone, GenerationPass, GenerationStarted,
        GetSnapshotRequest, Tier, TokenIds, TokenState, generate_request::Input,
        generation_event::Event,
    },
};
use sluice_shared::preset::{PRESETS, Preset};
use tonic::Status;

pub use self::figures::BenchFigures;
use self::figures::{BenchAnswer, PassFigures};
use super::{input, message, until_interrupted};
use crate::{
    cli::Bench,
    connection::DaemonConnection,
    output::{Failure, ProgressLine, StandardOutput},
    phases::PassTime,
    plans,
};

/// The default prompts: prose, an explanation, code and a sum, which differ in how many tokens a pass can commit.
const PROMPTS: [&str; 4] = [
    "Tell me a story about a lighthouse.",
    "Explain why the sky is blue.",
    "Write a Python function that tells whether a number is prime.",
    "A farmer has 17 sheep and buys 3 more each week. How many are there after 8 weeks?",
];

/// Tokens of a warm-up that is shorter than what is measured, since a pass may take seconds.
const WARMUP_LENGTH: u32 = 2;

/// Pause before a request is sent again that the daemon refused since its queue is full.
const PATIENCE: Duration = Duration::from_millis(20);

/// Measures each preset and prints its row as soon as it is known.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Bench,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let inputs = inputs(arguments)?;
    until_interrupted(rows(socket, arguments, &inputs, out)).await
}

async fn rows(
    socket: PathBuf,
    arguments: &Bench,
    inputs: &[Input],
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    let mut first = None;
    for preset in presets(arguments) {
        let requests = requests(arguments, inputs, preset);
        let name = preset.map_or("the daemon's preset", Preset::name);
        let warmup = requests.iter().cycle().take(arguments.warmup as usize);
        let board = Board::new(format!("{name}, warming up"), arguments.warmup as usize);
        all(&daemon, warmup.cloned(), 1, &board).await?;
        let board = Board::new(name.to_owned(), requests.len());
        let begun = Instant::now();
        let concurrent = arguments.concurrent as usize;
        let answers = all(&daemon, requests.into_iter(), concurrent, &board).await?;
        let mut figures = BenchFigures::of(&answers, begun.elapsed(), first.as_deref());
        figures.streamed_from = streamed_from(&daemon).await;
        drop(board);
        if arguments.json {
            out.json(&row::json(&figures))?;
        } else {
            if first.is_none() {
                out.line(&figures::header())?;
            }
            for line in figures.lines() {
                out.line(&line)?;
            }
        }
        first.get_or_insert(answers);
    }
    Ok(())
}

/// The figures of one request, after a warm-up: the first passes at a level find nothing in caches.
pub(super) async fn request(
    daemon: &DaemonConnection,
    name: &str,
    request: &GenerateRequest,
) -> Result<BenchFigures, Failure> {
    let board = Board::new(format!("{name}, warming up"), 1);
    let warmup = GenerateRequest {
        length: Some(WARMUP_LENGTH),
        ..request.clone()
    };
    one(daemon, warmup, &board).await?;
    drop(board);
    let board = Board::new(name.to_owned(), 1);
    let begun = Instant::now();
    let answer = one(daemon, request.clone(), &board).await?;
    Ok(BenchFigures::of(&[answer], begun.elapsed(), None))
}

/// The tier that weights are streamed from; `None` if nothing is streamed or the daemon does not tell.
async fn streamed_from(daemon: &DaemonConnection) -> Option<Tier> {
    let answer = daemon.telemetry().get_snapshot(GetSnapshotRequest {}).await;
    let plan = answer.ok()?.into_inner().snapshot?.plan?;
    plans::streamed_from(&plan)
}

/// The presets to measure, without repetition; `None` stands for the daemon's default.
fn presets(arguments: &Bench) -> Vec<Option<Preset>> {
    let asked: Vec<Preset> = match arguments.all_presets {
        true => PRESETS.iter().map(|row| row.preset).collect(),
        false => arguments.presets.clone(),
    };
    let mut presets = Vec::new();
    for preset in asked {
        if !presets.contains(&Some(preset)) {
            presets.push(Some(preset));
        }
    }
    if presets.is_empty() {
        presets.push(None);
    }
    presets
}

fn inputs(arguments: &Bench) -> Result<Vec<Input>, Failure> {
    if let Some(ids) = &arguments.tokens {
        return Ok(vec![Input::Tokens(TokenIds { ids: ids.clone() })]);
    }
    let prompt = |text: &str| match arguments.raw {
        true => Input::RawText(text.to_owned()),
        false => Input::Chat(Chat {
            messages: vec![message(ChatRole::User, text)],
            ..Default::default()
        }),
    };
    if arguments.prompts.is_none() {
        return Ok(PROMPTS.map(prompt).into());
    }
    let (text, name) = input::file(arguments.prompts.as_deref())?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let inputs: Vec<_> = lines.map(prompt).collect();
    match inputs.is_empty() {
        true => Err(Failure::new(format!("{name} holds no prompt"))),
        false => Ok(inputs),
    }
}

/// The requests of a row. Every row has the same seeds, so that rows are comparable.
fn requests(arguments: &Bench, inputs: &[Input], preset: Option<Preset>) -> Vec<GenerateRequest> {
    let seed = arguments.details.seed.unwrap_or(0);
    let count = inputs.len() * arguments.repeat as usize;
    let inputs = inputs.iter().cycle().take(count);
    let request = |(number, input): (u64, &Input)| {
        let mut request = GenerateRequest {
            model: arguments.asked.name(),
            input: Some(input.clone()),
            length: arguments.length,
            ..Default::default()
        };
        arguments.details.apply(preset, &mut request);
        // Greedy unless a temperature is given: chance would change the number of passes from row to row.
        let sampling = request.sampling_mut();
        sampling.greedy = sampling.temperature.is_none();
        sampling.seed = Some(seed.wrapping_add(number));
        request
    };
    (0..).zip(inputs).map(request).collect()
}

/// Runs the requests, at most `concurrent` at once. The answers are in the order of the requests.
async fn all(
    daemon: &DaemonConnection,
    requests: impl Iterator<Item = GenerateRequest>,
    concurrent: usize,
    board: &Board,
) -> Result<Vec<BenchAnswer>, Failure> {
    let answers = requests.enumerate().map(async |(number, request)| {
        let answer = one(daemon, request, board).await?;
        Ok::<_, Failure>((number, answer))
    });
    let mut answers: Vec<_> = stream::iter(answers)
        .buffer_unordered(concurrent)
        .try_collect()
        .await?;
    answers.sort_by_key(|(number, _)| *number);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

async fn one(
    daemon: &DaemonConnection,
    request: GenerateRequest,
    board: &Board,
) -> Result<BenchAnswer, Failure> {
    let begun = Instant::now();
    let answer = loop {
        match daemon.generation().generate(request.clone()).await {
            // Other clients may fill the queue. Waiting for room keeps the row complete.
            Err(status) if is_full(&status) => tokio::time::sleep(PATIENCE).await,
            answer => break answer,
        }
    };
    let mut events = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut started = GenerationStarted::default();
    let mut passes = Vec::new();
    let mut first_ms = None;
    let since = || begun.elapsed().as_secs_f64() * 1000.0;
    while let Some(answer) = events.next().await {
        let event = answer.map_err(|status| daemon.failure(status))?.event;
        match event.and_then(|event| event.event) {
            Some(Event::Started(event)) => started = event,
            Some(Event::PassDone(pass)) => {
                if first_ms.is_none() && has_begun(&pass) {
                    first_ms = Some(since());
                }
                board.pass();
                passes.push(PassFigures::of(&pass));
            }
            Some(Event::Done(done)) => {
                board.done();
                let first_ms = first_ms.unwrap_or_else(since);
                return Ok(answered(started, done, passes, first_ms));
            }
            Some(
                Event::Loading(_)
                | Event::Queued(_)
                | Event::BlockDone(_)
                | Event::Notice(_)
                | Event::Placed(_)
                | Event::Thought(_),
            )
            | None => {}
        }
    }
    Err(Failure::new("the daemon ended the stream without a result"))
}

/// Whether the daemon refused a request since its queue is full, which passes when one of them is done.
fn is_full(status: &Status) -> bool {
    CallError::from(status.clone()).reason.as_deref() == Some("QUEUE_FULL")
}

fn answered(
    started: GenerationStarted,
    done: GenerationDone,
    passes: Vec<PassFigures>,
    first_ms: f64,
) -> BenchAnswer {
    let time = PassTime::from(&done);
    let mut tokens = done.token_ids;
    tokens.truncate(done.text_tokens as usize);
    BenchAnswer {
        started,
        exact: done.is_exact,
        tokens,
        passes: done.passes,
        time,
        seen: passes,
        first_ms,
        peak_device_bytes: done.peak_device_bytes,
    }
}

/// Whether the first position of the answer is committed. Its text does not tell: there may be no tokenizer.
fn has_begun(pass: &GenerationPass) -> bool {
    let first = pass.tokens.first().filter(|token| token.position == 0);
    pass.block > 0 || first.is_some_and(|token| token.state() == TokenState::Committed)
}

/// The progress line while a row is measured.
struct Board {
    name: String,
    requests: usize,
    done: Cell<usize>,
    passes: Cell<usize>,
    progress: RefCell<ProgressLine>,
}

impl Board {
    fn new(name: String, requests: usize) -> Self {
        Self {
            name,
            requests,
            done: Cell::default(),
            passes: Cell::default(),
            progress: RefCell::default(),
        }
    }

    fn pass(&self) {
        self.passes.update(|passes| passes + 1);
        self.show();
    }

    fn done(&self) {
        self.done.update(|done| done + 1);
        self.show();
    }

    fn show(&self) {
        let line = format!(
            "{}: {} of {} requests, {} passes",
            self.name,
            self.done.get(),
            self.requests,
            self.passes.get()
        );
        self.progress.borrow_mut().show(&line);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(arguments: &[&str]) -> Bench {
        let all = ["sluice", "bench"].iter().chain(arguments);
        let cli = Cli::try_parse_from(all).expect("right usage");
        let Some(Command::Bench(arguments)) = cli.command else {
            panic!("bench");
        };
        arguments
    }

    #[test]
    fn each_preset_is_a_row() {
        assert_eq!(presets(&parsed(&[])), [None]);
        let asked = parsed(&["--preset", "exact,fast,exact"]);
        assert_eq!(presets(&asked), [Some(Preset::Exact), Some(Preset::Fast)]);
        let all = presets(&parsed(&["--all-presets"]));
        assert_eq!(all.len(), PRESETS.len());
    }

    #[test]
    fn seeds_differ_between_answers_and_not_between_rows() {
        let arguments = parsed(&["--repeat", "2", "--seed", "5", "--kv-cache", "dual"]);
        let inputs = inputs(&arguments).unwrap();
        let of = |preset| requests(&arguments, &inputs, Some(preset));
        let seeds = |requests: &[GenerateRequest]| -> Vec<_> {
            let seeds = requests.iter();
            let seeds = seeds.map(|request| request.sampling.unwrap().seed.unwrap());
            seeds.collect()
        };
        let (exact, fast) = (of(Preset::Exact), of(Preset::Fast));
        assert_eq!(seeds(&exact), (5..13).collect::<Vec<_>>());
        assert_eq!(seeds(&fast), seeds(&exact));
        assert_eq!(exact[0].input, exact[PROMPTS.len()].input);
        let (exact, fast) = (exact[0].diffusion().unwrap(), fast[0].diffusion().unwrap());
        assert_ne!(exact.preset, fast.preset);
        assert_eq!(exact.kv_cache, fast.kv_cache);
    }

    #[test]
    fn prompts_may_be_ids() {
        let arguments = parsed(&["--tokens", "1,2"]);
        let ids = TokenIds { ids: vec![1, 2] };
        assert_eq!(inputs(&arguments).unwrap(), [Input::Tokens(ids)]);
    }
}
