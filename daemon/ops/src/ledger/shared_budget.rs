//! A budget that several ledgers keep together, each with the memory of one model. A ledger may claim memory before it is
//! allocated, as a plan does: no other ledger gets that. What they hold and claim together never exceeds the limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_machine::MemoryKind;

use super::{Ledger, LedgerKindReport, LedgerReport, LimitExceeded};

/// A budget for several ledgers; clones are the same one.
#[derive(Clone, Default)]
pub struct SharedBudget {
    state: Arc<Mutex<BudgetState>>,
}

#[derive(Default)]
struct BudgetState {
    /// The limit, where no ledger that has claimed memory was given more.
    limit: u64,
    /// What the device itself takes, however many ledgers count it.
    device_bytes: u64,
    members: Vec<MemberState>,
    last_id: u64,
    /// Pinned bytes of the host's memory, of all ledgers, and their limit.
    pinned_bytes: u64,
    pinned_limit: u64,
    used: Counted,
    kinds: [Counted; MemoryKind::ALL.len()],
}

/// A ledger, without what it counts of the device itself.
struct MemberState {
    id: u64,
    used_bytes: u64,
    claimed_bytes: u64,
    /// The limit that was set for it alone; `None`: none yet.
    limit: Option<u64>,
}

impl MemberState {
    /// What no other ledger can have.
    fn taken_bytes(&self) -> u64 {
        self.used_bytes.max(self.claimed_bytes)
    }

    /// What of it is not held yet, so that the device still counts it as free.
    fn unheld_bytes(&self) -> u64 {
        self.taken_bytes() - self.used_bytes
    }
}

#[derive(Default)]
struct Counted {
    bytes: u64,
    peak_bytes: u64,
}

impl Counted {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
    }
}

impl BudgetState {
    fn member(&self, id: u64) -> &MemberState {
        let member = self.members.iter().find(|member| member.id == id);
        member.expect("a ledger leaves its budget when it is dropped")
    }

    fn member_mut(&mut self, id: u64) -> &mut MemberState {
        let member = self.members.iter_mut().find(|member| member.id == id);
        member.expect("a ledger leaves its budget when it is dropped")
    }

    /// Most bytes that this ledger can have beside the others, with so much asked for it.
    fn room_bytes(&self, id: u64, asked: Option<u64>) -> u64 {
        let others = || self.members.iter().filter(|member| member.id != id);
        let has_model = |member: &&MemberState| member.claimed_bytes > 0;
        let limits = others().filter(has_model).filter_map(|other| other.limit);
        let limit = limits.chain(asked).fold(self.limit, u64::max);
        let taken: u64 = others().map(MemberState::taken_bytes).sum();
        limit.saturating_sub(self.device_bytes + taken)
    }
}

impl SharedBudget {
    /// A budget of so many bytes, and so many of the host's memory that are pinned.
    #[must_use]
    pub fn new(limit: u64, pinned_limit: u64) -> Self {
        let budget = Self::default();
        let mut state = budget.lock();
        (state.limit, state.pinned_limit) = (limit, pinned_limit);
        drop(state);
        budget
    }

    /// Sets the budget. What is held beyond it stays.
    pub fn set_limit(&self, bytes: u64) {
        self.lock().limit = bytes;
    }

    /// The budget, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.lock().limit
    }

    /// Counts memory that the device itself takes as long as it is open, which each ledger has as well.
    pub fn hold(&self, kind: MemoryKind, bytes: u64) {
        let mut state = self.lock();
        state.device_bytes += bytes;
        state.used.add(bytes);
        state.kinds[kind as usize].add(bytes);
    }

    /// A ledger whose memory is part of this budget.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        state.members.push(MemberState {
            id,
            used_bytes: 0,
            claimed_bytes: 0,
            limit: None,
        });
        drop(state);
        Ledger::of_budget(BudgetShare {
            budget: self.clone(),
            id,
        })
    }

    /// What all ledgers hold, by kind, and the device itself once.
    #[must_use]
    pub fn report(&self) -> LedgerReport {
        let state = self.lock();
        let kinds = MemoryKind::ALL.map(|kind| {
            let counted = &state.kinds[kind as usize];
            LedgerKindReport {
                kind,
                bytes: counted.bytes,
                peak_bytes: counted.peak_bytes,
            }
        });
        LedgerReport {
            used_bytes: state.used.bytes,
            peak_bytes: state.used.peak_bytes,
            kinds: kinds.to_vec(),
        }
    }

    /// Bytes that all ledgers hold, and the device itself.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.lock().used.bytes
    }

    /// Bytes of the host's memory that are pinned, by whichever ledger.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.lock().pinned_bytes
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        // Figures are checked before any of them changes, so a panic leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A ledger's share of a budget, which ends with the ledger.
pub(super) struct BudgetShare {
    budget: SharedBudget,
    id: u64,
}

