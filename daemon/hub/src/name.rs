//! Names of models: `OWNER/NAME`, and `OWNER/NAME:LABEL` for one of several models in a repository.

use std::{fmt, path::PathBuf, str::FromStr};

/// Longest owner, name or label, in bytes; file systems allow 255 for a name.
const PART_BYTES_MAX: usize = 96;

/// The name of a model, whose parts are safe as folder names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HubName {
    owner: String,
    name: String,
    label: Option<String>,
}

/// Why a text is no valid model name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a valid model name: {problem}")]
pub struct HubNameError {
    /// The given text, shortened.
    pub text: String,
    /// The rule that it breaks.
    pub problem: &'static str,
}

impl HubName {
    /// `OWNER/NAME`, as the hub names it.
    #[must_use]
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The label, such as `Q4_K_M`, if there is one.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The same repository with another label.
    ///
    /// # Errors
    /// When the label cannot be a folder's name.
    pub fn with_label(&self, label: &str) -> Result<Self, HubNameError> {
        check(label, label)?;
        Ok(Self {
            label: Some(label.to_owned()),
            ..self.clone()
        })
    }

    /// The repository without a label.
    #[must_use]
    pub fn without_label(&self) -> Self {
        Self {
            label: None,
            ..self.clone()
        }
    }

    /// Its path in the folder of models.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        let last = match &self.label {
            // No repository's name has a colon, so no two models share a folder.
            Some(label) => format!("{}:{label}", self.name),
            None => self.name.clone(),
        };
        PathBuf::from(&self.owner).join(last)
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        match &self.label {
            Some(label) => write!(f, ":{label}"),
            None => Ok(()),
        }
    }
}

impl FromStr for HubName {
    type Err = HubNameError;

    fn from_str(text: &str) -> Result<Self, HubNameError> {
        let (repository, label) = match text.split_once(':') {
            Some((repository, label)) => (repository, Some(label)),
            None => (text, None),
        };
        // Further slashes end up in the name, which `check` refuses.
        let Some((owner, name)) = repository.split_once('/') else {
            return Err(wrong(text, "it has the form OWNER/NAME"));
        };
        for part in [owner, name].into_iter().chain(label) {
            check(text, part)?;
        }
        Ok(Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
            label: label.map(str::to_owned),
        })
    }
}

/// Checks the hub's own rule for names, which also keeps them from being paths, options or hidden files.
fn check(text: &str, part: &str) -> Result<(), HubNameError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if part.is_empty() {
        return Err(wrong(text, "a part is empty"));
    }
    if part.len() > PART_BYTES_MAX {
        return Err(wrong(text, "a part has more than 96 characters"));
    }
    if !part.bytes().all(is_plain) {
        return Err(wrong(
            text,
            "only letters, digits, '-', '_' and '.' are allowed",
        ));
    }
    if part.starts_with(['.', '-']) || part.contains("..") {
        return Err(wrong(text, "a part begins with '.' or '-', or has '..'"));
    }
    Ok(())
}

fn wrong(text: &str, problem: &'static str) -> HubNameError {
    HubNameError {
        text: text.chars().take(200).collect(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["GSAI-ML/LLaDA-8B-Instruct", "a/b.c_d:Q4_K_M"] {
            assert_eq!(text.parse::<HubName>().unwrap().to_string(), text);
        }
        let name: HubName = "a/b:Q8_0".parse().unwrap();
        assert_eq!(name.repository(), "a/b");
        assert_eq!(name.label(), Some("Q8_0"));
        assert_eq!(name.folder(), PathBuf::from("a/b:Q8_0"));
    }

    #[test]
    fn what_could_lead_elsewhere_is_no_name() {
        for text in [
            "",
            "a",
            "a/",
            "/a",
            "a/b/c",
            "../b",
            "a/..",
            "a/../../b",
            ".a/b",
            "-a/b",
            "a/b\0",
            "a/b c",
            "a/b:",
            "a/b:../c",
            "a/b:c/d",
            "a\\b/c",
            "a/b%2f",
            "a/b:c:d",
            "ä/b",
        ] {
            assert!(text.parse::<HubName>().is_err(), "{text:?}");
        }
        assert!(format!("a/{}", "b".repeat(97)).parse::<HubName>().is_err());
    }
}
