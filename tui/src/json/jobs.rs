//! Jobs.

use serde_json::{Value, json};
use sluice_proto::v1::{
    Compressed, Decompressed, Job, JobProgress, JobResult, Verified, job_event, job_result,
};

use super::{job_kind, job_state};

/// A job of the list.
#[must_use]
pub fn job(job: &Job) -> Value {
    json!({
        "job_id": job.job_id,
        "kind": job_kind(job.kind()),
        "state": job_state(job.state()),
        "source": job.source,
        "output": job.output,
        "progress": job.progress.as_ref().map(progress),
        "error": job.error,
        "elapsed_ms": job.elapsed_ms,
        "threads": job.threads,
    })
}

/// One event of a job.
#[must_use]
pub fn job_event(kind: &job_event::Kind) -> Value {
    use job_event::Kind;

    let (name, mut value) = match kind {
        Kind::Job(begun) => ("job", job(begun)),
        Kind::Progress(step) => ("progress", progress(step)),
        Kind::Result(result) => ("done", self::result(result)),
    };
    value["event"] = name.into();
    value
}

fn progress(step: &JobProgress) -> Value {
    json!({
        "tensor": step.tensor,
        "done_bytes": step.done_bytes,
        "total_bytes": step.total_bytes,
    })
}

fn result(result: &JobResult) -> Value {
    use job_result::Kind;

    let mut value = match &result.kind {
        Some(Kind::Compressed(made)) => compressed(made),
        Some(Kind::Decompressed(made)) => decompressed(made),
        Some(Kind::Verified(found)) => verified(found),
        None => json!({}),
    };
    value["ms"] = result.elapsed_ms.into();
    value
}

fn compressed(made: &Compressed) -> Value {
    json!({
        "bytes": made.bytes,
        "original_bytes": made.original_bytes,
        "resumed_tensors": made.resumed_tensors,
        "left_out": made.left_out,
        "error": made.error,
    })
}

fn decompressed(made: &Decompressed) -> Value {
    json!({"original_bytes": made.original_bytes, "files": made.files})
}

fn verified(found: &Verified) -> Value {
    json!({
        "bytes": found.bytes,
        "tensors": found.tensors,
        "damage": found.damage,
        "damaged_places": found.damaged_places,
    })
}
