//! What a stage is configured with: lines of words.
//!
//! ```text
//!   root DIRECTORY                 all but the last two at most once
//!   port N
//!   connections N
//!   idle_s N
//!   page PATH TEXT...
//!   fill PATH BYTES
//! ```

use pinion_sdk::InitError;
use pinion_sdk::tcp::Settings;

const CONNECTIONS_MAX: u32 = 4096;
const IDLE_S: u32 = 15;
const IDLE_S_MAX: u32 = 3600;
const FILL_BYTES_MAX: u64 = 1 << 40;
const PAGES_MAX: usize = 1000;

/// Where files come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of the file system's.
    Root(String),
    /// The configuration itself.
    Pages(Vec<Page>),
}

/// A file that the configuration has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it is, from `/` on.
    pub path: String,
    /// What is in it.
    pub content: Content,
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// This.
    Text(String),
    /// So many bytes that are made up.
    Fill(u64),
}

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where files come from.
    pub source: Source,
    /// The port that is listened at.
    pub port: u16,
    /// Connections at once.
    pub connections_max: u16,
    /// How long a connection without a request under way is kept.
    pub idle_ns: u64,
}

impl Config {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// What is wrong, and in which line.
    pub fn parse(config: &[u8]) -> Result<Self, InitError> {
        let text =
            str::from_utf8(config).map_err(|error| InitError::new(format!("the configuration is no text: {error}")))?;
        let mut lines = Lines::default();
        let mut said = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let Some(verb) = line.split_whitespace().next().filter(|verb| !verb.starts_with('#')) else { continue };
            let refuse = |problem: String| InitError::new(format!("configuration, line {}: {problem}", number + 1));
            lines.take(verb, line[verb.len()..].trim()).map_err(refuse)?;
            if !matches!(verb, "page" | "fill") && said.contains(&verb) {
                return Err(refuse(format!("`{verb}` is said twice")));
            }
            said.push(verb);
        }
        let source = match (lines.root, lines.pages) {
            (Some(root), pages) if pages.is_empty() => Source::Root(root),
            (None, pages) if !pages.is_empty() => Source::Pages(pages),
            (None, _) => return Err("there is nothing to serve: add a line like `root /www` or `page / Hello`".into()),
            (Some(root), _) => {
                return Err(InitError::new(format!(
                    "files come from `root {root}`, or from `page` and `fill`: have one of them"
                )));
            }
        };
        let defaults = Settings::default();
        Ok(Self {
            source,
            port: lines.port.unwrap_or(defaults.port),
            connections_max: lines.connections.unwrap_or(defaults.connections_max),
            idle_ns: u64::from(lines.idle_s.unwrap_or(IDLE_S)) * 1_000_000_000,
        })
    }
}

/// What was said so far.
#[derive(Default)]
struct Lines {
    root: Option<String>,
    pages: Vec<Page>,
    port: Option<u16>,
    connections: Option<u16>,
    idle_s: Option<u32>,
}

impl Lines {
    fn take(&mut self, verb: &str, rest: &str) -> Result<(), String> {
        match verb {
            "root" if rest.starts_with('/') => self.root = Some(rest.to_owned()),
            "root" => return Err(format!("{rest:?} is no directory from / on")),
            "port" => self.port = Some(number(rest, 1, u16::MAX.into())? as u16),
            "connections" => self.connections = Some(number(rest, 1, CONNECTIONS_MAX.into())? as u16),
            "idle_s" => self.idle_s = Some(number(rest, 1, IDLE_S_MAX.into())? as u32),
            "page" => {
                let (path, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                self.page(path, Content::Text(format!("{}\n", text.trim())))?;
            }
            "fill" => {
                let (path, bytes) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                self.page(path, Content::Fill(number(bytes.trim(), 0, FILL_BYTES_MAX)?))?;
            }
            _ => {
                return Err(format!(
                    "`{verb}` is not known: there are `root DIRECTORY`, `port N`, `connections N`, `idle_s N`, `page PATH TEXT` \
                     and `fill PATH BYTES`"
                ));
            }
        }
        Ok(())
    }

    fn page(&mut self, path: &str, content: Content) -> Result<(), String> {
        if !path.starts_with('/') {
            return Err(format!("{path:?} is no path from / on"));
        }
        if self.pages.iter().any(|page| page.path == path) {
            return Err(format!("there is {path} already"));
        }
        if self.pages.len() == PAGES_MAX {
            return Err(format!("there are more than {PAGES_MAX} pages"));
        }
        self.pages.push(Page { path: path.to_owned(), content });
        Ok(())
    }
}

fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number from {min} to {max}"))
}
