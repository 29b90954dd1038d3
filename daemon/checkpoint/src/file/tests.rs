//! Reads past the page cache give what plain ones give, and files that change are noticed.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const NAME: &str = "file";

/// A file of `len` bytes that differ from page to page.
fn folder_with(len: usize) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join(NAME), content(len)).unwrap();
    folder
}

fn content(len: usize) -> Vec<u8> {
    let noise = sluice_formats::noise::Noise::new(3);
    (0..len as u64)
        .map(|place| (noise.uniform(0, place, 0) * 256.0) as u8)
        .collect()
}

fn open(folder: &Path) -> CheckpointFile {
    CheckpointFile::open(&Source::Folder(folder.to_owned()), NAME).unwrap()
}

fn without_direct(mut file: CheckpointFile) -> CheckpointFile {
    if let Content::Disk { direct, .. } = &mut file.content {
        *direct = None;
    }
    file
}

fn pages(count: usize) -> Box<[Page]> {
    bytemuck::allocation::zeroed_slice_box(count)
}

fn read(file: &CheckpointFile, offset: u64, len: usize) -> Result<Vec<u8>, CheckpointError> {
    let mut target = pages(pages_of(offset, len));
    let start = file.read_direct(offset, len, &mut target, &AtomicBool::new(false))?;
    let start = start.expect("nobody cancels");
    Ok(bytemuck::cast_slice::<_, u8>(&target)[start..start + len].to_vec())
}

#[test]
fn any_part_is_read_as_a_plain_read_gives_it() {
    // More than two pieces, and no multiple of a page.
    const LEN: usize = 2 * PIECE_BYTES + 3 * PAGE_BYTES + 1234;
    static EMBEDDED: &[(&str, &[u8])] = &[(NAME, include_bytes!("tests.rs"))];

    let folder = folder_with(LEN);
    let files = [
        open(folder.path()),
        without_direct(open(folder.path())),
        CheckpointFile::open(&Source::Embedded(EMBEDDED), NAME).unwrap(),
    ];
    let same = |file: &CheckpointFile, offset: u64, len: usize| {
        let mut expected = vec![0; len];
        file.read_at(offset, &mut expected).unwrap();
        assert!(
            read(file, offset, len).unwrap() == expected,
            "{len} bytes from {offset}"
        );
    };
    for file in &files {
        let len = file.len as usize;
        same(file, 0, len);
        same(file, 1, len - 1);
        same(file, file.len - 1, 1);
        same(file, file.len, 0);
        proptest!(ProptestConfig::with_cases(64), |(offset in 0..len, part in 0..len, tail: bool)| {
            let part = part.min(len - offset);
            let offset = if tail { len - part } else { offset };
            same(file, offset as u64, part);
        });
    }
}

#[test]
fn a_file_cut_short_says_what_it_has() {
    for cut in [0, 1, PAGE_BYTES, 2 * PAGE_BYTES + 1, 5 * PAGE_BYTES - 1] {
        let folder = folder_with(5 * PAGE_BYTES);
        for file in [open(folder.path()), without_direct(open(folder.path()))] {
            let writer = OpenOptions::new()
                .write(true)
                .open(folder.path().join(NAME))
                .unwrap();
            writer.set_len(cut as u64).unwrap();
            let error = read(&file, 10, 5 * PAGE_BYTES - 10).unwrap_err();
            let CheckpointError::WrongLength {
                expected, found, ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!((expected, found), (5 * PAGE_BYTES as u64, cut as u64));
            writer.set_len(5 * PAGE_BYTES as u64).unwrap();
        }
    }
}

#[test]
fn a_cancelled_read_is_neither_whole_nor_an_error() {
    let folder = folder_with(PAGE_BYTES);
    let file = open(folder.path());
    let cancel = AtomicBool::new(true);
    let outcome = file.read_direct(0, 100, &mut pages(1), &cancel).unwrap();
    assert_eq!(outcome, None);
}

#[test]
fn a_file_written_to_has_changed() {
    let folder = folder_with(3 * PAGE_BYTES);
    let path = folder.path().join(NAME);
    let file = open(folder.path());
    file.check_unchanged().unwrap();

    // As many bytes as before: the time alone tells.
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all_at(b"other", PAGE_BYTES as u64).unwrap();
    let later = SystemTime::now() + Duration::from_secs(1);
    writer.set_modified(later).unwrap();
    let error = file.check_unchanged().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} changed while it was in use; load the model again",
            path.display()
        )
    );

    // The time as before: the length alone tells.
    let file = open(folder.path());
    writer.set_len(PAGE_BYTES as u64).unwrap();
    writer.set_modified(later).unwrap();
    assert!(matches!(
        file.check_unchanged(),
        Err(CheckpointError::Changed { .. })
    ));
}

#[test]
fn a_file_deleted_or_replaced_by_name_lives_on() {
    let folder = folder_with(2 * PAGE_BYTES + 7);
    let path = folder.path().join(NAME);
    let file = open(folder.path());
    let expected = content(2 * PAGE_BYTES + 7);

    fs::write(folder.path().join("new"), b"another").unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    file.check_unchanged().unwrap();
    assert!(read(&file, 3, expected.len() - 3).unwrap() == expected[3..]);

    fs::remove_file(&path).unwrap();
    file.check_unchanged().unwrap();
    assert!(read(&file, 0, expected.len()).unwrap() == expected);
}

#[test]
fn another_file_of_the_name_is_not_read_for_the_first() {
    let folder = folder_with(PAGE_BYTES);
    let path = folder.path().join(NAME);
    let identity = Identity::of(&fs::metadata(&path).unwrap());
    fs::write(folder.path().join("new"), content(PAGE_BYTES)).unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    assert!(open_direct(&path, &identity).is_none());
}

#[test]
fn what_is_dropped_from_the_cache_is_read_again() {
    let folder = folder_with(4 * PAGE_BYTES);
    let file = open(folder.path());
    let expected = content(4 * PAGE_BYTES);
    for len in [0, 1, file.len, u64::MAX] {
        file.will_need(0, len);
        assert!(read(&file, 0, expected.len()).unwrap() == expected);
    }
}
