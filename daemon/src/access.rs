//! Who may do what: roles of those who connect, tokens and certificates of those whom the system doesn't know, and the folders
//! in which paths may be named.

use std::path::{Component, Path, PathBuf};

use nix::unistd;
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use webpki::EndEntityCert;

use crate::{
    caller::{Caller, User},
    config::{Config, SettingSource},
    credential_file::CredentialError,
    failure::Failure,
    reread::Reread,
    role::{Role, RoleRules, Roles},
    tls::Tls,
    tokens::Tokens,
};

/// The rules by which callers are let in.
#[derive(Debug)]
pub struct AccessRules {
    roles: Roles,
    /// Where there is a file of them.
    tokens: Option<Reread<Tokens>>,
    /// Folders below which operators may name paths.
    folders: Vec<PathBuf>,
    own_uid: u32,
}

impl Default for AccessRules {
    /// Nobody but root and the daemon's own user may do anything.
    fn default() -> Self {
        Self {
            roles: Roles::default(),
            tokens: None,
            folders: Vec::new(),
            own_uid: rustix::process::geteuid().as_raw(),
        }
    }
}

impl AccessRules {
    /// The rules of a configuration. Names of users and groups are looked up once. A rule about a name that the system
    /// doesn't know is told in the log, and holds for nobody.
    ///
    /// # Errors
    /// When the token file can't be used.
    pub fn of(config: &Config) -> Result<Self, CredentialError> {
        let tokens = config.token_file.value.0.clone().map(|path| {
            Reread::new(vec![path.clone()], move |former: Option<&Tokens>| {
                Tokens::read(&path, former)
            })
        });
        let mut folders: Vec<PathBuf> = config.model_folders.value.folders().to_vec();
        let own = [config.models.value.0.as_ref(), config.hub_cache.as_ref()];
        folders.extend(own.into_iter().flatten().cloned());
        Ok(Self {
            roles: resolve(
                &config.roles.value,
                config.roles.source == SettingSource::Default,
            ),
            tokens: tokens.transpose()?,
            folders,
            ..Self::default()
        })
    }

    /// With folders below which operators may name paths.
    #[cfg(test)]
    pub(crate) fn with_folders(mut self, folders: impl Iterator<Item = PathBuf>) -> Self {
        self.folders.extend(folders);
        self
    }

    /// The role of whoever opened a connection. `groups` are all that its process is in.
    #[must_use]
    pub fn role(&self, user: User, groups: &[u32]) -> Option<Role> {
        match user {
            User::Unix { uid } if uid == 0 || uid == self.own_uid => Some(Role::Admin),
            User::Unix { uid } => self.roles.of(uid, groups),
            User::Tcp => self.roles.of_strangers(),
            // What they may do, the token or the certificate tells.
            User::Elsewhere | User::Token(_) | User::Certificate(_) => None,
            User::Daemon => Some(Role::Admin),
        }
    }

    /// User and role of whoever opened a connection with this certificate, which an authority for clients has signed, or else
    /// with none. `stranger` is the user if nothing tells another.
    #[must_use]
    pub fn by_certificate(
        &self,
        certificate: Option<&CertificateDer<'_>>,
        stranger: User,
    ) -> (User, Option<Role>) {
        let role = self.role(stranger, &[]);
        let Some(certificate) = certificate else {
            return (stranger, role);
        };
        let read = EndEntityCert::try_from(certificate);
        // Those that can't be read have no names; the handshake has refused them.
        let mut names: Vec<_> = read
            .iter()
            .flat_map(|read| read.valid_dns_names())
            .map(str::to_ascii_lowercase)
            .collect();
        names.sort_unstable();
        let hash = match names.is_empty() {
            // By its names, it stays the same user when it is renewed.
            false => Sha256::digest(names.join("\n")),
            true => Sha256::digest(certificate),
        };
        let role = role.max(self.roles.of_certificate(&names));
        (
            User::Certificate(sluice_roles::beginning(&hash.into())),
            role,
        )
    }

    /// Looks whether the file of tokens changed.
    pub(crate) fn look(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.look();
        }
    }

    /// Why the tokens that the file has now are not in force, if they are not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.tokens.as_ref()?.problem()
    }

    /// The caller by its token, if the call brings one, and what is cancelled when that is revoked.
    ///
    /// # Errors
    /// When the token is unknown.
    pub fn by_token(
        &self,
        connected: Caller,
        token: Option<&str>,
    ) -> Result<(Caller, Option<CancellationToken>), Failure> {
        let Some(token) = token else {
            return Ok((connected, None));
        };
        let tokens = self.tokens.as_ref().map(Reread::current);
        let found = tokens.and_then(|tokens| tokens.find(token));
        let (known, revoked) = found.ok_or(Failure::UnknownToken)?;
        let caller = Caller {
            user: User::Token(known.hash.beginning()),
            role: connected.role.max(Some(known.role)),
            ..connected
        };
        Ok((caller, Some(revoked)))
    }

    /// The place that a caller means by an absolute path, to be read or written: for administrators the path itself, since
    /// the system decides what they may name; for others the path without links, as it was when it was checked. The answer
    /// doesn't tell whether there is something.
    ///
    /// # Errors
    /// When the path isn't below a folder that is meant for that.
    pub fn check_path(&self, caller: Caller, path: &Path) -> Result<PathBuf, Failure> {
        if caller.may(Role::Admin) {
            return Ok(path.to_owned());
        }
        let leads_back = path.components().any(|part| part == Component::ParentDir);
        // Once: what is checked is what is opened.
        let place = resolved(path).filter(|_| !leads_back);
        let is_below = |place: &PathBuf| {
            let mut named = self
                .folders
                .iter()
                .filter(|folder| path.starts_with(folder));
            named.any(|folder| resolved(folder).is_some_and(|folder| place.starts_with(folder)))
        };
        place
            .filter(is_below)
            .ok_or_else(|| Failure::PathNotAllowed {
                path: path.to_owned(),
                folders: self.folders.clone(),
            })
    }
}

