//! A configuration file: each key is the name of a flag.

use std::{ffi::OsString, fs, path::Path};

use anyhow::{Context, Result, bail};
use clap::Command;
use toml::{Table, Value};

/// The flags that a file stands for.
pub(super) fn arguments(path: &Path, command: &Command) -> Result<Vec<OsString>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let table: Table = text
        .parse()
        .with_context(|| format!("understand {}", path.display()))?;
    let known = |key: &str| {
        let mut flags = command.get_arguments().filter_map(|flag| flag.get_long());
        key != "config" && flags.any(|flag| flag == key)
    };
    let arguments = table.into_iter().map(|(key, value)| {
        if !known(&key) {
            bail!("{} has an unknown key: {key}", path.display());
        }
        let value = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            other => bail!(
                "{}: {key} must be a text or a number, not of type {}",
                path.display(),
                other.type_str()
            ),
        };
        Ok(OsString::from(format!("--{key}={value}")))
    });
    arguments.collect()
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn read(text: &str) -> Result<Vec<OsString>> {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("run.toml");
        fs::write(&path, text).expect("write");
        let flags = ["config", "steps", "rate", "output"].map(|name| Arg::new(name).long(name));
        arguments(&path, &Command::new("train").args(flags))
    }

    #[test]
    fn keys_are_flags_and_others_are_refused_by_name() {
        let found = read("steps = 30\nrate = -0.5\noutput = \"run\"\n").expect("read");
        let mut found: Vec<_> = found.iter().map(|flag| flag.to_string_lossy()).collect();
        found.sort_unstable();
        assert_eq!(found, ["--output=run", "--rate=-0.5", "--steps=30"]);
        for (text, complaint) in [
            ("stepps = 3", "unknown key: stepps"),
            ("config = \"other\"", "unknown key: config"),
            ("steps = [3]", "must be a text or a number"),
            ("steps = ", "understand"),
        ] {
            let error = format!("{:#}", read(text).expect_err("refused"));
            assert!(error.contains(complaint), "{error}");
        }
    }
}
