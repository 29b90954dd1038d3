//! A program on a terminal of its own, through a pseudo-terminal, and the screen that it draws there.

use std::{
    fs::File,
    io::{PipeReader, PipeWriter, Read, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command, ExitStatus},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, Signal, ioctl_tiocsctty, kill_process, setsid},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize},
};
use vt100::{Cell, MouseProtocolMode, Parser, Screen};

use crate::PATIENCE;

/// Longer than between two parts of a frame, shorter than between two frames.
const QUIET: Duration = Duration::from_millis(16);
/// The sequence that begins a frame, where the program says so, and the one that is in each frame of any program.
const FRAME_BEGINS: &[u8] = b"\x1b[?2026h";
const CURSOR_SET: &[u8] = b"\x1b[?25";

/// A program on a terminal.
pub struct Journey {
    child: Child,
    keyboard: File,
    shown: Arc<Shown>,
    /// The terminal's modes before the program changed them.
    before: Termios,
    /// Dropping the pipe stops the thread that reads for the screen.
    reading: Option<(PipeWriter, JoinHandle<()>)>,
}

/// What the program has written so far, and the screen that it made.
#[derive(Default)]
struct Shown {
    output: Mutex<Output>,
    changed: Condvar,
}

#[derive(Default)]
struct Output {
    terminal: Parser,
    written: Vec<u8>,
    changed_at: Option<Instant>,
    has_ended: bool,
}

impl Journey {
    /// Starts a program on a terminal of 100 by 30.
    pub fn start(command: Command) -> Self {
        Self::sized(command, 100, 30)
    }

