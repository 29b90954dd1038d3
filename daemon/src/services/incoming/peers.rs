//! Who is connected, and whose place another may have.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio_util::sync::CancellationToken;

use super::rare::RareWarning;
use crate::{
    caller::{Caller, User},
    limits::{
        ADMIN_CALLS, ADMIN_CONNECTIONS, CALLS_MAX, CLOSING_MAX, CONNECTIONS_MAX,
        STRANGERS_CALLS_MAX, UNREAD_BYTES_MAX, USER_CALLS_MAX, USER_CONNECTIONS_MAX,
    },
    role::Role,
};

/// All connections, by number.
#[derive(Debug, Default)]
pub(super) struct Peers {
    state: Mutex<State>,
    /// Bytes of answers that nobody has taken yet, but those of connections that are being closed.
    unread_bytes: AtomicUsize,
    /// Tells of connections that are closed.
    warning: RareWarning,
    /// Tells of tokens that there aren't.
    token_warning: RareWarning,
}

#[derive(Debug, Default)]
struct State {
    connections: HashMap<u64, Arc<Peer>>,
    /// Of the connections, those that are not being closed, and calls under way, by user.
    users: HashMap<User, UserPlaces>,
    all: UserPlaces,
    last: u64,
}

/// Places that are taken.
#[derive(Debug, Default, Clone, Copy)]
struct UserPlaces {
    connections: usize,
    calls: usize,
}

/// Who opened a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visitor {
    pub(super) user: User,
    pub(super) role: Option<Role>,
    /// From which address, on a port.
    pub(super) from: Option<IpAddr>,
    /// Whether its calls must name this machine, lest they come by way of a web page.
    pub(super) needs_local_name: bool,
}

/// A connection, as its calls know it.
#[derive(Debug)]
pub(in crate::services) struct Peer {
    pub(in crate::services) caller: Caller,
    from: Option<IpAddr>,
    pub(super) needs_local_name: bool,
    peers: Arc<Peers>,
    calls: AtomicUsize,
    has_called: AtomicBool,
    /// Whether something tells who it is: the system, a certificate, or the token of a call.
    is_known: AtomicBool,
    /// Bytes of answers that it has not taken yet.
    unread_bytes: AtomicUsize,
    /// When it last sent something, or took something of what was sent.
    active: Mutex<Instant>,
    /// Cancelled when another gets its place, or too much waits for it. It takes no more calls then.
    pub(super) closing: CancellationToken,
}

