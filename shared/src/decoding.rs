//! What passes compute, apart from which positions they commit: the KV cache, masks that are left out, the length of
//! the canvas, and orders that are tried beside each other. Command line, configuration, wire and engine name them
//! alike.

use std::{fmt, str::FromStr};

use crate::sampling::KvCacheMode;

/// These settings together. By default every pass computes the whole canvas, as the reference does.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Decoding {
    /// What the KV cache keeps between passes.
    pub kv_cache: KvCacheReuse,
    /// Masks behind the open block that a pass computes, besides the last position of the canvas; unset: all.
    pub suffix_window: Option<u32>,
    /// How long the canvas is.
    pub canvas_growth: CanvasGrowth,
    /// Orders that are tried beside each other in one pass.
    pub speculation: Speculation,
}

impl Decoding {
    /// Whether the result is that of whole passes, one after another; each of the other settings is an approximation.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        // `Draft` is exact: only steps that the policy would have taken anyway count.
        matches!(self.kv_cache.mode, KvCacheMode::None | KvCacheMode::Blocks)
            && self.suffix_window.is_none()
            && self.canvas_growth == CanvasGrowth::Fixed
            && !matches!(self.speculation, Speculation::Explore { .. })
    }
}

/// What the KV cache keeps, and when it is recomputed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvCacheReuse {
    /// Which positions are cached.
    pub mode: KvCacheMode,
    /// Passes in a block after which the whole cache is recomputed; unset: when the next block opens.
    pub refresh_passes: Option<u32>,
    /// Positions before a block that are recomputed when it opens; unset: all, as published.
    pub recompute_before: Option<u32>,
    /// Positions on each side of the block that [`KvCacheMode::Vicinity`] computes.
    pub recompute_around: u32,
    /// Share of the keys outside of the block that its later passes see: those that get most of the attention of the
    /// block's queries (Sparse-dLLM). 1: all.
    pub keep_share: f64,
}

impl Default for KvCacheReuse {
    fn default() -> Self {
        Self {
            mode: KvCacheMode::None,
            refresh_passes: None,
            recompute_before: None,
            recompute_around: RECOMPUTE_AROUND_DEFAULT,
            keep_share: 1.0,
        }
    }
}

/// Positions that dInfer computes on each side of the block.
pub const RECOMPUTE_AROUND_DEFAULT: u32 = 16;

/// How long the canvas is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CanvasGrowth {
    /// As long as was requested, from the first pass on.
    #[default]
    Fixed,
    /// Up to the open block: the next one is appended when it is done, until an end token or the requested length.
    Append,
    /// Short at first; longer until the model itself sees an end, and where it is unsure (DAEDAL). At most the
    /// requested length.
    Insert,
}

/// Orders of filling that are tried beside each other in one pass, which then has as many times more rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// One order alone.
    #[default]
    None,
    /// Besides what the policy commits, each of so many further canvases has one more position filled; the canvas whose
    /// remaining masks are the most certain goes on (LoPA). An approximation.
    Explore {
        /// Canvases besides the first, at most [`BRANCHES_MAX`].
        branches: u32,
    },
    /// Passes ahead are guessed from the last candidates, and checked in one pass: as many of them count as the policy
    /// would have reached (SSD). The tokens are the same as without.
    Draft {
        /// Passes ahead that are guessed.
        branches: u32,
    },
}

impl Speculation {
    /// Canvases of a pass, the first included.
    #[must_use]
    pub fn canvases(&self) -> u32 {
        match self {
            Self::None => 1,
            Self::Explore { branches } | Self::Draft { branches } => branches.saturating_add(1),
        }
    }
}

/// Most canvases besides the first.
pub const BRANCHES_MAX: u32 = 15;
/// The default of LoPA's and SSD's authors.
pub const BRANCHES_DEFAULT: u32 = 3;

impl KvCacheReuse {
    /// The name of the first value that makes no sense, and what it must be; `None` where all do.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        // Written so that NaN fails.
        if !(self.keep_share > 0.0 && self.keep_share <= 1.0) {
            let problem = format!("must be above 0 and at most 1, not {}", self.keep_share);
            return Some(("keep", problem));
        }
        if self.refresh_passes == Some(0) {
            return Some(("refresh", "must be at least 1, not 0".to_owned()));
        }
        None
    }
}

