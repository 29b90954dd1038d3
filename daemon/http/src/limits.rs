//! What a client may take over HTTP/1.1, by name. The rest is counted where its calls arrive. docs/limits.md lists these.

use std::time::Duration;

/// Bytes of a request's body: as much as a message of gRPC may have.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes of a request's line and headers, of what is written ahead of a client that reads, and of what a client sends ahead of its
/// answer.
pub const BUFFER_BYTES_MAX: usize = 16 << 10;
/// Headers of a request.
pub const HEADERS_MAX: usize = 64;
/// Texts of a list of them, such as `stop`, and parts of a message.
pub const TEXTS_MAX: usize = 1024;
/// Token ids of a prompt.
pub const TOKEN_IDS_MAX: usize = 1 << 20;
/// Answers of one request: `n`, times its prompts.
pub const CHOICES_MAX: usize = 16;
/// Models that metrics tell of: as many as may be in memory.
pub const LABELLED_MODELS_MAX: usize = 16;

/// Time for a request's line and headers, from their first byte.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a whole body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time without a request after which a connection is closed.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(75);
/// Time that a request may give itself.
pub const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Time in which a client has to take something of what is written to it.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Time without a piece of an answer after which a stream says that it is there still: proxies close silent ones.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
