//! An authority that signs certificates for tests.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) const OPERATOR: &str = "pinion://operator";
pub(crate) const ADMIN: &str = "pinion://tenant/demo/admin";
pub(crate) const VIEWER: &str = "pinion://tenant/demo/viewer";
pub(crate) const RIVAL: &str = "pinion://tenant/rival/admin";

/// A client's certificate, those behind it, and its key.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    key: KeyPair,
}

impl Identity {
    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }
}

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns an authority that this one has signed.
    pub(crate) fn intermediate(&self, name: &str, expires: SystemTime) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = ((expires - 2 * HOUR).into(), expires.into());
        Self(CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &self.0).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        self.0.der()
    }

    /// Returns a certificate and a key for a node named `localhost`, in PEM.
    pub(crate) fn node(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// Returns a client's certificate with these URIs.
    pub(crate) fn client(&self, uris: &[&str]) -> Identity {
        self.client_with(uris, 1, SystemTime::now() + HOUR)
    }

    pub(crate) fn client_with(&self, uris: &[&str], serial: u64, expires: SystemTime) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.serial_number = Some(serial.into());
        (params.not_before, params.not_after) = ((expires - 2 * HOUR).into(), expires.into());
        params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Identity { chain: vec![params.signed_by(&key, &self.0).unwrap().der().clone()], key }
    }

    /// Returns a list of revoked serial numbers, in PEM.
    pub(crate) fn revoked(&self, serials: &[u64]) -> String {
        let now = SystemTime::now();
        let entry = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: (now - HOUR).into(),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: (now - HOUR).into(),
            next_update: (now + HOUR).into(),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }
}
