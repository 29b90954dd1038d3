//! What a store promises: found as it was added, gone when removed, whole after a crash.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use sluice_retrieval::{
    EncoderId, NewPiece, NewSource, Piece, Query, Ranking, SourceKind, Store, StoreError,
};
use tempfile::TempDir;

fn encoder() -> EncoderId {
    EncoderId {
        name: "letters".to_owned(),
        elements: 26,
    }
}

/// A vector of how often each letter stands in a text.
fn letters(text: &str) -> Vec<f32> {
    let mut counts = vec![0.0; 26];
    for byte in text.bytes().filter(u8::is_ascii_lowercase) {
        counts[usize::from(byte - b'a')] += 1.0;
    }
    counts
}

fn new_source<'a>(collection: &'a str, name: &'a str, digest: u8) -> NewSource<'a> {
    NewSource {
        collection,
        access: 0,
        kind: SourceKind::Note,
        name,
        digest: [digest; 32],
        bytes: digest.into(),
        modified: None,
        now: 1000,
    }
}

fn pieces(texts: &[&str]) -> Vec<NewPiece> {
    let piece = |text: &&str| NewPiece {
        piece: Piece {
            heading: String::new(),
            text: (*text).to_owned(),
        },
        vector: Some(letters(text)),
    };
    texts.iter().map(piece).collect()
}

fn add(store: &mut Store, collection: &str, name: &str, digest: u8, texts: &[&str]) -> Option<i64> {
    let source = new_source(collection, name, digest);
    let mut import = store.begin(&source, Some(&encoder())).unwrap()?;
    store.add_pieces(&mut import, &pieces(texts)).unwrap();
    Some(store.finish(import).unwrap())
}

fn found(store: &mut Store, query: &Query<'_>) -> Vec<String> {
    let hits = store.search(query).unwrap();
    hits.into_iter().map(|hit| hit.piece.text).collect()
}

fn words(text: &str) -> Query<'_> {
    Query {
        text,
        ranking: Ranking::Words,
        most: 10,
        ..Query::default()
    }
}

fn opened(folder: &TempDir) -> Store {
    Store::open(&folder.path().join("memory.db")).unwrap()
}

/// Whether a text stands anywhere in the files of a folder.
fn holds(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().any(|file| {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    })
}

/// Deletes what was removed, a piece at a time.
fn delete_removed(store: &mut Store) {
    while store.has_removed() {
        store.delete_removed(1).unwrap();
    }
}

#[test]
fn what_is_added_is_found_by_words_by_vector_and_by_both() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    let mode = fs::metadata(store.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    add(
        &mut store,
        "a",
        "boats",
        1,
        &["a boat sails", "boats float", "zzz zzz"],
    )
    .unwrap();
    add(
        &mut store,
        "b",
        "cars",
        2,
        &["the boat in a car", "zzz zzz"],
    )
    .unwrap();
    // Stems, whatever the case and the punctuation; quotation marks and operators are words.
    assert_eq!(
        found(&mut store, &words("BOATS? NOT (float\" OR *")),
        ["boats float", "a boat sails", "the boat in a car"]
    );
    let (encoder, vector) = (encoder(), letters("zz"));
    let both = Query {
        text: "cars",
        vector: Some((&encoder, &vector)),
        most: 3,
        ..Query::default()
    };
    // The best by words and the best by the vector count as much. The same text from two sources is told once.
    let texts = found(&mut store, &both);
    assert_eq!(
        (texts.len(), &texts[..2]),
        (
            3,
            &["zzz zzz".to_owned(), "the boat in a car".to_owned()][..]
        )
    );
    let nearest = Query {
        ranking: Ranking::Vectors,
        ..both.clone()
    };
    assert_eq!(found(&mut store, &nearest)[0], "zzz zzz");
    let within = Query {
        collections: &["a"],
        ..both.clone()
    };
    assert!(!found(&mut store, &within).contains(&"the boat in a car".to_owned()));
    let later = Query {
        since: Some(1001),
        ..both.clone()
    };
    assert!(found(&mut store, &later).is_empty());
    let files = Query {
        kinds: &[SourceKind::File],
        ..both.clone()
    };
    assert!(found(&mut store, &files).is_empty());
    let unknown = Query {
        collections: &["c"],
        ..both
    };
    assert!(matches!(store.search(&unknown), Err(StoreError::NoCollection(name)) if name == "c"));
    let hits = store.search(&words("floats")).unwrap();
    assert_eq!((hits[0].cosine, hits[0].bm25), (None, Some(hits[0].score)));
}

