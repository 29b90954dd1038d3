//! `sluice chat`: a conversation, turn by turn.
//!
//! On a terminal, lines are edited and kept in a history, and the answer is drawn in place; in a pipe it is plain text. Each
//! turn sends the whole conversation: the daemon keeps none.

mod choices;
mod conversation;
mod input;
mod turn;

use std::{future::pending, io::IsTerminal, path::Path};

use sluice_proto::v1::{
    self, FinishReason, GenerateRequest, MemorySourceKind, PromptMemory,
    generate_request::Input as Prompt,
};
use sluice_shared::options::PlanOptions;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    choices::ChatChoices,
    conversation::{Conversation, PendingPrompt},
    input::{Input, InputLine},
    turn::Turn,
};
use super::{
    follow::{self, EndedRequest},
    memory, paths, present,
};
use crate::{
    cli::Chat,
    connection::DaemonConnection,
    memory as words,
    output::{Failure, StandardOutput, dim, say},
    text::sanitise_line,
};

/// The daemon's reason when a conversation exceeds the model's context.
const CONTEXT_EXCEEDED: &str = "CONTEXT_EXCEEDED";

/// Runs a conversation until the input ends.
pub(super) async fn run(
    daemon: DaemonConnection,
    arguments: &Chat,
    private: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let interactive = std::io::stdin().is_terminal() && out.is_terminal();
    let mut interrupts = follow::interrupts()?;
    // Before the editor changes the terminal's modes, so that SIGTERM and SIGHUP end the loop and `Input` restores them.
    let mut ends = Ends::new(interactive)?;
    let mut input = match interactive {
        // Only a terminal gets an editor: it would write prompts and control sequences into a pipe.
        true => Input::editor(input::history(private))?,
        false => Input::pipe()?,
    };
    let mut talk = Talk {
        daemon,
        conversation: Conversation::new(arguments.system.clone()),
        choices: ChatChoices::new(arguments.choices.clone()),
        model: arguments.asked.name(),
        memory: None,
        interactive,
    };
    if interactive {
        say("A conversation with the model. /help lists the commands, Ctrl-D ends.");
    }
    let ended = talk
        .converse(&mut input, &mut ends, &mut interrupts, out)
        .await;
    // The terminal is the user's again.
    drop(input);
    match arguments.remember {
        // The end of the conversation is no reason to lose it, whatever that was.
        true => {
            let remembered = talk.remember_all(&mut interrupts, out).await;
            if let (Err(_), Err(lost)) = (&ended, &remembered) {
                say(&format!(
                    "the conversation was not remembered: {}",
                    lost.message_and_hint().0
                ));
            }
            ended.and(remembered)
        }
        false => ended,
    }
}

/// A conversation, and the daemon that it is held with.
struct Talk {
    daemon: DaemonConnection,
    conversation: Conversation,
    choices: ChatChoices,
    /// The model that answers; empty: the present one.
    model: String,
    /// What of the daemon's memory stood in the last prompt.
    memory: Option<PromptMemory>,
    interactive: bool,
}

impl Talk {
    /// Takes lines and answers them until the input ends.
    async fn converse(
        &mut self,
        input: &mut Input,
        ends: &mut Ends,
        interrupts: &mut Signal,
        out: &mut StandardOutput,
    ) -> Result<(), Failure> {
        let mut was_interrupted = false;
        loop {
            let line = tokio::select! {
                line = input.next() => line?,
                _ = interrupts.recv() => InputLine::Interrupted,
                () = ends.recv() => return Ok(()),
            };
            let text = match line {
                InputLine::End => return Ok(()),
                InputLine::Interrupted if was_interrupted || !self.interactive => {
                    return Err(Failure::interrupted("the conversation is over"));
                }
                InputLine::Interrupted => {
                    // A first Ctrl-C may have been meant for an answer that just ended, so it only warns.
                    was_interrupted = true;
                    dim("Ctrl-C again ends, and so does Ctrl-D");
                    continue;
                }
                InputLine::Text(text) => text,
            };
            was_interrupted = false;
            let is_over = tokio::select! {
                over = self.turn(Turn::from(text), interrupts, out) => over?,
                () = ends.recv() => return Ok(()),
            };
            if is_over {
                return Ok(());
            }
        }
    }

