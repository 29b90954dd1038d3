//! The process that tokenizes: it parses the files, then forks a supervisor and a worker for each session.

use std::{
    convert::Infallible,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{fd::AsFd, unix::net::UnixStream},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    process::{
        Pid, PidfdFlags, Resource, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process,
        pidfd_open, wait, waitid,
    },
    time::{ClockId, clock_gettime},
};
use sluice_apart::{Bounds, begin, limit, limit_memory};

use super::{
    NAME,
    message::{
        Answer, Question, SessionKind, receive_files, receive_question, send_answer, send_error,
        send_vocabulary,
    },
};
use crate::{
    coder::TextCoder,
    error::{LimitReached, TokenizerError},
    grammar::{GrammarMatcher, GrammarVocabulary},
    limits::{
        GRAMMAR_CPU_SECONDS_BASE, GRAMMAR_CPU_SECONDS_MAX, GRAMMAR_MEMORY_BYTES_MAX,
        GRAMMAR_TOKENS_PER_CPU_SECOND, PARSE_CPU_SECONDS_MAX, PARSE_MEMORY_BYTES_MAX,
        SESSION_CPU_SECONDS_MAX, SESSION_MEMORY_BYTES_MAX, SESSION_WAIT_MAX,
    },
};

/// Descriptors that the process may have open: its own few, and those of a session.
const DESCRIPTORS_MAX: u64 = 32;

/// Serves sessions until the other end of standard input, a Unix socket, is closed. The caller has one thread and exits
/// afterwards.
///
/// # Errors
/// When the system refuses a call, or the other end speaks out of turn.
pub fn serve() -> io::Result<()> {
    let bounds = Bounds {
        memory_bytes: PARSE_MEMORY_BYTES_MAX,
        cpu_seconds: PARSE_CPU_SECONDS_MAX,
        descriptors: DESCRIPTORS_MAX,
    };
    let control = begin(NAME, &bounds)?;
    let (coder, vocabulary) = match receive_files(&control, TextCoder::new)? {
        Ok(parsed) => parsed,
        Err(error) => return send_error(&error, &control),
    };
    send_vocabulary(&vocabulary, &control)?;
    // Made for the first grammar, and here, so that all sessions share it.
    let mut grammars = None;
    // Forking costs little, but for years: this process itself does nothing else from here on.
    limit(Resource::Cpu, None)?;
    while let Some((session, kind)) = next_session(&control)? {
        if kind == SessionKind::Grammar {
            grammars.get_or_insert_with(|| GrammarVocabulary::new(&vocabulary.pieces));
        }
        // Supervisors that ended since the last session.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if fork()?.is_none() {
            drop(control);
            let work = |session: &UnixStream| match (kind, &grammars) {
                (SessionKind::Grammar, Some(vocabulary)) => follow(session, vocabulary.as_ref()),
                (SessionKind::Text | SessionKind::Grammar, _) => work(session, &coder),
            };
            let _ = supervise(session, kind, work);
            exit(0);
        }
    }
    Ok(())
}

