//! Any bytes as a GGUF file: its header, the configuration it stands for, and its tokenizer. They may be refused; nothing
//! may panic, run on, or take more memory than the file could mean.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_engine::{checkpoint::gguf::Gguf, model::family::ModelConfig, text::Text};

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = Gguf::parse(bytes) else {
        return;
    };
    if let Ok(config) = file.config() {
        drop(ModelConfig::read(&config, None));
    }
    if let Ok(Some(files)) = file.tokenizer() {
        drop(Text::new(&files.tokenizer, files.config.as_deref()));
    }
});
