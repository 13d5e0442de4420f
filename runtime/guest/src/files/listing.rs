//! Directory listings in the format of WASI preview 1.
//!
//! ```text
//!   entry    cookie of this entry: u64, number: u64, length of its name: u32, kind: u8, three zeros, name
//!   cookie   1 for ".", 2 for "..", and the inode plus 3 for all others; entries are in the order of cookies, which do not change
//! ```

use super::bundle::Inode;
use super::tree::{FileKind, Tree};

const HEADER_BYTES: usize = 24;
/// Added to an inode to get its cookie. The root's inode, 0, is never listed by name.
const COOKIE_OF_INODE: u64 = 3;
const KIND_DIRECTORY: u8 = 3;
const KIND_FILE: u8 = 4;

/// Fills a buffer with the entries after a cookie. Returns how many bytes were filled.
pub(super) fn fill(tree: &Tree, directory: Inode, cookie: u64, out: &mut [u8]) -> usize {
    let parent = tree.parent(directory);
    let dots = [(1, directory, "."), (2, parent, "..")];
    let dots = dots.into_iter().filter(|(own, ..)| *own > cookie);
    let first = (cookie + 1).saturating_sub(COOKIE_OF_INODE);
    let others = tree.list(directory, first).map(|(inode, name)| (inode + COOKIE_OF_INODE, inode, name));
    let mut filled = 0;
    for (cookie, inode, name) in dots.chain(others) {
        let stat = tree.stat(inode);
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&cookie.to_le_bytes());
        header[8..16].copy_from_slice(&stat.number.to_le_bytes());
        header[16..20].copy_from_slice(&(name.len() as u32).to_le_bytes());
        header[20] = if stat.kind == FileKind::Directory { KIND_DIRECTORY } else { KIND_FILE };
        for bytes in [&header[..], name.as_bytes()] {
            let fits = bytes.len().min(out.len() - filled);
            out[filled..filled + fits].copy_from_slice(&bytes[..fits]);
            filled += fits;
        }
        if filled == out.len() {
            break;
        }
    }
    filled
}