impl BudgetShare {
    pub(super) fn budget(&self) -> &SharedBudget {
        &self.budget
    }

    /// Takes memory, or nothing where others leave too little.
    pub(super) fn take(&self, kind: MemoryKind, bytes: u64) -> Result<(), LimitExceeded> {
        let mut state = self.budget.lock();
        let member = state.member(self.id);
        let room = state.room_bytes(self.id, member.limit);
        let now = member.used_bytes.checked_add(bytes).ok_or(LimitExceeded)?;
        // What was claimed is there, however much others were given since.
        if now > room && now > member.claimed_bytes {
            return Err(LimitExceeded);
        }
        state.member_mut(self.id).used_bytes = now;
        state.used.add(bytes);
        state.kinds[kind as usize].add(bytes);
        Ok(())
    }

    pub(super) fn give_back(&self, kind: MemoryKind, bytes: u64) {
        let mut state = self.budget.lock();
        state.member_mut(self.id).used_bytes -= bytes;
        state.used.bytes -= bytes;
        state.kinds[kind as usize].bytes -= bytes;
    }

    pub(super) fn set_limit(&self, limit: u64) {
        self.budget.lock().member_mut(self.id).limit = Some(limit);
    }

    /// Claims so much in all, or leaves the claim as it was.
    pub(super) fn claim(&self, bytes: u64) -> Result<(), LimitExceeded> {
        let mut state = self.budget.lock();
        let member = state.member(self.id);
        let room = state.room_bytes(self.id, member.limit);
        if bytes > room && bytes > member.claimed_bytes {
            return Err(LimitExceeded);
        }
        state.member_mut(self.id).claimed_bytes = bytes;
        Ok(())
    }

    /// Claims so much, or as much as others leave.
    pub(super) fn settle(&self, bytes: u64) {
        let mut state = self.budget.lock();
        let member = state.member(self.id);
        let room = state.room_bytes(self.id, member.limit);
        let most = room.max(member.claimed_bytes);
        state.member_mut(self.id).claimed_bytes = bytes.min(most);
    }

    pub(super) fn room_bytes(&self, asked: u64) -> u64 {
        self.budget.lock().room_bytes(self.id, Some(asked))
    }

    pub(super) fn taken_bytes(&self) -> u64 {
        self.budget.lock().member(self.id).taken_bytes()
    }

    pub(super) fn unheld_bytes(&self) -> u64 {
        self.budget.lock().member(self.id).unheld_bytes()
    }

    pub(super) fn others_unheld_bytes(&self) -> u64 {
        let state = self.budget.lock();
        let others = state.members.iter().filter(|member| member.id != self.id);
        others.map(MemberState::unheld_bytes).sum()
    }

    pub(super) fn pin(&self, bytes: u64) -> Result<(), LimitExceeded> {
        let mut state = self.budget.lock();
        let now = state.pinned_bytes.checked_add(bytes);
        let now = now.filter(|&now| now <= state.pinned_limit);
        state.pinned_bytes = now.ok_or(LimitExceeded)?;
        Ok(())
    }

