//! Text arguments, where `-` stands for standard input.

use std::io::Read;

use crate::output::Failure;

/// Most bytes read from standard input: far more than any context holds.
pub(super) const INPUT_BYTES_MAX: usize = 1 << 20;

/// The argument, or what standard input holds where it is `-`.
pub(super) fn text(argument: &str) -> Result<String, Failure> {
    if argument == "-" {
        read(std::io::stdin().lock())
    } else {
        Ok(argument.to_owned())
    }
}

/// Reads a bounded text, less one newline at its end, which `echo` and editors add.
pub(super) fn read(reader: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    reader
        .take(INPUT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(format!("read standard input: {error}")))?;
    if bytes.len() > INPUT_BYTES_MAX {
        return Err(Failure::new("standard input holds more than 1 MiB"));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!("standard input is not UTF-8 at byte {at}"))
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
        format!("{:?}", read(bytes).unwrap_err())
    }

    #[test]
    fn one_newline_at_the_end_is_dropped() {
        assert_eq!(read(&b"a\nb\n"[..]).unwrap(), "a\nb");
        assert_eq!(read(&b"a\r\n"[..]).unwrap(), "a");
        assert_eq!(read(&b"a\n\n"[..]).unwrap(), "a\n");
        assert_eq!(read(&b""[..]).unwrap(), "");
    }

    #[test]
    fn what_is_not_text_or_too_much_is_refused() {
        assert!(problem(b"ab\xff").contains("byte 2"));
        assert!(read(&vec![b'a'; INPUT_BYTES_MAX][..]).is_ok());
        assert!(problem(&vec![b'a'; INPUT_BYTES_MAX + 1]).contains("1 MiB"));
    }
}
