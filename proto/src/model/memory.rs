//! Requests about what the daemon remembers, checked.

use super::{InvalidField, invalid, known};
use crate::v1;

/// Tokens that pieces of memory may take in a prompt when nobody says how many.
pub const MEMORY_TOKENS_DEFAULT: u32 = 512;
/// The collection where nobody names one.
pub const COLLECTION_DEFAULT: &str = "default";

/// Collections that a request may name.
const COLLECTIONS_MAX: usize = 64;
/// Bytes of a collection's name, which the store checks.
const NAME_BYTES_MAX: usize = 64;
/// Bytes of a query.
const QUERY_BYTES_MAX: usize = 64 << 10;
/// Bytes of a source's name: the system's limit for a path.
const SOURCE_NAME_BYTES_MAX: usize = 4096;
/// Names that a request may have pinned.
const PINNED_NAMES_MAX: u32 = 4;
const HITS_DEFAULT: u32 = 10;
const HITS_MAX: u32 = 100;
const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1000;

/// Checked [`v1::MemoryOptions`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryChoice {
    /// Tokens of the prompt that pieces may take, at least 1.
    pub max_tokens: usize,
    /// The collections to look in; empty: all that the caller may read.
    pub collections: Vec<String>,
    /// Names out of the pieces that are fixed in the answer, at most.
    pub pinned_names: usize,
}

impl MemoryChoice {
    /// What is asked for, if anything is.
    pub(super) fn checked(wire: Option<v1::MemoryOptions>) -> Result<Option<Self>, InvalidField> {
        let Some(wire) = wire else {
            return Ok(None);
        };
        if wire.pinned_names > PINNED_NAMES_MAX {
            let problem = format!("{} is more than {PINNED_NAMES_MAX}", wire.pinned_names);
            return Err(invalid("memory.pinned_names", problem));
        }
        let choice = Self {
            pinned_names: wire.pinned_names as usize,
            max_tokens: wire.max_tokens.unwrap_or(MEMORY_TOKENS_DEFAULT) as usize,
            collections: collections("memory.collections", wire.collections)?,
        };
        Ok(Some(choice).filter(|choice| choice.max_tokens > 0))
    }
}

/// A checked [`v1::SearchMemoryRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemorySearch {
    /// Not blank.
    pub query: String,
    /// The collections to look in; empty: all that the caller may read.
    pub collections: Vec<String>,
    /// The kinds of sources to look in; empty: all.
    pub kinds: Vec<v1::MemorySourceKind>,
    /// Only what was changed or added since, in seconds since 1970.
    pub since: Option<i64>,
    /// `None`: by words and vectors where there is an encoder.
    pub ranking: Option<v1::MemoryRanking>,
    /// Most hits, at least 1.
    pub most: usize,
}

impl TryFrom<v1::SearchMemoryRequest> for MemorySearch {
    type Error = InvalidField;

    fn try_from(wire: v1::SearchMemoryRequest) -> Result<Self, InvalidField> {
        let kinds = wire.kinds.iter().map(|&kind| source_kind("kinds", kind));
        let kinds = kinds.collect::<Result<_, _>>()?;
        let ranking: v1::MemoryRanking = known("ranking", wire.ranking)?;
        if wire.query.trim().is_empty() {
            return Err(invalid("query", "is empty"));
        }
        if wire.query.len() > QUERY_BYTES_MAX {
            let problem = format!(
                "has {} bytes, more than {QUERY_BYTES_MAX}",
                wire.query.len()
            );
            return Err(invalid("query", problem));
        }
        Ok(Self {
            query: wire.query,
            collections: collections("collections", wire.collections)?,
            kinds,
            since: wire.since_unix_s,
            ranking: Some(ranking).filter(|ranking| *ranking != v1::MemoryRanking::Unspecified),
            most: page("max_hits", wire.max_hits, HITS_DEFAULT, HITS_MAX)?,
        })
    }
}

/// A checked [`v1::ImportBegin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportStart {
    /// The collection; the store checks its characters.
    pub collection: String,
    /// Bytes of all sources together; `None`: not known.
    pub total_bytes: Option<u64>,
    /// The least role that may read a collection that is made; `None`: nothing is said.
    pub reader: Option<v1::MemoryReader>,
}

