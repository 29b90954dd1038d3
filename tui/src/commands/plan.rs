//! `sluice plan`: what a level and a budget would lead to.

use std::path::PathBuf;

use sluice_proto::v1::{PlanRequest, Workload, model_ref::By};
use sluice_report as report;

use super::{library::subject, offline};
use crate::{
    cli::Plan,
    output::{Failure, StandardOutput},
};

/// Prints a plan: the daemon's, or where none runs that of the program `sluiced`.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Plan,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let model = match (
        arguments.model.as_ref().or(arguments.model_flag.as_ref()),
        &arguments.shape,
    ) {
        (Some(model), _) => Some(subject(model)?),
        (None, shape) => shape.clone().map(By::Shape),
    };
    let alone = match &model {
        Some(By::Name(_)) => Err(
            "start it with `sluiced`: it knows where models of that name lie; a path needs no daemon".to_owned(),
        ),
        Some(model) => Ok(words(model, arguments)),
        None => Err(
            "start it with `sluiced`, or name a folder, a file or a --shape, which needs no daemon".to_owned(),
        ),
    };
    let daemon = offline::daemon(socket, alone).await?;
    let request = PlanRequest {
        model: model.and_then(By::into),
        workload: Some(Workload {
            canvas_length: arguments.canvas,
            batch_requests: arguments.requests,
            ..Default::default()
        }),
        ..(arguments.options.change())
            .or(arguments.details.change())
            .into()
    };
    let answer = daemon.optimizer().plan(request).await;
    let plan = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner()
        .plan
        .ok_or_else(|| Failure::new("the daemon's answer has no plan"))?;
    if arguments.json {
        return out.json(&plan);
    }
    for line in report::plan::lines(&plan) {
        out.line(&line)?;
    }
    Ok(())
}

/// The arguments of `sluiced plan`.
fn words(model: &By, arguments: &Plan) -> Vec<String> {
    let mut words = vec!["plan".to_owned()];
    let mut flag = |name, value| words.extend(offline::flag(name, value));
    match model {
        By::Shape(name) => flag("--shape", Some(name.clone())),
        By::Path(path) | By::Name(path) => flag("--model", Some(path.clone())),
    }
    flag(
        "--level",
        arguments.options.level.map(|level| level.to_string()),
    );
    flag(
        "--budget",
        arguments.options.budget.map(|budget| budget.to_string()),
    );
    flag(
        "--embedding",
        arguments.details.embedding.map(|place| place.to_string()),
    );
    flag(
        "--max-slowdown",
        arguments
            .details
            .max_slowdown
            .map(|factor| factor.to_string()),
    );
    flag(
        "--kv-cache-format",
        arguments.details.kv_cache_format.map(|kv| kv.to_string()),
    );
    flag(
        "--canvas",
        arguments.canvas.map(|canvas| canvas.to_string()),
    );
    flag(
        "--requests",
        arguments.requests.map(|count| count.to_string()),
    );
    if arguments.json {
        words.push("--json".into());
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command as Subcommand};

    #[test]
    fn every_flag_is_handed_on() {
        let all = [
            "sluice",
            "plan",
            "--shape",
            "llada-8b",
            "--level",
            "mild",
            "--budget",
            "4GiB",
            "--embedding",
            "host",
            "--max-slowdown",
            "2.5",
            "--canvas",
            "64",
            "--requests",
            "2",
            "--json",
        ];
        let Some(Subcommand::Plan(arguments)) = Cli::try_parse_from(all).unwrap().command else {
            panic!("plan");
        };
        assert_eq!(
            words(&By::Shape("llada-8b".into()), &arguments),
            [
                "plan",
                "--shape=llada-8b",
                "--level=mild",
                "--budget=4294967296",
                "--embedding=host",
                "--max-slowdown=2.5",
                "--canvas=64",
                "--requests=2",
                "--json"
            ]
        );
    }
}
