//! `GET /health`, for balancers: whether this daemon takes requests, by the status alone; and `GET /health/live`, for whoever
//! restarts it: whether its engine gets on.

use hyper::StatusCode;
use serde::Serialize;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

use crate::{
    failure::Failure,
    services::Services,
    streaming::{self, Answer},
};

/// How the daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Ready,
    /// No model is in memory; mostly one is loading.
    NoModel,
    Draining,
    /// The engine doesn't get on.
    Stuck,
}

#[derive(Debug, Serialize)]
struct Health {
    status: Status,
}

/// 200 where it takes requests, else 503.
///
/// # Errors
/// When the daemon's own health cannot be asked for.
pub(crate) async fn ready(services: &Services) -> Result<Answer, Failure> {
    let status = status(services).await?;
    Ok(answer(status, status == Status::Ready))
}

/// 503 where only a restart helps, else 200.
///
/// # Errors
/// When the daemon's own health cannot be asked for.
pub(crate) async fn live(services: &Services) -> Result<Answer, Failure> {
    let status = status(services).await?;
    Ok(answer(status, status != Status::Stuck))
}

fn answer(status: Status, is_well: bool) -> Answer {
    let code = match is_well {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    streaming::json(code, &Health { status })
}

async fn status(services: &Services) -> Result<Status, Failure> {
    // Balancers ask by an address, or without a name. That it runs is no secret from a page that may know no more.
    let services = services.local();
    // Listing models needs no engine, so it is served until the daemon drains.
    if !serves(&services, "sluice.v1.ModelService").await? {
        return Ok(Status::Draining);
    }
    if !serves(&services, "").await? {
        return Ok(Status::Stuck);
    }
    Ok(
        match serves(&services, "sluice.v1.GenerationService").await? {
            true => Status::Ready,
            false => Status::NoModel,
        },
    )
}

async fn serves(services: &Services, service: &str) -> Result<bool, Failure> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = services.health().check(request).await?.into_inner();
    Ok(answer.status() == ServingStatus::Serving)
}
