//! What the daemon remembers: one store, opened when somebody needs it, and who may read which of its collections.

mod content;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sluice_proto::v1;
use sluice_retrieval::{Store, StoreError};

pub use self::content::{CONTENT_BYTES_MAX, Content, ContentWriter, Unreadable};
use crate::{caller::Caller, role::Role};

/// How long vectors stay in memory that no search needs.
const INDEX_IDLE: Duration = Duration::from_secs(300);

/// What can go wrong with what is remembered.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The store refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This daemon keeps none.
    #[error("this sluiced keeps no memory")]
    Off,
    /// A source's content is larger than any may be.
    #[error("{name} has more than {} bytes", CONTENT_BYTES_MAX)]
    TooLarge {
        /// The source's name.
        name: String,
    },
    /// A source's content could not be kept until it was read.
    #[error("the content of {name} cannot be kept in {folder}: {error}")]
    Spool {
        /// The source's name.
        name: String,
        /// Where it was to be kept.
        folder: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// An import's caller sent nothing for too long.
    #[error("nothing more of the import came for {} s", waited.as_secs())]
    Stalled {
        /// How long.
        waited: Duration,
    },
    /// The collection is there, for other readers than those that were asked for.
    #[error("the collection {collection} is for the role {reader} already")]
    OtherReader {
        /// The collection.
        collection: String,
        /// The least role that may read it.
        reader: v1::MemoryReader,
    },
    /// The model that is to make vectors does not.
    #[error("{model} makes no vectors: {reason}")]
    Encoder {
        /// The model's name.
        model: String,
        /// Why not.
        reason: String,
    },
    /// Vectors were asked for, and no model makes them.
    #[error("no sentence encoder is there, so nothing can be found by vectors")]
    NoEncoder,
}

/// Which model makes vectors of what is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EncoderChoice {
    /// The sentence encoder that is loaded, if there is one.
    #[default]
    Auto,
    /// None: pieces are found by their words.
    Off,
    /// The one of this name, which is loaded when it is needed.
    Named(String),
}

impl FromStr for EncoderChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "" => Err("is empty".to_owned()),
            name => Ok(Self::Named(name.to_owned())),
        }
    }
}

impl fmt::Display for EncoderChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Named(name) => name,
        })
    }
}

/// The store, which is opened by the first who needs it. Its methods wait for the disk and for each other: not for async code.
#[derive(Debug, Default)]
pub struct Memory {
    /// `None`: nothing is remembered.
    path: Option<PathBuf>,
    encoder: EncoderChoice,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    store: Option<Store>,
    /// When a search needed vectors last.
    searched: Option<Instant>,
}

impl Memory {
    /// The memory in this file, which is made when the first source is remembered.
    #[must_use]
    pub fn new(path: Option<PathBuf>, encoder: EncoderChoice) -> Self {
        Self {
            path,
            encoder,
            state: Mutex::default(),
        }
    }

    /// Which model makes vectors.
    #[must_use]
    pub fn encoder(&self) -> &EncoderChoice {
        &self.encoder
    }

    /// The file.
    ///
    /// # Errors
    /// When nothing is remembered.
    pub fn path(&self) -> Result<&Path, MemoryError> {
        self.path.as_deref().ok_or(MemoryError::Off)
    }

