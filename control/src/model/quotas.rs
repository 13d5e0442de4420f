//! What one tenant may have of what a node has room for: nothing is left of the last quarter for tenants that have much.
//!
//! While more than three quarters are used, a tenant may have no more than a sixteenth of all. So a tenant alone gets three quarters, and
//! whatever the others have, small tenants find room. What a tenant has already is not taken away.
//!
//! A tenant may be granted less by its own terms ([`super::Tenant`]).
//!
//! The same holds for uploads, which are no part of the desired state.

use std::collections::{BTreeMap, BTreeSet};

use super::invalid::{REMEDY, REMEDY_FOR_UPLOADS};
use super::{
    CASES_TOTAL_MAX, CHAINS_MAX, CONFIG_BYTES_TOTAL_MAX, DesiredState, Digest, FILES_BYTES_TOTAL_MAX, Invalid,
    KEYS_MAX, MODEL_BYTES_TOTAL_MAX, MODELS_MAX, MODULES_MAX, RULES_MAX, StoredUpload, Tenant, TenantName,
};

/// The part that is kept for tenants that have little, as one part in so many.
const KEPT_PART: u64 = 4;
/// What is little, as one part in so many.
const LITTLE_PART: u64 = 16;

/// The maximum number of (tenant, digest) pairs that may be uploaded, whether something names them or not.
pub const UPLOADS_MAX: u64 = 4096;
/// The maximum number of their bytes. What two tenants have uploaded counts twice.
pub const UPLOAD_BYTES_TOTAL_MAX: u64 = 4 << 30;

/// How much each tenant has.
type Use<'s> = BTreeMap<&'s TenantName, u64>;

/// Something that a node has limited room for.
struct Measure {
    /// Its name for programs.
    key: &'static str,
    name: &'static str,
    max: u64,
    of: fn(&DesiredState) -> Use<'_>,
    /// The tenants' own limits of it.
    own: Option<OwnLimit>,
}

/// A limit of a tenant's own terms.
struct OwnLimit {
    key: &'static str,
    max: fn(&Tenant) -> Option<u64>,
}

const MEASURES: [Measure; 9] = [
    Measure {
        key: "modules",
        name: "modules",
        max: MODULES_MAX as u64,
        of: modules,
        own: Some(OwnLimit { key: "modules_max", max: |tenant| tenant.modules_max.map(u64::from) }),
    },
    Measure {
        key: "keys",
        name: "keys",
        max: KEYS_MAX as u64,
        of: keys,
        own: Some(OwnLimit { key: "keys_max", max: |tenant| tenant.keys_max.map(u64::from) }),
    },
    Measure {
        key: "models",
        name: "models",
        max: MODELS_MAX as u64,
        of: models,
        own: Some(OwnLimit { key: "models_max", max: |tenant| tenant.models_max.map(u64::from) }),
    },
    Measure {
        key: "model_bytes",
        name: "bytes of models",
        max: MODEL_BYTES_TOTAL_MAX,
        of: model_bytes,
        own: Some(OwnLimit { key: "model_mib", max: |tenant| Some(u64::from(tenant.model_mib?) << 20) }),
    },
    Measure {
        key: "chains",
        name: "chains",
        max: CHAINS_MAX as u64,
        of: chains,
        own: Some(OwnLimit { key: "chains_max", max: |tenant| tenant.chains_max.map(u64::from) }),
    },
    Measure {
        key: "rules",
        name: "rules",
        max: RULES_MAX as u64,
        of: rules,
        own: Some(OwnLimit { key: "rules_max", max: |tenant| tenant.rules_max.map(u64::from) }),
    },
    Measure {
        key: "branch_matches",
        name: "matches of branches",
        max: CASES_TOTAL_MAX as u64,
        of: branch_matches,
        own: None,
    },
    Measure {
        key: "config_bytes",
        name: "bytes of stage configuration",
        max: CONFIG_BYTES_TOTAL_MAX as u64,
        of: config_bytes,
        own: None,
    },
    Measure {
        key: "files_bytes",
        name: "bytes of stages' files",
        max: FILES_BYTES_TOTAL_MAX,
        of: files_bytes,
        own: None,
    },
];

