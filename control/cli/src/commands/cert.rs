//! `pinion cert`: makes a CA and the certificates of nodes, operators and tenants, and revokes them.
//!
//! | file | what it holds |
//! |---|---|
//! | `authority` | the CA's folder: issues, records and revokes |
//! | `certificate` | what certificates say |

mod authority;
mod certificate;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{self, Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use pinion_control::client::ServerAddress;
use pinion_control::model::TenantName;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType};
use serde::Serialize;

use self::authority::{Authority, now, params, paths, unhex, write_pair};
pub(super) use self::certificate::Certificate;
use self::certificate::{Role, der_of};
use crate::args::{Cert, CertKind, CertName, Format, Issue, NodeName, Validity};
use crate::contexts;
use crate::output::{self, or_dash, printable};

/// For how long a certificate is valid by default.
const DAYS: i64 = 90;
const CA_DAYS: i64 = 3650;
/// The port on which nodes listen unless their configuration says otherwise.
const API_PORT: u16 = 7443;

/// Why a certificate can't be made, read or revoked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertError {
    /// A file that can't be read.
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// A file with other content than it should have.
    #[error("{}: {problem}", path.display())]
    Wrong { path: PathBuf, problem: String },
    /// A folder without a CA.
    #[error("there is no CA in {}: make one (pinion cert ca), or name its folder by --ca", .0.display())]
    NoCa(PathBuf),
    /// A CA that would be overwritten.
    #[error("{} exists: a CA is never overwritten, so take another folder (--out), or move this one away", .0.display())]
    Exists(PathBuf),
    /// A certificate that would be overwritten.
    #[error("{} exists: replace it by a new certificate (--renew), or write elsewhere (--out)", .0.display())]
    Issued(PathBuf),
    /// A certificate that would be valid for longer than its CA.
    #[error("the certificate would expire on {not_after}, and its CA on {ca}: give fewer --days, or make a new CA")]
    OutlivesCa { not_after: Timestamp, ca: Timestamp },
    /// A certificate that the CA did not issue.
    #[error("the CA has not issued {what}: pinion cert list shows what it issued")]
    NotIssued { what: String },
    /// Text that is neither a file nor a serial number.
    #[error(
        "{text:?} is neither a file nor a serial number, which has hexadecimal digits: pinion cert list shows them"
    )]
    NoSerial { text: String },
}

/// Executes the command.
pub(super) fn run(Cert { ca, kind }: Cert, format: Format) -> anyhow::Result<()> {
    let folder = match (&kind, ca) {
        (CertKind::Ca { out: Some(out), .. }, _) => out.clone(),
        (_, Some(ca)) => ca,
        (_, None) => contexts::file()?.with_file_name("ca"),
    };
    let folder = path::absolute(&folder).with_context(|| folder.display().to_string())?;
    match kind {
        CertKind::Ca { validity, .. } => create(&folder, &validity, format),
        CertKind::Node { names, issue } => node(&Authority::open(&folder)?, names, &issue, format),
        CertKind::Operator { name, issue } => {
            let (base, context) = (format!("operators/{}", name.0), format!("operator-{}", name.0));
            client(&Authority::open(&folder)?, name, Role::Operator, (&base, &context), &issue, format)
        }
        CertKind::Tenant { tenant, name, role, issue } => {
            let (base, context) = (format!("tenants/{tenant}/{}", name.0), format!("{tenant}-{}", name.0));
            let role = Role::Tenant(tenant, role);
            client(&Authority::open(&folder)?, name, role, (&base, &context), &issue, format)
        }
        CertKind::Revoke { certificate } => revoke(&Authority::open(&folder)?, &certificate, format),
        CertKind::List => list(&Authority::open(&folder)?, format),
    }
}

/// Returns when a certificate expires.
fn end(validity: &Validity, days: i64) -> anyhow::Result<Timestamp> {
    match validity.not_after {
        Some(not_after) => Ok(not_after),
        None => {
            let days = u64::try_from(validity.days.unwrap_or(days))?;
            Ok(now().checked_add(Duration::from_secs(days * 86_400))?)
        }
    }
}