    pub(super) fn unpin(&self, bytes: u64) {
        self.budget.lock().pinned_bytes -= bytes;
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.members.retain(|member| member.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::ledger::LedgerEntry;

    fn weights(ledger: &Ledger, bytes: u64) -> Option<LedgerEntry> {
        ledger.reserve(MemoryKind::Weights, bytes).ok()
    }

    #[test]
    fn the_sum_keeps_to_the_budget() {
        let budget = SharedBudget::new(100, 100);
        let (one, two) = (budget.ledger(), budget.ledger());
        let first = weights(&one, 60).unwrap();
        let error = two.reserve(MemoryKind::Weights, 41).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot allocate 41 bytes for weights; 0 of 40 are in use"
        );
        let second = weights(&two, 40).unwrap();
        assert_eq!(budget.used_bytes(), 100);
        drop(first);
        assert!(weights(&two, 60).is_some());
        drop(second);
        assert_eq!((budget.used_bytes(), budget.report().peak_bytes), (0, 100));
        // A ledger that is gone holds nothing back.
        two.claim(90).unwrap();
        assert!(weights(&one, 11).is_none());
        drop(two);
        assert!(weights(&one, 100).is_some());
    }

    #[test]
    fn what_is_claimed_is_there_for_whoever_claimed_it() {
        let budget = SharedBudget::new(100, 100);
        let (one, two) = (budget.ledger(), budget.ledger());
        one.claim(50).unwrap();
        assert_eq!((one.room_bytes(100), two.room_bytes(100)), (100, 50));
        let others = weights(&two, 50).unwrap();
        assert!(two.claim(51).is_err());
        assert!(one.claim(51).is_err());
        // Under a limit that became lower, too.
        budget.set_limit(10);
        let own = weights(&one, 50).unwrap();
        assert!(weights(&one, 1).is_none());
        // Who holds more than it claims counts with what it holds.
        one.claim(0).unwrap();
        budget.set_limit(100);
        assert_eq!(two.room_bytes(100), 50);
        drop((own, others));
        two.settle_claim(200);
        assert_eq!(two.taken_bytes(), 100);
        two.settle_claim(20);
        assert_eq!((two.taken_bytes(), one.room_bytes(100)), (20, 80));
        // Of the claim only what is not held yet counts as free elsewhere.
        let held = weights(&two, 15).unwrap();
        assert_eq!((two.unheld_bytes(), one.others_unheld_bytes()), (5, 5));
        assert_eq!(two.others_unheld_bytes(), 0);
        drop(held);
    }

    #[test]
    fn the_device_counts_once() {
        let budget = SharedBudget::new(100, 100);
        budget.hold(MemoryKind::Context, 10);
        let ledgers = [budget.ledger(), budget.ledger()];
        let contexts = ledgers
            .each_ref()
            .map(|ledger| ledger.reserve_common(MemoryKind::Context, 10).unwrap());
        assert_eq!(ledgers.each_ref().map(Ledger::used_bytes), [10, 10]);
        assert_eq!(budget.used_bytes(), 10);
        // Each one's figures have the device.
        ledgers[0].claim(60).unwrap();
        assert_eq!(ledgers[1].room_bytes(100), 50);
        assert!(ledgers[1].claim(51).is_err());
        ledgers[1].claim(50).unwrap();
        drop(contexts);
        assert_eq!(ledgers[0].used_bytes(), 0);
        assert_eq!(budget.used_bytes(), 10);
    }

    #[test]
    fn a_model_that_was_given_more_raises_the_budget_while_it_is_there() {
        let budget = SharedBudget::new(100, 100);
        let (one, two) = (budget.ledger(), budget.ledger());
        one.set_limit(150);
        assert_eq!((one.room_bytes(150), two.room_bytes(100)), (150, 100));
        one.claim(120).unwrap();
        assert_eq!(two.room_bytes(100), 30);
        one.settle_claim(0);
        assert_eq!(two.room_bytes(100), 100);
        // Where all have less, the budget is what it is.
        one.set_limit(30);
        assert!(weights(&one, 31).is_none());
        assert_eq!(two.room_bytes(100), 100);
    }

    #[test]
    fn pinned_memory_has_one_limit() {
        let budget = SharedBudget::new(100, 100);
        let (one, two) = (budget.ledger(), budget.ledger());
        assert!(one.pin(60, 59).is_none());
        let first = one.pin(60, 60).unwrap();
        assert!(two.pin(41, 60).is_none());
        let _second = two.pin(40, 60).unwrap();
        assert_eq!((one.pinned_bytes(), budget.pinned_bytes()), (60, 100));
        drop(first);
        assert_eq!((one.pinned_bytes(), budget.pinned_bytes()), (0, 40));
    }

    /// Numbers that look random, the same in each run.
    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(seed), |last| {
            Some(last.wrapping_mul(6364136223846793005).wrapping_add(1))
        })
        .map(|number| number >> 33)
    }

    #[test]
    fn however_threads_take_and_claim_the_sum_keeps_to_the_budget() {
        const LIMIT: u64 = 1000;
        let budget = SharedBudget::new(LIMIT, 0);
        thread::scope(|scope| {
            for seed in 1..=4 {
                let budget = &budget;
                scope.spawn(move || {
                    let ledger = budget.ledger();
                    let mut held: Vec<LedgerEntry> = Vec::new();
                    let mut claimed = 0;
                    for number in numbers(seed).skip(1).take(5000) {
                        let bytes = number % 400;
                        match number % 5 {
                            0 if ledger.claim(bytes).is_ok() => claimed = bytes,
                            1 => held.truncate(held.len() / 2),
                            _ => held.extend(weights(&ledger, bytes / 8)),
                        }
                        let used = ledger.used_bytes();
                        assert_eq!(used, held.iter().map(LedgerEntry::bytes).sum::<u64>());
                        assert!(budget.used_bytes() <= LIMIT);
                        // What was claimed can be had, whatever the others do.
                        if used < claimed {
                            drop(weights(&ledger, claimed - used).expect("it is claimed"));
                        }
                    }
                });
            }
        });
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.report().peak_bytes <= LIMIT);
    }
}
