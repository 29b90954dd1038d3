//! Files of models with random changes, up to where a load would read weights: configurations, headers and indexes of
//! safetensors, headers of GGUF files, of `.pth` files and of containers, calibrations. Whatever they say, they are taken
//! or refused, within bounds of memory and time that this program holds them to: it ends where one is crossed, and names
//! the change.

mod bounds;
mod change;
mod gguf;

use std::{env, fs, path::Path, sync::atomic::AtomicBool};

use serde_json::Value;
use sluice_checkpoint::{
    Checkpoint, Source,
    calibration::{
        Calibration, CalibrationOrigin, CalibrationWriter, InputRows, ModelIdentity, PositionKind,
    },
    compression::{CompressOptions, CompressionMethod, Container, Lossless, compress},
};
use sluice_codec::container::{Hash, MAGIC, VERSION};
use sluice_engine::runtime::ModelOutline;
use sluice_machine::Profile;
use sluice_optimize::moments::Moments;
use sluice_plan::{BLOCK_DEFAULT, Machine, Workload};
use sluice_shared::level::Level;
use sluice_weights::MatrixInput;
use tempfile::TempDir;

use self::{
    bounds::Watch,
    change::{Random, change_bytes, change_json},
};

/// Changes unless the variable says otherwise, of each kind.
const CHANGES_DEFAULT: u64 = 600;
const CHANGES: &str = "SLUICE_MUTATIONS";
/// The first of them: a change that failed is repeated with its number here.
const FIRST: &str = "SLUICE_MUTATIONS_FROM";

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const GENERATION_TEXT: &str = r#"{"eos_token_id": [2, 3], "mask_token_id": 5, "temperature": 0.7, "top_p": 0.9, "top_k": 40,
    "steps": 32, "eps": 0.001, "alg": "entropy", "max_new_tokens": 64}"#;

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Does with a checkpoint what a load does before it reads weights; true if nothing was refused.
fn open(path: &Path) -> bool {
    let source = Source::Folder(path.to_owned());
    let Ok(checkpoint) = Checkpoint::open(&source) else {
        return false;
    };
    let is_model = checkpoint.model().is_ok();
    let _ = checkpoint.recommended();
    drop(checkpoint.tokenizer());
    drop(checkpoint.fingerprint());
    let machine = Machine::unmeasured(Profile::cpu(2), u64::MAX);
    let Ok(outline) = ModelOutline::of_checkpoint(&source, machine) else {
        return false;
    };
    let workload = Workload::new(128, BLOCK_DEFAULT, 1);
    let plan = outline.plan(Level::Standard, u64::MAX, workload);
    is_model && plan.is_ok()
}

/// Makes changes of one kind, and counts what was taken.
fn try_all(kind: &str, mut change: impl FnMut(&mut Random) -> bool) {
    let count =
        env::var(CHANGES).map_or(CHANGES_DEFAULT, |count| count.parse::<u64>().unwrap() / 5);
    let first = env::var(FIRST).map_or(0, |first| first.parse().unwrap());
    let watch = Watch::start(kind);
    let mut taken = 0;
    for number in first..first + count {
        watch.next(number);
        // By its number, so that any one can be repeated by itself.
        taken += u64::from(change(&mut Random::new(number)));
    }
    println!("{kind}: {taken} of {count} were taken; {}", watch.end());
    assert!(taken > 0 && taken < count, "{taken} of {count}");
}

/// One after the other: bounds are those of a single file.
#[test]
fn mutated_files_are_taken_or_refused_within_bounds() {
    let folder = TempDir::new().unwrap();
    configurations(folder.path());
    safetensors(folder.path());
    index(folder.path());
    gguf_files(folder.path());
    pth_files(folder.path());
    containers(folder.path());
    calibrations(folder.path());
}

