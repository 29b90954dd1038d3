//! Requests as the dashboard sees them: our own, those of other clients, and those that ended.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
};

use sluice_proto::v1::{
    FinishReason, Operation, OperationKind, OperationState, RequestDetail, Snapshot,
    generation_event::Event, operation,
};

use super::{event::Effect, keys::Page, pages, state::DashboardState};
use crate::{canvas::Canvas, record::Recording};

/// Most requests of ours that wait or run at once: more than the daemon batches, fewer than its queue holds.
pub const OWN_MAX: usize = 8;
/// Most requests whose passes are kept.
pub const RECORDINGS_MAX: usize = 16;
/// Most ended requests that are listed.
pub const ENDED_MAX: usize = 64;
/// Keys from here on stand for requests of earlier daemons: each daemon counts its requests from 1.
const EARLIER: u64 = 1 << 63;

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
    fn part(&mut self) {
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
    fn evict(&mut self) {
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

/// Takes an event of a request. `serial` is set if it came over the stream of a request of ours.
pub(super) fn follow(
    state: &mut DashboardState,
    request_id: u64,
    kind: Event,
    serial: Option<u64>,
) {
    let own = serial.map(|serial| state.requests.own(serial));
    match own {
        // It was dropped here while this event was in the queue.
        Some(None) => return,
        // It was watched before its id was known to be ours; taken twice, its passes would count twice.
        None if state.requests.is_own(request_id) => return,
        _ => {}
    }
    let own = own.flatten();
    if let Event::Loading(loading) = &kind {
        state.tell(format!("waiting for {} to load", loading.model));
        return;
    }
    state.levels.presets.see(&kind);
    let ends = matches!(kind, Event::Done(_));
    if let Some(own) = own
        && own.request_id.is_none()
        && matches!(kind, Event::Queued(_))
    {
        let mut all = state.requests.own.iter_mut();
        if let Some(own) = all.find(|other| other.serial == own.serial) {
            own.request_id = Some(request_id);
        }
        state.requests.selected = Some(request_id);
        state.requests.chosen = false;
        state.show_latest();
    }
    match &kind {
        Event::Notice(notice) => state.tell(notice.text.clone()),
        Event::Started(started) if !started.warnings.is_empty() => {
            state.tell(started.warnings.join("; "));
        }
        _ => {}
    }
    let recordings = &mut state.requests.recordings;
    recordings.entry(request_id).or_default().take(kind);
    if let Some(own) = own.filter(|_| ends) {
        state.requests.end_own(own.serial);
        pages::chat::answered(state, own.serial, request_id);
    }
    state.requests.evict();
}

/// Takes the failure of a request of ours: the daemon refused it, or its stream broke off.
pub(super) fn own_failed(state: &mut DashboardState, serial: u64, message: String) {
    let Some(own) = state.requests.end_own(serial) else {
        return;
    };
    let told = match own.request_id {
        None => pages::chat::refused(state, serial),
        Some(id) => {
            if let Some(recording) = state.requests.recordings.get_mut(&id) {
                recording.fail(message.clone());
            }
            pages::chat::broke_off(state, serial, id)
        }
    };
    let message = pages::chat::with_hint(message);
    state.warn(with(message, told));
}

/// Cancels a request of ours; one that has no id yet is taken back by dropping its stream.
pub(super) fn cancel_own(state: &mut DashboardState, serial: u64, effects: &mut Vec<Effect>) {
    match state.requests.own(serial).map(|own| own.request_id) {
        None => state.tell("your request has ended already"),
        Some(None) => {
            effects.push(Effect::DropOwn(serial));
            state.requests.end_own(serial);
            let told = pages::chat::refused(state, serial);
            state.tell(with("your request was taken back".to_owned(), told));
        }
        Some(Some(id)) => {
            effects.push(Effect::Cancel(id));
            state.tell("cancelling");
        }
    }
}

/// Joins two messages.
fn with(words: String, more: Option<String>) -> String {
    match more {
        Some(more) => format!("{words}; {more}"),
        None => words,
    }
}

/// Cancels all requests of ours, and the prompts that wait to be sent.
pub(super) fn cancel_all_own(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    // First the waiting prompts, or the end of an answer would send the next one.
    let waiting = std::mem::take(&mut state.chat.waiting).len();
    let all: Vec<u64> = state.requests.own.iter().map(|own| own.serial).collect();
    for serial in all {
        cancel_own(state, serial, effects);
    }
    if waiting > 0 {
        let words = "cancelling".to_owned();
        state.tell(with(words, Some(pages::chat::not_sent(waiting))));
    }
}

/// Takes a restart of the daemon: nothing that is shown or asked belongs to the new one.
pub(super) fn begin_anew(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    let own = state.requests.own.iter();
    // Requests without an id may have been sent to the new daemon already, so they go on.
    let numbered = own.filter(|own| own.request_id.is_some());
    let serials: Vec<u64> = numbered.map(|own| own.serial).collect();
    for serial in serials {
        effects.push(Effect::DropOwn(serial));
        own_failed(state, serial, "the daemon was restarted".to_owned());
    }
    state.requests.part();
    state.frozen = None;
    if state.opened.is_none() {
        state.reel.rewind();
    }
    state.withdraw_question();
}

/// Updates the selection and the watch that follows it. Returns whether the selection changed.
pub(super) fn select(state: &mut DashboardState, effects: &mut Vec<Effect>) -> bool {
    let rows = state.all_rows();
    let before = state.requests.selected;
    let requests = &state.requests;
    let listed = |id: &u64| rows.iter().any(|row| row.operation_id == *id);
    let present = requests
        .selected
        .filter(|id| listed(id) || requests.recordings.contains_key(id));
    let lasting = present.filter(|id| requests.chosen || !state.has_ended(*id));
    let own = requests.own.iter().rev().find_map(|own| own.request_id);
    let own = own.filter(|_| !requests.chosen);
    let running = rows
        .iter()
        .find(|row| row.state() == OperationState::Running)
        .map(|row| row.operation_id);
    let first = rows.first().map(|row| row.operation_id);
    // In order of preference. A user who looks at an earlier pass keeps the request; our own comes before what was
    // chosen by itself, and what runs before what ended.
    let held = present.filter(|_| state.reel.at.is_some());
    let selected = held.or(own).or(lasting).or(running).or(present).or(first);
    if selected != state.requests.selected {
        match state.opened {
            // An opened run stays on the screen; `choose` would close it.
            Some(_) => state.requests.selected = selected,
            None => choose(state, selected),
        }
        state.requests.chosen = false;
    }
    // Our own requests have their own streams, ended ones have no further events, and only generations can be watched.
    let wanted = state.requests.selected.filter(|id| {
        !state.requests.is_own(*id) && !state.has_ended(*id) && !state.fills_no_canvas(*id)
    });
    if state.is_connected() && wanted != state.requests.watched {
        state.requests.watched = wanted;
        effects.push(Effect::Watch(wanted));
    }
    selected != before
}

/// Selects a request on the user's behalf and shows its latest pass.
pub(super) fn choose(state: &mut DashboardState, request_id: Option<u64>) {
    state.requests.selected = request_id;
    state.requests.chosen = true;
    state.show_latest();
}

/// Selects the request `by` rows below the selected one.
pub(super) fn step_request(state: &mut DashboardState, by: isize) {
    let rows = state.rows();
    let at = rows
        .iter()
        .position(|row| Some(row.operation_id) == state.requests.selected)
        .map_or(0, |at| at.saturating_add_signed(by));
    if let Some(row) = rows.get(at.min(rows.len().saturating_sub(1))) {
        choose(state, Some(row.operation_id));
    }
}

impl DashboardState {
    /// Requests to list: those that wait or run, then those that ended, the newest first. On the overview only those that match
    /// the filter.
    #[must_use]
    pub fn rows(&self) -> Vec<Operation> {
        let mut rows = self.rows_of(self.snapshot());
        if self.page == Page::Overview && !self.filter.value().is_empty() {
            let wanted = self.filter.value().to_lowercase();
            rows.retain(|row| {
                let state = row.state().to_string();
                let name = self.requests.name(row.operation_id);
                let words = format!("{name} {state} {}", row.error_message());
                words.to_lowercase().contains(&wanted)
            });
        }
        rows
    }

    /// The present requests, even while the screen is frozen or filtered.
    pub(super) fn all_rows(&self) -> Vec<Operation> {
        self.rows_of(self.present())
    }

    fn rows_of(&self, snapshot: Option<&Snapshot>) -> Vec<Operation> {
        let mut rows =
            snapshot.map_or_else(Vec::new, |snapshot| snapshot.requests().cloned().collect());
        let has = |rows: &[Operation], id| rows.iter().any(|row| row.operation_id == id);
        let recordings = &self.requests.recordings;
        let of_recording = |(id, recording): (&u64, &Recording)| {
            let canvas = recording.canvas();
            canvas.has_ended().then(|| ended(*id, canvas))
        };
        let seen = recordings.range(..EARLIER).filter_map(of_recording);
        let mut past: Vec<Operation> = seen.collect();
        for row in &self.requests.ended {
            if !has(&past, row.operation_id) {
                past.push(row.clone());
            }
        }
        past.retain(|row| !has(&rows, row.operation_id));
        past.sort_by_key(|row| Reverse(row.operation_id));
        rows.extend(past);
        rows.extend(recordings.range(EARLIER..).rev().filter_map(of_recording));
        rows
    }

    /// Whether a request is known to be no generation.
    #[must_use]
    pub fn fills_no_canvas(&self, request_id: u64) -> bool {
        let listed = self.present().into_iter().flat_map(Snapshot::requests);
        let mut requests = listed.chain(&self.requests.ended);
        requests.any(|row| row.operation_id == request_id && row.kind() != OperationKind::Generate)
    }

    /// Whether a request of ours waits or runs.
    pub(super) fn own_is_active(&self) -> bool {
        !self.requests.own.is_empty()
    }

    pub(super) fn has_ended(&self, request_id: u64) -> bool {
        let canvas = self.requests.canvas(request_id);
        canvas.is_some_and(Canvas::has_ended)
    }
}

/// A row for an ended request of which only the recording is left.
fn ended(request_id: u64, canvas: &Canvas) -> Operation {
    let started = canvas.started.as_ref();
    let done = canvas.done.as_ref();
    let state = match done {
        Some(done) if done.finish_reason() == FinishReason::Cancelled => OperationState::Cancelled,
        Some(_) => OperationState::Done,
        None => OperationState::Failed,
    };
    let detail = RequestDetail {
        length: started.map_or(0, |started| started.length),
        blocks: started.map_or(0, |started| started.blocks),
        done_blocks: u32::try_from(canvas.blocks.len()).unwrap_or(u32::MAX),
        passes: done.map_or(0, |done| done.passes),
        ..Default::default()
    };
    Operation {
        operation_id: request_id,
        kind: OperationKind::Generate.into(),
        state: state.into(),
        elapsed_ms: done.map_or(0.0, |done| done.elapsed_ms),
        error: canvas.failure.clone().map(Into::into),
        detail: Some(operation::Detail::Request(detail)),
        ..Default::default()
    }
}
