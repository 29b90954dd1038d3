//! `sluiced check`: whether a device computes what reference implementations do. Fixtures are small checkpoints with expected
//! logits and tokens; each case is computed anew and compared.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Value, json};
use sluice_checkpoint::CheckpointError;
use sluice_engine::{
    EngineError, EngineOptions,
    check::{
        Answer, F32_TOLERANCE, FixtureLogits, Sampled, fixture_forwards, fixture_samples, resident,
    },
};
use sluice_formats::DType;
use sluice_ops::{Ops, OpsError, device, ledger::Ledger};
use sluice_shared::{exit, level::Level};

use crate::{
    config::Device,
    offline::{SystemError, print},
};

/// What makes a folder a fixture.
const EXPECTED: &str = "expected.json";

/// What `sluiced check` was asked for.
#[derive(Debug, Args)]
pub struct Checking {
    /// Folder of a fixture, or of several: a checkpoint, expected.json and expected.safetensors each
    #[arg(long, value_name = "DIR")]
    fixtures: PathBuf,

    /// Where to compute: cpu or cuda:N
    #[arg(long, value_name = "DEVICE", value_parser = device, default_value_t = Device::Cpu)]
    device: Device,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn device(text: &str) -> Result<Device, String> {
    match text.parse()? {
        Device::Auto => Err("a check is of one device: cpu or cuda:N".to_owned()),
        named => Ok(named),
    }
}

/// Why nothing can be checked.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot read {path}: {cause}", path = path.display())]
    Folder { path: PathBuf, cause: io::Error },
    #[error("{path} is no fixture and holds none: a folder with a checkpoint and {EXPECTED} is", path = path.display())]
    NoFixtures { path: PathBuf },
    #[error(transparent)]
    Ops(#[from] OpsError),
    #[error(transparent)]
    System(#[from] SystemError),
}

/// How a case came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// As the reference has it.
    Equal,
    /// Something differs: logits, tokens or passes.
    Differs,
    /// A sampler or a model that isn't known here.
    Unknown,
    /// It could not be computed.
    Failed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Equal => "equal",
            Self::Differs => "differs",
            Self::Unknown => "unknown",
            Self::Failed => "failed",
        })
    }
}

/// A case of a fixture, or the fixture itself where none of its cases could be computed.
#[derive(Debug)]
struct Case {
    fixture: String,
    /// `logits of NAME`, `tokens of NAME`, or `all`.
    what: String,
    verdict: Verdict,
    /// How it differs, or why it is unknown.
    detail: String,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            fixture,
            what,
            verdict,
            detail,
        } = self;
        write!(f, "{verdict:<8} {fixture}: {what}: {detail}")
    }
}

/// Checks, and returns the exit code: 0 where something was compared, and all that was is equal.
#[must_use]
pub fn run(options: &Checking) -> u8 {
    match options.check() {
        Ok(true) => exit::OK,
        Ok(false) => exit::FAILURE,
        Err(failure) => {
            eprintln!("sluiced: {failure}");
            if let Failure::Ops(OpsError::NoGpu(unavailable)) = &failure {
                eprintln!("hint: {}", unavailable.hint());
            }
            exit::FAILURE
        }
    }
}

impl Checking {
    fn check(&self) -> Result<bool, Failure> {
        let fixtures = fixtures(&self.fixtures)?;
        let opened = device::Device::open(self.device.choice(), Some(DType::F32), 0)?;
        let mut cases = Vec::new();
        for folder in &fixtures {
            for case in self.fixture(folder, &opened.device) {
                if !self.json {
                    // As they are found: a large folder takes a while.
                    print(&format!("{case}\n"))?;
                }
                cases.push(case);
            }
        }
        let count = |verdict| cases.iter().filter(|case| case.verdict == verdict).count();
        let [equal, differs, unknown, failed] = [
            Verdict::Equal,
            Verdict::Differs,
            Verdict::Unknown,
            Verdict::Failed,
        ]
        .map(count);
        print(&match self.json {
            true => {
                let report = json!({
                    "device": self.device.to_string(),
                    "equal": equal,
                    "differs": differs,
                    "unknown": unknown,
                    "failed": failed,
                    "cases": cases.iter().map(Case::json).collect::<Vec<_>>(),
                });
                format!("{report:#}\n")
            }
            false => {
                let device = self.device;
                format!(
                    "on {device}: {equal} equal, {differs} differ, {unknown} unknown, {failed} failed\n"
                )
            }
        })?;
        if equal + differs + failed == 0 {
            eprintln!("sluiced: nothing was compared, since nothing in it is known");
        }
        Ok(equal > 0 && differs + failed == 0)
    }

