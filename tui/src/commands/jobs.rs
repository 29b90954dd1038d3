//! `sluice compress`, `decompress`, `verify` and `jobs`: work on files that the daemon does.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use serde_json::json;
use sluice_proto::v1::{
    CancelJobRequest, Coder as WireCoder, CompressRequest, DecompressRequest, Job, JobEvent,
    JobProgress, JobResult, JobState, ListJobsRequest, VerifyRequest, WatchJobRequest,
    compress_request::How, job_event::Kind, job_result, model_ref::By,
};
use sluice_report::{container, progress::advance};
use sluice_shared::{
    bandwidth::Bandwidth,
    compression::{Coder, DAMAGED_HINT, check_pattern_count},
    units,
};
use tonic::{Code, Response, Status, Streaming};

use super::{
    follow::interrupts,
    library::subject,
    load::absolute,
    offline::{self, flag},
    until_interrupted, usage,
};
use crate::{
    cli::{Compress, Decompress, FollowArgs, Jobs, JobsCommand, Verify},
    connection::DaemonConnection,
    output::{Failure, ProgressLine, StandardOutput, dim, say},
    text::sanitise_line,
};

/// How long an interrupted client waits for the daemon to take the cancellation.
const CANCEL_WAIT: Duration = Duration::from_secs(5);
/// How long `sluice jobs cancel` waits for the job's end: what is at work is finished and written to the disk first.
const END_WAIT: Duration = Duration::from_secs(60);

/// Has a coded file made of a checkpoint.
pub(super) async fn compress(
    socket: PathBuf,
    arguments: &Compress,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    check_pattern_count(arguments.keep.len())
        .map_err(|problem| usage(&format!("--keep {problem}")))?;
    let model = subject(&arguments.model)?;
    let request = CompressRequest {
        model: model.clone().into(),
        output_path: absolute(&arguments.output)?,
        how: match (arguments.bits, arguments.coder) {
            (Some(bits), _) => Some(How::BitsPerWeight(bits)),
            (None, coder) => coder.map(|coder| {
                How::Coder(match coder {
                    Coder::Huffman => WireCoder::Huffman.into(),
                    Coder::Dictionary => WireCoder::Palette.into(),
                })
            }),
        },
        tile_elements: arguments.tile,
        keep_tensors: arguments.keep.clone(),
        all_tensors: arguments.all,
        threads: arguments.threads,
    };
    let command = "compress DIR --output FILE.sluice";
    let alone = match &model {
        By::Path(path) => alone(&arguments.following, command, || {
            compress_words(path, &request, arguments)
        }),
        By::Name(_) | By::Shape(_) => Err(offline_hint(command)),
    };
    let daemon = offline::daemon(socket, alone).await?;
    let mut client = daemon.jobs();
    let call = client.compress(request);
    follow_own(&daemon, call, &arguments.following, out).await
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
    words.extend(arguments.all.then(|| "--all".to_owned()));
    words.extend(flag("--threads", arguments.threads));
    words
}

/// Has a coded file made into a folder.
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
    let mut client = daemon.jobs();
    let call = client.decompress(request);
    follow_own(&daemon, call, &arguments.following, out).await
}

/// Has a coded file compared with its checksums.
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
    let mut client = daemon.jobs();
    let call = client.verify(request);
    follow_own(&daemon, call, &arguments.following, out).await
}

/// Jobs of anybody.
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

/// Stops a job and waits for its end, so that another can begin.
async fn cancel(
    daemon: &DaemonConnection,
    job_id: u64,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut tell = |was_running: bool, state: &str, line: String| match json {
        true => out.json(&json!({"job_id": job_id, "was_running": was_running, "state": state})),
        false => out.line(&sanitise_line(&line)),
    };
    let request = CancelJobRequest { job_id };
    let answer = daemon.jobs().cancel_job(request).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    if !answer.into_inner().was_running {
        return tell(false, "ended", format!("job {job_id} has already finished"));
    }
    let end = tokio::time::timeout(END_WAIT, ended(daemon, job_id)).await;
    let end = end.map_err(|_| {
        Failure::new(format!(
            "job {job_id} is being cancelled but has not finished yet"
        ))
        .with_hint(format!(
            "`sluice jobs watch {job_id}` follows it to its end"
        ))
    })?;
    match end {
        Ok(()) => tell(
            true,
            "done",
            format!("job {job_id} was done before it could be stopped"),
        ),
        Err(status) if status.code() == Code::Cancelled => tell(
            true,
            "cancelled",
            format!("job {job_id}: {}", status.message()),
        ),
        Err(status) => Err(daemon.failure(status)),
    }
}

