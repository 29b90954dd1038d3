//! Any bytes as a GGUF file: its header, the configuration it stands for, its tokenizer, and its tensors, in order and in
//! parts. They may be refused; nothing may panic, run on, or take more memory than the file could mean.

use std::slice;

use sluice_checkpoint::{Checkpoint, Source, family::ModelConfig, gguf::Gguf};
use sluice_tokenizer::Tokenizer;

/// Longest tensor that is read; a part of it takes all ways through the code that the whole does.
const READ_BYTES_MAX: usize = 1 << 20;

type File = (&'static str, &'static [u8]);

/// Everything that is done with such bytes.
pub fn gguf(bytes: &[u8]) {
    let Ok(file) = Gguf::parse(bytes) else {
        return;
    };
    if let Ok(config) = file.config() {
        drop(ModelConfig::read(&config, None));
    }
    if let Ok(Some(files)) = file.tokenizer() {
        drop(Tokenizer::new(&files.tokenizer, files.config.as_deref()));
    }
    // An index names a file that may have any ending.
    let index: File = (
        "model.safetensors.index.json",
        br#"{"weight_map": {"any": "model.gguf"}}"#,
    );
    // SAFETY: files inside a program are for ever, these for as long as `check` runs: it takes them by a name that hides how
    // long, and leaves nothing behind that has them.
    let bytes: &'static [u8] = unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
    let files = [index, ("model.gguf", bytes)];
    // SAFETY: as above.
    check(unsafe { slice::from_raw_parts(files.as_ptr(), files.len()) });
}

/// What loading does with such a file.
fn check(files: &'static [File]) {
    let Ok(checkpoint) = Checkpoint::open(&Source::Embedded(files)) else {
        return;
    };
    let Ok(model) = checkpoint.model() else {
        return;
    };
    for spec in model.shape.tensors() {
        let Ok(format) = checkpoint.check(&spec.name, &spec.shape) else {
            return;
        };
        let entry = checkpoint
            .tensor(&spec.name)
            .expect("a tensor that was checked is there");
        let numbers: usize = spec.shape.iter().product();
        let end = format.bytes(numbers).min(READ_BYTES_MAX);
        // From within a row to within another.
        for (start, end) in [(0, end), (end / 3, end - end / 5)] {
            let mut out = vec![0; end - start];
            drop(checkpoint.read_part(entry, start as u64..end as u64, &mut out));
        }
    }
}
