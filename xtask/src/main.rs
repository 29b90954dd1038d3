//! What people run on this repository, one module a command.

mod ci;
mod clean_root;
mod clients;
mod cluster;
mod container;
mod demo;
mod examples;
mod first_build;
mod layers;
mod manifests;
mod model;
mod outcome;
mod package;
mod packages;
mod pictures;
mod ptx;
mod smollm2;
mod soak;
mod steps;
mod system;
mod units;
mod words;

use std::process::ExitCode;

use model::Kind;

const HELP: &str = "\
Usage: cargo xtask COMMAND

  demo [PROMPT]          builds sluiced and sluice, and shows a text being written
  demo OPTIONS [-- PROMPT]
                         the same with options of `sluice generate`, such as --policy threshold:t=0.6
  model [--yardstick]    makes the demonstration model: training, judgement, model card; an hour or more
  model rwkv7            the same for a small RWKV-7, in target/model/rwkv7; about twenty minutes
  model ltm              the same for a small latent thought model with its prior, in target/model/ltm
  pictures [NAME ...]    draws the pictures in docs/pictures: the client on a terminal, with a daemon of its own
  ci [--without-tests]   runs everything that CI runs, and stops at the first failure
  soak                   runs what takes too long for that: hostile bytes, load, sanitizer, emulated processors
  examples               runs examples/ against a daemon of its own, with gRPC for Python and Node from their package indexes
  clients                runs clients of OpenAI's and Ollama's APIs against a daemon of its own, with their Python packages
  cluster                checks deploy/: manifests for Kubernetes, and clients of three daemons behind HAProxy, one of which is killed
  layers                 checks that no crate's modules import each other in a circle
  layers --picture [CRATE]
                         prints which crate imports which, or which module of a crate which other, for Mermaid
  first-build            builds what `cargo demo` does from nothing, and prints crates, CPU time and time
  package                builds for release, and makes an archive and a Debian package in target/packages
  package --programs DIR [--version V]
                         makes them of programs that are there
  clean-root             tries them in a clean root of Debian with a systemd of its own; as root, with debootstrap
  clean-root --programs DIR --suite SUITE
                         the same with programs that are there, in another release of Debian, such as bullseye
  units                  checks the files in systemd/
  words                  counts old words in help, schema and public items
  ptx [--check]          compiles the kernels for NVIDIA cards; --check compares with what is committed, and assembles
                         it for every kind of card
  ptx --print MODULE     shows the PTX of a module, such as embed, as it is committed
  smollm2                fetches a small real model, which some tests compare with

`cargo demo`, `cargo model`, `cargo pictures`, `cargo ci` and `cargo soak` are short for these.";

fn main() -> ExitCode {
    let arguments: Vec<String> = match std::env::args_os()
        .skip(1)
        .map(|argument| argument.into_string())
        .collect()
    {
        Ok(arguments) => arguments,
        Err(argument) => return misused(&format!("{} is not UTF-8", argument.display())),
    };
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["demo", prompt] if !prompt.starts_with('-') => demo::run(&[], prompt),
        ["demo", ref options @ .., "--", prompt] => demo::run(options, prompt),
        ["demo"] => demo::run(&[], demo::PROMPT),
        ["demo", option, ..] if option.starts_with('-') && !is_help(option) => {
            demo::run(&words[1..], demo::PROMPT)
        }
        ["model"] => model::run(Kind::Diffusion { yardstick: false }),
        ["model", "--yardstick"] => model::run(Kind::Diffusion { yardstick: true }),
        ["model", "rwkv7"] => model::run(Kind::Rwkv7),
        ["model", "ltm"] => model::run(Kind::LatentThought),
        ["pictures", ref names @ ..] if !names.iter().any(|name| name.starts_with('-')) => {
            pictures::run(names)
        }
        ["ci"] => ci::run(ci::Tests::Run),
        ["ci", "--without-tests"] => ci::run(ci::Tests::Leave),
        ["soak"] => soak::run(),
        ["examples"] => ci::run_examples(),
        ["clients"] => ci::run_clients(),
        ["cluster"] => ci::run_cluster(),
        ["layers"] => ci::run_layers(),
        ["layers", "--picture"] => layers::picture(None),
        ["layers", "--picture", name] if !is_help(name) => layers::picture(Some(name)),
        ["first-build"] => first_build::run(),
        ["package"] => package::run(),
        ["package", "--programs", programs] => package::run_with(programs, None),
        ["package", "--programs", programs, "--version", version] => {
            package::run_with(programs, Some(version))
        }
        ["clean-root"] => ci::run_clean_root(),
        ["clean-root", "--programs", programs, "--suite", suite] => {
            clean_root::run_with(programs, suite)
        }
        ["units"] => ci::run_units(),
        ["words"] => ci::run_words(),
        ["ptx"] => ptx::run(ptx::Mode::Write),
        ["ptx", "--check"] => ptx::run(ptx::Mode::Check),
        ["ptx", "--print", module] => ptx::print(module),
        ["smollm2"] => smollm2::run(),
        [] | ["help", ..] => help(),
        [option, ..] | [_, option] if is_help(option) => help(),
        _ => misused("unknown command or arguments"),
    }
}

fn is_help(option: &str) -> bool {
    matches!(option, "--help" | "-h")
}

fn help() -> ExitCode {
    println!("{HELP}");
    ExitCode::SUCCESS
}

fn misused(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n\n{HELP}");
    ExitCode::from(64)
}
