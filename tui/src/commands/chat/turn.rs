//! Parsing input: a prompt of one line or several, or a command.

use crate::memory::DEFAULT_TOKENS;

/// What an input asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A prompt for the model.
    Say(String),
    /// Set the system prompt; `None` shows the present one.
    System(Option<String>),
    /// Load another model; `None` shows the present one.
    Model(Option<String>),
    /// Set an option for later answers; without a value it is reset, without a key all are shown.
    Set(Option<(String, Option<String>)>),
    /// Remember a text as a note.
    Remember(Option<String>),
    /// Show the texts of the memory that the last answer had.
    Sources,
    /// Ask the last prompt again.
    Retry,
    /// Save the conversation to a file.
    Save(Option<String>),
    Reset,
    Quit,
    Help,
    Unknown(String),
    Nothing,
}

/// A command, its argument and its effect; help and completion are made from these.
pub(super) const COMMANDS: &[(&str, &str, &str)] = &[
    (
        "/system",
        "TEXT",
        "instructions that come before the conversation; \"none\" for none but the model's own",
    ),
    (
        "/model",
        "NAME",
        "switches to another model; loads and downloads it as needed",
    ),
    (
        "/set",
        "KEY VALUE",
        "a flag of `sluice chat`, such as temperature 0.7; \"default\" drops it",
    ),
    (
        "/think",
        "N",
        "latent thought models: most steps of inference before an answer; as /set think N",
    ),
    (
        "/remember",
        "TEXT",
        "adds a note to the daemon's memory, in the first --memory-collection",
    ),
    (
        "/memory",
        "TOKENS",
        "puts what the daemon remembers into prompts, in at most so many tokens; \"off\" doesn't",
    ),
    (
        "/sources",
        "",
        "shows what of its memory the last answer had",
    ),
    ("/retry", "", "asks the last prompt again"),
    (
        "/save",
        "FILE",
        "writes the conversation: JSON if FILE ends in .json, else Markdown",
    ),
    ("/reset", "", "resets the conversation"),
    ("/help", "", "this list; so does /?"),
    ("/quit", "", "ends; so does Ctrl-D, or Ctrl-C twice"),
];

/// The text of `/help`.
pub(super) fn help() -> String {
    let mut help = String::new();
    for (command, argument, about) in COMMANDS {
        let head = format!("{command} {argument}");
        help += &format!("{head:<16} {about}\n");
    }
    help + "Without an argument, /system, /model, /set and /think show what is in force.\n\
        Ctrl-C           stops an answer\n\
        A line that ends with \\ goes on in the next one, and so does a text between \"\"\" and \"\"\".\n\
        A line that should start with a slash starts with two."
}

/// A complete input of one line or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Text {
    /// As it was typed: a prompt or a command.
    Plain(String),
    /// It was between `"""`: always a prompt, even if it begins with a slash.
    Quoted(String),
}

impl Text {
    /// The text without its quotes.
    pub(super) fn words(&self) -> &str {
        match self {
            Self::Plain(words) | Self::Quoted(words) => words,
        }
    }
}

impl From<Text> for Turn {
    fn from(text: Text) -> Self {
        match text {
            Text::Plain(words) => Self::from(words.as_str()),
            Text::Quoted(words) if words.trim().is_empty() => Self::Nothing,
            Text::Quoted(words) => Self::Say(words),
        }
    }
}

impl From<&str> for Turn {
    fn from(text: &str) -> Self {
        let text = text.trim_end();
        let begun = text.trim_start();
        if begun.is_empty() {
            return Self::Nothing;
        }
        if begun.starts_with("//") {
            return Self::Say(begun[1..].to_owned());
        }
        if !begun.starts_with('/') {
            return Self::Say(text.to_owned());
        }
        let (command, rest) = match begun.split_once(char::is_whitespace) {
            Some((command, rest)) => (command, Some(rest.trim()).filter(|rest| !rest.is_empty())),
            None => (begun, None),
        };
        let rest = rest.map(str::to_owned);
        match command {
            "/system" => Self::System(rest),
            "/model" => Self::Model(rest),
            "/set" => Self::Set(rest.map(|rest| match rest.split_once(char::is_whitespace) {
                Some((key, value)) => (key.to_owned(), Some(value.trim().to_owned())),
                None => (rest, None),
            })),
            "/think" => Self::Set(rest.map(|steps| ("think".to_owned(), Some(steps)))),
            "/remember" => Self::Remember(rest),
            "/memory" => {
                let tokens = match rest.as_deref() {
                    None | Some("on") => DEFAULT_TOKENS.to_owned(),
                    Some("off") => "0".to_owned(),
                    Some(tokens) => tokens.to_owned(),
                };
                Self::Set(Some(("memory".to_owned(), Some(tokens))))
            }
            "/sources" => Self::Sources,
            "/retry" => Self::Retry,
            "/save" => Self::Save(rest),
            "/reset" => Self::Reset,
            "/quit" | "/exit" | "/bye" => Self::Quit,
            "/?" | "/help" => Self::Help,
            _ => Self::Unknown(command.to_owned()),
        }
    }
}

