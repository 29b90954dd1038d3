//! The Unix socket, taken over from systemd or opened at the configured path, and the port, if configured.
//! No file of another program and no living socket is ever replaced.

use std::{
    fs::{self, DirBuilder, File},
    io,
    net::SocketAddr,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixListener as StdListener,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use listenfd::ListenFd;
use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use tokio::{
    net::{TcpListener, UnixListener, UnixStream},
    sync::mpsc,
};

use crate::{
    config::{SocketFolder, SocketPath},
    limits::BACKLOG,
};

/// A listening Unix socket. Dropping it removes the file that this process made.
#[derive(Debug)]
pub struct Listening {
    listener: Option<UnixListener>,
    /// Where clients find it.
    pub path: PathBuf,
    /// Whether systemd opened it.
    pub activated: bool,
    /// `None` when systemd owns it.
    made: Option<MadeSocket>,
}

/// A socket that this process made.
#[derive(Debug)]
struct MadeSocket {
    /// Device and inode of its file. A path alone would not tell whether another daemon has put its socket there since.
    file: (u64, u64),
    /// Held as long as the daemon lives: a second one must not start beside it even when the socket's file is gone.
    lock: SocketLock,
}

impl Listening {
    /// The listener; `None` after the first call.
    pub fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }

    /// Removes the socket's file if this process made it and nobody replaced it since.
    pub fn remove_file(&mut self) {
        let Some(made) = self.made.take() else {
            return;
        };
        if present(&self.path).is_ok_and(|file| file == Some(made.file)) {
            // Somebody else may have removed it first.
            let _ = fs::remove_file(&self.path);
        }
        made.lock.remove();
    }

    /// Opens the socket again whenever its file is gone, such as by a cleaner of temporary folders, and hands the new
    /// listener on. Never returns.
    pub async fn keep(&mut self, replacements: mpsc::Sender<UnixListener>) {
        let mut has_told = false;
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let Some(made) = &mut self.made else {
                // systemd keeps its own.
                return std::future::pending().await;
            };
            let socket = self.path.display();
            match present(&self.path) {
                Ok(Some(file)) if file == made.file => has_told = false,
                Ok(None) => match open_locked(&self.path) {
                    Ok((listener, file)) => {
                        made.file = file;
                        tracing::warn!(%socket, "the socket's file was gone; it is open again");
                        // Fails only where nobody serves any more.
                        let _ = replacements.send(listener).await;
                    }
                    Err(error) => tell_once(&mut has_told, &error),
                },
                Ok(Some(_)) => tell_once(&mut has_told, &ListenError::Replaced(self.path.clone())),
                Err(cause) => tell_once(&mut has_told, &fault("look at", &self.path, cause)),
            }
        }
    }
}

/// Says once that the socket can't be reached: it is looked at every second.
fn tell_once(has_told: &mut bool, error: &ListenError) {
    if !std::mem::replace(has_told, true) {
        tracing::error!(%error, "clients cannot connect");
    }
}

/// Device and inode of what is at a path; `None` where there is nothing.
fn present(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match fs::symlink_metadata(path) {
        Ok(file) => Ok(Some((file.dev(), file.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A lock on a file beside the socket. The kernel gives it back when the process is killed.
#[derive(Debug)]
struct SocketLock {
    path: PathBuf,
    _file: File,
}

impl SocketLock {
    /// Takes the lock of a socket; the caller holds the folder's.
    fn take(socket: &Path) -> Result<Self, ListenError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let options = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, options, Mode::from_raw_mode(0o600));
        let file = File::from(file.map_err(|errno| fault("open the lock", &path, errno.into()))?);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ListenError::Taken(socket.to_owned())),
            Err(errno) => Err(fault("lock", &path, errno.into())),
        }
    }

    /// Removes the file while the lock is still held. Whoever opened it before holds a lock on no file, which does no harm:
    /// the folder's lock orders the start of daemons.
    fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// Why there is no socket to listen on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon answers on the socket.
    #[error(
        "another sluiced answers on {path}\nhint: talk to it with sluice, or choose another --socket",
        path = .0.display()
    )]
    Taken(PathBuf),
    /// Somebody has put another file in the socket's place while the daemon runs.
    #[error(
        "another file is at {path}, in the place of sluiced's socket\nhint: restart sluiced",
        path = .0.display()
    )]
    Replaced(PathBuf),
    /// A file that is not a socket has the path.
    #[error(
        "{path} is in the way and is not a socket\nhint: move it, or choose another --socket",
        path = .0.display()
    )]
    InTheWay(PathBuf),
    /// Others could have set up the folder: it is a link, not a folder, or another user's.
    #[error(
        "the folder {path} cannot be trusted: {problem}\nhint: choose another path with --socket",
        path = path.display()
    )]
    Folder {
        /// The socket's folder.
        path: PathBuf,
        /// What makes it untrusted.
        problem: String,
    },
    /// A system call failed.
    #[error("cannot {operation} {path}: {cause}", path = path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The file or folder it was tried on.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// The port cannot be opened.
    #[error(
        "cannot listen on {address}: {cause}\nhint: choose another port with {flag}, or 0 for any that is free"
    )]
    Port {
        /// The flag that names the address.
        flag: &'static str,
        /// The address with the port.
        address: SocketAddr,
        /// The system's words.
        cause: io::Error,
    },
    /// What systemd handed over is not a listening Unix socket.
    #[error("the socket handed over by systemd is not a listening Unix socket: {0}")]
    Activation(io::Error),
}

