//! Containers that were cut, damaged, or made up.

use serde_json::{Value, json};

use super::*;

/// The container with another header, its checksum made to match.
fn with_header(bytes: &[u8], text: &[u8]) -> Vec<u8> {
    let start = read(bytes).unwrap().header().shards[0].offset as usize;
    let mut made = bytes.to_vec();
    made[12..16].copy_from_slice(&(text.len() as u32).to_le_bytes());
    made[16..24].copy_from_slice(&Hash::of(text).0.to_le_bytes());
    if 24 + text.len() > start {
        made.resize(24 + text.len(), 0);
    }
    made[24..24 + text.len()].copy_from_slice(text);
    made
}

fn header_text(bytes: &[u8]) -> &[u8] {
    let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    &bytes[24..24 + length]
}

/// The error for the container after a value of its header changed.
fn refusal(bytes: &[u8], pointer: &str, value: Value) -> String {
    let mut header: Value = serde_json::from_slice(header_text(bytes)).unwrap();
    *header.pointer_mut(pointer).expect(pointer) = value;
    let made = with_header(bytes, header.to_string().as_bytes());
    match read(&made) {
        Ok(_) => panic!("{pointer} was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_container_cut_anywhere_is_refused() {
    let bytes = Model::new().container();
    let mut ends: Vec<usize> = (0..64).map(|part| bytes.len() * part / 64).collect();
    ends.extend([0, 7, 8, 23, 24, 25, 4095, 4096, bytes.len() - 1]);
    for end in ends {
        let message = read(&bytes[..end]).unwrap_err().to_string();
        let is_told = match end {
            0..24 => message.contains("is not a .sluice file"),
            _ => message.contains("is truncated or damaged") && message.contains(&end.to_string()),
        };
        assert!(is_told, "{end}: {message}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(matches!(
        read(&longer),
        Err(ContainerError::WrongLength { .. })
    ));
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let model = Model::new();
    let bytes = model.container();
    let made = read(&bytes).unwrap();
    let header = made.header();
    let header_end = 24 + header_text(&bytes).len();
    let mut random = Random(5);
    // Every byte of a small container would take minutes without optimization; every part is met many times.
    for _ in 0..3000 {
        let at = random.below(bytes.len());
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << random.below(8);
        let Ok(container) = read(&flipped) else {
            assert!(at < header_end, "byte {at} is none of the header");
            continue;
        };
        let found = damage(&container);
        let at = at as u64;
        let inside = |offset: u64, length: u64| (offset..offset + length).contains(&at);
        let tensor = header.tensors.iter().find(|t| inside(t.offset, t.length));
        if let Some(tensor) = tensor {
            let expected = expected_place(&made, tensor, at);
            assert_eq!(found, [expected], "byte {at}");
        } else if inside(header.checks.offset, header.checks.length) {
            assert_eq!(found, [Damage::Checks]);
        } else if let Some(file) = header
            .shards
            .iter()
            .chain(&header.files)
            .find(|f| inside(f.offset, f.length))
        {
            let name = file.name.clone();
            assert_eq!(found, [Damage::File { name }]);
        } else {
            assert_eq!(found, [Damage::Padding { at }]);
        }
    }
}

/// The damage that a flipped bit of this byte of a tensor is reported as.
fn expected_place(container: &Container<&[u8]>, tensor: &TensorRecord, at: u64) -> Damage {
    let name = tensor.name.clone();
    if tensor.scheme() == Some(Scheme::Plain) {
        let tile_bytes = tensor.tile_bytes(TILE) as u64;
        return Damage::Tile {
            tensor: name,
            tile: ((at - tensor.offset) / tile_bytes) as usize,
        };
    }
    let mut tiles = 0;
    for chunk in container.chunks(tensor) {
        let layout = &chunk.layout;
        if (chunk.offset..chunk.end()).contains(&at) {
            let at = (at - chunk.offset) as usize;
            if at < layout.codes().start {
                return Damage::Tables {
                    tensor: name,
                    tile: tiles,
                };
            }
            if layout.raw().contains(&at) {
                let tile = tiles + (at - layout.raw().start) / TILE;
                return Damage::Tile { tensor: name, tile };
            }
            let mut bytes = Vec::new();
            container.read_chunk(&chunk, &mut bytes).unwrap();
            if let Some(tile) =
                (0..layout.tiles()).find(|&tile| is_in_tile(layout, &bytes, tile, at))
            {
                let tile = tiles + tile;
                return Damage::Tile { tensor: name, tile };
            }
        }
        tiles += layout.tiles();
    }
    Damage::Tensor { tensor: name }
}

/// Whether a byte of codes or escapes is a tile's, by lengths added up from the beginning.
fn is_in_tile(layout: &MatrixLayout, bytes: &[u8], tile: usize, at: usize) -> bool {
    let lengths = &bytes[layout.lengths()];
    let before: usize = lengths[..tile]
        .iter()
        .map(|&length| usize::from(length))
        .sum();
    let varying = before..before + usize::from(lengths[tile]);
    match layout.scheme() {
        Scheme::Dictionary => {
            let nibbles = tile * TILE / 2..((tile + 1) * TILE / 2).min(layout.codes_len());
            layout.codes().contains(&at) && nibbles.contains(&(at - layout.codes().start))
                || layout.escapes().contains(&at)
                    && varying.contains(&(at - layout.escapes().start))
        }
        _ => layout.codes().contains(&at) && varying.contains(&(at - layout.codes().start)),
    }
}

#[test]
fn what_is_wrong_is_named() {
    let bytes = Model::new().container();
    let with = |at: usize, word: u32| {
        let mut made = bytes.clone();
        made[at..at + 4].copy_from_slice(&word.to_le_bytes());
        read(&made).unwrap_err().to_string()
    };
    assert!(with(0, 0).contains("is not a .sluice file"));
    assert!(with(8, 2).contains("has format version 2; this program supports version 1"));
    assert!(with(12, u32::MAX).contains("its header would have 4294967295 bytes"));
    assert!(with(12, 1 << 25).contains("is truncated"));
    assert!(with(12, 100).contains("doesn't match its checksum"));
    assert!(with(16, 1).contains("doesn't match its checksum"));

    let max = json!(u64::MAX);
    for (pointer, value, words) in [
        ("/tile", json!(100), "a tile of 100 elements"),
        ("/tile", json!(0), "a tile of 0 elements"),
        ("/bytes", json!(17), "instead of 17"),
        ("/bytes", json!(-1), "header"),
        ("/source_hash", json!("red"), "16 hexadecimal digits"),
        (
            "/tensors/1/scheme",
            json!(9),
            "tensor layers.0.up is compressed with the unknown scheme 9",
        ),
        (
            "/tensors/1/scheme",
            json!(0),
            "layers.0.up is not compressed, but has chunks",
        ),
        ("/tensors/0/scheme", json!(1), "wte.weight has 0 chunks"),
        (
            "/tensors/1/number",
            json!("i64"),
            "layers.0.up is compressed, but has the dtype i64",
        ),
        ("/tensors/1/number", json!("f32"), "layers.0.up has"),
        ("/tensors/8/number", json!("I 64"), "invalid dtype"),
        (
            "/tensors/1/shape",
            json!([40 * 130]),
            "is compressed, but is not a matrix:",
        ),
        (
            "/tensors/1/shape",
            json!([usize::MAX, 2]),
            "has too many elements",
        ),
        (
            "/tensors/1/shape",
            json!([41, 130]),
            "bytes; its shape and scheme require",
        ),
        (
            "/tensors/1/shape",
            json!([40, 1 << 22]),
            "has a chunk of 167772160 elements",
        ),
        (
            "/tensors/1/shape",
            json!([40, 0]),
            "is compressed, but is not a matrix:",
        ),
        (
            "/files/0/length",
            json!((256_u64 << 20) + 1),
            "has 268435457 bytes; the maximum is 268435456",
        ),
        ("/tensors/1/shape", json!(vec![1; 17]), "17 dimensions"),
        (
            "/tensors/0/shape",
            json!([5, 101]),
            "has 1000 bytes for 505 elements",
        ),
        (
            "/tensors/1/chunks",
            json!([]),
            "has 0 chunks of 256 rows for 40",
        ),
        (
            "/tensors/1/chunks/0",
            max.clone(),
            "cannot have its chunk 0",
        ),
        ("/tensors/1/chunk_rows", json!(0), "chunks of 0 rows"),
        (
            "/tensors/1/chunk_rows",
            json!(20),
            "has 1 chunks of 20 rows",
        ),
        (
            "/tensors/1/length",
            json!(1),
            "bytes; its shape and scheme require",
        ),
        ("/tensors/1/offset", max.clone(), "tensor layers.0.up"),
        (
            "/tensors/1/offset",
            json!(0),
            "layers.0.up lies outside its extent",
        ),
        (
            "/tensors/1/extent",
            json!(99),
            "extent 99, which does not exist",
        ),
        (
            "/tensors/1/extent",
            json!(2),
            "layers.0.up lies outside its extent layers.1",
        ),
        (
            "/tensors/1/checks",
            json!(0),
            "layers.0.up has checksums outside",
        ),
        (
            "/tensors/1/checks",
            max.clone(),
            "layers.0.up has checksums outside",
        ),
        (
            "/tensors/1/name",
            json!("wte.weight"),
            "duplicate tensor wte.weight",
        ),
        ("/tensors/1/name", json!(""), "is not a valid tensor name"),
        (
            "/tensors/1/name",
            json!("a\nb"),
            "is not a valid tensor name",
        ),
        ("/files/0/name", json!("../x"), "is not a valid file name"),
        ("/files/0/name", json!("/etc/x"), "is not a valid file name"),
        (
            "/files/0/name",
            json!(".bashrc"),
            "is not a valid file name",
        ),
        ("/files/0/name", json!("model.safetensors"), "duplicate"),
        ("/files/0/offset", json!(1), "not a multiple of 64"),
        ("/files/0/offset", json!(0), "overlaps"),
        ("/files/0/length", json!(1 << 20), "overlaps"),
        ("/files/0/length", max.clone(), "file config.json has"),
        ("/extents/1/offset", json!(4096), "layers.0"),
        ("/extents/1/length", max.clone(), "overlaps the checksums"),
        ("/extents/0/offset", json!(4097), "wte.weight"),
        ("/checks/offset", json!(4096), "checks"),
        ("/checks/length", max, "checks"),
        ("/checks/length", json!(0), "checks"),
    ] {
        let message = refusal(&bytes, pointer, value.clone());
        assert!(message.contains(words), "{pointer} {value}: {message}");
    }
    for text in ["", "{", "[]", "{}", "null", "\u{7f}", &"[".repeat(100_000)] {
        let message = read(&with_header(&bytes, text.as_bytes())).unwrap_err();
        assert!(message.to_string().contains("header"), "{message}");
    }
}

#[test]
fn what_decodes_to_something_else_is_told() {
    let bytes = Model::new().container();
    let header: Value = serde_json::from_slice(header_text(&bytes)).unwrap();
    for (tensor, words) in [
        (
            0,
            "wte.weight cannot be decompressed: its original hash does not match",
        ),
        (
            1,
            "layers.0.up cannot be decompressed: its decompressed bytes do not match their hash",
        ),
    ] {
        let mut header = header.clone();
        header["tensors"][tensor]["original_hash"] = json!("0123456789abcdef");
        let made = with_header(&bytes, header.to_string().as_bytes());
        let [source, meaning] = &damage(&read(&made).unwrap())[..] else {
            panic!("two damages");
        };
        assert_eq!(source, &Damage::Source);
        assert!(meaning.to_string().contains(words), "{meaning}");
    }
}

/// A container with some values of its header, or bytes anywhere, changed.
fn mutated(bytes: &[u8], values: &Value, random: &mut Random) -> Vec<u8> {
    let mut header = values.clone();
    for _ in 0..1 + random.below(3) {
        let mut value = &mut header;
        // Down to a leaf, which becomes another.
        loop {
            let count = match value {
                Value::Object(map) => map.len(),
                Value::Array(list) => list.len(),
                _ => 0,
            };
            if count == 0 {
                change(value, bytes.len(), random);
                break;
            }
            let index = random.below(count);
            match value {
                Value::Object(map) => value = map.values_mut().nth(index).expect("counted"),
                Value::Array(list) if random.below(12) == 0 => {
                    let again = list[index].clone();
                    match random.below(2) {
                        0 => drop(list.remove(index)),
                        _ => list.push(again),
                    }
                    break;
                }
                Value::Array(list) => value = &mut list[index],
                _ => unreachable!("it has others within"),
            }
        }
    }
    let mut made = with_header(bytes, header.to_string().as_bytes());
    if random.below(4) == 0 {
        let at = random.below(made.len());
        made[at] = random.next() as u8;
    }
    if random.below(16) == 0 {
        made.truncate(random.below(made.len()));
    }
    made
}

/// Another value for a leaf of a header, perhaps one that could be.
fn change(leaf: &mut Value, bytes: usize, random: &mut Random) {
    const NUMBERS: [u64; 16] = [
        0,
        1,
        2,
        63,
        64,
        128,
        256,
        4095,
        4096,
        1 << 16,
        1 << 31,
        (1 << 32) - 1,
        1 << 40,
        1 << 62,
        i64::MAX as u64,
        u64::MAX,
    ];
    *leaf = match (leaf.as_u64(), random.below(8)) {
        (Some(number), 0) => json!(number.wrapping_add(1)),
        (Some(number), 1) => json!(number.wrapping_sub(64)),
        (Some(number), 2) => json!(number / 2),
        (Some(_), 3) => json!(bytes - random.below(bytes)),
        (Some(_), _) => json!(NUMBERS[random.below(NUMBERS.len())]),
        (None, 0) => Value::Null,
        (None, 1) => json!("f16"),
        (None, 2) => json!([]),
        (None, _) => json!(format!("{:016x}", random.next())),
    };
}

/// Uses every function of a container; true if it opened.
fn use_all(bytes: &[u8]) -> bool {
    let Ok(container) = read(bytes) else {
        return false;
    };
    let found = damage(&container);
    assert!(found.len() < 1000);
    for file in &container.header().files {
        drop(container.read_file(file));
    }
    true
}

fn mutate(count: usize, seed: u64) {
    let bytes = Model::new().container();
    let values: Value = serde_json::from_slice(header_text(&bytes)).unwrap();
    let mut random = Random(seed);
    let taken = (0..count)
        .filter(|_| use_all(&mutated(&bytes, &values, &mut random)))
        .count();
    // Names and hashes may be any.
    assert!(taken > 0 && taken < count, "{taken} of {count}");
}

#[test]
fn made_up_headers_are_refused_or_hold() {
    mutate(2000, 11);
}

#[test]
#[ignore = "minutes; SLUICE_CONTAINERS=N says how many"]
fn millions_of_made_up_headers_are_refused_or_hold() {
    let count =
        std::env::var("SLUICE_CONTAINERS").map_or(1_000_000, |count| count.parse().unwrap());
    let seed = std::env::var("SLUICE_SEED").map_or(12, |seed| seed.parse().unwrap());
    mutate(count, seed);
}
