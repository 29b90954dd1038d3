//! The HTTP port as clients meet it: a real daemon, and HTTP/1.1 by hand. `cargo xtask clients` runs clients that people have.

#[expect(dead_code, reason = "another test uses all of it")]
#[path = "../daemon/support/mod.rs"]
mod support;

mod chats;
mod client;
mod completions;
mod forms;
mod health;
mod memory;
mod mixed_load;
mod ollama;
mod renewal;
mod rude;
mod secure;
mod strangers;
mod tls;
