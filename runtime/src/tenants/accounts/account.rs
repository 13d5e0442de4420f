//! One account, and what is charged to it: lock-free, from whichever thread grows or drops the memory.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No limit.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// The memory of some FWPs together, and their limit.
#[derive(Debug)]
pub struct Account {
    used_bytes: AtomicU64,
    limit_bytes: AtomicU64,
    refused: AtomicU64,
}

impl Default for Account {
    fn default() -> Self {
        Self { used_bytes: AtomicU64::new(0), limit_bytes: AtomicU64::new(UNLIMITED), refused: AtomicU64::new(0) }
    }
}

impl Account {
    fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Sets the limit. Memory beyond a lower limit stays in use; growth is refused until there is less.
    pub(super) fn set_limit(&self, bytes: Option<u64>) {
        self.limit_bytes.store(bytes.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit_bytes();
        let charged = |used: u64| used.checked_add(bytes).filter(|total| *total <= limit);
        let is_charged = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged).is_ok();
        if !is_charged {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_charged
    }

    fn give_back(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn usage(&self) -> Usage {
        let limit = self.limit_bytes();
        Usage {
            used_kib: self.used_bytes.load(Ordering::Relaxed) / 1024,
            limit_kib: (limit != UNLIMITED).then_some(limit / 1024),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// An account in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The memory of all its FWPs.
    pub used_kib: u64,
    /// The limit, if there is one.
    pub limit_kib: Option<u64>,
    /// How often more was refused.
    pub refused: u64,
}

/// Which limit it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The FWP's own.
    Fwp,
    /// The limit of all FWPs of the chain together.
    Chain,
    /// The limit of all FWPs of the tenant together.
    Tenant,
}

/// A request for more memory than a limit allows: which limit, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverLimit {
    /// Which limit.
    pub scope: Scope,
    /// The limit in KiB.
    pub limit_kib: u64,
    /// What one FWP wanted, in KiB.
    pub wanted_kib: u64,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, limit_kib, wanted_kib } = self;
        match scope {
            Scope::Fwp => {
                write!(f, "it needs {wanted_kib} KiB of memory, and memory_limit_kib is {limit_kib}: raise it")
            }
            Scope::Chain => write!(
                f,
                "it needs {wanted_kib} KiB of memory, with which the chain's FWPs would have more than its memory_total_kib of \
                 {limit_kib}: raise it, or keep fewer instances ready (cache_min, cache_max)"
            ),
            Scope::Tenant => write!(
                f,
                "it needs {wanted_kib} KiB of memory with its stack and its table, and the tenant's FWPs would have more than the \
                 {limit_kib} KiB that the node grants the tenant: keep fewer instances ready (cache_min, cache_max), or ask the operator to raise \
                 the tenant's memory_mib"
            ),
        }
    }
}

/// The accounts to which an FWP's memory is charged.
#[derive(Debug, Clone, Default)]
pub struct MemoryAccounts {
    pub(super) chain: Arc<Account>,
    pub(super) tenant: Arc<Account>,
}

/// The memory of one FWP, charged as long as this value lives.
#[derive(Debug)]
pub struct Holding {
    accounts: MemoryAccounts,
    bytes: u64,
    bytes_max: u64,
    /// What the node keeps for it beside these, and whether its tenant is charged with it.
    kept: u64,
    keeps: bool,
}

impl Holding {
    /// Creates a holding of 0 bytes, which never exceeds `bytes_max`. When it is first resized its tenant is charged with `kept` bytes, too,
    /// that the node keeps for the FWP beside them.
    #[must_use]
    pub fn new(accounts: MemoryAccounts, bytes_max: u64, kept: u64) -> Self {
        Self { accounts, bytes: 0, bytes_max, kept, keeps: false }
    }

    /// Changes the charge to this many bytes in all; lock-free.
    ///
    /// # Errors
    /// The limit that does not allow it. Nothing has changed then.
    pub fn resize(&mut self, bytes: u64) -> Result<(), OverLimit> {
        let MemoryAccounts { chain, tenant } = &self.accounts;
        let over = |scope, limit: u64, wanted: u64| OverLimit {
            scope,
            limit_kib: limit / 1024,
            wanted_kib: wanted.div_ceil(1024),
        };
        if bytes > self.bytes_max {
            return Err(over(Scope::Fwp, self.bytes_max, bytes));
        }
        if let Some(more) = bytes.checked_sub(self.bytes) {
            if !chain.charge(more) {
                return Err(over(Scope::Chain, chain.limit_bytes(), bytes));
            }
            if !tenant.charge(if self.keeps { more } else { more + self.kept }) {
                chain.give_back(more);
                return Err(over(Scope::Tenant, tenant.limit_bytes(), bytes + self.kept));
            }
            self.keeps = true;
        } else {
            chain.give_back(self.bytes - bytes);
            tenant.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.accounts.chain.give_back(self.bytes);
        self.accounts.tenant.give_back(self.bytes + if self.keeps { self.kept } else { 0 });
    }
}

/// Memory that is charged to a tenant as long as this value lives, and is not one FWP's.
#[derive(Debug)]
pub struct Charge {
    tenant: Arc<Account>,
    bytes: u64,
    /// Other memory that is in use as long as this.
    besides: Option<Arc<Charge>>,
}

impl Charge {
    /// Charges a tenant's account.
    pub(super) fn new(tenant: Arc<Account>, bytes: u64) -> Result<Self, OverLimit> {
        if tenant.charge(bytes) {
            return Ok(Self { tenant, bytes, besides: None });
        }
        Err(over_tenants_limit(&tenant, bytes))
    }

    /// Charges the same account with other memory.
    ///
    /// # Errors
    /// The tenant's limit, if it does not allow it.
    pub fn another(&self, bytes: u64) -> Result<Self, OverLimit> {
        Self::new(Arc::clone(&self.tenant), bytes)
    }

    /// Changes the charge to this many bytes.
    ///
    /// # Errors
    /// The tenant's limit, if it does not allow it. Nothing has changed then.
    pub fn resize(&mut self, bytes: u64) -> Result<(), OverLimit> {
        match bytes.checked_sub(self.bytes) {
            Some(more) if !self.tenant.charge(more) => return Err(over_tenants_limit(&self.tenant, bytes)),
            Some(_) => {}
            None => self.tenant.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Lets another charge live as long as this one.
    #[must_use]
    pub fn and(mut self, besides: Option<Arc<Charge>>) -> Self {
        self.besides = besides;
        self
    }
}

fn over_tenants_limit(tenant: &Account, wanted_bytes: u64) -> OverLimit {
    let [limit_kib, wanted_kib] = [tenant.limit_bytes() / 1024, wanted_bytes.div_ceil(1024)];
    OverLimit { scope: Scope::Tenant, limit_kib, wanted_kib }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.tenant.give_back(self.bytes);
    }
}
