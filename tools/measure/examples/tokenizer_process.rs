//! What it costs to tokenize in a process of its own: start, memory, a session, texts; and grammars there, where the program has
//! them.
//!
//! `cargo run -p sluice-measure --example tokenizer_process -- target/release/sluiced MODEL_FOLDER`

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use sluice_tokenizer::{
    Patience, Tokenizer, TokenizerError, TokenizerFiles,
    grammar::{Grammar, GrammarKind},
};

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
    print_memory();
    if let Err(error) = measure_grammars(&apart) {
        println!("grammars: {error}");
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

fn print_memory() {
    let children = fs::read_to_string("/proc/thread-self/children").expect("a child");
    let status = fs::read_to_string(format!("/proc/{}/status", children.trim()));
    for line in status.expect("its status").lines() {
        if line.starts_with("VmRSS") || line.starts_with("RssAnon") {
            println!("  {line}");
        }
    }
}

const PERSON: &str = r#"{
    "type": "object",
    "properties": {
        "name": { "type": "string" },
        "age": { "type": "integer" },
        "tags": { "type": "array", "items": { "type": "string" } },
        "kind": { "enum": ["a", "b", "c"] }
    },
    "required": ["name", "age", "tags", "kind"]
}"#;

/// Begins texts by grammars, and writes tokens that are drawn from those that are allowed.
fn measure_grammars(tokenizer: &Tokenizer) -> Result<(), TokenizerError> {
    let patience = Patience::default();
    let compile = |kind, text: &str| {
        let text = text.to_owned();
        tokenizer.compile(&Grammar { kind, text }, &patience)
    };
    let began = Instant::now();
    compile(GrammarKind::Regex, "a")?;
    println!(
        "the first grammar, with the prefix tree: {:.1?}",
        began.elapsed()
    );
    print_memory();
    for (name, kind, text) in [
        ("a schema", GrammarKind::JsonSchema, PERSON),
        ("any JSON", GrammarKind::JsonSchema, "{}"),
        ("[a-z]+", GrammarKind::Regex, "[a-z]+"),
        ("all", GrammarKind::Regex, "(?s:.*)"),
    ] {
        let began = Instant::now();
        let (mut session, mut allowed) = compile(kind, text)?;
        let compiled = began.elapsed();
        let (mut total, mut longest, mut count) = (Duration::ZERO, Duration::ZERO, 0);
        let mut random = 1_u64;
        while count < 400 {
            let words = allowed.mask.iter().map(|word| word.count_ones() as usize);
            let ids: usize = words.sum();
            if ids == 0 {
                break;
            }
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let nth = (random >> 33) as usize % ids;
            let mut set = (0..allowed.mask.len() as u32 * 32)
                .filter(|id| allowed.mask[*id as usize / 32] >> (id % 32) & 1 == 1);
            let token = set.nth(nth).expect("counted");
            let began = Instant::now();
            allowed = session.accept(token, &patience)?;
            let took = began.elapsed();
            (total, longest, count) = (total + took, longest.max(took), count + 1);
        }
        let each = total / count.max(1);
        println!(
            "{name}: begun in {compiled:.1?}, a token in {each:.1?}, at most {longest:.1?} ({count} tokens)"
        );
    }
    Ok(())
}
