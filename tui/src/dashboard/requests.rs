//! Requests as the dashboard sees them: our own, those of other clients, and those that ended.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
};

use sluice_proto::v1::{Operation, OperationState, Snapshot};

use crate::{canvas::Canvas, record::Recording};

/// Most requests of ours that wait or run at once: more than the daemon batches, fewer than its queue holds.
pub const OWN_MAX: usize = 8;
/// Most requests whose passes are kept.
pub const RECORDINGS_MAX: usize = 16;
/// Most ended requests that are listed.
pub const ENDED_MAX: usize = 64;
/// Keys from here on stand for requests of earlier daemons: each daemon counts its requests from 1.
pub(super) const EARLIER: u64 = 1 << 63;

/// Requests seen event by event, and the one that is selected.
#[derive(Debug, Default)]
pub struct Requests {
    /// What was seen of each request, by its id; requests of earlier daemons have keys from 2^63 on.
    pub recordings: BTreeMap<u64, Recording>,
    /// Ended requests as the daemon lists them, the latest first; at most [`ENDED_MAX`].
    pub ended: VecDeque<Operation>,
    /// Our own that wait or run, the earliest first; at most [`OWN_MAX`].
    pub own: Vec<OwnRequest>,
    /// The selected request; `None` where there is nothing to select.
    pub selected: Option<u64>,
    /// Whether the user chose the selection; otherwise it follows the request that runs.
    pub(super) chosen: bool,
    pub(super) watched: Option<u64>,
    /// Serial number of the last request of ours.
    serials: u64,
    /// Number of keys from [`EARLIER`] on that were given so far.
    parted: u64,
}

/// A request that was sent from here, while it waits or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRequest {
    /// Counts the requests that were sent from here.
    pub serial: u64,
    /// The daemon's id; `None` until the daemon has queued it.
    pub request_id: Option<u64>,
}

impl Requests {
    /// Lists a request of ours that is about to be sent; its serial number is returned.
    pub(super) fn send(&mut self) -> u64 {
        self.serials += 1;
        self.own.push(OwnRequest {
            serial: self.serials,
            request_id: None,
        });
        // The selection follows the new request, whatever the user selected before.
        self.chosen = false;
        self.serials
    }

    /// Whether the daemon's request is one of ours that waits or runs.
    #[must_use]
    pub fn is_own(&self, request_id: u64) -> bool {
        let mut own = self.own.iter();
        own.any(|own| own.request_id == Some(request_id))
    }

    /// Our own with this serial number, while it waits or runs.
    #[must_use]
    pub fn own(&self, serial: u64) -> Option<OwnRequest> {
        self.own.iter().find(|own| own.serial == serial).copied()
    }

    /// Removes a request of ours that ended; `None` if it was removed before.
    pub(super) fn end_own(&mut self, serial: u64) -> Option<OwnRequest> {
        let at = self.own.iter().position(|own| own.serial == serial)?;
        Some(self.own.remove(at))
    }

    /// The latest picture of a request.
    #[must_use]
    pub fn canvas(&self, request_id: u64) -> Option<&Canvas> {
        self.recordings.get(&request_id).map(Recording::canvas)
    }

    /// Name of a request for the screen: its id, with "earlier" where an earlier daemon gave it.
    #[must_use]
    pub fn name(&self, request_id: u64) -> String {
        if request_id < EARLIER {
            return request_id.to_string();
        }
        let canvas = self.canvas(request_id);
        let queued = canvas.and_then(|canvas| canvas.queued.as_ref());
        let started = canvas.and_then(|canvas| canvas.started.as_ref());
        let number = queued.map(|queued| queued.request_id);
        match number.or(started.map(|started| started.request_id)) {
            Some(number) => format!("earlier {number}"),
            None => "earlier".to_owned(),
        }
    }

    /// Lists the requests that left the snapshot as ended. Returns whether the daemon must be asked how they ended.
    pub(super) fn compare(&mut self, before: &Snapshot, after: &Snapshot) -> bool {
        let mut asks = false;
        for row in before.requests() {
            let goes_on = after.requests();
            let mut goes_on = goes_on.filter(|other| other.operation_id == row.operation_id);
            // The end of our own requests comes over their own streams.
            if goes_on.next().is_some() || self.is_own(row.operation_id) {
                continue;
            }
            if self.canvas(row.operation_id).is_some_and(Canvas::has_ended) {
                continue;
            }
            asks = true;
            // A placeholder until the daemon's answer: it may have forgotten the request, or be gone by then.
            self.ended.push_front(Operation {
                state: OperationState::Unspecified.into(),
                error: Some("how is not known".to_owned().into()),
                ..row.clone()
            });
        }
        self.ended.truncate(ENDED_MAX);
        asks
    }

    /// Takes the ended requests of the daemon's list, including those that ended before the dashboard started.
    pub(super) fn learn(&mut self, rows: Vec<Operation>) {
        for row in rows.into_iter().filter(|row| !is_active(row)) {
            self.ended
                .retain(|ended| ended.operation_id != row.operation_id);
            self.ended.push_front(row);
        }
        let ended = self.ended.make_contiguous();
        ended.sort_by_key(|row| Reverse(row.operation_id));
        self.ended.truncate(ENDED_MAX);
    }

    /// Moves all recordings to keys from [`EARLIER`] on, since a restarted daemon gives the same ids to other requests.
    pub(super) fn part(&mut self) {
        let selected = self.selected.take();
        for (key, mut recording) in std::mem::take(&mut self.recordings) {
            let has_ended = recording.canvas().has_ended();
            if !has_ended && recording.is_empty() {
                continue;
            }
            if !has_ended {
                recording.fail("its daemon was stopped".to_owned());
            }
            let kept = match key < EARLIER {
                true => {
                    self.parted += 1;
                    EARLIER + self.parted
                }
                false => key,
            };
            if selected == Some(key) {
                self.selected = Some(kept);
            }
            self.recordings.insert(kept, recording);
        }
        self.ended.clear();
        self.watched = None;
        self.chosen = false;
    }

    /// Drops the oldest recordings beyond [`RECORDINGS_MAX`], but never the selected one or our own.
    pub(super) fn evict(&mut self) {
        let own = self.own.iter().map(|own| own.request_id);
        let kept: Vec<Option<u64>> = own.chain([self.selected]).collect();
        while self.recordings.len() > RECORDINGS_MAX {
            // Keys of earlier daemons are larger, but their recordings are older.
            let earlier = self.recordings.range(EARLIER..);
            let mut oldest = earlier.chain(self.recordings.range(..EARLIER));
            let oldest = oldest.find(|(id, _)| !kept.contains(&Some(**id)));
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                break;
            };
            self.recordings.remove(&oldest);
        }
    }
}

/// Whether a request waits or runs.
pub(super) fn is_active(row: &Operation) -> bool {
    matches!(
        row.state(),
        OperationState::Queued | OperationState::Running
    )
}
