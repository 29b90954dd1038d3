//! `sluice compress`, `decompress`, `verify` and `jobs`: work on files that the daemon does.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use serde_json::json;
use sluice_proto::{
    coded_table,
    v1::{
        CancelJobRequest, Coder as WireCoder, CompressRequest, DecompressRequest, Job, JobEvent,
        JobKind, JobProgress, JobResult, JobState, ListJobsRequest, VerifyRequest, WatchJobRequest,
        compress_request::How, job_event::Kind, job_result,
    },
};
use sluice_shared::{coding::Coder, exit, units};
use tokio::signal::unix::Signal;
use tonic::{Response, Status, Streaming};

use super::{
    advance::{Rate, advance},
    follow::interrupts,
    library::{Subject, subject},
    load::absolute,
};
use crate::{
    cli::{Compress, Decompress, Following, Jobs, JobsCommand, Verify},
    connection::Daemon,
    json,
    output::{Failure, Out, Progress, dim, say},
    text::sanitise_line,
};

/// How long an interrupted client waits for the daemon to take the cancellation.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// Has a coded file made of a checkpoint.
pub(super) async fn compress(
    socket: PathBuf,
    arguments: &Compress,
    out: &mut Out,
) -> Result<(), Failure> {
    let (name, path) = match subject(&arguments.model)? {
        Subject::Name(name) => (name, String::new()),
        Subject::Path(path) => (String::new(), path),
    };
    let request = CompressRequest {
        name,
        path,
        output: absolute(&arguments.output)?,
        how: match (arguments.bits, arguments.coder) {
            (Some(bits), _) => Some(How::Bits(bits)),
            (None, coder) => coder.map(|coder| {
                How::Coder(match coder {
                    Coder::Huffman => WireCoder::Huffman.into(),
                    Coder::Palette => WireCoder::Palette.into(),
                })
            }),
        },
        tile: arguments.tile,
        keep: arguments.keep.clone(),
        all: arguments.all,
        threads: arguments.threads,
    };
    let daemon = connect(socket, "compress DIR --output FILE.sluice").await?;
    let interrupts = interrupts()?;
    let answer = daemon.jobs().compress(request).await;
    follow_own(&daemon, answer, &arguments.following, interrupts, out).await
}

/// Has a coded file made into a folder.
pub(super) async fn decompress(
    socket: PathBuf,
    arguments: &Decompress,
    out: &mut Out,
) -> Result<(), Failure> {
    let request = DecompressRequest {
        path: absolute(&arguments.file)?,
        output: absolute(&arguments.output)?,
        threads: arguments.threads,
    };
    let daemon = connect(socket, "decompress FILE --output DIR").await?;
    let interrupts = interrupts()?;
    let answer = daemon.jobs().decompress(request).await;
    follow_own(&daemon, answer, &arguments.following, interrupts, out).await
}

/// Has a coded file compared with its checksums.
pub(super) async fn verify(
    socket: PathBuf,
    arguments: &Verify,
    out: &mut Out,
) -> Result<(), Failure> {
    let request = VerifyRequest {
        path: absolute(&arguments.file)?,
    };
    let daemon = connect(socket, "verify FILE").await?;
    let interrupts = interrupts()?;
    let answer = daemon.jobs().verify(request).await;
    follow_own(&daemon, answer, &arguments.following, interrupts, out).await
}

/// Jobs of anybody.
pub(super) async fn jobs(socket: PathBuf, arguments: &Jobs, out: &mut Out) -> Result<(), Failure> {
    let daemon = Daemon::connect(socket).await?;
    match arguments.command {
        None => list(&daemon, arguments.json, out).await,
        Some(JobsCommand::Watch { id, json }) => watch(&daemon, id, json, out).await,
        Some(JobsCommand::Cancel { id }) => {
            let answer = daemon
                .jobs()
                .cancel_job(CancelJobRequest { job_id: id })
                .await;
            let answer = answer.map_err(|status| daemon.failure(status))?;
            match answer.into_inner().was_running {
                true => out.line(&format!("cancelled job {id}")),
                false => out.line(&format!("job {id} had already ended")),
            }
        }
    }
}

/// The daemon; where there is none, the same work can be done without.
pub(super) async fn connect(socket: PathBuf, offline: &str) -> Result<Daemon, Failure> {
    Daemon::connect(socket).await.map_err(|failure| {
        match failure.code() {
            exit::UNREACHABLE => failure.with_hint(format!(
                "start it with `sluiced` (or `systemctl start sluice`); or do it without a daemon: `sluiced {offline}`"
            )),
            _ => failure,
        }
    })
}

