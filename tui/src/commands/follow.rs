//! Showing a request's events as they come: in place, as JSON, or the result alone.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream::BoxStream};
use sluice_proto::client::when_there_is_room;
use sluice_proto::v1::{
    FinishReason, GenerateRequest, GenerateResponse, GenerateWithStateBegin,
    GenerateWithStateResponse, GenerationDone, GenerationEvent, GenerationLoading,
    GenerationStarted, ListModelsRequest, Thoughts, WatchGenerationRequest,
    generate_with_state_response::Part, generation_event::Event,
};
use sluice_report::progress::bar;
use sluice_shared::units;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tonic::Status;

use super::{
    logprobs,
    states::{self, State},
    thoughts,
};
use crate::{
    canvas::{Canvas, ids_text},
    connection::DaemonConnection,
    formats, json,
    live::Live,
    memory, operations,
    output::{Failure, ProgressLine, StandardOutput, dim},
    placing, thinking,
};

/// How long an interrupted client waits for the daemon to confirm the cancellation. The end of
/// the client's stream cancels the request too.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// A request that ended.
pub(super) struct EndedRequest {
    pub(super) started: Option<GenerationStarted>,
    /// The posterior of its latents, if it was asked for.
    pub(super) thoughts: Option<Thoughts>,
    /// The state in the end, if it was asked for.
    pub(super) state: Option<State>,
    pub(super) done: GenerationDone,
}

/// What is asked for.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) request: GenerateRequest,
    /// The state that it goes on from.
    pub(super) state: Option<Arc<State>>,
    /// Whether the state in the end is wanted.
    pub(super) returns_state: bool,
}

impl From<GenerateRequest> for Asked {
    fn from(request: GenerateRequest) -> Self {
        Self {
            request,
            ..Self::default()
        }
    }
}

/// Files for what there is besides an answer.
#[derive(Default, Clone, Copy)]
pub(super) struct SavedFiles<'a> {
    /// For the posterior of its latents.
    pub(super) thoughts: Option<&'a Path>,
    /// For the state in the end.
    pub(super) state: Option<&'a Path>,
}

impl SavedFiles<'_> {
    /// Writes what can be written. What one file cannot hold is no reason to lose the other: neither comes again.
    fn write(self, ended: &EndedRequest) -> Result<(), Failure> {
        let Self { thoughts, state } = self;
        let thoughts = thoughts.map(|path| thoughts::write(path, ended.thoughts.as_ref()));
        let state = state.map(|path| states::write(path, ended.state.as_ref()));
        [thoughts, state].into_iter().flatten().collect()
    }
}

/// Runs a request of our own and shows it. Writes what there is to be saved to files.
pub(super) async fn generate(
    daemon: &DaemonConnection,
    asked: impl Into<Asked>,
    json: bool,
    files: SavedFiles<'_>,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    match run(daemon, asked, json, out, &mut interrupts).await? {
        Some(ended) => {
            ended.note(json);
            files.write(&ended)
        }
        None => Err(Failure::interrupted("the request was cancelled")),
    }
}

/// Runs a request of our own and shows it; `None` when the user interrupted it.
pub(super) async fn run(
    daemon: &DaemonConnection,
    asked: impl Into<Asked>,
    json: bool,
    out: &mut StandardOutput,
    interrupts: &mut Signal,
) -> Result<Option<EndedRequest>, Failure> {
    let asked = asked.into();
    let answer = tokio::select! {
        answer = begin(daemon, &asked) => answer,
        _ = interrupts.recv() => return Ok(None),
    };
    let mut parts = answer.map_err(|status| daemon.failure(status))?;
    let events = (&mut parts).map(|answer| answer.map(event));
    let (mut ended, request_id) = show(daemon, events, json, out, interrupts).await?;
    if let (Some(ended), true) = (&mut ended, asked.returns_state) {
        let state = tokio::select! {
            state = states::receive(parts) => state,
            _ = interrupts.recv() => return Err(Failure::interrupted("the state was not saved")),
        };
        ended.state = state.map_err(|status| daemon.failure(status))?;
    }
    if let (None, Some(request_id)) = (&ended, request_id) {
        let cancel = operations::cancel(daemon, request_id);
        // A confirmed cancellation means that the daemon is free again when the client exits. Without it, the dropped stream
        // cancels the request; a second Ctrl-C skips the wait.
        tokio::select! {
            _ = tokio::time::timeout(CANCEL_WAIT, cancel) => {}
            _ = interrupts.recv() => {}
        }
    }
    match ended {
        Some(ended) if ended.done.finish_reason() == FinishReason::Cancelled => {
            Err(Failure::new("the request was cancelled"))
        }
        ended => Ok(ended),
    }
}

