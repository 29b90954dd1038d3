//! Usage errors for flags that have another name today.

use std::ffi::OsString;

use clap::{
    Command, Error,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};
use sluice_shared::renames;

/// Adds the new name as a tip to the error about an unknown flag, if the flag was renamed. `arguments` are those of the
/// program, its name first.
#[must_use]
pub fn with_tip(mut error: Error, program: &Command, arguments: &[OsString]) -> Error {
    let Some(tip) = tip(&error, program, arguments) else {
        return error;
    };
    // Clap's guess by likeness would contradict the tip.
    error.remove(ContextKind::SuggestedArg);
    let tips = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
    error.insert(ContextKind::Suggested, tips);
    error
}

fn tip(error: &Error, program: &Command, arguments: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let ContextValue::String(flag) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    // The subcommand decides: an old name such as `--cache` became different flags in different commands.
    let mut words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let command = words
        .find_map(|word| program.find_subcommand(word))
        .unwrap_or(program);
    let has = |name: &str| {
        let mut flags = command.get_arguments().filter_map(|flag| flag.get_long());
        flags.any(|flag| flag == name)
    };
    let new = renames::flag(flag.strip_prefix("--")?, has)?;
    Some(format!("'{flag}' is now '--{new}'"))
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn program() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name);
        Command::new("sluice")
            .arg(flag("weight-cache"))
            .subcommand(Command::new("generate").arg(flag("preset")))
            .subcommand(Command::new("plan").arg(flag("shape")))
            .subcommand(Command::new("status"))
    }

    /// What is said of a wrong line.
    fn error(line: &[&str]) -> String {
        let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
        let error = program().try_get_matches_from(&arguments);
        let error = error.expect_err("the line is wrong");
        with_tip(error, &program(), &arguments).to_string()
    }

    #[test]
    fn an_old_flag_is_answered_with_the_new_one_of_its_command() {
        for (line, tip) in [
            (
                ["sluice", "generate", "--dial=fast"],
                "'--dial' is now '--preset'",
            ),
            (
                ["sluice", "plan", "--preset"],
                "'--preset' is now '--shape'",
            ),
            (
                ["sluice", "--cache", "x"],
                "'--cache' is now '--weight-cache'",
            ),
        ] {
            let error = error(&line);
            let tips = error.matches("tip:").count();
            assert!(error.contains(&format!("tip: {tip}\n")), "{error}");
            assert_eq!(tips, 1, "{error}");
        }
    }

    #[test]
    fn other_unknown_flags_keep_what_clap_says_of_them() {
        let error_of_status = error(&["sluice", "status", "--dial"]);
        assert!(!error_of_status.contains("is now"), "{error_of_status}");
        let similar = error(&["sluice", "generate", "--prest"]);
        assert!(similar.contains("'--preset'"), "{similar}");
    }
}
