//! A model hub on this machine: it serves what a test puts into it, with the faults that a test asks for.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, sleep},
    time::Duration,
};

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit that every revision means, until a test moves it.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Something that goes wrong with the next request for a path.
#[derive(Debug, Clone)]
pub enum Fault {
    /// An answer with this status and these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// After so many bytes nothing more is sent, and the connection stays open.
    Stall(usize),
    /// The whole file, whatever range was asked for.
    NoRanges,
    /// Bytes without an end.
    Endless,
    /// Another range than was asked for.
    WrongRange,
    /// No fault: for faults of later requests.
    None,
}

/// A request that was received.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    /// The path, with its query.
    pub path: String,
    /// The bearer token, where one was sent.
    pub token: Option<String>,
    /// The `Range` header.
    pub range: Option<String>,
}

#[derive(Clone)]
struct ServedFile {
    bytes: Vec<u8>,
    claimed_bytes: u64,
    sha256: Option<String>,
}

#[derive(Default)]
struct HubState {
    /// By repository, then by path.
    files: BTreeMap<String, BTreeMap<String, ServedFile>>,
    faults: BTreeMap<String, VecDeque<Fault>>,
    /// The endpoint that file requests are redirected to.
    store: Option<String>,
    token: Option<String>,
    commit: String,
    /// Limit of the bytes a second of a file.
    pace: Option<usize>,
    seen: Vec<SeenRequest>,
}

/// The hub. It stops when it is dropped.
pub struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<HubState>>,
    over: Arc<AtomicBool>,
}

impl Hub {
    /// Serves on a free port of the loopback interface.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(HubState {
            commit: COMMIT.to_owned(),
            ..HubState::default()
        }));
        let over = Arc::new(AtomicBool::new(false));
        let (serving, ending) = (state.clone(), over.clone());
        let accept = move || {
            for stream in listener.incoming() {
                if ending.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), state, over) = (stream, serving.clone(), ending.clone()) else {
                    continue;
                };
                // The client may go at any moment.
                let serve = move || drop(answer(stream, &state, &over));
                Builder::new()
                    .name("hub-answer".to_owned())
                    .spawn(serve)
                    .expect("a thread");
            }
        };
        Builder::new()
            .name("hub".to_owned())
            .spawn(accept)
            .expect("a thread");
        Self {
            address,
            state,
            over,
        }
    }

    /// The URL that clients are given.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts a file into a repository; large ones have a hash.
    pub fn put(&self, repository: &str, path: &str, bytes: &[u8], has_hash: bool) {
        let sha256 = has_hash.then(|| sha256(bytes));
        let served = ServedFile {
            bytes: bytes.to_vec(),
            claimed_bytes: bytes.len() as u64,
            sha256,
        };
        self.state()
            .files
            .entry(repository.to_owned())
            .or_default()
            .insert(path.to_owned(), served);
    }

    /// Claims another size and hash for a file in the list.
    pub fn claim(&self, repository: &str, path: &str, bytes: u64, sha256: Option<String>) {
        let mut state = self.state();
        let served = state
            .files
            .get_mut(repository)
            .and_then(|files| files.get_mut(path))
            .expect("was put");
        served.claimed_bytes = bytes;
        served.sha256 = sha256;
    }

    /// Faults of the next requests for what ends in `path`, one each.
    pub fn fault(&self, path: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state()
            .faults
            .entry(path.to_owned())
            .or_default()
            .extend(faults);
    }

    /// Redirects file requests to another hub, as the real one does.
    pub fn refer_to(&self, store: &Hub) {
        self.state().store = Some(store.endpoint());
    }

    /// Serves only requests with this token.
    pub fn wants(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// Moves every revision to another commit.
    pub fn commit(&self, commit: &str) {
        self.state().commit = commit.to_owned();
    }

    /// Sends files at so many bytes a second.
    pub fn pace(&self, bytes: Option<usize>) {
        self.state().pace = bytes;
    }

    /// Requests so far, in the order in which they came.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.state().seen.clone()
    }

    /// Requests so far for files whose path ends so.
    pub fn asked_for(&self, ending: &str) -> Vec<SeenRequest> {
        self.seen()
            .into_iter()
            .filter(|seen| seen.path.ends_with(ending))
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().expect("no thread panics with it")
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

/// The git blob hash of these bytes.
pub fn git_hash(bytes: &[u8]) -> String {
    let hash = Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes);
    let hash = hash.finalize();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of some bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Answers one request, and closes the connection.
fn answer(
    mut stream: TcpStream,
    state: &Mutex<HubState>,
    over: &AtomicBool,
) -> std::io::Result<()> {
    let seen = read_request(&stream)?;
    let path = seen.path.split('?').next().unwrap_or_default().to_owned();
    let (fault, served, pace, missing) = {
        let mut state = state.lock().expect("no thread panics with it");
        state.seen.push(seen.clone());
        let fault = state
            .faults
            .iter_mut()
            .find(|(ending, _)| path.ends_with(ending.as_str()));
        let fault = fault.and_then(|(_, faults)| faults.pop_front());
        if fault.is_none() && state.token.is_some() && state.token != seen.token {
            (None, None, None, "401 Unauthorized")
        } else if let (Some(store), None, true) = (&state.store, &fault, path.contains("/resolve/"))
        {
            let location = vec![("location", format!("{store}{path}"))];
            (Some(Fault::Status(302, location)), None, None, "")
        } else {
            (fault, find(&state, &path), state.pace, "404 Not Found")
        }
    };
    let fault = fault.unwrap_or(Fault::None);
    if let Fault::Status(status, headers) = &fault {
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        return write!(
            stream,
            "HTTP/1.1 {status} X\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    let Some(body) = served else {
        return write!(
            stream,
            "HTTP/1.1 {missing}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
    };
    let mut from = seen.range.as_deref().and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    });
    match fault {
        Fault::NoRanges => from = None,
        Fault::WrongRange => from = from.map(|from: usize| from.saturating_sub(1)),
        Fault::Endless => {
            write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
            loop {
                stream.write_all(&[b'x'; 4096])?;
            }
        }
        _ => {}
    }
    let total = body.len();
    let part = &body[from.unwrap_or(0).min(total)..];
    match from {
        Some(from) if from >= total => {
            return write!(
                stream,
                "HTTP/1.1 416 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        Some(from) => write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {from}-{}/{total}\r\n",
            total - 1
        )?,
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
    }
    write!(
        stream,
        "content-length: {}\r\nconnection: close\r\n\r\n",
        part.len()
    )?;
    match fault {
        // The header has promised all bytes: the client must notice the missing ones.
        Fault::Cut(bytes) => stream.write_all(&part[..bytes.min(part.len())]),
        Fault::Stall(bytes) => {
            stream.write_all(&part[..bytes.min(part.len())])?;
            while !over.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(10));
            }
            Ok(())
        }
        _ => match pace.filter(|_| path.contains("/resolve/")) {
            None => stream.write_all(part),
            Some(pace) => part.chunks((pace / 50).max(1)).try_for_each(|piece| {
                stream.write_all(piece)?;
                sleep(Duration::from_millis(20));
                Ok(())
            }),
        },
    }
}