/// Calls the daemon. Only what has to do with states takes the call for them, which older daemons don't know.
async fn begin(
    daemon: &DaemonConnection,
    asked: &Asked,
) -> Result<BoxStream<'static, Result<GenerateWithStateResponse, Status>>, Status> {
    let client = daemon.generation();
    if asked.state.is_none() && !asked.returns_state {
        let call = || {
            let (mut client, request) = (client.clone(), asked.request.clone());
            async move { client.generate(request).await }
        };
        let stream = when_there_is_room(call).await?.into_inner();
        let part = |answer: GenerateResponse| GenerateWithStateResponse {
            part: answer.event.map(Part::Event),
        };
        return Ok(stream.map(move |answer| answer.map(part)).boxed());
    }
    let call = || {
        let begin = GenerateWithStateBegin {
            request: Some(asked.request.clone()),
            state: None,
            return_state: asked.returns_state,
        };
        let (mut client, state) = (client.clone(), asked.state.clone());
        async move {
            client
                .generate_with_state(states::messages(begin, state))
                .await
        }
    };
    Ok(when_there_is_room(call).await?.into_inner().boxed())
}

fn event(answer: GenerateWithStateResponse) -> Option<GenerationEvent> {
    match answer.part {
        Some(Part::Event(event)) => Some(event),
        _ => None,
    }
}

/// Follows a request of any client. An interrupt ends the watching, not the request.
pub(super) async fn watch(
    daemon: &DaemonConnection,
    request_id: u64,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    let call = WatchGenerationRequest {
        operation_id: request_id,
    };
    let answer = daemon.generation().watch_generation(call).await;
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let events = stream.map(|answer| answer.map(|answer| answer.event));
    match show(daemon, events, json, out, &mut interrupts).await? {
        (Some(ended), _) => {
            ended.note(json);
            Ok(())
        }
        (None, _) => Err(Failure::interrupted("the request continues")),
    }
}

/// A listener for Ctrl-C. From here on Ctrl-C no longer ends the process by itself, even after the listener is dropped.
pub(super) fn interrupts() -> Result<Signal, Failure> {
    signal(SignalKind::interrupt())
        .map_err(|error| Failure::new(format!("listen for interrupts: {error}")))
}

/// Shows events until the last. Returns no end if the user interrupted, and the request's id once it is known.
async fn show(
    daemon: &DaemonConnection,
    mut events: impl Stream<Item = Result<Option<GenerationEvent>, Status>> + Unpin,
    json: bool,
    out: &mut StandardOutput,
    interrupts: &mut Signal,
) -> Result<(Option<EndedRequest>, Option<u64>), Failure> {
    let mut canvas = Canvas::default();
    let mut waiting = ProgressLine::new();
    let mut view = View::new(json, out);
    let mut found = None;
    loop {
        let next = tokio::select! {
            next = events.next() => next,
            _ = interrupts.recv() => break,
        };
        let event = match next {
            Some(Ok(event)) => event,
            Some(Err(status)) => {
                view.leave(out)?;
                return Err(daemon.failure(status));
            }
            None => {
                view.leave(out)?;
                return Err(operations::no_result());
            }
        };
        // A kind of event that a later daemon added: skipped, so that older clients keep working.
        let Some(kind) = event.and_then(|event| event.event) else {
            continue;
        };
        match &kind {
            Event::Loading(loading) if !json => waiting.show(&coming(loading)),
            Event::Thought(thought) if !json && !thought.is_last => {
                waiting.show(&thinking::step(thought));
            }
            _ => waiting.clear(),
        }
        if json {
            out.line(&json::event(&kind))?;
        } else {
            for line in talk(&kind) {
                if let View::Live(live) = &mut view {
                    // The note goes above the canvas, or the next frame would erase it.
                    live.clear(out)?;
                }
                dim(&line);
            }
        }
        let is_picture = matches!(kind, Event::PassDone(_) | Event::Notice(_));
        if let Event::Thought(thought) = &kind {
            found = thought.thoughts.clone().or(found);
        }
        canvas.apply(kind);
        if let Some(done) = canvas.done.clone() {
            finish(daemon, &canvas, &done, view, out).await?;
            if !json {
                for line in logprobs::table(canvas.seen()) {
                    out.line(&line)?;
                }
            }
            let request_id = canvas.queued.map(|queued| queued.request_id);
            let started = canvas.started;
            let ended = EndedRequest {
                started,
                thoughts: found,
                state: None,
                done,
            };
            return Ok((Some(ended), request_id));
        }
        match &mut view {
            View::Live(live) if is_picture => live.draw(&canvas, out)?,
            View::Plain(plain) => {
                let pass = canvas.pass.as_ref();
                plain.grow(pass.map_or(&[], |pass| &pass.stable_text), out)?;
            }
            View::Live(_) | View::Json => {}
        }
    }
    view.leave(out)?;
    Ok((None, canvas.queued.map(|queued| queued.request_id)))
}