/// Why a setting cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodingError {
    /// The word is not known.
    #[error("unknown {setting} '{found}'; known are {known}")]
    Unknown {
        /// The setting that it was given for.
        setting: &'static str,
        /// The word that was given.
        found: String,
        /// The known words.
        known: &'static str,
    },
    /// The key is not known, or its value is not allowed.
    #[error("{key} {problem}")]
    InvalidValue {
        /// The key, or what was given in its place.
        key: String,
        /// What it must be.
        problem: String,
    },
}

/// Splits `word:key=value,key=value`.
fn split_parts(text: &str) -> (&str, impl Iterator<Item = (&str, &str)>) {
    let (word, rest) = text.split_once(':').unwrap_or((text, ""));
    let pairs = rest
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    // A key without a value goes on as it is, so that the error can name the key.
    let pairs = pairs.map(|part| part.split_once('=').unwrap_or((part, "")));
    (word.trim(), pairs)
}

fn parse_number<T: FromStr>(key: &str, value: &str) -> Result<T, DecodingError> {
    value
        .trim()
        .parse()
        .map_err(|_| DecodingError::InvalidValue {
            key: key.to_owned(),
            problem: format!("takes a number, not '{value}'"),
        })
}

fn unknown_key(key: &str, known: &str) -> DecodingError {
    DecodingError::InvalidValue {
        key: format!("'{key}'"),
        problem: format!("is not one of {known}"),
    }
}

impl FromStr for KvCacheReuse {
    type Err = DecodingError;

    /// Reads `none`, or `dual:refresh=8,recompute-before=64,keep=0.5` and the like.
    fn from_str(text: &str) -> Result<Self, DecodingError> {
        let (word, pairs) = split_parts(text);
        let kind = match word {
            "none" => KvCacheMode::None,
            "prefix" => KvCacheMode::Prefix,
            "dual" => KvCacheMode::Dual,
            "vicinity" => KvCacheMode::Vicinity,
            "blocks" => KvCacheMode::Blocks,
            found => {
                return Err(DecodingError::Unknown {
                    setting: "KV cache mode",
                    found: found.to_owned(),
                    known: "none, prefix, dual, vicinity, blocks",
                });
            }
        };
        let mut caching = Self {
            mode: kind,
            ..Self::default()
        };
        for (key, value) in pairs {
            match key {
                "refresh" => caching.refresh_passes = Some(parse_number(key, value)?),
                // `behind` and `around` are the names of before November 2026, which scripts may still use.
                "recompute-before" | "behind" => {
                    caching.recompute_before = Some(parse_number(key, value)?);
                }
                "recompute-around" | "around" => {
                    caching.recompute_around = parse_number(key, value)?;
                }
                "keep" => caching.keep_share = parse_number(key, value)?,
                other => {
                    return Err(unknown_key(
                        other,
                        "refresh, recompute-before, recompute-around, keep",
                    ));
                }
            }
        }
        match caching.problem() {
            None => Ok(caching),
            Some((what, problem)) => Err(DecodingError::InvalidValue {
                key: what.to_owned(),
                problem,
            }),
        }
    }
}

impl fmt::Display for KvCacheReuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys = Vec::new();
        let word = match self.mode {
            // Without a cache the other settings have no effect.
            KvCacheMode::None => return f.write_str("none"),
            KvCacheMode::Blocks => return f.write_str("blocks"),
            KvCacheMode::Prefix => "prefix",
            KvCacheMode::Dual => "dual",
            KvCacheMode::Vicinity => {
                keys.push(format!("recompute-around={}", self.recompute_around));
                "vicinity"
            }
        };
        keys.extend(
            self.refresh_passes
                .map(|passes| format!("refresh={passes}")),
        );
        keys.extend(
            self.recompute_before
                .map(|positions| format!("recompute-before={positions}")),
        );
        keys.extend((self.keep_share < 1.0).then(|| format!("keep={}", self.keep_share)));
        f.write_str(word)?;
        match keys.is_empty() {
            true => Ok(()),
            false => write!(f, ":{}", keys.join(",")),
        }
    }
}

impl FromStr for CanvasGrowth {
    type Err = DecodingError;

