//! What the dashboard knows. All of it survives a reconnect.

use std::cell::Cell;

use sluice_proto::v1::{ModelKind, ModelShape, Snapshot};
use sluice_shared::preset::Preset;
use tui_input::Input;

pub use super::requests::{OwnRequest, Requests};
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
};
use crate::{
    canvas::Canvas,
    paint::Paint,
    record::{Recording, Runs},
};

/// Snapshots come several times a second; after this long without one the age is shown.
pub const STALE_MS: u64 = 2_500;

/// How things stand with the daemon.
#[derive(Debug, Clone, PartialEq)]
pub enum DaemonLink {
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
pub struct DashboardState {
    /// The socket, for the screen.
    pub socket: String,
    /// How things look.
    pub paint: Paint,
    /// Milliseconds on the dashboard's clock.
    pub now_ms: u64,
    /// The connection.
    pub link: DaemonLink,
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
    pub message: Option<StatusMessage>,
    /// What a question is about.
    pub question: Option<Question>,
    /// The line that takes commands.
    pub command: EditLine,
    /// Commands that were given.
    pub commands: LineHistory,
    /// What lists are filtered by.
    pub filter: EditLine,
    /// What is looked for in the help.
    pub help_filter: EditLine,
    /// First line of the help that is shown, where not all of it fits.
    pub help_line: usize,
    /// Requests, and the one that is selected.
    pub requests: Requests,
    /// What the canvas page shows.
    pub reel: PassReel,
    /// A run from a file, which the canvas page shows in the selected request's place.
    pub opened: Option<Box<OpenedRun>>,
    /// Where runs are saved.
    pub runs: Runs,
    /// The selected layer of the memory page.
    pub layer: usize,
    /// The prompt being written.
    pub prompt: Input,
    /// Prompts that were sent.
    pub prompts: LineHistory,
    /// Conversations.
    pub chat: Chat,
    /// What requests ask for.
    pub options: RequestOptions,
    /// The chooser.
    pub levels: Levels,
    /// How faithful levels were measured to be.
    pub fidelity: Vec<LevelFidelity>,
    /// Jobs and models.
    pub jobs: Jobs,
    /// Whether the mouse is ours.
    pub mouse: bool,
    /// Looks that were chosen here.
    pub chosen_looks: ChosenLooks,
    /// What survives this run, as it was last written; `None`: nothing does.
    pub persist_schedule: Option<PersistSchedule>,
    /// Columns and rows of the screen.
    pub size: (u16, u16),
    pub(super) escape_at_ms: Option<u64>,
    /// A daemon answers anew: what ended before is yet to be asked for.
    pub(super) asks_past: bool,
}

/// Something to tell, for some seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusMessage {
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
    pub after_yes: AfterYes,
}

/// What a yes changes in the state itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterYes {
    /// Nothing.
    Nothing,
    /// The request of ours with this serial number is stopped, or taken back.
    CancelOwn(u64),
    /// The present conversation is forgotten.
    ForgetConversation,
    /// Our requests take this position of the dial.
    Preset(Preset),
}

/// Lines that were given, and which one is recalled.
#[derive(Debug, Default)]
pub struct LineHistory {
    /// The earliest first.
    pub lines: Vec<String>,
    at: Option<usize>,
}

impl LineHistory {
    /// Lines kept.
    pub const MAX: usize = 100;

    /// Keeps a line, unless it is the one before once more.
    pub fn push(&mut self, line: &str) {
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

/// Which pass of a request is shown, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassReel {
    /// Number of the pass; `None`: the latest, as it comes.
    pub at: Option<u32>,
    /// When the next pass is shown, while they are played.
    pub next_at_ms: Option<u64>,
    /// Text, heat map, or both.
    pub view: CanvasView,
    /// Lines scrolled back from the end; 0 follows it.
    pub scroll: usize,
    /// How far what was drawn last can be scrolled back: only drawing knows how many lines a text makes.
    scrollable: Cell<Option<usize>>,
}

impl PassReel {
    /// A picture is about to be drawn.
    pub(super) fn draws(&self) {
        self.scrollable.set(Some(0));
    }

    /// Part of it was drawn, which can be scrolled back so many lines.
    pub(super) fn drew(&self, scrollable: usize) {
        let most = self.scrollable.get().unwrap_or(0);
        self.scrollable.set(Some(most.max(scrollable)));
    }

    /// Scrolls so many lines back, as far as there are any.
    pub(super) fn scroll(&mut self, by: isize) {
        let most = self.scrollable.get().unwrap_or(usize::MAX);
        let scroll = self.scroll.min(most).saturating_add_signed(by);
        self.scroll = scroll.min(most);
    }

    /// Shows the latest, as it comes.
    pub(super) fn rewind(&mut self) {
        self.at = None;
        self.next_at_ms = None;
        self.scroll = 0;
    }
}

/// What of a request is shown large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CanvasView {
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
pub struct OpenedRun {
    /// The file, for the screen.
    pub name: String,
    /// What it holds.
    pub recording: Recording,
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

    /// The latest snapshot, whatever is shown: what is done is done to what is there now.
    pub(super) fn present(&self) -> Option<&Snapshot> {
        self.latest.as_ref().map(|(snapshot, _)| &**snapshot)
    }

    /// How the model writes; unspecified where that is not known.
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

    /// Whether a daemon is there to be asked.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.link == DaemonLink::Connected
    }

    /// The mode that the help was opened in.
    pub(super) fn mode_below_help(&self) -> Mode {
        let mut below = self.modes.iter().rev();
        let mode = below.find(|mode| !matches!(mode, Mode::Help | Mode::Filter));
        mode.copied().unwrap_or(Mode::Page)
    }

    /// The line in which words to look for are written: the help's where that is open, else the page's.
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

    /// Lets the canvas page show the latest of the selected request.
    pub(super) fn show_latest(&mut self) {
        // Without a daemon there is nothing but the run.
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

    /// Tells something, unless there is an error that nobody has seen yet.
    pub(super) fn tell(&mut self, text: impl Into<String>) {
        if !self.has_error() {
            self.say(text.into(), false);
        }
    }

    pub(super) fn has_error(&self) -> bool {
        let message = self.message.as_ref();
        message.is_some_and(|message| message.is_error)
    }

    /// Tells that something went wrong.
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

    /// Asks before something is done.
    pub(super) fn ask(&mut self, text: impl Into<String>, effects: Vec<Effect>, then: AfterYes) {
        self.question = Some(Question {
            text: text.into(),
            effects,
            after_yes: then,
        });
        self.modes.push(Mode::Confirm);
    }

    /// Takes back a question about a daemon that is gone: its numbers mean something else to the next one.
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

/// Whether a snapshot is of a daemon that was started since another was taken. In containers all have the same process id.
pub(super) fn is_started_anew(before: &Snapshot, after: &Snapshot) -> bool {
    match (&before.daemon, &after.daemon) {
        (Some(before), Some(after)) => {
            before.process_id != after.process_id || after.uptime_ms < before.uptime_ms
        }
        _ => false,
    }
}
