//! Options that `/set` changes: the flags of `sluice chat`, with their names, rules and errors.

use clap::{ArgAction, CommandFactory, Parser};
use sluice_proto::v1::GenerateRequest;
use sluice_shared::renames;

use crate::cli::AnswerArgs as Flags;

/// The flags as a command line of their own.
#[derive(Debug, Clone, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

/// Flags of the command line, and options set since.
#[derive(Debug, Default)]
pub(super) struct ChatChoices {
    base: Flags,
    /// Values by key, in the order in which they were set.
    set: Vec<(String, String)>,
    now: Flags,
}

impl ChatChoices {
    pub(super) fn new(base: Flags) -> Self {
        Self {
            now: base.clone(),
            base,
            set: Vec::new(),
        }
    }

    pub(super) fn apply(&self, request: &mut GenerateRequest) {
        self.now.apply(request);
    }

    /// The collection that takes what is remembered.
    pub(super) fn remembers_in(&self) -> String {
        self.now.memory.remembers_in()
    }

    /// Sets a key. Without a value, or with `default`, it returns to the command line's. Returns a notice if the key was renamed.
    pub(super) fn set(&mut self, key: &str, value: Option<&str>) -> Result<Option<String>, String> {
        let mut key = key.trim_start_matches('-').replace('_', "-");
        let command = Line::command();
        let known: Vec<_> = command
            .get_arguments()
            .filter_map(|flag| flag.get_long())
            .collect();
        let mut notice = None;
        if let Some(new) = renames::flag(&key, |name| known.contains(&name)) {
            notice = Some(format!("{key} is now {new}"));
            key = new.to_owned();
        }
        if !known.contains(&key.as_str()) {
            return Err(format!(
                "unknown setting '{key}'; known are {}",
                known.join(", ")
            ));
        }
        let mut set = self.set.clone();
        set.retain(|(known, _)| *known != key);
        match value {
            None | Some("default") => {}
            Some(value) => set.push((key, value.to_owned())),
        }
        self.now = resolve(&self.base, &set)?;
        self.set = set;
        Ok(notice)
    }

    /// The options that were set, one per line.
    pub(super) fn lines(&self) -> Vec<String> {
        let set = self.set.iter();
        set.map(|(key, value)| format!("{key} {value}")).collect()
    }
}

