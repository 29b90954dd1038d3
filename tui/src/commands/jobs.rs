//! `sluice compress`, `decompress`, `verify` and `jobs`: work on files, done by the daemon.

use std::{
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use sluice_proto::{
    operations::OperationResponse,
    v1::{
        CompressRequest, Compression, DecompressRequest, ListOperationsRequest, Operation,
        OperationKind, OperationProgress, OperationState, ProgressUnit, VerifyRequest,
        WatchOperationRequest, model_ref::By, operation::Outcome,
    },
};
use sluice_report::{
    container,
    progress::{advance, counted},
};
use sluice_shared::{
    bandwidth::Bandwidth,
    compression::{Coder, DAMAGED_HINT, check_pattern_count},
    mix::MixId,
    units,
};
use tonic::{Response, Status, Streaming};

use super::{
    follow::interrupts,
    offline::{self, flag, offline_hint},
    operations::{OnInterrupt, Step, cancel_and_wait, follow},
    paths::{absolute, subject},
    until_interrupted, usage,
};
use crate::{
    cli::{Compress, Decompress, FollowArgs, Jobs, JobsCommand, Verify},
    connection::DaemonConnection,
    operations,
    operations::no_result,
    output::{Failure, StandardOutput, dim, say},
    text::sanitise_line,
};

/// Compresses a checkpoint into a file.
pub(super) async fn compress(
    socket: PathBuf,
    arguments: &Compress,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    for (flag, patterns) in [("--keep", &arguments.keep), ("--only", &arguments.only)] {
        check_pattern_count(patterns.len())
            .map_err(|problem| usage(&format!("{flag} {problem}")))?;
    }
    let model = subject(&arguments.model)?;
    let request = CompressRequest {
        model: model.clone().into(),
        output_path: absolute(&arguments.output)?,
        compression: match arguments.coder {
            Some(Coder::Huffman) => Compression::Huffman.into(),
            Some(Coder::Dictionary) => Compression::Dictionary.into(),
            None => Compression::Unspecified.into(),
        },
        bits_per_weight: arguments.bits,
        tile_elements: arguments.tile,
        keep_tensors: arguments.keep.clone(),
        only_tensors: arguments.only.clone(),
        min_bytes: arguments.min_size,
        all_tensors: arguments.all,
        threads: arguments.threads,
        mix: arguments.mix.map(MixId::number),
    };
    let command = "compress DIR --output FILE.sluice";
    let alone = match &model {
        // The daemon alone knows where mixes are.
        By::Path(path) if arguments.mix.is_none() => alone(&arguments.following, command, || {
            compress_words(path, &request, arguments)
        }),
        By::Path(_) if arguments.mix.is_some() => Err(offline::START_HINT.to_owned()),
        By::Path(_) | By::Name(_) | By::Shape(_) => Err(offline_hint(command)),
    };
    let daemon = offline::daemon(socket, alone).await?;
    let mut client = daemon.optimizer();
    let call = client.compress(request);
    follow_own(&daemon, call, &arguments.following, out)
        .await
        .map(drop)
}

/// The arguments of `sluiced compress`.
fn compress_words(path: &str, request: &CompressRequest, arguments: &Compress) -> Vec<String> {
    let mut words = vec!["compress".to_owned(), path.to_owned()];
    words.extend(flag("--output", Some(&request.output_path)));
    words.extend(arguments.lossless.then(|| "--lossless".to_owned()));
    words.extend(flag("--bits", arguments.bits));
    words.extend(flag("--coder", arguments.coder));
    words.extend(flag("--tile", arguments.tile));
    for pattern in &arguments.keep {
        words.extend(flag("--keep", Some(pattern)));
    }
    for pattern in &arguments.only {
        words.extend(flag("--only", Some(pattern)));
    }
    words.extend(flag("--min-size", arguments.min_size));
    words.extend(arguments.all.then(|| "--all".to_owned()));
    words.extend(flag("--threads", arguments.threads));
    words
}

/// Decompresses a compressed file into a folder.
pub(super) async fn decompress(
    socket: PathBuf,
    arguments: &Decompress,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = DecompressRequest {
        input_path: absolute(&arguments.file)?,
        output_path: absolute(&arguments.output)?,
        threads: arguments.threads,
    };
    let command = "decompress FILE --output DIR";
    let alone = alone(&arguments.following, command, || {
        let mut words = vec!["decompress".to_owned(), request.input_path.clone()];
        words.extend(flag("--output", Some(&request.output_path)));
        words.extend(flag("--threads", request.threads));
        words
    });
    let daemon = offline::daemon(socket, alone).await?;
    let mut client = daemon.optimizer();
    let call = client.decompress(request);
    follow_own(&daemon, call, &arguments.following, out)
        .await
        .map(drop)
}

/// Compares a compressed file with its checksums.
pub(super) async fn verify(
    socket: PathBuf,
    arguments: &Verify,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = VerifyRequest {
        input_path: absolute(&arguments.file)?,
    };
    let alone = alone(&arguments.following, "verify FILE", || {
        vec!["verify".to_owned(), request.input_path.clone()]
    });
    let daemon = offline::daemon(socket, alone).await?;
    let mut client = daemon.optimizer();
    let call = client.verify(request);
    follow_own(&daemon, call, &arguments.following, out)
        .await
        .map(drop)
}

/// Lists, watches or cancels jobs of all clients.
pub(super) async fn jobs(
    socket: PathBuf,
    arguments: &Jobs,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    match arguments.command {
        None => until_interrupted(list(&daemon, arguments.json, out)).await,
        Some(JobsCommand::Watch { id, json }) => watch(&daemon, id, json, out).await,
        Some(JobsCommand::Cancel { id, json }) => {
            until_interrupted(cancel(&daemon, id, json, out)).await
        }
    }
}

/// Cancels a job and waits for its end. An id may be any operation's, such as a request's, so what it is, is asked first.
async fn cancel(
    daemon: &DaemonConnection,
    operation_id: u64,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    check_is_job(&operations::find(daemon, operation_id).await?)?;
    let ended = cancel_and_wait(daemon, operation_id).await?;
    ended.tell(json, out)
}

fn check_is_job(operation: &Operation) -> Result<(), Failure> {
    if operation.kind().is_on_files() {
        return Ok(());
    }
    let words = format!("operation {} is no job", operation.operation_id);
    Err(Failure::new(words).with_hint("`sluice jobs` lists the jobs"))
}

/// The arguments with which `sluiced` does the work where no daemon runs. Without a daemon there is nothing to detach to, and
/// no events for `--json`, so those give the hint to report.
pub(super) fn alone(
    following: &FollowArgs,
    command: &str,
    words: impl FnOnce() -> Vec<String>,
) -> Result<Vec<String>, String> {
    match following.detach || following.json {
        true => Err(offline_hint(command)),
        false => Ok(words()),
    }
}

async fn list(
    daemon: &DaemonConnection,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = ListOperationsRequest {
        kinds: OperationKind::FILES.map(Into::into).into(),
        ..Default::default()
    };
    let answer = daemon.operations().list_operations(request).await;
    let list = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    if json {
        return out.json(&list);
    }
    let jobs = list.operations;
    if jobs.is_empty() {
        return out.line("no jobs");
    }
    out.line(&format!(
        "{:>5}  {:<10} {:<9} {:>6} {:>12}  FILES",
        "ID", "KIND", "STATE", "DONE", "TIME"
    ))?;
    for job in &jobs {
        out.line(&row(job))?;
    }
    Ok(())
}

/// A job as a line of a table.
pub(super) fn row(job: &Operation) -> String {
    let mut row = format!(
        "{:>5}  {:<10} {:<9} {:>6} {:>12}  {}",
        job.operation_id,
        job.kind(),
        job.state(),
        share(job),
        time(job),
        files(job),
    );
    if let Some(error) = &job.error {
        row += &format!(": {}", error.message);
    }
    sanitise_line(&row)
}

/// How long it has run or ran; `?` where it was interrupted at a time that nobody knows.
fn time(job: &Operation) -> String {
    match job.is_active() || job.ended_unix_ms.is_some() || job.elapsed_ms > 0.0 {
        true => units::duration_ms(job.elapsed_ms),
        false => "?".to_owned(),
    }
}

/// The share that is done, such as `37 %`; `?` while it is not known.
fn share(job: &Operation) -> String {
    let step = job.progress.as_ref();
    match step.and_then(|step| Some((step.done, step.total?))) {
        _ if job.state() == OperationState::Done => "100 %".to_owned(),
        Some((done, total)) if total > 0 => {
            let share = u128::from(done) * 100 / u128::from(total);
            format!("{share} %")
        }
        _ => "?".to_owned(),
    }
}

fn files(job: &Operation) -> String {
    match job.output_path.is_empty() {
        true => job.input_path.clone(),
        false => format!("{} → {}", job.input_path, job.output_path),
    }
}

async fn watch(
    daemon: &DaemonConnection,
    operation_id: u64,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = WatchOperationRequest {
        operation_id,
        follow: true,
    };
    let mut client = daemon.operations();
    let call = client.watch_operation(request);
    let leaves = OnInterrupt::Leaves(|| Failure::interrupted("the job continues"));
    show(daemon, call, leaves, (json, false), out)
        .await
        .map(drop)
}

/// Shows a job of our own to its end, unless `--detach` leaves it to the daemon, and returns its result. An interrupt cancels
/// it; the stream tells whether that succeeded.
pub(super) async fn follow_own<R: OperationResponse>(
    daemon: &DaemonConnection,
    call: impl Future<Output = Result<Response<Streaming<R>>, Status>>,
    following: &FollowArgs,
    out: &mut StandardOutput,
) -> Result<Option<Outcome>, Failure> {
    let cancels = OnInterrupt::Cancels {
        announce: || say("cancelling the job"),
        cancelled: Failure::by_interrupt,
        unconfirmed,
    };
    show(
        daemon,
        call,
        cancels,
        (following.json, following.detach),
        out,
    )
    .await
}

async fn show<R: OperationResponse>(
    daemon: &DaemonConnection,
    call: impl Future<Output = Result<Response<Streaming<R>>, Status>>,
    on_interrupt: OnInterrupt,
    (json, detach): (bool, bool),
    out: &mut StandardOutput,
) -> Result<Option<Outcome>, Failure> {
    let mut interrupts = interrupts()?;
    let mut is_first = true;
    let mut bandwidth = Bandwidth::default();
    let job = follow(
        daemon,
        call,
        &mut interrupts,
        on_interrupt,
        |job, progress| {
            check_is_job(job)?;
            if json {
                out.json(job)?;
            } else if is_first {
                dim(&begun(job, detach));
            } else if let Some(step) = job.progress.as_ref().filter(|_| job.is_active()) {
                bandwidth.record(Instant::now(), step.done);
                progress.show(&step_line(job.kind(), step, bandwidth.bytes_per_second()));
            }
            is_first = false;
            Ok(if detach { Step::Enough } else { Step::Next })
        },
    );
    let job = job.await?;
    if detach {
        return Ok(None);
    }
    let result = job.outcome.as_ref().ok_or_else(no_result)?;
    end(&job, result, json, out)?;
    Ok(job.outcome)
}

fn unconfirmed() -> Failure {
    Failure::interrupted("the daemon has not confirmed the end of the job")
        .with_hint("`sluice jobs` shows whether it is still running")
}

fn begun(job: &Operation, detach: bool) -> String {
    let mut line = format!(
        "job {}: {} {}, {} of the daemon's threads",
        job.operation_id,
        job.kind(),
        sanitise_line(&files(job)),
        job.threads.unwrap_or(0)
    );
    if detach {
        line += &format!("; `sluice jobs watch {}` follows it", job.operation_id);
    }
    line
}

fn step_line(kind: OperationKind, step: &OperationProgress, rate: Option<f64>) -> String {
    let verb = container::verb(kind);
    let total = step.total.unwrap_or(0);
    let line = match step.unit() {
        ProgressUnit::Bytes | ProgressUnit::Unspecified => advance(verb, step.done, total, rate),
        unit => counted(verb, step.done, total, unit),
    };
    match step.item.is_empty() {
        true => line,
        false => format!("{line} · {}", step.item),
    }
}

/// Prints the result. A damaged file is a failure, also with `--json`.
fn end(
    job: &Operation,
    result: &Outcome,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let path = match result {
        Outcome::Verify(_) => &job.input_path,
        // It writes no file that a user names.
        Outcome::Optimize(_) => &job.model,
        _ => &job.output_path,
    };
    let outcome = container::outcome(path, result, job.elapsed_ms);
    if !json {
        let tell = if outcome.is_ok() { dim } else { say };
        // File and tensor names come from a file that may be hostile.
        for notice in container::notices(result) {
            tell(&sanitise_line(&notice));
        }
        for notice in &job.notices {
            dim(&format!("note: {}", sanitise_line(notice)));
        }
    }
    let line =
        outcome.map_err(|line| Failure::new(sanitise_line(&line)).with_hint(DAMAGED_HINT))?;
    if !json {
        out.line(&sanitise_line(&line))?;
    }
    if let Some(notice) = output_note(&job.output_path) {
        dim(&notice);
    }
    Ok(())
}

/// A note if the output that the daemon wrote is not visible here: a service has its own view of folders, such as /tmp.
fn output_note(output: &str) -> Option<String> {
    let found = Path::new(output).symlink_metadata();
    let is_absent = found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    (is_absent && !output.is_empty()).then(|| {
        format!(
            "note: {} is not visible here: the daemon has its own folders, as a service its own /tmp; \
             use a path below /var/lib/sluice, or run `sluiced` yourself",
            sanitise_line(output)
        )
    })
}
