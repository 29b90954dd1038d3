//! What the dashboard knows. All of it survives a reconnect.

mod jobs;
mod levels;
mod persisted;
mod requests;

use sluice_proto::v1::{ModelKind, ModelShape, Snapshot};
use sluice_shared::preset::Preset;
use tui_input::Input;

use super::{
    chat::Chat,
    event::Effect,
    history::History,
    jobs::Jobs,
    keys::{Mode, Page},
    levels::{LevelFidelity, Levels},
    line::EditLine,
    options::RequestOptions,
    persist::{ChosenLooks, PersistSchedule},
    recall::Recall,
    reel::{OpenedRun, PassReel},
    requests::Requests,
};
use crate::{
    canvas::Canvas,
    paint::Paint,
    record::{Recording, Runs},
    text::sanitise_line,
};

/// Age from which on the figures on the screen are shown as old. Snapshots come several times a second.
pub const STALE_MS: u64 = 2_500;

/// State of the connection to the daemon.
#[derive(Debug, Clone, PartialEq)]
pub enum DaemonLink {
    /// The first try is under way.
    Connecting,
    /// The daemon answers.
    Connected,
    /// The connection broke, or could not be made.
    Lost {
        /// The system's or the daemon's message.
        cause: String,
        /// Time of the next try on the dashboard's clock, in milliseconds.
        retry_at_ms: u64,
    },
    /// A saved run is shown, and no daemon is looked for.
    Replay {
        /// The file's path, for the screen.
        name: String,
    },
}

/// All that the view draws from.
#[derive(Debug)]
pub struct DashboardState {
    /// The socket's path, for the screen.
    pub socket: String,
    /// How things look.
    pub paint: Paint,
    /// Time of the latest event, in milliseconds since the dashboard started.
    pub now_ms: u64,
    /// State of the connection to the daemon.
    pub link: DaemonLink,
    /// The latest snapshot and the time at which it came; `None` before the first. It stays when the connection is lost.
    pub latest: Option<(Box<Snapshot>, u64)>,
    /// While the screen is frozen: the snapshot that it shows, and the time at which that came.
    pub frozen: Option<(Box<Snapshot>, u64)>,
    /// Samples of the last minutes, for graphs.
    pub history: History,
    /// The page that is open.
    pub page: Page,
    /// Stack of modes: the last has the keyboard, the one below it gets the keyboard back.
    pub modes: Vec<Mode>,
    /// The message at the foot of the screen.
    pub message: Option<StatusMessage>,
    /// The question that is open in [`Mode::Confirm`].
    pub question: Option<Question>,
    /// The `:` line that takes commands.
    pub command: EditLine,
    /// Commands that were given.
    pub commands: LineHistory,
    /// Words that the lists of a page are filtered by.
    pub filter: EditLine,
    /// Words that the help is filtered by.
    pub help_filter: EditLine,
    /// First line of the help that is shown, where not all of it fits.
    pub help_line: usize,
    /// Requests, and the one that is selected.
    pub requests: Requests,
    /// Which pass the canvas page shows, and how.
    pub reel: PassReel,
    /// A run from a file, which the canvas page shows in the selected request's place.
    pub opened: Option<Box<OpenedRun>>,
    /// The folder that runs are saved in, and the names given so far.
    pub runs: Runs,
    /// Index of the layer that is selected on the memory page.
    pub layer: usize,
    /// The prompt being written.
    pub prompt: Input,
    /// Prompts that were sent.
    pub prompts: LineHistory,
    /// Conversations.
    pub chat: Chat,
    /// Options of the requests that are sent from here.
    pub options: RequestOptions,
    /// The levels page: selection, plans and changes.
    pub levels: Levels,
    /// Measured fidelity of levels, also of models that are not loaded.
    pub fidelity: Vec<LevelFidelity>,
    /// Jobs and models.
    pub jobs: Jobs,
    /// What is looked at of what the daemon remembers.
    pub recall: Recall,
    /// Whether the dashboard takes mouse events; otherwise the terminal keeps them.
    pub mouse: bool,
    /// Looks that were chosen while the dashboard ran, which are saved.
    pub chosen_looks: ChosenLooks,
    /// What was last written to the state file; `None` where nothing is saved.
    pub persist_schedule: Option<PersistSchedule>,
    /// Columns and rows of the screen.
    pub size: (u16, u16),
    pub(super) escape_at_ms: Option<u64>,
    /// Set when a daemon answers anew: operations that ended before are asked for with its first snapshot.
    pub(super) asks_past: bool,
}

