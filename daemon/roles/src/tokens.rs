//! Tokens, by which callers say who they are: a text with a line each, `ROLE TOKEN`.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::role::Role;

/// Largest file of tokens.
pub const FILE_BYTES_MAX: u64 = 64 << 10;
/// Tokens in it.
const TOKENS_MAX: usize = 256;
/// Characters of a token: fewer could be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// The tokens of a file, by their hashes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenList(Vec<KnownToken>);

/// A token that the daemon knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownToken {
    /// What callers who bring it may do.
    pub role: Role,
    /// What it is told apart by.
    pub hash: TokenHash,
}

/// A token's SHA-256. Who knows it does not know the token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Its first half.
    #[must_use]
    pub fn beginning(&self) -> u128 {
        beginning(&self.0)
    }
}

/// The first half of a SHA-256.
#[must_use]
pub fn beginning(hash: &[u8; 32]) -> u128 {
    let (first, _) = hash.split_at(size_of::<u128>());
    u128::from_be_bytes(first.try_into().expect("as many bytes"))
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

impl TokenList {
    /// Reads a text of tokens. Blank lines and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// What is wrong, without the token: it is too long, or no text, or a line isn't a token or has an earlier one's.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
        }
        let text = str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned())?;
        let mut tokens: Vec<KnownToken> = Vec::new();
        let lines = text.lines().map(str::trim).enumerate();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let number = index + 1;
            let Some((role, token)) = line.split_once(char::is_whitespace) else {
                return Err(format!("line {number} is not of the form ROLE TOKEN"));
            };
            let role = role_of(role).map_err(|problem| format!("line {number}: {problem}"))?;
            let token = token.trim();
            let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
            if token.len() < TOKEN_CHARS_MIN || !is_plain {
                return Err(format!(
                    "line {number}: a token has at least {TOKEN_CHARS_MIN} letters, digits or signs, and no blanks\n\
                     hint: make one with `openssl rand -hex 24`"
                ));
            }
            let hash = TokenHash::of(token);
            if tokens.iter().any(|known| known.hash == hash) {
                return Err(format!("line {number} has the token of an earlier line"));
            }
            if tokens.len() == TOKENS_MAX {
                return Err(format!("it has more than {TOKENS_MAX} tokens"));
            }
            tokens.push(KnownToken { role, hash });
        }
        Ok(Self(tokens))
    }

    /// All of them, in their order.
    #[must_use]
    pub fn tokens(&self) -> &[KnownToken] {
        &self.0
    }

    /// Which of all this token is; `None` if it is unknown. Takes as long whichever it is, and whether it is one.
    #[must_use]
    pub fn position(&self, token: &str) -> Option<usize> {
        const NONE: u32 = u32::MAX;
        let hash = TokenHash::of(token);
        let mut position = NONE;
        for (index, known) in self.0.iter().enumerate() {
            let is_it = known.hash.0.ct_eq(&hash.0);
            position.conditional_assign(&(index as u32), is_it);
        }
        (position != NONE).then_some(position as usize)
    }
}

/// The role of this name. A name that isn't one is not told: who exchanged both parts of a line has the token there.
fn role_of(name: &str) -> Result<Role, &'static str> {
    name.parse()
        .map_err(|_| "it begins with none of observe, generate, operate, admin")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "0123456789abcdef";

    #[test]
    fn tokens_are_found_with_their_roles() {
        let text = format!("# who\n\noperate {FIRST}\r\n  admin\t{FIRST}-and-more \n");
        let list = TokenList::parse(text.as_bytes()).unwrap();
        let role = |token: &str| Some(list.tokens()[list.position(token)?].role);
        assert_eq!(role(FIRST), Some(Role::Operate));
        assert_eq!(role(&format!("{FIRST}-and-more")), Some(Role::Admin));
        for unknown in ["fedcba9876543210", "", &FIRST[..15]] {
            assert_eq!(role(unknown), None);
        }
        assert_eq!(TokenList::default().position(FIRST), None);
    }

    #[test]
    fn a_token_is_the_same_wherever_it_stands() {
        let hash = |text: String| {
            let list = TokenList::parse(text.as_bytes()).unwrap();
            list.tokens()[list.position(FIRST).unwrap()].hash
        };
        let alone = hash(format!("observe {FIRST}"));
        assert_eq!(hash(format!("admin {FIRST}x\nadmin {FIRST}")), alone);
        assert_ne!(hash(format!("admin {FIRST}")).beginning(), 0);
        assert!(!format!("{alone:?}").contains(char::is_numeric));
    }

    #[test]
    fn what_is_wrong_is_told_without_the_token() {
        let many: String = (0..=TOKENS_MAX)
            .map(|number| format!("admin {FIRST}-{number}\n"))
            .collect();
        for (text, words) in [
            (FIRST.to_owned(), "line 1 is not of the form"),
            (format!("\nroot {FIRST}"), "line 2: it begins with none of"),
            (format!("{FIRST} admin"), "line 1: it begins with none of"),
            ("admin short".to_owned(), "at least 16"),
            (format!("admin {FIRST} {FIRST}"), "no blanks"),
            (
                format!("admin {FIRST}\nobserve {FIRST}"),
                "line 2 has the token of an earlier",
            ),
            (many, "more than 256 tokens"),
            ("#".repeat(1 + FILE_BYTES_MAX as usize), "65536 bytes"),
        ] {
            let error = TokenList::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{error}");
            assert!(!error.contains(FIRST), "{error}");
        }
        assert!(
            TokenList::parse(b"admin \xff")
                .unwrap_err()
                .contains("UTF-8")
        );
    }
}
