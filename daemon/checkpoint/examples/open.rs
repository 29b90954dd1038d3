//! What opening a checkpoint takes, and what comparing it with its checksums does:
//! `cargo run --release -p sluice-checkpoint --example open -- CHECKPOINT...`

use std::{env, fs, path::PathBuf, sync::atomic::AtomicBool, time::Instant};

use sluice_checkpoint::{Checkpoint, Source};

/// Most memory that the process has taken so far.
fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap_or("unknown").trim().to_owned()
}

fn main() {
    for path in env::args_os().skip(1).map(PathBuf::from) {
        let name = path.display().to_string();
        let begun = Instant::now();
        let checkpoint = match Checkpoint::open(&Source::Folder(path)) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                println!(
                    "{name}: {error} after {:?}, peak {}",
                    begun.elapsed(),
                    peak()
                );
                continue;
            }
        };
        let tensors = checkpoint.names().count();
        println!(
            "{name}: {tensors} tensors after {:?}, peak {}",
            begun.elapsed(),
            peak()
        );
        let begun = Instant::now();
        let mut bytes = 0;
        let compared =
            checkpoint.verify(None, &AtomicBool::new(false), &mut |done, _| bytes = done);
        let seconds = begun.elapsed().as_secs_f64();
        let rate = bytes as f64 / 1e9 / seconds;
        println!(
            "{name}: {compared:?}, {bytes} bytes in {seconds:.2} s, {rate:.2} GB/s, peak {}",
            peak()
        );
    }
}
