//! The side that asks: starting the process, sessions with it, and starting it again where it is gone.

use std::{
    ffi::OsStr,
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::Signal,
};

use super::{
    ARGUMENT, NAME,
    message::{
        Question, SessionKind, read_allowed, read_ids, read_tokens, receive_answer,
        receive_vocabulary, send_files, send_question,
    },
};
use crate::{
    Patience, TokenizerFiles,
    coder::IdWithOffsets,
    conversation::Conversation,
    error::{LimitReached, TokenizerError},
    grammar::{AllowedTokens, Grammar},
    limits::PARSE_WAIT_MAX,
    vocabulary::Vocabulary,
};

/// How often a wait looks whether anybody still waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A tokenizer's process.
pub struct TextProcess(Arc<Process>);

struct Process {
    program: PathBuf,
    files: OwnedFiles,
    state: Mutex<ProcessState>,
    /// Told when a start ends.
    started: Condvar,
    /// Nobody needs the tokenizer any more.
    is_dropped: Arc<AtomicBool>,
}

enum ProcessState {
    Running(Running),
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

/// A process and the socket that sessions are sent over.
struct Running {
    child: Child,
    control: UnixStream,
}

impl TextProcess {
    pub(crate) fn start(
        program: &Path,
        files: &TokenizerFiles<'_>,
        patience: &Patience,
    ) -> Result<(Self, Vocabulary), TokenizerError> {
        let (running, vocabulary) = Running::start(program, files, patience)?;
        let own = |file: Option<&[u8]>| file.map(<[u8]>::to_vec);
        let process = Process {
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
                ProcessState::Running(running) => match running.session(kind) {
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
            let waited = self.0.started.wait_timeout(state, LOOK_INTERVAL);
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
            let started = Running::start(&process.program, &files, &wait);
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

impl Process {
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

impl Running {
    fn start(
        program: &Path,
        files: &TokenizerFiles<'_>,
        patience: &Patience,
    ) -> Result<(Self, Vocabulary), TokenizerError> {
        let (control, theirs) = patient_pair().map_err(process_error)?;
        let child = Command::new(program)
            .arg0(OsStr::from_bytes(NAME.to_bytes()))
            .arg(ARGUMENT)
            // A group of its own: Ctrl-C is for the program that started it, which may still finish requests.
            .process_group(0)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(process_error)?;
        let mut running = Self { child, control };
        let stream = running.control.try_clone().map_err(process_error)?;
        let mut patient = Patient {
            stream,
            patience: patience.clone(),
        };
        let parsed =
            send_files(files, &mut patient).and_then(|()| receive_vocabulary(&mut patient));
        match parsed {
            Ok(vocabulary) => Ok((running, vocabulary?)),
            Err(error) if is_gone(&error) => Err(running.how_it_ended()),
            Err(error) => Err(told(error)),
        }
    }

    /// Sends the process one end of a new pair of sockets.
    fn session(&self, kind: SessionKind) -> io::Result<UnixStream> {
        let (ours, theirs) = patient_pair()?;
        let descriptors = [theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // The buffer was made for it.
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(
            &self.control,
            &[IoSlice::new(&[kind as u8])],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(ours)
    }

    /// Why the process ended while it parsed the files.
    fn how_it_ended(&mut self) -> TokenizerError {
        // It closed its end of the socket, or was killed, so this doesn't take long.
        match self.child.wait().map(|status| status.signal()) {
            Ok(Some(signal)) if signal == Signal::XCPU.as_raw() => LimitReached::ParseCpu.into(),
            Ok(Some(signal)) if signal != Signal::KILL.as_raw() => LimitReached::ParseMemory.into(),
            ended => TokenizerError::process(format_args!(
                "it ended before it had parsed the files ({ended:?})"
            )),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

/// A stream whose reads and writes wait as long as somebody waits for them.
struct Patient {
    stream: UnixStream,
    patience: Patience,
}

/// Both ends of a pair of sockets; reads and writes of the first return now and then.
fn patient_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(LOOK_INTERVAL))?;
    ours.set_write_timeout(Some(LOOK_INTERVAL))?;
    Ok((ours, theirs))
}

impl Patient {
    fn retry<T>(
        &mut self,
        mut transfer: impl FnMut(&mut UnixStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            self.patience.left().map_err(io::Error::other)?;
            match transfer(&mut self.stream) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                done => return done,
            }
        }
    }
}

impl Read for &mut Patient {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.retry(|stream| stream.read(bytes))
    }
}

impl Write for &mut Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the other end is closed.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

fn told(error: io::Error) -> TokenizerError {
    let inner = error.get_ref();
    match inner.and_then(|inner| inner.downcast_ref::<LimitReached>()) {
        Some(&limit) => limit.into(),
        None => process_error(error),
    }
}

fn process_error(error: impl Into<io::Error>) -> TokenizerError {
    TokenizerError::process(error.into())
}
