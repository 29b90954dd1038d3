//! `sluice generate`: makes a request of the arguments.

use std::path::Path;

use sluice_proto::v1::{
    CanvasPin, Chat, ChatRole, GenerateRequest, Grammar, TokenIds, canvas_pin::Content,
    generate_request::Input, grammar::Kind,
};

use super::{input, message, thoughts};
use crate::{cli::Generate, output::Failure};

/// The request of the arguments. The daemon validates its values.
pub(super) fn request(arguments: &Generate) -> Result<GenerateRequest, Failure> {
    let input = match (&arguments.tokens, &arguments.prompt) {
        (Some(ids), _) => Some(Input::Tokens(TokenIds { ids: ids.clone() })),
        // Only where a state is gone on from.
        (None, None) => None,
        (None, Some(prompt)) => {
            let text = input::text(prompt)?;
            // Only who says so means no prompt, and not who pipes in nothing.
            if text.is_empty() && !prompt.is_empty() {
                return Err(Failure::new("standard input holds no text"));
            }
            Some(
                if arguments.raw || (text.is_empty() && arguments.system.is_none()) {
                    Input::RawText(text)
                } else {
                    let system = arguments.system.as_deref();
                    let system = system.map(|text| message(ChatRole::System, text));
                    let messages = system.into_iter().chain([message(ChatRole::User, &text)]);
                    Input::Chat(Chat {
                        messages: messages.collect(),
                        ..Default::default()
                    })
                },
            )
        }
    };
    let pin = |(position, text): &(Option<u32>, String)| CanvasPin {
        position: position.unwrap_or_default(),
        content: Some(Content::Text(text.clone())),
        anywhere: position.is_none(),
    };
    let mut request = GenerateRequest {
        model: arguments.asked.name(),
        input,
        length: arguments.length,
        ..Default::default()
    };
    arguments.memory.apply(&mut request);
    arguments.decoding.apply(&mut request);
    if let Some(path) = &arguments.thoughts {
        let thinking = request.thinking.get_or_insert_default();
        thinking.thoughts = Some(thoughts::read(path)?);
    }
    if arguments.save_thoughts.is_some() {
        let thinking = request.thinking.get_or_insert_default();
        thinking.return_thoughts = true;
    }
    if !arguments.pins.is_empty() {
        request.diffusion_mut().pins = arguments.pins.iter().map(pin).collect();
    }
    if let Some(count) = arguments.logprobs {
        request.autoregressive_mut().top_logprobs = Some(count);
    }
    if let Some(kind) = grammar(arguments)? {
        request.autoregressive_mut().grammar = Some(Grammar { kind: Some(kind) });
    }
    Ok(request)
}