/// Returns once a job has ended; the status is what it failed with.
async fn ended(daemon: &DaemonConnection, job_id: u64) -> Result<(), Status> {
    let mut client = daemon.jobs();
    let mut stream = client
        .watch_job(WatchJobRequest { job_id })
        .await?
        .into_inner();
    while stream.message().await?.is_some() {}
    Ok(())
}

/// How `sluiced` does the work where no daemon runs; it leaves nothing to anybody, and has no events.
fn alone(
    following: &FollowArgs,
    command: &str,
    words: impl FnOnce() -> Vec<String>,
) -> Result<Vec<String>, String> {
    match following.detach || following.json {
        true => Err(offline_hint(command)),
        false => Ok(words()),
    }
}

/// What to do where no daemon runs and its work can't be done in its place.
pub(super) fn offline_hint(command: &str) -> String {
    format!(
        "start it with `sluiced` (or `systemctl start sluice`); or do it without a daemon: `sluiced {command}`"
    )
}

async fn list(
    daemon: &DaemonConnection,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let answer = daemon.jobs().list_jobs(ListJobsRequest {}).await;
    let list = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    if json {
        return out.json(&list);
    }
    let jobs = list.jobs;
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
pub(super) fn row(job: &Job) -> String {
    let mut row = format!(
        "{:>5}  {:<10} {:<9} {:>6} {:>12}  {}",
        job.job_id,
        job.kind(),
        job.state(),
        share(job),
        units::duration_ms(job.elapsed_ms),
        files(job),
    );
    if !job.error.is_empty() {
        row += &format!(": {}", job.error);
    }
    sanitise_line(&row)
}

/// How much of it is done.
fn share(job: &Job) -> String {
    match &job.progress {
        _ if job.state() == JobState::Done => "100 %".to_owned(),
        Some(step) if step.total_bytes > 0 => {
            let share = u128::from(step.done_bytes) * 100 / u128::from(step.total_bytes);
            format!("{share} %")
        }
        _ => "?".to_owned(),
    }
}

fn files(job: &Job) -> String {
    match job.output.is_empty() {
        true => job.source.clone(),
        false => format!("{} → {}", job.source, job.output),
    }
}

async fn watch(
    daemon: &DaemonConnection,
    job_id: u64,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    let answer = daemon.jobs().watch_job(WatchJobRequest { job_id }).await;
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut shown = JobDisplay::new(json, false);
    tokio::select! {
        end = shown.rest(daemon, stream, out) => end,
        _ = interrupts.recv() => Err(Failure::interrupted("the job continues")),
    }
}

/// Shows a job of our own to its end, unless it is left to the daemon. An interrupt cancels it; what became of that, the
/// stream tells.
async fn follow_own(
    daemon: &DaemonConnection,
    call: impl Future<Output = Result<Response<Streaming<JobEvent>>, Status>>,
    following: &FollowArgs,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    let mut shown = JobDisplay::new(following.json, following.detach);
    let begun = async {
        let answer = call.await.map_err(|status| daemon.failure(status))?;
        let mut stream = answer.into_inner();
        let job_id = shown.begin(daemon, &mut stream, out).await?;
        Ok::<_, Failure>((job_id.ok_or_else(no_result)?, stream))
    };
    let (job_id, stream) = tokio::select! {
        begun = begun => begun?,
        _ = interrupts.recv() => return Err(unconfirmed()),
    };
    if following.detach {
        return Ok(());
    }
    let end = shown.rest(daemon, stream, out);
    tokio::pin!(end);
    tokio::select! {
        end = &mut end => return end,
        _ = interrupts.recv() => {}
    }
    say("cancelling the job");
    let mut client = daemon.jobs();
    let cancelled = async {
        let call = client.cancel_job(CancelJobRequest { job_id });
        let answer = tokio::time::timeout(CANCEL_WAIT, call).await;
        let answer = answer.map_err(|_| unconfirmed())?;
        answer.map_err(|status| daemon.failure(status))?;
        end.await.map_err(Failure::by_interrupt)
    };
    tokio::select! {
        end = cancelled => end,
        _ = interrupts.recv() => Err(unconfirmed()),
    }
}

fn unconfirmed() -> Failure {
    Failure::interrupted("the daemon has not confirmed the end of the job")
        .with_hint("`sluice jobs` shows whether it is still running")
}

fn no_result() -> Failure {
    Failure::new("the daemon ended the stream without a result")
}

/// A job on its way to the screen.
struct JobDisplay {
    json: bool,
    detach: bool,
    job: Job,
    progress: ProgressLine,
    bandwidth: Bandwidth,
}

impl JobDisplay {
    fn new(json: bool, detach: bool) -> Self {
        Self {
            json,
            detach,
            job: Job::default(),
            progress: ProgressLine::new(),
            bandwidth: Bandwidth::default(),
        }
    }

    /// Takes the first event, and returns the job's id.
    async fn begin(
        &mut self,
        daemon: &DaemonConnection,
        stream: &mut Streaming<JobEvent>,
        out: &mut StandardOutput,
    ) -> Result<Option<u64>, Failure> {
        let first = stream.next().await.transpose();
        let first = first.map_err(|status| daemon.failure(status))?;
        let Some(kind) = first.and_then(|event| event.kind) else {
            return Ok(None);
        };
        let is_job = matches!(kind, Kind::Job(_));
        self.take(kind, out)?;
        Ok(is_job.then_some(self.job.job_id))
    }

    async fn rest(
        &mut self,
        daemon: &DaemonConnection,
        mut stream: Streaming<JobEvent>,
        out: &mut StandardOutput,
    ) -> Result<(), Failure> {
        while let Some(event) = stream.next().await {
            let event = event.map_err(|status| {
                self.progress.clear();
                daemon.failure(status)
            })?;
            if let Some(kind) = event.kind
                && self.take(kind, out)?
            {
                return Ok(());
            }
        }
        Err(no_result())
    }

    /// Shows an event; whether it was the last.
    fn take(&mut self, kind: Kind, out: &mut StandardOutput) -> Result<bool, Failure> {
        if self.json {
            out.json(&kind)?;
        }
        match kind {
            Kind::Job(job) => {
                self.job = job;
                if !self.json {
                    dim(&self.begun());
                }
            }
            Kind::Progress(step) if !self.json => {
                self.bandwidth.record(Instant::now(), step.done_bytes);
                self.progress.show(&self.step(&step));
            }
            Kind::Progress(_) => {}
            Kind::Result(result) => {
                self.progress.clear();
                self.end(&result, out)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn begun(&self) -> String {
        let job = &self.job;
        let mut line = format!(
            "job {}: {} {}, {} of the daemon's threads",
            job.job_id,
            job.kind(),
            sanitise_line(&files(job)),
            job.threads
        );
        if self.detach {
            line += &format!("; `sluice jobs watch {}` follows it", job.job_id);
        }
        line
    }

    fn step(&self, step: &JobProgress) -> String {
        let verb = container::verb(self.job.kind());
        let rate = self.bandwidth.bytes_per_second();
        let line = advance(verb, step.done_bytes, step.total_bytes, rate);
        match step.tensor.is_empty() {
            true => line,
            false => format!("{line} · {}", step.tensor),
        }
    }

    /// What came of it; damage is told in any form, and is a failure.
    fn end(&self, result: &JobResult, out: &mut StandardOutput) -> Result<(), Failure> {
        let kind = result.kind.as_ref().ok_or_else(no_result)?;
        let path = match kind {
            job_result::Kind::Verified(_) => &self.job.source,
            _ => &self.job.output,
        };
        let outcome = container::outcome(path, kind, result.elapsed_ms);
        if !self.json {
            let tell = if outcome.is_ok() { dim } else { say };
            for notice in container::notices(kind) {
                tell(&sanitise_line(&notice));
            }
        }
        let line =
            outcome.map_err(|line| Failure::new(sanitise_line(&line)).with_hint(DAMAGED_HINT))?;
        if !self.json {
            out.line(&sanitise_line(&line))?;
        }
        if let Some(notice) = output_note(&self.job.output) {
            dim(&notice);
        }
        Ok(())
    }
}

/// What to say of an output that the daemon wrote and that isn't there: a service sees other folders than its callers.
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
