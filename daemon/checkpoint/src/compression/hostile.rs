//! Containers with other headers and other bytes than were written, through everything that reads them: they may be
//! refused or give other values, but nothing may panic, and what was checked can be multiplied from.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::AtomicBool,
};

use serde_json::Value;
use sluice_codec::container::{MAGIC, VERSION};
use tempfile::TempDir;

use super::{
    CompressOptions, CompressionMethod, Container, Hash, Lossless, TrellisTarget, compress,
    decompress, decompress::shards,
};
use crate::{Checkpoint, Source, TensorEntry, container::ReadMode};

static GO_ON: AtomicBool = AtomicBool::new(false);

/// Number of damaged containers for each scheme.
const TURNS: usize = 1000;
/// Longest tensor that is read: a header may declare more than there is memory for.
const READ_BYTES_MAX: u64 = 4 << 20;

/// A xorshift64* generator (Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end.max(1) as u128) >> 64) as usize
    }
}

/// A folder with matrices of two chunks, one that stays plain, and a file beside them.
fn source(folder: &Path, random: &mut Random) {
    let header = br#"{"a.0.w":{"dtype":"BF16","shape":[257,256],"data_offsets":[0,131584]},
        "a.1.w":{"dtype":"F16","shape":[510,129],"data_offsets":[131584,263164]},
        "b":{"dtype":"F32","shape":[300],"data_offsets":[263164,264364]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    // Finite elements of each format, much alike.
    let mut number = || 0x3c00 | random.next() as u16 & 0x80ff;
    file.extend((0..264_364 / 2).flat_map(|_| number().to_le_bytes()));
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("model.safetensors"), file).unwrap();
    fs::write(folder.join("config.json"), "{}").unwrap();
}

/// A container's beginning, with a header in which something else stands; `None` where that takes more room than there is.
fn other_header(random: &mut Random, header: &Value, room: usize) -> Option<Vec<u8>> {
    let mut header = header.clone();
    for _ in 0..=random.below(2) {
        alter(random, &mut header);
    }
    let text = header.to_string();
    let mut beginning = [
        &MAGIC[..],
        &VERSION.to_le_bytes(),
        &(text.len() as u32).to_le_bytes(),
        &Hash::of(text.as_bytes()).0.to_le_bytes(),
        text.as_bytes(),
    ]
    .concat();
    (beginning.len() <= room).then(|| {
        beginning.resize(room, 0);
        beginning
    })
}

/// Makes something else of one of the values inside.
fn alter(random: &mut Random, value: &mut Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let at = random.below(fields.len());
            alter(random, fields.values_mut().nth(at).expect("one of them"));
        }
        Value::Array(values) if !values.is_empty() && random.below(8) > 0 => {
            let at = random.below(values.len());
            alter(random, &mut values[at]);
        }
        Value::Array(values) => match values.len() {
            0 => values.push(0.into()),
            count => drop(values.remove(random.below(count))),
        },
        Value::String(text) => {
            let others = ["bf16", "f16", "f32", "i8", "a.0.w", "", "../b"];
            *text = others[random.below(others.len())].to_owned();
        }
        other => {
            let now = other.as_u64().unwrap_or(0);
            let all = [0, 1, 2, 3, 64, 256, 1 << 20, 1 << 40, u64::MAX];
            *other = match random.below(3) {
                0 => all[random.below(all.len())].into(),
                1 => now.wrapping_add(1).into(),
                _ => now.wrapping_sub(1).into(),
            };
        }
    }
}

/// Uses a container in all ways; returns whether it opened, and how much of it could be read.
fn read_all(path: &Path) -> (bool, usize) {
    let container = Container::open(path);
    if let Ok(container) = &container {
        drop(shards(container, &GO_ON));
    }
    let Ok(checkpoint) = Checkpoint::open(&Source::Folder(path.to_owned())) else {
        return (false, 0);
    };
    assert!(container.is_ok(), "what the codec refuses is no checkpoint");
    drop(checkpoint.small_file("config.json", 1 << 20));
    let entries = checkpoint.tensors.values();
    let entries = entries.filter(|entry| entry.bytes <= READ_BYTES_MAX);
    (
        true,
        entries.filter(|entry| read(&checkpoint, entry)).count(),
    )
}

