//! The files that requests name: [`Files`], of a directory or of the configuration, and their validators.
//!
//! Entity tags are digests of contents. They are made once, when the function is prepared, and so are part of its
//! snapshot: no request computes one. On a node a directory never changes, has 16 MiB at most, and no times.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::config::{Content, Page, Source};
use crate::date;

/// The file that stands for a directory.
const INDEX: &str = "index.html";
/// Bytes of a file that are digested at a time.
const PART_BYTES: usize = 64 << 10;
/// Bytes of a digest that are part of a tag.
const TAG_BYTES: usize = 16;

/// The entity tag of a content, with its quotes: no other content has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag([u8; 2 * TAG_BYTES + 2]);

impl Tag {
    /// Returns the tag of the digested content.
    fn of(digest: Sha256) -> Self {
        let mut text = [b'"'; 2 * TAG_BYTES + 2];
        for (digits, byte) in text[1..].chunks_exact_mut(2).zip(digest.finalize()) {
            digits.copy_from_slice(&[byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
        }
        Self(text)
    }

    /// Returns its text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What a path names.
pub enum Found {
    /// A file.
    File {
        /// What is said of it.
        about: About,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A directory, requested without the `/` at its path's end.
    Directory,
}

/// What a response says of a file.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its length in bytes.
    pub len: u64,
    /// Its content type.
    pub content_type: &'static str,
    /// Its tag, if its content is known for certain.
    pub tag: Option<Tag>,
    /// The second of its last change, since 1970, if there is a time.
    pub modified_s: Option<u64>,
}

/// A source of files.
pub trait Files {
    /// Returns what a path names. The path begins with `/`, and has no `.`, `..` or empty segments.
    ///
    /// # Errors
    ///
    /// There is nothing, or it cannot be read.
    fn find(&self, path: &str) -> io::Result<Found>;
}

/// Returns the files of a configuration.
pub fn of(source: Source) -> Box<dyn Files> {
    match source {
        Source::Root(root) => Box::new(Directory::new(root.into())),
        Source::Pages(pages) => Box::new(Pages::new(pages)),
    }
}

/// A directory of the file system, read at each request.
struct Directory {
    root: PathBuf,
    /// The files there were at first, in the order of their paths.
    digested: Box<[Digested]>,
}

/// A file whose content was digested.
struct Digested {
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
    tag: Tag,
}

impl Directory {
    fn new(root: PathBuf) -> Self {
        let mut digested = Vec::new();
        let mut directories = vec![root.clone()];
        // A file that cannot be read now is served without a tag, if it can be read later.
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                    Ok(kind) if kind.is_file() => digested.extend(Digested::read(entry.path())),
                    _ => {}
                }
            }
        }
        digested.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Self { root, digested: digested.into() }
    }

    /// Returns the tag of a file that is as it was when it was digested.
    fn tag(&self, path: &Path, status: &Metadata) -> Option<Tag> {
        let at = self.digested.binary_search_by(|digested| digested.path.as_path().cmp(path)).ok()?;
        let Digested { len, modified, tag, .. } = &self.digested[at];
        (*len == status.len() && *modified == status.modified().ok()).then_some(*tag)
    }
}

