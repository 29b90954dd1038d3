//! Downloads models from a Hugging Face hub: what a repository has, which of its files are needed, and their bytes,
//! into a folder that appears only when all of them are complete and verified.
//!
//! A hub is not trusted. Names are checked before they become paths, every answer has a bound, what was promised is
//! compared with what came, and a token is sent to the hub alone. The crate knows nothing of models or gRPC, reads no
//! environment and prints nothing.
//!
//! Modules are listed in the order in which a pull uses them.

mod name;

mod access;
mod client;
mod patience;

mod choose;
mod listing;

mod disk;
mod fetch;
mod part;

mod folder;
mod manifest;
mod pull;

mod error;

pub use access::{Access, Token};
pub use choose::label_of;
pub use client::Client;
pub use error::HubError;
pub use folder::{FolderLock, PARTIAL};
pub use listing::RemoteFile;
pub use manifest::{MANIFEST, Manifest, PulledFile};
pub use name::{HubName, HubNameError};
pub use patience::Patience;
pub use pull::{HashedFile, IsKnown, Pull, PullEvent, PulledModel, REVISION_DEFAULT};