    /// All cases of a fixture.
    fn fixture(&self, folder: &Path, device: &device::Device) -> Vec<Case> {
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        let name = name.to_string_lossy().into_owned();
        let case = |what: String, (verdict, detail): (Verdict, String)| Case {
            fixture: name.clone(),
            what,
            verdict,
            detail,
        };
        if !folder.join("config.json").is_file() {
            let detail = "there is no checkpoint beside what is expected of it".to_owned();
            return vec![case("all".to_owned(), (Verdict::Unknown, detail))];
        }
        let forwards = Ops::new(device.clone(), Ledger::default())
            .map_err(EngineError::from)
            .and_then(|ops| {
                let profile = device.profile();
                fixture_forwards(folder, &ops, &|shape, sources| {
                    resident(profile, shape, sources, Level::Off).map(Some)
                })
            });
        let forwards = match forwards {
            Ok(forwards) => forwards,
            Err(error) => return vec![case("all".to_owned(), of_error(&error))],
        };
        let logits = |forward: FixtureLogits| {
            case(format!("logits of {}", forward.name), of_logits(&forward))
        };
        let mut cases: Vec<_> = forwards.into_iter().map(logits).collect();
        let options = EngineOptions {
            device: self.device.choice(),
            compute_dtype: Some(DType::F32),
            ..EngineOptions::default()
        };
        let tokens = |sampled: Sampled| {
            let what = format!("tokens of {}", sampled.name);
            case(what, of_tokens(&sampled))
        };
        match fixture_samples(folder, options) {
            Ok(sampled) => cases.extend(sampled.into_iter().map(tokens)),
            Err(error) => cases.push(case("tokens".to_owned(), of_error(&error))),
        }
        cases
    }
}

impl Case {
    fn json(&self) -> Value {
        json!({
            "fixture": self.fixture,
            "what": self.what,
            "verdict": self.verdict.to_string(),
            "detail": self.detail,
        })
    }
}