/// As [`Measure`], for uploads.
struct UploadMeasure {
    key: &'static str,
    name: &'static str,
    max: u64,
    of: fn(&StoredUpload) -> u64,
    /// A tenant's own limit of it.
    own: fn(&Tenant) -> Option<u64>,
}

static UPLOAD_MEASURES: [UploadMeasure; 2] = [
    UploadMeasure { key: "uploads", name: "uploads", max: UPLOADS_MAX, of: |_| 1, own: |_| None },
    UploadMeasure {
        key: "upload_bytes",
        name: "bytes of uploads",
        max: UPLOAD_BYTES_TOTAL_MAX,
        of: |upload| upload.size_bytes,
        own: upload_bytes_max,
    },
];

/// Returns the maximum size of a tenant's uploads by its own terms.
fn upload_bytes_max(tenant: &Tenant) -> Option<u64> {
    Some(u64::from(tenant.upload_mib?) << 20)
}

/// What a tenant has of something that a node has limited room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaUse {
    /// Its name for programs.
    pub key: &'static str,
    /// Its name in sentences.
    pub what: &'static str,
    /// How much the tenant has.
    pub used: u64,
    /// How much it can have if others have nothing.
    pub limit: u64,
}

impl QuotaUse {
    /// Returns what a tenant has of each.
    #[must_use]
    pub fn all_of(state: &DesiredState, tenant: &TenantName) -> Vec<Self> {
        let quota = |Measure { key, name, max, of, own, .. }: Measure| {
            let own = own.zip(state.tenant(tenant)).and_then(|(own, tenant)| (own.max)(tenant));
            Self {
                key,
                what: name,
                used: of(state).get(tenant).copied().unwrap_or(0),
                limit: own.map_or(most(max), |own| most(max).min(own)),
            }
        };
        MEASURES.into_iter().map(quota).collect()
    }

    /// Returns what a tenant has uploaded, by number and by size. `terms` are its own, if it has any.
    #[must_use]
    pub fn of_uploads(uploads: &[StoredUpload], tenant: &TenantName, terms: Option<&Tenant>) -> Vec<Self> {
        let quota = |&UploadMeasure { key, name, max, of, own }: &UploadMeasure| Self {
            key,
            what: name,
            used: uploads.iter().filter(|upload| upload.tenant == *tenant).map(of).sum(),
            limit: terms.and_then(own).map_or(most(max), |own| most(max).min(own)),
        };
        UPLOAD_MEASURES.iter().map(quota).collect()
    }
}

/// Returns what a tenant may have of the last quarter of so much.
#[must_use]
pub fn little_of(max: u64) -> u64 {
    max / LITTLE_PART
}

/// Returns whether a tenant that had `before` may have `count` of so much, if all tenants have `total` then.
#[must_use]
pub fn leaves_room(count: u64, before: u64, total: u64, max: u64) -> bool {
    total <= most(max) || count <= little_of(max) || count <= before
}

/// Returns how much of all tenants can have together before it is kept for those that have little.
fn most(max: u64) -> u64 {
    max - max / KEPT_PART
}

/// Why there is no room for an upload.
pub struct UploadShortage {
    /// The bound that it exceeds.
    pub refused: Invalid,
    measure: &'static UploadMeasure,
}

impl UploadShortage {
    /// Returns whether there would be room for it if other tenants had less.
    #[must_use]
    pub fn is_others_doing(&self) -> bool {
        !matches!(self.refused, Invalid::OverQuota { .. })
    }

    /// Returns how much of what is short an upload takes.
    #[must_use]
    pub fn amount(&self, upload: &StoredUpload) -> u64 {
        (self.measure.of)(upload)
    }

