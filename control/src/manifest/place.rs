//! Where in a manifest something stands.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A line of a manifest, printed as `demo.toml:12`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The manifest.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// A manifest's text, to find places in it.
pub(super) struct Text<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    /// Where its lines end; not searched for again for each of ten thousand rules.
    line_ends: Vec<usize>,
}

impl<'a> Text<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text, line_ends: text.match_indices('\n').map(|(at, _)| at).collect() }
    }

    /// The line that the span starts in.
    pub(super) fn place(&self, span: &Range<usize>) -> Place {
        let line = self.line_ends.partition_point(|end| *end < span.start) + 1;
        Place { path: self.path.to_owned(), line }
    }

    /// The key whose value the span is, if it is the value of one on the same line.
    pub(super) fn key_of(&self, span: &Range<usize>) -> Option<&'a str> {
        let line = self.before(span).rsplit('\n').next()?;
        let key = line.trim_end().strip_suffix('=')?.trim_end();
        let key = key.rsplit(['{', ',', ' ', '\t']).next()?;
        (!key.is_empty()).then_some(key)
    }

    fn before(&self, span: &Range<usize>) -> &'a str {
        self.text.get(..span.start).unwrap_or(self.text)
    }
}
