//! A line that several users share: turns go round between users, then between a user's connections, by what each got
//! lately; inside a connection the order of admission holds.
//!
//! This is start-time fair queueing (Goyal, Vin and Cheng 1996), two levels deep: each share has a virtual time at which
//! what it got is paid for, a clock follows the turns that were given, and the next turn goes to the share that is least
//! far ahead. Nobody starves, since a share moves ahead by every turn it gets. Ties go to who came first, so the order
//! follows from what came and went alone.
//!
//! Putting in, taking out and looking who is next take the logarithm of what waits, since shares are kept in the order of
//! their turns (`round`). Counting who is ahead takes one look at all that waits.

mod round;

use std::collections::{BTreeMap, BTreeSet};

use round::Round;

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

/// How far something is open to a share, from the widest to the narrowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// This share finds a place.
    Free,
    /// Another connection of the user's may find one.
    NotForConnection,
    /// Another user may find one.
    NotForUser,
    /// Nobody finds one.
    None,
}

/// What waits in one line, by share. The caller bounds it, by [`FairQueue::room`].
#[derive(Debug)]
pub struct FairQueue<T> {
    users: Round<UserShare<T>>,
    /// Whose each number is.
    keys: BTreeMap<u64, ShareKey>,
}

#[derive(Debug)]
struct UserShare<T> {
    connections: Round<ConnectionShare<T>>,
    /// All that waits of the user's.
    numbers: BTreeSet<u64>,
}

/// By number, which grows in the order of admission.
type ConnectionShare<T> = BTreeMap<u64, Item<T>>;

#[derive(Debug)]
struct Item<T> {
    cost: u64,
    value: T,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            users: Round::default(),
            keys: BTreeMap::new(),
        }
    }
}

impl<T> Default for UserShare<T> {
    fn default() -> Self {
        Self {
            connections: Round::default(),
            numbers: BTreeSet::new(),
        }
    }
}

impl<T> FairQueue<T> {
    /// How much waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether one more of this share may wait where `capacity` may in all.
    #[must_use]
    pub fn has_place(&self, key: ShareKey, capacity: usize) -> bool {
        self.room(key, capacity) == Room::Free
    }

    /// Whether one more of this share may wait where `capacity` may in all, and if not, who else may. One place in eight is
    /// kept for users who have less than an even share among those who wait and one more, and one in eight for such
    /// connections of a user; whoever is alone has the rest. Who has nothing there is never kept out of a place that is free, so
    /// no more shares find none than have something there.
    #[must_use]
    pub fn room(&self, key: ShareKey, capacity: usize) -> Room {
        let free = capacity.saturating_sub(self.len());
        let kept = capacity / PLACES_FOR_ONE_KEPT;
        if free == 0 {
            return Room::None;
        }
        if free > 2 * kept {
            return Room::Free;
        }
        let is_below = |own: usize, waiting: usize| {
            let others = waiting - usize::from(own > 0);
            own < (capacity / (others + 2)).max(1)
        };
        let user = self.users.get(key.user);
        if free > kept {
            let Some(user) = user else { return Room::Free };
            let own = user.connections.get(key.connection);
            let own = own.map_or(0, BTreeMap::len);
            return match is_below(own, user.connections.waiting()) {
                true => Room::Free,
                false => Room::NotForConnection,
            };
        }
        let own = user.map_or(0, |user| user.numbers.len());
        match is_below(own, self.users.waiting()) {
            true => Room::Free,
            false => Room::NotForUser,
        }
    }

    /// Puts something into the line. Its place inside its connection follows from `number`, which grows in the order of
    /// admission and is nobody else's, so that what comes back gets its old place. `cost` is what its turn counts for, in any unit.
    pub fn insert(&mut self, key: ShareKey, number: u64, cost: u64, value: T) {
        self.insert_paid_back(key, number, (cost, 0), value);
    }

    /// The number of what is next, among shares that find room. Looks at no more shares than find none, and one.
    pub fn next_of(&self, room: impl Fn(ShareKey) -> Room) -> Option<u64> {
        for (user, share) in self.users.in_turn() {
            for (connection, items) in share.connections.in_turn() {
                match room(ShareKey { user, connection }) {
                    Room::Free => return items.keys().next().copied(),
                    Room::NotForConnection => {}
                    Room::NotForUser => break,
                    Room::None => return None,
                }
            }
        }
        None
    }

