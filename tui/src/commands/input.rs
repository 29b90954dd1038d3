//! Text arguments and files, where `-` stands for standard input.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, fstat},
};

use crate::output::{Failure, dim};

/// Most bytes read of a text: far more than any context holds, and the most that the daemon accepts.
pub(super) const INPUT_BYTES_MAX: usize = 1 << 20;

pub(super) const STANDARD_INPUT: &str = "standard input";
/// The argument that stands for standard input.
pub(super) const STDIN: &str = "-";
/// How long a pipe that was not asked for may take to bring its first byte or to end. Many programs start others with a pipe
/// that stays open and empty, and waiting for that would hang.
const PIPE_WAIT: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

/// The argument, or the text of standard input if it is `-`.
pub(super) fn text(argument: &str) -> Result<String, Failure> {
    if argument == STDIN {
        read(std::io::stdin().lock(), STANDARD_INPUT)
    } else {
        Ok(argument.to_owned())
    }
}

/// The text that a file or a pipe brings beside a prompt; empty if standard input is something else, such as a terminal.
pub(super) fn beside_words() -> Result<String, Failure> {
    let stdin = std::io::stdin();
    let kind = fstat(&stdin).map(|facts| FileType::from_raw_mode(facts.st_mode));
    match kind {
        Ok(FileType::RegularFile) => {}
        Ok(FileType::Fifo | FileType::Socket) => {
            let mut wanted = [PollFd::new(&stdin, PollFlags::IN)];
            if poll(&mut wanted, Some(&PIPE_WAIT)) == Ok(0) {
                dim(
                    "note: standard input is empty so far and was ignored; add `-` after the prompt to wait for it, or `< /dev/null` to skip it",
                );
                return Ok(String::new());
            }
        }
        Ok(_) | Err(_) => return Ok(String::new()),
    }
    read(stdin.lock(), STANDARD_INPUT)
}

/// The texts of files, `-` being standard input; none of them blank.
pub(super) fn texts(paths: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let text = |path: &PathBuf| {
        let (text, name) = file(Some(path))?;
        match text.trim().is_empty() {
            true => Err(Failure::new(format!("{name} holds no text"))),
            false => Ok(text),
        }
    };
    paths.iter().map(text).collect()
}

/// The text of a file, or of standard input without one or for `-`; and its name for messages.
pub(super) fn file(path: Option<&Path>) -> Result<(String, String), Failure> {
    let (text, name) = match path.filter(|path| *path != Path::new(STDIN)) {
        None => (
            read(std::io::stdin().lock(), STANDARD_INPUT),
            STANDARD_INPUT.to_owned(),
        ),
        Some(path) => {
            let name = path.display().to_string();
            let file =
                File::open(path).map_err(|error| Failure::new(format!("open {name}: {error}")))?;
            (read(file, &name), name)
        }
    };
    Ok((text?, name))
}

/// Reads a bounded text without one newline at its end, which `echo` and editors add.
pub(super) fn read(reader: impl Read, name: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    reader
        .take(INPUT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(format!("read {name}: {error}")))?;
    if bytes.len() > INPUT_BYTES_MAX {
        return Err(Failure::new(format!("{name} holds more than 1 MiB")));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!("{name} is not UTF-8 at byte {at}"))
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(bytes: &[u8]) -> String {
        format!("{:?}", read(bytes, "x").unwrap_err())
    }

    #[test]
    fn one_newline_at_the_end_is_dropped() {
        assert_eq!(read(&b"a\nb\n"[..], "x").unwrap(), "a\nb");
        assert_eq!(read(&b"a\r\n"[..], "x").unwrap(), "a");
        assert_eq!(read(&b"a\n\n"[..], "x").unwrap(), "a\n");
        assert_eq!(read(&b""[..], "x").unwrap(), "");
    }

    #[test]
    fn what_is_not_text_or_too_much_is_refused() {
        assert!(problem(b"ab\xff").contains("byte 2"));
        assert!(read(&vec![b'a'; INPUT_BYTES_MAX][..], "x").is_ok());
        assert!(problem(&vec![b'a'; INPUT_BYTES_MAX + 1]).contains("1 MiB"));
    }
}
