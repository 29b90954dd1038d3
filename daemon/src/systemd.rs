//! Notifications to systemd. Without its notification socket (`NOTIFY_SOCKET`) they do nothing.

use std::time::Duration;

use sd_notify::NotifyState;

/// Tells systemd that the socket listens; the model may still be loading.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(first_line(status))]);
}

/// Sets the line that `systemctl status` shows.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(first_line(status))]);
}

/// Tells systemd that the daemon takes no new requests from now on.
pub fn stopping(status: &str) {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status(first_line(status)),
    ]);
}

/// How often to [`pat`] the watchdog at least: half of its timeout, so that one late pat does no harm. `None` without a watchdog.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|timeout| timeout / 2)
}

/// Tells the watchdog that the daemon and its engine get on.
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
