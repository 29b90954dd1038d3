//! The file: how it is opened, its tables, and how those of earlier versions become today's.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::Connection;

use crate::StoreError;

/// `Slui`, by which `file` and others tell what it is.
const APPLICATION_ID: i64 = 0x536c_7569;

/// How each version's tables are made of the one's before: never changed once released, only added to.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE collections (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        access INTEGER NOT NULL,
        created INTEGER NOT NULL
    );
    CREATE TABLE encoders (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        elements INTEGER NOT NULL
    );
    CREATE TABLE sources (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        -- NULL: it was removed, and what is left of it is still to be deleted.
        collection INTEGER REFERENCES collections (id),
        kind INTEGER NOT NULL,
        name TEXT NOT NULL,
        digest BLOB NOT NULL,
        bytes INTEGER NOT NULL,
        modified INTEGER,
        added INTEGER NOT NULL,
        ready INTEGER NOT NULL,
        -- 1: its pieces were deleted, and the index has their words until its segments are merged.
        in_index INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX sources_by_name ON sources (collection, name);
    CREATE TABLE pieces (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        source INTEGER NOT NULL REFERENCES sources (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        heading TEXT NOT NULL,
        text TEXT NOT NULL
    );
    CREATE INDEX pieces_by_source ON pieces (source, number);
    CREATE TABLE vectors (
        piece INTEGER PRIMARY KEY REFERENCES pieces (id) ON DELETE CASCADE,
        encoder INTEGER NOT NULL REFERENCES encoders (id) ON DELETE CASCADE,
        scale REAL NOT NULL,
        elements BLOB NOT NULL
    );
    CREATE INDEX vectors_by_encoder ON vectors (encoder);
    CREATE VIRTUAL TABLE words USING fts5 (
        heading, text, content = 'pieces', content_rowid = 'id',
        tokenize = 'porter unicode61 remove_diacritics 2'
    );
    INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
    CREATE VIRTUAL TABLE word_counts USING fts5vocab (words, 'row');
    CREATE TRIGGER pieces_added AFTER INSERT ON pieces BEGIN
        INSERT INTO words (rowid, heading, text) VALUES (new.id, new.heading, new.text);
    END;
    CREATE TRIGGER pieces_removed AFTER DELETE ON pieces BEGIN
        INSERT INTO words (words, rowid, heading, text)
        VALUES ('delete', old.id, old.heading, old.text);
    END;
"];

/// Tables of a connection alone, which tell what words of a query are in the index.
const QUERY_TABLES: &str = "
    CREATE VIRTUAL TABLE temp.query_words USING fts5 (
        word, tokenize = 'porter unicode61 remove_diacritics 2'
    );
    CREATE VIRTUAL TABLE temp.query_terms USING fts5vocab (temp, query_words, 'instance');
";

/// Opens the file, which is created for its owner alone where it is missing.
pub(crate) fn open(path: &Path) -> Result<Connection, StoreError> {
    let failed = |error| StoreError::cannot_open(path, error);
    end_wipe(path).map_err(failed)?;
    identify(path)?;
    let created = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    created.map_err(failed)?;
    let connection = Connection::open(path).and_then(|mut connection| {
        // Whoever has the file keeps it.
        connection.busy_timeout(Duration::ZERO)?;
        // One process at a time, told by the lock that the first transaction takes and nothing gives back. The log of
        // changes then needs no shared memory, and is written through at each commit.
        connection.execute_batch(
            "PRAGMA locking_mode = EXCLUSIVE;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA foreign_keys = ON;
             PRAGMA secure_delete = ON;
             PRAGMA trusted_schema = OFF;
             PRAGMA cell_size_check = ON;
             PRAGMA temp_store = MEMORY;
             PRAGMA cache_size = -16384;
             BEGIN IMMEDIATE; COMMIT;",
        )?;
        let version = migrate(&mut connection)?;
        connection.execute_batch(QUERY_TABLES)?;
        Ok((connection, version))
    });
    let (connection, found) = connection.map_err(|error| StoreError::of(path, error))?;
    let known = MIGRATIONS.len() as i64;
    if found > known {
        return Err(StoreError::TooNew {
            path: path.to_owned(),
            found,
            known,
        });
    }
    Ok(connection)
}

/// Refuses what is no store by its first page, before SQLite writes to it: another program's database is left as it is.
pub(crate) fn identify(path: &Path) -> Result<(), StoreError> {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let failed = |error| StoreError::cannot_open(path, error);
    let mut head = Vec::new();
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(failed)?,
    };
    file.take(105).read_to_end(&mut head).map_err(failed)?;
    let damaged = |what: &str| StoreError::Damaged {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    if head.is_empty() {
        return Ok(());
    }
    if head.len() < 105 || !head.starts_with(MAGIC) {
        return Err(damaged("it is no database"));
    }
    // <https://www.sqlite.org/fileformat.html>: big-endian numbers in the header, behind it the tables of the first page.
    let number =
        |at: usize| i64::from(u32::from_be_bytes([0, 1, 2, 3].map(|byte| head[at + byte])));
    let (pages, application) = (number(28), number(68));
    // One that was killed while it was made has a page without tables; the rest is in its log.
    let is_empty = pages <= 1 && head[103..105] == [0, 0];
    match application == APPLICATION_ID || is_empty {
        true => Ok(()),
        false => Err(damaged("it is another program's database")),
    }
}

/// The last numbers that sources and pieces were given.
pub(crate) fn last_numbers(connection: &Connection) -> rusqlite::Result<Vec<(String, i64)>> {
    let mut query = connection.prepare("SELECT name, seq FROM sqlite_sequence")?;
    query
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Goes on from these numbers, so that none is ever given twice.
pub(crate) fn go_on_from(connection: &Connection, last: &[(String, i64)]) -> rusqlite::Result<()> {
    for (name, number) in last {
        let insert = "INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)";
        connection.execute(insert, rusqlite::params![name, number])?;
    }
    Ok(())
}

/// Brings the tables up to date; the version that the file had, or has now.
fn migrate(connection: &mut Connection) -> rusqlite::Result<i64> {
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = MIGRATIONS.len() as i64;
    if version > known {
        return Ok(version);
    }
    for (number, migration) in (1..).zip(MIGRATIONS).skip(version as usize) {
        let step = connection.transaction()?;
        step.execute_batch(migration)?;
        step.pragma_update(None, "application_id", APPLICATION_ID)?;
        step.pragma_update(None, "user_version", number)?;
        step.commit()?;
    }
    Ok(known)
}

/// What the name of a file ends with that is being wiped.
const WIPED: &str = ".wiped";
/// What the names of a store's files end with.
const SUFFIXES: [&str; 3] = ["", "-wal", "-journal"];

/// Overwrites the file and its log with zeros, and removes both. From the first step on they are no longer a store's; what a crash
/// leaves of them is wiped when the store is opened.
pub(crate) fn wipe(path: &Path) -> io::Result<()> {
    for suffix in SUFFIXES {
        let (file, wiped) = (with(path, suffix), with(path, &format!("{suffix}{WIPED}")));
        absent(fs::rename(file, wiped))?;
    }
    end_wipe(path)
}

/// Wipes what is left of files that were being wiped.
pub(crate) fn end_wipe(path: &Path) -> io::Result<()> {
    for suffix in SUFFIXES {
        let wiped = with(path, &format!("{suffix}{WIPED}"));
        let file = match fs::OpenOptions::new().write(true).open(&wiped) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let bytes = file.metadata()?.len();
        io::copy(&mut io::repeat(0).take(bytes), &mut &file)?;
        file.sync_all()?;
        fs::remove_file(wiped)?;
        if let Some(folder) = path.parent() {
            fs::File::open(folder)?.sync_all()?;
        }
    }
    Ok(())
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Passes over that something was not there.
fn absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
