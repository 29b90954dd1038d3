//! How long a template's expressions are, told before it is parsed: the parser's stack grows with them.

use minijinja::{
    Error, ErrorKind,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};

use super::limits::TEMPLATE_EXPRESSION_TOKENS_MAX;

/// Refuses a template with an expression or statement of more than [`TEMPLATE_EXPRESSION_TOKENS_MAX`] tokens.
///
/// The engine's own lexer finds them, so that no trick of quotes or raw blocks hides one.
pub(super) fn check(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let mut length = 0;
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        length = match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => 0,
            _ => length + 1,
        };
        if length > TEMPLATE_EXPRESSION_TOKENS_MAX {
            return Err(Error::new(
                ErrorKind::SyntaxError,
                format!(
                    "line {} has more than {TEMPLATE_EXPRESSION_TOKENS_MAX} tokens in one expression",
                    span.start_line
                ),
            ));
        }
    }
    Ok(())
}
