//! The client's side of TLS: reads the credentials, and explains why a handshake failed.
//!
//! TLS 1.3 only. The node proves by a certificate of the given CA that it is the named host. The client proves by its
//! own certificate who it is.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use super::address::RemoteNode;

/// The longest file with certificates or a key.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Why the files that identify a node and its client can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A file can't be read.
    #[error("{key} {} cannot be read: {source}", path.display())]
    Read {
        /// What the file is for: `ca`, `certificate` or `key`.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file without what it is for.
    #[error("{key} {}: {problem}: it must be PEM, with a block that begins -----BEGIN {wanted}-----", path.display())]
    Content {
        /// What the file is for.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// The wanted kind of block.
        wanted: &'static str,
    },
    /// A certificate or key that TLS can't use.
    #[error("{key} {} cannot be used: {problem}", path.display())]
    Unusable {
        /// What the file is for.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        problem: rustls::Error,
    },
    /// A key of another certificate.
    #[error("key {} is not the key of the certificate {}: name the two files that were made together", key.display(), certificate.display())]
    OtherKey {
        /// The key.
        key: PathBuf,
        /// The certificate.
        certificate: PathBuf,
    },
}

/// The node did not accept the client's certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node at {address} does not accept the certificate {}: {problem}", certificate.display())]
pub struct CertificateRefused {
    /// The node.
    pub address: String,
    /// The client's certificate.
    pub certificate: PathBuf,
    /// Why, and what to do.
    pub problem: String,
}

/// The other end did not prove to be the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot trust the node at {address}: {problem}")]
pub struct UntrustedNode {
    /// The address.
    pub address: String,
    /// Why, and what to do.
    pub problem: String,
}

impl RemoteNode {
    /// Checks that the files can be read, and that the key is the certificate's.
    pub fn check(&self) -> Result<(), CredentialsError> {
        config(self).map(|_| ())
    }
}

/// Reads the files, and returns a configuration in which the client trusts the CA and shows the certificate.
pub(super) fn config(node: &RemoteNode) -> Result<ClientConfig, CredentialsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |key, path: &Path, problem| CredentialsError::Unusable { key, path: path.to_owned(), problem };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca", &node.ca)? {
        roots.add(certificate).map_err(|problem| unusable("ca", &node.ca, problem))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let verifier = verifier.expect("there is a root, and no list of revoked certificates that could be wrong");
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.expect("the provider has cipher suites of TLS 1.3").with_webpki_verifier(verifier);
    let chain = certificates("certificate", &node.certificate)?;
    let mut config =
        builder.with_client_auth_cert(chain, private_key(&node.key)?).map_err(|problem| match problem {
            rustls::Error::InconsistentKeys(_) => {
                CredentialsError::OtherKey { key: node.key.clone(), certificate: node.certificate.clone() }
            }
            rustls::Error::InvalidCertificate(_) => unusable("certificate", &node.certificate, problem),
            problem => unusable("key", &node.key, problem),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let wanted = "CERTIFICATE";
    let content = |problem| CredentialsError::Content { key, path: path.to_owned(), problem, wanted };
    let text = read(key, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(content("there is no certificate in it".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(content(error.to_string())),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    let (key, wanted) = ("key", "PRIVATE KEY");
    PrivateKeyDer::from_pem_slice(&read(key, path)?).map_err(|error| {
        let problem = match error {
            pem::Error::NoItemsFound => "there is no private key in it".to_owned(),
            error => error.to_string(),
        };
        CredentialsError::Content { key, path: path.to_owned(), problem, wanted }
    })
}

/// Reads the beginning of a file that may be much too long.
fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let mut bytes = Vec::new();
    let taken = File::open(path).and_then(|file| file.take(PEM_BYTES_MAX).read_to_end(&mut bytes));
    taken.map(|_| bytes).map_err(|source| CredentialsError::Read { key, path: path.to_owned(), source })
}

/// Returns what TLS found wrong, if that is what failed.
pub(super) fn cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Explains an alert by which a node ends the connection because of the client's certificate; none for other alerts.
pub(super) fn refusal(node: &RemoteNode, alert: AlertDescription) -> Option<CertificateRefused> {
    let problem = match alert {
        AlertDescription::CertificateExpired => {
            "it has expired, or is not valid yet: get a new one, or set the clock right".to_owned()
        }
        AlertDescription::CertificateRevoked => "it was revoked: get a new one".to_owned(),
        AlertDescription::UnknownCA => {
            "the node does not know the CA that issued it, or has no list of that CA's revoked certificates: get a \
             certificate of the node's own CA"
                .to_owned()
        }
        AlertDescription::CertificateRequired => "the node got none, and requires one".to_owned(),
        AlertDescription::UnsupportedCertificate => {
            "it is not one for clients (extended key usage clientAuth): get one for a person or a program".to_owned()
        }
        AlertDescription::AccessDenied => "the node does not admit its identity: ask the node's operator".to_owned(),
        AlertDescription::DecryptError => {
            "the CA that the node knows did not sign it: get a certificate of the node's own CA".to_owned()
        }
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            format!("the node finds it invalid ({alert:?}): get a new one")
        }
        _ => return None,
    };
    Some(CertificateRefused { address: node.server.to_string(), certificate: node.certificate.clone(), problem })
}

/// Explains why a handshake showed that the other end is not the node, or that it does not speak TLS as nodes do.
pub(super) fn distrust(node: &RemoteNode, error: &rustls::Error) -> UntrustedNode {
    let problem = match error {
        rustls::Error::InvalidCertificate(problem) => untrusted_certificate(node, problem),
        rustls::Error::InvalidMessage(_) => {
            "it does not answer with TLS: does [api] of the node listen there?".to_owned()
        }
        rustls::Error::AlertReceived(alert) => {
            format!("it ended the handshake ({alert:?}); pinion speaks TLS 1.3 only")
        }
        rustls::Error::PeerIncompatible(_) => format!("{error}; pinion speaks TLS 1.3 only"),
        error => error.to_string(),
    };
    UntrustedNode { address: node.server.to_string(), problem }
}

fn untrusted_certificate(node: &RemoteNode, error: &CertificateError) -> String {
    let ca = node.ca.display();
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("its certificate is not one of the CA {ca}: name the CA that issued it")
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names = if presented.is_empty() { "no host".to_owned() } else { presented.join(", ") };
            format!("its certificate is for {names}: connect by a name that it has, or have one issued for this name")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired: have a new one issued for the node".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: is the clock of this machine right?".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not one for nodes (extended key usage serverAuth)".to_owned()
        }
        error => format!("its certificate is not valid: {error}"),
    }
}
