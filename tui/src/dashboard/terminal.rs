//! Takes the terminal over, and gives it back on exit, error, panic, suspension and signals.

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

/// Whether the terminal is in raw mode on the alternate screen. Static, since the panic hook reads it.
static IS_OURS: AtomicBool = AtomicBool::new(false);
/// Whether something panicked, on whichever thread; [`PANICKED`] wakes the event loop then.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
static PANICKED: Notify = Notify::const_new();

/// A terminal in raw mode on its alternate screen, until dropped.
pub(super) struct Session {
    /// `None` while suspended, or when the terminal could not be set up again afterwards.
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
            // The group includes this process: its own copy of the signal must not suspend it a second time.
            stops.0.recv().await;
        }
        // Other processes of the group stop at once, and a shell that sees them stopped may have continued the whole group
        // already. A process that stops after that would never be continued.
        let is_continued = tokio::select! {
            biased;
            _ = continued.recv() => true,
            () = std::future::ready(()) => false,
        };
        if !is_continued {
            // SIGTSTP is handled here, so it does not stop the process. SIGTTOU does, and like SIGTSTP it does nothing
            // in an orphaned process group, where no shell is left to continue it.
            kill_process(getpid(), Signal::TTOU)?;
        }
        take_over(self.has_mouse)?;
        // Not `clear`: it asks the terminal for the cursor's position, and the answer arrives on standard input among the keys.
        self.terminal = Some(blank().inspect_err(|_| restore())?);
        Ok(())
    }

    fn let_go(&mut self) {
        if let Some(mut terminal) = self.terminal.take()
            && terminal.show_cursor().is_err()
        {
            // `Terminal::drop` prints an error if it cannot show the cursor, and printing to a terminal that is gone panics.
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

/// Which processes a suspension stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SuspendTarget {
    /// This process alone: whoever sent SIGTSTP takes care of the other processes.
    Us,
    /// The whole process group, as the terminal itself does on Ctrl-Z.
    Group,
}

/// SIGTSTP from outside; Ctrl-Z is a key in raw mode.
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

/// Reasons to end the process: SIGTERM, SIGHUP, SIGINT, and a terminal that is hung up.
pub(super) struct Ends {
    signals: [unix::Signal; 3],
    /// Standard input; `None` if it cannot be polled.
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
            // Only for the hang-up; another thread reads the keys. SIGHUP alone is not enough: the kernel sends it only to
            // processes of the terminal's own session.
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

/// Waits until something panicked and its message is written. Only one caller is woken.
pub(super) async fn panicked() {
    PANICKED.notified().await;
}

/// Whether something panicked, in the event loop or beside it: a frame drawn now would overwrite the panic's message.
pub(super) fn has_panicked() -> bool {
    HAS_PANICKED.load(Ordering::SeqCst)
}

fn watch_for_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // The order matters: the flag stops further frames, the terminal leaves its alternate screen, and only then is the
            // message printed, where the user can read it.
            HAS_PANICKED.store(true, Ordering::SeqCst);
            restore();
            print(panic);
            PANICKED.notify_one();
        }));
    });
}

/// Buffers a whole frame, so that it is written at once: standard output's own buffer holds one kilobyte.
type Screen = BufWriter<Stdout>;

/// Size of that buffer; larger frames are written in several pieces.
const FRAME_BYTES: usize = 64 << 10;

/// A terminal whose first frame draws every cell.
fn blank() -> io::Result<Terminal<CrosstermBackend<Screen>>> {
    let screen = BufWriter::with_capacity(FRAME_BYTES, io::stdout());
    Terminal::new(CrosstermBackend::new(screen))
}

fn take_over(has_mouse: bool) -> io::Result<()> {
    // First, so that a panic or an error half way restores the modes that were set until then.
    IS_OURS.store(true, Ordering::SeqCst);
    enable_raw_mode()
        .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste))
        .and_then(|()| match has_mouse {
            true => execute!(io::stdout(), EnableMouseCapture),
            false => Ok(()),
        })
        .inspect_err(|_| restore())
}

/// Best effort, since it also runs when the terminal itself failed. Runs once per take-over: leaving the alternate screen
/// twice would restore the cursor to its old position, over what was written since.
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