    /// What is next.
    #[must_use]
    pub fn front(&self) -> Option<&T> {
        let (_, user) = self.users.in_turn().next()?;
        let (_, items) = user.connections.in_turn().next()?;
        items.values().next().map(|item| &item.value)
    }

    /// Takes what is next out of the line, which is its share's turn.
    pub fn pop(&mut self) -> Option<T> {
        self.serve(self.next_of(|_| Room::Free)?)
    }

    /// Takes this one out of the line, whoever is next, as its share's turn.
    pub fn serve(&mut self, number: u64) -> Option<T> {
        self.take(number, |cost| cost)
    }

    /// Takes this one out of the line without a turn.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        self.take(number, |_| 0)
    }

    /// Puts something back that had its turn, which counts as not given.
    pub fn put_back(&mut self, key: ShareKey, number: u64, cost: u64, value: T) {
        self.insert_paid_back(key, number, (cost, cost.max(1)), value);
    }

    /// What this one holds; `None` if it does not wait.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&T> {
        let key = self.keys.get(&number)?;
        let user = self.users.get(key.user)?;
        let items = user.connections.get(key.connection)?;
        items.get(&number).map(|item| &item.value)
    }

    /// How many have their turn before this one, if nothing else comes; `None` if it does not wait.
    #[must_use]
    pub fn ahead(&self, number: u64) -> Option<usize> {
        let key = self.keys.get(&number)?;
        // While a user has something that waits, each turn begins where the one before is paid for, whoever else has turns
        // between. So a turn's beginning follows from its user's own turns, and one look at each user's tells which come
        // before.
        let mut turns = Vec::new();
        self.users.get(key.user)?.turns(&mut turns);
        let own = turns.iter().position(|turn| turn.number == number)?;
        let paid: u64 = turns[..own].iter().map(|turn| turn.cost).sum();
        let begins = self.users.begins(key.user)? + paid;
        let place = (begins, turns[own].earliest, key.user);
        let mut ahead = own;
        for user in self.users.waiting_ids().filter(|user| *user != key.user) {
            let mut begins = self.users.begins(user)?;
            if begins > place.0 {
                continue;
            }
            self.users.get(user)?.turns(&mut turns);
            for turn in &turns {
                if (begins, turn.earliest, user) > place {
                    break;
                }
                begins += turn.cost;
                ahead += 1;
            }
        }
        Some(ahead)
    }

    /// Takes all of it out, in the order of admission.
    pub fn drain(&mut self) -> Vec<T> {
        let numbers = Vec::from_iter(self.keys.keys().copied());
        let items = numbers.into_iter().map(|number| self.remove(number));
        let items = items.flatten().collect();
        *self = Self::default();
        items
    }

    /// Puts something in whose share gets back what it has `paid`.
    fn insert_paid_back(&mut self, key: ShareKey, number: u64, (cost, paid): (u64, u64), value: T) {
        let item = Item {
            // Whoever is given a turn moves ahead: otherwise nobody else would have one.
            cost: cost.max(1),
            value,
        };
        self.keys.insert(number, key);
        self.users.change(key.user, |user| {
            user.pay_back(paid);
            let UserShare {
                connections,
                numbers,
            } = &mut user.content;
            numbers.insert(number);
            user.earliest = numbers.first().copied();
            connections.change(key.connection, |connection| {
                connection.pay_back(paid);
                connection.content.insert(number, item);
                connection.earliest = connection.content.keys().next().copied();
            });
        });
    }

    /// Takes one out, whose turn counts for what `charge` makes of its cost; for 0 it is none.
    fn take(&mut self, number: u64, charge: impl Fn(u64) -> u64) -> Option<T> {
        let key = self.keys.remove(&number)?;
        self.users.change(key.user, |user| {
            let UserShare {
                connections,
                numbers,
            } = &mut user.content;
            numbers.remove(&number);
            user.earliest = numbers.first().copied();
            let item = connections.change(key.connection, |connection| {
                let item = connection.content.remove(&number)?;
                connection.earliest = connection.content.keys().next().copied();
                connection.charged = charge(item.cost);
                Some(item)
            })?;
            user.charged = charge(item.cost);
            Some(item.value)
        })
    }
}

/// A turn that a user will have.
struct Turn {
    number: u64,
    cost: u64,
    /// The number of what came first of all that the user has waiting by then.
    earliest: u64,
}