/// Opens a text of several lines, and ends it.
const QUOTES: &str = "\"\"\"";

/// The complete text of some lines; `None` while another line has to follow.
pub(super) fn complete(lines: &str) -> Option<Text> {
    if let Some(text) = lines.trim_start().strip_prefix(QUOTES) {
        // Text behind the closing quotes is kept: nothing that was typed is lost.
        let (text, rest) = text.split_once(QUOTES)?;
        let text = text.trim_matches('\n');
        return Some(Text::Quoted(format!("{text}{}", rest.trim_end())));
    }
    if ends_open(lines) {
        return None;
    }
    let lines: Vec<_> = lines.split('\n').collect();
    let last = lines.len() - 1;
    let mut text = String::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
    for (index, line) in lines.iter().enumerate() {
        match index < last && ends_open(line) {
            true => text.push_str(&line[..line.len() - 1]),
            false => text.push_str(line),
        }
        if index < last {
            text.push('\n');
        }
    }
    Some(Text::Plain(text))
}

/// Whether a backslash at the end continues the line; two stand for a backslash in the text.
fn ends_open(line: &str) -> bool {
    let slashes = line.len() - line.trim_end_matches('\\').len();
    slashes % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_words_or_commands() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(Turn::from("hello "), Turn::Say("hello".into()));
        assert_eq!(Turn::from("  "), Turn::Nothing);
        assert_eq!(Turn::from("/reset"), Turn::Reset);
        assert_eq!(Turn::from("/quit"), Turn::Quit);
        assert_eq!(Turn::from("/?"), Turn::Help);
        assert_eq!(Turn::from("/nope x"), Turn::Unknown("/nope".into()));
        assert_eq!(Turn::from("//etc"), Turn::Say("/etc".into()));
        assert_eq!(
            Turn::from("/system  be brief "),
            Turn::System(text("be brief"))
        );
        assert_eq!(Turn::from("/system"), Turn::System(None));
        assert_eq!(Turn::from("/model llada"), Turn::Model(text("llada")));
        assert_eq!(Turn::from("/set"), Turn::Set(None));
        assert_eq!(
            Turn::from("/set length"),
            Turn::Set(Some(("length".into(), None)))
        );
        assert_eq!(
            Turn::from("/set stop a b"),
            Turn::Set(Some(("stop".into(), text("a b"))))
        );
        assert_eq!(
            Turn::from("/think 4"),
            Turn::Set(Some(("think".into(), text("4"))))
        );
        assert_eq!(Turn::from("/think"), Turn::Set(None));
        let memory = |tokens: &str| Turn::Set(Some(("memory".into(), text(tokens))));
        assert_eq!(Turn::from("/memory"), memory("512"));
        assert_eq!(Turn::from("/memory 64"), memory("64"));
        assert_eq!(Turn::from("/memory off"), memory("0"));
        assert_eq!(Turn::from("/sources"), Turn::Sources);
        assert_eq!(Turn::from("/remember  a b "), Turn::Remember(text("a b")));
    }

    #[test]
    fn a_text_may_take_several_lines() {
        let plain = |text: &str| Some(Text::Plain(text.to_owned()));
        let quoted = |text: &str| Some(Text::Quoted(text.to_owned()));
        assert_eq!(complete("one"), plain("one"));
        assert_eq!(complete("one\\"), None);
        assert_eq!(complete("one\\\ntwo"), plain("one\ntwo"));
        assert_eq!(complete("C:\\\\"), plain("C:\\\\"));
        assert_eq!(complete("pasted\ntwo"), plain("pasted\ntwo"));
        assert_eq!(complete("\"\"\""), None);
        assert_eq!(complete("\"\"\"one\n\ntwo\\\n"), None);
        assert_eq!(complete("\"\"\"one\n\ntwo\"\"\""), quoted("one\n\ntwo"));
        assert_eq!(complete("\"\"\"\none\n\"\"\" "), quoted("one"));
        assert_eq!(complete("\"\"\"one\"\"\""), quoted("one"));
        assert_eq!(complete("\"\"\"one\"\"\" two\n"), quoted("one two"));
    }

    #[test]
    fn what_is_quoted_is_said_however_it_begins() {
        let turn = |lines: &str| Turn::from(complete(lines).unwrap());
        for words in ["/quit", "//x", "\\"] {
            let said = turn(&format!("\"\"\"{words}\"\"\""));
            assert_eq!(said, Turn::Say(words.to_owned()));
        }
        assert_eq!(turn("\"\"\"\n\"\"\""), Turn::Nothing);
        assert_eq!(turn("/quit"), Turn::Quit);
    }

    #[test]
    fn the_help_has_every_command() {
        for (command, ..) in COMMANDS {
            assert!(help().contains(command));
            assert!(!matches!(
                Turn::from(*command),
                Turn::Unknown(_) | Turn::Say(_)
            ));
        }
    }
}
