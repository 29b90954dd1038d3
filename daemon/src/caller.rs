//! Who makes a call: what places and turns are shared by, and what rights depend on.

use sluice_engine::ShareKey;
use tonic::Request;

use crate::role::Role;

/// The maker of a call, found among the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The user behind the call.
    pub user: User,
    /// The connection, by a number that no other had since the daemon started.
    pub connection: u64,
    /// What the caller may do; `None`: nothing.
    pub role: Option<Role>,
}

/// The user behind a call, as far as the system, a certificate or a token tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum User {
    /// The daemon itself.
    Daemon,
    /// The user of the process that opened the connection to the Unix socket.
    Unix {
        /// User id.
        uid: u32,
    },
    /// Somebody on a loopback port: the system doesn't tell who.
    Tcp,
    /// Somebody on a port that other machines can reach, who may do nothing: nothing tells who.
    Elsewhere,
    /// Who knows a token, by the beginning of its hash.
    Token(u128),
    /// Who has a certificate of an authority for clients, by the beginning of the hash of its names.
    Certificate(u128),
}

impl Caller {
    /// The daemon itself, which may do everything.
    pub const DAEMON: Self = Self {
        user: User::Daemon,
        connection: 0,
        role: Some(Role::Admin),
    };

    /// Somebody of whom nothing is known, who may do nothing.
    const NOBODY: Self = Self {
        user: User::Tcp,
        connection: 0,
        role: None,
    };

    /// The caller of a request; nobody for one that came over no connection of the daemon's.
    #[must_use]
    pub fn of<T>(request: &Request<T>) -> Self {
        request.extensions().get().copied().unwrap_or(Self::NOBODY)
    }

    /// The share that its turns are taken from. All who came over a port, and nothing tells who they are, share as one user.
    #[must_use]
    pub fn share(self) -> ShareKey {
        // Above all user ids, which have 32 bits.
        const OTHERS: u64 = 1 << 32;
        // Above all of these: hashes, of which the rest of the bits tell users apart.
        const TOKENS: u64 = 0b10 << 62;
        const CERTIFICATES: u64 = 0b11 << 62;
        let hashed = |hash: u128| hash as u64 & !CERTIFICATES;
        ShareKey {
            user: match self.user {
                User::Unix { uid } => uid.into(),
                User::Daemon => OTHERS,
                User::Tcp => OTHERS + 1,
                User::Elsewhere => OTHERS + 2,
                User::Token(hash) => TOKENS | hashed(hash),
                User::Certificate(hash) => CERTIFICATES | hashed(hash),
            },
            connection: self.connection,
        }
    }

    /// Whether it may do what this role is for.
    #[must_use]
    pub fn may(self, role: Role) -> bool {
        self.role >= Some(role)
    }

    /// Whether what `other` asked for is its own: of the same user, and of the same connection where nobody knows the user.
    #[must_use]
    pub fn is_same_as(self, other: Self) -> bool {
        let is_known = !matches!(self.user, User::Tcp | User::Elsewhere);
        self.user == other.user && (is_known || self.connection == other.connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(user: User, connection: u64, role: Option<Role>) -> Caller {
        Caller {
            user,
            connection,
            role,
        }
    }

    #[test]
    fn a_role_may_what_those_before_it_may() {
        let of = |role| caller(User::Tcp, 1, role);
        assert!(!of(None).may(Role::Observe));
        assert!(of(Some(Role::Operate)).may(Role::Generate));
        assert!(!of(Some(Role::Operate)).may(Role::Admin));
    }

    #[test]
    fn nobody_is_taken_for_another() {
        let unix = |uid| User::Unix { uid };
        let users = [
            User::Daemon,
            unix(0),
            unix(1),
            User::Tcp,
            User::Elsewhere,
            User::Token(0),
            User::Token(1),
            User::Certificate(0),
            User::Certificate(1),
        ];
        for (index, user) in users.into_iter().enumerate() {
            for (other_index, other) in users.into_iter().enumerate() {
                let (one, other) = (caller(user, 1, None), caller(other, 2, None));
                let is_same = index == other_index;
                let is_known = !matches!(user, User::Tcp | User::Elsewhere);
                assert_eq!(one.is_same_as(other), is_same && is_known);
                assert_eq!(one.share().user == other.share().user, is_same);
            }
        }
        let anonymous = caller(User::Tcp, 1, None);
        assert!(anonymous.is_same_as(anonymous));
    }
}