/// The folder itself, or the fixtures in it, by name.
fn fixtures(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |cause| Failure::Folder {
        path: folder.to_owned(),
        cause,
    };
    let is_fixture = |folder: &Path| folder.join(EXPECTED).is_file();
    let entries = fs::read_dir(folder).map_err(unreadable)?;
    if is_fixture(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        if is_fixture(&path) {
            found.push(path);
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(Failure::NoFixtures {
            path: folder.to_owned(),
        }),
        false => Ok(found),
    }
}

/// What isn't known here is no failure: fixtures may be newer than this program.
fn of_error(error: &EngineError) -> (Verdict, String) {
    let verdict = match error {
        EngineError::Checkpoint(
            CheckpointError::UnknownArchitecture { .. } | CheckpointError::Unsupported { .. },
        ) => Verdict::Unknown,
        _ => Verdict::Failed,
    };
    (verdict, error.to_string())
}

fn of_logits(forward: &FixtureLogits) -> (Verdict, String) {
    let FixtureLogits {
        vocabulary,
        reference,
        found,
        ..
    } = forward;
    if reference.len() != found.len() {
        let detail = format!(
            "{} here, the reference has {}",
            found.len(),
            reference.len()
        );
        return (Verdict::Differs, detail);
    }
    let pairs = reference.iter().zip(found);
    let differences = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    // What is no number is the largest.
    let (index, largest) = differences
        .enumerate()
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .unwrap_or((0, 0.0));
    match largest <= F32_TOLERANCE {
        true => (Verdict::Equal, format!("largest difference {largest:.1e}")),
        false => {
            let (row, token) = (index / vocabulary, index % vocabulary);
            let (here, there) = (found[index], reference[index]);
            let detail = format!(
                "largest difference {largest:.1e}, {F32_TOLERANCE:.1e} is allowed: row {row}, token {token}: {here} \
                 here, {there} by the reference"
            );
            (Verdict::Differs, detail)
        }
    }
}

fn of_tokens(sampled: &Sampled) -> (Verdict, String) {
    let Some(answers) = &sampled.answers else {
        let algorithm = sampled.algorithm.as_deref().unwrap_or("going on");
        let detail = format!("the algorithm {algorithm:?}, or its parameters, are unknown here");
        return (Verdict::Unknown, detail);
    };
    let differs = |(prompt, answer)| Some(format!("prompt {prompt}, {}", difference(answer)?));
    match answers.iter().enumerate().find_map(differs) {
        Some(detail) => (Verdict::Differs, detail),
        None => {
            let tokens: usize = answers.iter().map(|answer| answer.found.len()).sum();
            (Verdict::Equal, format!("{tokens} tokens"))
        }
    }
}

/// Where an answer first differs, if it does.
fn difference(answer: &Answer) -> Option<String> {
    if let Some(place) = answer.first_difference() {
        let token = |tokens: &[u32]| {
            (tokens.get(place)).map_or("none".to_owned(), |token| token.to_string())
        };
        let (here, there) = (token(&answer.found), token(&answer.reference));
        return Some(format!(
            "token {place}: {here} here, {there} by the reference"
        ));
    }
    let [reference, found] = answer.passes?;
    Some(format!("{found} passes here, {reference} by the reference"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(reference: &[f32], found: &[f32]) -> FixtureLogits {
        FixtureLogits {
            name: "case".to_owned(),
            vocabulary: 2,
            reference: reference.to_owned(),
            found: found.to_owned(),
        }
    }

    #[test]
    fn logits_differ_beyond_the_tolerance_where_they_differ_most() {
        let equal = forward(&[1.0, 2.0], &[1.0, 2.0001]);
        assert_eq!(of_logits(&equal).0, Verdict::Equal);
        let far = forward(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.1, 3.5, 4.0]);
        let (verdict, detail) = of_logits(&far);
        assert_eq!(verdict, Verdict::Differs);
        assert!(detail.contains("row 1, token 0: 3.5 here, 3"), "{detail}");
        let none = forward(&[1.0, 2.0, 3.0, 4.0], &[f32::NAN, 2.0, 9.0, 4.0]);
        let (verdict, detail) = of_logits(&none);
        assert_eq!(verdict, Verdict::Differs);
        assert!(detail.contains("row 0, token 0: NaN here"), "{detail}");
        assert_eq!(of_logits(&forward(&[1.0], &[])).0, Verdict::Differs);
    }

    #[test]
    fn tokens_differ_where_they_first_do_and_passes_count() {
        let answer = |reference: &[u32], found: &[u32]| Answer {
            reference: reference.to_owned(),
            found: found.to_owned(),
            passes: None,
        };
        let said = |answer: Answer| difference(&answer);
        assert_eq!(said(answer(&[1, 2], &[1, 2])), None);
        let words = said(answer(&[1, 2, 3], &[1, 5, 6])).unwrap();
        assert_eq!(words, "token 1: 5 here, 2 by the reference");
        let words = said(answer(&[1, 2, 3], &[1, 2])).unwrap();
        assert_eq!(words, "token 2: none here, 3 by the reference");
        let passes = Answer {
            passes: Some([8, 9]),
            ..answer(&[1], &[1])
        };
        let words = said(passes).unwrap();
        assert_eq!(words, "9 passes here, 8 by the reference");
    }

    #[test]
    fn a_check_is_of_a_device_that_is_named() {
        assert_eq!(device("cuda:1"), Ok(Device::Cuda(1)));
        assert_eq!(device("cpu"), Ok(Device::Cpu));
        assert!(device("auto").is_err());
    }
}
