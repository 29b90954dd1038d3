//! The licences of the crates that are linked into the programs, which ask to be passed on with them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::succeeded;
use crate::system::{cargo, root};

/// Each crate with its licence, and after them the texts, each once.
pub(super) fn notices() -> io::Result<String> {
    let mut list =
        String::from("Crates that are linked into sluice and sluiced, and their licences.\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let folders = sources()?;
    for (name, version, licence) in crates()? {
        list += &format!("{name} {version}: {licence}\n");
        let folder = folders
            .iter()
            .map(|folder| folder.join(format!("{name}-{version}")));
        let Some(folder) = folder.into_iter().find(|folder| folder.is_dir()) else {
            continue;
        };
        for text in texts_in(&folder)? {
            texts.entry(text).or_default().push(name.clone());
        }
        // Of what a crate brings besides, as hayro-font does fonts.
        let assets = folder.join("assets");
        if assets.is_dir() {
            for text in texts_in(&assets)? {
                texts.entry(text).or_default().push(name.clone());
            }
        }
    }
    for (text, names) in texts {
        list += &format!(
            "\n{}\n{}\n\n{}\n",
            "-".repeat(80),
            names.join(", "),
            text.trim_end()
        );
    }
    Ok(list)
}

/// Name, version and licence of each crate that is not this project's.
fn crates() -> io::Result<Vec<(String, String, String)>> {
    let tree = cargo()
        .args([
            "tree",
            "--locked",
            "-p",
            "sluice-daemon",
            "-p",
            "sluice-tui",
            "--all-features",
        ])
        .args([
            "--edges", "normal", "--prefix", "none", "--format", "{p}|{l}",
        ])
        .current_dir(root())
        .output()?;
    succeeded("cargo tree", tree.status.success())?;
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&tree.stdout).lines() {
        // Crates of this project have a path behind the version.
        if let Some((package, licence)) = line.trim_end_matches(" (*)").split_once('|')
            && let [name, version] = package
                .trim_end_matches(" (proc-macro)")
                .split(' ')
                .collect::<Vec<_>>()[..]
        {
            let version = version.trim_start_matches('v').to_owned();
            found.push((name.to_owned(), version, licence.to_owned()));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Folders in which Cargo keeps the sources of crates.
fn sources() -> io::Result<Vec<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let sources = home.unwrap_or_default().join("registry/src");
    let entries = fs::read_dir(sources)?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Texts of licences and notices in a crate's folder.
fn texts_in(folder: &Path) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
        if entry.file_type()?.is_file() && is_licence.iter().any(|begin| name.starts_with(begin)) {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).into_owned());
        }
    }
    Ok(texts)
}
