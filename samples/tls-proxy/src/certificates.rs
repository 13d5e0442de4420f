//! The certificates of the configuration, and which of them a client gets: [`Certificates`].

use std::fs;
use std::sync::Arc;

use pinion_sdk::InitError;
use pinion_sdk::keys::Key;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::config::Identity;
use crate::keys::GrantedKey;

/// Certificates in the order of the configuration, at least one. A client gets the first one that is valid for the name it asks for, with a
/// key of an algorithm that it knows. If none is valid for that name, or it asks for none, it gets the first with such a key.
#[derive(Debug)]
pub(crate) struct Certificates(Vec<Arc<CertifiedKey>>);

impl Certificates {
    /// Reads the certificates' files. Returns them and the key that seals tickets.
    pub(crate) fn read(identities: &[Identity]) -> Result<(Self, Key), InitError> {
        let mut certificates = Vec::new();
        let mut first_key = None;
        for Identity { chain, key: name } in identities {
            let refuse = |why: &dyn std::fmt::Display| InitError::new(format_args!("certificate {chain:?}: {why}"));
            let pem = fs::read(chain).map_err(|error| refuse(&error))?;
            let chain: Vec<_> =
                CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|error| refuse(&error))?;
            let leaf =
                chain.first().ok_or_else(|| refuse(&"there is no certificate in this file, which must be PEM"))?;
            let parsed = ParsedCertificate::try_from(leaf).map_err(|error| refuse(&error))?;
            let key = Key::open(name)?;
            let granted = GrantedKey::new(key, parsed.subject_public_key_info().into_owned());
            let granted = granted.ok_or_else(|| refuse(&"its key is none of RSA, P-256, P-384 and Ed25519"))?;
            certificates.push(Arc::new(CertifiedKey::new(chain, Arc::new(granted))));
            first_key.get_or_insert(key);
        }
        let key = first_key.ok_or("there is no certificate: add `[[certificate]]` with `chain` and `key`")?;
        Ok((Self(certificates), key))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_usable = |it: &&Arc<CertifiedKey>| it.key.choose_scheme(hello.signature_schemes()).is_some();
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let is_named = |it: &&Arc<CertifiedKey>| name.as_ref().is_some_and(|name| is_for(it, name));
        // One certificate alone is what all get.
        let named = if self.0.len() > 1 { self.0.iter().filter(is_named).find(is_usable) } else { None };
        named.or_else(|| self.0.iter().find(is_usable)).cloned()
    }
}

/// Returns whether a certificate is valid for a name (RFC 6125, section 6.4).
fn is_for(certified: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let leaf = certified.end_entity_cert().ok().and_then(|leaf| ParsedCertificate::try_from(leaf).ok());
    leaf.is_some_and(|leaf| verify_server_name(&leaf, name).is_ok())
}
