//! The CA: a folder with its certificate, its key, what it issued, and what it revoked.
//!
//! ```text
//!   ca.pem             the certificate, which nodes and clients trust
//!   ca.key             its key, readable by the owner only
//!   revoked.pem        the list of revoked certificates, signed by the CA
//!   issued/SERIAL.pem  each certificate that it issued
//! ```
//!
//! Changes at the same time are made one after another, and each file is replaced as a whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, RevokedCertParams, SerialNumber,
};
use time::OffsetDateTime;
use x509_parser::pem::parse_x509_pem;

use super::CertError;
use super::certificate::{self, Certificate, der_of, hex};
use crate::contexts::replace;

/// The modes of public files and of keys.
const PUBLIC: u32 = 0o644;
const SECRET: u32 = 0o600;
/// How long before it is made a certificate becomes valid, since clocks differ.
const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);
/// How long before its end a certificate becomes valid that ends in the past.
const PAST_VALIDITY: Duration = Duration::from_secs(86_400);
const SERIAL_BYTES: usize = 16;

/// The CA of a folder.
pub(super) struct Authority {
    folder: PathBuf,
    der: Vec<u8>,
    /// When its certificate expires.
    pub(super) not_after: Timestamp,
}

/// A certificate with its key, as PEM.
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The list of revoked certificates.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    /// The number of the list, which increases with every change.
    number: u64,
    /// When each was revoked, by serial number.
    pub(super) times: BTreeMap<String, Timestamp>,
}

impl Authority {
    /// Makes a CA in a folder that has none.
    pub(super) fn create(folder: &Path, not_after: Timestamp) -> anyhow::Result<Self> {
        fs::create_dir_all(folder.join("issued")).with_context(|| folder.display().to_string())?;
        let _lock = lock(folder)?;
        for name in ["ca.pem", "ca.key", "revoked.pem"] {
            if folder.join(name).symlink_metadata().is_ok() {
                return Err(CertError::Exists(folder.join(name)).into());
            }
        }
        let mut params = params(not_after)?;
        params.distinguished_name.push(DnType::CommonName, format!("Pinion CA {}", hex(&random::<4>()?)));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = new_key()?;
        let certificate = params.self_signed(&key)?;
        replace(&folder.join("ca.key"), key.serialize_pem().as_bytes(), SECRET)?;
        let authority = Self { folder: folder.to_owned(), der: certificate.der().to_vec(), not_after };
        authority.write_revoked(&Revoked { number: 1, times: BTreeMap::new() })?;
        // The certificate comes last, so that a CA with a certificate is complete.
        replace(&folder.join("ca.pem"), certificate.pem().as_bytes(), PUBLIC)?;
        Ok(authority)
    }

    /// Opens the CA of a folder.
    pub(super) fn open(folder: &Path) -> Result<Self, CertError> {
        let path = folder.join("ca.pem");
        if !path.exists() {
            return Err(CertError::NoCa(folder.to_owned()));
        }
        let der = der_of(&path)?;
        let not_after = Certificate::parse(&path, &der)?.not_after;
        Ok(Self { folder: folder.to_owned(), der, not_after })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the CA as an issuer, with its key.
    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, CertError> {
        let path = self.path("ca.key");
        let text = fs::read_to_string(&path).map_err(|error| CertError::Unreadable { path: path.clone(), error })?;
        let wrong = |problem: String| CertError::Wrong { path: path.clone(), problem };
        let key =
            KeyPair::from_pem(&text).map_err(|error| wrong(format!("it is no key that this pinion reads: {error}")))?;
        let certificate = certificate::parse(&self.path("ca.pem"), &self.der)?;
        if certificate.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(wrong("it is not the key of the ca.pem beside it".to_owned()));
        }
        Issuer::from_ca_cert_der(&self.der.as_slice().into(), key).map_err(|error| wrong(error.to_string()))
    }

