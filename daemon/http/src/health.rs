//! `GET /health`, for balancers: whether this daemon takes requests, by the status alone.

use hyper::StatusCode;
use serde::Serialize;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

use crate::{
    failure::Failure,
    services::Services,
    streaming::{self, Answer},
};

#[derive(Debug, Serialize)]
struct Health {
    status: &'static str,
}

/// 200 where it takes requests, 503 where it has no model, shuts down or is stuck.
///
/// # Errors
/// When the daemon's own health cannot be asked for.
pub(crate) async fn answer(services: &Services) -> Result<Answer, Failure> {
    // Balancers ask by an address, or without a name. That it runs is no secret from a page that may know no more.
    let services = services.local();
    let (status, word) = match serves(&services, "").await? {
        false => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        true => match serves(&services, "sluice.v1.GenerationService").await? {
            true => (StatusCode::OK, "ready"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        },
    };
    Ok(streaming::json(status, &Health { status: word }))
}

async fn serves(services: &Services, service: &str) -> Result<bool, Failure> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = services.health().check(request).await?.into_inner();
    Ok(answer.status() == ServingStatus::Serving)
}
