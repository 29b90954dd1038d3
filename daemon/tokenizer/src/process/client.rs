//! The side that asks: starting the process, sessions with it, and starting it again where it is gone.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sluice_apart::{How, Patience, Patient, Process, WaitEnded, is_gone};

use super::{
    ARGUMENT, NAME,
    message::{
        Question, SessionKind, read_allowed, read_ids, read_tokens, receive_answer,
        receive_vocabulary, send_files, send_question,
    },
};
use crate::{
    TokenizerFiles,
    coder::IdWithOffsets,
    conversation::Conversation,
    error::{LimitReached, TokenizerError},
    grammar::{AllowedTokens, Grammar},
    limits::PARSE_WAIT_MAX,
    vocabulary::Vocabulary,
};

/// A tokenizer's process.
pub struct TextProcess(Arc<Shared>);

struct Shared {
    program: PathBuf,
    files: OwnedFiles,
    state: Mutex<ProcessState>,
    /// Told when a start ends.
    started: Condvar,
    /// Nobody needs the tokenizer any more.
    is_dropped: Arc<AtomicBool>,
}

enum ProcessState {
    Running(Process),
    /// Another is being started in the place of one that is gone.
    Starting,
    /// That failed. Those who wait for it hear why, and the next who comes tries again.
    Failed(TokenizerError),
}

/// The files, for another process in the place of one that is gone.
struct OwnedFiles {
    tokenizer: Vec<u8>,
    config: Option<Vec<u8>>,
    template: Option<Vec<u8>>,
}

impl TextProcess {
    pub(crate) fn start(
        program: &Path,
        files: &TokenizerFiles<'_>,
        patience: &Patience,
    ) -> Result<(Self, Vocabulary), TokenizerError> {
        let (running, vocabulary) = start(program, files, patience)?;
        let own = |file: Option<&[u8]>| file.map(<[u8]>::to_vec);
        let process = Shared {
            program: program.to_owned(),
            files: OwnedFiles {
                tokenizer: files.tokenizer.to_vec(),
                config: own(files.config),
                template: own(files.template),
            },
            state: Mutex::new(ProcessState::Running(running)),
            started: Condvar::new(),
            is_dropped: Arc::default(),
        };
        Ok((Self(Arc::new(process)), vocabulary))
    }

