//! Requests as they are seen: our own, those of others, and what is still known of those that ended.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
};

use sluice_proto::v1::{
    FinishReason, RequestKind, RequestState, RequestSummary, Snapshot, generation_event::Kind,
};

use super::{event::Effect, keys::Page, pages, state::State};
use crate::{canvas::Canvas, json, record::Recording};

/// Requests whose passes are kept after they ended.
pub const RECORDINGS_MAX: usize = 16;
/// Requests that the daemon lists no more, and that are still listed here.
pub const ENDED_MAX: usize = 32;
/// From here on keys are of requests of daemons that are gone: each daemon counts its requests from 1.
const EARLIER: u64 = 1 << 63;

/// Requests seen event by event, and the one that is selected.
#[derive(Debug, Default)]
pub struct Requests {
    /// What was seen of each.
    pub recordings: BTreeMap<u64, Recording>,
    /// What the daemon said of those that it lists no more, the latest first.
    pub ended: VecDeque<RequestSummary>,
    /// Our own request: waiting for its number, or numbered.
    pub own: Own,
    /// The selected one.
    pub selected: Option<u64>,
    /// Whether the user chose the selection; else it follows what runs.
    pub(super) chosen: bool,
    pub(super) watched: Option<u64>,
    /// Recordings of daemons that are gone, so far.
    parted: u64,
}

/// The request that a prompt started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Own {
    /// None runs.
    #[default]
    Idle,
    /// Sent; the daemon has not numbered it yet.
    Sent,
    /// Waits or runs.
    Active(u64),
}

impl Requests {
    /// The latest picture of one.
    #[must_use]
    pub fn canvas(&self, request_id: u64) -> Option<&Canvas> {
        self.recordings.get(&request_id).map(Recording::canvas)
    }

    /// What one is called: its number, with a word where that was given by a daemon that is gone.
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

    /// Looks at which requests left the daemon's list. Whether it has to be asked how they ended is returned.
    pub(super) fn compare(&mut self, before: &Snapshot, after: &Snapshot) -> bool {
        let mut asks = false;
        for row in &before.requests {
            let goes_on = after.requests.iter();
            let mut goes_on = goes_on.filter(|other| other.request_id == row.request_id);
            // How our own ended comes over its own stream.
            if goes_on.next().is_some() || self.own == Own::Active(row.request_id) {
                continue;
            }
            if self.canvas(row.request_id).is_some_and(Canvas::has_ended) {
                continue;
            }
            asks = true;
            self.ended.push_front(RequestSummary {
                state: RequestState::Unspecified.into(),
                error: "how is not known".to_owned(),
                ..row.clone()
            });
        }
        self.ended.truncate(ENDED_MAX);
        asks
    }

    /// Takes the daemon's list of requests: how those ended that it doesn't show in its snapshots any more.
    pub(super) fn learn(&mut self, rows: Vec<RequestSummary>) {
        for row in rows.into_iter().filter(|row| !is_active(row)) {
            let mut ended = self.ended.iter_mut();
            if let Some(ended) = ended.find(|ended| ended.request_id == row.request_id) {
                *ended = row;
            }
        }
    }

