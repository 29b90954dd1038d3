//! The terminal taken over, and given back whatever happens.

use std::{
    io::{self, BufWriter, Stdin, Stdout},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use crossterm::{
    clipboard::CopyToClipboard,
    cursor::Show,
    event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture},
    execute,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Frame, Terminal, backend::CrosstermBackend};
use rustix::{
    io::Errno,
    process::{Signal, getpid, kill_current_process_group, kill_process},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    signal::unix::{self, SignalKind, signal},
    sync::Notify,
};

/// Whether the terminal is in our hands.
static IS_OURS: AtomicBool = AtomicBool::new(false);
/// Whether something panicked, on whichever thread, and who is told.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
static PANICKED: Notify = Notify::const_new();

/// A terminal in raw mode on its alternate screen, until dropped.
pub(super) struct Session {
    /// What is drawn on, unless that failed.
    terminal: Option<Terminal<CrosstermBackend<Screen>>>,
    has_mouse: bool,
}

impl Session {
    /// Takes the terminal over. A panic gives it back before it prints.
    pub(super) fn enter(has_mouse: bool) -> io::Result<Self> {
        watch_for_panics();
        take_over(has_mouse)?;
        let terminal = blank().inspect_err(|_| restore())?;
        Ok(Self {
            terminal: Some(terminal),
            has_mouse,
        })
    }

    /// Draws a frame.
    pub(super) fn draw(&mut self, view: impl FnOnce(&mut Frame)) -> io::Result<()> {
        match &mut self.terminal {
            Some(terminal) => terminal.draw(view).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Takes the mouse, or leaves it to the terminal.
    pub(super) fn take_mouse(&mut self, ours: bool) -> io::Result<()> {
        self.has_mouse = ours;
        match ours {
            true => execute!(io::stdout(), EnableMouseCapture),
            false => execute!(io::stdout(), DisableMouseCapture),
        }
    }

    /// Gives text to the terminal's clipboard (OSC 52); nothing tells whether the terminal took it.
    pub(super) fn copy(&mut self, text: &str) -> io::Result<()> {
        execute!(io::stdout(), CopyToClipboard::to_clipboard_from(text))
    }

    /// Gives the terminal back, stops the process, and takes the terminal over again once somebody continues it.
    pub(super) async fn suspend(
        &mut self,
        stops: &mut Stops,
        whom: SuspendTarget,
    ) -> io::Result<()> {
        self.let_go();
        let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        if whom == SuspendTarget::Group {
            kill_current_process_group(Signal::TSTP)?;
            // It came to us, too.
            stops.0.recv().await;
        }
        // Others of the group stopped at once, and a shell may have continued all of them by now: nobody would again.
        let is_continued = tokio::select! {
            biased;
            _ = continued.recv() => true,
            () = std::future::ready(()) => false,
        };
        if !is_continued {
            // Who handles a signal can't be stopped by it. This one stops in the same way: not where nobody is left to
            // continue us.
            kill_process(getpid(), Signal::TTOU)?;
        }
        take_over(self.has_mouse)?;
        // Not `clear`: it asks the terminal where the cursor is, and the answer would have to come past the keys.
        self.terminal = Some(blank().inspect_err(|_| restore())?);
        Ok(())
    }

    fn let_go(&mut self) {
        if let Some(mut terminal) = self.terminal.take()
            && terminal.show_cursor().is_err()
        {
            // Dropped, it would tell that it can't show the cursor, on a terminal that is gone; and that panics.
            std::mem::forget(terminal);
        }
        restore();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Who is to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SuspendTarget {
    /// Only we: somebody stops each process of the group.
    Us,
    /// The whole process group, as the terminal itself does on Ctrl-Z.
    Group,
}

/// Tells that somebody wants the process to stop until it is continued.
pub(super) struct Stops(unix::Signal);

impl Stops {
    /// Listens from here on.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?))
    }

    /// Waits for the next time.
    pub(super) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Tells that the process is to end.
pub(super) struct Ends {
    signals: [unix::Signal; 3],
    /// The terminal, where it can be watched.
    terminal: Option<AsyncFd<Stdin>>,
}

impl Ends {
    /// Listens from here on.
    pub(super) fn listen() -> io::Result<Self> {
        // SAFETY: standard input stays open, as one file, until the process ends.
        let terminal = unsafe { AsyncFd::register_with_interest(io::stdin(), Interest::PRIORITY) };
        Ok(Self {
            signals: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
                signal(SignalKind::interrupt())?,
            ],
            // Not its keys, which are another's: only that it is hung up, of which a signal tells nobody but the session's own
            // processes.
            terminal: terminal.ok(),
        })
    }

    /// Waits for the first reason to end.
    pub(super) async fn next(&mut self) {
        let [terminated, hung_up, interrupted] = &mut self.signals;
        tokio::select! {
            _ = terminated.recv() => {}
            _ = hung_up.recv() => {}
            _ = interrupted.recv() => {}
            () = gone(self.terminal.as_ref()) => {}
        }
    }
}

/// Waits until the terminal is hung up.
async fn gone(terminal: Option<&AsyncFd<Stdin>>) {
    while let Some(terminal) = terminal
        && let Ok(mut ready) = terminal.ready(Interest::PRIORITY).await
    {
        if ready.ready().is_read_closed() {
            return;
        }
        ready.clear_ready();
    }
    std::future::pending::<()>().await;
}

/// Whether an error says that there is no terminal any more.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Waits until something panicked and its words are written. That is told once.
pub(super) async fn panicked() {
    PANICKED.notified().await;
}

/// Whether something panicked, be it beside the loop: what is drawn now would stand in the midst of its words.
pub(super) fn has_panicked() -> bool {
    HAS_PANICKED.load(Ordering::SeqCst)
}

fn watch_for_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            HAS_PANICKED.store(true, Ordering::SeqCst);
            restore();
            print(panic);
            PANICKED.notify_one();
        }));
    });
}

/// A frame is written at once: standard output's own buffer holds a kilobyte.
type Screen = BufWriter<Stdout>;

/// Bytes of a frame that are written at once.
const FRAME_BYTES: usize = 64 << 10;

/// A screen of which nothing is drawn yet.
fn blank() -> io::Result<Terminal<CrosstermBackend<Screen>>> {
    let screen = BufWriter::with_capacity(FRAME_BYTES, io::stdout());
    Terminal::new(CrosstermBackend::new(screen))
}

fn take_over(has_mouse: bool) -> io::Result<()> {
    IS_OURS.store(true, Ordering::SeqCst);
    enable_raw_mode()
        .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste))
        .and_then(|()| match has_mouse {
            true => execute!(io::stdout(), EnableMouseCapture),
            false => Ok(()),
        })
        .inspect_err(|_| restore())
}

/// Best effort, since it also runs when the terminal is what failed. Only once: a screen that is left twice puts the cursor
/// back over what was written since.
fn restore() {
    if !IS_OURS.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = execute!(
        io::stdout(),
        DisableMouseCapture,
        DisableBracketedPaste,
        LeaveAlternateScreen,
        Show
    );
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_beside_the_loop_is_told_to_it() {
        watch_for_panics();
        let task = tokio::task::spawn_blocking(|| panic!("as the test wants"));
        panicked().await;
        assert!(task.await.is_err() && has_panicked());
    }

    #[test]
    fn a_terminal_that_went_away_is_told_from_other_trouble() {
        assert!(is_gone(&Errno::IO.into()));
        assert!(!is_gone(&Errno::NOSPC.into()) && !is_gone(&io::Error::other("x")));
    }
}