impl Digested {
    fn read(path: PathBuf) -> io::Result<Self> {
        let mut file = File::open(&path)?;
        let status = file.metadata()?;
        let (mut digest, mut part) = (Sha256::new(), vec![0; PART_BYTES]);
        loop {
            match file.read(&mut part) {
                Ok(0) => break,
                Ok(count) => digest.update(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { path, len: status.len(), modified: status.modified().ok(), tag: Tag::of(digest) })
    }
}

impl Files for Directory {
    fn find(&self, path: &str) -> io::Result<Found> {
        let mut at = self.root.clone();
        at.extend(path.split('/').filter(|part| !part.is_empty()));
        let mut status = fs::metadata(&at)?;
        if status.is_dir() {
            if !path.ends_with('/') {
                return Ok(Found::Directory);
            }
            at.push(INDEX);
            status = fs::metadata(&at)?;
        } else if path.ends_with('/') {
            return Err(ErrorKind::NotFound.into());
        }
        if !status.is_file() {
            return Err(ErrorKind::NotFound.into());
        }
        let file = File::open(&at)?;
        let about = About {
            len: status.len(),
            content_type: content_type(at.to_str().unwrap_or_default()),
            tag: self.tag(&at, &status),
            modified_s: status.modified().ok().and_then(date::seconds_of),
        };
        Ok(Found::File { about, bytes: Bytes::File(file) })
    }
}

/// The files in the configuration, in the order of their paths.
struct Pages(Box<[(Rc<Page>, About)]>);

impl Pages {
    fn new(pages: Vec<Page>) -> Self {
        let about = |page: Page| {
            let name = if page.path.ends_with('/') { INDEX } else { &page.path };
            let (len, digest) = match &page.content {
                Content::Text(text) => (text.len() as u64, Sha256::new_with_prefix(text)),
                // Its length says what is in it.
                Content::Fill(len) => (*len, Sha256::new_with_prefix(format!("generated, {len} bytes"))),
            };
            let about = About { len, content_type: content_type(name), tag: Some(Tag::of(digest)), modified_s: None };
            (Rc::new(page), about)
        };
        let mut pages: Box<[_]> = pages.into_iter().map(about).collect();
        pages.sort_unstable_by(|(one, _), (other, _)| one.path.cmp(&other.path));
        Self(pages)
    }
}

impl Files for Pages {
    fn find(&self, path: &str) -> io::Result<Found> {
        let at = self.0.binary_search_by(|(page, _)| page.path.as_str().cmp(path)).map_err(|_| ErrorKind::NotFound)?;
        let (page, about) = &self.0[at];
        Ok(Found::File { about: *about, bytes: Bytes::Page { page: Rc::clone(page), at: 0 } })
    }
}

/// The bytes of a file.
pub enum Bytes {
    /// There are none, or they are not wanted.
    None,
    /// Those of a file system's file.
    File(File),
    /// Those of a page from an offset on.
    Page {
        /// The page.
        page: Rc<Page>,
        /// The offset.
        at: u64,
    },
}

impl Bytes {
    /// Goes to an offset.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn go_to(&mut self, offset: u64) -> io::Result<()> {
        match self {
            Self::None => {}
            Self::File(file) => {
                file.seek(SeekFrom::Start(offset))?;
            }
            Self::Page { at, .. } => *at = offset,
        }
        Ok(())
    }
}

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (page, at) = match self {
            Self::None => return Ok(0),
            Self::File(file) => return file.read(buffer),
            Self::Page { page, at } => (page, at),
        };
        let count = match &page.content {
            Content::Text(text) => {
                let rest = text.as_bytes().get(*at as usize..).unwrap_or_default();
                let count = rest.len().min(buffer.len());
                buffer[..count].copy_from_slice(&rest[..count]);
                count
            }
            Content::Fill(len) => {
                let count = len.saturating_sub(*at).min(buffer.len() as u64) as usize;
                fill(&mut buffer[..count], *at);
                count
            }
        };
        *at += count as u64;
        Ok(count)
    }
}

/// Fills a buffer with a generated file's bytes from that offset on: numbered lines of 64 bytes, so that misplaced
/// bytes are noticed.
fn fill(mut buffer: &mut [u8], mut at: u64) {
    while !buffer.is_empty() {
        let rest_of_line = &line_of(at / 64)[(at % 64) as usize..];
        let count = rest_of_line.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest_of_line[..count]);
        buffer = &mut buffer[count..];
        at += count as u64;
    }
}

/// Returns a line: 16 digits, dots, and a newline.
fn line_of(number: u64) -> [u8; 64] {
    let mut line = [b'.'; 64];
    for (place, digit) in line.iter_mut().zip((0..16).rev()) {
        *place = b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15];
    }
    line[63] = b'\n';
    line
}

/// Returns the content type for a file name.
fn content_type(name: &str) -> &'static str {
    let file = name.rsplit('/').next().unwrap_or_default();
    let extension = file.rsplit_once('.').map(|(_, extension)| extension).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "txt" | "md" | "log" => "text/plain; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "json" | "map" => "application/json",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        _ => "application/octet-stream",
    }
}