fn create(folder: &Path, validity: &Validity, format: Format) -> anyhow::Result<()> {
    let authority = Authority::create(folder, end(validity, CA_DAYS)?)?;
    let [certificate, key, revoked] = ["ca.pem", "ca.key", "revoked.pem"].map(|name| authority.path(name));
    if format == Format::Json {
        return output::json(&serde_json::json!({
            "certificate": certificate, "key": key, "revoked": revoked, "not_after": authority.not_after.to_string(),
        }));
    }
    output::print(&output::description([
        ("Certificate", certificate.display().to_string()),
        ("Key", key.display().to_string()),
        ("Revoked", revoked.display().to_string()),
        ("Valid until", authority.not_after.to_string()),
    ]))
}

/// A certificate that was made, and its files.
#[derive(Debug, Serialize)]
struct Made {
    #[serde(flatten)]
    content: Certificate,
    certificate: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

/// Issues a certificate for this subject, and writes it with its key.
fn issue(
    authority: &Authority,
    base: &str,
    issue: &Issue,
    subject: impl FnOnce(&mut CertificateParams) -> Result<(), rcgen::Error>,
) -> anyhow::Result<Made> {
    let not_after = end(&issue.validity, DAYS)?;
    if not_after > authority.not_after {
        return Err(CertError::OutlivesCa { not_after, ca: authority.not_after }.into());
    }
    let base = match &issue.out {
        Some(out) => path::absolute(out)?.join(Path::new(base).file_name().unwrap_or_default()),
        None => authority.path(base),
    };
    let (certificate, key) = paths(&base);
    let existing = [&certificate, &key].into_iter().find(|path| path.symlink_metadata().is_ok());
    if let Some(existing) = existing.filter(|_| !issue.renew) {
        return Err(CertError::Issued(existing.clone()).into());
    }
    let mut params = params(not_after)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    subject(&mut params)?;
    let folder = base.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    write_pair(&base, &authority.issue(&params)?)?;
    let content = Certificate::read(&certificate)?;
    Ok(Made { content, certificate, key, ca: authority.path("ca.pem") })
}

fn print(made: &Made, use_it: &str, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(made);
    }
    let description = output::description([
        ("Identity", made.content.described()),
        ("Serial", made.content.serial.clone()),
        ("Valid until", made.content.not_after.to_string()),
        ("Certificate", made.certificate.display().to_string()),
        ("Key", made.key.display().to_string()),
    ]);
    output::print(&format!("{description}\n\n{use_it}"))
}

/// The part of a node's configuration that uses its certificate.
#[derive(Serialize)]
struct Configuration<'a> {
    api: Api<'a>,
}

#[derive(Serialize)]
struct Api<'a> {
    listen: String,
    certificate: &'a Path,
    key: &'a Path,
    client_ca: &'a Path,
    revoked: &'a Path,
}

fn node(authority: &Authority, names: Vec<NodeName>, options: &Issue, format: Format) -> anyhow::Result<()> {
    let first = names.first().map(|NodeName(name)| name.clone()).unwrap_or_default();
    let made = issue(authority, &format!("nodes/{first}"), options, |params| {
        params.distinguished_name.push(DnType::CommonName, first.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for NodeName(name) in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.try_into()?),
            });
        }
        Ok(())
    })?;
    let api = Api {
        listen: format!("[::]:{API_PORT}"),
        certificate: &made.certificate,
        key: &made.key,
        client_ca: &made.ca,
        revoked: &authority.path("revoked.pem"),
    };
    let configuration = toml::to_string(&Configuration { api })?;
    print(&made, &format!("In the node's piniond.toml, with the files brought to the node:\n\n{configuration}"), format)
}

/// Makes the certificate of a client. `named` are its file in the CA's folder, and the context that may use it.
fn client(
    authority: &Authority,
    CertName(name): CertName,
    role: Role,
    (base, context): (&str, &str),
    options: &Issue,
    format: Format,
) -> anyhow::Result<()> {
    let made = issue(authority, base, options, |params| {
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(uri) = role.uri() {
            params.subject_alt_names.push(SanType::URI(uri.try_into()?));
        }
        Ok(())
    })?;
    let add = add_context(context, &server(authority)?, &made, role.tenant());
    print(&made, &format!("To use it:\n\n  {add}"), format)
}

