//! The configuration of a stage: lines of words.
//!
//! ```text
//!   backend NAME MAC [weight N] [output N]
//!   mac MAC                                    all others at most once
//!   places PRIME
//!   connections N
//! ```

use pinion_sdk::{InitError, headers};

/// Default table size: with a hundred backends, their shares differ by at most a per cent, as in the paper.
const PLACES: u32 = 65_537;
const PLACES_MAX: u32 = 1 << 20;
const CONNECTIONS: usize = 32_768;
const CONNECTIONS_MAX: usize = 1 << 18;
const BACKENDS_MAX: usize = 1000;
const WEIGHT_MAX: u32 = 1000;
const OUTPUTS_MAX: u16 = 16;

/// A hardware address.
pub type Mac = [u8; 6];

/// A backend, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// Its name in commands and the status. The table's order for it depends on the name, too.
    pub name: String,
    /// Its hardware address.
    pub mac: Mac,
    /// Its weight, relative to the others'.
    pub weight: u32,
    /// The stage's output that leads to it.
    pub output: u16,
}

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The backends, at least one.
    pub backends: Vec<BackendConfig>,
    /// The balancer's own hardware address. Without it, frames keep their sender's.
    pub mac: Option<Mac>,
    /// Number of entries in the lookup table, a prime.
    pub places: u32,
    /// Most flows that are remembered at once.
    pub connections: usize,
}

impl Config {
    /// Parses a configuration.
    ///
    /// # Errors
    ///
    /// The line that is wrong, and why.
    pub fn parse(config: &[u8]) -> Result<Self, InitError> {
        let text =
            str::from_utf8(config).map_err(|error| InitError::new(format!("the configuration is no text: {error}")))?;
        let mut read = Self { backends: Vec::new(), mac: None, places: PLACES, connections: CONNECTIONS };
        let mut said = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_ascii_whitespace().collect();
            let Some((verb, rest)) = words.split_first() else { continue };
            let refuse = |problem: String| InitError::new(format!("configuration, line {}: {problem}", number + 1));
            read.line(verb, rest).map_err(refuse)?;
            if *verb != "backend" && said.contains(verb) {
                return Err(refuse(format!("`{verb}` is said twice")));
            }
            said.push(verb);
        }
        match read.backends.len() {
            0 => Err("there is no backend: add a line like `backend web1 02:00:00:00:00:11`".into()),
            // As in the paper: with fewer entries the shares would be uneven.
            count if count as u64 * 100 > u64::from(read.places) => Err(InitError::new(format!(
                "{} places are too few for {count} backends: set `places` to a prime of at least 100 for each",
                read.places
            ))),
            _ => Ok(read),
        }
    }

    fn line(&mut self, verb: &str, words: &[&str]) -> Result<(), String> {
        match (verb, words) {
            ("backend", [name, mac, options @ ..]) => self.backend(name, mac, options),
            ("mac", [address]) => {
                self.mac = Some(parse_mac(address)?);
                Ok(())
            }
            ("places", [count]) => {
                self.places = number(count, 101, PLACES_MAX)?;
                if is_prime(self.places) { Ok(()) } else { Err(format!("{count} is no prime")) }
            }
            ("connections", [count]) => {
                self.connections = number(count, 1, CONNECTIONS_MAX as u32)? as usize;
                Ok(())
            }
            _ => Err(format!(
                "`{verb}` with {} words after it is not known: there are `backend NAME MAC`, `mac MAC`, `places PRIME` and \
                 `connections N`",
                words.len()
            )),
        }
    }

    fn backend(&mut self, name: &str, mac: &str, options: &[&str]) -> Result<(), String> {
        if self.backends.iter().any(|other| other.name == name) {
            return Err(format!("there is a backend {name} already"));
        }
        if self.backends.len() == BACKENDS_MAX {
            return Err(format!("there are more than {BACKENDS_MAX} backends"));
        }
        let mut backend = BackendConfig { name: name.to_owned(), mac: parse_mac(mac)?, weight: 1, output: 0 };
        for option in options.chunks(2) {
            match option {
                ["weight", count] => backend.weight = number(count, 1, WEIGHT_MAX)?,
                ["output", count] => backend.output = number(count, 0, u32::from(OUTPUTS_MAX) - 1)? as u16,
                _ => {
                    return Err(format!(
                        "`{}` is not known: after NAME and MAC come `weight N` and `output N`",
                        option[0]
                    ));
                }
            }
        }
        self.backends.push(backend);
        Ok(())
    }
}

fn number(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number from {min} to {max}"))
}

fn parse_mac(text: &str) -> Result<Mac, String> {
    match text.parse::<headers::Mac>() {
        Ok(mac) if !mac.is_group() => Ok(mac.0),
        _ => Err(format!("{text:?} is no hardware address of a station: one looks like 02:00:00:00:00:11")),
    }
}

fn is_prime(number: u32) -> bool {
    number > 1 && (2..).take_while(|factor| factor * factor <= number).all(|factor| !number.is_multiple_of(factor))
}
