//! The caller that a client's certificate names.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::access::{Caller, Certificate};

/// Why a certificate, valid as it may be, names no caller.
#[derive(Debug, thiserror::Error)]
#[error("the certificate {0}")]
pub(super) struct NoIdentity(String);

/// Returns when certificates expire, in seconds of Unix time.
pub(super) fn expiries_s(chain: &[CertificateDer<'_>]) -> Vec<u64> {
    let expiry_s = |certificate: &CertificateDer<'_>| {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        Some(u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0))
    };
    chain.iter().filter_map(expiry_s).collect()
}

/// Returns the caller that a certificate names: by the one URI of its alternative names that is an identity.
pub(super) fn caller_of(certificate: &CertificateDer<'_>) -> Result<Caller, NoIdentity> {
    let broken = |error: String| NoIdentity(format!("cannot be read: {error}"));
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|error| broken(error.to_string()))?;
    let alternatives = certificate.subject_alternative_name().map_err(|error| broken(error.to_string()))?;
    let names = alternatives.iter().flat_map(|names| &names.value.general_names);
    let mut identities = names.filter_map(|name| match name {
        GeneralName::URI(uri) if Caller::is_identity(uri) => Some(*uri),
        _ => None,
    });
    let uri = match (identities.next(), identities.next()) {
        (Some(uri), None) => uri,
        (None, _) => return Err(NoIdentity("has no URI pinion://... among its alternative names".to_owned())),
        (Some(_), Some(_)) => {
            return Err(NoIdentity(
                "has several URIs pinion://... among its alternative names: one is allowed".to_owned(),
            ));
        }
    };
    let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let expires_s = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
    let identified = Certificate {
        serial: certificate.raw_serial_as_string(),
        expires: SystemTime::UNIX_EPOCH + Duration::from_secs(expires_s),
    };
    Caller::of_uri(uri, name, identified)
        .map_err(|problem| NoIdentity(format!("has an identity that is wrong: {problem}")))
}
