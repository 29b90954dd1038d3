//! Running `sluice`, and what came of it.

use std::{
    io::{Read, Write},
    process::{Child, Command, Output, Stdio},
};

use fake_daemon::FakeDaemon;
use rustix::process::{Pid, Signal, kill_process};

/// `sluice` with its output caught and nothing of the tester's surroundings.
pub(crate) fn sluice(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .args(arguments)
        .env_remove("SLUICE_SOCKET")
        .env_remove("NO_COLOR")
        .env_remove("HOME")
        .env_remove("XDG_STATE_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// `sluice` that talks to a fake daemon.
pub(crate) trait Client {
    fn sluice(&self, arguments: &[&str]) -> Command;

    fn output(&self, arguments: &[&str]) -> Output {
        self.sluice(arguments).output().expect("run sluice")
    }
}

impl Client for FakeDaemon {
    fn sluice(&self, arguments: &[&str]) -> Command {
        let mut command = sluice(&["--socket", self.socket.to_str().expect("UTF-8")]);
        command.args(arguments);
        command
    }
}

/// Runs a command with bytes on its standard input.
pub(crate) fn run_with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("start sluice");
    let mut stdin = child.stdin.take().expect("piped");
    // The program may refuse before it has read all.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("run sluice")
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Reads what a program says until that has these words, and no further than the end of their line.
pub(crate) fn said(stream: &mut impl Read, words: &str) -> String {
    let mut said = Vec::new();
    while !(said.ends_with(b"\n") && String::from_utf8_lossy(&said).contains(words)) {
        let mut byte = [0];
        let read = stream.read(&mut byte).expect("read what it says");
        let so_far = String::from_utf8_lossy(&said);
        assert!(read > 0, "it ended without '{words}': {so_far}");
        said.push(byte[0]);
    }
    String::from_utf8(said).expect("UTF-8")
}

/// Ctrl-C for a program, and what came of it.
pub(crate) fn interrupt(child: Child) -> Output {
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("signal");
    child.wait_with_output().expect("run sluice")
}