fn configurations(folder: &Path) {
    let models = [
        "llada-tiny",
        "dream-tiny",
        "llama-tiny",
        "sdar-tiny",
        "nemotron-ld-tiny",
        "qwen3-moe-tiny",
        "llada-moe-tiny",
        "llada2-tiny",
        "diffusion-gemma-tiny",
    ];
    let models = models.map(|name| {
        let own = folder.join(name);
        fs::create_dir(&own).unwrap();
        fs::copy(fixture(name).join(WEIGHTS), own.join(WEIGHTS)).unwrap();
        (own, json(&fixture(name).join(CONFIG)))
    });
    let generation: Value = serde_json::from_str(GENERATION_TEXT).unwrap();
    try_all("configurations", |random| {
        let (folder, config) = &models[random.below(models.len())];
        let (mut config, mut generation) = (config.clone(), generation.clone());
        match random.below(3) {
            0 => change_json(&mut generation, random),
            _ => change_json(&mut config, random),
        }
        let mut config = config.to_string().into_bytes();
        if random.below(8) == 0 {
            change_bytes(&mut config, random);
        }
        fs::write(folder.join(CONFIG), config).unwrap();
        fs::write(folder.join(GENERATION), generation.to_string()).unwrap();
        open(folder)
    });
}

/// A safetensors file with this header.
fn with_header(header: &[u8], rest: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, rest].concat()
}

fn safetensors(folder: &Path) {
    // Each matrix by itself, queries with keys and values in one, all experts of a layer in one.
    let models = ["llama-tiny", "llada2-tiny", "diffusion-gemma-tiny"].map(|name| {
        let own = folder.join("safetensors").join(name);
        fs::create_dir_all(&own).unwrap();
        fs::copy(fixture(name).join(CONFIG), own.join(CONFIG)).unwrap();
        let whole = fs::read(fixture(name).join(WEIGHTS)).unwrap();
        let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
        (own, whole, 8 + length, header)
    });
    try_all("safetensors", |random| {
        let (own, whole, begin, header) = &models[random.below(models.len())];
        let mut file = match random.below(3) {
            0 => whole.clone(),
            _ => {
                let mut header = header.clone();
                change_json(&mut header, random);
                with_header(header.to_string().as_bytes(), &whole[*begin..])
            }
        };
        if random.below(2) == 0 {
            change_bytes(&mut file[..*begin], random);
        }
        if random.below(20) == 0 {
            file.truncate(random.below(file.len()));
        }
        fs::write(own.join(WEIGHTS), file).unwrap();
        open(own)
    });
}

fn index(folder: &Path) {
    let (own, from) = (folder.join("index"), fixture("llama-tiny-tied"));
    fs::create_dir(&own).unwrap();
    for file in fs::read_dir(&from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), own.join(file.file_name())).unwrap();
    }
    let index = json(&from.join(INDEX));
    try_all("indexes", |random| {
        let mut changed = index.clone();
        change_json(&mut changed, random);
        let mut text = changed.to_string().into_bytes();
        if random.below(4) == 0 {
            change_bytes(&mut text, random);
        }
        fs::write(own.join(INDEX), text).unwrap();
        open(&own)
    });
}

fn gguf_files(folder: &Path) {
    let path = folder.join("model.gguf");
    let sound = [gguf::dense(), gguf::mixture()];
    for file in &sound {
        fs::write(&path, file.bytes()).unwrap();
        assert!(open(&path), "what the others are made of is sound");
    }
    try_all("GGUF", |random| {
        let mut file = sound[random.below(sound.len())].clone();
        file.change(random);
        let mut bytes = file.bytes();
        if random.below(2) == 0 {
            let header = bytes.len().min(16 << 10);
            change_bytes(&mut bytes[..header], random);
        }
        fs::write(&path, bytes).unwrap();
        open(&path)
    });
}