/// A message at the foot of the screen. An error stays until a key is pressed, others some seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusMessage {
    /// The message, in one line.
    pub text: String,
    /// Time on the dashboard's clock at which it was shown first.
    pub at_ms: u64,
    /// Whether it tells of an error.
    pub is_error: bool,
}

/// A question, and what a yes leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The question, in one line.
    pub text: String,
    /// Effects of a yes.
    pub effects: Vec<Effect>,
    /// What a yes changes in the state itself.
    pub after_yes: AfterYes,
}

/// What a yes changes in the state itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterYes {
    /// The state stays as it is; a yes only has effects.
    Nothing,
    /// Cancels the request of ours with this serial number; one that the daemon has not numbered is taken back.
    CancelOwn(u64),
    /// Forgets the open conversation.
    ForgetConversation,
    /// Sets the preset of our requests.
    Preset(Preset),
}

/// Lines that were entered before, and which of them is recalled.
#[derive(Debug, Default)]
pub struct LineHistory {
    /// The earliest first.
    pub lines: Vec<String>,
    at: Option<usize>,
}

impl LineHistory {
    /// Most lines that are kept.
    pub const MAX: usize = 100;

    /// Keeps a line, unless it repeats the one before.
    pub fn push(&mut self, line: &str) {
        self.at = None;
        if self.lines.last().is_none_or(|last| last != line) {
            self.lines.push(line.to_owned());
        }
        let excess = self.lines.len().saturating_sub(Self::MAX);
        self.lines.drain(..excess);
    }

    /// The line that replaces `present`, `by` lines later in the history; `None` where a draft would be lost.
    pub fn step(&mut self, present: &str, by: isize) -> Option<String> {
        // The draft is not in the history, so replacing it by a stray key would lose it.
        if self.at.is_none() && !present.is_empty() {
            return None;
        }
        let end = self.lines.len();
        let at = self.at.unwrap_or(end).saturating_add_signed(by).min(end);
        self.at = (at < end).then_some(at);
        Some(self.lines.get(at).cloned().unwrap_or_default())
    }

    /// Treats the present line as a draft from now on.
    pub fn leave(&mut self) {
        self.at = None;
    }
}

