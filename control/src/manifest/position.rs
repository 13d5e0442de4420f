//! Positions in a manifest.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A line of a manifest, printed as `demo.toml:12`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The manifest.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// A manifest's text, for finding positions in it.
pub(super) struct Text<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    /// The positions of its line ends, so that the text is not searched again for each of ten thousand rules.
    line_ends: Vec<usize>,
}

impl<'a> Text<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text, line_ends: text.match_indices('\n').map(|(at, _)| at).collect() }
    }

    /// Returns the line in which the span starts.
    pub(super) fn place(&self, span: &Range<usize>) -> Position {
        let line = self.line_ends.partition_point(|end| *end < span.start) + 1;
        Position { path: self.path.to_owned(), line }
    }
}
