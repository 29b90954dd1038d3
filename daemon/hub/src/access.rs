//! Access to a hub: its address, a token, and whether the network may be used at all.

use std::{
    ffi::OsString,
    fmt, fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use http::Uri;

use crate::HubError;

/// The hub that is used unless another one is named.
const ENDPOINT_DEFAULT: &str = "https://huggingface.co";
/// Longest token; real ones have 37 characters.
const TOKEN_BYTES_MAX: u64 = 4096;

/// A secret that appears nowhere but in requests to the hub.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, if the text can be one: printable ASCII without blanks. `None` for an empty text.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        // Nothing else can be sent in a header.
        let is_fine = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_fine.then(|| Self(text.to_owned()))
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How a hub is accessed.
#[derive(Debug, Clone)]
pub struct Access {
    /// The hub's address, without a slash at its end.
    pub(crate) endpoint: String,
    /// The user's token, which gated and private repositories need.
    pub token: Option<Token>,
    /// Whether all network access is forbidden.
    pub is_offline: bool,
}

impl Access {
    /// Reads the variables that the hub's own programs use: `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN` and the files
    /// that hold tokens; also a credential that systemd passes.
    ///
    /// # Errors
    /// When the endpoint is no valid address.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let text = |name: &str| {
            variable(name)
                .and_then(|value| value.into_string().ok())
                .filter(|value| !value.is_empty())
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned());
        // The values that huggingface_hub takes for true.
        let is_offline = text("HF_HUB_OFFLINE").is_some_and(|value| {
            ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
        });
        let token = text("HF_TOKEN")
            .and_then(|value| Token::new(&value))
            .or_else(|| {
                token_files(variable)
                    .iter()
                    .find_map(|path| read_token(path))
            });
        Self::new(&endpoint, token, is_offline)
    }

    /// Access to the hub at an endpoint such as `https://huggingface.co`.
    ///
    /// # Errors
    /// When the endpoint is no valid address.
    pub fn new(endpoint: &str, token: Option<Token>, is_offline: bool) -> Result<Self, HubError> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let wrong = || HubError::Endpoint {
            endpoint: endpoint.chars().take(200).collect(),
        };
        let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
        let is_web = matches!(uri.scheme_str(), Some("https" | "http"));
        // A name and password in the address would appear in logs and messages.
        let has_user = uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'));
        if !is_web || uri.host().is_none() || has_user || uri.query().is_some() {
            return Err(wrong());
        }
        Ok(Self {
            endpoint,
            token,
            is_offline,
        })
    }

    /// The hub's address.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The folder where the hub's own programs keep downloads.
    #[must_use]
    pub fn cache_folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        set("HF_HUB_CACHE")
            .map(PathBuf::from)
            .or_else(|| Some(home(variable)?.join("hub")))
    }
}

/// The user's folder of the hub's own programs.
fn home(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(home) = set("HF_HOME") {
        return Some(home.into());
    }
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&set("HOME")?).join(".cache")))?;
    Some(cache.join("huggingface"))
}

/// Files that may hold a token, in the order of precedence.
fn token_files(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    // The user's explicit path first; then a service's credential, since a service may have no home folder.
    let named = set("HF_TOKEN_PATH").map(PathBuf::from);
    let credential = set("CREDENTIALS_DIRECTORY").map(|folder| Path::new(&folder).join("hf_token"));
    let kept = home(variable).map(|home| home.join("token"));
    named.into_iter().chain(credential).chain(kept).collect()
}

fn read_token(path: &Path) -> Option<Token> {
    let mut text = String::new();
    let file = fs::File::open(path).ok()?;
    // Bounded: the path comes from the environment, and may lead to any file.
    file.take(TOKEN_BYTES_MAX).read_to_string(&mut text).ok()?;
    Token::new(&text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn access(variables: &[(&str, &str)]) -> Result<Access, HubError> {
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        Access::from_variables(&|name| variables.get(name).map(OsString::from))
    }

    #[test]
    fn the_hubs_own_variables_count() {
        let plain = access(&[]).unwrap();
        assert_eq!(
            (plain.endpoint(), plain.is_offline),
            (ENDPOINT_DEFAULT, false)
        );
        assert_eq!(plain.token, None);
        let told = access(&[
            ("HF_ENDPOINT", "http://127.0.0.1:1/"),
            ("HF_HUB_OFFLINE", "True"),
            ("HF_TOKEN", " hf_x\n"),
        ]);
        let told = told.unwrap();
        assert_eq!(
            (told.endpoint(), told.is_offline),
            ("http://127.0.0.1:1", true)
        );
        assert_eq!(told.token, Token::new("hf_x"));
        assert!(!access(&[("HF_HUB_OFFLINE", "0")]).unwrap().is_offline);
    }

    #[test]
    fn a_token_is_found_where_it_is_kept_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "hf_kept\n").unwrap();
        fs::write(folder.path().join("hf_token"), "hf_handed\n").unwrap();
        let path = folder.path().to_str().unwrap();
        let kept = access(&[("HF_HOME", path)]).unwrap();
        assert_eq!(kept.token, Token::new("hf_kept"));
        assert!(!format!("{kept:?}").contains("hf_kept"));
        let handed = access(&[("HF_HOME", path), ("CREDENTIALS_DIRECTORY", path)]).unwrap();
        assert_eq!(handed.token, Token::new("hf_handed"));
        assert_eq!(Token::new("two words"), None);
        assert_eq!(Token::new(" \n"), None);
    }

    #[test]
    fn what_is_no_hubs_address_is_refused() {
        for wrong in [
            "",
            "huggingface.co",
            "ftp://a",
            "https://",
            "https://user:secret@a",
            "https://a/?b",
            "file:///etc",
        ] {
            assert!(Access::new(wrong, None, false).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_cache_is_where_the_hubs_programs_have_it() {
        let folder = |variables: &[(&str, &str)]| {
            let variables: BTreeMap<_, _> = variables.iter().copied().collect();
            Access::cache_folder(&|name| variables.get(name).map(OsString::from))
        };
        assert_eq!(folder(&[]), None);
        assert_eq!(
            folder(&[("HOME", "/h")]),
            Some("/h/.cache/huggingface/hub".into())
        );
        assert_eq!(
            folder(&[("HOME", "/h"), ("HF_HOME", "/x")]),
            Some("/x/hub".into())
        );
        assert_eq!(
            folder(&[("HF_HOME", "/x"), ("HF_HUB_CACHE", "/y")]),
            Some("/y".into())
        );
    }
}
