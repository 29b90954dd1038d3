//! A store: what is in it, and how it goes away.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params, params_from_iter};

use crate::{StoreError, schema, vectors::VectorIndex};

/// Longest name of a collection, in bytes.
const COLLECTION_NAME_MAX: usize = 64;

/// A memory in one file. One process has it at a time.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    pub(crate) connection: Connection,
    /// The vectors of the encoder that was asked for last, once a search has needed them.
    pub(crate) index: Option<(i64, VectorIndex)>,
    /// Something was removed that is still to be deleted.
    pub(crate) has_removed: bool,
}

/// What a source was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// A note that somebody wrote down.
    Note,
    /// A file.
    File,
    /// A conversation.
    Conversation,
}

impl SourceKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Note, Self::File, Self::Conversation];

    pub(crate) fn number(self) -> i64 {
        self as i64
    }

    fn of_number(number: i64) -> Self {
        let known = Self::ALL.into_iter().find(|kind| kind.number() == number);
        known.unwrap_or(Self::Note)
    }
}

/// What vectors come from: only those of one encoder can be compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EncoderId {
    /// Its name, with whatever tells it from others of that name.
    pub name: String,
    /// Elements of its vectors.
    pub elements: usize,
}

/// A collection of sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collection {
    /// Its name.
    pub name: String,
    /// Who may read it, as a number that means something to the store's user alone.
    pub access: i64,
    /// Its sources, without those that are being imported.
    pub sources: u64,
    /// The pieces of these.
    pub pieces: u64,
    /// Bytes of what the sources were made of.
    pub bytes: u64,
}

/// A source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its number, which no other source of the store has had or will have.
    pub id: i64,
    /// The name of its collection.
    pub collection: String,
    /// What it was made of.
    pub kind: SourceKind,
    /// The path of a file, or a title.
    pub name: String,
    /// Bytes of what it was made of.
    pub bytes: u64,
    /// When that had changed last, in seconds since 1970, where that is known.
    pub modified: Option<i64>,
    /// When it was added, in seconds since 1970.
    pub added: i64,
    /// Its pieces.
    pub pieces: u64,
}

/// A piece with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPiece {
    /// Its number.
    pub id: i64,
    /// The number of its source.
    pub source: i64,
    /// Its place in the source, from 0.
    pub number: u64,
    /// The headings that it stands below.
    pub heading: String,
    /// The text.
    pub text: String,
}

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Sources.
    pub sources: u64,
    /// Pieces.
    pub pieces: u64,
    /// Pieces with a vector.
    pub vectors: u64,
    /// Bytes of the file and its log.
    pub file_bytes: u64,
    /// Bytes of vectors in memory.
    pub index_bytes: u64,
}

/// Pages of the index of words that are merged in one step.
const MERGED_PAGES: i64 = 1000;

/// Takes sources out of their collection, so that nothing finds them.
pub(crate) const REMOVE: &str = "UPDATE sources SET ready = 0, collection = NULL";

const SOURCES: &str = "
    SELECT sources.id, collections.name, kind, sources.name, bytes, modified, added,
           (SELECT coalesce(max(number) + 1, 0) FROM pieces WHERE pieces.source = sources.id)
    FROM sources JOIN collections ON collections.id = sources.collection
    WHERE ready";

fn source(row: &Row<'_>) -> rusqlite::Result<Source> {
    Ok(Source {
        id: row.get(0)?,
        collection: row.get(1)?,
        kind: SourceKind::of_number(row.get(2)?),
        name: row.get(3)?,
        bytes: row.get(4)?,
        modified: row.get(5)?,
        added: row.get(6)?,
        pieces: row.get(7)?,
    })
}

pub(crate) fn piece(row: &Row<'_>) -> rusqlite::Result<StoredPiece> {
    Ok(StoredPiece {
        id: row.get(0)?,
        source: row.get(1)?,
        number: row.get(2)?,
        heading: row.get(3)?,
        text: row.get(4)?,
    })
}

