//! Names that flags, configuration keys and variables had until November 2026, and their present names. Whoever uses an
//! old name is told the new one; docs/renames.md lists both for people.

/// Settings of the daemon, as flags without dashes; [`key`] and [`variables`] give their other spellings.
const SETTINGS: &[(&str, &str)] = &[
    ("auto-factor", "max-slowdown"),
    ("kv", "kv-cache-format"),
    ("dial", "preset"),
    ("compute", "compute-dtype"),
    ("read-limit", "disk-read-limit"),
    ("pin-limit", "pinned-memory-limit"),
    ("cache", "weight-cache"),
    ("cache-limit", "weight-cache-limit"),
];

/// Flags of the client and of both programs' subcommands, besides those that are named like a setting.
const FLAGS: &[(&str, &str)] = &[
    ("cache", "kv-cache"),
    ("window", "suffix-window"),
    ("grow", "canvas-growth"),
    ("all-dials", "all-presets"),
    ("preset", "shape"),
    ("width", "hidden-size"),
    ("mlp-width", "intermediate-size"),
    ("heads", "attention-heads"),
    ("vocabulary", "vocab-size"),
    ("context", "context-length"),
    ("format", "dtype"),
];

/// The new name of a flag, both without dashes. Old names such as `cache` became different flags in different commands, so
/// the new one must be among those that the command `has`.
pub fn flag(old: &str, has: impl Fn(&str) -> bool) -> Option<&'static str> {
    let mut rows = FLAGS.iter().chain(SETTINGS);
    let row = rows.find(|(name, new)| *name == old && has(new))?;
    Some(row.1)
}

/// The new name of a key in `sluiced.toml`.
#[must_use]
pub fn key(old: &str) -> Option<String> {
    let mut rows = SETTINGS.iter().map(|(old, new)| (as_key(old), as_key(new)));
    rows.find(|(name, _)| name == old).map(|(_, new)| new)
}

/// The daemon's variables: old and new name.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    let variable = |name| format!("SLUICE_{}", as_key(name).to_ascii_uppercase());
    SETTINGS
        .iter()
        .map(move |(old, new)| (variable(old), variable(new)))
}

fn as_key(flag: &str) -> String {
    flag.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_setting_is_found_by_its_flag_key_and_variable() {
        assert_eq!(flag("pin-limit", |_| true), Some("pinned-memory-limit"));
        assert_eq!(key("pin_limit").as_deref(), Some("pinned_memory_limit"));
        let variable = variables().find(|(old, _)| old == "SLUICE_PIN_LIMIT");
        assert_eq!(variable.unwrap().1, "SLUICE_PINNED_MEMORY_LIMIT");
        assert_eq!(key("pin-limit"), None);
        assert_eq!(key("preset"), None);
        assert_eq!(flag("preset", |new| new == "preset"), None);
    }

    #[test]
    fn the_command_decides_which_new_flag_an_old_one_became() {
        assert_eq!(flag("cache", |new| new == "kv-cache"), Some("kv-cache"));
        assert_eq!(
            flag("cache", |new| new == "weight-cache"),
            Some("weight-cache")
        );
        assert_eq!(flag("cache", |_| false), None);
    }
}
