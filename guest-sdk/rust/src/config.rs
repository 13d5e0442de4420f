//! Configurations with names and types: [`parse`] makes a tenant's own struct of the TOML that its stage has in the manifest.
//!
//! With the feature `config`. Called in [`Function::init`](crate::Function::init), so once per template: what is refused here is refused by
//! `pinion apply`, with the path of the field. A module that calls it is some 25 KiB larger; one that does not, no larger.
//!
//! All of TOML 1.1 is read but dates and times, which are refused: who wants one takes it as a string.
//!
//! ```text
//!   text --reader.rs--> tree of values and where they stand --deserializer.rs--> a tenant's types
//!                  \-----------------refusal.rs: line, path, sentence------------/
//! ```
//!
//! The reader is this crate's own as those that there are make modules larger than functions: the crate `toml` with `serde_path_to_error` by
//! 215 KiB, `basic-toml` by 101, `boml` by 72, and the parser alone that `toml` is built on by 54. They recover from mistakes, keep numbers of
//! any kind, and are there once more for each type that is read; this one stops at the first mistake, and what knows types is thin. That both
//! read the same is tested with the crate `toml`.
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
/// What is wrong, in which line, and the path of the field, like `rule[2].ports`.
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
