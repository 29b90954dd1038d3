//! Adding sources, a batch of pieces at a time: searches find a source only when all of it is there, and until then what
//! stood under its name before.

use rusqlite::{OptionalExtension, Statement, params};

use crate::{EncoderId, Piece, SourceKind, Store, StoreError, store::REMOVE, vectors::CodedVector};

/// A source to add. One of the same collection and name takes the place of the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSource<'a> {
    /// The collection, which is made where it is missing.
    pub collection: &'a str,
    /// Who may read a collection that is made ([`Collection::access`](crate::Collection::access)).
    pub access: i64,
    /// What it is made of.
    pub kind: SourceKind,
    /// The path of a file, or a title.
    pub name: &'a str,
    /// SHA-256 of what it is made of.
    pub digest: [u8; 32],
    /// Bytes of that.
    pub bytes: u64,
    /// When that has changed last, in seconds since 1970, where that is known.
    pub modified: Option<i64>,
    /// The time, in seconds since 1970.
    pub now: i64,
}

/// A piece to add, with its vector where there is an encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPiece {
    /// The piece.
    pub piece: Piece,
    /// Its vector.
    pub vector: Option<Vec<f32>>,
}

/// An import that is going on.
#[derive(Debug, Clone)]
pub struct Import {
    source: i64,
    encoder: Option<(i64, usize)>,
    pieces: u64,
}

impl Import {
    /// Pieces that were added.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.pieces
    }
}

impl Store {
    /// Begins to add a source, whose vectors come from this encoder, if there is one; `None` when it is there as it is.
    ///
    /// # Errors
    /// When the collection's name is none, or the file cannot be written.
    pub fn begin(
        &mut self,
        source: &NewSource<'_>,
        encoder: Option<&EncoderId>,
    ) -> Result<Option<Import>, StoreError> {
        let collection = self.collection(source.collection, source.access, source.now)?;
        let before = self.connection.query_row(
            "SELECT digest FROM sources WHERE collection = ?1 AND name = ?2 AND ready",
            params![collection, source.name],
            |row| row.get::<_, Vec<u8>>(0),
        );
        let before = self.checked(before.optional())?;
        if before.is_some_and(|digest| digest[..] == source.digest) {
            return Ok(None);
        }
        let encoder = match encoder {
            Some(encoder) => Some((self.encoder(encoder)?, encoder.elements)),
            None => None,
        };
        let inserted = self.connection.execute(
            "INSERT INTO sources (collection, kind, name, digest, bytes, modified, added, ready)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)",
            params![
                collection,
                source.kind.number(),
                source.name,
                &source.digest[..],
                source.bytes as i64,
                source.modified,
                source.now
            ],
        );
        self.checked(inserted)?;
        Ok(Some(Import {
            source: self.connection.last_insert_rowid(),
            encoder,
            pieces: 0,
        }))
    }

    /// Adds the next pieces. They are on disk when this returns.
    ///
    /// # Errors
    /// When a vector has another length than the encoder's, the source's collection was removed meanwhile, or the file cannot be
    /// written: the import is then to be abandoned.
    pub fn add_pieces(
        &mut self,
        import: &mut Import,
        pieces: &[NewPiece],
    ) -> Result<(), StoreError> {
        let vectors = pieces.iter().filter_map(|piece| piece.vector.as_ref());
        if let (Some((_, expected)), Some(found)) = (
            import.encoder,
            vectors
                .map(Vec::len)
                .find(|&found| Some(found) != import.encoder.map(|(_, len)| len)),
        ) {
            return Err(StoreError::VectorLength { found, expected });
        }
        let Import {
            source,
            encoder,
            pieces: before,
            ..
        } = *import;
        let mut add = || {
            let step = self.connection.transaction()?;
            let is_wanted = "SELECT 1 FROM sources WHERE id = ?1 AND collection IS NOT NULL";
            if !step.prepare(is_wanted)?.exists([source])? {
                return Ok(false);
            }
            let mut insert = step.prepare(
                "INSERT INTO pieces (source, number, heading, text) VALUES (?1, ?2, ?3, ?4)",
            )?;
            let mut add_vector = step.prepare(INSERT_VECTOR)?;
            for (number, NewPiece { piece, vector }) in (before..).zip(pieces) {
                let id = insert.insert(params![source, number, piece.heading, piece.text])?;
                if let (Some(vector), Some((encoder, _))) = (vector, encoder) {
                    insert_vector(&mut add_vector, id, encoder, vector)?;
                }
            }
            drop((insert, add_vector));
            step.commit()?;
            Ok(true)
        };
        let added = add();
        if !self.checked(added)? {
            return Err(StoreError::Removed);
        }
        import.pieces += pieces.len() as u64;
        Ok(())
    }

