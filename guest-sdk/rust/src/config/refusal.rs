//! Why a configuration is refused: the error, its line, and its field.

use core::fmt;

use serde::de::{self, Expected, Unexpected};

use crate::InitError;

/// Boxed to be small, as every result of the reader contains it.
#[derive(Debug)]
pub(super) struct Refusal(Box<Account>);

#[derive(Debug)]
struct Account {
    message: String,
    /// The field's path, like `rule[2].ports`; empty for the whole configuration.
    path: String,
    /// Offset in the text, in bytes, once it is known.
    at: Option<usize>,
}

impl Refusal {
    #[cold]
    #[inline(never)]
    pub(super) fn new(message: fmt::Arguments<'_>) -> Self {
        Self(Box::new(Account { message: message.to_string(), path: String::new(), at: None }))
    }

    /// Sets the offset, unless a more exact one is set already.
    #[cold]
    #[inline(never)]
    pub(super) fn at(mut self, at: usize) -> Self {
        self.0.at.get_or_insert(at);
        self
    }

    /// Prepends this key to the path.
    #[cold]
    #[inline(never)]
    pub(super) fn in_field(mut self, name: &str, at: usize) -> Self {
        let path = &mut self.0.path;
        if !path.is_empty() && !path.starts_with('[') {
            path.insert(0, '.');
        }
        path.insert_str(0, name);
        self.at(at)
    }

    /// Prepends this index to the path.
    #[cold]
    #[inline(never)]
    pub(super) fn in_element(self, index: usize, at: usize) -> Self {
        self.in_field(&format!("[{index}]"), at)
    }

    /// Makes an error message of one line, as the tenant's log has one line per message.
    #[cold]
    #[inline(never)]
    pub(super) fn in_text(self, text: &[u8]) -> InitError {
        let Account { message, path, at } = *self.0;
        let before = text.get(..at.unwrap_or(0)).unwrap_or_default();
        let line = before.split(|byte| *byte == b'\n').count();
        let colon = if path.is_empty() { "" } else { ": " };
        let mut sentence = format!("configuration, line {line}: {path}{colon}{message}").into_bytes();
        sentence.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
        String::from_utf8(sentence).unwrap_or_default().into()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl core::error::Error for Refusal {}

impl de::Error for Refusal {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(format_args!("{message}"))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format_args!("invalid type: {}, expected {expected}", Found(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format_args!("invalid value: {}, expected {expected}", Found(found)))
    }
}

/// The value found, in serde's words. serde's own formatting would add floating-point formatting to every module, which is large.
struct Found<'a>(Unexpected<'a>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unexpected::Bool(value) => write!(f, "boolean `{value}`"),
            Unexpected::Unsigned(value) => write!(f, "integer `{value}`"),
            Unexpected::Signed(value) => {
                write!(f, "integer `{}{}`", if value < 0 { "-" } else { "" }, value.unsigned_abs())
            }
            Unexpected::Float(_) => f.write_str("floating point"),
            Unexpected::Str(value) => write!(f, "string \"{value}\""),
            Unexpected::Seq => f.write_str("sequence"),
            Unexpected::Map => f.write_str("map"),
            Unexpected::Other(what) => f.write_str(what),
            _ => f.write_str("something else"),
        }
    }
}
