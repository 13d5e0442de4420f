//! Identities of callers.

use std::fmt;
use std::time::SystemTime;

use pinion_text::printable;

use crate::model::{Author, TenantName};

/// The longest name of a caller in logs.
const NAME_BYTES_MAX: usize = 128;
/// What every identity in a certificate begins with.
const SCHEME: &str = "pinion://";

/// What an identity may do. Each role may do what the lesser ones may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Sees what belongs to one tenant.
    TenantViewer,
    /// Sees, changes and invokes what belongs to one tenant.
    TenantAdmin,
    /// Sees and changes everything on the node.
    Operator,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::TenantViewer => "tenant viewer",
            Role::TenantAdmin => "tenant admin",
            Role::Operator => "operator",
        })
    }
}

/// The certificate that a caller presented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its serial number, in hexadecimal.
    pub serial: String,
    /// When it expires.
    pub expires: SystemTime,
}

/// Who calls: a role, a tenant unless it is the operator, and a name for logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    role: Role,
    /// Is there for the roles of tenants, and only for these.
    tenant: Option<TenantName>,
    name: String,
    certificate: Option<Certificate>,
}

impl Caller {
    /// Returns the operator, as known by its number for the operating system.
    #[must_use]
    pub fn of_uid(uid: u32) -> Self {
        Self { role: Role::Operator, tenant: None, name: format!("uid {uid}"), certificate: None }
    }

    /// Returns the caller that an identity in a certificate means: `pinion://operator`, `pinion://tenant/NAME/admin` or
    /// `pinion://tenant/NAME/viewer`. Its name is the certificate's, or else the identity.
    ///
    /// # Errors
    /// What is wrong with the identity.
    pub fn of_uri(uri: &str, name: Option<&str>, certificate: Certificate) -> Result<Self, String> {
        let shown = || printable(format!("{uri:?}"), NAME_BYTES_MAX);
        let unknown = || {
            let known = "pinion://operator, pinion://tenant/NAME/admin and pinion://tenant/NAME/viewer";
            format!("{} is no identity: there are {known}", shown())
        };
        let path: Vec<&str> = uri.strip_prefix(SCHEME).ok_or_else(unknown)?.split('/').collect();
        let (role, tenant) = match path[..] {
            ["operator"] => (Role::Operator, None),
            ["tenant", tenant, "admin"] => (Role::TenantAdmin, Some(tenant)),
            ["tenant", tenant, "viewer"] => (Role::TenantViewer, Some(tenant)),
            _ => return Err(unknown()),
        };
        let tenant = tenant.map(TenantName::new).transpose().map_err(|bad| format!("{}: {bad}", shown()))?;
        let name = printable(name.unwrap_or(uri), NAME_BYTES_MAX);
        Ok(Self { role, tenant, name, certificate: Some(certificate) })
    }

    /// Returns whether a name in a certificate is meant as an identity.
    pub(crate) fn is_identity(uri: &str) -> bool {
        uri.starts_with("pinion:")
    }

    /// Returns its role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the tenant that it is confined to; none for the operator.
    #[must_use]
    pub fn tenant(&self) -> Option<&TenantName> {
        self.tenant.as_ref()
    }

    /// Returns it as the author of changes.
    #[must_use]
    pub fn author(&self) -> Author {
        Author { name: self.to_string(), tenant: self.tenant.clone() }
    }

    /// Returns its certificate; none on the node's own socket.
    #[must_use]
    pub fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }
}

impl fmt::Display for Caller {
    /// Formats it for logs, as `alice (tenant admin of demo)` or `uid 0 (operator)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, tenant, name, .. } = self;
        match tenant {
            Some(tenant) => write!(f, "{name} ({role} of {tenant})"),
            None => write!(f, "{name} ({role})"),
        }
    }
}