/// The progress line of the load that a request waits for.
fn coming(loading: &GenerationLoading) -> String {
    let Some(total_bytes) = loading.total_bytes else {
        return format!("waiting for {} to load", loading.model);
    };
    format!(
        "waiting for {} to load {} {} of {}",
        loading.model,
        bar(loading.loaded_bytes, total_bytes),
        units::bytes(loading.loaded_bytes),
        units::bytes(total_bytes)
    )
}

/// Warnings and notices of an event, which go to standard error.
fn talk(kind: &Event) -> Vec<String> {
    match kind {
        Event::Started(started) => {
            let warnings = started.warnings.iter();
            let warnings = warnings.map(|text| format!("warning: {text}"));
            let used = started.memory.iter().flat_map(memory::used_lines);
            warnings.chain(used).collect()
        }
        Event::Notice(notice) => vec![format!("note: {}", notice.text)],
        Event::Placed(placed) => placing::lines(placed),
        Event::Thought(thought) if thought.is_last => vec![thinking::last(thought)],
        _ => Vec::new(),
    }
}

/// The form in which a request is shown.
enum View {
    /// Every event as a line of JSON.
    Json,
    /// The canvas, redrawn in place on a terminal.
    Live(Live),
    /// The text alone, for a pipe or a file.
    Plain(Plain),
}

impl View {
    fn new(json: bool, out: &StandardOutput) -> Self {
        match (json, out.is_terminal()) {
            (true, _) => Self::Json,
            (false, true) => Self::Live(Live::new(out.has_colour())),
            (false, false) => Self::Plain(Plain::default()),
        }
    }

    /// Moves below what was shown of a request that has no end; it stays as it was last seen.
    fn leave(self, out: &mut StandardOutput) -> Result<(), Failure> {
        match self {
            Self::Live(live) if live.is_drawn() => out.raw(b"\r\n"),
            Self::Plain(plain) if !plain.written.is_empty() => out.raw(b"\n"),
            _ => Ok(()),
        }
    }
}

/// A text that is written as far as it is final.
#[derive(Default)]
struct Plain {
    written: String,
}

impl Plain {
    /// Writes what has become final since. Nothing that was, changes.
    fn grow(&mut self, stable: &[u8], out: &mut StandardOutput) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(stable);
        match text.strip_prefix(self.written.as_str()) {
            None | Some("") => Ok(()),
            Some(more) => {
                out.raw(more.as_bytes())?;
                self.written.push_str(more);
                Ok(())
            }
        }
    }

    fn finish(&self, text: &str, out: &mut StandardOutput) -> Result<(), Failure> {
        match text.strip_prefix(self.written.as_str()) {
            Some(rest) => out.line(rest),
            // A daemon that went back on its word; better twice than torn.
            None => out.line(&format!("\n{text}")),
        }
    }
}

async fn finish(
    daemon: &DaemonConnection,
    canvas: &Canvas,
    done: &GenerationDone,
    view: View,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let text = match &done.text {
        Some(text) => text.clone(),
        None => ids_text(&done.token_ids),
    };
    let mut live = match view {
        View::Json => return Ok(()),
        View::Plain(plain) => {
            return plain.finish(&text, out);
        }
        View::Live(live) => live,
    };
    live.finish(&text, out)?;
    let mut line = summary(done);
    if is_demonstration(daemon, canvas).await {
        line += " · demonstration model";
    }
    dim(&line);
    Ok(())
}

impl EndedRequest {
    /// Tells what there is to know of an answer beside its text, unless a script reads it.
    pub(super) fn note(&self, json: bool) {
        if !json {
            self.notes().iter().for_each(|note| dim(note));
        }
    }

