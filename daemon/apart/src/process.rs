//! Starting a process apart, and how it ended.

use std::{
    ffi::{CStr, OsStr},
    io,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt,
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::Signal;

use crate::Patient;

/// A process apart. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The socket that is its standard input. Reads and writes return now and then, as a [`Patient`] expects.
    pub control: UnixStream,
}

/// How a process ended that was not asked to.
#[derive(Debug)]
pub enum How {
    /// It took more CPU time than it may.
    Cpu,
    /// It took more memory than it may: the allocator aborts where it gets none, and so does the standard library at the
    /// stack's end.
    Memory,
    /// Another way: by itself, or killed from outside, as the system does where all memory runs out.
    Otherwise(io::Result<ExitStatus>),
}

impl Process {
    /// Starts a program under another name, with the argument that makes it call [`begin`](crate::begin).
    ///
    /// # Errors
    /// When the system cannot start it.
    pub fn start(program: &Path, name: &CStr, argument: &str) -> io::Result<Self> {
        let (control, theirs) = Patient::pair()?;
        let child = Command::new(program)
            .arg0(OsStr::from_bytes(name.to_bytes()))
            .arg(argument)
            // A group of its own: Ctrl-C is for the program that started it, which may still finish requests.
            .process_group(0)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, control })
    }

    /// Waits for it to end, and tells how it did. For one that closed its end of the socket or was killed, which doesn't take
    /// long.
    pub fn how_it_ended(&mut self) -> How {
        match self.child.wait() {
            Ok(status) => match status.signal() {
                Some(signal) if signal == Signal::XCPU.as_raw() => How::Cpu,
                Some(signal) if signal != Signal::KILL.as_raw() => How::Memory,
                _ => How::Otherwise(Ok(status)),
            },
            Err(error) => How::Otherwise(Err(error)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
