//! Tokens, by which callers on the loopback port say who they are: a file with a line each, `ROLE TOKEN`.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::role::Role;

/// Largest file of tokens.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Tokens in it.
const TOKENS_MAX: usize = 256;
/// Characters of a token: fewer could be guessed.
const TOKEN_CHARS_MIN: usize = 16;
/// Bits of a file's mode by which others than its owner and group may read or write it.
const OTHERS: u32 = 0o007;

/// The tokens that the daemon knows, by their hashes.
#[derive(Debug, Default)]
pub struct Tokens(Vec<(Role, [u8; 32])>);

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
#[error("the token file {path}: {problem}", path = .path.display())]
pub struct TokenFileError {
    path: PathBuf,
    problem: String,
}

impl Tokens {
    /// Reads a file of tokens. Blank lines and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// When it can't be read, others may read it, or a line isn't a token.
    pub fn read(path: &Path) -> Result<Self, TokenFileError> {
        let failed = |problem: String| TokenFileError {
            path: path.to_owned(),
            problem,
        };
        let read = || -> io::Result<(u32, String)> {
            let file = File::open(path)?;
            let mode = file.metadata()?.mode();
            let mut text = String::new();
            file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
            Ok((mode, text))
        };
        let (mode, text) = read().map_err(|error| failed(error.to_string()))?;
        if mode & OTHERS != 0 {
            return Err(failed(
                "every user can read or change it\nhint: chmod 600".to_owned(),
            ));
        }
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(failed(format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        Self::parse(&text).map_err(failed)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let lines = text.lines().map(str::trim).enumerate();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            // The token itself is never shown.
            let number = index + 1;
            let Some((role, token)) = line.split_once(char::is_whitespace) else {
                return Err(format!("line {number} is not of the form ROLE TOKEN"));
            };
            let role = (role.parse()).map_err(|error| format!("line {number}: {error}"))?;
            let token = token.trim();
            let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
            if token.len() < TOKEN_CHARS_MIN || !is_plain {
                return Err(format!(
                    "line {number}: a token has at least {TOKEN_CHARS_MIN} letters, digits or signs, and no blanks\n\
                     hint: make one with `openssl rand -hex 24`"
                ));
            }
            tokens.push((role, hash(token)));
        }
        match tokens.len() {
            0..=TOKENS_MAX => Ok(Self(tokens)),
            more => Err(format!("{more} tokens are more than {TOKENS_MAX}")),
        }
    }

    /// The number of the token among all, and its role; `None` if it is unknown.
    #[must_use]
    pub fn find(&self, token: &str) -> Option<(u32, Role)> {
        // Of hashes, comparing takes no time by which a token could be guessed.
        let hash = hash(token);
        let number = self.0.iter().position(|(_, known)| *known == hash)?;
        Some((number as u32, self.0[number].0))
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    const FIRST: &str = "0123456789abcdef";

    #[test]
    fn tokens_are_found_with_their_roles() {
        let text = format!("# who\n\noperate {FIRST}\n  admin\t{FIRST}-and-more \n");
        let tokens = Tokens::parse(&text).unwrap();
        assert_eq!(tokens.find(FIRST), Some((0, Role::Operate)));
        let more = format!("{FIRST}-and-more");
        assert_eq!(tokens.find(&more), Some((1, Role::Admin)));
        assert_eq!(tokens.find("fedcba9876543210"), None);
    }

    #[test]
    fn what_is_wrong_is_told_without_the_token() {
        for (text, words) in [
            (FIRST.to_owned(), "line 1 is not of the form"),
            (format!("\nroot {FIRST}"), "line 2: 'root' is none of"),
            ("admin short".to_owned(), "at least 16"),
            (format!("admin {FIRST} {FIRST}"), "no blanks"),
        ] {
            let error = Tokens::parse(&text).unwrap_err();
            assert!(error.contains(words), "{error}");
            assert!(!error.contains(FIRST), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        assert!(Tokens::read(&path).is_err());
        fs::write(&path, format!("generate {FIRST}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Tokens::read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Tokens::read(&path).unwrap().find(FIRST).is_some());
    }
}
