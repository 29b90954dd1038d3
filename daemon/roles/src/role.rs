//! Roles: what a caller may do, and who has which by the configuration.

use std::{fmt, str::FromStr};

/// What a caller may do. Each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Look: snapshots, models, plans, operations. Never at prompts or texts.
    Observe,
    /// Generate and score text, and watch and cancel its own requests.
    Generate,
    /// Change what all share: load, unload, levels, budgets, downloads, files below the named folders; cancel anything.
    Operate,
    /// Everything: watch others' texts, delete models, name any path, download with the daemon's own token.
    Admin,
}

impl Role {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::Observe, Self::Generate, Self::Operate, Self::Admin];

    /// The name in configuration, messages and docs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Generate => "generate",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let role = Self::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| format!("'{text}' is none of observe, generate, operate, admin"))
    }
}

/// Whom a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    /// All who can connect.
    Everybody,
    /// A user, by name or number.
    User(String),
    /// A group, by name or number.
    Group(String),
    /// Who brings a certificate with this name, in small letters; `None`: with any.
    Certificate(Option<String>),
}

/// What names of certificates begin with.
const CERTIFICATE: &str = "cert:";

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("*"),
            Self::User(name) => f.write_str(name),
            Self::Group(name) => write!(f, "@{name}"),
            Self::Certificate(name) => {
                write!(f, "{CERTIFICATE}{}", name.as_deref().unwrap_or("*"))
            }
        }
    }
}

/// Who has which role, such as `generate=*; operate=alice,@wheel`. Root and the daemon's own user are administrators without
/// being named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoleRules(Vec<(Role, Who)>);

/// Rules that a configuration may have.
const RULES_MAX: usize = 256;

impl FromStr for RoleRules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for rule in text
            .split(';')
            .map(str::trim)
            .filter(|rule| !rule.is_empty())
        {
            let form = || format!("'{rule}' is not of the form ROLE=USER,@GROUP,cert:NAME,*");
            let (role, names) = rule.split_once('=').ok_or_else(form)?;
            let role: Role = role.trim().parse()?;
            for name in names.split(',').map(str::trim) {
                let who = if name == "*" {
                    if role > Role::Generate {
                        return Err(format!(
                            "everybody may have the role generate at most, not {role}: name users or groups"
                        ));
                    }
                    Who::Everybody
                } else if let Some(name) = name.strip_prefix(CERTIFICATE) {
                    Who::Certificate(certificate_name(name)?)
                } else if let Some(group) = name.strip_prefix('@') {
                    Who::Group(group.to_owned())
                } else {
                    Who::User(name.to_owned())
                };
                if matches!(name, "" | "@") {
                    return Err(form());
                }
                rules.push((role, who));
            }
        }
        match rules.len() {
            0..=RULES_MAX => Ok(Self(rules)),
            more => Err(format!("{more} names are more than {RULES_MAX}")),
        }
    }
}

/// The DNS name of a certificate, as it is compared; `None` for `*`, which is any.
fn certificate_name(name: &str) -> Result<Option<String>, String> {
    if name == "*" {
        return Ok(None);
    }
    let is_part = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !part.is_empty() && part.bytes().all(is_plain)
    };
    match name.split('.').all(is_part) {
        true => Ok(Some(name.to_ascii_lowercase())),
        false => Err(format!(
            "'{CERTIFICATE}{name}' names no certificate: write a DNS name, such as {CERTIFICATE}alice.example, or {CERTIFICATE}* for any"
        )),
    }
}

impl fmt::Display for RoleRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for role in Role::ALL {
            let of_role = self.0.iter().filter(|(of, _)| *of == role);
            let names: Vec<_> = of_role.map(|(_, who)| who.to_string()).collect();
            if !names.is_empty() {
                write!(f, "{separator}{role}={}", names.join(","))?;
                separator = "; ";
            }
        }
        Ok(())
    }
}

/// The rules with names resolved to numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roles {
    everybody: Option<Role>,
    users: Vec<(Role, u32)>,
    groups: Vec<(Role, u32)>,
    certificates: Vec<(Role, Option<String>)>,
}

impl Roles {
    /// Resolves names by `user` and `group`; returns the names that are not known, whose rules hold for nobody.
    #[must_use]
    pub fn resolve(
        rules: &RoleRules,
        user: impl Fn(&str) -> Option<u32>,
        group: impl Fn(&str) -> Option<u32>,
    ) -> (Self, Vec<String>) {
        let (mut roles, mut unknown) = (Self::default(), Vec::new());
        for (role, who) in &rules.0 {
            let number = |name: &str, look_up: &dyn Fn(&str) -> Option<u32>| {
                name.parse().ok().or_else(|| look_up(name))
            };
            match who {
                Who::Everybody => roles.everybody = roles.everybody.max(Some(*role)),
                Who::User(name) => match number(name, &user) {
                    Some(uid) => roles.users.push((*role, uid)),
                    None => unknown.push(who.to_string()),
                },
                Who::Group(name) => match number(name, &group) {
                    Some(gid) => roles.groups.push((*role, gid)),
                    None => unknown.push(who.to_string()),
                },
                Who::Certificate(name) => roles.certificates.push((*role, name.clone())),
            }
        }
        (roles, unknown)
    }

