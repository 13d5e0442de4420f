//! What a tenant has of what the data plane shares among tenants.

use std::sync::Arc;

use pinion_control::model::TenantName;
use pinion_control::node::{JobStatus, ResourceUse};
use pinion_mma::accounts::counters::MmaCounters;
use pinion_mma::id::TenantIndex;

use super::DataPlane;
use crate::offload::Kind;
use crate::reports::drop_ledger::ChainCounts;
use crate::reports::fwp_shares::FwpShare;
use crate::reports::instance_counts::Counts;

/// Returns the account of a tenant; only its builds, if there are any, if none of its chains is active and none of its FWPs is left.
pub(super) fn of_tenant(node: &DataPlane, tenant: &TenantName) -> Vec<ResourceUse> {
    let parts = &node.parts;
    let builds = parts.builds.statuses().into_iter().filter(|build| build.tenant == *tenant).count() as u64;
    let builds = ResourceUse::of("builds", builds);
    let Some((_, memory)) = parts.accounts.of_tenants().into_iter().find(|(of, _)| of == tenant) else {
        return Some(builds).filter(|builds| builds.used > 0).into_iter().collect();
    };
    let (share, counts, callable, chains, weights) = parts.status_table.read(|entries| {
        let callable = entries.functions.iter().find(|((of, _), _)| of == tenant).map(|(_, callable)| callable.tenant);
        let chains: Vec<ChainCounts> = entries.chain_counts_of(tenant).collect();
        (entries.fwp_shares.of(tenant), entries.counts_of(tenant), callable, chains, Arc::clone(&entries.weights))
    });
    let FwpShare { guaranteed, refused, preparing } = share;
    let Counts { fwps, serving, cached } = counts;
    let copied_bytes = chains.iter().map(ChainCounts::copied_bytes).sum();
    let drops: Vec<_> = chains.into_iter().map(ChainCounts::into_drops).collect();
    let dropped = |reason: &str| Some(drops.iter().map(|drops| drops.of(reason)).sum());
    let of_mmas = |count: fn(&MmaCounters, TenantIndex) -> u32| {
        callable.map_or(0, |index| parts.mmas.iter().map(|mma| u64::from(count(mma, index))).sum())
    };
    parts.invocations.divide(&weights);
    let calls = callable.map(|index| parts.invocations.account(index)).unwrap_or_default();
    let waiting = callable.map(|index| parts.observer.waiting_frames().of(index)).unwrap_or_default();
    let lines = parts.log.account(tenant);
    let meter = parts.meters.of_tenant(tenant);
    let jobs = |name: &str, kind: Kind, status: JobStatus| ResourceUse {
        limit: Some(parts.offload.jobs_max(kind).into()),
        refused: Some(status.refused().into_iter().map(|(_, count)| count).sum()),
        ..ResourceUse::of(name, callable.map_or(0, |index| parts.offload.jobs_of(kind, index).into()))
    };
    let cpu_limit_us = node.cpu_grants().of(tenant).cpu_per_second_ms.map(|ms| u64::from(ms) * 1_000);
    let (fields, state_limit_kib) = parts.state.of_tenant(tenant);
    let state_kib = fields.iter().map(|field| field.memory_kib).sum::<u64>() + parts.state.former_kib(tenant);
    vec![
        ResourceUse { guaranteed: Some(guaranteed), refused: Some(refused), ..ResourceUse::of("fwps", fwps) },
        ResourceUse::of("instances_active", serving),
        ResourceUse::of("instances_cached", cached),
        ResourceUse {
            limit: memory.limit_kib,
            refused: Some(memory.refused),
            ..ResourceUse::of("memory_kib", memory.used_kib)
        },
        ResourceUse { limit: Some(state_limit_kib), ..ResourceUse::of("state_kib", state_kib) },
        ResourceUse { limit: cpu_limit_us, ..ResourceUse::of("cpu_us", meter.cpu_us) },
        ResourceUse::of("preparing_us", preparing.as_micros() as u64),
        ResourceUse::of("copied_bytes", copied_bytes),
        ResourceUse {
            guaranteed: Some(waiting.share.guaranteed.into()),
            refused: Some(waiting.refused),
            ..ResourceUse::of("frames_waiting", waiting.share.used.into())
        },
        ResourceUse {
            refused: dropped("hold-full"),
            ..ResourceUse::of("frames_held", of_mmas(|mma, tenant| mma.held.of(tenant)))
        },
        ResourceUse {
            refused: dropped("egress-full"),
            ..ResourceUse::of("frames_leaving", of_mmas(|mma, tenant| mma.leaving.of(tenant)))
        },
        ResourceUse {
            guaranteed: Some(calls.share.guaranteed.into()),
            refused: Some(calls.refused),
            ..ResourceUse::of("calls", calls.share.used.into())
        },
        builds,
        jobs("signatures", Kind::Signer, meter.signatures),
        jobs("inferences", Kind::Inference, meter.inferences),
        ResourceUse { refused: Some(lines.left_out), ..ResourceUse::of("log_lines", lines.written) },
    ]
}