/// Reads a tensor in all ways; returns whether that succeeded.
fn read(checkpoint: &Checkpoint, entry: &TensorEntry) -> bool {
    let len = entry.bytes;
    let mut whole = vec![0; len as usize];
    let good = checkpoint.read_part(entry, 0..len, &mut whole).is_ok();
    // From within a row to within another.
    let part = len / 3..len - len / 5;
    let mut some = vec![0; (part.end - part.start) as usize];
    if checkpoint.read_part(entry, part.clone(), &mut some).is_ok() && good {
        assert!(some == whole[part.start as usize..part.end as usize]);
    }
    let Some(compressed) = &entry.compressed else {
        return good;
    };
    let (rows, width) = (entry.shape[0], entry.shape[1]);
    let mut widened = true;
    let result = checkpoint.each_chunk(entry, &(0..rows), ReadMode::Disk, &GO_ON, &mut |open| {
        let numbers = open.local.len() * width;
        let result = open
            .matrix
            .decompress_rows_f32(open.local, &mut vec![0.; numbers]);
        widened &= result.is_ok();
        result
    });
    assert_eq!(result.is_ok(), good, "both ways fail, or none");

    let stored = Checkpoint::as_compressed(entry);
    let mut bytes = vec![0; stored.bytes as usize];
    checkpoint
        .read_part(&stored, 0..stored.bytes, &mut bytes)
        .unwrap();
    for rows in [0..rows, rows / 3..rows - rows / 5] {
        if compressed.check(&bytes, 0, &rows).is_err() {
            continue;
        }
        for open in compressed.open(&bytes, 0, &rows) {
            let open = open.expect("it was checked");
            let mut values = vec![0.; open.local.len() * width];
            let widened = open
                .matrix
                .decompress_rows_f32(open.local.clone(), &mut values);
            widened.expect("it was checked");
            let pieces = open.matrix.decompress_pieces_f32(open.local, |_, _, _| {});
            pieces.expect("it was checked");
        }
    }
    good
}

/// Containers with other bytes in tensors, with another header, and with both.
#[test]
fn what_was_checked_can_be_read_and_nothing_panics() {
    let folder = TempDir::new().unwrap();
    let mut random = Random(9);
    let from = folder.path().join("source");
    source(&from, &mut random);
    let path = folder.path().join("a.sluice");
    let back = folder.path().join("back");
    for how in [
        CompressionMethod::Lossless(Lossless::Huffman),
        CompressionMethod::Lossless(Lossless::Dictionary),
        CompressionMethod::Trellis(TrellisTarget::Bits(4.)),
    ] {
        let options = CompressOptions {
            method: how,
            tile: 128,
            tensors: Default::default(),
            all: true,
            threads: 1,
            replace: true,
        };
        let from = Source::Folder(from.clone());
        compress(&from, &path, &options, &GO_ON, &mut |_, _| {}).unwrap();
        assert_eq!(read_all(&path), (true, 3));

        let container = Container::open(&path).unwrap();
        let header = serde_json::to_value(container.header()).unwrap();
        let whole = fs::read(&path).unwrap();
        let room = container.header().shards[0].offset as usize;
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let (mut opened, mut tensors) = (0, 0);
        for turn in 0..TURNS {
            if turn % 3 > 0 {
                let Some(beginning) = other_header(&mut random, &header, room) else {
                    continue;
                };
                file.write_all_at(&beginning, 0).unwrap();
            }
            if turn % 3 < 2 {
                damage(&mut random, &file, &container);
            }
            let (is_opened, read) = read_all(&path);
            opened += usize::from(is_opened);
            tensors += read;
            // It syncs, and so takes its time.
            if let (0, Ok(container)) = (turn % 40, Container::open(&path)) {
                let restored = decompress(&container, &back, 1, &GO_ON, &mut |_, _| {});
                assert_eq!(restored.is_ok(), back.exists());
                drop(fs::remove_dir_all(&back));
            }
            file.write_all_at(&whole, 0).unwrap();
        }
        println!("{how:?}: {opened} were opened, {tensors} tensors read");
        assert!(opened > TURNS / 3 && tensors > opened);
        assert!(tensors < 3 * opened, "some cannot be read");
    }
}

/// Other bytes in a compressed tensor: at the beginning of a chunk, where its tables are, or anywhere.
fn damage(random: &mut Random, file: &File, container: &Container) {
    let tensors = &container.header().tensors;
    let compressed: Vec<_> = tensors.iter().filter(|t| !t.chunks.is_empty()).collect();
    let tensor = compressed[random.below(compressed.len())];
    let chunks: Vec<_> = container.chunks(tensor).collect();
    let chunk = &chunks[random.below(chunks.len())];
    for _ in 0..=random.below(4) {
        let near = [16, 512, chunk.layout.bytes()][random.below(3)];
        let at = chunk.offset + random.below(near) as u64;
        let byte = [0, 0xff, random.next() as u8][random.below(3)];
        file.write_all_at(&[byte], at).unwrap();
    }
}
