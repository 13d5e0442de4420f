//! The configuration of a stage: words and numbers, each at most once and in any order.

use pinion_sdk::InitError;

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Seconds between two reports.
    pub every_s: u64,
    /// Flows that a report lists.
    pub top: usize,
    /// Most flows that are remembered at once.
    pub flows: usize,
}

/// Most flows that a report may list; a node takes as many lines at once.
pub const TOP_MAX: usize = 32;
const FLOWS_MAX: u64 = 1 << 17;
const EVERY_S_MAX: u64 = 24 * 3600;

impl Config {
    /// Parses a configuration like `every 10s top 5 flows 8192`; settings that it does not have keep their defaults.
    ///
    /// # Errors
    ///
    /// Names the word that is wrong.
    pub fn parse(config: &[u8]) -> Result<Self, InitError> {
        let text =
            str::from_utf8(config).map_err(|error| InitError::new(format!("the configuration is no text: {error}")))?;
        let mut read = Self { every_s: 10, top: 10, flows: 4096 };
        let mut said = Vec::new();
        let mut words = text.split_ascii_whitespace();
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_default();
            if said.contains(&word) {
                return Err(InitError::new(format!("`{word}` is said twice")));
            }
            said.push(word);
            match word {
                "every" => read.every_s = number(word, value.strip_suffix('s').unwrap_or(value), EVERY_S_MAX)?,
                "top" => read.top = number(word, value, TOP_MAX as u64)? as usize,
                "flows" => read.flows = number(word, value, FLOWS_MAX)? as usize,
                _ => {
                    return Err(InitError::new(format!(
                        "{word:?} is not known: there are `every SECONDS`, `top COUNT` and `flows COUNT`"
                    )));
                }
            }
        }
        Ok(read)
    }
}

fn number(word: &str, text: &str, max: u64) -> Result<u64, InitError> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| InitError::new(format!("`{word}` is followed by a number from 1 to {max}, not by {text:?}")))
}
