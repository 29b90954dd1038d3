//! What clients may take of the daemon, by name: connections, calls, bytes, waits.
//!
//! Limits of what files may hold stand beside their readers. docs/limits.md lists all of both kinds, docs/peers.md tells what
//! happens to whom when one is reached.

use std::time::Duration;

/// Largest message that a call may send: above the bounds on text and ids, which give the better error.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Connections at once, over all listeners.
pub const CONNECTIONS_MAX: usize = 1024;
/// Of them, one user's, other than the administrator's. All callers on a port, and nothing tells who they are, are one user.
pub const USER_CONNECTIONS_MAX: usize = 768;
/// Connections beyond these that administrators may have. On the port nobody is one before a call brings its token.
pub const ADMIN_CONNECTIONS: usize = 16;
/// Connections beyond all of these that are being closed, and have their descriptors still.
pub const CLOSING_MAX: usize = 64;
/// Handshakes of TLS at once on a port, before the connections count. Beyond it, the one that takes longest is broken off, of the address
/// with the most.
pub const HANDSHAKES_MAX: usize = 256;
/// Connections that may wait to be accepted. The system's own limit may be lower (`net.core.somaxconn`).
pub const BACKLOG: i32 = 4096;
/// File descriptors that the daemon asks the system for: connections, and the files of models beside them.
pub const DESCRIPTORS: u64 = 4096;
/// Calls at once on a connection, open streams among them.
pub const STREAMS_MAX: u32 = 64;
/// Calls of a connection that are read or prepared at once. A stream that is being answered does not count.
pub const CALLS_READ_MAX: usize = 4;
/// Calls at once of all connections together, open streams among them.
pub const CALLS_MAX: usize = 2048;
/// Calls beyond these that administrators may have, by connection or token.
pub const ADMIN_CALLS: usize = 64;
/// Of all, one user's, other than the administrator's.
pub const USER_CALLS_MAX: usize = 1536;
/// Of all, those of callers from other machines who don't say who they are: checks of health.
pub const STRANGERS_CALLS_MAX: usize = 64;
/// Bytes of a call's headers.
pub const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Requests that are tokenized, and plans that are made, at once.
pub const PREPARING_MAX: usize = 2;
/// Requests and plans that wait for that; some places are kept for users who have few.
pub const PREPARING_LINE_MAX: usize = 64;
/// Searches, writes and removals of memory that wait for the one under way; some places are kept for users who have few.
pub const REMEMBERING_LINE_MAX: usize = 64;
/// How long an import waits for more from its caller.
pub const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Imports at once.
pub const IMPORTS_MAX: usize = 4;
/// The same of one user.
pub const IMPORTS_OF_USER_MAX: usize = 2;
/// Lists of models that are made at once.
pub const LISTING_MAX: usize = 2;
/// Calls that wait for that; some places are kept for users who have few.
pub const LISTING_LINE_MAX: usize = 64;
/// Unloads that wait for the one under way; some places are kept for users who have few.
pub const UNLOADING_LINE_MAX: usize = 32;
/// Requests that wait with the daemon for a model, or for room in the engine's queue; some places are kept for users who have
/// few.
pub const WAITING_MAX: usize = 1024;
/// Models that are loaded at once.
pub const LOADED_MODELS_MAX: usize = 16;
/// Models that requests wait for, one after another; some places are kept for users who have few.
pub const WANTED_MODELS_MAX: usize = 64;
/// Models that were unloaded and that the next request loads again, where requests load no others.
pub const SLEEPING_MAX: usize = 64;
/// Changes of level and budget that wait, run or are being written to disk.
pub const CHANGES_MAX: usize = 16;
/// The same of one user.
pub const CHANGES_OF_USER_MAX: usize = 4;

/// Bytes that a client may send before they are read: HTTP/2's windows of a connection and of a stream.
pub const WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of messages on their way in or being prepared, of all connections together. Messages below [`SMALL_MESSAGE_BYTES`]
/// are not counted.
pub const MESSAGES_BYTES_MAX: usize = 64 << 20;
/// Of them, one user's.
pub const USER_MESSAGES_BYTES_MAX: usize = 48 << 20;
/// Bytes of messages of requests that wait to begin.
pub const WAITING_BYTES_MAX: usize = 64 << 20;
/// Of them, one user's.
pub const USER_WAITING_BYTES_MAX: usize = 32 << 20;
/// Bytes beyond each of the two that administrators may have.
pub const ADMIN_MESSAGES_BYTES: usize = 8 << 20;
/// Bytes of a message that are received without being counted.
pub const SMALL_MESSAGE_BYTES: usize = 8 << 10;
/// Bytes of the states of recurrent models that come with requests or go with answers, of all connections together.
pub const STATES_BYTES_MAX: usize = 256 << 20;
/// Of them, one user's; so a request's state and its answer's are no larger together.
pub const USER_STATES_BYTES_MAX: usize = 128 << 20;
/// Bytes that wait for clients to read them, of all connections together. Beyond it, the connection that leaves most is closed,
/// of the user who leaves most.
pub const UNREAD_BYTES_MAX: usize = 64 << 20;
/// Frames a second of a connection that carry neither headers nor data: pings, settings, priorities, windows, resets.
pub const CONTROL_FRAMES_PER_S: u32 = 2000;

