//! What systemd is told, where it runs this program; elsewhere nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;

/// The socket listens; the model may still be loading.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(first_line(status))]);
}

/// One line for `systemctl status`.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(first_line(status))]);
}

/// No new requests from now on.
pub fn stopping(status: &str) {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status(first_line(status)),
    ]);
}

/// How often to [`pat`] the watchdog, where there is one: twice in its time.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|timeout| timeout / 2)
}

/// The engine lives.
pub fn pat() {
    tell(&[NotifyState::Watchdog]);
}

/// The protocol separates its fields by line ends.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}
