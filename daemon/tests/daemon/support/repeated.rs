//! What is done again and again while a test changes something.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::task::JoinHandle;

use super::{until, within};

/// Calls that several callers make again and again; one that fails panics.
pub(crate) struct Repeated {
    ends: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    callers: Vec<JoinHandle<()>>,
}

impl Repeated {
    /// `make` has a call made by a connection of its own.
    pub(crate) fn begin<F>(make: impl Fn() -> F + Clone + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send,
    {
        const CALLERS: usize = 4;
        let (ends, made) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let caller = |_| {
            let (ends, made, make) = (ends.clone(), made.clone(), make.clone());
            tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    make().await;
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        Self {
            callers: (0..CALLERS).map(caller).collect(),
            ends,
            made,
        }
    }

    /// Waits until so many more calls were made.
    pub(crate) async fn go_on(&self, calls: usize) {
        let wanted = self.made.load(Ordering::Relaxed) + calls;
        until("more calls", || async {
            assert!(
                self.callers.iter().all(|caller| !caller.is_finished()),
                "a call failed"
            );
            self.made.load(Ordering::Relaxed) >= wanted
        })
        .await;
    }

    /// Ends, and fails if a call did.
    pub(crate) async fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        for caller in self.callers {
            within("a caller", caller).await.unwrap();
        }
    }
}
