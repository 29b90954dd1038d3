//! Ollama's API, as a thin layer: chats, completions, embeddings, and what there is to call.

mod answer;
pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod generate;
mod loading;
pub(crate) mod models;
pub(crate) mod options;
mod time;