impl<T> UserShare<T> {
    /// All turns of the user's, in order, in place of what `turns` held.
    fn turns(&self, turns: &mut Vec<Turn>) {
        turns.clear();
        // By when each begins among the user's own.
        let mut order = Vec::with_capacity(self.numbers.len());
        for id in self.connections.waiting_ids() {
            let items = self.connections.get(id).into_iter().flatten();
            let mut begins = self.connections.begins(id).unwrap_or(0);
            for (&number, item) in items {
                order.push((begins, number, item.cost));
                begins += item.cost;
            }
        }
        order.sort_unstable();
        let planned = order.into_iter().map(|(_, number, cost)| Turn {
            number,
            cost,
            earliest: number,
        });
        turns.extend(planned);
        let mut earliest = u64::MAX;
        for turn in turns.iter_mut().rev() {
            earliest = earliest.min(turn.number);
            turn.earliest = earliest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{round::IDLE_SHARES_MAX, *};

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
            line.insert(key(1, number), 2 * number, 3, ());
            line.insert(key(number + 2, 0), 2 * number + 1, 3, ());
            line.pop();
            line.pop();
        }
        assert!(line.is_empty());
        assert!(line.users.len() <= IDLE_SHARES_MAX);
        let connections = line.users.all().map(|user| user.connections.len());
        assert!(connections.max().unwrap_or(0) <= IDLE_SHARES_MAX);
    }

    /// A line made by chance of a few users and connections, of which some had turns; and what still waits.
    fn mixed(seed: u64) -> (FairQueue<u64>, BTreeSet<u64>) {
        let mut state = seed;
        let mut below = move |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        let (mut line, mut waiting) = (FairQueue::default(), BTreeSet::new());
        for number in 1..60 {
            let (user, connection) = (below(4), below(3));
            line.insert(key(user, connection), number, 1 + below(7), number);
            waiting.insert(number);
            match below(8) {
                0 => drop(line.pop().map(|number| waiting.remove(&number))),
                1 => drop(
                    line.serve(below(number))
                        .map(|number| waiting.remove(&number)),
                ),
                2 => drop(
                    line.remove(below(number))
                        .map(|number| waiting.remove(&number)),
                ),
                _ => {}
            }
        }
        (line, waiting)
    }

    #[test]
    fn those_ahead_are_those_who_have_their_turn_before() {
        for seed in 0..200 {
            let (mut line, waiting) = mixed(seed);
            assert_eq!(line.len(), waiting.len());
            let ahead = waiting.iter().map(|&number| (line.ahead(number), number));
            let mut ahead = Vec::from_iter(ahead);
            ahead.sort_unstable();
            for (place, (ahead, number)) in ahead.into_iter().enumerate() {
                assert_eq!(
                    (ahead, line.pop()),
                    (Some(place), Some(number)),
                    "seed {seed}"
                );
            }
            assert!(line.is_empty());
        }
    }

    #[test]
    fn who_is_next_is_found_without_asking_everybody() {
        let all = Vec::from_iter((0..1024).map(|share| (share % 2, share, 1)));
        let line = line(&all);
        let asked = std::cell::Cell::new(0);
        let next = |room: &dyn Fn(ShareKey) -> Room| {
            asked.set(0);
            let next = line.next_of(|key| {
                asked.set(asked.get() + 1);
                room(key)
            });
            (next, asked.get())
        };
        assert_eq!(next(&|_| Room::Free), (Some(1), 1));
        assert_eq!(next(&|_| Room::None), (None, 1));
        assert_eq!(next(&|_| Room::NotForUser), (None, 2));
        let second = |key: ShareKey| match key.user {
            0 => Room::NotForUser,
            _ => Room::Free,
        };
        assert_eq!(next(&second), (Some(2), 2));
    }

    /// What it costs where as many wait as the daemon lets wait, each of a connection of its own.
    #[test]
    fn a_long_line_costs_little() {
        const LONG: u64 = 1024;
        for users in [1, 32, LONG] {
            let mut line = FairQueue::default();
            let began = std::time::Instant::now();
            for number in 0..LONG {
                line.insert(key(number % users, number), number, 1, number);
                assert!(line.ahead(number).is_some());
            }
            let joined = began.elapsed();
            let began = std::time::Instant::now();
            while let Some(number) = line.front().copied() {
                assert_eq!(line.pop(), Some(number));
            }
            let (joined, left) = (joined / LONG as u32, began.elapsed() / LONG as u32);
            println!("{LONG} of {users} users: {joined:?} to join, {left:?} for a turn");
            // A hundred times what they take, for slow and busy machines.
            assert!(joined.as_millis() < 50 && left.as_millis() < 5);
        }
    }
}