#[test]
fn a_word_counts_as_often_as_a_question_has_it() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    add(
        &mut store,
        "a",
        "all",
        1,
        &["one cat", "one dog", "one cow"],
    )
    .unwrap();
    for (text, first) in [
        ("cat, dog, dog", "one dog"),
        ("cats and cat and dog", "one cat"),
        ("cow cat cow", "one cow"),
    ] {
        assert_eq!(found(&mut store, &words(text))[0], first);
    }
}

/// A rank does not tell how much better a piece is than the next.
#[test]
fn by_both_it_counts_how_much_better_a_piece_is() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    let texts = ["boat boat sails", "ab", "aab", "abbb", "sails aabbbb zzzz"];
    add(&mut store, "a", "all", 1, &texts).unwrap();
    let (encoder, vector) = (encoder(), letters("ab"));
    let query = Query {
        text: "boats sail",
        vector: Some((&encoder, &vector)),
        most: 5,
        ..Query::default()
    };
    let hits = store.search(&query).unwrap();
    let score = |text: &str| {
        let hit = hits.iter().find(|hit| hit.piece.text == text);
        hit.unwrap().score
    };
    // The best of either ranking and the last of the other.
    assert!((score("ab") - 1.0).abs() < 1e-6);
    assert!(score("boat boat sails") >= 1.0);
    // Second by words and fourth by vectors, and far from the best of both: its ranks together are the best.
    assert!(score("sails aabbbb zzzz") < 1.0);
    assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
    let words = Query {
        vector: None,
        ..query
    };
    let hits = store.search(&words).unwrap();
    assert_eq!(hits.len(), 2);
    assert_eq!(hits[0].score, 1.0);
}

#[test]
fn a_source_that_changes_takes_its_own_place() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    add(&mut store, "a", "x", 1, &["first words"]).unwrap();
    assert_eq!(add(&mut store, "a", "x", 1, &["not read"]), None);
    let second = add(&mut store, "a", "x", 2, &["second words"]).unwrap();
    assert_eq!(found(&mut store, &words("words")), ["second words"]);
    delete_removed(&mut store);
    assert!(!holds(folder.path(), "first words"));
    let sources = store.sources(&["a"], None, 100).unwrap();
    assert_eq!(
        (sources.len(), sources[0].id, sources[0].pieces),
        (1, second, 1)
    );
    assert_eq!(store.collections().unwrap()[0].bytes, 2);
}

#[test]
fn an_import_that_does_not_end_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    add(&mut store, "a", "x", 1, &["old words"]).unwrap();
    let source = new_source("a", "x", 2);
    let mut import = store.begin(&source, Some(&encoder())).unwrap().unwrap();
    store
        .add_pieces(&mut import, &pieces(&["new words"]))
        .unwrap();
    assert_eq!(found(&mut store, &words("words")), ["old words"]);
    // As if it had been killed: nothing is ended, and nothing is written any more.
    drop((import, store));
    let mut store = opened(&folder);
    assert_eq!(found(&mut store, &words("words")), ["old words"]);
    assert!(holds(folder.path(), "new words"));
    delete_removed(&mut store);
    assert!(!holds(folder.path(), "new words"));
    let mut import = store.begin(&source, Some(&encoder())).unwrap().unwrap();
    store
        .add_pieces(&mut import, &pieces(&["new words"]))
        .unwrap();
    store.abandon(import).unwrap();
    assert_eq!(store.totals().unwrap().pieces, 1);
    delete_removed(&mut store);
    assert!(!holds(folder.path(), "new words"));
}