    /// Starts a program on a terminal of another size.
    pub fn sized(mut command: Command, columns: u16, rows: u16) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&keyboard).expect("grant");
        unlockpt(&keyboard).expect("unlock");
        tcsetwinsize(&keyboard, winsize(columns, rows)).expect("resize");
        let name = ptsname(&keyboard, Vec::new()).expect("a name");
        let terminal = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().expect("UTF-8"))
            .expect("open the terminal");
        let before = tcgetattr(&terminal).expect("the terminal's modes");
        let end = || OwnedFd::from(terminal.try_clone().expect("clone"));
        command
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end());
        // A session of its own, so that this terminal is the one behind /dev/tty, and tells the program of a new size.
        let take_terminal = || {
            setsid()?;
            ioctl_tiocsctty(std::io::stdin())?;
            Ok(())
        };
        // SAFETY: between fork and exec there are two system calls, and nothing that allocates or locks.
        unsafe { command.pre_exec(take_terminal) };
        let child = command.spawn().expect("start the program");
        let shown = Arc::new(Shown::default());
        shown.lock().terminal = Parser::new(rows, columns, 0);
        let reader = File::from(keyboard.try_clone().expect("clone"));
        let thread = std::thread::Builder::new().name("screen".into());
        let screen = shown.clone();
        let (stop, stopper) = std::io::pipe().expect("a pipe");
        let started = thread.spawn(move || screen.fill(reader, &stop));
        let reading = started.expect("start a thread");
        Self {
            child,
            keyboard: keyboard.into(),
            shown,
            before,
            reading: Some((stopper, reading)),
        }
    }

    /// The text that is on the screen now.
    pub fn screen(&self) -> String {
        self.look(Screen::contents)
    }

    /// Asks the screen as it is now.
    pub fn look<T>(&self, ask: impl FnOnce(&Screen) -> T) -> T {
        ask(self.shown.lock().terminal.screen())
    }

    /// Everything that was written so far, with control sequences.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().written).into_owned()
    }

    /// The length of [`Self::written`].
    pub fn written_bytes(&self) -> usize {
        self.shown.lock().written.len()
    }

    /// Frames drawn so far.
    pub fn frames(&self) -> usize {
        let output = self.shown.lock();
        let count = |mark: &[u8]| {
            let windows = output.written.windows(mark.len());
            windows.filter(|window| *window == mark).count()
        };
        match count(FRAME_BEGINS) {
            0 => count(CURSOR_SET),
            frames => frames,
        }
    }

    /// One cell with its style.
    pub fn cell(&self, row: u16, column: u16) -> Cell {
        let cell = self.look(|screen| screen.cell(row, column).cloned());
        cell.expect("within the screen")
    }

    /// Row and column where words first stand on the screen.
    pub fn find(&self, words: &str) -> Option<(u16, u16)> {
        self.look(|screen| {
            let (rows, columns) = screen.size();
            let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let mut places = places.filter(|(row, column)| {
                let rest = screen.contents_between(*row, *column, *row, columns);
                rest.starts_with(words)
            });
            places.next()
        })
    }

    /// Row and column of the cursor, unless it is hidden.
    pub fn cursor(&self) -> Option<(u16, u16)> {
        self.look(|screen| (!screen.hide_cursor()).then(|| screen.cursor_position()))
    }

    /// Whether the program has the alternate screen, as the dashboard does.
    pub fn is_alternate(&self) -> bool {
        self.look(Screen::alternate_screen)
    }

    /// Waits until something holds of the screen; when the screen became so.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Screen) -> bool) -> Instant {
        self.wait(what, |output| holds(output.terminal.screen()))
    }

    /// Waits until words stand on the screen.
    pub fn expect(&self, words: &str) -> Instant {
        let what = format!("'{words}' on the screen");
        self.wait_until(&what, |screen| screen.contents().contains(words))
    }

    /// Waits until nothing was written for a moment, so that no frame is half drawn.
    pub fn wait_until_drawn(&self) {
        let is_quiet = |output: &Output| {
            let last = output.changed_at.map(|at| at.elapsed());
            last.is_none_or(|age| age >= QUIET)
        };
        let deadline = Instant::now() + PATIENCE;
        while !is_quiet(&self.shown.lock()) && Instant::now() < deadline {
            std::thread::sleep(QUIET / 4);
        }
    }

    /// Waits until words stand on the screen no more.
    pub fn expect_gone(&self, words: &str) -> Instant {
        let what = format!("no '{words}' on the screen");
        self.wait_until(&what, |screen| !screen.contents().contains(words))
    }

    /// Waits until something was written, control sequences included.
    pub fn expect_written(&self, sequence: &str) {
        let sequence = sequence.as_bytes();
        let what = format!("{:?} to be written", String::from_utf8_lossy(sequence));
        self.wait(&what, |output| {
            let mut windows = output.written.windows(sequence.len());
            windows.any(|window| window == sequence)
        });
    }

    /// Types keys, special ones as their escape sequences.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("type");
    }

    /// Presses and releases the left button of the mouse.
    pub fn click(&mut self, row: u16, column: u16) {
        let place = format!("{};{}", column + 1, row + 1);
        self.press(&format!("\x1b[<0;{place}M\x1b[<0;{place}m"));
    }

    /// Resizes the terminal, which the kernel reports to the program.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        // The screen is resized first: nothing drawn for the new size may come before.
        let mut output = self.shown.lock();
        output.terminal.screen_mut().set_size(rows, columns);
        tcsetwinsize(&self.keyboard, winsize(columns, rows)).expect("resize");
    }

    /// The process that was started on the terminal.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to the process that was started.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("signal");
    }

    /// Sends a signal to the program that has the terminal, which a shell may have started.
    pub fn signal_foreground(&self, signal: Signal) {
        let leader = tcgetpgrp(&self.keyboard).expect("a process group");
        kill_process(leader, signal).expect("signal");
    }

    /// Waits until the terminal is as the program found it: no alternate screen, no mouse, no bracketed paste, the
    /// cursor visible, and keys read in lines and echoed.
    pub fn expect_given_back(&self) {
        self.wait_until("the terminal to be given back", |screen| {
            !screen.alternate_screen()
                && !screen.bracketed_paste()
                && !screen.hide_cursor()
                && screen.mouse_protocol_mode() == MouseProtocolMode::None
        });
        let now = || format!("{:?}", tcgetattr(&self.keyboard).expect("its modes"));
        let before = format!("{:?}", self.before);
        // The modes are restored last, and nothing on the screen shows it.
        let deadline = Instant::now() + PATIENCE;
        while now() != before && Instant::now() < deadline {
            std::thread::sleep(QUIET);
        }
        assert_eq!(now(), before, "the terminal's modes");
    }

    /// Waits until the program ends by itself, its output is on the screen, and the terminal is restored.
    pub fn end(&mut self) -> ExitStatus {
        self.wait("the program to end", |output| output.has_ended);
        let status = self.child.wait().expect("wait");
        self.expect_given_back();
        status
    }

    /// Takes the terminal away, as closing its window does, and waits until the program ends.
    pub fn hang_up(mut self) -> ExitStatus {
        if let Some((stop, reading)) = self.reading.take() {
            drop(stop);
            reading.join().expect("no panic");
        }
        self.keyboard = File::open("/dev/null").expect("open");
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            std::thread::sleep(QUIET);
        }
        panic!("the program goes on without a terminal");
    }

    fn wait(&self, what: &str, holds: impl Fn(&Output) -> bool) -> Instant {
        let deadline = Instant::now() + PATIENCE;
        let mut output = self.shown.lock();
        loop {
            if holds(&output) {
                return output.changed_at.unwrap_or_else(Instant::now);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let screen = output.terminal.screen().contents();
                // Released first: the panic must not poison the lock for the reading thread.
                drop(output);
                panic!("waited in vain for {what}; the screen is\n{screen}");
            }
            let waited = self.shown.changed.wait_timeout(output, left);
            (output, _) = waited.expect("no panic");
        }
    }
}

impl Drop for Journey {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().expect("no panic")
    }

    /// Reads until the last program on the terminal exits, or the screen is no longer needed.
    fn fill(&self, mut reader: File, stop: &PipeReader) {
        let mut bytes = [0; 16 << 10];
        loop {
            let mut ready = [
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(&reader, PollFlags::IN),
            ];
            poll(&mut ready, None).expect("poll");
            if !ready[0].revents().is_empty() {
                return;
            }
            // Reading fails once no process has the terminal open: that is the end of the program.
            let Ok(count @ 1..) = reader.read(&mut bytes) else {
                break;
            };
            let now = Instant::now();
            let mut output = self.lock();
            output.terminal.process(&bytes[..count]);
            output.written.extend_from_slice(&bytes[..count]);
            output.changed_at = Some(now);
            self.changed.notify_all();
        }
        self.lock().has_ended = true;
        self.changed.notify_all();
    }
}

fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