    /// Returns how much of it each tenant is sure of.
    #[must_use]
    pub fn little(&self) -> u64 {
        little_of(self.measure.max)
    }
}

/// Refuses an upload with which its tenant would have more than it may, or all tenants more than there is room for. `before` are the uploads
/// that there are already, and `terms` the tenant's own, if it has any.
///
/// # Errors
/// Which bound it exceeds.
pub fn check_upload(
    before: &[StoredUpload],
    new: &StoredUpload,
    terms: Option<&Tenant>,
) -> Result<(), Box<UploadShortage>> {
    if before.iter().any(|upload| (&upload.tenant, &upload.digest) == (&new.tenant, &new.digest)) {
        return Ok(());
    }
    UPLOAD_MEASURES.iter().try_for_each(|measure| {
        let refused = check_measure(measure, before, new, terms);
        refused.map_err(|refused| Box::new(UploadShortage { refused, measure }))
    })
}

fn check_measure(
    &UploadMeasure { name, max, of, own, .. }: &UploadMeasure,
    before: &[StoredUpload],
    new: &StoredUpload,
    terms: Option<&Tenant>,
) -> Result<(), Invalid> {
    let total = before.iter().chain([new]).map(of).sum::<u64>();
    if total > max {
        return Err(Invalid::TooManyUploads { what: name, count: total, max });
    }
    let of_tenant = before.iter().filter(|upload| upload.tenant == new.tenant).chain([new]);
    let (count, little) = (of_tenant.map(of).sum::<u64>(), little_of(max));
    let (tenant, remedy) = (new.tenant.clone(), REMEDY_FOR_UPLOADS);
    if let Some(own) = terms.and_then(own).filter(|own| count > *own) {
        return Err(Invalid::OverQuota { tenant, what: name, count, max: own, key: "upload_mib", remedy });
    }
    if !leaves_room(count, 0, total, max) {
        return Err(Invalid::TooMuchOfOne { tenant, what: name, count, little, max, remedy });
    }
    Ok(())
}

/// Refuses a change by which a tenant gets more of something than it may have.
pub(super) fn check(before: &DesiredState, after: &DesiredState) -> Result<(), Invalid> {
    check_files(before, after)?;
    for Measure { name, max, of, own, .. } in MEASURES {
        let used = of(after);
        if let Some(own) = own {
            check_own(name, &own, before, after, &used, of)?;
        }
        let total = used.values().sum();
        if total <= most(max) {
            continue;
        }
        let had = of(before);
        for (tenant, count) in used {
            if !leaves_room(count, had.get(tenant).copied().unwrap_or(0), total, max) {
                let little = little_of(max);
                let (tenant, remedy) = (tenant.clone(), REMEDY);
                return Err(Invalid::TooMuchOfOne { tenant, what: name, count, little, max, remedy });
            }
        }
    }
    Ok(())
}

/// Refuses a change by which all tenants' archives get more bytes than there is room for. Those of two tenants count twice, although the
/// node keeps equal ones once: otherwise a refusal would tell a tenant whether another one has the same archive.
fn check_files(before: &DesiredState, after: &DesiredState) -> Result<(), Invalid> {
    let total = |state| files_bytes(state).values().sum::<u64>();
    let bytes = total(after);
    if bytes > FILES_BYTES_TOTAL_MAX && bytes > total(before) {
        return Err(Invalid::TooManyFiles { kib: bytes.div_ceil(1024), max_kib: FILES_BYTES_TOTAL_MAX >> 10 });
    }
    Ok(())
}

