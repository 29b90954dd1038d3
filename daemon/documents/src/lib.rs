//! The text of documents that people add to what Sluice remembers, page by page.
//!
//! A PDF comes from anywhere, and reading one takes code for fonts, compression and repairs: so a process of its own does it,
//! within [`limits`], and gives back one page's text after the other ([`Pages`]).

mod error;
mod layout;
pub mod limits;
mod pdf;
pub mod process;

pub use error::DocumentError;
pub use process::{Page, Pages};
