//! What the front asks of the daemon outside of its gRPC services: who may send a body, and how the daemon is.

use std::fmt;

use serde::Serialize;
use tonic::{Status, codegen::http::Request};

/// The daemon, as far as no service of it tells.
pub trait Door: fmt::Debug + Send + Sync {
    /// Whether somebody may make a call of gRPC, before any of its message is there. The request has the call's path, the
    /// headers that tell who makes it, and what is known of the connection.
    ///
    /// # Errors
    /// What the call would be refused with.
    fn admit(&self, call: &Request<()>) -> Result<Box<dyn Admission>, Status>;

    /// How the daemon is. Whoever can connect may know.
    fn health(&self) -> Health;
}

/// A call whose message comes. Gives back what it holds when dropped.
pub trait Admission: Send {
    /// Holds so many bytes of memory from now on.
    ///
    /// # Errors
    /// When that is more than there is for messages, or for this user's.
    fn hold(&self, bytes: usize) -> Result<(), Status>;
}

/// How the daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It takes requests: a model is loaded, or sleeps and wakes for one.
    Ready,
    /// The first model is loading.
    Loading,
    /// No model is loaded, and none is loading.
    NoModel,
    /// It shuts down, and takes nothing new.
    Draining,
    /// An engine doesn't get on.
    Stuck,
}

/// A door that lets everybody in, for tests.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct OpenDoor;

#[cfg(test)]
impl Door for OpenDoor {
    fn admit(&self, _: &Request<()>) -> Result<Box<dyn Admission>, Status> {
        struct Unbounded;

        impl Admission for Unbounded {
            fn hold(&self, _: usize) -> Result<(), Status> {
                Ok(())
            }
        }

        Ok(Box::new(Unbounded))
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}
