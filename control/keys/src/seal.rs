//! Secrets at rest: sealed with a secret of the node that lies in a file of its own, apart from what it seals.
//!
//! ```text
//!   sealed   1 (version) | salt, 32 bytes | encrypted with ChaCha20-Poly1305 | tag, 16
//! ```
//!
//! Each seal has a key of its own, derived from secret and salt (HKDF, RFC 5869), so no nonce is ever used twice. The name under which
//! something is sealed is authenticated: what was sealed under one name is not opened under another.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

const SECRET_BYTES: usize = 32;
const SALT_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + SALT_BYTES;
/// What keys are derived for.
const PURPOSE: &[u8] = b"pinion: sealed at rest, version 1";
/// The permissions of the secret's file: its owner reads and writes it.
const MODE: u32 = 0o600;

/// Seals bytes with a node's secret. The secret is erased when it is dropped.
pub struct Seal {
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read or written.
    #[error("the node's secret {}: {error}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The file has another length, or is no file.
    #[error(
        "the node's secret {} is damaged: it has {SECRET_BYTES} bytes; restore it from a backup, or remove it and upload all keys again",
        .0.display()
    )]
    Damaged(PathBuf),
    /// Others may read the file.
    #[error("the node's secret {} can be read by others (mode {mode:o}): run chmod 600 on it, and consider its keys as known", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

/// What was sealed cannot be opened: it was changed, or was sealed under another name or with another secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it was changed, or sealed under another name or by another node")]
pub struct OpenError;

impl Seal {
    /// Reads the node's secret from a file. If there is none, makes one: 32 random bytes that only the file's owner may read, durable when
    /// this returns. Two processes must not do this at once.
    ///
    /// # Errors
    /// [`SecretError`]. No secret is ever overwritten.
    pub fn from_file(file: &Path) -> Result<Self, SecretError> {
        let failed = |error| SecretError::Io { file: file.to_owned(), error };
        match File::open(file) {
            Ok(opened) => Self::read(file, opened),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(file).map_err(failed),
            Err(error) => Err(failed(error)),
        }
    }

    fn read(file: &Path, opened: File) -> Result<Self, SecretError> {
        let failed = |error| SecretError::Io { file: file.to_owned(), error };
        let metadata = opened.metadata().map_err(failed)?;
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Open { file: file.to_owned(), mode });
        }
        if !metadata.is_file() || metadata.len() != SECRET_BYTES as u64 {
            return Err(SecretError::Damaged(file.to_owned()));
        }
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        let mut opened = opened;
        opened.read_exact(&mut *secret).map_err(failed)?;
        Ok(Self { secret })
    }

    /// Writes a new secret beside the file and renames it, so that there is never part of one.
    fn create(file: &Path) -> io::Result<Self> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        SystemRandom::new().fill(&mut *secret).map_err(|_| io::Error::other("no randomness"))?;
        let (folder, new) = (file.parent().unwrap_or(Path::new(".")), file.with_extension("new"));
        // One that an earlier start has left.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut written = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
        written.write_all(&*secret)?;
        written.sync_all()?;
        fs::rename(&new, file)?;
        File::open(folder)?.sync_all()?;
        Ok(Self { secret })
    }

    /// Seals bytes under a name.
    ///
    /// # Errors
    /// Fails only if the machine has no randomness.
    pub fn seal(&self, name: &str, plain: &[u8]) -> io::Result<Vec<u8>> {
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| io::Error::other("no randomness"))?;
        // Allocated once, as the content lies in it before it is encrypted.
        let mut sealed = Vec::with_capacity(HEAD_BYTES + plain.len() + TAG_BYTES);
        sealed.push(VERSION);
        sealed.extend_from_slice(&salt);
        sealed.extend_from_slice(plain);
        let (nonce, name) = (nonce(), Aad::from(name.as_bytes()));
        let tag = self.key(&salt).seal_in_place_separate_tag(nonce, name, &mut sealed[HEAD_BYTES..]);
        sealed.extend_from_slice(tag.map_err(|_| io::Error::other("too long to be sealed"))?.as_ref());
        Ok(sealed)
    }

    /// Opens what was sealed under this name.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let (head, encrypted) = sealed.split_at_checked(HEAD_BYTES).ok_or(OpenError)?;
        let (version, salt) = head.split_first().ok_or(OpenError)?;
        if *version != VERSION {
            return Err(OpenError);
        }
        let mut plain = Zeroizing::new(encrypted.to_vec());
        let name = Aad::from(name.as_bytes());
        let len = self.key(salt).open_in_place(nonce(), name, &mut plain).map_err(|_| OpenError)?.len();
        plain.truncate(len);
        Ok(plain)
    }

    fn key(&self, salt: &[u8]) -> LessSafeKey {
        let derived = Salt::new(HKDF_SHA256, salt).extract(&*self.secret);
        let derived = derived.expand(&[PURPOSE], &CHACHA20_POLY1305).expect("a key is shorter than what HKDF derives");
        LessSafeKey::new(UnboundKey::from(derived))
    }
}

