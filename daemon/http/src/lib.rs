//! HTTP in front of the daemon's gRPC services: OpenAI's API, a thin layer of Ollama's, and health for balancers.
//!
//! A request becomes a message of `sluice.v1`, a call of the same services that gRPC clients call, and their events become
//! JSON or server-sent events. So who may do what, limits, the queue and cancellation are those of gRPC, and nothing of them
//! is here. What is here is HTTP/1.1 itself: [how long it is waited for](limits), how much is read, and from which pages.
//!
//! `docs/http.md` is for users. Its tables of fields are those of `openai` and `ollama`.

mod body;
mod calls;
#[cfg(test)]
mod documented;
mod door;
mod embeddings;
mod extension;
mod failure;
mod field_names;
mod fields;
mod format;
mod generation;
mod health;
pub mod limits;
mod logprobs;
mod metrics;
mod models;
mod ollama;
mod openai;
mod origins;
mod patience;
mod presence;
mod routes;
mod sampling;
#[cfg(test)]
mod scripted;
mod server;
mod services;
mod streaming;
mod terms;
mod tools;
mod values;

pub use self::{
    door::{Admission, Door, Health},
    routes::HttpOptions,
    server::HttpFront,
};