/// Refuses a change by which a tenant gets more of something than its own terms allow. What it has already stays.
fn check_own(
    what: &'static str,
    own: &OwnLimit,
    before: &DesiredState,
    after: &DesiredState,
    used: &Use<'_>,
    of: fn(&DesiredState) -> Use<'_>,
) -> Result<(), Invalid> {
    let over = after.tenants().values().filter_map(|tenant| {
        let (max, count) = ((own.max)(tenant)?, used.get(&tenant.name).copied().unwrap_or(0));
        (count > max).then_some((&tenant.name, count, max))
    });
    let over: Vec<_> = over.collect();
    if over.is_empty() {
        return Ok(());
    }
    let had = of(before);
    let had = |tenant: &TenantName| had.get(tenant).copied().unwrap_or(0);
    match over.into_iter().find(|(tenant, count, _)| *count > had(tenant)) {
        Some((tenant, count, max)) => {
            let (tenant, key, remedy) = (tenant.clone(), own.key, REMEDY);
            Err(Invalid::OverQuota { tenant, what, count, max, key, remedy })
        }
        None => Ok(()),
    }
}

fn summed<'s>(amounts: impl Iterator<Item = (&'s TenantName, u64)>) -> Use<'s> {
    let mut by_tenant = Use::new();
    for (tenant, amount) in amounts {
        *by_tenant.entry(tenant).or_default() += amount;
    }
    by_tenant
}

fn modules(state: &DesiredState) -> Use<'_> {
    summed(state.modules().keys().map(|(tenant, _)| (tenant, 1)))
}

fn keys(state: &DesiredState) -> Use<'_> {
    summed(state.keys().keys().map(|(tenant, _)| (tenant, 1)))
}

fn models(state: &DesiredState) -> Use<'_> {
    summed(state.models().keys().map(|(tenant, _)| (tenant, 1)))
}

/// The bytes of each model count once for each tenant, whatever names it has.
fn model_bytes(state: &DesiredState) -> Use<'_> {
    let models: BTreeSet<(&TenantName, Digest, u64)> =
        state.models().values().map(|model| (&model.tenant, model.digest, model.size_bytes)).collect();
    summed(models.into_iter().map(|(tenant, _, size_bytes)| (tenant, size_bytes)))
}

fn chains(state: &DesiredState) -> Use<'_> {
    summed(state.chains().keys().map(|(tenant, _)| (tenant, 1)))
}

fn rules(state: &DesiredState) -> Use<'_> {
    summed(state.rules().keys().map(|(tenant, _)| (tenant, 1)))
}

fn branch_matches(state: &DesiredState) -> Use<'_> {
    summed(state.chains().values().map(|chain| (&chain.tenant, chain.case_count() as u64)))
}

fn config_bytes(state: &DesiredState) -> Use<'_> {
    let stages = state.chains().values().flat_map(|chain| chain.stages.iter().map(|stage| (&chain.tenant, stage)));
    summed(stages.map(|(tenant, stage)| (tenant, stage.config.len() as u64)))
}