    /// Issues a certificate with a new key. `params` are of [`params`].
    pub(super) fn issue(&self, params: &CertificateParams) -> anyhow::Result<Pair> {
        let key = new_key()?;
        let certificate = params.signed_by(&key, &self.issuer()?)?;
        let serial = params.serial_number.as_ref().map(SerialNumber::to_bytes).unwrap_or_default();
        // This record comes first, so that nothing that the CA signed is unknown to it.
        let record = self.path("issued").join(format!("{}.pem", hex(&serial)));
        replace(&record, certificate.pem().as_bytes(), PUBLIC)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Returns everything that it issued, the oldest first.
    pub(super) fn issued(&self) -> Result<Vec<Certificate>, CertError> {
        let folder = self.path("issued");
        let unreadable = |error| CertError::Unreadable { path: folder.clone(), error };
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|extension| extension == "pem") {
                found.push(Certificate::read(&path)?);
            }
        }
        found.sort_by(|a, b| (a.not_before, &a.serial).cmp(&(b.not_before, &b.serial)));
        Ok(found)
    }

    /// Reads the list of revoked certificates, and checks that the CA signed it.
    pub(super) fn revoked(&self) -> Result<Revoked, CertError> {
        let path = self.path("revoked.pem");
        let pem = fs::read(&path).map_err(|error| CertError::Unreadable { path: path.clone(), error })?;
        let wrong = |problem: &str| CertError::Wrong { path: path.clone(), problem: problem.to_owned() };
        let not_a_list = "it is no list of revoked certificates in PEM (-----BEGIN X509 CRL-----)";
        let (_, pem) = parse_x509_pem(&pem).map_err(|_| wrong(not_a_list))?;
        let (_, list) = x509_parser::parse_x509_crl(&pem.contents).map_err(|_| wrong(not_a_list))?;
        let ca = certificate::parse(&self.path("ca.pem"), &self.der)?;
        list.verify_signature(ca.public_key()).map_err(|_| wrong("the CA beside it did not sign it"))?;
        let number = list.crl_number().and_then(|number| number.try_into().ok());
        let times = list.iter_revoked_certificates().map(|revoked| {
            let time =
                certificate::time(revoked.revocation_date).ok_or_else(|| wrong("a time in it is out of range"))?;
            Ok((hex(revoked.raw_serial()), time))
        });
        let times = times.collect::<Result<_, CertError>>()?;
        Ok(Revoked { number: number.ok_or_else(|| wrong("it has no number"))?, times })
    }

    /// Adds a certificate to the list. Returns false if it was there already.
    pub(super) fn revoke(&self, serial: &str) -> anyhow::Result<bool> {
        let _lock = lock(&self.folder)?;
        let mut revoked = self.revoked()?;
        if revoked.times.contains_key(serial) {
            return Ok(false);
        }
        revoked.times.insert(serial.to_owned(), now());
        revoked.number += 1;
        self.write_revoked(&revoked)?;
        Ok(true)
    }

    fn write_revoked(&self, revoked: &Revoked) -> anyhow::Result<()> {
        let entry = |(serial, time): (&String, &Timestamp)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&unhex(serial).unwrap_or_default()),
            revocation_time: calendar(*time),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: calendar(now()),
            // The list is valid as long as the CA, as nothing renews it in between.
            next_update: calendar(self.not_after.max(now() + Duration::from_secs(1))),
            crl_number: SerialNumber::from(revoked.number),
            issuing_distribution_point: None,
            revoked_certs: revoked.times.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        replace(&self.path("revoked.pem"), params.signed_by(&self.issuer()?)?.pem()?.as_bytes(), PUBLIC)
    }
}

/// Writes a certificate and its key side by side: `BASE.pem` and `BASE.key`.
pub(super) fn write_pair(base: &Path, pair: &Pair) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (certificate, key) = paths(base);
    replace(&key, pair.key.as_bytes(), SECRET)?;
    replace(&certificate, pair.certificate.as_bytes(), PUBLIC)?;
    Ok((certificate, key))
}

/// Returns the paths of a certificate and its key.
pub(super) fn paths(base: &Path) -> (PathBuf, PathBuf) {
    let with = |extension: &str| {
        let mut path = base.as_os_str().to_owned();
        path.push(extension);
        PathBuf::from(path)
    };
    (with(".pem"), with(".key"))
}

/// Returns the parameters of a certificate with a random serial number that expires at this time.
pub(super) fn params(not_after: Timestamp) -> anyhow::Result<CertificateParams> {
    let mut serial = random::<SERIAL_BYTES>()?;
    // A positive number that begins with no zero.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = calendar((now() - CLOCK_SKEW).min(not_after - PAST_VALIDITY));
    params.not_after = calendar(not_after);
    Ok(params)
}

/// Returns the time in whole seconds, as certificates have it.
pub(super) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Parses hexadecimal digits, which colons may separate.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
    let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let is_hex = digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit);
    if is_hex { digits.chunks(2).map(pair).collect() } else { None }
}

fn new_key() -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    Ok(bytes)
}

/// Converts a time. Every time that `jiff` knows has a date in `time`.
fn calendar(time: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(time.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    file.lock()?;
    Ok(file)
}
