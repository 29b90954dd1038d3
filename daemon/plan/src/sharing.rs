//! Which of several loaded models have to go so that another one fits into the budget that all of them share.

/// A loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadedShare {
    /// Bytes that it keeps from others: its plan's peak, or what it holds where that is more, without what all have in common.
    pub taken_bytes: u64,
    /// Its own budget.
    pub budget_bytes: u64,
    /// Whether it may be unloaded for another one.
    pub may_go: bool,
}

/// How a model fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// No plan is possible.
    Not,
    /// Weights are streamed, or a level takes the place of the one that was asked for.
    Streamed,
    /// All weights stay on the device, as asked.
    Whole,
}

/// The models that another one is to be loaded beside.
#[derive(Debug, Clone, Copy)]
pub struct LoadedShares<'a> {
    /// What all may take together, where none was given more.
    pub budget_bytes: u64,
    /// Models that may be loaded at once.
    pub models_max: usize,
    /// Those that are loaded, in the order in which they are evicted.
    pub loaded: &'a [LoadedShare],
}

/// The room for another model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeRoom {
    /// These are evicted for it, in this order.
    pub evicted: Vec<usize>,
    /// Bytes for it then. Where it would not fit even if all were evicted that may be, none is, and these are what it would have: its
    /// plan fails with them.
    pub bytes: u64,
}

