//! Typed configurations: [`parse`] reads a function's own struct from the TOML that its stage has in the manifest.
//!
//! With the feature `config`. Call it in [`Function::init`](crate::Function::init), so once per template: `pinion apply` then reports a
//! configuration that is refused here, with the path of the field. A module that calls it grows by about 25 KiB; one that does not call it
//! does not grow.
//!
//! Reads all of TOML 1.1 except dates and times, which are refused: write a date as a string.
//!
//! ```text
//!   text --reader.rs--> tree of values and their positions --deserializer.rs--> a function's types
//!                  \-----------------refusal.rs: line, path, sentence------------/
//! ```
//!
//! The reader is this crate's own, as existing ones make modules larger than the functions themselves. They recover from mistakes, keep
//! numbers of any kind, and are instantiated once more for each type. This reader stops at the first mistake, and only a thin layer depends
//! on types. Tests with the crate `toml` check that both read the same.
//!
//! ```
//! use pinion_sdk::{Batch, Function, InitError, config};
//! use serde::Deserialize;
//!
//! /// Passes frames of some lengths.
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

mod deserializer;
mod reader;
mod refusal;
mod tree;

use serde::de::DeserializeOwned;

use crate::InitError;
use tree::Node;

/// Reads a configuration of TOML.
///
/// A misspelt key is refused if the type says `#[serde(deny_unknown_fields)]`, as each type read with this should.
///
/// # Errors
///
/// The error, its line, and the path of the field, like `rule[2].ports`.
pub fn parse<T: DeserializeOwned>(config: &[u8]) -> Result<T, InitError> {
    let tree = read(config)?;
    T::deserialize(&tree).map_err(|refusal| refusal.in_text(config))
}

fn read(config: &[u8]) -> Result<Node, InitError> {
    let text = str::from_utf8(config).map_err(|error| {
        InitError::new(format_args!("the configuration is no text: after {} bytes it is no UTF-8", error.valid_up_to()))
    })?;
    reader::read(text).map_err(|refusal| refusal.in_text(config))
}