    /// A session of its own worker. Where the process is gone, for want of the machine's memory say, another is started.
    pub(crate) fn session(
        &self,
        kind: SessionKind,
        patience: &Patience,
    ) -> Result<ProcessSession, TokenizerError> {
        let mut state = self.0.lock();
        let mut has_waited = false;
        loop {
            patience.left()?;
            match &*state {
                ProcessState::Running(running) => match session(running, kind) {
                    Ok(stream) => {
                        let patience = patience.clone();
                        return Ok(ProcessSession(Patient { stream, patience }));
                    }
                    // It was started for this caller, and is gone again.
                    Err(error) if has_waited => return Err(process_error(error)),
                    Err(_) => self.start_again(&mut state)?,
                },
                ProcessState::Failed(error) if has_waited => return Err(error.clone()),
                ProcessState::Failed(_) => self.start_again(&mut state)?,
                ProcessState::Starting => {}
            }
            // A caller who leaves tells nobody, so it looks now and then.
            let waited = self.0.started.wait_timeout(state, Patient::LOOK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            has_waited = true;
        }
    }

    /// Starts another process, on a thread of its own: several may wait for it, each as long as its own patience lasts.
    fn start_again(&self, state: &mut ProcessState) -> Result<(), TokenizerError> {
        let process = self.0.clone();
        let start = move || {
            let wait = Patience::new(PARSE_WAIT_MAX, process.is_dropped.clone());
            let files = process.files.borrow();
            let started = start(&process.program, &files, &wait);
            *process.lock() = match started {
                Ok((running, _)) => ProcessState::Running(running),
                Err(error) => ProcessState::Failed(error),
            };
            process.started.notify_all();
        };
        thread::Builder::new()
            .name("tokenizer-start".into())
            .spawn(start)
            .map_err(process_error)?;
        // The new thread waits for the lock before it says how it went.
        *state = ProcessState::Starting;
        Ok(())
    }
}

impl Drop for TextProcess {
    fn drop(&mut self) {
        self.0.is_dropped.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ProcessState> {
        // Each change is one step, so a panic leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnedFiles {
    fn borrow(&self) -> TokenizerFiles<'_> {
        TokenizerFiles {
            tokenizer: &self.tokenizer,
            config: self.config.as_deref(),
            template: self.template.as_deref(),
        }
    }
}

/// Starts a process, and has it parse the files.
fn start(
    program: &Path,
    files: &TokenizerFiles<'_>,
    patience: &Patience,
) -> Result<(Process, Vocabulary), TokenizerError> {
    let mut process = Process::start(program, NAME, ARGUMENT).map_err(process_error)?;
    let mut patient = Patient {
        stream: process.control.try_clone().map_err(process_error)?,
        patience: patience.clone(),
    };
    let parsed = send_files(files, &mut patient).and_then(|()| receive_vocabulary(&mut patient));
    match parsed {
        Ok(vocabulary) => Ok((process, vocabulary?)),
        Err(error) if is_gone(&error) => Err(match process.how_it_ended() {
            How::Cpu => LimitReached::ParseCpu.into(),
            How::Memory => LimitReached::ParseMemory.into(),
            How::Otherwise(ended) => TokenizerError::process(format_args!(
                "it ended before it had parsed the files ({ended:?})"
            )),
        }),
        Err(error) => Err(told(error)),
    }
}

/// Sends a process one end of a new pair of sockets.
fn session(process: &Process, kind: SessionKind) -> io::Result<UnixStream> {
    let (ours, theirs) = Patient::pair()?;
    let descriptors = [theirs.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    // The buffer was made for it.
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        &process.control,
        &[IoSlice::new(&[kind as u8])],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(ours)
}

/// A session: questions, and the answers of a worker of its own.
pub(crate) struct ProcessSession(Patient);

impl ProcessSession {
    pub(crate) fn encode(&mut self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let answer = self.ask(&Question::Encode(text.to_owned()))?;
        read_ids(&answer).map_err(process_error)
    }

    pub(crate) fn encode_with_offsets(
        &mut self,
        text: &str,
    ) -> Result<Vec<IdWithOffsets>, TokenizerError> {
        let answer = self.ask(&Question::EncodeWithOffsets(text.to_owned()))?;
        read_tokens(&answer).map_err(process_error)
    }

    pub(crate) fn encode_chat(&mut self, chat: Conversation) -> Result<Vec<u32>, TokenizerError> {
        let answer = self.ask(&Question::EncodeChat(chat))?;
        read_ids(&answer).map_err(process_error)
    }

    pub(crate) fn compile(&mut self, grammar: &Grammar) -> Result<AllowedTokens, TokenizerError> {
        let answer = self.ask(&Question::Compile(grammar.clone()))?;
        read_allowed(&answer).map_err(process_error)
    }

    /// Waits as long as `patience` lasts, since a grammar's session outlives what its first question was allowed.
    pub(crate) fn accept(
        &mut self,
        token: u32,
        patience: &Patience,
    ) -> Result<AllowedTokens, TokenizerError> {
        self.0.patience = patience.clone();
        let answer = self.ask(&Question::Accept(token))?;
        read_allowed(&answer).map_err(process_error)
    }

    fn ask(&mut self, question: &Question) -> Result<Vec<u8>, TokenizerError> {
        let asked = send_question(question, &mut self.0);
        // A worker that died while it read has left the reason behind.
        match receive_answer(&mut self.0) {
            Ok(answer) => answer,
            Err(error) => Err(told(
                asked.err().filter(|sent| !is_gone(sent)).unwrap_or(error),
            )),
        }
    }
}

fn told(error: io::Error) -> TokenizerError {
    match WaitEnded::of(&error) {
        Some(ended) => ended.into(),
        None => process_error(error),
    }
}

fn process_error(error: impl Into<io::Error>) -> TokenizerError {
    TokenizerError::process(error.into())
}
