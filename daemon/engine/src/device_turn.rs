//! The turn of engines that share a device: one of them computes at a time. Who wants it next stands in a line, so that
//! none waits for longer than one pass, or one step of a change, of each of the others.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::heartbeat::{Activity, Heartbeat};

/// The line of those who want the turn; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct TurnLine(Arc<Line>);

#[derive(Default)]
struct Line {
    places: Mutex<Places>,
    moved: Condvar,
}

/// Numbers as at a counter: whoever comes draws the next one, and has the turn when it is called.
#[derive(Default)]
struct Places {
    next: u64,
    called: u64,
}

impl Places {
    /// Whether others wait beside the one that has the turn.
    fn is_wanted(&self) -> bool {
        self.next > self.called + 1
    }
}

/// An engine's place at the line. Dropped with the turn, as by a panic, it passes the turn on.
pub(crate) struct DeviceTurn {
    line: TurnLine,
    has_turn: bool,
    heartbeat: Heartbeat,
}

impl TurnLine {
    /// A place for an engine, which tells by `heartbeat` when it waits.
    pub(crate) fn place(&self, heartbeat: Heartbeat) -> DeviceTurn {
        DeviceTurn {
            line: self.clone(),
            has_turn: false,
            heartbeat,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        // A panic cannot leave a single assignment half-done.
        self.0.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceTurn {
    /// Waits for the turn, unless it is this engine's already.
    pub(crate) fn take(&mut self) {
        if !self.has_turn {
            let places = self.line.lock();
            self.has_turn = self.stand_in(places);
        }
    }

    /// Gives the turn away, if it has it.
    pub(crate) fn release(&mut self) {
        if std::mem::take(&mut self.has_turn) {
            self.line.lock().called += 1;
            self.line.0.moved.notify_all();
        }
    }

    /// Lets those who wait by now go first, each once.
    pub(crate) fn pass_on(&mut self) {
        let mut places = self.line.lock();
        if self.has_turn && places.is_wanted() {
            // With a place before the turn is given away: nobody who has it meanwhile comes again before this one.
            places.called += 1;
            self.line.0.moved.notify_all();
            self.has_turn = self.stand_in(places);
        }
    }

    /// Draws a number and waits until it is called.
    fn stand_in(&self, mut places: MutexGuard<'_, Places>) -> bool {
        let own = places.next;
        places.next += 1;
        if places.called != own {
            // Whether the one that computes gets on is told by its own heartbeat.
            let (before, _) = self.heartbeat.now();
            self.heartbeat.begin(Activity::Turn);
            let wait = (self.line.0.moved).wait_while(places, |places| places.called != own);
            drop(wait.unwrap_or_else(PoisonError::into_inner));
            self.heartbeat.begin(before);
        }
        true
    }

    /// Whether others wait for the turn that it has.
    pub(crate) fn is_wanted(&self) -> bool {
        self.has_turn && self.line.lock().is_wanted()
    }
}

impl Drop for DeviceTurn {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn those_who_wait_take_turns() {
        let line = TurnLine::default();
        let mut first = line.place(Heartbeat::default());
        first.take();
        assert!(!first.is_wanted());
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            for name in ["second", "third"] {
                let tell = tell.clone();
                let before = line.lock().next;
                let mut turn = line.place(Heartbeat::default());
                scope.spawn(move || {
                    for _ in 0..2 {
                        turn.take();
                        tell.send(name).unwrap();
                        turn.pass_on();
                    }
                });
                while line.lock().next == before {
                    thread::yield_now();
                }
            }
            assert!(first.is_wanted());
            // In the order in which they came, and back.
            first.pass_on();
            tell.send("first").unwrap();
            first.release();
        });
        let order: Vec<_> = told.try_iter().collect();
        assert_eq!(order[..3], ["second", "third", "first"]);
        assert_eq!(order.len(), 5);
    }

    #[test]
    fn one_at_a_time_has_the_turn() {
        let line = TurnLine::default();
        let inside = Mutex::new(());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut turn = line.place(Heartbeat::default());
                    for _ in 0..1000 {
                        turn.take();
                        drop(inside.try_lock().expect("nobody else is in"));
                        turn.release();
                    }
                });
            }
        });
    }

    #[test]
    fn who_waits_says_so_and_a_panic_leaves_the_turn() {
        let line = TurnLine::default();
        let heartbeat = Heartbeat::default();
        heartbeat.begin(Activity::Passes);
        let (hold, held) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let mut first = line.place(Heartbeat::default());
            first.take();
            let holder = scope.spawn(move || {
                let _turn = first;
                held.recv().unwrap();
                panic!("while it had the turn");
            });
            let waiter = scope.spawn(|| line.place(heartbeat.clone()).take());
            while heartbeat.now().0 != Activity::Turn {
                thread::yield_now();
            }
            hold.send(()).unwrap();
            waiter.join().unwrap();
            assert!(holder.join().is_err());
        });
        assert_eq!(heartbeat.now().0, Activity::Passes);
    }
}
