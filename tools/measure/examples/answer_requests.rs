//! The cost of an answer of the demonstration model with each policy or preset: eight requests of 32 tokens, 128 tokens
//! behind each, in blocks of 32.
//!
//! ```sh
//! cargo run -p sluice-measure --example answer_requests -- MODEL [POLICY|PRESET...]
//! ```

use std::{error::Error, path::PathBuf, time::Duration};

use sluice_checkpoint::Source;
use sluice_engine::{Engine, EngineOptions, Generate, Outcome, PlanSettings, Work};
use sluice_shared::{
    decoding::Decoding,
    preset::{Preset, ResolvedPreset},
    units,
};

/// In the words the model knows, and of the same length with its chat template: a program that only takes canvases of
/// whole blocks can be given the same ones.
const REQUESTS: [&str; 8] = [
    "Please write a little story about Nils the lion who finds a magic shiny cup.",
    "Can you tell me a very short story about a girl named Nils and a cup?",
    "Tell me a bedtime story about a girl named Poppy who wants a cup.",
    "Use these words in a story: cup, cat, Theo, garden, Ruby.",
    "Could you write a very short story about a bear named Anna and a dog named Nils?",
    "Write a nice story about Nils who saw a lost lamp at the park one day.",
    "Tell me a story about Fred the bear who lost a cup at the forest.",
    "Write a story for children about a fox named Poppy who wants a drum.",
];
const TOKENS: usize = 128;
const BLOCK: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = PathBuf::from(arguments.next().ok_or("a model is needed")?);
    let ways: Vec<String> = arguments.collect();
    let engine = Engine::start(EngineOptions::default())?;
    let model = engine.load_now(Source::Folder(model), PlanSettings::default())?;
    let text = model
        .tokenizer
        .as_ref()
        .ok_or("the model has no tokenizer")?;
    for way in ways {
        let (policy, decoding) = match way.parse::<Preset>() {
            Ok(preset) => {
                let ResolvedPreset { policy, decoding } = preset.resolve(|_| false);
                (policy, decoding)
            }
            Err(_) => (way.parse()?, Decoding::default()),
        };
        let (mut passes, mut time) = (0, Duration::ZERO);
        for request in REQUESTS {
            let request = Generate {
                block_length: BLOCK,
                policy,
                decoding,
                ..Generate::greedy(model.id, text.encode_chat(&[("user", request)])?, TOKENS)
            };
            let Outcome::Generated(answer) = engine.run(Work::Generate(request))? else {
                return Err("a request was cancelled".into());
            };
            passes += answer.passes;
            time += answer.elapsed;
        }
        println!(
            "{way}: {:.0} tokens/s, {:.1} passes an answer, {} a pass",
            (REQUESTS.len() * TOKENS) as f64 / time.as_secs_f64(),
            passes as f64 / REQUESTS.len() as f64,
            units::duration_ms(1000.0 * time.as_secs_f64() / passes as f64)
        );
    }
    Ok(())
}
