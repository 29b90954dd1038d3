//! `sluice plan`: the plan for a level and a budget.

use std::path::PathBuf;

use sluice_proto::v1::{PlanRequest, Workload, model_ref::By};
use sluice_report as report;

use super::{offline, paths::subject};
use crate::{
    cli::Plan,
    output::{Failure, StandardOutput},
};

/// Prints a plan of the daemon, or where none runs, of the program `sluiced`.
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
        ..arguments.options.into()
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
    let (flag, value) = match model {
        By::Shape(name) => ("--shape", name),
        By::Path(path) | By::Name(path) => ("--model", path),
    };
    let mut words = vec!["plan".to_owned(), format!("{flag}={value}")];
    let options = arguments.options.values();
    words.extend(options.map(|(name, value)| format!("--{name}={value}")));
    words.extend(offline::flag("--canvas", arguments.canvas));
    words.extend(offline::flag("--requests", arguments.requests));
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
                "--budget=4GiB",
                "--embedding=host",
                "--max-slowdown=2.5",
                "--canvas=64",
                "--requests=2",
                "--json"
            ]
        );
    }
}