    /// Carries out a line. Returns whether it ends the conversation.
    async fn turn(
        &mut self,
        turn: Turn,
        interrupts: &mut Signal,
        out: &mut StandardOutput,
    ) -> Result<bool, Failure> {
        match turn {
            Turn::Nothing => {}
            Turn::Quit => return Ok(true),
            Turn::Help => say(&turn::help()),
            Turn::Unknown(command) => say(&format!("unknown command {command}; /help lists them")),
            Turn::Reset => {
                self.conversation.reset();
                say("the conversation was reset");
            }
            Turn::System(text) => self.system(text),
            Turn::Set(choice) => self.set(choice),
            Turn::Save(None) => say("/save needs the name of a file"),
            Turn::Save(Some(file)) => match self.conversation.save(&file) {
                Ok(path) => say(&format!("saved in {}", path.display())),
                Err(problem) => say(&problem),
            },
            Turn::Model(name) => {
                let answer = self.model(name.as_deref(), interrupts, out).await;
                self.report_failure(answer)?;
            }
            Turn::Remember(None) => say("/remember needs a text"),
            Turn::Remember(Some(text)) => {
                let answer = self
                    .remember(
                        MemorySourceKind::Note,
                        (&text, text.clone()),
                        interrupts,
                        out,
                    )
                    .await;
                self.report_failure(answer)?;
            }
            Turn::Sources => self.sources(out)?,
            Turn::Retry => match self.conversation.retry() {
                Some(asked) => {
                    let mut request = self.request(&asked);
                    // With the same seed the answer would be the same.
                    if let Some(sampling) = &mut request.sampling {
                        sampling.seed = None;
                    }
                    self.answer(asked, request, interrupts, out).await?;
                }
                None => say("nothing was asked yet"),
            },
            Turn::Say(words) => {
                let asked = self.conversation.ask(words);
                let request = self.request(&asked);
                self.answer(asked, request, interrupts, out).await?;
            }
        }
        Ok(false)
    }

    fn request(&self, asked: &PendingPrompt) -> GenerateRequest {
        let messages = self.conversation.messages(asked);
        let mut request = GenerateRequest {
            model: self.model.clone(),
            input: Some(Prompt::Chat(v1::Chat {
                messages,
                ..Default::default()
            })),
            ..Default::default()
        };
        self.choices.apply(&mut request);
        request
    }

    /// Sends a request and shows its answer.
    async fn answer(
        &mut self,
        asked: PendingPrompt,
        request: GenerateRequest,
        interrupts: &mut Signal,
        out: &mut StandardOutput,
    ) -> Result<(), Failure> {
        let answer = follow::run(&self.daemon, request, false, out, interrupts).await;
        match answer {
            Ok(Some(ended)) => {
                let text = ended.done.text.as_deref().unwrap_or_default();
                self.conversation.answered(asked, text);
                let memory = ended.started.as_ref();
                self.memory = memory
                    .and_then(|started| started.memory.clone())
                    .filter(|memory| !memory.pieces.is_empty());
                match self.interactive {
                    true => notes(&ended).iter().for_each(|note| dim(note)),
                    false => ended.note(false),
                }
                Ok(())
            }
            Ok(None) => {
                let has_answer = self.conversation.give_up(asked);
                if !self.interactive {
                    // A script must not go on with prompts that build on an answer that is missing.
                    return Err(Failure::interrupted("the conversation is over"));
                }
                say(match has_answer {
                    true => "interrupted; the answer before stays, /retry asks for another",
                    false => "interrupted; that turn is forgotten, /retry asks it again",
                });
                Ok(())
            }
            Err(failure) => {
                self.conversation.give_up(asked);
                let is_full = failure.reason() == Some(CONTEXT_EXCEEDED);
                self.report_failure(Err(failure))?;
                if is_full {
                    say(
                        "the conversation fills the model's context: /reset starts over, /save FILE saves the \
                         conversation, /set length N asks for shorter answers",
                    );
                }
                Ok(())
            }
        }
    }

    /// Has the daemon remember a text.
    async fn remember(
        &self,
        kind: MemorySourceKind,
        named: (&str, String),
        interrupts: &mut Signal,
        out: &mut StandardOutput,
    ) -> Result<(), Failure> {
        let collection = self.choices.remembers_in();
        let done =
            memory::remember(&self.daemon, &collection, kind, named, interrupts, out).await?;
        dim(&done);
        Ok(())
    }

