//! `GET /health`, for balancers: whether this daemon takes requests, by the status alone; and `GET /health/live`, for whoever
//! restarts it: whether its engine gets on. Neither needs a call, so nobody's calls keep a balancer from its answer.

use hyper::StatusCode;
use serde::Serialize;

use crate::{
    door::Health,
    streaming::{self, Answer},
};

#[derive(Debug, Serialize)]
struct Told {
    status: Health,
}

/// 200 where it takes requests, else 503.
pub(crate) fn ready(health: Health) -> Answer {
    answer(health, health == Health::Ready)
}

/// 503 where only a restart helps, else 200.
pub(crate) fn live(health: Health) -> Answer {
    answer(health, health != Health::Stuck)
}

fn answer(status: Health, is_well: bool) -> Answer {
    let code = match is_well {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    streaming::json(code, &Told { status })
}
