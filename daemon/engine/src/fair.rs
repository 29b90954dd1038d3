//! A line that several users share: turns go round between users, then between a user's connections, by what each got
//! lately; inside a connection the order of admission holds.
//!
//! This is start-time fair queueing (Goyal, Vin and Cheng 1996), two levels deep: each share has a virtual time at which
//! what it got is paid for, a clock follows the turns that were given, and the next turn goes to the share that is least
//! far ahead. Nobody starves, since a share moves ahead by every turn it gets. Ties go to who came first, so the order
//! follows from what came and went alone.

use std::collections::{BTreeMap, VecDeque};

/// Shares that are remembered while nothing of theirs waits; of more, the one least far ahead is forgotten.
const IDLE_SHARES_MAX: usize = 256;
/// Of so many places one is kept for users who have few.
const PLACES_FOR_ONE_KEPT: usize = 8;

/// Whose turn something takes. What the numbers mean is the caller's affair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ShareKey {
    /// A user.
    pub user: u64,
    /// One of the user's connections.
    pub connection: u64,
}

/// What waits in one line, by share. The caller bounds it, by [`FairQueue::has_place`].
#[derive(Debug)]
pub struct FairQueue<T> {
    users: BTreeMap<u64, UserShare<T>>,
    /// The virtual time at which the last turn began.
    clock: u64,
}

#[derive(Debug)]
struct UserShare<T> {
    paid_until: u64,
    /// The clock among the user's connections.
    clock: u64,
    connections: BTreeMap<u64, ConnectionShare<T>>,
}

#[derive(Debug)]
struct ConnectionShare<T> {
    paid_until: u64,
    /// By number, which grows in the order of admission.
    items: VecDeque<Item<T>>,
}

#[derive(Debug)]
struct Item<T> {
    number: u64,
    cost: u64,
    value: T,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            users: BTreeMap::new(),
            clock: 0,
        }
    }
}

impl<T> Default for UserShare<T> {
    fn default() -> Self {
        Self {
            paid_until: 0,
            clock: 0,
            connections: BTreeMap::new(),
        }
    }
}

impl<T> Default for ConnectionShare<T> {
    fn default() -> Self {
        Self {
            paid_until: 0,
            items: VecDeque::new(),
        }
    }
}

impl<T> UserShare<T> {
    fn len(&self) -> usize {
        let connections = self.connections.values();
        connections.map(ConnectionShare::len).sum()
    }

    /// The number of what came first.
    fn earliest(&self) -> Option<u64> {
        let connections = self.connections.values();
        connections.filter_map(ConnectionShare::earliest).min()
    }

    /// The connection whose turn is next, among those with something that waits and of which `is_open` is true.
    fn next(&self, is_open: impl Fn(u64) -> bool) -> Option<u64> {
        let open = self.connections.iter().filter(|(id, _)| is_open(**id));
        let turns = open.filter_map(|(id, connection)| {
            let begins = connection.paid_until.max(self.clock);
            Some(((begins, connection.earliest()?), *id))
        });
        turns.min().map(|(_, id)| id)
    }
}

impl<T> ConnectionShare<T> {
    fn len(&self) -> usize {
        self.items.len()
    }

    fn earliest(&self) -> Option<u64> {
        self.items.front().map(|item| item.number)
    }
}

impl<T> FairQueue<T> {
    /// How much waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.users.values().map(UserShare::len).sum()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether one more of this share may wait where `capacity` may in all. One place in eight is kept for users who have
    /// less than an even share among those who wait and one more, and one in eight for such connections of a user;
    /// whoever is alone has the rest.
    #[must_use]
    pub fn has_place(&self, key: ShareKey, capacity: usize) -> bool {
        let free = capacity.saturating_sub(self.len());
        let kept = capacity / PLACES_FOR_ONE_KEPT;
        if free > 2 * kept {
            return true;
        }
        let user = self.users.get(&key.user);
        let is_below = |own: usize, others: usize| own < capacity / (others + 2);
        if free > kept {
            let Some(user) = user else { return true };
            let own = user.connections.get(&key.connection);
            let others = user.connections.iter();
            let others = others.filter(|(id, share)| **id != key.connection && share.len() > 0);
            return is_below(own.map_or(0, ConnectionShare::len), others.count());
        }
        let others = self.users.iter();
        let others = others.filter(|(id, share)| **id != key.user && share.len() > 0);
        free > 0 && is_below(user.map_or(0, UserShare::len), others.count())
    }