    /// Where it was cut, and how to have it again.
    fn notes(&self) -> Vec<String> {
        let Some(started) = &self.started else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        if self.done.is_truncated && self.done.finish_reason() == FinishReason::Context {
            let taken = u64::from(started.prompt_tokens) + u64::from(started.length);
            let context = units::count(taken);
            notes.push(format!(
                "truncated at the context of {context} tokens; a shorter prompt leaves more for the answer"
            ));
        } else if self.done.is_truncated {
            // How much more there is room for, only the daemon knows.
            notes.push(format!(
                "truncated at --length {}; use a greater length for a longer answer",
                started.length
            ));
        }
        if started.is_seed_drawn {
            let seed = started.seed;
            notes.push(format!(
                "sampled with seed {seed}; --seed {seed} gives the same answer again"
            ));
        }
        notes
    }
}

/// What a finished request took, in one line.
fn summary(done: &GenerationDone) -> String {
    let mut line = format!(
        "{} passes · {} tokens · {}",
        units::count(done.passes.into()),
        units::count(done.generated_tokens.into()),
        units::duration_ms(done.elapsed_ms),
    );
    if let Some(each) = json::tokens_per_pass(done) {
        line += &format!(" · {each:.2} tokens a pass");
    }
    if done.elapsed_ms > 0.0 && done.generated_tokens > 0 {
        let rate = f64::from(done.generated_tokens) / done.elapsed_ms * 1000.0;
        line += &format!(" · {rate:.1} tokens/s");
    }
    if let Some(edits) = formats::edits(done) {
        line += &format!(" · {edits}");
    }
    line
}

/// Whether the model that answered is there for show only. Not knowing is no reason to fail.
async fn is_demonstration(daemon: &DaemonConnection, canvas: &Canvas) -> bool {
    let name = canvas.started.as_ref().map(|started| &started.model);
    let answer = daemon.models().list_models(ListModelsRequest {}).await;
    answer.is_ok_and(|answer| {
        let models = answer.into_inner().models;
        models
            .iter()
            .any(|model| model.is_demonstration && Some(&model.name) == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_and_a_drawn_seed_are_told() {
        let started = GenerationStarted {
            prompt_tokens: 24,
            length: 1000,
            seed: 7,
            is_seed_drawn: true,
            ..Default::default()
        };
        let told = |finish_reason: FinishReason, cut: bool| {
            let done = GenerationDone {
                finish_reason: finish_reason.into(),
                is_truncated: cut,
                ..Default::default()
            };
            let started = Some(started.clone());
            let ended = EndedRequest {
                started,
                thoughts: None,
                state: None,
                done,
            };
            ended.notes().join("|")
        };
        let seed = "sampled with seed 7; --seed 7 gives the same answer again";
        assert_eq!(told(FinishReason::Eos, false), seed);
        // As an edit ends, which fills its span.
        assert_eq!(told(FinishReason::Length, false), seed);
        let cut = told(FinishReason::Length, true);
        let expected = "truncated at --length 1000; use a greater length for a longer answer";
        assert_eq!(cut, format!("{expected}|{seed}"));
        let full = told(FinishReason::Context, true);
        assert!(
            full.starts_with("truncated at the context of 1,024 tokens"),
            "{full}"
        );
    }

    #[test]
    fn what_cannot_be_saved_does_not_lose_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let [thoughts, state] = ["thoughts", "state"].map(|name| folder.path().join(name));
        let ended = |has_thoughts: bool| EndedRequest {
            started: None,
            thoughts: has_thoughts.then(|| Thoughts {
                layers: 1,
                latents: 1,
                hidden_size: 1,
                means: vec![0.0],
                log_variances: vec![0.0],
            }),
            state: (!has_thoughts).then(State::default),
            done: GenerationDone::default(),
        };
        let files = SavedFiles {
            thoughts: Some(&thoughts),
            state: Some(&state),
        };
        assert!(files.write(&ended(false)).is_err() && state.exists());
        assert!(files.write(&ended(true)).is_err() && thoughts.exists());
    }

    #[test]
    fn the_summary_counts_tokens_of_the_text() {
        let done = GenerationDone {
            passes: 64,
            text_tokens: 130,
            generated_tokens: 100,
            filled_positions: 100,
            elapsed_ms: 4000.0,
            ..Default::default()
        };
        assert_eq!(
            summary(&done),
            "64 passes · 100 tokens · 4.0 s · 1.56 tokens a pass · 25.0 tokens/s"
        );
        let edited = GenerationDone { edits: 3, ..done };
        assert!(summary(&edited).ends_with(" · 25.0 tokens/s · 3 edits"));
        let empty = summary(&GenerationDone::default());
        assert_eq!(empty, "0 passes · 0 tokens · 0 ms");
    }
}
