//! `sluice plan`: the plan for a level and a budget.

use std::path::PathBuf;

use sluice_proto::v1::{ModelRef, PlanRequest, Workload, model_ref::By};
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
    if arguments.all {
        return Err(offline::in_our_place(&words(&[], arguments)));
    }
    let models = models(arguments)?;
    let named = |model: &By| matches!(model, By::Name(_));
    let alone = match &models[..] {
        [] => Err(
            "start it with `sluiced`, or name a folder, a file or a --shape, which needs no daemon".to_owned(),
        ),
        models if models.iter().any(named) => Err(
            "start it with `sluiced`: it knows where models of that name lie; a path needs no daemon".to_owned(),
        ),
        models => Ok(words(models, arguments)),
    };
    let daemon = offline::daemon(socket, alone).await?;
    let mut models = models.into_iter().map(|by| ModelRef { by: Some(by) });
    let request = PlanRequest {
        model: models.next(),
        workload: Some(Workload {
            canvas_length: arguments.canvas,
            batch_requests: arguments.requests,
            ..Default::default()
        }),
        more_models: models.collect(),
        ..arguments.options.into()
    };
    let answer = daemon.optimizer().plan(request).await;
    let answer = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let lines = match (&answer.plan, arguments.json) {
        (Some(plan), true) => return out.json(plan),
        (Some(plan), false) => report::plan::lines(plan),
        (None, _) if answer.models.is_empty() => {
            return Err(Failure::new("the daemon's answer has no plan"));
        }
        (None, true) => return out.json(&answer),
        (None, false) => report::plan::together(&answer.models, answer.budget_bytes),
    };
    for line in lines {
        out.line(&line)?;
    }
    Ok(())
}

/// The models that are to be planned; none: the present one.
fn models(arguments: &Plan) -> Result<Vec<By>, Failure> {
    let given = arguments.model.iter().chain(&arguments.model_flag);
    let shapes = arguments.shape.iter().cloned().map(By::Shape);
    let models = given.map(|model| subject(model));
    shapes.map(Ok).chain(models).collect()
}

/// The arguments of `sluiced plan`.
fn words(models: &[By], arguments: &Plan) -> Vec<String> {
    let mut words = vec!["plan".to_owned()];
    if arguments.all {
        words.push("--all".into());
    }
    words.extend(models.iter().map(|model| match model {
        By::Shape(name) => format!("--shape={name}"),
        By::Path(path) | By::Name(path) => format!("--model={path}"),
    }));
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
    fn all_shapes_are_planned_instead_of_named_ones() {
        let read = |line: &[&str]| {
            let line = ["sluice", "plan", "--all"].iter().chain(line);
            Cli::try_parse_from(line)
        };
        let Some(Subcommand::Plan(arguments)) = read(&["--budget", "8GiB"]).unwrap().command else {
            panic!("plan");
        };
        assert_eq!(words(&[], &arguments), ["plan", "--all", "--budget=8GiB"]);
        for conflict in [
            &["--shape", "llada-8b"][..],
            &["some-model"],
            &["--model", "x"],
        ] {
            assert!(read(conflict).is_err(), "{conflict:?}");
        }
    }

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
            words(&[By::Shape("llada-8b".into())], &arguments),
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