/// The body at a path: a list of files, or a file; `None` where there is none.
fn find(state: &HubState, path: &str) -> Option<Vec<u8>> {
    if let Some(rest) = path.strip_prefix("/api/models/") {
        let files = state.files.get(rest.split_once("/revision/")?.0)?;
        let siblings: Vec<String> = files
            .iter()
            .map(|(path, served)| {
                let size = served.claimed_bytes;
                let lfs = served.sha256.as_ref().map_or_else(String::new, |hash| {
                    format!(r#","lfs":{{"sha256":"{hash}","size":{size},"pointerSize":134}}"#)
                });
                let blob = git_hash(&served.bytes);
                format!(r#"{{"rfilename":"{path}","size":{size},"blobId":"{blob}"{lfs}}}"#)
            })
            .collect();
        let text = format!(
            r#"{{"id":"x","sha":"{}","siblings":[{}]}}"#,
            state.commit,
            siblings.join(",")
        );
        return Some(text.into_bytes());
    }
    let (repository, rest) = path.strip_prefix('/')?.split_once("/resolve/")?;
    let (_, file) = rest.split_once('/')?;
    state
        .files
        .get(repository)?
        .get(file)
        .map(|served| served.bytes.clone())
}

fn read_request(stream: &TcpStream) -> std::io::Result<SeenRequest> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut seen = SeenRequest {
        path,
        token: None,
        range: None,
    };
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(": ") else {
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => seen.token = value.strip_prefix("Bearer ").map(str::to_owned),
            "range" => seen.range = Some(value.to_owned()),
            _ => {}
        }
    }
    Ok(seen)
}
