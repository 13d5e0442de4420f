//! Conversions between the messages of `pinion.v1` and the checked values of [`crate::model`] and [`crate::node`].
//!
//! Called by the API and its client at both ends of the socket, and by the store, which keeps objects as these same
//! messages. Incoming messages are untrusted: a message becomes a value only if every field of it is well-formed.
//! Whether values are consistent with each other is not checked here.

mod edges;
mod labels;
mod logs;
mod metrics;
mod objects;
mod reports;
mod revisions;
mod tenants;
#[cfg(test)]
mod tests;

use std::fmt::Display;

pub(crate) use self::labels::HasLabel;
pub(crate) use self::objects::kind_of;
pub(crate) use self::revisions::object_ref;

/// A message with an invalid field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct BadMessage {
    at: String,
    problem: String,
}

impl BadMessage {
    pub(crate) fn new(at: impl Display, problem: impl Display) -> Self {
        Self { at: at.to_string(), problem: problem.to_string() }
    }

    /// Returns the error with its path as seen from the message that contains this one.
    fn within(self, at: impl Display) -> Self {
        Self { at: format!("{at}.{}", self.at), ..self }
    }
}

/// Adds the field's name to the error of `result`.
pub(crate) fn field<T, E: Display>(at: &str, result: Result<T, E>) -> Result<T, BadMessage> {
    result.map_err(|problem| BadMessage::new(at, problem))
}

/// Like [`field`], for a field that may be absent.
fn optional<S, T, E: Display>(
    at: &str,
    value: Option<S>,
    parse: impl FnOnce(S) -> Result<T, E>,
) -> Result<Option<T>, BadMessage> {
    value.map(|value| field(at, parse(value))).transpose()
}
