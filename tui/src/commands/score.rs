//! `sluice score`.

use std::path::PathBuf;

use sluice_proto::client::when_there_is_room;
use sluice_proto::v1::{
    Chat, ChatRole, Operation, ScoreRequest, ScoreResult, TokenIds,
    operation::Outcome,
    score_request::{Answer, Prompt},
};
use sluice_shared::units;

use super::{input, message, operations::owned, until_interrupted, usage};
use crate::{
    cli::Score,
    connection::DaemonConnection,
    operations::no_result,
    output::{Failure, StandardOutput},
};

/// Scores an answer and prints the estimate.
pub(super) async fn run(
    socket: PathBuf,
    arguments: Score,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let json = arguments.json;
    let request = request(arguments)?;
    until_interrupted(score(socket, request, json, out)).await
}

async fn score(
    socket: PathBuf,
    request: ScoreRequest,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    let call = when_there_is_room(|| {
        let (mut client, request) = (daemon.generation(), request.clone());
        async move { client.score(request).await }
    });
    let operation = owned(&daemon, call, |step| {
        format!("{} of {} passes", step.done, step.total.unwrap_or(0))
    });
    let operation = operation.await?;
    if json {
        return out.json(&operation);
    }
    let Some(Outcome::Score(result)) = &operation.outcome else {
        return Err(no_result());
    };
    for line in lines(&operation, result) {
        out.line(&line)?;
    }
    Ok(())
}

fn request(arguments: Score) -> Result<ScoreRequest, Failure> {
    let expected =
        usize::from(arguments.tokens.is_none()) + usize::from(arguments.answer_tokens.is_none());
    if arguments.texts.len() != expected {
        return Err(usage(&format!(
            "score takes a prompt and an answer, each as text or as tokens: expected {expected} \
             texts, got {}",
            arguments.texts.len()
        )));
    }
    if arguments.texts.iter().filter(|text| *text == "-").count() > 1 {
        return Err(usage(
            "only one of prompt and answer can come from standard input",
        ));
    }
    let mut texts = arguments.texts.iter();
    let mut next = || input::text(texts.next().map_or("", String::as_str));
    let prompt = match arguments.tokens {
        Some(ids) => Prompt::Tokens(TokenIds { ids }),
        None if arguments.raw => Prompt::RawText(next()?),
        None => Prompt::Chat(Chat {
            messages: vec![message(ChatRole::User, &next()?)],
            ..Default::default()
        }),
    };
    let answer = match arguments.answer_tokens {
        Some(ids) => Answer::AnswerTokens(TokenIds { ids }),
        None => Answer::AnswerText(next()?),
    };
    Ok(ScoreRequest {
        model: arguments.asked.name(),
        prompt: Some(prompt),
        answer: Some(answer),
        draws: arguments.draws,
        guidance: arguments.guidance,
        seed: arguments.seed,
        check_greedy: arguments.greedy,
        think_steps: arguments.think,
    })
}

fn lines(operation: &Operation, result: &ScoreResult) -> Vec<String> {
    let error = match result.standard_error {
        Some(error) => format!(" ± {error:.4} (standard error)"),
        None => String::new(),
    };
    let steps = match result.think_steps {
        Some(steps) => format!("{} steps, ", units::count(steps.into())),
        None => String::new(),
    };
    let mut lines = vec![
        format!("log-likelihood {:.4}{error}", result.log_likelihood),
        format!(
            "{} answer tokens, {steps}{} draws, seed {}, {}",
            units::count(result.answer_tokens.into()),
            units::count(result.draws.into()),
            result.seed,
            units::duration_ms(operation.elapsed_ms)
        ),
    ];
    if let (Some(bound), Some(kl)) = (result.multi_sample_bound, result.kl_nats) {
        lines.push(format!(
            "a lower bound in expectation, with {kl:.4} nats of KL divergence; that of all draws together: {bound:.4}"
        ));
    }
    if let Some(is_greedy) = result.is_greedy {
        let verdict = if is_greedy { "gives" } else { "does not give" };
        lines.push(format!("greedy decoding {verdict} exactly this answer"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(arguments: &[&str]) -> Result<ScoreRequest, Failure> {
        let all = ["sluice", "score"].iter().chain(arguments);
        let cli = Cli::try_parse_from(all).expect("right usage");
        let Some(Command::Score(arguments)) = cli.command else {
            panic!("score");
        };
        request(arguments)
    }

    #[test]
    fn text_and_tokens_mix() {
        let request = parsed(&["--tokens", "1,2", "Blue."]).unwrap();
        assert_eq!(
            request.prompt,
            Some(Prompt::Tokens(TokenIds { ids: vec![1, 2] }))
        );
        assert_eq!(request.answer, Some(Answer::AnswerText("Blue.".into())));
        let request = parsed(&["sky?", "--raw", "--answer-tokens", "3"]).unwrap();
        assert_eq!(request.prompt, Some(Prompt::RawText("sky?".into())));
        assert_eq!(
            request.answer,
            Some(Answer::AnswerTokens(TokenIds { ids: vec![3] }))
        );
    }

    #[test]
    fn a_missing_or_surplus_text_is_wrong_usage() {
        for arguments in [
            &["sky?"][..],
            &[],
            &["a", "b", "--tokens", "1"],
            &["-", "-"],
        ] {
            let failure = parsed(arguments).unwrap_err();
            assert_eq!(failure.code(), sluice_shared::exit::USAGE, "{arguments:?}");
        }
    }
}