impl Peers {
    /// A place for a connection of this visitor; `None` where all have calls under way. A connection without calls gives its
    /// place up: the one that has been silent for longest, of the user with the most; first those whom nothing tells of.
    pub(super) fn take(self: &Arc<Self>, visitor: Visitor) -> Option<Arc<Peer>> {
        let Visitor { user, role, .. } = visitor;
        let mut state = self.state();
        // The administrator is the one who can end what others do.
        let (all, of_user) = match role == Some(Role::Admin) {
            true => (CONNECTIONS_MAX + ADMIN_CONNECTIONS, usize::MAX),
            false => (CONNECTIONS_MAX, USER_CONNECTIONS_MAX),
        };
        // Those that are being closed have their descriptors still.
        if state.connections.len() >= all + CLOSING_MAX {
            return None;
        }
        if state.of(user).connections >= of_user {
            state.evict(Some(user))?;
        }
        if state.all.connections >= all {
            state.evict(None)?;
        }
        state.last += 1;
        let peer = Arc::new(Peer {
            caller: Caller {
                user,
                connection: state.last,
                role,
            },
            from: visitor.from,
            needs_local_name: visitor.needs_local_name,
            is_known: AtomicBool::new(user != User::Elsewhere),
            peers: self.clone(),
            calls: AtomicUsize::new(0),
            has_called: AtomicBool::new(false),
            unread_bytes: AtomicUsize::new(0),
            active: Mutex::new(Instant::now()),
            closing: CancellationToken::new(),
        });
        let number = state.last;
        state.connections.insert(number, peer.clone());
        state.count(user, |places| places.connections += 1);
        Some(peer)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(&self, user: User) -> UserPlaces {
        self.users.get(&user).copied().unwrap_or_default()
    }

    /// Changes the places of a user, and those of all alike.
    fn count(&mut self, user: User, change: impl Fn(&mut UserPlaces)) {
        change(&mut self.all);
        let places = self.users.entry(user).or_default();
        change(places);
        if places.connections == 0 && places.calls == 0 {
            self.users.remove(&user);
        }
    }

    /// Takes the place of a connection without calls, of this user or of the one with the most.
    fn evict(&mut self, user: Option<User>) -> Option<()> {
        let is_idle = |peer: &&Arc<Peer>| {
            peer.calls.load(Ordering::Relaxed) == 0
                && !peer.is_closing()
                && user.is_none_or(|user| peer.caller.user == user)
        };
        let idle = self.connections.values().filter(is_idle);
        let silent = idle.min_by_key(|peer| {
            let theirs = self.of(peer.caller.user).connections;
            let is_known = peer.is_known.load(Ordering::Relaxed);
            (Reverse(theirs), is_known, peer.silent_since())
        })?;
        let silent = silent.clone();
        self.close(&silent);
        Some(())
    }

    /// Begins to close a connection; false if that was begun before. It gives its place back at once, and its descriptor when
    /// its task hears of it.
    fn close(&mut self, peer: &Peer) -> bool {
        if peer.is_closing() {
            return false;
        }
        self.count(peer.caller.user, |places| places.connections -= 1);
        peer.forget_unread();
        peer.closing.cancel();
        true
    }
}

impl Peer {
    /// It sent or took something.
    pub(super) fn touch(&self) {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn silent_since(&self) -> Instant {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_called(&self) -> bool {
        self.has_called.load(Ordering::Relaxed)
    }

    pub(super) fn has_calls(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Says why the connection is closed, but not of each.
    pub(super) fn warn(&self, reason: &str) {
        self.peers.warning.tell("a connection is closed", &reason);
    }

    /// Says that a call came with a token that there isn't, but not of each.
    pub(in crate::services) fn warn_of_token(&self) {
        let from = match self.from {
            Some(from) => format!("it came from {from}"),
            None => "it came over the socket".to_owned(),
        };
        let warning = &self.peers.token_warning;
        warning.tell("a call with an unknown token is refused", &from);
    }

    /// Gives its place back.
    pub(super) fn leave(&self) {
        let mut state = self.peers.state();
        state.close(self);
        state.connections.remove(&self.caller.connection);
    }

    /// Counts a call until the result is dropped; `None` where there are too many.
    pub(in crate::services) fn call(self: &Arc<Self>, caller: Caller) -> Option<CallPlace> {
        let mut state = self.peers.state();
        // By connection: a token makes another user of it here only where nothing else tells those of a port apart.
        let user = match self.caller.user {
            User::Elsewhere => caller.user,
            connected => connected,
        };
        let of_user = match user {
            User::Elsewhere => STRANGERS_CALLS_MAX,
            _ => USER_CALLS_MAX,
        };
        let is_full = match caller.may(Role::Admin) {
            true => state.all.calls >= CALLS_MAX + ADMIN_CALLS,
            false => state.all.calls >= CALLS_MAX || state.of(user).calls >= of_user,
        };
        if is_full || self.is_closing() {
            return None;
        }
        state.count(user, |places| places.calls += 1);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.has_called.store(true, Ordering::Relaxed);
        if user != User::Elsewhere {
            self.is_known.store(true, Ordering::Relaxed);
        }
        let peer = self.clone();
        Some(CallPlace { peer, user })
    }

    /// So many bytes went out.
    pub(in crate::services) fn sent(&self, bytes: usize) {
        self.touch();
        // Frames' heads go out, too, which nobody counted.
        let left = |held: usize| Some(held.saturating_sub(bytes));
        let held = self
            .unread_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        let gone = bytes.min(held.unwrap_or_else(|held| held));
        self.peers.unread_bytes.fetch_sub(gone, Ordering::Relaxed);
    }

    /// Nothing waits any more.
    fn forget_unread(&self) {
        let held = self.unread_bytes.swap(0, Ordering::Relaxed);
        self.peers.unread_bytes.fetch_sub(held, Ordering::Relaxed);
    }

    /// Where too many bytes wait to be read, closes the connection that leaves most of them, of the user who leaves most.
    fn relieve(&self) {
        if self.peers.unread_bytes.load(Ordering::Relaxed) <= UNREAD_BYTES_MAX {
            return;
        }
        let mut state = self.peers.state();
        // Somebody else may have done it meanwhile.
        if self.peers.unread_bytes.load(Ordering::Relaxed) <= UNREAD_BYTES_MAX {
            return;
        }
        let unread = |peer: &Peer| peer.unread_bytes.load(Ordering::Relaxed);
        let mut of_user: HashMap<User, usize> = HashMap::new();
        for peer in state.connections.values() {
            *of_user.entry(peer.caller.user).or_default() += unread(peer);
        }
        let open = (state.connections.values()).filter(|peer| !peer.is_closing());
        let most = open.max_by_key(|peer| (of_user[&peer.caller.user], unread(peer)));
        if let Some(most) = most.cloned()
            && state.close(&most)
        {
            drop(state);
            most.warn("it does not read, and too much waits for it");
        }
    }
}

/// A call under way.
#[derive(Debug)]
pub(in crate::services) struct CallPlace {
    peer: Arc<Peer>,
    /// Whose it is.
    user: User,
}

impl CallPlace {
    /// So many bytes of its answer wait to go out.
    pub(in crate::services) fn queued(&self, bytes: usize) {
        let peer = &self.peer;
        if peer.is_closing() {
            return;
        }
        // The sum first: it must never be less than what is taken off for one of them.
        peer.peers.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
        peer.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
        peer.relieve();
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let peer = &self.peer;
        peer.touch();
        let mut state = peer.peers.state();
        state.count(self.user, |places| places.calls -= 1);
        // What waited for a call that was cut is thrown away, which nobody tells. Without calls nothing waits.
        if peer.calls.fetch_sub(1, Ordering::Relaxed) == 1 {
            peer.forget_unread();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATE: Option<Role> = Some(Role::Generate);

    fn user(uid: u32) -> User {
        User::Unix { uid }
    }

    fn visitor(user: User, role: Option<Role>) -> Visitor {
        Visitor {
            user,
            role,
            from: None,
            needs_local_name: false,
        }
    }

    fn take(peers: &Arc<Peers>, uid: u32) -> Option<Arc<Peer>> {
        peers.take(visitor(user(uid), GENERATE))
    }

    fn call(peer: &Arc<Peer>) -> Option<CallPlace> {
        peer.call(peer.caller)
    }

    #[test]
    fn a_silent_connection_gives_its_place_to_another() {
        let peers = Arc::new(Peers::default());
        let first: Vec<_> = (0..USER_CONNECTIONS_MAX)
            .map(|_| take(&peers, 70_000).unwrap())
            .collect();
        let _call = call(&first[0]).unwrap();
        let others: Vec<_> = (USER_CONNECTIONS_MAX..CONNECTIONS_MAX)
            .map(|_| take(&peers, 70_001).unwrap())
            .collect();
        // A user with all of his gives up one of his own: the longest silent without a call.
        take(&peers, 70_000).unwrap();
        assert!(first[1].closing.is_cancelled() && !first[0].closing.is_cancelled());
        // A third user takes one of the user with the most.
        take(&peers, 70_002).unwrap();
        assert!(first[2].closing.is_cancelled());
        assert!(others.iter().all(|peer| !peer.closing.is_cancelled()));
    }

    #[test]
    fn where_all_have_calls_the_administrator_gets_in() {
        let peers = Arc::new(Peers::default());
        let calls: Vec<_> = (0..CONNECTIONS_MAX as u32)
            .map(|number| {
                let peer = take(&peers, 70_000 + number % 2).unwrap();
                (call(&peer).unwrap(), peer)
            })
            .collect();
        assert!(take(&peers, 70_002).is_none());
        let admin = peers.take(visitor(user(0), Some(Role::Admin))).unwrap();
        admin.leave();
        calls[0].1.leave();
        assert!(take(&peers, 70_002).is_some());
    }

    #[test]
    fn calls_are_bounded_by_user() {
        let peers = Arc::new(Peers::default());
        let peer = take(&peers, 70_000).unwrap();
        let mut calls: Vec<_> = (0..USER_CALLS_MAX).map(|_| call(&peer).unwrap()).collect();
        assert!(call(&peer).is_none());
        assert!(call(&take(&peers, 70_001).unwrap()).is_some());
        calls.pop();
        assert!(call(&peer).is_some());
    }

    #[test]
    fn strangers_from_elsewhere_give_way_first() {
        let peers = Arc::new(Peers::default());
        let come = || peers.take(visitor(User::Elsewhere, None)).unwrap();
        let known = come();
        let caller = Caller {
            user: User::Token(1),
            role: GENERATE,
            ..known.caller
        };
        drop(known.call(caller).unwrap());
        let checked = come();
        drop(call(&checked).unwrap());
        let strangers: Vec<_> = (2..USER_CONNECTIONS_MAX).map(|_| come()).collect();
        // However long the one who is known has been silent.
        checked.touch();
        let more = [come(), come()];
        assert!(strangers[..2].iter().all(|peer| peer.is_closing()));
        let others = [&known, &checked, &strangers[2], &more[0]];
        assert!(others.iter().all(|peer| !peer.is_closing()));
    }

    #[test]
    fn strangers_from_elsewhere_leave_places_for_those_who_say_who_they_are() {
        let peers = Arc::new(Peers::default());
        let peer = peers.take(visitor(User::Elsewhere, None)).unwrap();
        let watching: Vec<_> = (0..STRANGERS_CALLS_MAX)
            .map(|_| call(&peer).unwrap())
            .collect();
        let other = peers.take(visitor(User::Elsewhere, None)).unwrap();
        assert!(call(&other).is_none());
        let known = Caller {
            user: User::Token(1),
            role: GENERATE,
            ..other.caller
        };
        let calls: Vec<_> = (0..USER_CALLS_MAX)
            .map(|_| other.call(known).unwrap())
            .collect();
        assert!(other.call(known).is_none());
        drop((watching, calls));
        assert!(peers.state().users.len() == 1, "only connections are left");
        assert!(call(&other).is_some());
    }

    #[test]
    fn who_does_not_read_is_closed_when_too_much_waits() {
        let peers = Arc::new(Peers::default());
        let slow = take(&peers, 70_000).unwrap();
        let unread = call(&slow).unwrap();
        unread.queued(UNREAD_BYTES_MAX);
        slow.sent(10);
        assert_eq!(
            peers.unread_bytes.load(Ordering::Relaxed),
            UNREAD_BYTES_MAX - 10
        );
        let quick = take(&peers, 70_001).unwrap();
        let read = call(&quick).unwrap();
        read.queued(11);
        assert!(slow.closing.is_cancelled() && !quick.closing.is_cancelled());
        drop(unread);
        assert_eq!(peers.unread_bytes.load(Ordering::Relaxed), 11);
        // Who only began to read slowly is left alone, whoever was active last.
        slow.touch();
        assert!(call(&slow).is_none(), "it takes no more calls");
        // More goes out than was counted: the heads of frames.
        quick.sent(20);
        assert_eq!(peers.unread_bytes.load(Ordering::Relaxed), 0);
    }
}
