//! What is remembered, from the store's types to the wire's.

use sluice_proto::v1;
use sluice_retrieval::{Collection, Hit, Source, SourceKind, StoredPiece};

use crate::memory;

/// A collection.
#[must_use]
pub fn collection(collection: &Collection) -> v1::MemoryCollection {
    v1::MemoryCollection {
        name: collection.name.clone(),
        reader: memory::reader_of(collection.access).into(),
        sources: collection.sources,
        pieces: collection.pieces,
        bytes: collection.bytes,
    }
}

/// A source.
#[must_use]
pub fn source(source: &Source) -> v1::MemorySource {
    v1::MemorySource {
        source_id: source.id,
        collection: source.collection.clone(),
        kind: kind_to_wire(source.kind).into(),
        name: source.name.clone(),
        bytes: source.bytes,
        modified_unix_s: source.modified,
        added_unix_s: source.added,
        pieces: source.pieces,
    }
}

/// A piece.
#[must_use]
pub fn piece(piece: &StoredPiece) -> v1::MemoryPiece {
    v1::MemoryPiece {
        piece_id: piece.id,
        number: piece.number,
        heading: piece.heading.clone(),
        text: piece.text.clone(),
    }
}

/// A piece that was found.
#[must_use]
pub fn hit(hit: &Hit, of: &Source) -> v1::MemoryHit {
    v1::MemoryHit {
        source: Some(source(of)),
        piece: Some(piece(&hit.piece)),
        score: hit.score,
        bm25: hit.bm25,
        cosine: hit.cosine,
    }
}

/// A kind of source; `None` where nothing is said.
#[must_use]
pub fn kind(kind: v1::MemorySourceKind) -> Option<SourceKind> {
    SourceKind::ALL
        .into_iter()
        .find(|known| kind_to_wire(*known) == kind)
}

fn kind_to_wire(kind: SourceKind) -> v1::MemorySourceKind {
    match kind {
        SourceKind::Note => v1::MemorySourceKind::Note,
        SourceKind::File => v1::MemorySourceKind::File,
        SourceKind::Conversation => v1::MemorySourceKind::Conversation,
    }
}
