//! The settings as flags of `sluiced`.

use std::ffi::OsString;

use clap::{
    Arg, ArgMatches, Args, Command, FromArgMatches,
    builder::{BoolValueParser, OsStringValueParser, StringValueParser, TypedValueParser},
};

use super::{
    layers::SettingTexts,
    row::{SettingRow, ValueForm},
    table::ROWS,
};

/// What the command line says of the settings.
#[derive(Debug, Clone, Default)]
pub struct Flags(SettingTexts);

impl Flags {
    pub(super) fn texts(&self) -> &SettingTexts {
        &self.0
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |row: &SettingRow| matches.get_one::<OsString>(row.key).cloned();
        let texts = ROWS.iter().filter_map(|row| Some((row.key, text(row)?)));
        Ok(Self(texts.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        command.args(ROWS.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(row: &'static SettingRow) -> Arg {
    let (default, variable) = (row.default, row.variable);
    let help = format!("{} [default: {default}] [env: {variable}]", row.summary());
    let arg = Arg::new(row.key)
        .long(row.flag.trim_start_matches('-'))
        .value_name(row.value_name)
        .help(help);
    match row.form {
        ValueForm::Path => arg.value_parser(OsStringValueParser::new()),
        // What begins like a negative number is a wrong value, not an unknown flag.
        ValueForm::Text | ValueForm::Number => {
            arg.allow_negative_numbers(true)
                .value_parser(StringValueParser::new().try_map(|text| {
                    let text = OsString::from(text);
                    (row.check)(&text).map(|()| text)
                }))
        }
        ValueForm::Boolean => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(BoolValueParser::new().map(|value| OsString::from(value.to_string()))),
    }
}
