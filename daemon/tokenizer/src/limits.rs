//! What a tokenizer and a chat template may take, whatever their files say.

use std::time::Duration;

/// Memory that parsing the files may take, and the tokenizer keep, beside the program itself.
pub const PARSE_MEMORY_BYTES_MAX: u64 = 1 << 30;
/// CPU time that parsing the files may take.
pub const PARSE_CPU_SECONDS_MAX: u64 = 10;
/// Time that a load waits for the parsed files.
pub const PARSE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Memory that the texts of one request may take, beside the tokenizer itself.
pub const SESSION_MEMORY_BYTES_MAX: u64 = 768 << 20;
/// CPU time that the texts of one request may take.
pub const SESSION_CPU_SECONDS_MAX: u64 = 5;
/// Time that a request waits for its tokens, unless its own deadline comes first.
pub const SESSION_WAIT_MAX: Duration = Duration::from_secs(30);
/// Memory that a request's grammar may take, beside the vocabulary's prefix tree.
pub const GRAMMAR_MEMORY_BYTES_MAX: u64 = 256 << 20;
/// CPU time that compiling a grammar may take, and that finding the tokens that come next may take, each time.
pub const GRAMMAR_CPU_SECONDS_MAX: u64 = 2;
/// CPU time of a grammar altogether, beside a second for each [`GRAMMAR_TOKENS_PER_CPU_SECOND`] tokens.
pub const GRAMMAR_CPU_SECONDS_BASE: u64 = 5;
/// Tokens for which a grammar may take a second of CPU time: usual ones take a thousandth of that.
pub const GRAMMAR_TOKENS_PER_CPU_SECOND: u64 = 50;
/// Time that a request waits for its grammar to be compiled, or for the tokens that come next.
pub const GRAMMAR_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of a token that a grammar can use. The longest of known vocabularies is of 128 spaces or few more.
pub const GRAMMAR_TOKEN_BYTES_MAX: usize = 512;
/// Bytes of all tokens of a vocabulary that grammars can be used with: of known ones, below 3 MiB.
pub const GRAMMAR_VOCABULARY_BYTES_MAX: usize = (1 << 22) - 2;
/// Bytes of a vocabulary's tables that are kept in the process that asks: the pieces of all tokens, and the strings of
/// control tokens.
pub const VOCABULARY_BYTES_MAX: usize = 64 << 20;
/// Highest id that a tokenizer may use. The largest vocabularies known hold about 260,000; the table is as long as the
/// highest id, so an id of billions in a small file must not size it.
pub const ID_MAX: u32 = (1 << 22) - 1;
/// Bytes of a token of a world vocabulary; its longest has 128.
pub const WORLD_TOKEN_BYTES_MAX: usize = 1024;
/// Bytes of a chat template's source.
pub const TEMPLATE_BYTES_MAX: usize = 256 * 1024;
/// Tokens of one expression or statement of a chat template, between its delimiters. The template engine's stack grows
/// with chains such as `not not …` and `a.b.b …`, of which it counts some kinds alone.
pub const TEMPLATE_EXPRESSION_TOKENS_MAX: usize = 4096;
/// Stack on which templates are parsed and rendered: what [`TEMPLATE_EXPRESSION_TOKENS_MAX`] takes, several times.
pub const TEMPLATE_STACK_BYTES: usize = 64 << 20;
/// Bytes of a rendered conversation.
pub const RENDERED_BYTES_MAX: usize = 4 << 20;