async fn list(daemon: &Daemon, json: bool, out: &mut Out) -> Result<(), Failure> {
    let answer = daemon.jobs().list_jobs(ListJobsRequest {}).await;
    let jobs = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner()
        .jobs;
    if json {
        let jobs: Vec<_> = jobs.iter().map(json::job).collect();
        return out.line(&json!({"jobs": jobs}).to_string());
    }
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
        json::job_kind(job.kind()),
        json::job_state(job.state()),
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

async fn watch(daemon: &Daemon, job_id: u64, json: bool, out: &mut Out) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    let answer = daemon.jobs().watch_job(WatchJobRequest { job_id }).await;
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut shown = Shown::new(json, false);
    tokio::select! {
        end = shown.rest(daemon, stream, out) => end,
        _ = interrupts.recv() => Err(Failure::new("interrupted; the job goes on")),
    }
}

/// Shows a job of our own to its end, unless it is left to the daemon. An interrupt cancels it; what became of that, the
/// stream tells.
async fn follow_own(
    daemon: &Daemon,
    answer: Result<Response<Streaming<JobEvent>>, Status>,
    following: &Following,
    mut interrupts: Signal,
    out: &mut Out,
) -> Result<(), Failure> {
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut shown = Shown::new(following.json, following.detach);
    let Some(job_id) = shown.begin(daemon, &mut stream, out).await? else {
        return Err(no_result());
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
        end.await
    };
    tokio::select! {
        end = cancelled => end,
        _ = interrupts.recv() => Err(unconfirmed()),
    }
}

fn unconfirmed() -> Failure {
    Failure::new("interrupted; the daemon has not confirmed the end of the job")
        .with_hint("`sluice jobs` shows whether it still goes on")
}

fn no_result() -> Failure {
    Failure::new("the daemon ended the stream without a result")
}

/// A job on its way to the screen.
struct Shown {
    json: bool,
    detach: bool,
    job: Job,
    progress: Progress,
    rate: Rate,
}

impl Shown {
    fn new(json: bool, detach: bool) -> Self {
        Self {
            json,
            detach,
            job: Job::default(),
            progress: Progress::new(),
            rate: Rate::default(),
        }
    }

    /// Takes the first event, and returns the job's id.
    async fn begin(
        &mut self,
        daemon: &Daemon,
        stream: &mut Streaming<JobEvent>,
        out: &mut Out,
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
        daemon: &Daemon,
        mut stream: Streaming<JobEvent>,
        out: &mut Out,
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
    fn take(&mut self, kind: Kind, out: &mut Out) -> Result<bool, Failure> {
        if self.json {
            out.line(&json::job_event(&kind).to_string())?;
        }
        match kind {
            Kind::Job(job) => {
                self.job = job;
                if !self.json {
                    dim(&self.begun());
                }
            }
            Kind::Progress(step) if !self.json => {
                self.rate.see(Instant::now(), step.done_bytes);
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
            json::job_kind(job.kind()),
            sanitise_line(&files(job)),
            job.threads
        );
        if self.detach {
            line += &format!("; `sluice jobs watch {}` follows it", job.job_id);
        }
        line
    }

    fn step(&self, step: &JobProgress) -> String {
        let verb = match self.job.kind() {
            JobKind::Compress => "coding",
            JobKind::Decompress => "writing",
            JobKind::Verify => "verifying",
            JobKind::Unspecified => "working",
        };
        let rate = self.rate.bytes_per_second();
        let line = advance(verb, step.done_bytes, step.total_bytes, rate);
        match step.tensor.is_empty() {
            true => line,
            false => format!("{line} · {}", step.tensor),
        }
    }

    /// What came of it; damage is told in any form, and is a failure.
    fn end(&self, result: &JobResult, out: &mut Out) -> Result<(), Failure> {
        use job_result::Kind;

        let elapsed_ms = result.elapsed_ms;
        let (line, damage) = match result.kind.as_ref().ok_or_else(no_result)? {
            Kind::Compressed(made) => {
                if !self.json {
                    coded_table::notices(made)
                        .iter()
                        .for_each(|notice| dim(notice));
                }
                (
                    coded_table::compressed(&self.job.output, made, elapsed_ms),
                    None,
                )
            }
            Kind::Decompressed(made) => (
                coded_table::decompressed(&self.job.output, made, elapsed_ms),
                None,
            ),
            Kind::Verified(found) => match coded_table::verified(&self.job.source, found) {
                Ok(line) => (line, None),
                Err(line) => (line, Some(&found.damage)),
            },
        };
        let Some(damage) = damage else {
            return match self.json {
                true => Ok(()),
                false => out.line(&sanitise_line(&line)),
            };
        };
        if !self.json {
            for place in damage {
                say(&format!("damaged: {}", sanitise_line(place)));
            }
        }
        Err(Failure::new(sanitise_line(&line)).with_hint(coded_table::DAMAGED_HINT))
    }
}

/// Whether an argument is a coded file, by its name.
pub(super) fn is_coded_file(argument: &Path) -> bool {
    argument
        .extension()
        .is_some_and(|ending| ending == "sluice")
}