impl Store {
    /// Opens a store, which is made, readable for its owner alone, where there is none. What an interrupted import has left is
    /// removed; [`Self::delete_removed`] deletes it.
    ///
    /// # Errors
    /// When another process has it, or it cannot be read, is damaged, or is of a later version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = schema::open(path)?;
        let mut store = Self {
            path: path.to_owned(),
            connection,
            index: None,
            has_removed: false,
        };
        let left = store
            .connection
            .execute(&format!("{REMOVE} WHERE NOT ready"), []);
        match store.checked(left) {
            // Where the disk is full: nothing finds it, and it goes when there is room.
            Ok(_) | Err(StoreError::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        let select = "SELECT EXISTS (SELECT 1 FROM sources WHERE collection IS NULL)";
        let has_removed = (store.connection).query_row(select, [], |row| row.get(0));
        store.has_removed = store.checked(has_removed)?;
        Ok(store)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn checked<T>(&self, result: rusqlite::Result<T>) -> Result<T, StoreError> {
        result.map_err(|error| StoreError::of(&self.path, error))
    }

    /// Moves what the log has into the file and empties the log, so that what was deleted is nowhere.
    pub(crate) fn clear_log(&self) -> Result<(), StoreError> {
        let done = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        self.checked(done)
    }

    /// The names of all collections, and who may read them.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn accesses(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let read = || {
            let mut query =
                (self.connection).prepare("SELECT name, access FROM collections ORDER BY name")?;
            query
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        };
        self.checked(read())
    }