    /// Puts something into the line. Its place inside its connection follows from `number`, which grows in the order of
    /// admission, so that what comes back gets its old place. `cost` is what its turn counts for, in any unit.
    pub fn insert(&mut self, key: ShareKey, number: u64, cost: u64, value: T) {
        let user = self.users.entry(key.user).or_default();
        let items = &mut user.connections.entry(key.connection).or_default().items;
        let place = items.partition_point(|item| item.number < number);
        let item = Item {
            number,
            // Whoever is given a turn moves ahead: otherwise nobody else would have one.
            cost: cost.max(1),
            value,
        };
        items.insert(place, item);
    }

    /// The number of what is next, among shares of which `is_open` is true.
    pub fn next_of(&self, is_open: impl Fn(ShareKey) -> bool) -> Option<u64> {
        let key = self.next_key(is_open)?;
        self.users
            .get(&key.user)?
            .connections
            .get(&key.connection)?
            .earliest()
    }

    /// What is next.
    #[must_use]
    pub fn front(&self) -> Option<&T> {
        let key = self.next_key(|_| true)?;
        let connection = self
            .users
            .get(&key.user)?
            .connections
            .get(&key.connection)?;
        connection.items.front().map(|item| &item.value)
    }

    /// Takes what is next out of the line, which is its share's turn.
    pub fn pop(&mut self) -> Option<T> {
        let key = self.next_key(|_| true)?;
        self.take_turn(key, 0).map(|item| item.value)
    }

    /// Takes this one out of the line, whoever is next, as its share's turn.
    pub fn serve(&mut self, number: u64) -> Option<T> {
        let (key, place) = self.find(number)?;
        self.take_turn(key, place).map(|item| item.value)
    }

