//! Configurations with names and types: [`parse`] makes a tenant's own struct of the TOML that its stage has in the manifest.
//!
//! With the feature `config`. Called in [`Function::init`](crate::Function::init), so once per template: what is refused here is refused by
//! `pinion apply`, with the path of the field. A module that calls it is some 230 KiB larger; one that does not, no larger.
//!
//! ```
//! use pinion_sdk::{Batch, Function, InitError, config};
//! use serde::Deserialize;
//!
//! /// Lets frames of some lengths pass.
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct ByLength {
//!     range: Vec<Range>,
//! }
//!
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Range {
//!     #[serde(default)]
//!     bytes_min: usize,
//!     bytes_max: usize,
//! }
//!
//! impl Function for ByLength {
//!     fn init(config: &[u8]) -> Result<Self, InitError> {
//!         config::parse(config)
//!     }
//!
//!     fn handle(&mut self, batch: Batch<'_>) {
//!         for packet in batch {
//!             if self.range.iter().any(|range| (range.bytes_min..=range.bytes_max).contains(&packet.len())) {
//!                 packet.send();
//!             }
//!         }
//!     }
//! }
//!
//! let refusal = ByLength::init(b"[[range]]\nbytes_max = 64\n\n[[range]]\nbytes_max = -1").err().unwrap();
//! assert_eq!(
//!     refusal.to_string(),
//!     "configuration, line 5: range[1].bytes_max: invalid value: integer `-1`, expected usize"
//! );
//! ```

use core::fmt;

use serde::de::DeserializeOwned;
use serde_path_to_error::Track;

use crate::InitError;

/// Reads a configuration of TOML.
///
/// A misspelt key is refused if the type says `#[serde(deny_unknown_fields)]`, as each type read with this should.
///
/// # Errors
///
/// What is wrong, in which line, and the path of the field, like `rule[2].ports`.
pub fn parse<T: DeserializeOwned>(config: &[u8]) -> Result<T, InitError> {
    let text = str::from_utf8(config)
        .map_err(|error| InitError::new(format_args!("the configuration is no text: {error}")))?;
    let deserializer = toml::Deserializer::parse(text).map_err(|error| refusal(text, "", &error))?;
    let mut track = Track::new();
    let read = T::deserialize(serde_path_to_error::Deserializer::new(deserializer, &mut track));
    read.map_err(|error| refusal(text, track.path(), &error))
}

/// One line, as it is to be one in the tenant's log.
fn refusal(text: &str, path: impl fmt::Display, error: &toml::de::Error) -> InitError {
    let path = match path.to_string() {
        // Of the whole, or of what was no TOML to begin with.
        path if path.is_empty() || path == "." => String::new(),
        path => format!("{path}: "),
    };
    let message = error.message().replace('\n', ", ");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => {
            let line = before.matches('\n').count() + 1;
            InitError::new(format_args!("configuration, line {line}: {path}{message}"))
        }
        None => InitError::new(format_args!("configuration: {path}{message}")),
    }
}
