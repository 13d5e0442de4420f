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
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl<'a> Text<'a> {
    /// The line that the span starts in.
    pub(super) fn place(self, span: &Range<usize>) -> Place {
        let line = self.before(span).matches('\n').count() + 1;
        Place { path: self.path.to_owned(), line }
    }

    /// The key whose value the span is, if it is the value of one on the same line.
    pub(super) fn key_of(self, span: &Range<usize>) -> Option<&'a str> {
        let line = self.before(span).rsplit('\n').next()?;
        let key = line.trim_end().strip_suffix('=')?.trim_end();
        let key = key.rsplit(['{', ',', ' ', '\t']).next()?;
        (!key.is_empty()).then_some(key)
    }

    fn before(self, span: &Range<usize>) -> &'a str {
        self.text.get(..span.start).unwrap_or(self.text)
    }
}