    /// Takes this one out of the line without a turn.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let (key, place) = self.find(number)?;
        let connection = self
            .users
            .get_mut(&key.user)?
            .connections
            .get_mut(&key.connection)?;
        let item = connection.items.remove(place)?;
        self.forget_idle(key.user);
        Some(item.value)
    }

    /// Puts something back that had its turn, which counts as not given.
    pub fn put_back(&mut self, key: ShareKey, number: u64, cost: u64, value: T) {
        self.insert(key, number, cost, value);
        let cost = cost.max(1);
        if let Some(user) = self.users.get_mut(&key.user) {
            user.paid_until = user.paid_until.saturating_sub(cost);
            if let Some(connection) = user.connections.get_mut(&key.connection) {
                connection.paid_until = connection.paid_until.saturating_sub(cost);
            }
        }
    }

    /// How many have their turn before this one, if nothing else comes; `None` if it does not wait.
    #[must_use]
    pub fn ahead(&self, number: u64) -> Option<usize> {
        self.find(number)?;
        let mut line = self.outline();
        let mut ahead = 0;
        while line.pop()? != number {
            ahead += 1;
        }
        Some(ahead)
    }

    /// Takes all of it out, in the order of admission.
    pub fn drain(&mut self) -> Vec<T> {
        let users = std::mem::take(&mut self.users).into_values();
        let connections = users.flat_map(|user| user.connections.into_values());
        let mut items = Vec::from_iter(connections.flat_map(|connection| connection.items));
        items.sort_by_key(|item| item.number);
        items.into_iter().map(|item| item.value).collect()
    }

    /// The share whose turn is next.
    fn next_key(&self, is_open: impl Fn(ShareKey) -> bool) -> Option<ShareKey> {
        let turns = self.users.iter().filter_map(|(&user, share)| {
            let connection = share.next(|connection| is_open(ShareKey { user, connection }))?;
            let begins = share.paid_until.max(self.clock);
            Some(((begins, share.earliest()?), ShareKey { user, connection }))
        });
        turns.min().map(|(_, key)| key)
    }

    fn find(&self, number: u64) -> Option<(ShareKey, usize)> {
        for (&user, share) in &self.users {
            for (&connection, share) in &share.connections {
                let place = share.items.iter().position(|item| item.number == number);
                if let Some(place) = place {
                    return Some((ShareKey { user, connection }, place));
                }
            }
        }
        None
    }

    fn take_turn(&mut self, key: ShareKey, place: usize) -> Option<Item<T>> {
        let user = self.users.get_mut(&key.user)?;
        let connection = user.connections.get_mut(&key.connection)?;
        let item = connection.items.remove(place)?;
        connection.paid_until = begin(&mut user.clock, connection.paid_until) + item.cost;
        user.paid_until = begin(&mut self.clock, user.paid_until) + item.cost;
        self.forget_idle(key.user);
        Some(item)
    }

    /// Forgets shares of which nothing waits once the clock has passed them: they are like new ones.
    fn forget_idle(&mut self, user: u64) {
        if let Some(user) = self.users.get_mut(&user) {
            let clock = user.clock;
            forget(
                &mut user.connections,
                |share| (!share.items.is_empty(), share.paid_until),
                clock,
            );
        }
        let clock = self.clock;
        forget(
            &mut self.users,
            |share| (share.len() > 0, share.paid_until),
            clock,
        );
    }

    /// The same line, of numbers alone.
    fn outline(&self) -> FairQueue<u64> {
        let items = |items: &VecDeque<Item<T>>| {
            let numbers = items.iter().map(|item| Item {
                number: item.number,
                cost: item.cost,
                value: item.number,
            });
            numbers.collect()
        };
        let connections = |connections: &BTreeMap<u64, ConnectionShare<T>>| {
            let shares = connections.iter().map(|(id, share)| {
                let copy = ConnectionShare {
                    paid_until: share.paid_until,
                    items: items(&share.items),
                };
                (*id, copy)
            });
            shares.collect()
        };
        let users = self.users.iter().map(|(id, share)| {
            let copy = UserShare {
                paid_until: share.paid_until,
                clock: share.clock,
                connections: connections(&share.connections),
            };
            (*id, copy)
        });
        FairQueue {
            users: users.collect(),
            clock: self.clock,
        }
    }
}

/// When a turn begins, which moves the clock.
fn begin(clock: &mut u64, paid_until: u64) -> u64 {
    let begins = paid_until.max(*clock);
    *clock = begins;
    begins
}