    fn from_str(text: &str) -> Result<Self, DecodingError> {
        match text {
            "fixed" => Ok(Self::Fixed),
            "append" => Ok(Self::Append),
            "insert" => Ok(Self::Insert),
            found => Err(DecodingError::Unknown {
                setting: "canvas growth",
                found: found.to_owned(),
                known: "fixed, append, insert",
            }),
        }
    }
}

impl fmt::Display for CanvasGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fixed => "fixed",
            Self::Append => "append",
            Self::Insert => "insert",
        })
    }
}

impl FromStr for Speculation {
    type Err = DecodingError;

    /// Reads `none`, `explore`, `draft:branches=4` and the like.
    fn from_str(text: &str) -> Result<Self, DecodingError> {
        let (word, pairs) = split_parts(text);
        let mut branches = BRANCHES_DEFAULT;
        for (key, value) in pairs {
            match key {
                "branches" => branches = parse_number(key, value)?,
                other => return Err(unknown_key(other, "branches")),
            }
        }
        if !(1..=BRANCHES_MAX).contains(&branches) {
            return Err(DecodingError::InvalidValue {
                key: "branches".to_owned(),
                problem: format!("must be between 1 and {BRANCHES_MAX}, not {branches}"),
            });
        }
        match word {
            "none" => Ok(Self::None),
            "explore" => Ok(Self::Explore { branches }),
            "draft" => Ok(Self::Draft { branches }),
            found => Err(DecodingError::Unknown {
                setting: "speculation",
                found: found.to_owned(),
                known: "none, explore, draft",
            }),
        }
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Explore { branches } => write!(f, "explore:branches={branches}"),
            Self::Draft { branches } => write!(f, "draft:branches={branches}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in [
            "none",
            "prefix",
            "dual:refresh=8,recompute-before=64",
            "vicinity:recompute-around=16,keep=0.5",
        ] {
            assert_eq!(text.parse::<KvCacheReuse>().unwrap().to_string(), text);
        }
        for text in ["none", "explore:branches=4", "draft:branches=15"] {
            assert_eq!(text.parse::<Speculation>().unwrap().to_string(), text);
        }
        for text in ["fixed", "append", "insert"] {
            assert_eq!(text.parse::<CanvasGrowth>().unwrap().to_string(), text);
        }
        assert_eq!(
            "draft".parse(),
            Ok(Speculation::Draft {
                branches: BRANCHES_DEFAULT
            })
        );
    }

    #[test]
    fn wrong_text_is_explained() {
        let cache = |text: &str| text.parse::<KvCacheReuse>().unwrap_err().to_string();
        assert_eq!(
            cache("both"),
            "unknown KV cache mode 'both'; known are none, prefix, dual, vicinity, blocks"
        );
        assert_eq!(
            cache("dual:size=3"),
            "'size' is not one of refresh, recompute-before, recompute-around, keep"
        );
        assert_eq!(
            cache("dual:recompute-before=x"),
            "recompute-before takes a number, not 'x'"
        );
        assert_eq!(cache("dual:refresh"), "refresh takes a number, not ''");
        assert_eq!(cache("dual:refresh=0"), "refresh must be at least 1, not 0");
        for keep in ["0", "1.1", "NaN"] {
            let error = cache(&format!("dual:keep={keep}"));
            assert!(error.starts_with("keep must be above 0 and at most 1"));
        }
        let error = "draft:branches=16".parse::<Speculation>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "branches must be between 1 and 15, not 16"
        );
        assert!("grow".parse::<CanvasGrowth>().is_err());
    }

    #[test]
    fn only_what_changes_nothing_is_exact() {
        let exact = Decoding::default();
        assert!(exact.is_exact());
        let draft = Speculation::Draft { branches: 2 };
        let explore = Speculation::Explore { branches: 2 };
        let speculation = |speculation| Decoding {
            speculation,
            ..exact
        };
        assert!(speculation(draft).is_exact() && !speculation(explore).is_exact());
        let window = Some(500);
        assert!(
            !Decoding {
                suffix_window: window,
                ..exact
            }
            .is_exact()
        );
        let growth = CanvasGrowth::Append;
        assert!(
            !Decoding {
                canvas_growth: growth,
                ..exact
            }
            .is_exact()
        );
        let caching = "prefix".parse().unwrap();
        assert!(
            !Decoding {
                kv_cache: caching,
                ..exact
            }
            .is_exact()
        );
    }
}
