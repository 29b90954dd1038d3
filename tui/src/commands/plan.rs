//! `sluice plan`: what a level and a budget would lead to.

use std::{
    env, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use sluice_proto::{
    plan_table,
    v1::{PlanRequest, plan_request::Model},
};
use sluice_shared::exit;

use super::load::absolute;
use crate::{
    cli::Plan,
    connection::Daemon,
    output::{Failure, Out},
};

/// Prints a plan: the daemon's, or where none runs that of the program `sluiced`.
pub(super) async fn run(socket: PathBuf, arguments: &Plan, out: &mut Out) -> Result<(), Failure> {
    let model = match (&arguments.model, &arguments.preset) {
        (Some(dir), _) => Some(Model::Path(absolute(dir)?)),
        (None, preset) => preset.clone().map(Model::Preset),
    };
    let daemon = match Daemon::connect(socket).await {
        Ok(daemon) => daemon,
        Err(failure) if failure.code() == exit::UNREACHABLE => {
            return match model {
                Some(model) => Err(in_our_place(&model, arguments)),
                None => Err(failure.with_hint(
                    "start it with `sluiced`, or name a model with --model or --preset, which needs no daemon",
                )),
            };
        }
        Err(failure) => return Err(failure),
    };
    let request = PlanRequest {
        model,
        level: arguments.wish.level.map(|level| level.name().to_owned()),
        budget_bytes: arguments.wish.budget,
        canvas: arguments.canvas,
        block: None,
        requests: arguments.requests,
        embedding: arguments.knobs.embedding.map(|place| place.to_string()),
        auto_factor: arguments.knobs.auto_factor,
        kv: arguments.knobs.kv.map(|kv| kv.to_string()),
    };
    let answer = daemon.optimizer().plan(request).await;
    let plan = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner()
        .plan
        .ok_or_else(|| Failure::new("the daemon's answer has no plan"))?;
    if arguments.json {
        return out.line(&plan_table::json(&plan).to_string());
    }
    for line in plan_table::lines(&plan) {
        out.line(&line)?;
    }
    Ok(())
}

/// Lets `sluiced` take the place of this process, so that its output, exit code and signals are its own. Returns only
/// when that failed.
fn in_our_place(model: &Model, arguments: &Plan) -> Failure {
    let program = sibling(env::current_exe());
    let error = Command::new(&program).args(words(model, arguments)).exec();
    let shown = program.display();
    let failure = match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format!("no daemon runs, and there is no {shown}")),
        _ => Failure::new(format!(
            "no daemon runs, and {shown} can't be started: {error}"
        )),
    };
    failure.with_hint(
        "start the daemon with `sluiced`, or put that program beside `sluice` or on the PATH",
    )
}

/// `sluiced` beside this program, else the one on the `PATH`.
fn sibling(own: io::Result<PathBuf>) -> PathBuf {
    let beside = own.map(|own| own.with_file_name("sluiced"));
    match beside {
        Ok(path) if path.is_file() => path,
        _ => Path::new("sluiced").to_owned(),
    }
}

/// The arguments of `sluiced plan`.
fn words(model: &Model, arguments: &Plan) -> Vec<String> {
    let mut words = vec!["plan".to_owned()];
    let mut flag = |name: &str, value: Option<String>| {
        // One word each, so that a value can't be taken for a flag.
        words.extend(value.map(|value| format!("{name}={value}")));
    };
    match model {
        Model::Preset(name) => flag("--preset", Some(name.clone())),
        Model::Path(path) => flag("--model", Some(path.clone())),
    }
    flag(
        "--level",
        arguments.wish.level.map(|level| level.to_string()),
    );
    flag(
        "--budget",
        arguments.wish.budget.map(|bytes| bytes.to_string()),
    );
    flag(
        "--embedding",
        arguments.knobs.embedding.map(|place| place.to_string()),
    );
    flag(
        "--auto-factor",
        arguments.knobs.auto_factor.map(|factor| factor.to_string()),
    );
    flag("--kv", arguments.knobs.kv.map(|kv| kv.to_string()));
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
            "--preset",
            "llada-8b",
            "--level",
            "mild",
            "--budget",
            "4GiB",
            "--embedding",
            "host",
            "--auto-factor",
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
            words(&Model::Preset("llada-8b".into()), &arguments),
            [
                "plan",
                "--preset=llada-8b",
                "--level=mild",
                "--budget=4294967296",
                "--embedding=host",
                "--auto-factor=2.5",
                "--canvas=64",
                "--requests=2",
                "--json"
            ]
        );
    }

    #[test]
    fn without_a_program_beside_this_one_the_path_is_searched() {
        let folder = tempfile::tempdir().unwrap();
        let own = || Ok(folder.path().join("sluice"));
        assert_eq!(sibling(own()), Path::new("sluiced"));
        std::fs::write(folder.path().join("sluiced"), "").unwrap();
        assert_eq!(sibling(own()), folder.path().join("sluiced"));
        assert_eq!(sibling(Err(io::Error::other("x"))), Path::new("sluiced"));
    }
}