/// Each archive counts once for each tenant.
fn files_bytes(state: &DesiredState) -> Use<'_> {
    let archives: BTreeSet<(&TenantName, Digest, u64)> =
        state.files().map(|(tenant, files)| (tenant, files.digest, files.size_bytes)).collect();
    summed(archives.into_iter().map(|(tenant, _, size_bytes)| (tenant, size_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Branch, CHAIN_CASES_MAX, Case, Chain, Change, Match, Module, Output, Protocol, Stage, Target};

    /// Adds as many modules of a tenant to a state.
    fn with_modules(state: &DesiredState, tenant: &str, count: usize) -> Result<DesiredState, Invalid> {
        let have = state.modules().keys().filter(|(of, _)| of.as_str() == tenant).count();
        let module = |number| Module {
            tenant: tenant.parse().unwrap(),
            name: format!("m{number}").parse().unwrap(),
            digest: Digest::of(b"a module"),
            size_bytes: 1,
        };
        let change = Change { modules: (have..have + count).map(module).collect(), ..Change::default() };
        state.apply(&change).map(|applied| applied.state)
    }

    /// Refuses an upload in a sentence.
    fn check_upload(before: &[StoredUpload], new: &StoredUpload, terms: Option<&Tenant>) -> Result<(), String> {
        super::check_upload(before, new, terms).map_err(|shortage| shortage.refused.to_string())
    }

    fn upload(tenant: &str, number: u64, size_bytes: u64) -> StoredUpload {
        StoredUpload { tenant: tenant.parse().unwrap(), digest: Digest::of(&number.to_le_bytes()), size_bytes }
    }

    #[test]
    fn a_tenant_that_uploads_without_end_leaves_room_to_tenants_with_few_uploads() {
        let mut uploads: Vec<_> = (0..UPLOADS_MAX / 4 * 3).map(|number| upload("greedy", number, 1)).collect();
        let next = upload("greedy", UPLOADS_MAX, 1);
        let refused = check_upload(&uploads, &next, None).unwrap_err();
        assert!(refused.starts_with("uploads: tenant greedy would have 3073."), "{refused}");
        assert_eq!(check_upload(&uploads, &uploads[7], None), Ok(()), "what it has already takes no more room");
        for number in 0..UPLOADS_MAX / 16 {
            assert_eq!(check_upload(&uploads, &upload("small", number, 1), None), Ok(()));
            uploads.push(upload("small", number, 1));
        }
        assert!(check_upload(&uploads, &upload("small", UPLOADS_MAX, 1), None).is_err());
        assert_eq!(check_upload(&uploads, &upload("other", 0, 1), None), Ok(()));
    }

    #[test]
    fn a_tenants_uploads_are_bounded_by_its_own_terms() {
        let terms = Tenant { upload_mib: Some(2), ..Tenant::new("t".parse().unwrap()) };
        let first = upload("t", 0, 1 << 20);
        assert_eq!(check_upload(&[], &first, Some(&terms)), Ok(()));
        let second = upload("t", 1, (1 << 20) + 1);
        let refused = check_upload(std::slice::from_ref(&first), &second, Some(&terms)).unwrap_err();
        let expected =
            "bytes of uploads: tenant t would have 2097153, and the operator grants it 2097152 (upload_mib): ";
        assert!(refused.starts_with(expected), "{refused}");
        assert_eq!(check_upload(std::slice::from_ref(&second), &second, Some(&terms)), Ok(()), "it is there already");
        let [_, bytes] = &QuotaUse::of_uploads(&[first], &terms.name, Some(&terms))[..] else { panic!() };
        assert_eq!((bytes.used, bytes.limit), (1 << 20, 2 << 20));
    }

    #[test]
    fn bytes_of_uploads_have_a_bound_and_a_part_for_tenants_that_have_few() {
        const PART: u64 = UPLOAD_BYTES_TOTAL_MAX / 32;
        let mut uploads: Vec<_> = (0..24).map(|number| upload("greedy", number, PART)).collect();
        assert!(check_upload(&uploads, &upload("greedy", 24, 1), None).is_err());
        for tenant in ["a", "b", "c", "d"] {
            for number in 0..2 {
                assert_eq!(check_upload(&uploads, &upload(tenant, number, PART), None), Ok(()));
                uploads.push(upload(tenant, number, PART));
            }
        }
        let refused = check_upload(&uploads, &upload("e", 0, 1), None).unwrap_err();
        assert!(refused.starts_with("the node takes at most 4294967296 bytes of uploads"), "{refused}");
        let quotas = QuotaUse::of_uploads(&uploads, &"a".parse().unwrap(), None);
        assert_eq!(
            quotas.iter().map(|quota| (quota.key, quota.used)).collect::<Vec<_>>(),
            [("uploads", 2), ("upload_bytes", 2 * PART)]
        );
    }

    #[test]
    fn a_tenant_gets_three_quarters_and_leaves_the_rest_to_those_that_have_little() {
        let (most, little) = (MODULES_MAX / 4 * 3, MODULES_MAX / 16);
        let full = with_modules(&DesiredState::default(), "greedy", most).unwrap();
        let refused = with_modules(&full, "greedy", 1).unwrap_err().to_string();
        let expected = "modules: tenant greedy would have 6145. Of the 8192 that the node has room for, each tenant is sure of 512, and \
                        gets more only while there is enough to spare, which there is not: delete some first";
        assert_eq!(refused, expected);
        let others = with_modules(&full, "small", little).unwrap();
        assert!(with_modules(&others, "small", 1).unwrap_err().to_string().contains("tenant small would have 513"));
        // What is there stays, and other changes of that tenant are made.
        let module = |number| others.modules().values().nth(number).unwrap();
        let again = Change { modules: vec![Module::clone(module(0))], ..Change::default() };
        assert!(others.apply(&again).is_ok());
        assert!(with_modules(&others, "other", 1).is_ok());
        let stored = others.modules().values().map(|module| Module::clone(module)).collect();
        let restored = DesiredState::restore(7, Change { modules: stored, ..Change::default() });
        assert_eq!(restored.unwrap().modules(), others.modules(), "what was accepted is there after a restart");
    }

    /// Returns chains of a tenant with these numbers, each with as many matches of branches as a chain may have.
    fn widest_chains(tenant: &str, numbers: std::ops::Range<usize>) -> Vec<Chain> {
        let case =
            |number| Case { matcher: Match { protocol: Some(Protocol(number)), ..Match::default() }, to: Target::Drop };
        let branch = Output::Branch(Branch { cases: (1..=16).map(case).collect(), default: Target::Egress });
        let mut stage = Stage::new("m0".parse().unwrap(), Vec::new());
        stage.outputs = vec![branch; 16];
        let name = |number| format!("c{number}").parse().unwrap();
        numbers.map(|number| Chain::new(tenant.parse().unwrap(), name(number), vec![stage.clone()])).collect()
    }

    #[test]
    fn a_tenant_with_many_matches_of_branches_leaves_some_to_others() {
        let most = CASES_TOTAL_MAX / CHAIN_CASES_MAX / 4 * 3;
        let little = CASES_TOTAL_MAX / CHAIN_CASES_MAX / 16;
        let with = |state: &DesiredState, chains: Vec<Chain>| {
            state.apply(&Change { chains, ..Change::default() }).map(|applied| applied.state)
        };
        let modules =
            ["greedy", "small"].iter().try_fold(DesiredState::default(), |state, of| with_modules(&state, of, 1));
        let full = with(&modules.unwrap(), widest_chains("greedy", 0..most)).unwrap();
        let one_more = widest_chains("greedy", most..most + 1);
        let refused = with(&full, one_more.clone()).unwrap_err().to_string();
        let expected = "matches of branches: tenant greedy would have 49408. Of the 65536 that the node has room for, each tenant is sure \
                        of 4096, and gets more only while there is enough to spare, which there is not: delete some first";
        assert_eq!(refused, expected);
        let mut without_branches = one_more;
        without_branches[0].stages[0].outputs = vec![Target::Egress.into()];
        assert!(with(&full, without_branches).is_ok());
        let others = with(&full, widest_chains("small", 0..little)).unwrap();
        assert!(with(&others, widest_chains("small", little..little + 1)).is_err());
        let quotas = QuotaUse::all_of(&others, &"small".parse().unwrap());
        let matches = quotas.iter().find(|quota| quota.key == "branch_matches").unwrap();
        assert_eq!((matches.used, matches.limit), (4096, 49152));
    }

    #[test]
    fn a_node_has_a_bounded_number_of_matches_of_branches() {
        let state = with_modules(&DesiredState::default(), "t", 1).unwrap();
        let chains = widest_chains("t", 0..CASES_TOTAL_MAX / CHAIN_CASES_MAX + 1);
        let refused = state.apply(&Change { chains, ..Change::default() }).unwrap_err().to_string();
        let expected = "the node takes at most 65536 matches of branches of all tenants together, and with this change it would \
                        have more: delete some first";
        assert_eq!(refused, expected);
    }
}
