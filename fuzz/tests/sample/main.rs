//! A bounded sample of what the fuzzers try: bytes at random, and changed ones of a small container, a small GGUF file,
//! a small file of PyTorch, one of tokens, and requests of HTTP.

mod http;

use std::{fs, sync::atomic::AtomicBool};

use sluice_checkpoint::{
    Checkpoint, Source,
    compression::{CompressOptions, CompressionMethod, Lossless, compress},
};

/// Inputs of each target, unless the variable says otherwise.
const COUNT: usize = 20_000;
const INPUTS: &str = "SLUICE_FUZZ_INPUTS";

/// How many inputs a target gets.
fn inputs() -> usize {
    match std::env::var(INPUTS) {
        Ok(text) => text.parse().expect("a number of inputs"),
        Err(_) => COUNT,
    }
}

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

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Some bytes changed, or cut off.
    fn changed(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len());
            bytes[at] = [0, 1, 0xff, self.next() as u8][self.below(4)];
        }
        if self.below(8) == 0 {
            bytes.truncate(self.below(bytes.len()));
        }
        bytes
    }
}

#[test]
fn compressed_matrices() {
    let mut random = Random(1);
    for _ in 0..inputs() {
        let len = 14 + random.below(2000);
        let mut bytes = random.bytes(len);
        // Small ones, most of the time: rows and width, in two bytes each.
        if random.below(4) > 0 {
            (bytes[5], bytes[7]) = (0, 0);
        }
        sluice_fuzz::codec(&bytes);
    }
}

#[test]
fn containers() {
    let folder = tempfile::tempdir().unwrap();
    let header = br#"{"a.0.w":{"dtype":"BF16","shape":[64,64],"data_offsets":[0,8192]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    let mut random = Random(2);
    file.extend((0..4096).flat_map(|_| (0x3c00 | random.next() as u16 & 0x80ff).to_le_bytes()));
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let path = folder.path().join("a.sluice");
    let options = CompressOptions {
        method: CompressionMethod::Lossless(Lossless::Huffman),
        tile: 128,
        tensors: Default::default(),
        all: true,
        threads: 1,
        replace: true,
    };
    let source = Source::Folder(folder.path().to_owned());
    compress(
        &source,
        &path,
        &options,
        &AtomicBool::new(false),
        &mut |_, _| {},
    )
    .unwrap();
    let whole = fs::read(path).unwrap();
    let length = u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
    // The target makes a container with a sound checksum of a header alone.
    let header = &whole[24..24 + length];
    for _ in 0..inputs() {
        let seed = [header, &whole][random.below(2)];
        sluice_fuzz::container(&random.changed(seed));
    }
}

#[test]
fn gguf_files() {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut seed = b"GGUF\x03\0\0\0".to_vec();
    seed.extend(1_u64.to_le_bytes());
    seed.extend(3_u64.to_le_bytes());
    for (key, kind, value) in [
        ("general.architecture", 8_u32, text("llama")),
        ("llama.block_count", 4, vec![1, 0, 0, 0]),
        (
            "tokenizer.ggml.tokens",
            9,
            [
                &[8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0][..],
                &text("a"),
                &text("b"),
            ]
            .concat(),
        ),
    ] {
        seed.extend([text(key), kind.to_le_bytes().to_vec(), value].concat());
    }
    seed.extend(text("token_embd.weight"));
    seed.extend([1, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    seed.extend(0_u64.to_le_bytes());
    seed.resize(seed.len().next_multiple_of(32) + 128, 0);
    let mut random = Random(3);
    for _ in 0..inputs() {
        sluice_fuzz::gguf(&random.changed(&seed));
    }
}

#[test]
fn files_of_pytorch() {
    // Two of the tensors that an RWKV-7 is known by, in one storage of 1,024 elements.
    let mut pickle = b"\x80\x02}q\0(".to_vec();
    for (name, offset) in [
        ("emb.weight", 0u8),
        ("blocks.0.att.x_r", 64),
        ("blocks.0.att.w1", 128),
    ] {
        pickle.extend([b'X', name.len() as u8, 0, 0, 0]);
        pickle.extend(name.as_bytes());
        pickle.extend(
            b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n",
        );
        pickle.extend(b"X\x01\0\0\x000X\x03\0\0\0cpuM\0\x04tQK");
        pickle.push(offset);
        pickle.extend(b"K\x08K\x08\x86K\x08K\x01\x86\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"u.");
    let whole = sluice_fuzz::archive(&[("a/data.pkl", &pickle), ("a/data/0", &[7; 4096])]);
    let file = tempfile::Builder::new().suffix(".pth").tempfile().unwrap();
    fs::write(file.path(), &whole).unwrap();
    Checkpoint::open(&Source::Folder(file.path().to_owned()))
        .expect("what the others are made of is sound");
    let mut random = Random(4);
    for _ in 0..inputs() {
        let seed = [&pickle, &whole][random.below(2)];
        sluice_fuzz::pth(&random.changed(seed));
    }
}

#[test]
fn token_files() {
    let seeds = [
        "# who\n\ngenerate 0123456789abcdef\nadmin\tfedcba9876543210 \r\n",
        "observe aaaaaaaaaaaaaaaaaaaaaaaa\noperate bbbbbbbbbbbbbbbbbbbbbbbb",
    ];
    // Of what files are made of, so that more of them are taken.
    let pieces = [
        "observe",
        "generate",
        "operate",
        "admin",
        " ",
        "\t",
        "\n",
        "\r\n",
        "#",
        "aaaaaaaaaaaaaaaa",
        "bbbbbbbbbbbbbbbb",
        "c",
        "\u{a0}",
    ];
    let mut random = Random(5);
    for _ in 0..inputs() {
        let bytes = match random.below(3) {
            0 => {
                let seed = seeds[random.below(seeds.len())];
                random.changed(seed.as_bytes())
            }
            1 => {
                let len = random.below(200);
                random.bytes(len)
            }
            _ => {
                let count = random.below(24);
                let text: String = (0..count)
                    .map(|_| pieces[random.below(pieces.len())])
                    .collect();
                text.into_bytes()
            }
        };
        sluice_fuzz::tokens(&bytes);
    }
}
