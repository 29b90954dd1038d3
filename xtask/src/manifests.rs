//! The manifests in `deploy/kubernetes`, checked against the schemas of Kubernetes, which a Python package brings along.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::outcome::Outcome;
use crate::packages::{Trouble, finish, outcome, python_packages, told};
use crate::system::root;

const FOLDER: &str = "deploy/kubernetes";
/// Where the package goes, below the repository.
const VENV: &str = "target/kubernetes-validate";
/// The oldest version of Kubernetes that is supported, and the newest that the package knows.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];
/// Kustomize reads it, not Kubernetes.
const KUSTOMIZATION: &str = "kustomization.yaml";

pub(crate) fn check() -> io::Result<Outcome> {
    let mut manifests = Vec::new();
    for entry in fs::read_dir(root().join(FOLDER))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "yaml") && !path.ends_with(KUSTOMIZATION) {
            manifests.push(path);
        }
    }
    Ok(outcome([validate(&manifests)].into_iter()))
}

fn validate(manifests: &[PathBuf]) -> Result<(), Trouble> {
    let python = python_packages(&root().join(VENV), FOLDER, "kubernetes-validate")?;
    for version in VERSIONS {
        let mut command = Command::new(python.with_file_name("kubernetes-validate"));
        command.args(["--strict", "-k", version]).args(manifests);
        let output = finish(&mut command)?;
        if !output.status.success() {
            return Err(Trouble::Failed(told("kubernetes-validate", &output)));
        }
        println!(
            "{} files are valid in Kubernetes {version}",
            manifests.len()
        );
    }
    Ok(())
}
