//! `cargo model`: the demonstration models from nothing but a seed. Killed at any time, training goes on where it was.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::system::{cargo, root};

/// Checkpoints and judgements, below the repository.
const FOLDER: &str = "target/model";

/// A kind of model.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// The one inside the daemon. With a yardstick, an autoregressive network is trained on as many steps to compare with.
    Diffusion { yardstick: bool },
    /// RWKV-7.
    Rwkv7,
    /// A latent thought model, with a learned prior.
    LatentThought,
}

/// Steps of thinking that are compared.
const THINKING: [&str; 4] = ["think 0", "think 4", "think 16", "think 64"];

/// Trains, exports, judges, and writes the card.
pub(crate) fn run(kind: Kind) -> ExitCode {
    match make(kind) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("model: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Diffusion { yardstick } => diffusion(yardstick),
        Kind::Rwkv7 => Making::begin("rwkv7")?.rwkv7(),
        Kind::LatentThought => Making::begin("ltm")?.latent_thought(),
    }
}

fn diffusion(yardstick: bool) -> io::Result<()> {
    let making = Making {
        folder: FOLDER.to_owned(),
        model: "daemon/model".to_owned(),
    };
    std::fs::create_dir_all(root().join(FOLDER))?;
    let (run, beside) = (making.path("run"), making.path("yardstick"));
    done(&mut train(&["train", "--output", &run]))?;
    if yardstick {
        let objective = ["--objective", "autoregressive"];
        done(train(&["train", "--output", &beside]).args(objective))?;
    }
    making.export()?;
    let judgement = making.judge("judge.json", &[])?;
    let curve = making.judge("curve.json", &["--curve"])?;
    let mut options = vec!["--curve", &curve];
    if yardstick {
        options.extend(["--yardstick", &beside]);
    }
    making.card(&judgement, &options)
}

/// A model on its way, with paths below the repository.
struct Making {
    folder: String,
    model: String,
}

impl Making {
    /// Trains by the recipe of this name.
    fn begin(name: &str) -> io::Result<Self> {
        let folder = format!("{FOLDER}/{name}");
        std::fs::create_dir_all(root().join(&folder))?;
        let making = Self {
            model: format!("{folder}/model"),
            folder,
        };
        let recipe = format!("tools/train/models/{name}.toml");
        let output = making.path("run");
        done(&mut train(&[
            "train", "--config", &recipe, "--output", &output,
        ]))?;
        making.export()?;
        Ok(making)
    }

    fn rwkv7(&self) -> io::Result<()> {
        let judgement = self.judge("judge.json", &["--prompts", "200"])?;
        self.card(&judgement, &["--samples", "200"])
    }

    fn latent_thought(&self) -> io::Result<()> {
        let (run, posteriors) = (self.path("run"), self.path("posteriors.safetensors"));
        let collect = ["posteriors", "--checkpoint", &run, "--output", &posteriors];
        done(train(&collect).args(["--count", "2048"]))?;
        let learn = ["prior", "--model", &self.model, "--posteriors", &posteriors];
        let size = ["--steps", "1000", "--width", "128", "--layers", "3"];
        done(train(&learn).args(size))?;
        let mut options = vec!["--prompts", "200"];
        for way in THINKING {
            options.extend(["--way", way]);
        }
        let judgement = self.judge("think.json", &options)?;
        self.card(&judgement, &["--samples", "100"])
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    fn export(&self) -> io::Result<()> {
        let run = self.path("run");
        let export = ["export", "--checkpoint", &run, "--output", &self.model];
        done(&mut train(&export))
    }

    /// Where the judgement is.
    fn judge(&self, name: &str, options: &[&str]) -> io::Result<String> {
        let path = self.path(name);
        let mut judge = train(&["judge", "--model", &self.model, "--json"]);
        into_file(judge.args(options), &root().join(&path))?;
        Ok(path)
    }

    fn card(&self, judgement: &str, options: &[&str]) -> io::Result<()> {
        let run = self.path("run");
        let card = ["card", "--checkpoint", &run, "--model", &self.model];
        done(train(&card).args(["--judgement", judgement]).args(options))
    }
}

/// `sluice-train` with these arguments, in the repository's root.
fn train(arguments: &[&str]) -> Command {
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "-p", "sluice-train", "--"])
        .args(arguments)
        .current_dir(root());
    command
}

fn into_file(command: &mut Command, path: &Path) -> io::Result<()> {
    done(command.stdout(Stdio::from(File::create(path)?)))
}

fn done(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "sluice-train ended with {status}"
        )))
    }
}