/// Reads all files by which the daemon and its callers are known: of tokens, and of TLS.
///
/// # Errors
/// What is wrong with one.
pub fn check_files(config: &Config) -> Result<(), CredentialError> {
    AccessRules::of(config)?;
    Tls::of(config).map(drop)
}

/// The path without links, as far as it is there. `None` where a link leads nowhere yet, and could lead anywhere later.
fn resolved(path: &Path) -> Option<PathBuf> {
    for present in path.ancestors() {
        if let Ok(resolved) = present.canonicalize() {
            let rest = path.strip_prefix(present).unwrap_or(Path::new(""));
            return Some(match rest.as_os_str().is_empty() {
                true => resolved,
                false => resolved.join(rest),
            });
        }
        if present.is_symlink() {
            return None;
        }
    }
    Some(path.to_owned())
}

fn resolve(rules: &RoleRules, is_built_in: bool) -> Roles {
    // What can't be looked up counts as unknown.
    let user = |name: &str| Some(unistd::User::from_name(name).ok()??.uid.as_raw());
    let group = |name: &str| Some(unistd::Group::from_name(name).ok()??.gid.as_raw());
    let (roles, unknown) = Roles::resolve(rules, user, group);
    // The built-in rules name a group that most machines don't have.
    if !unknown.is_empty() && !is_built_in {
        tracing::warn!(
            unknown = unknown.join(","),
            "roles name users or groups that are not known"
        );
    }
    roles
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn caller(role: Role) -> Caller {
        Caller {
            user: User::Unix { uid: 70_000 },
            connection: 1,
            role: Some(role),
        }
    }

    #[test]
    fn paths_are_named_below_the_folders_alone() {
        let place = tempfile::tempdir().unwrap();
        let (models, elsewhere) = (place.path().join("models"), place.path().join("elsewhere"));
        fs::create_dir_all(models.join("a")).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, models.join("out")).unwrap();
        symlink(place.path().join("later"), models.join("dangling")).unwrap();
        symlink(models.join("a"), models.join("in")).unwrap();
        let rules = AccessRules {
            folders: vec![models.clone()],
            ..AccessRules::default()
        };
        let check = |role, path: &Path| rules.check_path(caller(role), path);
        let real = models.canonicalize().unwrap();
        for (inside, place) in [
            ("a", "a"),
            ("a/new/model.sluice", "a/new/model.sluice"),
            // What is opened later is not the link, which may lead elsewhere by then.
            ("in/model.sluice", "a/model.sluice"),
        ] {
            let path = models.join(inside);
            assert_eq!(check(Role::Operate, &path).unwrap(), real.join(place));
            assert_eq!(check(Role::Admin, &path).unwrap(), path);
        }
        assert_eq!(check(Role::Operate, &models).unwrap(), real);
        for outside in [
            models.join("out"),
            models.join("out/model.gguf"),
            models.join("dangling"),
            models.join("../elsewhere"),
            place.path().join("models-beside"),
            elsewhere,
            "/etc/shadow".into(),
            "/nowhere/at/all".into(),
        ] {
            let refused = check(Role::Operate, &outside).unwrap_err();
            assert!(matches!(refused, Failure::PathNotAllowed { .. }));
            check(Role::Admin, &outside).unwrap();
        }
    }

    #[test]
    fn root_and_the_daemons_user_are_administrators() {
        let rules = AccessRules {
            roles: Roles::resolve(
                &"generate=*; operate=@8".parse().unwrap(),
                |_| None,
                |_| None,
            )
            .0,
            own_uid: 5,
            ..AccessRules::default()
        };
        let unix = |uid| User::Unix { uid };
        assert_eq!(rules.role(unix(0), &[9]), Some(Role::Admin));
        assert_eq!(rules.role(unix(5), &[9]), Some(Role::Admin));
        assert_eq!(rules.role(unix(6), &[9]), Some(Role::Generate));
        assert_eq!(rules.role(unix(6), &[8]), Some(Role::Operate));
        assert_eq!(rules.role(unix(6), &[9, 1, 8]), Some(Role::Operate));
        assert_eq!(rules.role(User::Tcp, &[]), Some(Role::Generate));
        // Everybody is of this machine.
        assert_eq!(rules.role(User::Elsewhere, &[]), None);
    }
}
