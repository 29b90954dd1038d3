//! Follows files of tokens and certificates while the daemon serves.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::services::Daemon;

/// How often files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Has files read again when they change, until the end.
pub(crate) async fn watch(daemon: Arc<Daemon>) {
    let mut told = Vec::new();
    loop {
        tokio::select! {
            () = daemon.closing.cancelled() => return,
            () = sleep(LOOK_INTERVAL) => {}
        }
        let looking = daemon.clone();
        // Folders may be of the network, which answers when it likes.
        let looked = tokio::task::spawn_blocking(move || looking.look_at_files()).await;
        // Fails only by a panic, which is in the log.
        if let Ok(problems) = looked
            && problems != told
        {
            told = problems;
            daemon.changes.tell();
        }
    }
}