    /// All collections, by name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn collections(&self) -> Result<Vec<Collection>, StoreError> {
        let read = || {
            let mut query = self.connection.prepare(
                "SELECT name, access,
                    (SELECT count(*) FROM sources WHERE collection = collections.id AND ready),
                    (SELECT coalesce(sum((SELECT coalesce(max(number) + 1, 0) FROM pieces
                                          WHERE source = sources.id)), 0)
                     FROM sources WHERE collection = collections.id AND ready),
                    (SELECT coalesce(sum(bytes), 0)
                     FROM sources WHERE collection = collections.id AND ready)
                 FROM collections ORDER BY name",
            )?;
            let rows = query.query_map([], |row| {
                Ok(Collection {
                    name: row.get(0)?,
                    access: row.get(1)?,
                    sources: row.get(2)?,
                    pieces: row.get(3)?,
                    bytes: row.get(4)?,
                })
            })?;
            rows.collect()
        };
        self.checked(read())
    }

    /// The number of a collection, which is made where it is missing.
    pub(crate) fn collection(&self, name: &str, access: i64, now: i64) -> Result<i64, StoreError> {
        check_collection_name(name)?;
        let make = || {
            self.connection.execute(
                "INSERT INTO collections (name, access, created) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                params![name, access, now],
            )?;
            self.find_collection(name)
        };
        let id = self.checked(make())?;
        id.ok_or_else(|| StoreError::NoCollection(name.to_owned()))
    }

    pub(crate) fn find_collection(&self, name: &str) -> rusqlite::Result<Option<i64>> {
        let select = "SELECT id FROM collections WHERE name = ?1";
        self.connection
            .query_row(select, [name], |row| row.get(0))
            .optional()
    }

    /// Some sources of these collections, the latest first: those with a lower number than `before`, if that is given.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn sources(
        &self,
        collections: &[&str],
        before: Option<i64>,
        most: usize,
    ) -> Result<Vec<Source>, StoreError> {
        let places: Vec<String> = (0..collections.len())
            .map(|at| format!("?{}", at + 3))
            .collect();
        let places = places.join(", ");
        let read = || {
            let select = format!(
                "{SOURCES} AND (?1 IS NULL OR sources.id < ?1) AND collections.name IN ({places})
                 ORDER BY sources.id DESC LIMIT ?2"
            );
            let mut query = self.connection.prepare(&select)?;
            let most = most as i64;
            let (before, most): (&dyn ToSql, &dyn ToSql) = (&before, &most);
            let names = collections.iter().map(|name| name as &dyn ToSql);
            let values = [before, most].into_iter().chain(names);
            query.query_map(params_from_iter(values), source)?.collect()
        };
        self.checked(read())
    }

    /// A source.
    ///
    /// # Errors
    /// When there is none, or the file cannot be read.
    pub fn source(&self, id: i64) -> Result<Source, StoreError> {
        let select = format!("{SOURCES} AND sources.id = ?1");
        let found = self.connection.query_row(&select, [id], source).optional();
        self.checked(found)?.ok_or(StoreError::NoSource(id))
    }

    /// Some pieces of a source, from one on, in their order.
    ///
    /// # Errors
    /// When there is no such source, or the file cannot be read.
    pub fn pieces(&self, id: i64, from: u64, most: usize) -> Result<Vec<StoredPiece>, StoreError> {
        self.source(id)?;
        let read = || {
            let mut query = self.connection.prepare(
                "SELECT id, source, number, heading, text FROM pieces
                 WHERE source = ?1 AND number >= ?2 ORDER BY number LIMIT ?3",
            )?;
            query
                .query_map(params![id, from, most as i64], piece)?
                .collect()
        };
        self.checked(read())
    }

    /// A piece.
    ///
    /// # Errors
    /// When there is none, or the file cannot be read.
    pub fn piece(&self, id: i64) -> Result<StoredPiece, StoreError> {
        let select = "SELECT id, source, number, heading, text FROM pieces WHERE id = ?1";
        let found = self.connection.query_row(select, [id], piece).optional();
        self.checked(found)?.ok_or(StoreError::NoPiece(id))
    }

    /// Removes a source: nothing finds it any more. [`Self::delete_removed`] deletes its text.
    ///
    /// # Errors
    /// When there is none, or the file cannot be written.
    pub fn remove_source(&mut self, id: i64) -> Result<(), StoreError> {
        self.source(id)?;
        self.forget(id)?;
        let removed = (self.connection).execute(&format!("{REMOVE} WHERE id = ?1"), [id]);
        if removed.is_err() {
            // It has the vectors still.
            self.index = None;
        }
        self.checked(removed)?;
        self.has_removed = true;
        Ok(())
    }

    /// Removes a collection with its sources, likewise.
    ///
    /// # Errors
    /// When there is none, or the file cannot be written.
    pub fn remove_collection(&mut self, name: &str) -> Result<(), StoreError> {
        self.index = None;
        let mut remove = || {
            let step = self.connection.transaction()?;
            let of_collection = "collection = (SELECT id FROM collections WHERE name = ?1)";
            step.execute(&format!("{REMOVE} WHERE {of_collection}"), [name])?;
            let removed = step.execute("DELETE FROM collections WHERE name = ?1", [name])?;
            step.commit()?;
            Ok(removed)
        };
        let removed = remove();
        if self.checked(removed)? == 0 {
            return Err(StoreError::NoCollection(name.to_owned()));
        }
        self.has_removed = true;
        Ok(())
    }

    /// Whether something was removed that [`Self::delete_removed`] has still to delete.
    #[must_use]
    pub fn has_removed(&self) -> bool {
        self.has_removed
    }

    /// Deletes some of what was removed, about `most` pieces: all of a large source would take long, in which nobody else could work
    /// with the store. Until [`Self::has_removed`] says that there is no more: then none of its text is left in the file.
    ///
    /// To take a piece's words out of the index costs 2 ms, each from its own page. Where much was removed, the index is told that the
    /// pieces are gone instead, and then merged into one segment, which leaves out what is gone (`in_index`).
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn delete_removed(&mut self, most: usize) -> Result<(), StoreError> {
        if !self.has_removed {
            return Ok(());
        }
        let deleted = self.delete_some(most);
        if !self.checked(deleted)? {
            self.clear_log()?;
            self.has_removed = false;
        }
        Ok(())
    }

    /// One step of that; whether there may be more.
    fn delete_some(&mut self, most: usize) -> rusqlite::Result<bool> {
        /// What is removed in the quick way, in so many times what is removed in the other.
        const MUCH: usize = 8;
        let step = self.connection.transaction()?;
        let some = "SELECT pieces.id FROM sources JOIN pieces ON pieces.source = sources.id
             WHERE collection IS NULL LIMIT ?1";
        let count = format!("SELECT count(*) FROM ({some})");
        let left: usize = step.query_row(&count, [(MUCH * most + 1) as i64], |row| row.get(0))?;
        if left > 0 {
            let is_much = left > MUCH * most;
            let set = "INSERT INTO words (words, rank) VALUES ('secure-delete', ?1)";
            if is_much {
                step.execute(set, [0])?;
                let mark = "UPDATE sources SET in_index = 1 WHERE collection IS NULL";
                step.execute(mark, [])?;
            }
            let limit = if is_much { MUCH * most } else { most };
            let delete = format!("DELETE FROM pieces WHERE id IN ({some})");
            step.execute(&delete, [limit as i64])?;
            if is_much {
                step.execute(set, [1])?;
            }
            step.commit()?;
            return Ok(true);
        }
        let merge = "SELECT EXISTS (SELECT 1 FROM sources WHERE collection IS NULL AND in_index)";
        if step.query_row(merge, [], |row| row.get(0))? {
            let before = step.total_changes();
            let pages = MERGED_PAGES;
            step.execute(
                "INSERT INTO words (words, rank) VALUES ('merge', ?1)",
                [-pages],
            )?;
            // <https://www.sqlite.org/fts5.html#the_merge_command>: it did nothing but to be called.
            if step.total_changes() - before >= 2 {
                step.commit()?;
                return Ok(true);
            }
        }
        let sources = step.execute(
            "DELETE FROM sources WHERE id IN (SELECT id FROM sources WHERE collection IS NULL LIMIT ?1)",
            [(MUCH * most) as i64],
        )?;
        step.commit()?;
        Ok(sources > 0)
    }

    /// Removes everything: the file is overwritten and removed, and an empty one begins in its place.
    ///
    /// # Errors
    /// When the file cannot be overwritten, removed or made.
    pub fn wipe(self) -> Result<Self, StoreError> {
        let last = self.checked(schema::last_numbers(&self.connection))?;
        let Self {
            path, connection, ..
        } = self;
        connection
            .close()
            .map_err(|(_, error)| StoreError::of(&path, error))?;
        schema::wipe(&path).map_err(|error| StoreError::cannot_open(&path, error))?;
        let store = Self::open(&path)?;
        store.checked(schema::go_on_from(&store.connection, &last))?;
        Ok(store)
    }

    /// Ends a wipe of this file that was interrupted.
    ///
    /// # Errors
    /// When what is left of it cannot be overwritten or removed.
    pub fn end_wipe(path: &Path) -> Result<(), StoreError> {
        schema::end_wipe(path).map_err(|error| StoreError::cannot_open(path, error))
    }

    /// Overwrites and removes a file that is too damaged to be opened; numbers begin again in one that is made after it.
    ///
    /// # Errors
    /// When the file was no store, by what is left of its first page, or cannot be overwritten or removed.
    pub fn wipe_damaged(path: &Path) -> Result<(), StoreError> {
        schema::identify(path)?;
        schema::wipe(path).map_err(|error| StoreError::cannot_open(path, error))
    }

    /// How much there is.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn totals(&self) -> Result<Totals, StoreError> {
        let read = || {
            let select = "SELECT count(*),
                coalesce(sum((SELECT coalesce(max(number) + 1, 0) FROM pieces WHERE source = sources.id)), 0),
                (SELECT count(*) FROM vectors)
                FROM sources WHERE ready";
            self.connection.query_row(select, [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
        };
        let (sources, pieces, vectors) = self.checked(read())?;
        let bytes = |suffix: &str| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(suffix);
            std::fs::metadata(name).map_or(0, |file| file.len())
        };
        Ok(Totals {
            sources,
            pieces,
            vectors,
            file_bytes: bytes("") + bytes("-wal"),
            index_bytes: self
                .index
                .as_ref()
                .map_or(0, |(_, index)| index.bytes() as u64),
        })
    }

    /// Gives back the memory of vectors, until a search needs them again.
    pub fn release(&mut self) {
        self.index = None;
    }
}

/// Checks the name of a collection.
///
/// # Errors
/// When it is none.
pub fn check_collection_name(name: &str) -> Result<(), StoreError> {
    let is_fit = |char: char| char.is_alphanumeric() || "-_.".contains(char);
    let is_name = name.len() <= COLLECTION_NAME_MAX
        && name.starts_with(char::is_alphanumeric)
        && name.chars().all(is_fit);
    match is_name {
        true => Ok(()),
        false => Err(StoreError::CollectionName(name.to_owned())),
    }
}
