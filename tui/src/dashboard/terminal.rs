//! The terminal taken over, and given back whatever happens.

use std::{
    io::{self, Stdout},
    sync::Once,
};

use crossterm::{
    cursor::Show,
    event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture},
    execute,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Terminal, backend::CrosstermBackend};

/// A terminal in raw mode on its alternate screen, until dropped.
pub(super) struct Session {
    /// What to draw on.
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
    has_mouse: bool,
}

impl Session {
    /// Takes the terminal over. A panic gives it back before it prints.
    pub(super) fn enter(has_mouse: bool) -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let print = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                print(panic);
            }));
        });
        take_over(has_mouse)?;
        let terminal = blank().inspect_err(|_| restore())?;
        Ok(Self {
            terminal,
            has_mouse,
        })
    }

    /// Takes the mouse, or leaves it to the terminal.
    pub(super) fn take_mouse(&mut self, ours: bool) -> io::Result<()> {
        self.has_mouse = ours;
        match ours {
            true => execute!(io::stdout(), EnableMouseCapture),
            false => execute!(io::stdout(), DisableMouseCapture),
        }
    }

    /// Gives the terminal back, stops the process, and takes the terminal over again once
    /// somebody continues it.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        restore();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP)?;
        take_over(self.has_mouse)?;
        // Not `clear`: it asks the terminal where the cursor is, and the answer would have to
        // come past the keys.
        self.terminal = blank()?;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        restore();
    }
}

/// A screen of which nothing is drawn yet.
fn blank() -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    Terminal::new(CrosstermBackend::new(io::stdout()))
}

fn take_over(has_mouse: bool) -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste)
        .and_then(|()| match has_mouse {
            true => execute!(io::stdout(), EnableMouseCapture),
            false => Ok(()),
        })
        .inspect_err(|_| restore())
}

/// Best effort, since it also runs when the terminal is what failed.
fn restore() {
    let _ = execute!(
        io::stdout(),
        DisableMouseCapture,
        DisableBracketedPaste,
        LeaveAlternateScreen,
        Show
    );
    let _ = disable_raw_mode();
}
