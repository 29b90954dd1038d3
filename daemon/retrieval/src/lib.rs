//! What Sluice remembers: texts in pieces, in one SQLite file, and how what matters for a prompt is found again.
//!
//! A *collection* has *sources* (a note, a file, a conversation); each is cut into *pieces* by its structure ([`Splitter`]). A
//! search ranks pieces by BM25 (SQLite's FTS5) and by the cosine of 8-bit vectors, compared with all of them, or by
//! the sum of both. The crate knows no model: whoever adds pieces or searches brings the vectors.
//!
//! The file is for one process at a time. What is acknowledged is on disk; an import that was interrupted leaves what was there
//! before.

mod error;
mod import;
mod schema;
mod search;
mod split;
mod store;
mod vectors;

pub use self::{
    error::StoreError,
    import::{Import, NewPiece, NewSource},
    search::{Hit, Query, Ranking},
    split::{Piece, Splitter, TextKind},
    store::{
        Collection, EncoderId, Source, SourceKind, Store, StoredPiece, Totals,
        check_collection_name,
    },
};