impl DashboardState {
    /// A dashboard that has seen nothing yet.
    #[must_use]
    pub fn new(socket: String, paint: Paint) -> Self {
        Self {
            socket,
            paint,
            now_ms: 0,
            link: DaemonLink::Connecting,
            latest: None,
            frozen: None,
            history: History::default(),
            page: Page::Overview,
            modes: vec![Mode::Page],
            message: None,
            question: None,
            command: EditLine::default(),
            commands: LineHistory::default(),
            filter: EditLine::default(),
            help_filter: EditLine::default(),
            help_line: 0,
            requests: Requests::default(),
            reel: PassReel::default(),
            opened: None,
            runs: Runs::default(),
            layer: 0,
            prompt: Input::default(),
            prompts: LineHistory::default(),
            chat: Chat::default(),
            options: RequestOptions::default(),
            levels: Levels::default(),
            fidelity: Vec::new(),
            jobs: Jobs::default(),
            recall: Recall::default(),
            mouse: true,
            chosen_looks: ChosenLooks::default(),
            persist_schedule: None,
            size: (80, 24),
            escape_at_ms: None,
            asks_past: false,
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

    /// The latest snapshot, even while the screen is frozen: actions apply to the present state.
    pub(super) fn present(&self) -> Option<&Snapshot> {
        self.latest.as_ref().map(|(snapshot, _)| &**snapshot)
    }

    /// Kind of the loaded model; unspecified where it is not known.
    #[must_use]
    pub fn model_kind(&self) -> ModelKind {
        let model = self.present().and_then(|now| now.model.as_ref());
        let shape = model.and_then(|model| model.shape.as_ref());
        shape.map_or(ModelKind::Unspecified, ModelShape::kind)
    }

    /// The shape of the model, where it is known.
    #[must_use]
    pub fn shape(&self) -> Option<&ModelShape> {
        self.snapshot()?.model.as_ref()?.shape.as_ref()
    }

    /// Tokens that the loaded model's context holds, where that is known.
    #[must_use]
    pub fn context_length(&self) -> Option<u32> {
        let model = self.present()?.model.as_ref()?;
        let length = model.shape.as_ref()?.context_length;
        (length > 0).then_some(length)
    }

    /// Whether calls to the daemon can be made.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.link == DaemonLink::Connected
    }

    /// Refuses what needs the daemon where the connection is lost.
    ///
    /// # Errors
    /// Says so.
    pub fn check_connected(&self) -> Result<(), String> {
        match self.is_connected() {
            true => Ok(()),
            false => Err("not connected".to_owned()),
        }
    }

    /// The mode that the help was opened in.
    pub(super) fn mode_below_help(&self) -> Mode {
        let mut below = self.modes.iter().rev();
        let mode = below.find(|mode| !matches!(mode, Mode::Help | Mode::Filter));
        mode.copied().unwrap_or(Mode::Page)
    }

    /// The line that the filter is written in: the help's where that is open, else the page's.
    #[must_use]
    pub fn search(&self) -> &EditLine {
        match self.modes.contains(&Mode::Help) {
            true => &self.help_filter,
            false => &self.filter,
        }
    }

    /// The same to be written in.
    pub(super) fn search_mut(&mut self) -> &mut EditLine {
        match self.modes.contains(&Mode::Help) {
            true => &mut self.help_filter,
            false => &mut self.filter,
        }
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

    /// The index of the pass that the canvas page shows; `None` for the latest.
    pub(super) fn pass_index(&self) -> Option<usize> {
        self.recording()?.index_of(self.reel.at?)
    }

    /// Default path for saving the run that is shown; `None` without a run.
    pub(super) fn run_path(&self) -> Option<String> {
        let canvas = self.recording()?.canvas();
        let request_id = canvas.queued.map_or(0, |queued| queued.request_id);
        let file = self.runs.file(request_id, self.now_ms);
        Some(sanitise_line(&file.display().to_string()))
    }

    /// Makes the canvas page follow the selected request.
    pub(super) fn show_latest(&mut self) {
        // A replay has no requests: closing the run would leave an empty page.
        if !matches!(self.link, DaemonLink::Replay { .. }) {
            self.opened = None;
        }
        self.reel.rewind();
    }

    /// How old the shown figures are, when that is worth saying.
    #[must_use]
    pub fn stale_ms(&self) -> Option<u64> {
        if let Some((_, at_ms)) = &self.frozen {
            return Some(self.now_ms.saturating_sub(*at_ms));
        }
        let (_, at_ms) = self.latest.as_ref()?;
        let age_ms = self.now_ms.saturating_sub(*at_ms);
        let lost = matches!(self.link, DaemonLink::Lost { .. });
        (lost || age_ms >= STALE_MS).then_some(age_ms)
    }

    /// Shows a message, unless an unread error is shown.
    pub(super) fn tell(&mut self, text: impl Into<String>) {
        if !self.has_error() {
            self.say(text.into(), false);
        }
    }

    pub(super) fn has_error(&self) -> bool {
        let message = self.message.as_ref();
        message.is_some_and(|message| message.is_error)
    }

    /// Shows an error.
    pub(super) fn warn(&mut self, text: impl Into<String>) {
        self.say(text.into(), true);
    }

    fn say(&mut self, text: String, is_error: bool) {
        let at_ms = self.now_ms;
        self.message = Some(StatusMessage {
            text,
            at_ms,
            is_error,
        });
    }

    /// Asks before effects are carried out.
    pub(super) fn ask(&mut self, text: impl Into<String>, effects: Vec<Effect>, then: AfterYes) {
        self.question = Some(Question {
            text: text.into(),
            effects,
            after_yes: then,
        });
        self.modes.push(Mode::Confirm);
    }

    /// Closes a question whose answer would go to the daemon. After a restart the ids in its effects mean other operations.
    pub(super) fn withdraw_question(&mut self) {
        let is_of_daemon = |asked: &mut Question| {
            !asked.effects.is_empty() || matches!(asked.after_yes, AfterYes::CancelOwn(_))
        };
        if self.question.take_if(is_of_daemon).is_some() {
            self.modes.retain(|mode| *mode != Mode::Confirm);
            self.warn("the daemon was restarted; nothing was done");
        }
    }
}