/// `about` tells whether anything of a share waits, and until when it has paid.
fn forget<S>(shares: &mut BTreeMap<u64, S>, about: impl Fn(&S) -> (bool, u64), clock: u64) {
    shares.retain(|_, share| {
        let (waits, paid_until) = about(share);
        waits || paid_until > clock
    });
    let idle = |shares: &BTreeMap<u64, S>| {
        let idle = shares.iter().filter_map(|(id, share)| {
            let (waits, paid_until) = about(share);
            (!waits).then_some((paid_until, *id))
        });
        let mut idle = Vec::from_iter(idle);
        idle.sort_unstable();
        idle
    };
    let idle = idle(shares);
    for (_, id) in idle.iter().take(idle.len().saturating_sub(IDLE_SHARES_MAX)) {
        shares.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: u64, connection: u64) -> ShareKey {
        ShareKey { user, connection }
    }

    /// A line of these users and connections, numbered from 1, each with its cost.
    fn line(items: &[(u64, u64, u64)]) -> FairQueue<u64> {
        let mut line = FairQueue::default();
        for ((user, connection, cost), number) in items.iter().zip(1..) {
            line.insert(key(*user, *connection), number, *cost, number);
        }
        line
    }

    fn order(mut line: FairQueue<u64>) -> Vec<u64> {
        std::iter::from_fn(|| line.pop()).collect()
    }

    #[test]
    fn users_take_turns_and_connections_keep_their_order() {
        // User 1 came first with four; user 2 has two connections.
        let line = line(&[
            (1, 1, 1),
            (1, 1, 1),
            (1, 1, 1),
            (1, 1, 1),
            (2, 2, 1),
            (2, 2, 1),
            (2, 3, 1),
        ]);
        for (number, ahead) in [(1, 0), (5, 1), (2, 2), (7, 3), (3, 4), (6, 5), (4, 6)] {
            assert_eq!(line.ahead(number), Some(ahead), "number {number}");
        }
        assert_eq!(order(line), [1, 5, 2, 7, 3, 6, 4]);
    }

    #[test]
    fn who_got_much_waits_for_those_who_got_little() {
        let line = line(&[
            (1, 1, 30),
            (1, 1, 30),
            (2, 2, 10),
            (2, 2, 10),
            (2, 2, 10),
            (2, 2, 10),
        ]);
        assert_eq!(order(line), [1, 3, 4, 5, 2, 6]);
    }

    #[test]
    fn nobody_saves_up_turns_while_away() {
        let mut line = line(&[(1, 1, 5); 20]);
        for _ in 0..10 {
            line.pop();
        }
        for number in 21..31 {
            line.insert(key(2, 2), number, 5, number);
        }
        let next: Vec<_> = std::iter::from_fn(|| line.pop()).take(6).collect();
        assert_eq!(next, [21, 11, 22, 12, 23, 13]);
    }

    #[test]
    fn what_comes_back_is_next_again_and_costs_no_turn() {
        let mut line = line(&[(1, 1, 4), (1, 1, 4), (2, 2, 4)]);
        assert_eq!(line.pop(), Some(1));
        assert_eq!(line.front(), Some(&3));
        line.put_back(key(1, 1), 1, 4, 1);
        assert_eq!(line.ahead(1), Some(0));
        assert_eq!(line.remove(1), Some(1));
        assert_eq!(line.remove(1), None);
        assert_eq!(order(line), [2, 3]);
    }

    #[test]
    fn one_user_leaves_places_for_others() {
        let mut line = FairQueue::default();
        let mut number = 0;
        let mut fill = |line: &mut FairQueue<u64>, user: u64, connection: u64| {
            let before = number;
            while line.has_place(key(user, connection), 16) {
                number += 1;
                line.insert(key(user, connection), number, 1, number);
            }
            number - before
        };
        assert_eq!(fill(&mut line, 1, 1), 12);
        assert_eq!(fill(&mut line, 1, 2), 2);
        assert_eq!(fill(&mut line, 2, 3), 2);
        assert_eq!(fill(&mut line, 3, 4), 0);
        // What gets free goes to those who have little.
        line.pop();
        assert!(!line.has_place(key(1, 1), 16) && !line.has_place(key(1, 2), 16));
        assert!(line.has_place(key(2, 3), 16) && line.has_place(key(3, 4), 16));
        // A short line keeps none.
        let mut short = FairQueue::default();
        short.insert(key(1, 1), 1, 1, ());
        assert!(short.has_place(key(1, 1), 2) && !short.has_place(key(2, 2), 1));
    }

    #[test]
    fn only_so_many_idle_shares_are_remembered() {
        let mut line = FairQueue::default();
        for number in 0..2000 {
            line.insert(key(1, number), number, 3, ());
            line.insert(key(number + 2, 0), number, 3, ());
            line.pop();
            line.pop();
        }
        assert!(line.is_empty());
        assert!(line.users.len() <= IDLE_SHARES_MAX);
        let connections = line.users.values().map(|user| user.connections.len());
        assert!(connections.max().unwrap_or(0) <= IDLE_SHARES_MAX);
    }
}