#[test]
fn an_import_whose_place_is_gone_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    let source = new_source("a", "x", 2);
    let begin = |store: &mut Store| store.begin(&source, Some(&encoder())).unwrap().unwrap();
    let import = begin(&mut store);
    store.remove_collection("a").unwrap();
    assert!(matches!(store.finish(import), Err(StoreError::Removed)));
    let mut import = begin(&mut store);
    store
        .add_pieces(&mut import, &pieces(&["words"; 3]))
        .unwrap();
    store.remove_collection("a").unwrap();
    let added = store.add_pieces(&mut import, &pieces(&["words"]));
    assert!(matches!(added, Err(StoreError::Removed)));
    delete_removed(&mut store);
    let added_later = store.add_pieces(&mut import, &pieces(&["words"]));
    assert!(matches!(added_later, Err(StoreError::Removed)));
    let import = begin(&mut store);
    let mut store = store.wipe().unwrap();
    let other = add(&mut store, "b", "y", 1, &["kept words"]).unwrap();
    assert!(matches!(store.finish(import), Err(StoreError::Removed)));
    assert!(store.source(other).is_ok());
    // Two of one name at once: the last to end stays.
    let (first, second) = (begin(&mut store), begin(&mut store));
    store.finish(second).unwrap();
    let id = store.finish(first).unwrap();
    let sources = store.sources(&["a"], None, 100).unwrap();
    assert_eq!((sources.len(), sources[0].id), (1, id));
    assert_eq!(found(&mut store, &words("words")), ["kept words"]);
}

#[test]
fn vectors_in_memory_follow_what_is_there() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    let (encoder, vector) = (encoder(), letters("z"));
    let query = Query {
        vector: Some((&encoder, &vector)),
        ranking: Ranking::Vectors,
        most: 9,
        ..Query::default()
    };
    let first = add(&mut store, "a", "x", 1, &["z", "zy"]).unwrap();
    assert_eq!(found(&mut store, &query), ["z", "zy"]);
    add(&mut store, "a", "y", 1, &["zzzx"]).unwrap();
    assert_eq!(found(&mut store, &query), ["z", "zzzx", "zy"]);
    add(&mut store, "a", "y", 2, &["zzx"]).unwrap();
    store.remove_source(first).unwrap();
    assert_eq!(found(&mut store, &query), ["zzx"]);
}

#[test]
fn no_text_is_left_of_what_is_removed() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    let secret = [
        "the unspeakable password is xyzzyplugh",
        "and more of xyzzyplugh",
    ];
    let fill: Vec<String> = (0..300)
        .map(|number| format!("filler number {number} of many"))
        .collect();
    let fill: Vec<&str> = fill.iter().map(String::as_str).collect();
    let remove: [fn(Store, i64) -> Store; 4] = [
        |mut store, id| {
            store.remove_source(id).unwrap();
            store
        },
        |mut store, _| {
            store.remove_collection("secrets").unwrap();
            store
        },
        // Much at once, and a kill in the middle of it.
        |mut store, _| {
            let more = ["more of xyzzyplugh"; 20];
            add(&mut store, "secrets", "more", 1, &more).unwrap();
            store.remove_collection("secrets").unwrap();
            store.delete_removed(1).unwrap();
            store.delete_removed(1).unwrap();
            let path = store.path().to_owned();
            drop(store);
            Store::open(&path).unwrap()
        },
        // What was not yet deleted of something that was removed goes, too.
        |mut store, id| {
            store.remove_source(id).unwrap();
            store.delete_removed(1).unwrap();
            store.wipe().unwrap()
        },
    ];
    for (number, remove) in remove.into_iter().enumerate() {
        add(&mut store, "a", "fill", number as u8, &fill);
        let id = add(&mut store, "secrets", "s", 7, &secret).unwrap();
        assert!(holds(folder.path(), "xyzzyplugh"));
        store = remove(store, id);
        assert!(found(&mut store, &words("xyzzyplugh")).is_empty());
        delete_removed(&mut store);
        let kept = found(&mut store, &words("filler")).len();
        assert_eq!(kept, if number < 3 { 10 } else { 0 });
        for text in ["xyzzyplugh", "unspeakable password", "xyzzyp"] {
            assert!(!holds(folder.path(), text), "{number}: {text}");
        }
    }
    assert_eq!(store.totals().unwrap().pieces, 0);
    assert!(store.collections().unwrap().is_empty());
    // A wipe that was killed is ended by whoever opens the store next.
    let left = folder.path().join("memory.db.wiped");
    fs::write(&left, "xyzzyplugh").unwrap();
    drop(store);
    opened(&folder);
    assert!(!left.exists());
}

