//! Where web pages come from, as browsers tell it.

use std::{fmt, str::FromStr};

/// The origin of web pages, such as `https://chat.example`: a scheme, a name, and a port where it is not the usual one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(String);

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || {
            format!("'{text}' is no origin of web pages; write https://NAME or http://NAME:PORT")
        };
        let (scheme, name) = text.split_once("://").ok_or_else(problem)?;
        let is_name = !name.is_empty()
            && (name.bytes()).all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
        match matches!(scheme, "http" | "https") && is_name {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(problem()),
        }
    }
}

impl Origin {
    /// As browsers send it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_a_scheme_and_a_name() {
        for right in [
            "https://chat.example",
            "http://localhost:3000",
            "http://[::1]:8080",
        ] {
            assert_eq!(right.parse::<Origin>().unwrap().to_string(), right);
        }
        let upper: Origin = "https://Chat.Example".parse().unwrap();
        assert_eq!(upper.to_string(), "https://chat.example");
        for wrong in [
            "",
            "*",
            "null",
            "chat.example",
            "ftp://chat.example",
            "https://",
            "https://chat.example/",
            "https://a b",
        ] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
    }
}
