//! `sluice run`: from a model's name to an answer. Starts a daemon, downloads and loads the model as needed.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

use sluice_proto::v1::{self, ChatRole, GenerateRequest, generate_request::Input};

use super::{
    background, chat,
    follow::{self, SavedFiles},
    input::{self, STDIN},
    message, paths, present, usage,
};
use crate::{
    cli::{AskedModel, Chat, Run},
    output::{Failure, StandardOutput, dim},
    text::sanitise_line,
};

/// Answers a prompt with a model, or starts a conversation with it.
pub(super) async fn run(
    socket: PathBuf,
    flag: Option<&Path>,
    arguments: Run,
    private: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let subject = paths::subject(&arguments.model)?;
    // Read before anything is started: a prompt that cannot be read must not cost a download.
    let prompt = prompt(&arguments)?;
    if arguments.json && prompt.is_none() {
        return Err(usage("--json needs a PROMPT: a conversation is for people"));
    }
    let daemon = background::daemon(socket, flag).await?;
    let mut interrupts = follow::interrupts()?;
    let model =
        present::ensure_loaded(&daemon, &subject, arguments.options, &mut interrupts, out).await?;
    let Run {
        system, choices, ..
    } = arguments;
    match prompt {
        None => {
            drop(interrupts);
            let arguments = Chat {
                remember: false,
                system,
                asked: AskedModel {
                    model: Some(model.name),
                },
                choices,
                private,
            };
            chat::run(daemon, &arguments, private, out).await
        }
        // An empty prompt, as by `sluice run NAME < /dev/null`, only loads the model.
        Some(words) if words.trim().is_empty() => {
            dim(&format!("{} is loaded", sanitise_line(&model.name)));
            Ok(())
        }
        Some(words) => {
            let system = system
                .as_deref()
                .map(|text| message(ChatRole::System, text));
            let messages = system.into_iter().chain([message(ChatRole::User, &words)]);
            let mut request = GenerateRequest {
                model: model.name,
                input: Some(Input::Chat(v1::Chat {
                    messages: messages.collect(),
                    ..Default::default()
                })),
                ..Default::default()
            };
            choices.apply(&mut request);
            drop(interrupts);
            follow::generate(&daemon, request, arguments.json, SavedFiles::default(), out).await
        }
    }
}

/// The prompt with the text of a pipe; `None` on a terminal without a prompt, which starts a conversation.
fn prompt(arguments: &Run) -> Result<Option<String>, Failure> {
    match &arguments.prompt[..] {
        [] if std::io::stdin().is_terminal() => Ok(None),
        [] => input::text(STDIN).map(Some),
        [word] if word == STDIN => input::text(STDIN).map(Some),
        [words @ .., last] if last == STDIN => {
            let text = input::text(STDIN)?;
            Ok(Some(with_text(words.join(" "), &text)))
        }
        words => {
            let text = input::beside_words()?;
            Ok(Some(with_text(words.join(" "), &text)))
        }
    }
}

/// The words of a prompt, and behind them the text that they refer to.
fn with_text(words: String, text: &str) -> String {
    match text.trim().is_empty() {
        true => words,
        false => format!("{words}\n\n{text}"),
    }
}