impl LoadedShares<'_> {
    /// Most bytes for a model that was given `asked_bytes`, once these have gone.
    #[must_use]
    pub fn room_bytes(&self, asked_bytes: u64, gone: &[usize]) -> u64 {
        let stay = || {
            let loaded = self.loaded.iter().enumerate();
            loaded.filter_map(|(index, share)| (!gone.contains(&index)).then_some(share))
        };
        let limit = stay().map(|share| share.budget_bytes);
        let limit = limit.fold(self.budget_bytes.max(asked_bytes), u64::max);
        let taken: u64 = stay().map(|share| share.taken_bytes).sum();
        limit.saturating_sub(taken).min(asked_bytes)
    }

    /// Chooses the fewest to evict, the first ones first, by which the model fits as well as it would if all went that may. `room` says
    /// how many bytes there are once some have gone, and `fit` how the model fits into so many. `None`: as many as may be loaded are,
    /// and too few of them may go.
    ///
    /// # Errors
    /// Those of `fit`.
    pub fn make_room<E>(
        &self,
        room: &dyn Fn(&[usize]) -> u64,
        fit: &mut dyn FnMut(u64) -> Result<Fit, E>,
    ) -> Result<Option<MadeRoom>, E> {
        let may_go = |&index: &usize| self.loaded[index].may_go;
        let order: Vec<usize> = (0..self.loaded.len()).filter(may_go).collect();
        let least = (self.loaded.len() + 1).saturating_sub(self.models_max);
        if least > order.len() {
            return Ok(None);
        }
        let bytes = room(&order);
        let best = fit(bytes)?;
        if best == Fit::Not {
            return Ok(Some(MadeRoom {
                evicted: Vec::new(),
                bytes,
            }));
        }
        let mut gone = order.clone();
        for count in least..order.len() {
            if fit(room(&order[..count]))? >= best {
                gone.truncate(count);
                break;
            }
        }
        // A small one that went before a large one may not have been needed. Those that were used later are spared first.
        for index in (0..gone.len().saturating_sub(1)).rev() {
            if gone.len() == least {
                break;
            }
            let mut fewer = gone.clone();
            fewer.remove(index);
            if fit(room(&fewer))? >= best {
                gone = fewer;
            }
        }
        Ok(Some(MadeRoom {
            bytes: room(&gone),
            evicted: gone,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn share(taken_bytes: u64) -> LoadedShare {
        LoadedShare {
            taken_bytes,
            budget_bytes: 100,
            may_go: true,
        }
    }

    fn pinned(taken_bytes: u64) -> LoadedShare {
        LoadedShare {
            may_go: false,
            ..share(taken_bytes)
        }
    }

    /// The room for a model that takes `whole` bytes, and at least `least`, of a budget of 100.
    fn choice(
        loaded: &[LoadedShare],
        models_max: usize,
        least: u64,
        whole: u64,
    ) -> Option<MadeRoom> {
        let shares = LoadedShares {
            budget_bytes: 100,
            models_max,
            loaded,
        };
        let mut fit = |bytes| {
            Ok::<_, Infallible>(match bytes {
                bytes if bytes >= whole => Fit::Whole,
                bytes if bytes >= least => Fit::Streamed,
                _ => Fit::Not,
            })
        };
        let Ok(room) = shares.make_room(&|gone| shares.room_bytes(100, gone), &mut fit);
        room
    }

    fn evict(gone: &[usize], bytes: u64) -> Option<MadeRoom> {
        Some(MadeRoom {
            evicted: gone.to_vec(),
            bytes,
        })
    }

    #[test]
    fn nobody_goes_where_all_fit() {
        assert_eq!(choice(&[], 1, 10, 100), evict(&[], 100));
        assert_eq!(choice(&[share(30), share(40)], 3, 10, 30), evict(&[], 30));
    }

    #[test]
    fn the_first_go_until_it_fits_whole() {
        let loaded = [share(30), share(30), share(30)];
        assert_eq!(choice(&loaded, 4, 10, 40), evict(&[0], 40));
        assert_eq!(choice(&loaded, 4, 10, 70), evict(&[0, 1], 70));
        assert_eq!(choice(&loaded, 4, 10, 100), evict(&[0, 1, 2], 100));
        // Whoever need not go stays, though its turn was before.
        let loaded = [share(5), share(60), share(20)];
        assert_eq!(choice(&loaded, 4, 10, 70), evict(&[1], 75));
    }

    #[test]
    fn what_is_streamed_anyway_evicts_no_more_than_it_must() {
        let loaded = [share(40), share(50)];
        assert_eq!(choice(&loaded, 3, 10, 200), evict(&[], 10));
        assert_eq!(choice(&loaded, 3, 30, 200), evict(&[0], 50));
        // Nobody goes for what fits nowhere, which is refused with all that there could be.
        assert_eq!(choice(&loaded, 3, 101, 200), evict(&[], 100));
    }

    #[test]
    fn pinned_models_stay() {
        let loaded = [pinned(40), share(30), share(20)];
        assert_eq!(choice(&loaded, 4, 10, 40), evict(&[1], 40));
        // It streams beside the pinned one, for which nobody need go.
        assert_eq!(choice(&loaded, 4, 10, 90), evict(&[], 10));
        assert_eq!(choice(&loaded, 4, 30, 90), evict(&[1], 40));
        assert_eq!(choice(&loaded, 4, 70, 90), evict(&[], 60));
        assert_eq!(choice(&[pinned(1)], 1, 10, 10), None);
    }

    #[test]
    fn no_more_are_loaded_than_may_be() {
        let loaded = [share(5), share(5)];
        assert_eq!(choice(&loaded, 2, 10, 10), evict(&[0], 95));
        assert_eq!(choice(&loaded, 1, 10, 10), evict(&[0, 1], 100));
        let loaded = [share(5), pinned(5), share(50)];
        assert_eq!(choice(&loaded, 3, 10, 80), evict(&[2], 90));
    }

    #[test]
    fn a_model_that_was_given_more_raises_the_budget() {
        let generous = LoadedShare {
            budget_bytes: 150,
            ..share(100)
        };
        let loaded = [generous];
        let shares = LoadedShares {
            budget_bytes: 100,
            models_max: 2,
            loaded: &loaded,
        };
        assert_eq!(shares.room_bytes(100, &[]), 50);
        assert_eq!(shares.room_bytes(100, &[0]), 100);
        assert_eq!(shares.room_bytes(30, &[]), 30);
        assert_eq!(shares.room_bytes(200, &[]), 100);
    }
}
