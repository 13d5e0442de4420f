//! The files that requests name: [`Files`], of a directory or of the configuration.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;
use std::rc::Rc;

use crate::config::{Content, Page, Source};

/// The file that stands for a directory.
const INDEX: &str = "index.html";

/// What a path names.
pub enum Found {
    /// A file.
    File {
        /// Its length in bytes.
        len: u64,
        /// Its bytes.
        bytes: Box<dyn Read>,
        /// Its content type.
        content_type: &'static str,
    },
    /// A directory, requested without the `/` at its path's end.
    Directory,
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
        Source::Root(root) => Box::new(Directory(PathBuf::from(root))),
        Source::Pages(pages) => Box::new(Pages(pages.into_iter().map(Rc::new).collect())),
    }
}

/// A directory of the file system, read at each request.
struct Directory(PathBuf);

impl Files for Directory {
    fn find(&self, path: &str) -> io::Result<Found> {
        let mut at = self.0.clone();
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
        let content_type = content_type(at.to_str().unwrap_or_default());
        Ok(Found::File { len: status.len(), bytes: Box::new(File::open(&at)?), content_type })
    }
}

/// The files in the configuration.
struct Pages(Vec<Rc<Page>>);

impl Files for Pages {
    fn find(&self, path: &str) -> io::Result<Found> {
        let page = self.0.iter().find(|page| page.path == path).ok_or(ErrorKind::NotFound)?;
        let path = if path.ends_with('/') { INDEX } else { path };
        let (len, content_type) = match &page.content {
            Content::Text(text) => (text.len() as u64, content_type(path)),
            Content::Fill(len) => (*len, content_type(path)),
        };
        Ok(Found::File { len, bytes: Box::new(PageReader { page: Rc::clone(page), at: 0 }), content_type })
    }
}

struct PageReader {
    page: Rc<Page>,
    at: u64,
}

impl Read for PageReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &self.page.content {
            Content::Text(text) => {
                let rest = text.as_bytes().get(self.at as usize..).unwrap_or_default();
                let count = rest.len().min(buffer.len());
                buffer[..count].copy_from_slice(&rest[..count]);
                count
            }
            Content::Fill(len) => {
                let count = (len - self.at).min(buffer.len() as u64) as usize;
                fill(&mut buffer[..count], self.at);
                count
            }
        };
        self.at += count as u64;
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