/// What the answer has to match, if anything.
fn grammar(arguments: &Generate) -> Result<Option<Kind>, Failure> {
    let file = |path: &Path| input::file(Some(path)).map(|(text, _)| text);
    Ok(match arguments {
        Generate {
            json_schema: Some(path),
            ..
        } => Some(Kind::JsonSchema(file(path)?)),
        Generate {
            grammar: Some(path),
            ..
        } => Some(Kind::Lark(file(path)?)),
        Generate { regex, .. } => regex.clone().map(Kind::Regex),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use sluice_proto::v1::{
        AutoregressiveOptions, CanvasGrowth, DecodingPreset, EosPolicy, KvCacheMode, PriorSolver,
        Remasking, generate_request::Decoding,
    };

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(arguments: &[&str]) -> GenerateRequest {
        let all = ["sluice", "generate"].iter().chain(arguments);
        let cli = Cli::try_parse_from(all).expect("right usage");
        let Some(Command::Generate(arguments)) = cli.command else {
            panic!("generate");
        };
        request(&arguments).expect("a request")
    }

    #[test]
    fn a_prompt_is_a_conversation_unless_raw() {
        let Some(Input::Chat(chat)) = parsed(&["hi", "--system", "be brief"]).input else {
            panic!("chat");
        };
        let roles: Vec<_> = chat.messages.iter().map(|m| m.role()).collect();
        assert_eq!(roles, [ChatRole::System, ChatRole::User]);
        let raw = parsed(&["hi", "--raw"]).input;
        assert_eq!(raw, Some(Input::RawText("hi".into())));
        let ids = parsed(&["--tokens", "1,2,3"]).input;
        assert_eq!(ids, Some(Input::Tokens(TokenIds { ids: vec![1, 2, 3] })));
    }

    #[test]
    fn an_empty_prompt_is_none_at_all() {
        let none = Some(Input::RawText(String::new()));
        assert_eq!(parsed(&[""]).input, none);
        assert_eq!(parsed(&["", "--raw"]).input, none);
        // Instructions make a conversation, which the daemon refuses without a prompt.
        let Some(Input::Chat(chat)) = parsed(&["", "--system", "be brief"]).input else {
            panic!("chat");
        };
        assert_eq!(chat.messages.len(), 2);
    }

    #[test]
    fn a_prior_is_a_solver_with_its_steps() {
        let prior = |value: &str| {
            let request = parsed(&["hi", "--prior", value]);
            let prior = request.thinking.unwrap().prior.unwrap();
            (prior.solver(), prior.steps)
        };
        assert_eq!(prior("heun:40"), (PriorSolver::Heun, Some(40)));
        assert_eq!(
            prior("dpm-solver-pp-2m"),
            (PriorSolver::DpmSolverPp2m, Some(25))
        );
        assert_eq!(prior("none"), (PriorSolver::None, None));
        // The daemon judges how many are too many.
        assert_eq!(
            prior("adaptive-heun:0"),
            (PriorSolver::AdaptiveHeun, Some(0))
        );
    }

    #[test]
    fn what_is_not_given_is_left_to_the_daemon() {
        let request = parsed(&["hi"]);
        let bare = GenerateRequest {
            input: request.input.clone(),
            ..Default::default()
        };
        assert_eq!(request, bare);
    }

    #[test]
    fn every_flag_reaches_its_field() {
        let request = parsed(&[
            "hi",
            "--length",
            "8",
            "--block",
            "4",
            "--steps",
            "2",
            "--temperature",
            "0.5",
            "--guidance",
            "1.5",
            "--remasking",
            "random",
            "--eos",
            "suppress",
            "--pin",
            "1:x",
            "--policy",
            "threshold:t=0.8",
            "--kv-cache",
            "dual:behind=8",
            "--preset",
            "fast",
            "--suffix-window",
            "16",
            "--canvas-growth",
            "append",
            "--speculate",
            "draft:branches=2",
            "--seed",
            "9",
            "--top-k",
            "40",
            "--top-p",
            "0.9",
            "--min-p",
            "0.05",
            "--repetition-penalty",
            "1.1",
        ]);
        assert_eq!(request.length, Some(8));
        assert_eq!(request.block_length, Some(4));
        let sampling = request.sampling.unwrap();
        assert_eq!((sampling.temperature, sampling.seed), (Some(0.5), Some(9)));
        assert_eq!(sampling.eos_policy(), EosPolicy::Suppress);
        assert_eq!((sampling.top_k, sampling.top_p), (Some(40), Some(0.9)));
        assert_eq!(sampling.min_p, Some(0.05));
        assert_eq!(sampling.repetition_penalty, Some(1.1));
        assert!(!sampling.greedy && parsed(&["hi", "--greedy"]).sampling.unwrap().greedy);
        let diffusion = request.diffusion().unwrap();
        assert_eq!((diffusion.steps, diffusion.guidance), (Some(2), Some(1.5)));
        assert_eq!(diffusion.remasking(), Remasking::Random);
        assert_eq!(diffusion.preset(), DecodingPreset::Fast);
        let kv_cache = diffusion.kv_cache.unwrap();
        assert_eq!(kv_cache.mode(), KvCacheMode::Dual);
        assert_eq!(kv_cache.recompute_before, Some(8));
        assert_eq!(diffusion.suffix_window, Some(16));
        assert_eq!(diffusion.canvas_growth(), CanvasGrowth::Append);
        assert_eq!(diffusion.speculation.unwrap().branches, Some(2));
        assert_eq!(diffusion.pins.len(), 1);
        let policy = diffusion.policy.as_ref().expect("given");
        assert_eq!(
            (policy.name.as_str(), policy.parameters["t"]),
            ("threshold", 0.8)
        );
    }

    #[test]
    fn strings_that_end_a_text_go_with_no_option_of_masked_diffusion_models() {
        let request = parsed(&["hi", "--stop", "END", "--stop", "\n\n", "--top-k", "40"]);
        let stop = vec!["END".to_owned(), "\n\n".to_owned()];
        let options = AutoregressiveOptions {
            stop,
            ..Default::default()
        };
        assert_eq!(request.decoding, Some(Decoding::Autoregressive(options)));
        for flag in ["--preset=fast", "--policy=dream", "--steps=2", "--pin=1:x"] {
            for own in ["--stop=END", "--logprobs=2", "--regex=a+"] {
                let line = ["sluice", "generate", "hi", own, flag];
                let error = Cli::try_parse_from(line).unwrap_err();
                assert_eq!(
                    error.kind(),
                    clap::error::ErrorKind::ArgumentConflict,
                    "{own} {flag}"
                );
            }
        }
    }

    #[test]
    fn log_probabilities_go_with_a_stop() {
        let request = parsed(&["hi", "--stop", "END", "--logprobs", "0"]);
        let options = AutoregressiveOptions {
            stop: vec!["END".to_owned()],
            top_logprobs: Some(0),
            grammar: None,
        };
        assert_eq!(request.decoding, Some(Decoding::Autoregressive(options)));
    }

    #[test]
    fn a_grammar_is_a_file_or_an_expression() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "{}\n").unwrap();
        let path = path.to_str().unwrap();
        let kind = |flag: &str, value: &str| {
            let mut request = parsed(&["hi", flag, value]);
            let grammar = request.autoregressive_mut().grammar.take();
            grammar.unwrap().kind.unwrap()
        };
        assert_eq!(kind("--json-schema", path), Kind::JsonSchema("{}".into()));
        assert_eq!(kind("--grammar", path), Kind::Lark("{}".into()));
        assert_eq!(kind("--regex", "a+"), Kind::Regex("a+".into()));
        let line = ["sluice", "generate", "hi", "--regex=a", "--grammar=b"];
        assert!(Cli::try_parse_from(line).is_err());
    }
}
