//! A row of the table of failures.

use std::borrow::Cow;

use tonic::Code;

/// A row of the table.
#[derive(Debug)]
pub(super) struct ErrorRow {
    pub(super) code: Code,
    /// Stable; clients compare it.
    pub(super) reason: &'static str,
    pub(super) hint: Option<Cow<'static, str>>,
    pub(super) figures: Vec<(&'static str, String)>,
    /// The field on the wire that is wrong.
    pub(super) field: Option<&'static str>,
    pub(super) retry: bool,
}

impl ErrorRow {
    pub(super) fn new(code: Code, reason: &'static str) -> Self {
        Self {
            code,
            reason,
            hint: None,
            figures: Vec::new(),
            field: None,
            retry: false,
        }
    }

    pub(super) fn invalid(reason: &'static str, field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..Self::new(Code::InvalidArgument, reason)
        }
    }

    pub(super) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn figure(mut self, name: &'static str, value: impl ToString) -> Self {
        self.figures.push((name, value.to_string()));
        self
    }

    pub(super) fn retry(mut self) -> Self {
        self.retry = true;
        self
    }
}