/// The descriptor of the next session, and what it is for; `None` when nobody will ask for one.
fn next_session(control: &UnixStream) -> io::Result<Option<(UnixStream, SessionKind)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = retry_on_intr(|| {
        let into = &mut [IoSliceMut::new(&mut byte)];
        recvmsg(control, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    let kind = match byte[0] {
        byte if byte == SessionKind::Grammar as u8 => SessionKind::Grammar,
        _ => SessionKind::Text,
    };
    let descriptor = rights.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((descriptor.into(), kind)))
}

/// Forks; `None` in the child.
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the process has one thread, so no lock is held by another that the child lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Ends this process at once: what runs at a program's exit was its parent's.
fn exit(code: i32) -> ! {
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { libc::_exit(code) }
}

/// Lets a worker do the session, and tells how it ended where it could not. Kills it when the caller goes away, or time is up:
/// a grammar's, which lasts as long as its text is written, has none of its own.
fn supervise(
    session: UnixStream,
    kind: SessionKind,
    work: impl FnOnce(&UnixStream) -> io::Result<Infallible>,
) -> io::Result<()> {
    let Some(worker) = fork()? else {
        exit(i32::from(work(&session).is_err()));
    };
    let ended = pidfd_open(worker, PidfdFlags::empty())?;
    let mut watched = [
        PollFd::new(&ended, PollFlags::IN),
        // Without events, only that the other end was closed is told.
        PollFd::new(&session, PollFlags::empty()),
    ];
    let wait = Timespec::try_from(SESSION_WAIT_MAX).expect("seconds fit");
    let wait = Some(&wait).filter(|_| kind == SessionKind::Text);
    retry_on_intr(|| poll(&mut watched, wait))?;
    let (has_ended, is_gone) = (
        !watched[0].revents().is_empty(),
        !watched[1].revents().is_empty(),
    );
    if !has_ended {
        kill_process(worker, Signal::KILL)?;
    }
    let end = || waitid(WaitId::PidFd(ended.as_fd()), WaitIdOptions::EXITED);
    let status = retry_on_intr(end)?;
    let signal = status.and_then(|status| status.terminating_signal());
    let error = match signal {
        _ if is_gone => return Ok(()),
        None => return Ok(()),
        Some(_) if !has_ended => LimitReached::Wait,
        Some(signal) => match (signal == Signal::XCPU.as_raw(), kind) {
            (true, SessionKind::Text) => LimitReached::SessionCpu,
            (true, SessionKind::Grammar) => LimitReached::GrammarCpu,
            // The allocator aborts where it gets no memory, and so does the standard library at the stack's end.
            (false, SessionKind::Text) => LimitReached::SessionMemory,
            (false, SessionKind::Grammar) => LimitReached::GrammarMemory,
        },
    };
    send_error(&TokenizerError::Limit(error), &session)
}

fn work(session: &UnixStream, coder: &TextCoder) -> io::Result<Infallible> {
    limit(Resource::Cpu, Some(SESSION_CPU_SECONDS_MAX))?;
    limit_memory(SESSION_MEMORY_BYTES_MAX)?;
    loop {
        let question = receive_question(session)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let answer = match question {
            Question::Encode(text) => coder.encode(&text).map(Answer::Ids),
            Question::EncodeWithOffsets(text) => {
                coder.encode_with_offsets(&text).map(Answer::Tokens)
            }
            Question::EncodeChat(chat) => coder.encode_chat(&chat).map(Answer::Ids),
            // Of another kind of session.
            Question::Compile(_) | Question::Accept(_) => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        };
        match answer {
            Ok(answer) => send_answer(&answer, session)?,
            Err(error) => send_error(&error, session)?,
        }
    }
}

/// Compiles a grammar, and follows the text that is written by it.
fn follow(
    session: &UnixStream,
    vocabulary: Result<&GrammarVocabulary, &TokenizerError>,
) -> io::Result<Infallible> {
    limit_memory(GRAMMAR_MEMORY_BYTES_MAX)?;
    let mut matcher = None;
    let mut accepted = 0;
    loop {
        let question = receive_question(session)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        limit(Resource::Cpu, Some(grammar_cpu_seconds(accepted)))?;
        let allowed = match (question, &mut matcher) {
            (Question::Compile(grammar), _) => vocabulary
                .map_err(TokenizerError::clone)
                .and_then(|vocabulary| GrammarMatcher::compile(vocabulary, &grammar))
                .map(|(compiled, allowed)| {
                    matcher = Some(compiled);
                    allowed
                }),
            (Question::Accept(token), Some(matcher)) => {
                accepted += 1;
                matcher.accept(token)
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        match allowed {
            Ok(allowed) => send_answer(&Answer::Allowed(allowed), session)?,
            Err(error) => send_error(&error, session)?,
        }
    }
}

/// The CPU time at which the worker of a grammar is killed that has taken so many tokens, if it answers nothing before.
fn grammar_cpu_seconds(accepted: u64) -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec;
    // The second that has begun is not counted.
    let now = u64::try_from(used).unwrap_or(0) + 1 + GRAMMAR_CPU_SECONDS_MAX;
    now.min(GRAMMAR_CPU_SECONDS_BASE + accepted / GRAMMAR_TOKENS_PER_CPU_SECOND)
}