/// The nonce of all seals, each of which has its own key.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary folder")
    }

    #[test]
    fn what_is_sealed_is_opened_under_its_name_by_a_later_start() {
        let folder = folder();
        let file = folder.path().join("secret");
        let sealed = Seal::from_file(&file).unwrap().seal("acme/site", b"a key").unwrap();
        let again = Seal::from_file(&file).unwrap();
        assert_eq!(**again.open("acme/site", &sealed).unwrap(), *b"a key");
        assert_eq!(again.open("acme/other", &sealed), Err(OpenError));
        assert_eq!(again.open("", &sealed), Err(OpenError));
    }

    #[test]
    fn another_nodes_secret_opens_nothing() {
        let folder = folder();
        let [one, other] = ["one", "other"].map(|name| Seal::from_file(&folder.path().join(name)).unwrap());
        assert_eq!(other.open("site", &one.seal("site", b"a key").unwrap()), Err(OpenError));
    }

    #[test]
    fn what_was_changed_or_cut_is_not_opened() {
        let folder = folder();
        let seal = Seal::from_file(&folder.path().join("secret")).unwrap();
        let sealed = seal.seal("site", b"a key").unwrap();
        assert!(!sealed.windows(5).any(|part| part == b"a key"));
        assert_ne!(sealed, seal.seal("site", b"a key").unwrap());
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(seal.open("site", &changed), Err(OpenError), "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert_eq!(seal.open("site", &sealed[..len]), Err(OpenError), "{len} bytes");
        }
    }

    #[test]
    fn only_its_owner_may_read_the_secret() {
        let folder = folder();
        let file = folder.path().join("secret");
        Seal::from_file(&file).unwrap();
        let mode = fs::metadata(&file).unwrap().mode() & 0o777;
        assert_eq!(mode, MODE);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Seal::from_file(&file), Err(SecretError::Open { mode: 0o640, .. })));
    }

    #[test]
    fn a_damaged_secret_is_named_and_stays_as_it_is() {
        let folder = folder();
        let file = folder.path().join("secret");
        fs::write(&file, [1; 31]).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(MODE)).unwrap();
        let refused = Seal::from_file(&file).err().expect("it is too short").to_string();
        assert!(refused.contains(&file.display().to_string()), "{refused}");
        assert_eq!(fs::read(&file).unwrap(), [1; 31]);
    }

    #[test]
    fn a_start_that_was_cut_off_while_it_made_the_secret_is_made_good_by_the_next() {
        let folder = folder();
        let file = folder.path().join("secret");
        fs::write(folder.path().join("secret.new"), [1; 5]).unwrap();
        Seal::from_file(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().len(), SECRET_BYTES as u64);
    }
}