/// Returns the address of the node that got the newest certificate, or a word in its place.
fn server(authority: &Authority) -> Result<String, CertError> {
    let issued = authority.issued()?;
    let newest = issued.iter().rfind(|certificate| certificate.role == Role::Node);
    let address = newest.and_then(|node| ServerAddress::new(node.hosts.first()?, API_PORT).ok());
    Ok(address.map_or_else(|| format!("HOST:{API_PORT}"), |address| address.to_string()))
}

/// Returns the command line that adds a context.
fn add_context(context: &str, server: &str, made: &Made, tenant: Option<&TenantName>) -> String {
    let [ca, certificate, key] = [&made.ca, &made.certificate, &made.key].map(|path| path.display().to_string());
    let mut words = vec!["pinion", "context", "add", context, "--server", server];
    words.extend(["--ca", &ca, "--certificate", &certificate, "--key", &key]);
    if let Some(tenant) = tenant {
        words.extend(["--tenant", tenant.as_str()]);
    }
    // A path has no zero byte, which is all that can't be quoted.
    shlex::try_join(words).unwrap_or_default()
}

fn revoke(authority: &Authority, named: &str, format: Format) -> anyhow::Result<()> {
    let issued = authority.issued()?;
    let path = Path::new(named);
    let serial = if path.is_file() {
        let der = der_of(path)?;
        let serial = Certificate::parse(path, &der)?.serial;
        // Another CA may have used the number.
        let record = authority.path("issued").join(format!("{serial}.pem"));
        let is_own = record.is_file() && der_of(&record)? == der;
        if !is_own {
            return Err(CertError::NotIssued { what: printable(named) }.into());
        }
        serial
    } else {
        let bytes = unhex(named).filter(|bytes| !bytes.is_empty());
        certificate::hex(&bytes.ok_or_else(|| CertError::NoSerial { text: printable(named) })?)
    };
    let certificate = issued.iter().find(|certificate| certificate.serial == serial);
    let certificate = certificate.ok_or_else(|| CertError::NotIssued { what: format!("serial {serial}") })?;
    let effect = if authority.revoke(&serial)? { "revoked" } else { "was revoked before" };
    let revoked = authority.path("revoked.pem");
    if format == Format::Json {
        return output::json(&serde_json::json!({ "serial": serial, "effect": effect, "revoked": revoked }));
    }
    let whom = certificate.described();
    output::print(&format!("serial {serial} ({whom}) {effect}\nBring {} to every node.", revoked.display()))
}

/// A certificate in the list.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    content: Certificate,
    status: Status,
    /// When it was revoked.
    revoked_at: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Valid,
    Expired,
    Revoked,
}

fn list(authority: &Authority, format: Format) -> anyhow::Result<()> {
    let (revoked, now) = (authority.revoked()?, now());
    let listed = |content: Certificate| {
        let revoked_at = revoked.times.get(&content.serial).map(Timestamp::to_string);
        let status = match &revoked_at {
            Some(_) => Status::Revoked,
            None if content.not_after <= now => Status::Expired,
            None => Status::Valid,
        };
        Listed { content, status, revoked_at }
    };
    let all: Vec<Listed> = authority.issued()?.into_iter().map(listed).collect();
    if format == Format::Json {
        return output::json(&all);
    }
    let row = |Listed { content, status, revoked_at }: &Listed| {
        let status = match status {
            Status::Valid => "valid".to_owned(),
            Status::Expired => "expired".to_owned(),
            Status::Revoked => format!("revoked {}", or_dash(revoked_at.as_ref())),
        };
        [
            content.name.clone(),
            content.role.to_string(),
            or_dash(content.tenant.as_ref()),
            content.serial.clone(),
            content.not_after.to_string(),
            status,
        ]
    };
    match all.as_slice() {
        [] => {
            output::say("There is no certificate.");
            Ok(())
        }
        all => {
            output::print(&output::table(["NAME", "ROLE", "TENANT", "SERIAL", "UNTIL", "STATUS"], all.iter().map(row)))
        }
    }
}
