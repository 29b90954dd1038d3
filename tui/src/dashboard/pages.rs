//! The pages, each a module that draws it.

pub(super) mod canvas;
pub(super) mod chat;
pub(super) mod jobs;
pub(super) mod levels;
pub(super) mod memory;
pub(super) mod options;
pub(super) mod overview;
pub(super) mod recall;
mod table;
