//! Logs what a client speaks that does not speak HTTP/2: the HTTP/2 library closes such a connection without a word.

use std::sync::atomic::{AtomicBool, Ordering};

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first two bytes of a TLS record with a handshake.
const TLS: &[u8] = &[0x16, 0x03];

/// Looks at the first bytes of a connection.
#[derive(Debug, Default)]
pub(super) struct Opening {
    first: Vec<u8>,
    is_logged: bool,
}

impl Opening {
    pub(super) fn see(&mut self, came: &[u8]) {
        if self.is_logged || self.first.len() == PREFACE.len() {
            return;
        }
        let missing = PREFACE.len() - self.first.len();
        self.first.extend(came.iter().take(missing));
        if !PREFACE.starts_with(&self.first) {
            self.is_logged = true;
            tell(spoken(&self.first));
        }
    }
}

fn spoken(first: &[u8]) -> &'static str {
    let is_letter = |byte: &u8| byte.is_ascii_uppercase();
    match first {
        _ if first.starts_with(TLS) => "TLS",
        _ if first.len() > 2 && first.iter().take(3).all(is_letter) => "HTTP/1",
        _ => "something else",
    }
}

/// Once for people to see; a client that keeps trying doesn't fill the log.
fn tell(spoken: &str) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    match IS_TOLD.swap(true, Ordering::Relaxed) {
        false => tracing::info!(
            spoken,
            hint = "this port serves gRPC without TLS, which is HTTP/2 from the first byte",
            "a client that doesn't speak HTTP/2 was turned away"
        ),
        true => tracing::debug!(spoken, "a client that doesn't speak HTTP/2 was turned away"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_told(pieces: &[&[u8]]) -> bool {
        let mut opening = Opening::default();
        for piece in pieces {
            opening.see(piece);
        }
        opening.is_logged
    }

    #[test]
    fn only_what_is_no_preface_is_told() {
        assert!(!is_told(&[PREFACE, b"anything"]));
        assert!(!is_told(&[&PREFACE[..1], &PREFACE[1..7], &PREFACE[7..]]));
        assert!(is_told(&[b"GET / HTTP/1.1\r\n"]));
        assert!(is_told(&[b"PRI * HTTP/1.1\r\n"]));
        assert_eq!(spoken(b"GET / HTTP/1.1\r\n"), "HTTP/1");
        assert_eq!(spoken(&[0x16, 0x03, 0x01, 0x02]), "TLS");
        assert_eq!(spoken(b"\0\0\0"), "something else");
    }
}
