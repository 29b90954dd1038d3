//! OpenAI's API: chat completions, completions, embeddings, and the list of models.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod delivery;
pub(crate) mod embeddings;
pub(crate) mod error;
pub(crate) mod messages;
pub(crate) mod models;
mod run;
