//! The tokens in force, and the end of those that are taken away.

use std::path::Path;

use tokio_util::sync::CancellationToken;

use crate::{
    credential_file::{CredentialError, CredentialKind},
    role::{FILE_BYTES_MAX, KnownToken, TokenList},
};

const TOKENS: CredentialKind = CredentialKind {
    name: "token file",
    bytes_max: FILE_BYTES_MAX,
    is_secret: true,
};

/// Tokens that the daemon knows.
#[derive(Debug, Default)]
pub struct Tokens {
    list: TokenList,
    /// For each, what is cancelled when it is no token any more, or one of a lesser role.
    revoked: Vec<CancellationToken>,
}

impl Tokens {
    /// Reads a file of tokens that takes the place of former ones: those that are not in it are revoked.
    ///
    /// # Errors
    /// When it can't be read, others may read it, or a line isn't a token.
    pub(crate) fn read(path: &Path, former: Option<&Self>) -> Result<Self, CredentialError> {
        let text = TOKENS.read(path)?;
        let list = TokenList::parse(&text).map_err(|problem| TOKENS.wrong(path, problem))?;
        Ok(Self::after(list, former))
    }

    fn after(list: TokenList, former: Option<&Self>) -> Self {
        let none = Self::default();
        let former = former.unwrap_or(&none);
        let mut kept = vec![false; former.revoked.len()];
        let mut revoked = Vec::new();
        for token in list.tokens() {
            let mut before = former.list.tokens().iter();
            let index =
                before.position(|before| before.hash == token.hash && before.role <= token.role);
            revoked.push(match index {
                Some(index) => {
                    kept[index] = true;
                    former.revoked[index].clone()
                }
                None => CancellationToken::new(),
            });
        }
        let gone = former.revoked.iter().zip(kept).filter(|(_, kept)| !kept);
        gone.for_each(|(revoked, _)| revoked.cancel());
        Self { list, revoked }
    }

    /// The token of all that is this one, and what is cancelled when it is revoked; `None` if it is unknown.
    #[must_use]
    pub fn find(&self, token: &str) -> Option<(KnownToken, CancellationToken)> {
        let index = self.list.position(token)?;
        Some((self.list.tokens()[index], self.revoked[index].clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    const FIRST: &str = "0123456789abcdef";
    const SECOND: &str = "fedcba9876543210";

    fn tokens(text: &str, former: Option<&Tokens>) -> Tokens {
        Tokens::after(TokenList::parse(text.as_bytes()).unwrap(), former)
    }

    #[test]
    fn those_that_are_gone_or_lessened_are_revoked_and_no_others() {
        let before = tokens(&format!("generate {FIRST}\noperate {SECOND}"), None);
        let revoked = |token| before.find(token).unwrap().1.is_cancelled();
        // Elsewhere in the file, and of a greater role.
        let after = tokens(
            &format!("# new\nadmin {SECOND}\ngenerate {FIRST}"),
            Some(&before),
        );
        assert!(!revoked(FIRST) && !revoked(SECOND));
        let lesser = tokens(&format!("generate {SECOND}"), Some(&after));
        assert!(revoked(FIRST) && revoked(SECOND));
        assert!(lesser.find(FIRST).is_none());
        assert!(!lesser.find(SECOND).unwrap().1.is_cancelled());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        fs::write(&path, format!("generate {FIRST}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Tokens::read(&path, None).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Tokens::read(&path, None).unwrap().find(FIRST).is_some());
    }
}