    /// A daemon was started anew, and numbers its requests anew: what was seen of the one before stays under keys of its own.
    fn part(&mut self) {
        let selected = self.selected.take();
        for (key, mut recording) in std::mem::take(&mut self.recordings) {
            let has_ended = recording.canvas().has_ended();
            if !has_ended && recording.is_empty() {
                continue;
            }
            if !has_ended {
                recording.fail("its daemon is gone".to_owned());
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

    /// Lets go of the oldest recordings beyond the bound; never of the selected one, nor of our own.
    fn evict(&mut self) {
        let own = match self.own {
            Own::Active(id) => Some(id),
            Own::Sent | Own::Idle => None,
        };
        let kept = [self.selected, own];
        while self.recordings.len() > RECORDINGS_MAX {
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
pub(super) fn is_active(row: &RequestSummary) -> bool {
    matches!(row.state(), RequestState::Queued | RequestState::Running)
}

/// Takes in what happened to a request.
pub(super) fn follow(state: &mut State, request_id: u64, kind: Kind, is_own: bool) {
    match (is_own, state.requests.own) {
        // It was let go of, and this was on its way.
        (true, Own::Idle) => return,
        // It was watched before it was known to be ours, and this was on its way, too.
        (false, Own::Active(own)) if own == request_id => return,
        _ => {}
    }
    if let Kind::Loading(loading) = &kind {
        state.tell(format!("{} is loaded again", loading.model));
        return;
    }
    state.levels.dials.see(&kind);
    let ends = matches!(kind, Kind::Done(_));
    if is_own && state.requests.own == Own::Sent && matches!(kind, Kind::Queued(_)) {
        state.requests.own = Own::Active(request_id);
        state.requests.selected = Some(request_id);
        state.requests.chosen = false;
        state.show_latest();
    }
    match &kind {
        Kind::Notice(notice) => state.tell(notice.text.clone()),
        Kind::Started(started) if !started.warnings.is_empty() => {
            state.tell(started.warnings.join("; "));
        }
        _ => {}
    }
    let recordings = &mut state.requests.recordings;
    recordings.entry(request_id).or_default().take(kind);
    if ends && state.requests.own == Own::Active(request_id) {
        state.requests.own = Own::Idle;
        pages::chat::answered(state, request_id);
    }
    state.requests.evict();
}

/// Our own request was refused, or broke off.
pub(super) fn own_failed(state: &mut State, message: String) {
    match std::mem::take(&mut state.requests.own) {
        Own::Idle => return,
        Own::Sent => pages::chat::refused(state),
        Own::Active(id) => {
            if let Some(recording) = state.requests.recordings.get_mut(&id) {
                recording.fail(message.clone());
            }
            pages::chat::broke_off(state, id);
        }
    }
    state.warn(pages::chat::with_hint(message));
}

/// Stops our own request; one that has no number yet is taken back.
pub(super) fn cancel_own(state: &mut State, effects: &mut Vec<Effect>) {
    match state.requests.own {
        Own::Idle => state.tell("your request has ended already"),
        Own::Sent => {
            effects.push(Effect::DropOwn);
            state.requests.own = Own::Idle;
            pages::chat::refused(state);
            state.tell("your request was taken back");
        }
        Own::Active(id) => {
            effects.push(Effect::Cancel(id));
            state.tell("cancelling");
        }
    }
}

/// Takes in that a daemon was started anew: nothing that is shown or asked is of it.
pub(super) fn begin_anew(state: &mut State, effects: &mut Vec<Effect>) {
    if matches!(state.requests.own, Own::Active(_)) {
        effects.push(Effect::DropOwn);
        own_failed(state, "the daemon was started anew".to_owned());
    }
    state.requests.part();
    state.frozen = None;
    if state.opened.is_none() {
        state.reel.rewind();
    }
    state.withdraw_question();
}

/// Keeps a selection where there is something to select, and follows what is selected. Whether it is another one now is returned.
pub(super) fn select(state: &mut State, effects: &mut Vec<Effect>) -> bool {
    let rows = state.all_rows();
    let before = state.requests.selected;
    let requests = &state.requests;
    let listed = |id: &u64| rows.iter().any(|row| row.request_id == *id);
    let present = requests
        .selected
        .filter(|id| listed(id) || requests.recordings.contains_key(id));
    let lasting = present.filter(|id| requests.chosen || !state.has_ended(*id));
    let own = match requests.own {
        Own::Active(own) if !requests.chosen => Some(own),
        _ => None,
    };
    let running = rows
        .iter()
        .find(|row| row.state() == RequestState::Running)
        .map(|row| row.request_id);
    let first = rows.first().map(|row| row.request_id);
    // Whoever looks at an earlier pass goes on looking at it.
    let held = present.filter(|_| state.reel.at.is_some());
    let selected = held.or(own).or(lasting).or(running).or(present).or(first);
    if selected != state.requests.selected {
        match state.opened {
            // Whoever looks at a saved run goes on looking at it, too.
            Some(_) => state.requests.selected = selected,
            None => choose(state, selected),
        }
        state.requests.chosen = false;
    }
    // Our own request comes over its own stream, and one that ended has nothing to add.
    let wanted = state.requests.selected.filter(|id| {
        state.requests.own != Own::Active(*id)
            && !state.has_ended(*id)
            && !state.fills_no_canvas(*id)
    });
    if state.is_connected() && wanted != state.requests.watched {
        state.requests.watched = wanted;
        effects.push(Effect::Watch(wanted));
    }
    selected != before
}

/// Selects a request, of which the latest pass is shown.
pub(super) fn choose(state: &mut State, request_id: Option<u64>) {
    state.requests.selected = request_id;
    state.requests.chosen = true;
    state.show_latest();
}

/// Selects the request so many rows below the selected one, of those that are listed.
pub(super) fn step_request(state: &mut State, by: isize) {
    let rows = state.rows();
    let at = rows
        .iter()
        .position(|row| Some(row.request_id) == state.requests.selected)
        .map_or(0, |at| at.saturating_add_signed(by));
    if let Some(row) = rows.get(at.min(rows.len().saturating_sub(1))) {
        choose(state, Some(row.request_id));
    }
}

impl State {
    /// Requests to list: the daemon's, then those that ended under our eyes, newest first; only those that the filter lets
    /// through.
    #[must_use]
    pub fn rows(&self) -> Vec<RequestSummary> {
        let mut rows = self.rows_of(self.snapshot());
        if self.page == Page::Overview && !self.filter.value().is_empty() {
            let wanted = self.filter.value().to_lowercase();
            rows.retain(|row| {
                let state = json::request_state(row.state());
                let name = self.requests.name(row.request_id);
                let words = format!("{name} {state} {}", row.error);
                words.to_lowercase().contains(&wanted)
            });
        }
        rows
    }

    /// The same as they are at present, whatever is frozen or filtered.
    pub(super) fn all_rows(&self) -> Vec<RequestSummary> {
        self.rows_of(self.present())
    }

    fn rows_of(&self, snapshot: Option<&Snapshot>) -> Vec<RequestSummary> {
        let mut rows = snapshot.map_or_else(Vec::new, |snapshot| snapshot.requests.clone());
        let has = |rows: &[RequestSummary], id| rows.iter().any(|row| row.request_id == id);
        let recordings = &self.requests.recordings;
        let of_recording = |(id, recording): (&u64, &Recording)| {
            let canvas = recording.canvas();
            canvas.has_ended().then(|| ended(*id, canvas))
        };
        let seen = recordings.range(..EARLIER).filter_map(of_recording);
        let mut past: Vec<RequestSummary> = seen.collect();
        for row in &self.requests.ended {
            if !has(&past, row.request_id) {
                past.push(row.clone());
            }
        }
        past.retain(|row| !has(&rows, row.request_id));
        past.sort_by_key(|row| Reverse(row.request_id));
        rows.extend(past);
        rows.extend(recordings.range(EARLIER..).rev().filter_map(of_recording));
        rows
    }

    /// Whether a request is known to be no generation.
    #[must_use]
    pub fn fills_no_canvas(&self, request_id: u64) -> bool {
        let listed = self.present().into_iter().flat_map(|now| &now.requests);
        let mut requests = listed.chain(&self.requests.ended);
        requests.any(|row| row.request_id == request_id && row.kind() != RequestKind::Generate)
    }

    pub(super) fn own_is_active(&self) -> bool {
        self.requests.own != Own::Idle
    }

    pub(super) fn has_ended(&self, request_id: u64) -> bool {
        let canvas = self.requests.canvas(request_id);
        canvas.is_some_and(Canvas::has_ended)
    }
}

/// A request that only our canvas remembers.
fn ended(request_id: u64, canvas: &Canvas) -> RequestSummary {
    let started = canvas.started.as_ref();
    let done = canvas.done.as_ref();
    let state = match done {
        Some(done) if done.finish_reason() == FinishReason::Cancelled => RequestState::Cancelled,
        Some(_) => RequestState::Done,
        None => RequestState::Failed,
    };
    RequestSummary {
        request_id,
        kind: RequestKind::Generate.into(),
        state: state.into(),
        length: started.map_or(0, |started| started.length),
        blocks: started.map_or(0, |started| started.blocks),
        blocks_done: u32::try_from(canvas.blocks.len()).unwrap_or(u32::MAX),
        passes: done.map_or(0, |done| done.passes),
        elapsed_ms: done.map_or(0.0, |done| done.elapsed_ms),
        error: canvas.failure.clone().unwrap_or_default(),
        ..Default::default()
    }
}
