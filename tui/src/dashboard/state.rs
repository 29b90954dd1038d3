//! What the dashboard knows. All of it survives a reconnect.

use std::collections::BTreeMap;

use sluice_proto::v1::{
    FinishReason, ModelShape, RequestKind, RequestState, RequestSummary, Snapshot,
};
use sluice_shared::dial::Dial;
use tui_input::Input;

use super::{
    chat::Chat,
    event::Effect,
    history::History,
    jobs::Jobs,
    keep::{Chosen, Keeping},
    keys::{Mode, Page},
    levels::{Fidelity, Levels},
    line::Line,
    options::Options,
};
use crate::{
    canvas::Canvas,
    json,
    paint::Paint,
    record::{Recording, Runs},
};

/// Snapshots come several times a second; after this long without one the age is shown.
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
    /// There is none: a saved run is shown.
    Replay {
        /// Its file.
        name: String,
    },
}

/// All that the view draws from.
#[derive(Debug)]
pub struct State {
    /// The socket, for the screen.
    pub socket: String,
    /// How things look.
    pub paint: Paint,
    /// Milliseconds on the dashboard's clock.
    pub now_ms: u64,
    /// The connection.
    pub link: Link,
    /// The latest snapshot and when it came.
    pub latest: Option<(Box<Snapshot>, u64)>,
    /// The snapshot that was shown when the screen was frozen, and its time.
    pub frozen: Option<(Box<Snapshot>, u64)>,
    /// What was measured over the last minutes.
    pub history: History,
    /// What fills the screen.
    pub page: Page,
    /// What has the keyboard; below it, what gets it back.
    pub modes: Vec<Mode>,
    /// Something to tell.
    pub message: Option<Message>,
    /// What a question is about.
    pub question: Option<Question>,
    /// The line that takes commands.
    pub command: Line,
    /// Commands that were given.
    pub commands: Recall,
    /// What lists are filtered by.
    pub filter: Line,
    /// First line of the help that is shown, where not all of it fits.
    pub help_line: usize,
    /// Requests, and the one that is selected.
    pub requests: Requests,
    /// What the canvas page shows.
    pub reel: Reel,
    /// A run from a file, which the canvas page shows in the selected request's place.
    pub opened: Option<Box<Opened>>,
    /// Where runs are saved.
    pub runs: Runs,
    /// The selected layer of the memory page.
    pub layer: usize,
    /// The prompt being written.
    pub prompt: Input,
    /// Prompts that were sent.
    pub prompts: Recall,
    /// Conversations.
    pub chat: Chat,
    /// What requests ask for.
    pub options: Options,
    /// The chooser.
    pub levels: Levels,
    /// How faithful levels were measured to be.
    pub fidelity: Vec<Fidelity>,
    /// Jobs and models.
    pub jobs: Jobs,
    /// Whether the mouse is ours.
    pub mouse: bool,
    /// Looks that were chosen here.
    pub chosen: Chosen,
    /// What survives this run, as it was last written; `None`: nothing does.
    pub keeping: Option<Keeping>,
    /// Columns and rows of the screen.
    pub size: (u16, u16),
    pub(super) escape_at_ms: Option<u64>,
}

/// Something to tell, for some seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The words.
    pub text: String,
    /// When it was told.
    pub at_ms: u64,
    /// Whether something went wrong.
    pub is_error: bool,
}

/// A question, and what a yes leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The words.
    pub text: String,
    /// What to do.
    pub effects: Vec<Effect>,
    /// What else is to be changed here.
    pub then: Then,
}

/// What a yes changes in the state itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// The present conversation is forgotten.
    ForgetConversation,
    /// Our requests take this position of the dial.
    Dial(Dial),
}

/// Lines that were given, and which one is recalled.
#[derive(Debug, Default)]
pub struct Recall {
    /// The earliest first.
    pub lines: Vec<String>,
    at: Option<usize>,
}

impl Recall {
    /// Lines kept.
    pub const MAX: usize = 100;

