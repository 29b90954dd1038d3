//! `JobService`: coding and decoding as jobs, and jobs of anybody.

use std::sync::Arc;

use sluice_proto::{
    model::{CompressJob, DecompressJob, VerifyJob},
    v1::{self, job_event::Kind, job_service_server::JobService},
};
use tonic::{Request, Response, Status};

use super::{
    Daemon,
    follow::{FollowUpdate, follow},
    persistence::PendingWrite,
    requests::ResponseStream,
};
use crate::{
    failure::Failure,
    jobs::{Job, JobStatus},
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl JobService for Service {
    type CompressStream = ResponseStream<v1::JobEvent>;
    type DecompressStream = ResponseStream<v1::JobEvent>;
    type VerifyStream = ResponseStream<v1::JobEvent>;
    type WatchJobStream = ResponseStream<v1::JobEvent>;

    async fn compress(
        &self,
        request: Request<v1::CompressRequest>,
    ) -> Result<Response<Self::CompressStream>, Status> {
        self.0.check_open()?;
        let asked = CompressJob::try_from(request.into_inner()).map_err(Failure::from)?;
        let model = self.0.resolve(asked.source.clone()).await?;
        Ok(self.answer(&self.0.jobs.compress(&model, asked)?))
    }

    async fn decompress(
        &self,
        request: Request<v1::DecompressRequest>,
    ) -> Result<Response<Self::DecompressStream>, Status> {
        self.0.check_open()?;
        let asked = DecompressJob::try_from(request.into_inner()).map_err(Failure::from)?;
        Ok(self.answer(&self.0.jobs.decompress(asked)?))
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        self.0.check_open()?;
        let asked = VerifyJob::try_from(request.into_inner()).map_err(Failure::from)?;
        Ok(self.answer(&self.0.jobs.verify(asked)?))
    }

    async fn list_jobs(
        &self,
        _: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let jobs = self.0.jobs.list();
        Ok(Response::new(v1::ListJobsResponse { jobs }))
    }

    async fn watch_job(
        &self,
        request: Request<v1::WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        let job = self.0.jobs.find(request.into_inner().job_id)?;
        Ok(self.answer(&job))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let id = request.into_inner().job_id;
        let was_running = self.0.jobs.cancel(id)?;
        tracing::info!(job = id, was_running, "a client cancels a job");
        Ok(Response::new(v1::CancelJobResponse { was_running }))
    }
}

impl Service {
    /// The job, and how it goes on.
    fn answer(&self, job: &Arc<Job>) -> Response<ResponseStream<v1::JobEvent>> {
        let mut states = job.subscribe();
        // Whoever comes is told at once how far it is.
        states.mark_changed();
        let mut first = Some(Kind::Job(job.to_wire()));
        let news = move |JobStatus { progress, end }| {
            let mut answers: Vec<_> = first.take().map(Ok).into_iter().collect();
            let is_last = end.as_ref().map(|_| PendingWrite::nothing());
            answers.push(match end {
                Some(end) => end.result.map(Kind::Result),
                None => Ok(Kind::Progress(progress)),
            });
            let answers = answers.into_iter();
            FollowUpdate {
                answers: answers
                    .map(|kind| kind.map(|kind| v1::JobEvent { kind: Some(kind) }))
                    .collect(),
                end: is_last,
            }
        };
        Response::new(follow(states, &self.0.closing, news))
    }
}
