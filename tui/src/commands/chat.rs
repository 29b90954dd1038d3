//! `sluice chat`: a conversation, turn by turn.
//!
//! Lines come through the terminal's own editing, or from a pipe; the answer is drawn in
//! place on a terminal. Each turn sends the whole conversation: the daemon keeps none.

use std::{
    io::{BufRead, IsTerminal, Read},
    path::PathBuf,
};

use sluice_proto::v1::{self, GenerateRequest, Message, generate_request::Input};
use tokio::sync::mpsc;

use super::{
    follow,
    input::{self, INPUT_BYTES_MAX},
    message,
};
use crate::{
    cli::Chat,
    connection::Daemon,
    output::{Failure, Out, say},
};

/// Holds a conversation until the input ends.
pub(super) async fn run(socket: PathBuf, arguments: &Chat, out: &mut Out) -> Result<(), Failure> {
    let daemon = Daemon::connect(socket).await?;
    let interactive = std::io::stdin().is_terminal() && out.is_terminal();
    let mut interrupts = follow::interrupts()?;
    let mut lines = lines()?;
    let mut conversation = Conversation::new(arguments.system.as_deref());
    if interactive {
        say("A conversation with the model. /? lists the commands, Ctrl-D ends.");
    }
    loop {
        if interactive {
            out.raw(b"> ")?;
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = interrupts.recv() => None,
        };
        let Some(line) = line else {
            if interactive {
                out.raw(b"\r\n")?;
            }
            return Ok(());
        };
        match Turn::from(line?.as_str()) {
            Turn::Nothing => {}
            Turn::Quit => return Ok(()),
            Turn::Reset => {
                conversation.reset();
                say("the conversation starts anew");
            }
            Turn::Help => say(HELP),
            Turn::Unknown(command) => say(&format!("unknown command {command}; /? lists them")),
            Turn::Say(words) => {
                conversation.messages.push(message("user", &words));
                let mut request = GenerateRequest {
                    input: Some(Input::Chat(v1::Chat {
                        messages: conversation.messages.clone(),
                    })),
                    length: arguments.length,
                    ..Default::default()
                };
                arguments.sampling.apply(&mut request);
                let answer = follow::run(&daemon, request, false, out, &mut interrupts).await;
                match answer {
                    Ok(Some(done)) => {
                        let text = done.text.unwrap_or_default();
                        conversation.messages.push(message("assistant", &text));
                    }
                    // A turn without its answer would confuse the model in every later one.
                    Ok(None) => {
                        conversation.messages.pop();
                        say("interrupted; that turn is forgotten");
                    }
                    Err(failure @ Failure::Told { .. }) if interactive => {
                        conversation.messages.pop();
                        let _ = failure.report();
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
    }
}

const HELP: &str = "\
/reset   start the conversation anew
/quit    end; so does Ctrl-D
/?       this list
Ctrl-C   stop the answer, or end at the prompt
A line that should start with a slash starts with two.";

/// What a line asks for.
#[derive(Debug, PartialEq)]
enum Turn {
    Say(String),
    Reset,
    Quit,
    Help,
    Unknown(String),
    Nothing,
}

impl From<&str> for Turn {
    fn from(line: &str) -> Self {
        let line = line.trim_end();
        match line.trim_start() {
            "" => Self::Nothing,
            "/reset" => Self::Reset,
            "/quit" | "/exit" | "/bye" => Self::Quit,
            "/?" | "/help" => Self::Help,
            words if words.starts_with("//") => Self::Say(words[1..].to_owned()),
            command if command.starts_with('/') => {
                Self::Unknown(command.split_whitespace().next().unwrap_or("/").to_owned())
            }
            _ => Self::Say(line.to_owned()),
        }
    }
}

struct Conversation {
    messages: Vec<Message>,
    system: Option<Message>,
}

impl Conversation {
    fn new(system: Option<&str>) -> Self {
        let system = system.map(|text| message("system", text));
        Self {
            messages: system.iter().cloned().collect(),
            system,
        }
    }

    fn reset(&mut self) {
        self.messages = self.system.iter().cloned().collect();
    }
}

/// Lines of standard input, read by a thread that nobody waits for: a read of a terminal
/// can't be called off.
fn lines() -> Result<mpsc::Receiver<Result<String, Failure>>, Failure> {
    let (sender, receiver) = mpsc::channel(1);
    let reader = std::thread::Builder::new().name("stdin".into());
    let started = reader.spawn(move || {
        let mut stdin = std::io::stdin().lock();
        loop {
            let line = next_line(&mut stdin).transpose();
            let Some(line) = line else { return };
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    });
    match started {
        Ok(_) => Ok(receiver),
        Err(error) => Err(Failure::new(format!("start reading the input: {error}"))),
    }
}

/// The next line, bounded; `None` at the end of the input.
fn next_line(reader: &mut impl BufRead) -> Result<Option<String>, Failure> {
    let mut bytes = Vec::new();
    let read = reader
        .take(INPUT_BYTES_MAX as u64 + 1)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| Failure::new(format!("read standard input: {error}")))?;
    match read {
        0 => Ok(None),
        _ => input::read(&bytes[..], input::STANDARD_INPUT).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_words_or_commands() {
        assert_eq!(Turn::from("hello "), Turn::Say("hello".into()));
        assert_eq!(Turn::from("  "), Turn::Nothing);
        assert_eq!(Turn::from("/reset"), Turn::Reset);
        assert_eq!(Turn::from("/quit"), Turn::Quit);
        assert_eq!(Turn::from("/?"), Turn::Help);
        assert_eq!(Turn::from("/nope x"), Turn::Unknown("/nope".into()));
        assert_eq!(Turn::from("//etc"), Turn::Say("/etc".into()));
    }

    #[test]
    fn a_reset_keeps_the_instructions() {
        let mut conversation = Conversation::new(Some("be brief"));
        conversation.messages.push(message("user", "hi"));
        conversation.reset();
        assert_eq!(conversation.messages, [message("system", "be brief")]);
    }

    #[test]
    fn input_is_read_line_by_line_to_its_end() {
        let mut reader = &b"one\n\ntwo"[..];
        let mut next = || next_line(&mut reader).unwrap();
        assert_eq!(next().as_deref(), Some("one"));
        assert_eq!(next().as_deref(), Some(""));
        assert_eq!(next().as_deref(), Some("two"));
        assert_eq!(next(), None);
    }
}
