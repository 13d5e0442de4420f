//! The files that TLS is served with: the node's certificate and key, the authorities of clients, and revoked certificates.
//!
//! They are looked at again from time to time, so that renewing or revoking needs no restart. New files that are broken
//! keep the old ones in force. Files are small and local, so they are read on the thread that looks.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::identity::caller_of;
use crate::access::Caller;

/// The largest file that is read: a list of some hundred thousand revoked certificates.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The files that TLS is served with, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The node's certificate, and the intermediate ones behind it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that sign clients' certificates.
    pub client_ca: PathBuf,
    /// What they have revoked: a list of each authority.
    pub revoked: Option<PathBuf>,
}

/// Why the files cannot be served with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{}: {problem}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// What the files say.
pub(super) struct Trust {
    config: Arc<ServerConfig>,
    verifier: Arc<IdentifiedClients>,
    generation: u64,
}

impl Trust {
    pub(super) fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Returns a number that differs from that of all other readings of the files.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Verifies the certificates that a client presented when it connected, its own first.
    ///
    /// # Errors
    /// What became of its own one, to follow its name in a sentence.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), String> {
        let (own, others) = chain.split_first().ok_or("is missing")?;
        self.verifier.verify_client_cert(own, others, UnixTime::now()).map(|_| ()).map_err(|error| match &error {
            Error::InvalidCertificate(CertificateError::Revoked) => "was revoked".to_owned(),
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                "has expired".to_owned()
            }
            _ => format!("is not accepted any more ({})", reason(&error)),
        })
    }

    fn load(files: &TlsFiles, generation: u64) -> Result<Self, TlsError> {
        let TlsFiles { certificate, key, client_ca, revoked } = files;
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for root in certificates(client_ca)? {
            roots.add(root).map_err(|error| unusable(client_ca, error))?;
        }
        let lists = match revoked {
            Some(path) => sections::<CertificateRevocationListDer<'static>>(path, "revocation list (X509 CRL)")?,
            None => Vec::new(),
        };
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .with_crls(lists)
            .build()
            .map_err(|error| unusable(revoked.as_ref().unwrap_or(client_ca), error))?;
        let verifier = Arc::new(IdentifiedClients(verifier));
        let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| unusable(key, error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(certificate, error))?
            .with_client_cert_verifier(Arc::clone(&verifier) as _)
            .with_single_cert(certificates(certificate)?, private)
            .map_err(|error| unusable(key, format!("it does not go with {}: {error}", certificate.display())))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // A client that resumes a session presents no certificate that could be verified.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), verifier, generation })
    }
}

/// The files and what they said when they were looked at last.
pub(super) struct TrustStore {
    files: TlsFiles,
    interval: Duration,
    looked: Mutex<Looked>,
    current: RwLock<Arc<Trust>>,
}

struct Looked {
    at: Instant,
    stamps: Vec<Stamp>,
    /// Readings so far.
    count: u64,
}

/// What changes with a file.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl TrustStore {
    pub(super) fn open(files: TlsFiles, interval: Duration) -> Result<Self, TlsError> {
        // Before the files are read, so that one that changes meanwhile is read again.
        let looked = Looked { at: Instant::now(), stamps: stamps(&files), count: 0 };
        let trust = Trust::load(&files, 0)?;
        Ok(Self { files, interval, looked: Mutex::new(looked), current: RwLock::new(Arc::new(trust)) })
    }

    /// Returns what the files say now, or said at the last look if that is not long ago.
    pub(super) fn current(&self) -> Arc<Trust> {
        // While another thread looks, what is known is good enough.
        if let Ok(mut looked) = self.looked.try_lock()
            && looked.at.elapsed() >= self.interval
        {
            looked.at = Instant::now();
            self.look(&mut looked);
        }
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn look(&self, looked: &mut Looked) {
        let stamps = stamps(&self.files);
        if stamps == looked.stamps {
            return;
        }
        (looked.stamps, looked.count) = (stamps, looked.count + 1);
        match Trust::load(&self.files, looked.count) {
            Ok(trust) => {
                tracing::info!("the certificates of the API were read anew");
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
            }
            Err(error) => tracing::error!("new certificates of the API are not used, and the former remain: {error}"),
        }
    }
}

/// Returns the stamps of all files that are there.
fn stamps(files: &TlsFiles) -> Vec<Stamp> {
    let TlsFiles { certificate, key, client_ca, revoked } = files;
    let paths = [certificate, key, client_ca].into_iter().chain(revoked);
    let stamp = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        Some(Stamp {
            device: found.dev(),
            inode: found.ino(),
            size_bytes: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    };
    paths.filter_map(stamp).collect()
}

fn unusable(path: &Path, problem: impl ToString) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), problem: problem.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |source| TlsError::Unreadable { path: path.to_owned(), source };
    let found = fs::metadata(path).map_err(unreadable)?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(unusable(path, format!("it must be a file of at most {} MiB, in PEM", FILE_BYTES_MAX >> 20)));
    }
    fs::read(path).map_err(unreadable)
}

/// Reads the sections of a kind; at least one.
fn sections<T: PemObject>(path: &Path, kind: &str) -> Result<Vec<T>, TlsError> {
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(unusable(path, format!("there is no {kind} in it, in PEM"))),
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(path, error)),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    sections(path, "certificate")
}

/// Verifies clients' certificates, and that they name a caller.
#[derive(Debug)]
struct IdentifiedClients(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for IdentifiedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(own, others, now)?;
        match caller_of(own) {
            Ok(_) => Ok(verified),
            Err(error) => Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Returns the caller of a connection whose handshake is complete.
pub(super) fn caller(chain: &[CertificateDer<'_>]) -> Result<Caller, String> {
    let own = chain.first().ok_or("there is no certificate")?;
    caller_of(own).map_err(|error| error.to_string())
}

/// Formats why a handshake failed.
pub(super) fn reason(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => error.to_string(),
        error => error.to_string(),
    }
}