/// The flags with the options that were set in their place.
fn resolve(base: &Flags, set: &[(String, String)]) -> Result<Flags, String> {
    let command = Line::command();
    let mut words = Vec::new();
    for (key, value) in set {
        let flag = command
            .get_arguments()
            .find(|flag| flag.get_long() == Some(key));
        let is_switch = flag.is_some_and(|flag| matches!(flag.get_action(), ArgAction::SetTrue));
        match (is_switch, value.as_str()) {
            (false, _) => words.push(format!("--{key}={value}")),
            (true, "on" | "true" | "yes") => words.push(format!("--{key}")),
            (true, other) => return Err(format!("{key} is on or default, not '{other}'")),
        }
    }
    let mut line = Line {
        flags: base.clone(),
    };
    line.try_update_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })?;
    // The parser does not tell a missing switch from one that is off, so a switch of the command line is kept by hand.
    line.flags.decoding.details.greedy |= base.decoding.details.greedy;
    match line.flags.decoding.has_both_kinds() {
        true => Err("stop cannot be combined with options of masked diffusion models".to_owned()),
        false => Ok(line.flags),
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::SamplingOptions;

    use super::*;

    fn request(choices: &ChatChoices) -> GenerateRequest {
        let mut request = GenerateRequest::default();
        choices.apply(&mut request);
        request
    }

    fn sampling(request: &GenerateRequest) -> SamplingOptions {
        request.sampling.unwrap_or_default()
    }

    #[test]
    fn options_of_both_kinds_of_models_are_refused() {
        let mut base = Flags::default();
        base.decoding.details.stop = vec!["END".to_owned()];
        let mut choices = ChatChoices::new(base);
        let problem = choices.set("preset", Some("fast")).unwrap_err();
        assert!(problem.contains("stop"), "{problem}");
        assert!(choices.lines().is_empty());
    }

    #[test]
    fn what_is_set_takes_the_place_of_the_flags_until_it_is_dropped() {
        let base = Flags {
            length: Some(64),
            ..Flags::default()
        };
        let mut choices = ChatChoices::new(base);
        choices.set("temperature", Some("0.5")).unwrap();
        choices.set("length", Some("8")).unwrap();
        choices.set("top_k", Some("40")).unwrap();
        let asked = request(&choices);
        assert_eq!(
            (
                asked.length,
                sampling(&asked).temperature,
                sampling(&asked).top_k
            ),
            (Some(8), Some(0.5), Some(40))
        );
        assert_eq!(choices.lines(), ["temperature 0.5", "length 8", "top-k 40"]);
        choices.set("length", None).unwrap();
        choices.set("temperature", Some("default")).unwrap();
        let asked = request(&choices);
        assert_eq!(
            (
                asked.length,
                sampling(&asked).temperature,
                sampling(&asked).top_k
            ),
            (Some(64), None, Some(40))
        );
    }

    #[test]
    fn steps_of_thinking_are_set_and_dropped() {
        let mut base = Flags::default();
        base.decoding.details.think = Some(8);
        let mut choices = ChatChoices::new(base);
        let steps = |choices: &ChatChoices| request(choices).thinking.and_then(|t| t.steps);
        assert_eq!(steps(&choices), Some(8));
        choices.set("think", Some("0")).unwrap();
        assert_eq!(steps(&choices), Some(0));
        choices.set("think", Some("default")).unwrap();
        assert_eq!(steps(&choices), Some(8));
        assert!(choices.set("think", Some("deeply")).is_err());
    }

    #[test]
    fn memory_is_switched_on_and_off() {
        let mut base = Flags::default();
        base.memory.memory_collection = vec!["notes".to_owned()];
        let mut choices = ChatChoices::new(base);
        let tokens =
            |choices: &ChatChoices| request(choices).memory.map(|memory| memory.max_tokens);
        assert_eq!(tokens(&choices), Some(None));
        choices.set("memory", Some("64")).unwrap();
        assert_eq!(tokens(&choices), Some(Some(64)));
        choices.set("memory", Some("0")).unwrap();
        assert_eq!(tokens(&choices), None);
        assert!(choices.set("memory", Some("much")).is_err());
        assert_eq!(choices.remembers_in(), "notes");
        choices.set("memory-collection", Some("papers")).unwrap();
        assert_eq!(choices.remembers_in(), "papers");
    }

    #[test]
    fn a_switch_is_set_and_stays_as_the_command_line_had_it() {
        let mut choices = ChatChoices::default();
        choices.set("greedy", Some("on")).unwrap();
        assert!(sampling(&request(&choices)).greedy);
        assert!(choices.set("greedy", Some("perhaps")).is_err());
        choices.set("greedy", None).unwrap();
        assert!(!sampling(&request(&choices)).greedy);
        let mut base = Flags::default();
        base.decoding.details.greedy = true;
        let mut choices = ChatChoices::new(base);
        choices.set("length", Some("8")).unwrap();
        assert!(sampling(&request(&choices)).greedy);
    }

    #[test]
    fn an_old_key_sets_the_new_one_and_says_so() {
        let mut choices = ChatChoices::default();
        let notice = choices.set("dial", Some("fast")).unwrap();
        assert_eq!(notice.as_deref(), Some("dial is now preset"));
        let notice = choices.set("window", Some("64")).unwrap();
        assert_eq!(notice.as_deref(), Some("window is now suffix-window"));
        assert_eq!(choices.set("preset", Some("quality")), Ok(None));
        assert_eq!(choices.lines(), ["suffix-window 64", "preset quality"]);
    }

    #[test]
    fn what_is_wrong_is_told_and_changes_nothing() {
        let mut choices = ChatChoices::default();
        let problem = choices.set("colour", Some("red")).unwrap_err();
        assert!(
            problem.contains("'colour'") && problem.contains("temperature"),
            "{problem}"
        );
        let problem = choices.set("temperature", Some("hot")).unwrap_err();
        assert!(
            problem.contains("'hot'") && !problem.contains('\n'),
            "{problem}"
        );
        let problem = choices.set("policy", Some("best")).unwrap_err();
        assert!(problem.contains("known are"), "{problem}");
        assert_eq!(request(&choices), GenerateRequest::default());
        assert!(choices.lines().is_empty());
    }
}