#[test]
fn pieces_get_vectors_later() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    let mut import = store
        .begin(&new_source("a", "x", 1), None)
        .unwrap()
        .unwrap();
    let mut texts = pieces(&["aaa", "bbb"]);
    texts.iter_mut().for_each(|piece| piece.vector = None);
    store.add_pieces(&mut import, &texts).unwrap();
    store.finish(import).unwrap();
    let encoder = encoder();
    let bare = store.without_vectors(&encoder, 0, 10).unwrap();
    let vectors: Vec<_> = bare
        .iter()
        .map(|(id, piece)| (*id, letters(&piece.text)))
        .collect();
    assert_eq!(vectors.len(), 2);
    store.set_vectors(&encoder, &vectors).unwrap();
    store.set_vectors(&encoder, &[(999, letters("c"))]).unwrap();
    assert!(store.without_vectors(&encoder, 0, 10).unwrap().is_empty());
    let vector = letters("b");
    let query = Query {
        vector: Some((&encoder, &vector)),
        most: 1,
        ..words("")
    };
    assert_eq!(
        found(
            &mut store,
            &Query {
                ranking: Ranking::Vectors,
                ..query
            }
        ),
        ["bbb"]
    );
    // Another encoder's cannot be compared.
    let short = [(1, vec![1.0])];
    assert!(matches!(
        store.set_vectors(&encoder, &short),
        Err(StoreError::VectorLength {
            found: 1,
            expected: 26
        })
    ));
}

#[test]
fn a_file_is_one_processs_and_a_damaged_one_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    let path = store.path().to_owned();
    assert!(matches!(Store::open(&path), Err(StoreError::InUse { .. })));
    let text = "some words ".repeat(60);
    let texts: Vec<String> = (0..200).map(|number| format!("{text}{number}")).collect();
    add(
        &mut store,
        "a",
        "x",
        1,
        &texts.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    drop(store);
    let whole = fs::read(&path).unwrap();
    let refuses = |wiped| matches!(wiped, Err(StoreError::Damaged { .. }));
    for (damage, was_store) in [
        (
            &b"no database at all, but long enough to look like one"[..],
            false,
        ),
        (&whole[..whole.len() / 3], true),
    ] {
        fs::write(&path, damage).unwrap();
        let refused = Store::open(&path).and_then(|mut store| {
            store.totals()?;
            store.search(&words("words some"))
        });
        assert!(
            matches!(refused, Err(StoreError::Damaged { .. })),
            "{refused:?}"
        );
        assert_eq!(fs::read(&path).unwrap(), damage, "it is left as it was");
        assert_eq!(refuses(Store::wipe_damaged(&path)), !was_store);
        assert_eq!(path.exists(), !was_store);
    }
    // Another program's database, which is not written to.
    let mut other = whole.clone();
    other[68..72].fill(7);
    fs::write(&path, &other).unwrap();
    assert!(matches!(
        Store::open(&path),
        Err(StoreError::Damaged { .. })
    ));
    assert!(refuses(Store::wipe_damaged(&path)));
    assert_eq!(fs::read(&path).unwrap(), other);
    fs::write(&path, &whole).unwrap();
    assert_eq!(Store::open(&path).unwrap().totals().unwrap().pieces, 200);
}

#[test]
fn names_of_collections_are_checked() {
    let folder = TempDir::new().unwrap();
    let mut store = opened(&folder);
    for name in ["", "-x", "a b", "a/b", "a\nb", &"a".repeat(65)] {
        let refused = store.begin(&new_source(name, "x", 1), None);
        assert!(
            matches!(refused, Err(StoreError::CollectionName(_))),
            "{name}"
        );
    }
    for name in ["a", "Märchen-2", "a.b_c"] {
        assert!(store.begin(&new_source(name, "x", 1), None).is_ok());
    }
}
