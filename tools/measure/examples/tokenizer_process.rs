//! What it costs to tokenize in a process of its own: start, memory, a session, texts.
//!
//! `cargo run -p sluice-measure --example tokenizer_process -- target/release/sluiced MODEL_FOLDER`

use std::{env, fs, path::Path, time::Instant};

use sluice_tokenizer::{Patience, Tokenizer, TokenizerFiles};

const SESSIONS: u32 = 200;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [program, folder] = &arguments[..] else {
        panic!("usage: tokenizer_process SLUICED MODEL_FOLDER");
    };
    let folder = Path::new(folder);
    let tokenizer = fs::read(folder.join("tokenizer.json")).expect("tokenizer.json");
    let config = fs::read(folder.join("tokenizer_config.json")).ok();
    let files = TokenizerFiles {
        tokenizer: &tokenizer,
        config: config.as_deref(),
        template: None,
    };
    let began = Instant::now();
    let here = Tokenizer::here(&files).expect("a tokenizer");
    println!("parsed here in {:.1?}", began.elapsed());

    let patience = Patience::default();
    let began = Instant::now();
    let apart = Tokenizer::apart(Path::new(program), &files, &patience).expect("a process");
    println!("process started in {:.1?}", began.elapsed());
    let children = fs::read_to_string("/proc/thread-self/children").expect("a child");
    let status = fs::read_to_string(format!("/proc/{}/status", children.trim()));
    for line in status.expect("its status").lines() {
        if line.starts_with("VmRSS") || line.starts_with("RssAnon") {
            println!("  {line}");
        }
    }

    for text in ["Tell me a story.", &"Mia found a kite. ".repeat(58_000)] {
        let times = SESSIONS / text.len().div_ceil(10_000) as u32 + 1;
        for (place, tokenizer) in [("here", &here), ("there", &apart)] {
            let began = Instant::now();
            for _ in 0..times {
                tokenizer.encode(text).expect("ids");
            }
            let each = began.elapsed() / times;
            println!("{} bytes {place}: {each:.1?} each", text.len());
        }
    }
}