impl TryFrom<v1::ImportBegin> for ImportStart {
    type Error = InvalidField;

    fn try_from(wire: v1::ImportBegin) -> Result<Self, InvalidField> {
        let reader: v1::MemoryReader = known("begin.reader", wire.reader)?;
        Ok(Self {
            collection: match wire.collection.is_empty() {
                true => COLLECTION_DEFAULT.to_owned(),
                false => collection("begin.collection", wire.collection)?,
            },
            total_bytes: Some(wire.total_bytes).filter(|bytes| *bytes > 0),
            reader: Some(reader).filter(|reader| *reader != v1::MemoryReader::Unspecified),
        })
    }
}

/// A checked [`v1::SourceHeader`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedSource {
    /// What it is made of.
    pub kind: v1::MemorySourceKind,
    /// The path of a file, or a title; not blank, and one line.
    pub name: String,
    /// When it was changed last, in seconds since 1970.
    pub modified: Option<i64>,
}

impl TryFrom<v1::SourceHeader> for ImportedSource {
    type Error = InvalidField;

    fn try_from(wire: v1::SourceHeader) -> Result<Self, InvalidField> {
        let field = "source.name";
        if wire.name.trim().is_empty() {
            return Err(invalid(field, "is empty"));
        }
        if wire.name.len() > SOURCE_NAME_BYTES_MAX {
            let problem = format!(
                "has {} bytes, more than {SOURCE_NAME_BYTES_MAX}",
                wire.name.len()
            );
            return Err(invalid(field, problem));
        }
        if wire.name.contains(char::is_control) {
            return Err(invalid(field, "has control characters"));
        }
        Ok(Self {
            kind: source_kind("source.kind", wire.kind)?,
            name: wire.name,
            modified: wire.modified_unix_s,
        })
    }
}

/// A checked [`v1::ListSourcesRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePage {
    /// `None`: all that the caller may read.
    pub collection: Option<String>,
    /// Sources with lower numbers than this; `None`: from the latest on.
    pub before: Option<i64>,
    /// Most sources, at least 1.
    pub most: usize,
}

impl TryFrom<v1::ListSourcesRequest> for SourcePage {
    type Error = InvalidField;

    fn try_from(wire: v1::ListSourcesRequest) -> Result<Self, InvalidField> {
        let before = match wire.page_token.as_str() {
            "" => None,
            token => {
                let before = token.parse().ok();
                Some(before.ok_or_else(|| invalid("page_token", "is no token of a page"))?)
            }
        };
        Ok(Self {
            collection: optional_collection(wire.collection)?,
            before,
            most: page("page_size", wire.page_size, PAGE_DEFAULT, PAGE_MAX)?,
        })
    }
}

/// Pieces of a source: a checked [`v1::ReadSourceRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PiecePage {
    /// The source's number.
    pub source: i64,
    /// The first piece.
    pub first: u64,
    /// Most pieces, at least 1.
    pub most: usize,
}

impl TryFrom<v1::ReadSourceRequest> for PiecePage {
    type Error = InvalidField;

    fn try_from(wire: v1::ReadSourceRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            source: wire.source_id,
            first: wire.first_piece.min(i64::MAX as u64),
            most: page("page_size", wire.page_size, PAGE_DEFAULT, PAGE_MAX)?,
        })
    }
}

/// What to remove: a checked [`v1::RemoveSourcesRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// The source of this number.
    Source(i64),
    /// The collection of this name.
    Collection(String),
}

impl TryFrom<v1::RemoveSourcesRequest> for Removal {
    type Error = InvalidField;

    fn try_from(wire: v1::RemoveSourcesRequest) -> Result<Self, InvalidField> {
        use v1::remove_sources_request::What;

        match wire.what {
            Some(What::SourceId(id)) => Ok(Self::Source(id)),
            Some(What::Collection(name)) => Ok(Self::Collection(collection("collection", name)?)),
            None => Err(invalid("what", "has neither a source nor a collection")),
        }
    }
}

/// A collection that may be left out, in the field `collection`.
///
/// # Errors
/// When the name is longer than any.
pub fn optional_collection(name: String) -> Result<Option<String>, InvalidField> {
    match name.is_empty() {
        true => Ok(None),
        false => collection("collection", name).map(Some),
    }
}

