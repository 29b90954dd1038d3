//! Who makes a call: what places and turns are shared by, and what rights depend on.

use sluice_engine::ShareKey;
use tonic::Request;

/// The maker of a call, found among the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The user behind the connection.
    pub user: User,
    /// The connection, by a number that no other had since the daemon started.
    pub connection: u64,
}

/// The user behind a connection, as far as the system tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum User {
    /// The user and group id of the process that opened the connection to the Unix socket.
    Unix {
        /// User id.
        uid: u32,
        /// Primary group id.
        gid: u32,
    },
    /// Somebody on the loopback port: the system doesn't tell who.
    Tcp,
}

impl Caller {
    /// The caller of a request; `None` for one that came over no connection of the daemon's.
    #[must_use]
    pub fn of<T>(request: &Request<T>) -> Option<Self> {
        request.extensions().get().copied()
    }

    /// The share that its turns are taken from. All who came over the loopback port share as one user.
    #[must_use]
    pub fn share(self) -> ShareKey {
        ShareKey {
            user: match self.user {
                User::Unix { uid, .. } => uid.into(),
                User::Tcp => u64::MAX,
            },
            connection: self.connection,
        }
    }
}
