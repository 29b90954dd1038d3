//! Handshakes of TLS, each a task of its own, so that a slow one keeps nobody waiting. Who they are of is not known before they
//! are done, so they have a bound of their own.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncWriteExt, copy, sink},
    net::TcpStream,
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};

use super::rare::RareWarning;
use crate::limits::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX};

/// What every TLS connection begins with: a record with a handshake.
const HANDSHAKE: u8 = 0x16;
/// What every HTTP/2 connection without TLS begins with, or the beginning of that.
const HTTP2: &[u8] = b"PRI ";
/// What is told to a client that speaks without TLS.
const REFUSAL: &str = "this port takes TLS alone: use https:// instead of http://";
/// Time for such a client to read it.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Handshakes under way.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    tasks: JoinSet<(io::Result<TlsConnection>, IpAddr)>,
    /// From where, the longest under way first.
    under_way: Vec<(IpAddr, AbortHandle)>,
    failures: RareWarning,
}

/// A connection after its handshake.
pub(super) type TlsConnection = Box<TlsStream<TcpStream>>;

impl Handshakes {
    /// Begins a handshake. Where there are too many, another gives its place up: the one that takes longest, of the address
    /// with the most.
    pub(super) fn begin(&mut self, stream: TcpStream, from: IpAddr, server: Arc<ServerConfig>) {
        self.under_way.retain(|(_, task)| !task.is_finished());
        if self.under_way.len() >= HANDSHAKES_MAX {
            let places = self.under_way.iter().map(|(from, _)| *from).collect();
            let (_, task) = self.under_way.remove(longest_of_most(places));
            task.abort();
            self.failures
                .tell("a handshake of TLS is broken off", &"there are too many");
        }
        let handshake = async move {
            let shaken = timeout(HANDSHAKE_TIMEOUT, shake_hands(stream, server)).await;
            let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            (shaken.map(Box::new), from)
        };
        self.under_way.push((from, self.tasks.spawn(handshake)));
    }

    /// The next connection whose handshake is done, and from where it comes; never, where there is none. Nothing is lost when
    /// this is dropped.
    pub(super) async fn next(&mut self) -> (TlsConnection, IpAddr) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((Ok(connection), from))) => return (connection, from),
                Some(Ok((Err(error), from))) => {
                    let reason = format!("{error} (from {from})");
                    self.failures.tell("a handshake of TLS failed", &reason);
                }
                // It was broken off, which was told.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// Which of these is the first of the address that has the most.
fn longest_of_most(places: Vec<IpAddr>) -> usize {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for from in &places {
        *counts.entry(*from).or_default() += 1;
    }
    let most = counts.values().copied().max();
    let mut places = places.iter();
    let first = places.position(|from| counts.get(from).copied() == most);
    first.unwrap_or_default()
}

async fn shake_hands(
    mut stream: TcpStream,
    server: Arc<ServerConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let mut first = [0; HTTP2.len()];
    match stream.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ if first[0] == HANDSHAKE => TlsAcceptor::from(server).accept(stream).await,
        _ => {
            if let Some(refusal) = refusal(&first) {
                // The client may be gone.
                let _ = timeout(REFUSAL_TIMEOUT, refuse(&mut stream, &refusal)).await;
            }
            Err(io::Error::other("the client speaks without TLS"))
        }
    }
}

/// What a client that begins like this understands, if anything.
fn refusal(first: &[u8]) -> Option<Vec<u8>> {
    /// Kinds of HTTP/2's frames.
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    /// HTTP/2's code for a connection without the encryption that it needs.
    const INADEQUATE_SECURITY: u32 = 0xc;

    let frame = |kind: u8, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
    };
    match first {
        HTTP2 => {
            let last_stream = [0; 4];
            let code = INADEQUATE_SECURITY.to_be_bytes();
            let reason = [&last_stream, &code, REFUSAL.as_bytes()].concat();
            Some([frame(SETTINGS, &[]), frame(GOAWAY, &reason)].concat())
        }
        [b'A'..=b'Z', ..] => {
            let length = REFUSAL.len() + 1;
            let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close";
            Some(format!("{head}\r\ncontent-length: {length}\r\n\r\n{REFUSAL}\n").into_bytes())
        }
        _ => None,
    }
}

async fn refuse(stream: &mut TcpStream, refusal: &[u8]) -> io::Result<()> {
    stream.write_all(refusal).await?;
    stream.shutdown().await?;
    // What is left unread when a connection is closed takes back what was sent.
    copy(stream, &mut sink()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_most_gives_way() {
        let from = |last: u8| IpAddr::from([192, 0, 2, last]);
        let places = |list: &[u8]| list.iter().map(|last| from(*last)).collect::<Vec<_>>();
        assert_eq!(longest_of_most(places(&[1, 2, 3, 2])), 1);
        assert_eq!(longest_of_most(places(&[1, 2, 2, 1, 1])), 0);
        assert_eq!(longest_of_most(places(&[5])), 0);
    }

    #[test]
    fn whoever_speaks_http_is_told_in_it() {
        let http1 = String::from_utf8(refusal(b"GET ").unwrap()).unwrap();
        let (head, body) = http1.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())));
        assert_eq!(refusal(b"POST"), refusal(b"PUT "));
        let http2 = refusal(b"PRI ").unwrap();
        assert_eq!(http2[..13], *b"\0\0\0\x04\0\0\0\0\0\0\0\x42\x07");
        assert_eq!(http2.len(), 9 + 9 + 0x42);
        assert!(http2.ends_with(REFUSAL.as_bytes()));
        assert_eq!(refusal(b"\0\0\0\0"), None);
    }
}
