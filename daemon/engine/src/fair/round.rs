//! Shares of one level, kept in the order of their turns.

use std::collections::{BTreeMap, BTreeSet};

/// Shares that are remembered while nothing of theirs waits; of more, the one least far ahead is forgotten.
pub(super) const IDLE_SHARES_MAX: usize = 256;

/// Shares among which turns go round. Each is in one of three orders, so that nothing looks through all of them.
#[derive(Debug)]
pub(super) struct Round<S> {
    /// The virtual time at which the last turn began.
    clock: u64,
    shares: BTreeMap<u64, Share<S>>,
    /// Those that the clock has reached, by what came first: their turns could begin now.
    due: BTreeSet<(u64, u64)>,
    /// Those that are ahead of the clock, by how far, then by what came first.
    ahead: BTreeSet<(u64, u64, u64)>,
    /// Those of which nothing waits, by how far they are ahead.
    idle: BTreeSet<(u64, u64)>,
}

/// One of them.
#[derive(Debug, Default)]
pub(super) struct Share<S> {
    /// The virtual time until which what it got is paid for.
    paid_until: u64,
    /// What a turn costs that the share has just been given; 0: none.
    pub(super) charged: u64,
    /// The number of what came first; `None` where nothing waits.
    pub(super) earliest: Option<u64>,
    pub(super) content: S,
}

impl<S> Share<S> {
    /// Takes back a turn of this cost.
    pub(super) fn pay_back(&mut self, cost: u64) {
        self.paid_until = self.paid_until.saturating_sub(cost);
    }
}

impl<S> Default for Round<S> {
    fn default() -> Self {
        Self {
            clock: 0,
            shares: BTreeMap::new(),
            due: BTreeSet::new(),
            ahead: BTreeSet::new(),
            idle: BTreeSet::new(),
        }
    }
}

impl<S: Default> Round<S> {
    /// Changes a share, which is made where it is missing, and finds its place again.
    pub(super) fn change<R>(&mut self, id: u64, change: impl FnOnce(&mut Share<S>) -> R) -> R {
        let share = self.shares.entry(id).or_default();
        match share.earliest {
            None => drop(self.idle.remove(&(share.paid_until, id))),
            Some(earliest) if share.paid_until <= self.clock => {
                self.due.remove(&(earliest, id));
            }
            Some(earliest) => drop(self.ahead.remove(&(share.paid_until, earliest, id))),
        }
        let changed = change(share);
        let charged = std::mem::take(&mut share.charged);
        if charged > 0 {
            self.clock = share.paid_until.max(self.clock);
            share.paid_until = self.clock + charged;
        }
        let (paid_until, earliest) = (share.paid_until, share.earliest);
        match earliest {
            None => drop(self.idle.insert((paid_until, id))),
            Some(earliest) if paid_until <= self.clock => drop(self.due.insert((earliest, id))),
            Some(earliest) => drop(self.ahead.insert((paid_until, earliest, id))),
        }
        self.follow_clock();
        changed
    }

    /// Finds who the clock has reached. Forgets those of which nothing waits once it has: they are like new ones.
    fn follow_clock(&mut self) {
        while let Some(&(paid_until, earliest, id)) = self.ahead.first()
            && paid_until <= self.clock
        {
            self.ahead.pop_first();
            self.due.insert((earliest, id));
        }
        while let Some(&(paid_until, id)) = self.idle.first()
            && (paid_until <= self.clock || self.idle.len() > IDLE_SHARES_MAX)
        {
            self.idle.pop_first();
            self.shares.remove(&id);
        }
    }
}

impl<S> Round<S> {
    /// What a share holds.
    pub(super) fn get(&self, id: u64) -> Option<&S> {
        self.shares.get(&id).map(|share| &share.content)
    }

    /// How many shares have something that waits.
    pub(super) fn waiting(&self) -> usize {
        self.due.len() + self.ahead.len()
    }

    /// Those that have something that waits, in the order of their next turns.
    pub(super) fn waiting_ids(&self) -> impl Iterator<Item = u64> {
        let due = self.due.iter().map(|(_, id)| *id);
        due.chain(self.ahead.iter().map(|(_, _, id)| *id))
    }

    /// The same, and what they hold.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = (u64, &S)> {
        let ids = self.waiting_ids();
        ids.filter_map(|id| Some((id, self.get(id)?)))
    }

    /// The virtual time at which a share's next turn begins.
    pub(super) fn begins(&self, id: u64) -> Option<u64> {
        let share = self.shares.get(&id)?;
        Some(share.paid_until.max(self.clock))
    }
}

#[cfg(test)]
impl<S> Round<S> {
    pub(super) fn len(&self) -> usize {
        self.shares.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &S> {
        self.shares.values().map(|share| &share.content)
    }
}
