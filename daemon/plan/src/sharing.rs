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
    /// Those that are loaded, in the order in which they go.
    pub loaded: &'a [LoadedShare],
}

/// What has to be done for another model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoomChoice {
    /// These have to go, in this order.
    Evict(Vec<usize>),
    /// It would not fit even if all went that may.
    TooLarge,
    /// As many as may be loaded are, and too few of them may go.
    NoPlace,
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

    /// Chooses the fewest of the first that go by which the model fits as well as it would if all went that may. `fit` is
    /// asked how it fits once some have gone.
    ///
    /// # Errors
    /// Those of `fit`.
    pub fn make_room<E>(
        &self,
        fit: &mut dyn FnMut(&[usize]) -> Result<Fit, E>,
    ) -> Result<RoomChoice, E> {
        let may_go = |&index: &usize| self.loaded[index].may_go;
        let order: Vec<usize> = (0..self.loaded.len()).filter(may_go).collect();
        let least = (self.loaded.len() + 1).saturating_sub(self.models_max);
        if least > order.len() {
            return Ok(RoomChoice::NoPlace);
        }
        let best = fit(&order)?;
        if best == Fit::Not {
            return Ok(RoomChoice::TooLarge);
        }
        let mut gone = order.clone();
        for count in least..order.len() {
            if fit(&order[..count])? >= best {
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
            if fit(&fewer)? >= best {
                gone = fewer;
            }
        }
        Ok(RoomChoice::Evict(gone))
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

    /// What goes for a model that takes `whole` bytes, and at least `least`, of a budget of 100.
    fn choice(loaded: &[LoadedShare], models_max: usize, least: u64, whole: u64) -> RoomChoice {
        let shares = LoadedShares {
            budget_bytes: 100,
            models_max,
            loaded,
        };
        let mut fit = |gone: &[usize]| {
            let room = shares.room_bytes(100, gone);
            Ok::<_, Infallible>(match room {
                room if room >= whole => Fit::Whole,
                room if room >= least => Fit::Streamed,
                _ => Fit::Not,
            })
        };
        let Ok(choice) = shares.make_room(&mut fit);
        choice
    }

    fn evict(gone: &[usize]) -> RoomChoice {
        RoomChoice::Evict(gone.to_vec())
    }

    #[test]
    fn nobody_goes_where_all_fit() {
        assert_eq!(choice(&[], 1, 10, 100), evict(&[]));
        assert_eq!(choice(&[share(30), share(40)], 3, 10, 30), evict(&[]));
    }

    #[test]
    fn the_first_go_until_it_fits_whole() {
        let loaded = [share(30), share(30), share(30)];
        assert_eq!(choice(&loaded, 4, 10, 40), evict(&[0]));
        assert_eq!(choice(&loaded, 4, 10, 70), evict(&[0, 1]));
        assert_eq!(choice(&loaded, 4, 10, 100), evict(&[0, 1, 2]));
        // Whoever need not go stays, though its turn was before.
        let loaded = [share(5), share(60), share(20)];
        assert_eq!(choice(&loaded, 4, 10, 70), evict(&[1]));
    }

    #[test]
    fn what_is_streamed_anyway_evicts_no_more_than_it_must() {
        let loaded = [share(40), share(50)];
        assert_eq!(choice(&loaded, 3, 10, 200), evict(&[]));
        assert_eq!(choice(&loaded, 3, 30, 200), evict(&[0]));
        assert_eq!(choice(&loaded, 3, 101, 200), RoomChoice::TooLarge);
    }

    #[test]
    fn pinned_models_stay() {
        let loaded = [pinned(40), share(30), share(20)];
        assert_eq!(choice(&loaded, 4, 10, 40), evict(&[1]));
        // It streams beside the pinned one, for which nobody need go.
        assert_eq!(choice(&loaded, 4, 10, 90), evict(&[]));
        assert_eq!(choice(&loaded, 4, 30, 90), evict(&[1]));
        assert_eq!(choice(&loaded, 4, 70, 90), RoomChoice::TooLarge);
        assert_eq!(choice(&[pinned(1)], 1, 10, 10), RoomChoice::NoPlace);
    }

    #[test]
    fn no_more_are_loaded_than_may_be() {
        let loaded = [share(5), share(5)];
        assert_eq!(choice(&loaded, 2, 10, 10), evict(&[0]));
        assert_eq!(choice(&loaded, 1, 10, 10), evict(&[0, 1]));
        let loaded = [share(5), pinned(5), share(50)];
        assert_eq!(choice(&loaded, 3, 10, 80), evict(&[2]));
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