fn pth_files(folder: &Path) {
    let path = folder.join("rwkv.pth");
    let whole = fs::read(fixture("rwkv7-tiny").join("rwkv.pth")).unwrap();
    fs::write(&path, &whole).unwrap();
    assert!(open(&path), "what the others are made of is sound");
    // The pickle and the first headers, and the directory; weights lie between them.
    let (pickle, directory) = (6_600, whole.len() - 6_000);
    try_all(".pth", |random| {
        let mut bytes = whole.clone();
        match random.below(2) {
            0 => change_bytes(&mut bytes[..pickle], random),
            _ => change_bytes(&mut bytes[directory..], random),
        }
        if random.below(20) == 0 {
            bytes.truncate(random.below(bytes.len()));
        }
        fs::write(&path, bytes).unwrap();
        open(&path)
    });
}

fn containers(folder: &Path) {
    let path = folder.join("model.sluice");
    let options = CompressOptions {
        method: CompressionMethod::Lossless(Lossless::Dictionary),
        tile: 128,
        tensors: Default::default(),
        all: true,
        threads: 1,
        replace: true,
    };
    let source = Source::Folder(fixture("llada-tiny-bf16"));
    compress(
        &source,
        &path,
        &options,
        &AtomicBool::new(false),
        &mut |_, _| {},
    )
    .unwrap();
    assert!(open(&path), "what the others are made of is sound");
    let whole = fs::read(&path).unwrap();
    let header = serde_json::to_value(Container::open(&path).unwrap().header()).unwrap();
    let room = 24 + u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
    try_all("containers", |random| {
        let mut file = whole.clone();
        let kind = random.below(8);
        if kind == 0 {
            change_bytes(&mut file[..room], random);
        } else if kind == 1 {
            // Weights, which nothing reads before they are compared.
            change_bytes(&mut file[room..], random);
        } else {
            let mut header = header.clone();
            change_json(&mut header, random);
            let text = header.to_string().into_bytes();
            // Its checksum matches: more than that is to be met.
            let beginning = [
                &MAGIC[..],
                &VERSION.to_le_bytes(),
                &(text.len() as u32).to_le_bytes(),
                &Hash::of(&text).0.to_le_bytes(),
                &text,
            ]
            .concat();
            let begins = beginning.len().min(file.len());
            file[..begins].copy_from_slice(&beginning[..begins]);
        }
        fs::write(&path, file).unwrap();
        open(&path)
    });
}

fn calibrations(folder: &Path) {
    let path = folder.join("a.calibration.safetensors");
    let model = ModelIdentity {
        name: "tiny".to_owned(),
        family: "llada".to_owned(),
        fingerprint: "0".repeat(16),
        layers: 2,
        hidden_size: 6,
        attention_size: 4,
        intermediate_size: 9,
        pruned: std::collections::BTreeMap::new(),
    };
    let origin = CalibrationOrigin {
        model: model.clone(),
        text_hash: 1,
        texts: vec![1, 2],
        seed: 1,
        passes: 8,
        positions: 600,
        is_full: true,
        is_lossless: true,
    };
    let inputs: Vec<InputRows> = MatrixInput::all(2)
        .map(|input| InputRows {
            input,
            kind: PositionKind::Masked,
            rows: 2,
        })
        .collect();
    let writer = CalibrationWriter::create(&path, origin, &inputs, false).unwrap();
    for InputRows { input, kind, .. } in &inputs {
        let width = model.width(*input);
        let mut moments = Moments::new(width, true);
        moments.add(&vec![1.5; 2 * width]).unwrap();
        writer.put(*input, *kind, &mut moments).unwrap();
    }
    writer.finish(true).unwrap();
    let read = || {
        let calibration = Calibration::open(&path)?;
        inputs
            .iter()
            .try_for_each(|of| calibration.input(of.input, of.kind).map(drop))
    };
    read().expect("what the others are made of is sound");
    let whole = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    try_all("calibrations", |random| {
        let mut file = match random.below(3) {
            0 => whole.clone(),
            _ => {
                let mut header = header.clone();
                change_json(&mut header, random);
                with_header(header.to_string().as_bytes(), &whole[8 + length..])
            }
        };
        if random.below(2) == 0 {
            change_bytes(&mut file, random);
        }
        fs::write(&path, file).unwrap();
        read().is_ok()
    });
}
