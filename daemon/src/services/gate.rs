//! Places for work that takes a core or memory, such as tokenizing and planning, and a bounded line for them: turns go round
//! between users and their connections, and who leaves the line is forgotten.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_engine::fair::{FairQueue, Room, ShareKey};
use tokio::sync::oneshot;

use crate::{failure::Failure, operations::ChangeNotifier};

/// So many places, and a line for them.
#[derive(Debug)]
pub(super) struct Gate {
    line_max: usize,
    state: Mutex<GateState>,
    /// Told when somebody leaves, so that there is room in the line.
    changes: ChangeNotifier,
}

#[derive(Debug)]
struct GateState {
    free: usize,
    last_number: u64,
    line: FairQueue<oneshot::Sender<GatePlace>>,
}

/// One of the places, which the next in line gets when this is dropped.
#[derive(Debug)]
pub(super) struct GatePlace(Arc<Gate>);

impl Drop for GatePlace {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.lock();
            let next = state.line.pop();
            if next.is_none() {
                state.free += 1;
            }
            next
        };
        // Not under the lock: whoever has left meanwhile drops the place, which goes to the one behind.
        if let Some(next) = next {
            let _ = next.send(Self(self.0.clone()));
        }
        self.0.changes.tell();
    }
}

/// Somebody who waits, and is out of the line once this is dropped.
struct InLine<'a> {
    gate: &'a Gate,
    number: u64,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let left = self.gate.lock().line.remove(self.number);
        if left.is_some() {
            self.gate.changes.tell();
        }
    }
}

impl Gate {
    pub(super) fn new(places: usize, line_max: usize, changes: ChangeNotifier) -> Arc<Self> {
        Arc::new(Self {
            line_max,
            state: Mutex::new(GateState {
                free: places,
                last_number: 0,
                line: FairQueue::default(),
            }),
            changes,
        })
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// At once, when as many wait as may, or as many of this user.
    pub(super) async fn enter(self: &Arc<Self>, share: ShareKey) -> Result<GatePlace, Failure> {
        let (number, turn) = {
            let mut state = self.lock();
            if state.free > 0 {
                state.free -= 1;
                return Ok(GatePlace(self.clone()));
            }
            if !state.line.has_place(share, self.line_max) {
                return Err(Failure::PreparingFull { max: self.line_max });
            }
            let (send, turn) = oneshot::channel();
            state.last_number += 1;
            let number = state.last_number;
            state.line.insert(share, number, 1, send);
            (number, turn)
        };
        let _in_line = InLine { gate: self, number };
        // The sender is in the line, which nobody else takes it out of without a place for it.
        turn.await.map_err(|_| Failure::WorkLost)
    }

    /// Whether this share would be let in, or into the line, and if not, who would.
    pub(super) fn room(&self, share: ShareKey) -> Room {
        let state = self.lock();
        match state.free {
            0 => state.line.room(share, self.line_max),
            _ => Room::Free,
        }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        // Each change is one step, so a panic leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn of(user: u64) -> ShareKey {
        ShareKey {
            user,
            connection: user,
        }
    }

    #[tokio::test]
    async fn users_take_turns_and_who_leaves_is_forgotten() {
        let gate = Gate::new(1, 8, ChangeNotifier::default());
        let inside = gate.enter(of(1)).await.unwrap();
        let mut waiting: Vec<_> = [1, 1, 1, 2]
            .map(|user| Box::pin(gate.enter(of(user))))
            .into();
        for entering in &mut waiting {
            assert!(entering.as_mut().now_or_never().is_none());
        }
        // The first of user 1 loses patience.
        drop(waiting.remove(0));
        drop(inside);
        let first = waiting[0].as_mut().now_or_never().unwrap().unwrap();
        assert!(waiting[1].as_mut().now_or_never().is_none());
        drop(first);
        let second = waiting[2].as_mut().now_or_never().unwrap().unwrap();
        // A place that was given to somebody who left goes to the one behind.
        let last = waiting.remove(1);
        drop(second);
        drop(last);
        assert!(gate.enter(of(3)).now_or_never().unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_full_line_refuses_one_user_before_the_others() {
        let gate = Gate::new(1, 8, ChangeNotifier::default());
        let _inside = gate.enter(of(1)).await.unwrap();
        let mut waiting = Vec::new();
        while gate.room(of(1)) == Room::Free {
            let mut entering = Box::pin(gate.enter(of(1)));
            assert!(entering.as_mut().now_or_never().is_none());
            waiting.push(entering);
        }
        assert_eq!(waiting.len(), 6);
        let refused = gate.enter(of(1)).now_or_never().unwrap().unwrap_err();
        assert!(matches!(refused, Failure::PreparingFull { max: 8 }));
        assert_eq!(gate.room(of(2)), Room::Free);
        waiting.clear();
        assert_eq!(gate.room(of(1)), Room::Free);
    }
}
