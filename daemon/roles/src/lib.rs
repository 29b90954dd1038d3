//! Who may do what, as configurations and token files write it: pure functions of their texts, which fuzzers can reach.

mod role;
mod tokens;

pub use role::{Role, RoleRules, Roles};
pub use tokens::{FILE_BYTES_MAX, KnownToken, TokenHash, TokenList, beginning};