    /// Ends an import: from now on its source is found, in the place of the one of its name before, which is removed. Returns the
    /// source's number.
    ///
    /// # Errors
    /// When the source's collection was removed meanwhile, or the file cannot be written.
    pub fn finish(&mut self, import: Import) -> Result<i64, StoreError> {
        let id = import.source;
        let select = "SELECT other.id FROM sources AS other JOIN sources AS own
             ON other.collection = own.collection AND other.name = own.name
             WHERE own.id = ?1 AND other.ready AND other.id <> ?1";
        let before = self
            .connection
            .query_row(select, [id], |row| row.get::<_, i64>(0));
        let before = self.checked(before.optional())?;
        if let Some(before) = before {
            self.forget(before)?;
        }
        let mut end = || {
            let step = self.connection.transaction()?;
            step.execute(&format!("{REMOVE} WHERE id = ?1"), [before])?;
            let ready = step.execute(
                "UPDATE sources SET ready = 1 WHERE id = ?1 AND collection IS NOT NULL",
                [id],
            )?;
            step.commit()?;
            Ok(ready)
        };
        let ready = end();
        if ready.is_err() {
            // The source before has its vectors still.
            self.index = None;
        }
        if self.checked(ready)? == 0 {
            return Err(StoreError::Removed);
        }
        self.has_removed |= before.is_some();
        self.learn(id)?;
        Ok(id)
    }

    /// Gives up an import: what it has added is removed, and [`Self::delete_removed`] deletes it.
    ///
    /// # Errors
    /// When the file cannot be written; what is left is removed when the store is opened again.
    pub fn abandon(&mut self, import: Import) -> Result<(), StoreError> {
        let remove = format!("{REMOVE} WHERE id = ?1 AND NOT ready");
        let removed = self.connection.execute(&remove, [import.source]);
        self.checked(removed)?;
        self.has_removed = true;
        Ok(())
    }