    /// The greatest role of a user who is in these groups; `None`: the user may do nothing. Those who are administrators
    /// without being named are the caller's to know.
    #[must_use]
    pub fn of(&self, uid: u32, groups: &[u32]) -> Option<Role> {
        let of_user = self.users.iter().filter(|(_, known)| *known == uid);
        let of_groups = (self.groups.iter()).filter(|(_, known)| groups.contains(known));
        let named = of_user.chain(of_groups).map(|(role, _)| *role).max();
        named.max(self.everybody)
    }

    /// The greatest role that rules give to a certificate with these DNS names; `None`: there is no rule about it. A name with a
    /// wildcard is a name like others here, which no rule can have.
    #[must_use]
    pub fn of_certificate(&self, names: &[impl AsRef<str>]) -> Option<Role> {
        let has = |rule: &str| (names.iter()).any(|name| name.as_ref().eq_ignore_ascii_case(rule));
        let rules = self.certificates.iter();
        let about_it = rules.filter(|(_, name)| name.as_deref().is_none_or(has));
        about_it.map(|(role, _)| *role).max()
    }

    /// The role of a caller whom nobody knows: that of everybody.
    #[must_use]
    pub fn of_strangers(&self) -> Option<Role> {
        self.everybody
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Result<RoleRules, String> {
        text.parse()
    }

    #[test]
    fn rules_are_read_as_they_are_shown() {
        for text in [
            "",
            "generate=*",
            "observe=*; operate=alice,@wheel; admin=@0,1000",
            "generate=cert:*; admin=@wheel,cert:alice.example",
        ] {
            assert_eq!(rules(text).unwrap().to_string(), text);
        }
        let spaced = rules(" admin = @wheel ;; observe=*;").unwrap();
        assert_eq!(spaced.to_string(), "observe=*; admin=@wheel");
    }

    #[test]
    fn what_is_no_rule_is_refused_with_its_form() {
        for (text, words) in [
            ("alice", "ROLE=USER"),
            ("owner=alice", "none of observe, generate"),
            ("admin=", "ROLE=USER"),
            ("admin=@", "ROLE=USER"),
            ("operate=*", "generate at most"),
            ("admin=cert:", "names no certificate"),
            ("admin=cert:*.example", "names no certificate"),
            ("admin=cert:a..b", "names no certificate"),
        ] {
            let error = rules(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        let many = vec!["a"; RULES_MAX + 1].join(",");
        assert!(rules(&format!("admin={many}")).is_err());
    }

    #[test]
    fn the_greatest_role_that_a_rule_gives_counts() {
        let rules = rules("observe=*; generate=7; operate=@wheel,@ghosts; admin=alice").unwrap();
        let user = |name: &str| (name == "alice").then_some(1000);
        let group = |name: &str| (name == "wheel").then_some(10);
        let (roles, unknown) = Roles::resolve(&rules, user, group);
        assert_eq!(unknown, ["@ghosts"]);
        assert_eq!(roles.of(1000, &[]), Some(Role::Admin));
        assert_eq!(roles.of(7, &[]), Some(Role::Generate));
        assert_eq!(roles.of(7, &[3, 10]), Some(Role::Operate));
        assert_eq!(roles.of(8, &[]), Some(Role::Observe));
        assert_eq!(Roles::default().of(8, &[8]), None);
        assert_eq!(roles.of_strangers(), Some(Role::Observe));
    }

    #[test]
    fn a_certificate_has_the_role_of_its_names_alone() {
        let rules = rules("generate=*,cert:Bob.example; operate=cert:alice.example").unwrap();
        let (roles, _) = Roles::resolve(&rules, |_| None, |_| None);
        let of = |names: &[&str]| roles.of_certificate(names);
        assert_eq!(of(&["bob.example"]), Some(Role::Generate));
        assert_eq!(
            of(&["x", "ALICE.example", "bob.example"]),
            Some(Role::Operate)
        );
        for other in [&["*.example"][..], &["alice.example.org"], &["*"], &[]] {
            assert_eq!(of(other), None, "{other:?}");
        }
        let any = "observe=cert:*".parse().unwrap();
        let (roles, _) = Roles::resolve(&any, |_| None, |_| None);
        assert_eq!(roles.of_certificate(&[""; 0]), Some(Role::Observe));
    }
}