fn collection(field: &'static str, name: String) -> Result<String, InvalidField> {
    match name.len() {
        0 => Err(invalid(field, "is empty")),
        1..=NAME_BYTES_MAX => Ok(name),
        bytes => {
            let problem = format!("a name has {bytes} bytes, more than {NAME_BYTES_MAX}");
            Err(invalid(field, problem))
        }
    }
}

fn collections(field: &'static str, names: Vec<String>) -> Result<Vec<String>, InvalidField> {
    if names.len() > COLLECTIONS_MAX {
        let problem = format!("{} collections, more than {COLLECTIONS_MAX}", names.len());
        return Err(invalid(field, problem));
    }
    let names = names.into_iter().map(|name| collection(field, name));
    names.collect()
}

fn source_kind(field: &'static str, number: i32) -> Result<v1::MemorySourceKind, InvalidField> {
    match known(field, number)? {
        v1::MemorySourceKind::Unspecified => Err(invalid(field, "is missing")),
        kind => Ok(kind),
    }
}

/// How many of a list are asked for.
fn page(field: &'static str, asked: u32, usual: u32, max: u32) -> Result<usize, InvalidField> {
    match asked {
        0 => Ok(usual as usize),
        asked if asked <= max => Ok(asked as usize),
        asked => Err(invalid(field, format!("{asked} is more than {max}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_a_prompt_is_off_without_tokens() {
        let options = |max_tokens| v1::MemoryOptions {
            max_tokens,
            collections: vec!["a".to_owned()],
            pinned_names: 4,
        };
        assert_eq!(MemoryChoice::checked(None).unwrap(), None);
        assert_eq!(MemoryChoice::checked(Some(options(Some(0)))).unwrap(), None);
        let usual = MemoryChoice::checked(Some(options(None))).unwrap().unwrap();
        assert_eq!((usual.max_tokens, usual.pinned_names), (512, 4));
        let names = v1::MemoryOptions {
            pinned_names: 5,
            ..Default::default()
        };
        let refused = MemoryChoice::checked(Some(names)).unwrap_err();
        assert_eq!(refused.to_string(), "memory.pinned_names: 5 is more than 4");
        let many = v1::MemoryOptions {
            collections: vec!["a".to_owned(); 65],
            ..Default::default()
        };
        let refused = MemoryChoice::checked(Some(many)).unwrap_err();
        assert_eq!(refused.field, "memory.collections");
    }

    #[test]
    fn names_and_pages_are_bounded() {
        let begin = |collection: &str| {
            ImportStart::try_from(v1::ImportBegin {
                collection: collection.to_owned(),
                ..Default::default()
            })
        };
        assert_eq!(begin("").unwrap().collection, "default");
        assert_eq!(
            begin(&"x".repeat(65)).unwrap_err().field,
            "begin.collection"
        );
        let header = |name: &str, kind: v1::MemorySourceKind| {
            let header = v1::SourceHeader {
                kind: kind.into(),
                name: name.to_owned(),
                modified_unix_s: None,
            };
            ImportedSource::try_from(header).map_err(|error| error.field)
        };
        assert!(header("a.md", v1::MemorySourceKind::File).is_ok());
        for name in [" ", "a\nb", &"x".repeat(4097)] {
            let refused = header(name, v1::MemorySourceKind::File).unwrap_err();
            assert_eq!(refused, "source.name");
        }
        let unsaid = header("a.md", v1::MemorySourceKind::Unspecified);
        assert_eq!(unsaid.unwrap_err(), "source.kind");
        let search = |query: &str, max_hits| {
            MemorySearch::try_from(v1::SearchMemoryRequest {
                query: query.to_owned(),
                max_hits,
                ..Default::default()
            })
            .map_err(|error| error.field)
        };
        assert_eq!(search("x", 0).unwrap().most, 10);
        assert_eq!(search("x", 101).unwrap_err(), "max_hits");
        assert_eq!(search(" ", 0).unwrap_err(), "query");
        let page = v1::ListSourcesRequest {
            page_token: "x".to_owned(),
            ..Default::default()
        };
        assert_eq!(SourcePage::try_from(page).unwrap_err().field, "page_token");
    }
}