    /// Some pieces that have no vector of this encoder, from one on.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn without_vectors(
        &self,
        encoder: &EncoderId,
        after: i64,
        most: usize,
    ) -> Result<Vec<(i64, Piece)>, StoreError> {
        let encoder = self.encoder(encoder)?;
        let read = || {
            let mut query = self.connection.prepare(
                "SELECT pieces.id, heading, text FROM pieces JOIN sources ON sources.id = source
                 WHERE ready AND pieces.id > ?2 AND NOT EXISTS
                     (SELECT 1 FROM vectors WHERE piece = pieces.id AND encoder = ?1)
                 ORDER BY pieces.id LIMIT ?3",
            )?;
            let rows = query.query_map(params![encoder, after, most as i64], |row| {
                let (heading, text) = (row.get(1)?, row.get(2)?);
                Ok((row.get(0)?, Piece { heading, text }))
            })?;
            rows.collect()
        };
        self.checked(read())
    }

    /// Gives pieces vectors of this encoder in the place of what they have. Those of pieces that have gone are passed over.
    ///
    /// # Errors
    /// When a vector has another length than the encoder's, or the file cannot be written.
    pub fn set_vectors(
        &mut self,
        encoder: &EncoderId,
        vectors: &[(i64, Vec<f32>)],
    ) -> Result<(), StoreError> {
        if let Some((_, vector)) = vectors
            .iter()
            .find(|(_, vector)| vector.len() != encoder.elements)
        {
            return Err(StoreError::VectorLength {
                found: vector.len(),
                expected: encoder.elements,
            });
        }
        let id = self.encoder(encoder)?;
        self.index = None;
        let mut set = || {
            let step = self.connection.transaction()?;
            let mut is_there = step.prepare("SELECT 1 FROM pieces WHERE id = ?1")?;
            let mut add_vector = step.prepare(INSERT_VECTOR)?;
            for (piece, vector) in vectors {
                if is_there.exists([piece])? {
                    insert_vector(&mut add_vector, *piece, id, vector)?;
                }
            }
            drop((is_there, add_vector));
            step.commit()
        };
        let set = set();
        self.checked(set)
    }

    /// The number of an encoder.
    pub(crate) fn encoder(&self, encoder: &EncoderId) -> Result<i64, StoreError> {
        let find = || {
            self.connection.execute(
                "INSERT INTO encoders (name, elements) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                params![encoder.name, encoder.elements as i64],
            )?;
            self.connection.query_row(
                "SELECT id, elements FROM encoders WHERE name = ?1",
                [&encoder.name],
                |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)),
            )
        };
        let (id, elements) = self.checked(find())?;
        match elements as usize == encoder.elements {
            true => Ok(id),
            false => Err(StoreError::VectorLength {
                found: encoder.elements,
                expected: elements as usize,
            }),
        }
    }
}

const INSERT_VECTOR: &str =
    "INSERT OR REPLACE INTO vectors (piece, encoder, scale, elements) VALUES (?1, ?2, ?3, ?4)";

fn insert_vector(
    insert: &mut Statement<'_>,
    piece: i64,
    encoder: i64,
    vector: &[f32],
) -> rusqlite::Result<()> {
    let CodedVector { scale, elements } = CodedVector::new(vector);
    let bytes: Vec<u8> = elements.iter().map(|&element| element as u8).collect();
    let inserted = insert.execute(params![piece, encoder, f64::from(scale), bytes]);
    inserted.map(drop)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn source(name: &str) -> NewSource<'_> {
        NewSource {
            collection: "a",
            access: 0,
            kind: SourceKind::Note,
            name,
            digest: [0; 32],
            bytes: 1,
            modified: None,
            now: 0,
        }
    }

    fn pieces(count: usize) -> Vec<NewPiece> {
        let piece = |number| NewPiece {
            piece: Piece {
                heading: String::new(),
                text: format!("{number} {}", "many words ".repeat(50)),
            },
            vector: None,
        };
        (0..count).map(piece).collect()
    }

    /// SQLite says the same of a full disk as of a file that may have no more pages.
    #[test]
    fn a_full_disk_ends_an_import_and_harms_nothing() {
        let folder = TempDir::new().unwrap();
        let mut store = Store::open(&folder.path().join("memory.db")).unwrap();
        let mut import = store.begin(&source("before"), None).unwrap().unwrap();
        store.add_pieces(&mut import, &pieces(10)).unwrap();
        store.finish(import).unwrap();
        let limit = |store: &Store, pages: i64| {
            let set = store
                .connection
                .pragma_update(None, "max_page_count", pages);
            set.unwrap();
        };
        limit(&store, 1);
        let mut import = store.begin(&source("more"), None).unwrap().unwrap();
        let full = store.add_pieces(&mut import, &pieces(1000));
        assert!(matches!(full, Err(StoreError::DiskFull { .. })), "{full:?}");
        store.abandon(import).unwrap();
        while store.has_removed() {
            store.delete_removed(100).unwrap();
        }
        assert_eq!(store.totals().unwrap().pieces, 10);
        limit(&store, 1 << 30);
        let mut import = store.begin(&source("more"), None).unwrap().unwrap();
        store.add_pieces(&mut import, &pieces(1000)).unwrap();
        store.finish(import).unwrap();
        assert_eq!(store.totals().unwrap().pieces, 1010);
    }
}