    /// Has the daemon remember the conversation, if there is one.
    async fn remember_all(
        &self,
        interrupts: &mut Signal,
        out: &mut StandardOutput,
    ) -> Result<(), Failure> {
        match self.conversation.remembered() {
            None => Ok(()),
            Some(named) => {
                self.remember(MemorySourceKind::Conversation, named, interrupts, out)
                    .await
            }
        }
    }

    /// Shows what of the daemon's memory the last answer had.
    fn sources(&self, out: &mut StandardOutput) -> Result<(), Failure> {
        match &self.memory {
            None => {
                say("the last answer had nothing of the daemon's memory; /memory switches it on");
            }
            Some(memory) => {
                for text in words::used_texts(memory) {
                    out.line(&text)?;
                }
            }
        }
        Ok(())
    }

    fn system(&mut self, text: Option<String>) {
        match text.as_deref() {
            None => match self.conversation.system() {
                Some(text) => say(&format!("instructions: {text}")),
                None => {
                    say("instructions: the model's own, if it has any; /system TEXT gives others");
                }
            },
            Some("none") => {
                self.conversation.set_system(None);
                say("no instructions but the model's own, if it has any, from now on");
            }
            Some(_) => {
                self.conversation.set_system(text);
                say("these instructions come before the conversation from now on");
            }
        }
    }

    fn set(&mut self, choice: Option<(String, Option<String>)>) {
        if let Some((key, value)) = choice {
            match self.choices.set(&key, value.as_deref()) {
                Ok(Some(notice)) => say(&notice),
                Ok(None) => {}
                Err(problem) => return say(&sanitise_line(&problem)),
            }
        }
        let lines = self.choices.lines();
        match lines.is_empty() {
            true => say("nothing is set: all is as the command line and the model say"),
            false => say(&format!("set: {}", lines.join(", "))),
        }
    }

    async fn model(
        &mut self,
        name: Option<&str>,
        interrupts: &mut Signal,
        out: &mut StandardOutput,
    ) -> Result<(), Failure> {
        let model = match name {
            None => {
                let models = present::list(&self.daemon).await?;
                let own = models.iter().find(|model| model.name == self.model);
                own.or_else(|| present::loaded(&models)).cloned()
            }
            Some(name) => {
                let subject = paths::subject(Path::new(name))?;
                let options = PlanOptions::default();
                let model =
                    present::ensure_loaded(&self.daemon, &subject, options, interrupts, out);
                let model = model.await?;
                self.model.clone_from(&model.name);
                Some(model)
            }
        };
        say(&match model {
            Some(model) => format!("the model is {}", sanitise_line(&model.name)),
            None => "no model is loaded; /model NAME loads one".to_owned(),
        });
        Ok(())
    }

    /// On a terminal, reports a failure and goes on; in a pipe, returns it, so that scripts see the exit code.
    fn report_failure(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        match result {
            Err(failure @ Failure::Reported { .. }) if self.interactive => {
                let _ = failure.report(false);
                Ok(())
            }
            result => result,
        }
    }
}

/// Notes about an answer: that it is truncated, and its seed, with the commands that help.
fn notes(ended: &EndedRequest) -> Vec<String> {
    let mut notes = Vec::new();
    let cut = match ended.done.finish_reason() {
        _ if !ended.done.is_truncated => None,
        FinishReason::Context => Some(
            "truncated: the context is full; /reset starts over, /save FILE saves the conversation",
        ),
        _ => Some("cut at its length; /set length N allows more, then /retry"),
    };
    notes.extend(cut.map(str::to_owned));
    let started = ended.started.as_ref();
    let drawn = started.filter(|started| started.is_seed_drawn);
    notes.extend(drawn.map(|started| format!("drawn with seed {}", started.seed)));
    notes
}

/// Signals that end the program. Caught on a terminal alone, whose modes have to be restored first.
struct Ends(Option<(Signal, Signal)>);

impl Ends {
    fn new(interactive: bool) -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::new(format!("listen for signals: {error}")))
        };
        Ok(Self(match interactive {
            true => Some((
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            )),
            false => None,
        }))
    }

    async fn recv(&mut self) {
        match &mut self.0 {
            None => pending().await,
            Some((terminate, hang_up)) => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
            }
        }
    }
}