    /// Keeps a line, unless it is the one before once more.
    pub fn keep(&mut self, line: &str) {
        self.at = None;
        if self.lines.last().is_none_or(|last| last != line) {
            self.lines.push(line.to_owned());
        }
        let excess = self.lines.len().saturating_sub(Self::MAX);
        self.lines.drain(..excess);
    }

    /// What takes the place of `present`, so many lines later; `None` where a draft would be lost.
    pub fn step(&mut self, present: &str, by: isize) -> Option<String> {
        // Past the newest lies the draft, which must not be lost to a stray key.
        if self.at.is_none() && !present.is_empty() {
            return None;
        }
        let end = self.lines.len();
        let at = self.at.unwrap_or(end).saturating_add_signed(by).min(end);
        self.at = (at < end).then_some(at);
        Some(self.lines.get(at).cloned().unwrap_or_default())
    }

    /// What is written is a draft from here on.
    pub fn leave(&mut self) {
        self.at = None;
    }
}

/// Requests seen event by event, and the one that is selected.
#[derive(Debug, Default)]
pub struct Requests {
    /// What was seen of each.
    pub recordings: BTreeMap<u64, Recording>,
    /// Our own request: waiting for its number, or numbered.
    pub own: Own,
    /// The selected one.
    pub selected: Option<u64>,
    /// Whether the user chose the selection; else it follows what runs.
    pub(super) chosen: bool,
    pub(super) watched: Option<u64>,
}

impl Requests {
    /// The latest picture of one.
    #[must_use]
    pub fn canvas(&self, request_id: u64) -> Option<&Canvas> {
        self.recordings.get(&request_id).map(Recording::canvas)
    }
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

/// Which pass of a request is shown, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reel {
    /// Number of the pass; `None`: the latest, as it comes.
    pub at: Option<u32>,
    /// When the next pass is shown, while they are played.
    pub next_at_ms: Option<u64>,
    /// Text, heat map, or both.
    pub show: Show,
    /// Lines scrolled back from the end; 0 follows it.
    pub scroll: usize,
}

/// What of a request is shown large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Show {
    /// Both, where there is room for them.
    #[default]
    Both,
    /// Its text.
    Text,
    /// How sure the model was, token by token and pass by pass.
    Heat,
}

/// A run that was read from a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// The file, for the screen.
    pub name: String,
    /// What it holds.
    pub recording: Recording,
}

impl State {
    /// A dashboard that has seen nothing yet.
    #[must_use]
    pub fn new(socket: String, paint: Paint) -> Self {
        Self {
            socket,
            paint,
            now_ms: 0,
            link: Link::Connecting,
            latest: None,
            frozen: None,
            history: History::default(),
            page: Page::Overview,
            modes: vec![Mode::Prompt],
            message: None,
            question: None,
            command: Line::default(),
            commands: Recall::default(),
            filter: Line::default(),
            help_line: 0,
            requests: Requests::default(),
            reel: Reel::default(),
            opened: None,
            runs: Runs::default(),
            layer: 0,
            prompt: Input::default(),
            prompts: Recall::default(),
            chat: Chat::default(),
            options: Options::default(),
            levels: Levels::default(),
            fidelity: Vec::new(),
            jobs: Jobs::default(),
            mouse: true,
            chosen: Chosen::default(),
            keeping: None,
            size: (80, 24),
            escape_at_ms: None,
        }
    }