/// Time for a handshake of TLS.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for HTTP/2's preface, and for a frame or a header block that was begun.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Time until a connection's first call.
pub const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a whole message.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for a whole state to come, and for one to be read.
pub const STATE_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Time without a call after which a connection is closed.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// Time without a sign of life after which a client is pinged.
pub const PING_INTERVAL: Duration = Duration::from_secs(2 * 60);
/// Time for its answer.
pub const PING_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    /// As docs/limits.md writes it.
    trait Written {
        fn written(self) -> String;
    }

    fn count(number: u64) -> String {
        let digits = number.to_string();
        let groups = digits.as_bytes().rchunks(3).rev();
        let groups = groups.map(|group| String::from_utf8_lossy(group).into_owned());
        groups.collect::<Vec<_>>().join(",")
    }

    impl Written for u64 {
        fn written(self) -> String {
            match self {
                bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
                    format!("{} MiB", bytes >> 20)
                }
                bytes if bytes >= 8 << 10 && bytes.is_multiple_of(1 << 10) => {
                    format!("{} KiB", bytes >> 10)
                }
                number => count(number),
            }
        }
    }

    impl Written for Duration {
        fn written(self) -> String {
            match self.as_secs() {
                seconds if seconds >= 120 => format!("{} min", seconds / 60),
                seconds => format!("{seconds} s"),
            }
        }
    }

    /// Rows of the table for each of these.
    macro_rules! rows {
        ($($name:ident as $form:ty),+) => {
            [$((stringify!($name), <$form>::try_from($name).expect("fits").written())),+]
        };
    }

    #[test]
    fn every_limit_is_written_down_with_its_value() {
        let written = include_str!("../../docs/limits.md");
        let rows = rows![
            REQUEST_BYTES_MAX as u64,
            UNLOADING_LINE_MAX as u64,
            LISTING_LINE_MAX as u64,
            LISTING_MAX as u64,
            CONNECTIONS_MAX as u64,
            USER_CONNECTIONS_MAX as u64,
            ADMIN_CONNECTIONS as u64,
            CLOSING_MAX as u64,
            HANDSHAKES_MAX as u64,
            BACKLOG as u64,
            DESCRIPTORS as u64,
            STREAMS_MAX as u64,
            CALLS_READ_MAX as u64,
            CALLS_MAX as u64,
            ADMIN_CALLS as u64,
            USER_CALLS_MAX as u64,
            STRANGERS_CALLS_MAX as u64,
            HEADER_BYTES_MAX as u64,
            PREPARING_MAX as u64,
            PREPARING_LINE_MAX as u64,
            WAITING_MAX as u64,
            LOADED_MODELS_MAX as u64,
            WANTED_MODELS_MAX as u64,
            SLEEPING_MAX as u64,
            CHANGES_MAX as u64,
            CHANGES_OF_USER_MAX as u64,
            REMEMBERING_LINE_MAX as u64,
            IMPORTS_MAX as u64,
            IMPORTS_OF_USER_MAX as u64,
            WINDOW_BYTES as u64,
            MESSAGES_BYTES_MAX as u64,
            USER_MESSAGES_BYTES_MAX as u64,
            WAITING_BYTES_MAX as u64,
            USER_WAITING_BYTES_MAX as u64,
            ADMIN_MESSAGES_BYTES as u64,
            SMALL_MESSAGE_BYTES as u64,
            STATES_BYTES_MAX as u64,
            USER_STATES_BYTES_MAX as u64,
            UNREAD_BYTES_MAX as u64,
            CONTROL_FRAMES_PER_S as u64,
            HANDSHAKE_TIMEOUT as Duration,
            FRAME_TIMEOUT as Duration,
            FIRST_CALL_TIMEOUT as Duration,
            MESSAGE_TIMEOUT as Duration,
            STATE_TIMEOUT as Duration,
            IMPORT_TIMEOUT as Duration,
            IDLE_TIMEOUT as Duration,
            PING_INTERVAL as Duration,
            PING_TIMEOUT as Duration
        ];
        for (name, value) in &rows {
            let row = format!("| `{name}` | {value} |");
            assert!(written.contains(&row), "docs/limits.md lacks {row}");
        }
        let source = include_str!("limits.rs");
        let constants = source.matches("\npub const ").count();
        assert_eq!(rows.len(), constants, "a limit is not in this test");
    }
}
