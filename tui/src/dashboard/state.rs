//! What the dashboard knows. All of it survives a reconnect.

use std::collections::BTreeMap;

use sluice_proto::v1::{FinishReason, RequestKind, RequestState, RequestSummary, Snapshot};
use tui_input::Input;

use super::{keys::Mode, levels::Levels};
use crate::canvas::Canvas;

/// Snapshots come twice a second; after this long without one the age is shown.
pub const STALE_MS: u64 = 2_500;

/// How things stand with the daemon.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// The first try is under way.
    Connecting,
    /// Snapshots arrive.
    Connected,
    /// Gone; the next try comes at a known time.
    Lost {
        /// What the system or the daemon said.
        cause: String,
        /// When the next try comes.
        retry_at_ms: u64,
    },
}

/// All that the view draws from.
#[derive(Debug)]
pub struct State {
    /// The socket, for the screen.
    pub socket: String,
    /// Milliseconds on the dashboard's clock.
    pub now_ms: u64,
    /// The connection.
    pub link: Link,
    /// The latest snapshot and when it came.
    pub snapshot: Option<(Box<Snapshot>, u64)>,
    /// Requests seen event by event.
    pub canvases: BTreeMap<u64, Canvas>,
    /// Our own request: waiting for its number, or numbered.
    pub own: Own,
    /// The selected request.
    pub selected: Option<u64>,
    /// Lines scrolled back from the canvas's end; 0 follows it.
    pub scroll_lines: usize,
    /// What has the keyboard.
    pub mode: Mode,
    /// The prompt being written.
    pub input: Input,
    /// Something to tell, and when it was told.
    pub message: Option<(String, u64)>,
    /// The request that a question is about.
    pub asked: Option<u64>,
    /// The list of levels, as it was last opened.
    pub levels: Levels,
    /// How far weights are converted for the level that we asked for.
    pub converting: Option<String>,
    /// First line of the help that is shown, where not all of it fits.
    pub help_line: usize,
    /// Whether the user chose the selection; else it follows what runs.
    pub(super) chosen: bool,
    /// Where closing the help leads back to.
    pub(super) below_help: Mode,
    /// Where closing the levels leads back to.
    pub(super) below_levels: Mode,
    pub(super) watched: Option<u64>,
    pub(super) escape_at_ms: Option<u64>,
    pub(super) history: Vec<String>,
    pub(super) recalled: Option<usize>,
}

/// The request that the prompt line started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// None runs.
    Idle,
    /// Sent; the daemon has not numbered it yet.
    Sent,
    /// Waits or runs.
    Active(u64),
}

impl State {
    /// A dashboard that has seen nothing yet.
    #[must_use]
    pub fn new(socket: String) -> Self {
        Self {
            socket,
            now_ms: 0,
            link: Link::Connecting,
            snapshot: None,
            canvases: BTreeMap::new(),
            own: Own::Idle,
            selected: None,
            scroll_lines: 0,
            mode: Mode::Prompt,
            input: Input::default(),
            message: None,
            asked: None,
            levels: Levels::default(),
            converting: None,
            help_line: 0,
            chosen: false,
            below_help: Mode::Prompt,
            below_levels: Mode::Prompt,
            watched: None,
            escape_at_ms: None,
            history: Vec::new(),
            recalled: None,
        }
    }

    /// Requests to list: the daemon's, then those that ended under our eyes, newest first.
    #[must_use]
    pub fn rows(&self) -> Vec<RequestSummary> {
        let mut rows: Vec<RequestSummary> = match &self.snapshot {
            Some((snapshot, _)) => snapshot.requests.clone(),
            None => Vec::new(),
        };
        let known = rows.len();
        for (id, canvas) in self.canvases.iter().rev() {
            if canvas.has_ended() && !rows[..known].iter().any(|row| row.request_id == *id) {
                rows.push(ended(*id, canvas));
            }
        }
        rows
    }

    /// The canvas of the selected request.
    #[must_use]
    pub fn canvas(&self) -> Option<&Canvas> {
        self.canvases.get(&self.selected?)
    }

    /// Whether a request is known to be no generation.
    #[must_use]
    pub fn fills_no_canvas(&self, request_id: u64) -> bool {
        let Some((snapshot, _)) = &self.snapshot else {
            return false;
        };
        let mut requests = snapshot.requests.iter();
        requests.any(|row| row.request_id == request_id && row.kind() != RequestKind::Generate)
    }

    /// How old the shown figures are, when that is worth saying.
    #[must_use]
    pub fn stale_ms(&self) -> Option<u64> {
        let (_, at_ms) = self.snapshot.as_ref()?;
        let age_ms = self.now_ms.saturating_sub(*at_ms);
        let lost = matches!(self.link, Link::Lost { .. });
        (lost || age_ms >= STALE_MS).then_some(age_ms)
    }

    pub(super) fn tell(&mut self, message: impl Into<String>) {
        self.message = Some((message.into(), self.now_ms));
    }

    pub(super) fn own_is_active(&self) -> bool {
        self.own != Own::Idle
    }

    pub(super) fn has_ended(&self, request_id: u64) -> bool {
        let canvas = self.canvases.get(&request_id);
        canvas.is_some_and(Canvas::has_ended)
    }

    /// Process id of the daemon that the latest snapshot came from.
    pub(super) fn daemon_pid(&self) -> Option<u32> {
        let (snapshot, _) = self.snapshot.as_ref()?;
        Some(snapshot.server.as_ref()?.pid)
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