    /// Works with the store, which is made where it is missing.
    ///
    /// # Errors
    /// When nothing is remembered, the file cannot be opened, or the work fails.
    pub fn write<T>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let path = self.path()?;
        worked(&mut self.lock().store, path, work)
    }

    /// Works with the store if there is one; `None` where nothing was remembered yet.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read<T>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, MemoryError>,
    ) -> Result<Option<T>, MemoryError> {
        let path = self.path()?;
        let mut state = self.lock();
        match is_there(&state.store, path)? {
            true => worked(&mut state.store, path, work).map(Some),
            false => Ok(None),
        }
    }

    /// As [`Self::read`], for a search that may need all vectors in memory. They go when no search has needed them for a while
    /// ([`Self::release_idle`]).
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn search<T>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, MemoryError>,
    ) -> Result<Option<T>, MemoryError> {
        let found = self.read(work);
        self.lock().searched = Some(Instant::now());
        found
    }

    /// Whether something was removed that is still to be deleted.
    #[must_use]
    pub fn has_removed(&self) -> bool {
        let state = self.lock();
        state.store.as_ref().is_some_and(Store::has_removed)
    }

    /// Gives the memory of vectors back that no search has needed for a while. How long it takes until that may be so, where
    /// there are any.
    #[must_use]
    pub fn release_idle(&self) -> Option<Duration> {
        let mut state = self.lock();
        let left = INDEX_IDLE.saturating_sub(state.searched?.elapsed());
        if left.is_zero() {
            state.searched = None;
            state.store.iter_mut().for_each(Store::release);
            return None;
        }
        Some(left)
    }

    /// Forgets everything: the file is overwritten and removed. How many sources and pieces there were; none are counted of a
    /// damaged file.
    ///
    /// # Errors
    /// When nothing is remembered, or the file is no store or cannot be overwritten or removed.
    pub fn wipe(&self) -> Result<(u64, u64), MemoryError> {
        let path = self.path()?;
        let mut state = self.lock();
        if !is_there(&state.store, path)? {
            return Ok((0, 0));
        }
        let totals = opened(&mut state.store, path).and_then(|store| Ok(store.totals()?));
        match (totals, state.store.take()) {
            (Ok(totals), Some(store)) => {
                match store.wipe() {
                    Ok(store) => state.store = Some(store),
                    Err(StoreError::Damaged { .. }) => Store::wipe_damaged(path)?,
                    Err(error) => return Err(error.into()),
                }
                Ok((totals.sources, totals.pieces))
            }
            (Err(MemoryError::Store(StoreError::Damaged { .. })), store) => {
                drop(store);
                Store::wipe_damaged(path)?;
                Ok((0, 0))
            }
            (totals, store) => {
                state.store = store;
                totals.map(|totals| (totals.sources, totals.pieces))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What a panic interrupts is a transaction that SQLite takes back.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether something was remembered. Where a wipe was interrupted, it is ended.
fn is_there(store: &Option<Store>, path: &Path) -> Result<bool, MemoryError> {
    if store.is_some() || path.exists() {
        return Ok(true);
    }
    Store::end_wipe(path)?;
    Ok(false)
}

/// Works with the store, which is opened where it is not.
fn worked<T>(
    store: &mut Option<Store>,
    path: &Path,
    work: impl FnOnce(&mut Store) -> Result<T, MemoryError>,
) -> Result<T, MemoryError> {
    let done = work(opened(store, path)?);
    if let Err(MemoryError::Store(StoreError::Damaged { .. })) = done {
        // Whoever moves the file away begins with an empty one.
        *store = None;
    }
    done
}

fn opened<'a>(store: &'a mut Option<Store>, path: &Path) -> Result<&'a mut Store, MemoryError> {
    let opened = match store.take() {
        Some(opened) => opened,
        None => {
            let folder = path.parent().unwrap_or(path);
            crate::atomic_file::create_folder(folder).map_err(|error| StoreError::Open {
                path: path.to_owned(),
                error,
            })?;
            Store::open(path)?
        }
    };
    Ok(store.insert(opened))
}

/// The number that the store keeps of who may read a collection.
#[must_use]
pub fn access_of(reader: v1::MemoryReader) -> i64 {
    i64::from(i32::from(reader))
}

/// Who may read a collection of this number; of one that a later version wrote, administrators.
#[must_use]
pub fn reader_of(access: i64) -> v1::MemoryReader {
    let known = i32::try_from(access).ok();
    let known = known.and_then(|number| v1::MemoryReader::try_from(number).ok());
    known
        .filter(|reader| *reader != v1::MemoryReader::Unspecified)
        .unwrap_or(v1::MemoryReader::Admin)
}

/// Whether the caller may read a collection of this number.
fn may_read(caller: Caller, access: i64) -> bool {
    caller.may(match reader_of(access) {
        v1::MemoryReader::Generate => Role::Generate,
        v1::MemoryReader::Operate => Role::Operate,
        v1::MemoryReader::Admin | v1::MemoryReader::Unspecified => Role::Admin,
    })
}

/// The names of the collections that the caller may read: those that are asked for, or all.
///
/// # Errors
/// When one that is asked for isn't there, or not for this caller, or the file cannot be read.
pub fn readable(
    store: &Store,
    caller: Caller,
    asked: &[String],
) -> Result<Vec<String>, StoreError> {
    let all = store.accesses()?.into_iter();
    let theirs: Vec<String> = all
        .filter(|(_, access)| may_read(caller, *access))
        .map(|(name, _)| name)
        .collect();
    match asked.iter().find(|name| !theirs.contains(name)) {
        Some(name) => Err(StoreError::NoCollection(name.clone())),
        None if asked.is_empty() => Ok(theirs),
        None => Ok(asked.to_vec()),
    }
}

/// Checks that a collection may be added to by this caller, for these readers where it is made.
///
/// # Errors
/// When it is there for other readers, or not for this caller, or the file cannot be read.
pub fn check_addable(
    store: &Store,
    caller: Caller,
    collection: &str,
    asked: Option<v1::MemoryReader>,
) -> Result<Option<v1::MemoryReader>, MemoryError> {
    let all = store.accesses()?;
    let there = all.into_iter().find(|(name, _)| name == collection);
    let Some((collection, access)) = there else {
        return Ok(asked);
    };
    readable(store, caller, std::slice::from_ref(&collection))?;
    let reader = reader_of(access);
    match asked.is_none_or(|asked| asked == reader) {
        true => Ok(Some(reader)),
        false => Err(MemoryError::OtherReader { collection, reader }),
    }
}

/// The source, if the caller may read it.
///
/// # Errors
/// When it isn't there, or not for this caller, or the file cannot be read.
pub fn readable_source(
    store: &Store,
    caller: Caller,
    id: i64,
) -> Result<sluice_retrieval::Source, StoreError> {
    let source = store.source(id)?;
    match readable(store, caller, std::slice::from_ref(&source.collection)) {
        Ok(_) => Ok(source),
        // It says no more than that of a number that was never given.
        Err(StoreError::NoCollection(_)) => Err(StoreError::NoSource(id)),
        Err(error) => Err(error),
    }
}

/// What an encoder reads of a piece.
#[must_use]
pub fn encoded_text(piece: &sluice_retrieval::Piece) -> String {
    match piece.heading.as_str() {
        "" => piece.text.clone(),
        heading => format!("{heading}\n{}", piece.text),
    }
}

#[cfg(test)]
mod tests;