/// Only the user and the group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Time to wait for a connection to an existing socket. No answer by then counts as a living owner, so that the socket stays.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the socket's file is looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between attempts to lock the socket's folder, which another daemon holds while it starts.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Attempts before the start fails: two seconds.
const LOCK_TRIES: usize = 100;

/// Takes over systemd's socket, or opens the one at `address`.
///
/// # Errors
/// When another daemon or file has the path, the folder is not to be trusted, or a system call fails.
pub async fn open(
    mut handed_over: ListenFd,
    address: &SocketPath,
) -> Result<Listening, ListenError> {
    if handed_over.len() > 0 {
        return take_over(&mut handed_over, address);
    }
    bind(address).await
}

/// Opens a port, where `flag` names one, and tells its address; for port 0 the system chooses one.
///
/// # Errors
/// When the port is in use or the system refuses it.
pub async fn open_port(
    flag: &'static str,
    address: Option<SocketAddr>,
) -> Result<Option<(TcpListener, SocketAddr)>, ListenError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let failed = |cause| ListenError::Port {
        flag,
        address,
        cause,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Some((listener, address)))
}

fn take_over(handed_over: &mut ListenFd, address: &SocketPath) -> Result<Listening, ListenError> {
    let listener = handed_over
        .take_unix_listener(0)
        .and_then(|listener| listener.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(ListenError::Activation)?;
    let path = listener
        .local_addr()
        .ok()
        .and_then(|own| own.as_pathname().map(Path::to_owned))
        .unwrap_or_else(|| address.path.clone());
    Ok(Listening {
        listener: Some(to_tokio(listener).map_err(ListenError::Activation)?),
        path,
        activated: true,
        // systemd keeps the socket for the next start: removing its file would make the daemon unreachable.
        made: None,
    })
}

async fn bind(address: &SocketPath) -> Result<Listening, ListenError> {
    let path = &address.path;
    let folder = path.parent().unwrap_or(Path::new("/"));
    prepare_folder(folder, address.folder)?;

    // Two daemons that both find a stale socket must not remove each other's new one. The
    // folder itself is the lock, so that no file is left behind.
    let folder_lock = lock_folder(folder).await?;
    clear_the_way(path).await?;
    let lock = SocketLock::take(path)?;
    let (listener, file) = open_locked(path)?;
    drop(folder_lock);

    Ok(Listening {
        listener: Some(listener),
        path: path.clone(),
        activated: false,
        made: Some(MadeSocket { file, lock }),
    })
}

/// Opens the socket at a path where nothing is; also device and inode of its file. The caller holds the socket's lock.
fn open_locked(path: &Path) -> Result<(UnixListener, (u64, u64)), ListenError> {
    let listener = bind_private(path).map_err(|cause| fault("open the socket", path, cause))?;
    let file = fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))
        .and_then(|()| fs::symlink_metadata(path))
        .map_err(|cause| fault("set permissions of", path, cause))?;
    let listener = to_tokio(listener).map_err(|cause| fault("listen on", path, cause))?;
    Ok((listener, (file.dev(), file.ino())))
}

/// A listening socket whose file never lets others in, not even for a moment.
fn bind_private(path: &Path) -> io::Result<StdListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before `bind`, so that no other user can connect between it and a later chmod. Linux gives the file this mode, less
    // the umask; if this call fails, the caller sets the mode afterwards.
    let _ = rustix::fs::fchmod(&socket, Mode::from_raw_mode(SOCKET_MODE));
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn to_tokio(listener: StdListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Makes the folder if it is a default one, and refuses one that others could have set up: whoever controls the folder can
/// put a socket of their own in the daemon's place.
fn prepare_folder(folder: &Path, care: SocketFolder) -> Result<(), ListenError> {
    if care == SocketFolder::Given {
        return match fs::metadata(folder) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(fault("use", folder, io::ErrorKind::NotADirectory.into())),
            Err(cause) => Err(fault("use the socket's folder", folder, cause)),
        };
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(cause) => return Err(fault("make the folder", folder, cause)),
    }
    // Without following links: in a shared place such as /tmp another user may have put one here.
    let found = fs::symlink_metadata(folder).map_err(|cause| fault("look at", folder, cause))?;
    let distrust = |problem: String| ListenError::Folder {
        path: folder.to_owned(),
        problem,
    };
    if found.is_symlink() {
        return Err(distrust("it is a symbolic link".to_owned()));
    }
    if !found.is_dir() {
        return Err(distrust("it is not a folder".to_owned()));
    }
    let user = rustix::process::geteuid().as_raw();
    if care == SocketFolder::OursInPublic && found.uid() != user {
        let owner = found.uid();
        return Err(distrust(format!(
            "it belongs to user {owner}, not to {user}"
        )));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
            .map_err(|cause| fault("set permissions of", folder, cause))?;
    }
    Ok(())
}

