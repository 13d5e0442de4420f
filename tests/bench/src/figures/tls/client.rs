//! The site's certificate, and clients of TLS that offer one cipher suite and one group, so that all servers do the same work.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use rcgen::CertifiedKey;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, NamedGroup, SignatureScheme};

use crate::clients::web::wire::Speaks;

/// The site's name.
const NAME: &str = "site.example";
/// One signature of so many is verified: it costs the client more than signing costs the server, and the clients should not be the bound.
const SIGNATURES_PER_VERIFIED: u32 = 16;
/// The most tickets that are kept.
const TICKETS_MAX: usize = 256;

/// A site with a key of P-256 and a certificate of its own.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// In PEM.
    pub(crate) certificate: String,
    /// In PEM.
    pub(crate) key: String,
    der: CertificateDer<'static>,
}

impl Site {
    /// Makes a site with a new key.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed([NAME.to_owned()]).context("the site's certificate")?;
        Ok(Self { certificate: cert.pem(), key: signing_key.serialize_pem(), der: cert.der().clone() })
    }

    /// Returns TLS without resumption.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn full_handshakes(&self) -> anyhow::Result<Speaks> {
        self.speaks(Resumption::disabled())
    }

    /// Returns TLS whose connections resume each other's sessions.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn resumed_handshakes(&self, tickets: Tickets) -> anyhow::Result<Speaks> {
        self.speaks(Resumption::store(Arc::new(tickets)))
    }

    fn speaks(&self, resumption: Resumption) -> anyhow::Result<Speaks> {
        let default = ring::default_provider();
        let verifier = Pinned {
            certificate: self.der.clone(),
            algorithms: default.signature_verification_algorithms,
            seen: AtomicU32::new(0),
        };
        let provider = CryptoProvider {
            cipher_suites: vec![ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256],
            kx_groups: vec![ring::kx_group::X25519],
            ..default
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).context("TLS 1.3")?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = builder.with_no_client_auth();
        config.resumption = resumption;
        Ok(Speaks::Tls(Arc::new(config), ServerName::try_from(NAME).context("the site's name")?))
    }
}

/// Takes the site's certificate only, and verifies some of the signatures by its key.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
    seen: AtomicU32,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *end_entity != self.certificate {
            return Err(CertificateError::UnknownIssuer.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if !self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(SIGNATURES_PER_VERIFIED) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// Tickets of the one site, each for one use.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    all: Mutex<VecDeque<Tls13ClientSessionValue>>,
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _server_name: ServerName<'static>, _group: NamedGroup) {}

    fn kx_hint(&self, _server_name: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _server_name: ServerName<'static>, _value: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server_name: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == TICKETS_MAX {
            all.pop_front();
        }
        all.push_back(value);
    }

    fn take_tls13_ticket(&self, _server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}