    /// What has the keyboard.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.modes.last().copied().unwrap_or(Mode::Page)
    }

    /// The snapshot to show: the latest, or the one that was there when the screen was frozen.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Snapshot> {
        let shown = self.frozen.as_ref().or(self.latest.as_ref());
        shown.map(|(snapshot, _)| &**snapshot)
    }

    /// The shape of the model, where it is known.
    #[must_use]
    pub fn shape(&self) -> Option<&ModelShape> {
        self.snapshot()?.model.as_ref()?.shape.as_ref()
    }

    /// Whether a daemon is there to be asked.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.link == Link::Connected
    }

    /// Requests to list: the daemon's, then those that ended under our eyes, newest first; only those that the filter lets
    /// through.
    #[must_use]
    pub fn rows(&self) -> Vec<RequestSummary> {
        let mut rows: Vec<RequestSummary> = match self.snapshot() {
            Some(snapshot) => snapshot.requests.clone(),
            None => Vec::new(),
        };
        let known = rows.len();
        for (id, recording) in self.requests.recordings.iter().rev() {
            let canvas = recording.canvas();
            if canvas.has_ended() && !rows[..known].iter().any(|row| row.request_id == *id) {
                rows.push(ended(*id, canvas));
            }
        }
        if self.page == Page::Overview && !self.filter.value().is_empty() {
            let wanted = self.filter.value().to_lowercase();
            rows.retain(|row| {
                let state = json::request_state(row.state());
                let words = format!("{} {state} {}", row.request_id, row.error);
                words.to_lowercase().contains(&wanted)
            });
        }
        rows
    }

    /// The mode that the help was opened in.
    pub(super) fn mode_below_help(&self) -> Mode {
        let mut below = self.modes.iter().rev();
        let mode = below.find(|mode| !matches!(mode, Mode::Help | Mode::Filter));
        mode.copied().unwrap_or(Mode::Page)
    }

    /// The canvas of the selected request.
    #[must_use]
    pub fn canvas(&self) -> Option<&Canvas> {
        self.requests.canvas(self.requests.selected?)
    }

    /// What the canvas page shows: the run that was opened, else the selected request.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        match &self.opened {
            Some(opened) => Some(&opened.recording),
            None => self.requests.recordings.get(&self.requests.selected?),
        }
    }

    /// Lets the canvas page show the latest of the selected request.
    pub(super) fn show_latest(&mut self) {
        // Without a daemon there is nothing but the run.
        if !matches!(self.link, Link::Replay { .. }) {
            self.opened = None;
        }
        self.reel.at = None;
        self.reel.next_at_ms = None;
        self.reel.scroll = 0;
    }

    /// Whether a request is known to be no generation.
    #[must_use]
    pub fn fills_no_canvas(&self, request_id: u64) -> bool {
        let mut requests = self.latest.iter().flat_map(|(latest, _)| &latest.requests);
        requests.any(|row| row.request_id == request_id && row.kind() != RequestKind::Generate)
    }

    /// How old the shown figures are, when that is worth saying.
    #[must_use]
    pub fn stale_ms(&self) -> Option<u64> {
        if let Some((_, at_ms)) = &self.frozen {
            return Some(self.now_ms.saturating_sub(*at_ms));
        }
        let (_, at_ms) = self.latest.as_ref()?;
        let age_ms = self.now_ms.saturating_sub(*at_ms);
        let lost = matches!(self.link, Link::Lost { .. });
        (lost || age_ms >= STALE_MS).then_some(age_ms)
    }

    /// Tells something.
    pub(super) fn tell(&mut self, text: impl Into<String>) {
        self.say(text.into(), false);
    }

    /// Tells that something went wrong.
    pub(super) fn warn(&mut self, text: impl Into<String>) {
        self.say(text.into(), true);
    }

    fn say(&mut self, text: String, is_error: bool) {
        let at_ms = self.now_ms;
        self.message = Some(Message {
            text,
            at_ms,
            is_error,
        });
    }

    /// Asks before something is done.
    pub(super) fn ask(&mut self, text: impl Into<String>, effects: Vec<Effect>, then: Then) {
        self.question = Some(Question {
            text: text.into(),
            effects,
            then,
        });
        self.modes.push(Mode::Confirm);
    }

    pub(super) fn own_is_active(&self) -> bool {
        self.requests.own != Own::Idle
    }

    pub(super) fn has_ended(&self, request_id: u64) -> bool {
        let canvas = self.requests.canvas(request_id);
        canvas.is_some_and(Canvas::has_ended)
    }

    /// Process id of the daemon that the latest snapshot came from.
    pub(super) fn daemon_pid(&self) -> Option<u32> {
        let (snapshot, _) = self.latest.as_ref()?;
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