async fn lock_folder(folder: &Path) -> Result<File, ListenError> {
    let file = File::open(folder).map_err(|cause| fault("open the folder", folder, cause))?;
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => tokio::time::sleep(LOCK_PAUSE).await,
            Err(errno) => return Err(fault("lock the folder", folder, errno.into())),
        }
    }
    let cause = io::Error::new(io::ErrorKind::TimedOut, "another program holds it");
    Err(fault("lock the folder", folder, cause))
}

/// Removes a socket that nobody listens on any more; refuses everything else. The caller holds the folder's lock.
async fn clear_the_way(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(fault("look at", path, cause)),
        // A connection to a plain file is refused as well, so the file's type is checked first.
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::InTheWay(path.to_owned()));
        }
        Ok(_) => {}
    }
    match tokio::time::timeout(PROBE_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "removing a stale socket");
            fs::remove_file(path).map_err(|cause| fault("remove", path, cause))
        }
        // Only a refused connection proves that the owner is gone. A full backlog says WouldBlock: the owner is busy.
        Err(_) | Ok(Ok(_)) => Err(ListenError::Taken(path.to_owned())),
        Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(ListenError::Taken(path.to_owned()))
        }
        Ok(Err(cause)) => Err(fault("reach who listens on", path, cause)),
    }
}

fn fault(operation: &'static str, path: &Path, cause: io::Error) -> ListenError {
    ListenError::Io {
        operation,
        path: path.to_owned(),
        cause,
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn address(path: PathBuf, folder: SocketFolder) -> SocketPath {
        SocketPath { path, folder }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[tokio::test]
    async fn our_folder_and_socket_are_private() {
        let place = TempDir::new().unwrap();
        for care in [SocketFolder::Ours, SocketFolder::OursInPublic] {
            let folder = place.path().join(format!("{care:?}"));
            let path = folder.join("sluice.sock");
            let listening = bind(&address(path.clone(), care)).await.unwrap();
            assert_eq!(mode(&folder), 0o700);
            assert_eq!(mode(&path), 0o660);
            drop(listening);
            assert!(!path.exists(), "the socket is removed in the end");
        }
    }

    #[tokio::test]
    async fn a_folder_that_others_may_enter_is_closed() {
        let place = TempDir::new().unwrap();
        let folder = place.path().join("open");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let path = folder.join("s");
        let _listening = bind(&address(path, SocketFolder::OursInPublic))
            .await
            .unwrap();
        assert_eq!(mode(&folder), 0o700);
    }

    #[tokio::test]
    async fn a_linked_folder_is_refused() {
        let place = TempDir::new().unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path(), &link).unwrap();
        let path = link.join("s");
        let error = bind(&address(path, SocketFolder::OursInPublic))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let place = TempDir::new().unwrap();
        let path = place.path().join("s");
        drop(StdListener::bind(&path).unwrap());
        let given = address(path.clone(), SocketFolder::Given);
        let living = bind(&given).await.unwrap();
        assert!(matches!(bind(&given).await, Err(ListenError::Taken(_))));
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(living);
    }

    #[tokio::test]
    async fn a_socket_whose_file_is_gone_is_opened_again_and_stays_taken() {
        let place = TempDir::new().unwrap();
        let path = place.path().join("s");
        let given = address(path.clone(), SocketFolder::Given);
        let mut first = bind(&given).await.unwrap();
        fs::remove_file(&path).unwrap();
        assert!(matches!(bind(&given).await, Err(ListenError::Taken(_))));
        let (send, mut replacements) = mpsc::channel(1);
        let replacement = tokio::select! {
            () = first.keep(send) => unreachable!("it goes on"),
            replacement = replacements.recv() => replacement.unwrap(),
        };
        let (_client, accepted) = tokio::join!(UnixStream::connect(&path), replacement.accept());
        accepted.unwrap();
        assert_eq!(mode(&path), 0o660);
        drop(first);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        bind(&given).await.unwrap();
    }

    #[tokio::test]
    async fn a_plain_file_is_never_removed() {
        let place = TempDir::new().unwrap();
        let path = place.path().join("s");
        fs::write(&path, "precious").unwrap();
        let error = bind(&address(path.clone(), SocketFolder::Given))
            .await
            .unwrap_err();
        assert!(matches!(error, ListenError::InTheWay(_)));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn only_our_own_file_is_removed() {
        let place = TempDir::new().unwrap();
        let path = place.path().join("s");
        let first = bind(&address(path.clone(), SocketFolder::Given))
            .await
            .unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "somebody else's").unwrap();
        drop(first);
        assert!(path.exists());
    }
}
