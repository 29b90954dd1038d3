use std::{
    fs,
    sync::{Arc, atomic::AtomicU64},
};

use tempfile::TempDir;

use super::*;

fn content(folder: &TempDir, parts: &[&[u8]]) -> Result<Content, MemoryError> {
    let mut writer = ContentWriter::new("a.md", &folder.path().join("m"))?;
    for part in parts {
        writer.push(part)?;
    }
    writer.finish()
}

fn pieces(content: Content) -> Result<Vec<String>, Unreadable> {
    let mut all = Vec::new();
    let (gone, read) = (Arc::default(), AtomicU64::new(0));
    content.split("a.md", &gone, &read, |piece| {
        all.push(piece.text);
        Ok(())
    })?;
    Ok(all)
}

#[test]
fn content_has_no_name_and_is_what_came() {
    let folder = TempDir::new().unwrap();
    let content = content(&folder, &[b"# A\n", b"\ntext"]).unwrap();
    assert_eq!(content.bytes, 9);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert_eq!(pieces(content).unwrap(), ["text"]);
}

#[test]
fn what_is_no_text_is_told_by_its_beginning() {
    let folder = TempDir::new().unwrap();
    let binary = content(&folder, &[b"ELF\0"]).unwrap();
    assert!(matches!(pieces(binary), Err(Unreadable::Binary)));
    assert!(pieces(content(&folder, &[]).unwrap()).unwrap().is_empty());
}

#[test]
fn a_memory_is_made_by_the_first_write_alone() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("deep/m.sqlite");
    let memory = Memory::new(Some(path.clone()), EncoderChoice::Auto);
    let read = memory.read(|store| Ok(store.totals()?));
    assert!(read.unwrap().is_none() && !path.exists());
    assert_eq!(memory.wipe().unwrap(), (0, 0));
    let written = memory.write(|store| Ok(store.totals()?));
    assert_eq!(written.unwrap().sources, 0);
    assert!(path.exists());
    let off = Memory::new(None, EncoderChoice::Off);
    assert!(matches!(off.wipe(), Err(MemoryError::Off)));
}

#[test]
fn vectors_are_kept_while_searches_need_them() {
    let folder = TempDir::new().unwrap();
    let memory = Memory::new(Some(folder.path().join("m")), EncoderChoice::Auto);
    assert!(memory.release_idle().is_none());
    memory.search(|store| Ok(store.totals()?)).unwrap();
    assert!(memory.release_idle().is_some_and(|left| left <= INDEX_IDLE));
}

#[test]
fn readers_are_numbers_that_mean_at_least_what_they_say() {
    for reader in [
        v1::MemoryReader::Generate,
        v1::MemoryReader::Operate,
        v1::MemoryReader::Admin,
    ] {
        assert_eq!(reader_of(access_of(reader)), reader);
    }
    for unknown in [0, -1, 7, i64::MAX] {
        assert_eq!(reader_of(unknown), v1::MemoryReader::Admin);
    }
}

#[test]
fn a_damaged_file_is_wiped_if_it_was_a_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.sqlite");
    let memory = || Memory::new(Some(path.clone()), EncoderChoice::Off);
    let collections = |memory: &Memory| memory.write(|store| Ok(store.collections()?));
    collections(&memory()).unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 3]).unwrap();
    let damaged = memory();
    let refused = damaged.write(|store| Ok(store.totals()?));
    assert!(matches!(
        refused,
        Err(MemoryError::Store(StoreError::Damaged { .. }))
    ));
    assert_eq!(damaged.wipe().unwrap(), (0, 0));
    assert!(!path.exists());
    assert!(collections(&damaged).unwrap().is_empty());
    drop(damaged);
    fs::write(&path, "something else, of which nothing may be lost").unwrap();
    assert!(memory().wipe().is_err());
    assert!(path.exists());
}
