//! Spreads independent work over threads and keeps the order of its results.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};

/// Calls `work` for every item on up to so many threads; the results come in the order of the items.
pub fn map<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<R>>>> = Mutex::new(items.iter().map(|_| None).collect());
    let run = || {
        loop {
            // One item at a time from a shared counter: items differ in length, and fixed shares would leave threads
            // idle.
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = work(item);
            results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(run);
        }
        // The calling thread works, too.
        run();
    });
    results
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .into_iter()
        .map(|result| result.context("a worker thread ended early")?)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail_at_fifty(item: u32) -> Result<u32> {
        anyhow::ensure!(item != 50, "fifty");
        Ok(item)
    }

    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        for threads in [1, 2, 7] {
            let doubled = map(threads, &items, |item| Ok(item * 2)).expect("map");
            assert_eq!(
                doubled,
                items.iter().map(|item| item * 2).collect::<Vec<_>>()
            );
        }
        assert!(map(2, &items, |item| fail_at_fifty(*item)).is_err());
    }
}
