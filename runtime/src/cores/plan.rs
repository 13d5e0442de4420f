//! The core plan: which core each role runs on.

use serde::Deserialize;

/// A core of the machine, by the kernel's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub struct CoreId(pub u16);

/// Which role runs on which core. Roles with the same core share one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorePlan {
    /// Net-In and Net-Out.
    pub gateway: CoreId,
    /// The memory movement accelerators, each with its own chain instances.
    pub mmas: Vec<CoreId>,
    /// The workers, each with its own FWPs.
    pub workers: Vec<CoreId>,
    /// The threads that sign, one for each core, if the operator has named any.
    pub signers: Option<Vec<CoreId>>,
    /// The threads that run models, likewise.
    pub inference: Option<Vec<CoreId>>,
}

/// The operator's settings for cores; cores left out are chosen by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreWishes {
    /// The core of Net-In and Net-Out.
    pub gateway: Option<CoreId>,
    /// The MMAs' cores.
    pub mmas: Option<Vec<CoreId>>,
    /// The workers' cores.
    pub workers: Option<Vec<CoreId>>,
    /// The cores of the threads that sign.
    pub signers: Option<Vec<CoreId>>,
    /// The cores of the threads that run models.
    pub inference: Option<Vec<CoreId>>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A core that this process may not use.
    #[error("cores.{role} = {}: this process may run on cores {available:?} only", core.0)]
    NoSuchCore {
        /// The key.
        role: &'static str,
        /// Its value.
        core: CoreId,
        /// The cores that it may use.
        available: Vec<u16>,
    },
    /// A role has no core.
    #[error("cores.{0} is empty: at least one is needed")]
    NoCore(&'static str),
    /// A core is named twice for the same role.
    #[error("cores.{role} names core {} twice: a core has one of them", core.0)]
    Twice {
        /// The key.
        role: &'static str,
        /// The core.
        core: CoreId,
    },
    /// The process may use no core at all.
    #[error("this process may run on no core")]
    NoCores,
}

impl CorePlan {
    /// Makes a plan from the operator's settings and the cores this process may run on, in ascending order.
    ///
    /// By default, a single core has all roles. Of two cores, the first has gateway and MMA and the second the worker. From three on, each
    /// role has its own core. From four on, the last core is left to launcher, builder and control threads, and all cores in between are
    /// workers.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub fn new(wishes: &CoreWishes, available: &[CoreId]) -> Result<Self, PlanError> {
        let &first = available.first().ok_or(PlanError::NoCores)?;
        let (&mma, workers) = match available {
            [one] => (one, vec![*one]),
            [one, two] => (one, vec![*two]),
            [_, two, three] => (two, vec![*three]),
            [_, two, workers @ .., _rest] => (two, workers.to_vec()),
            [] => return Err(PlanError::NoCores),
        };
        let plan = Self {
            gateway: wishes.gateway.unwrap_or(first),
            mmas: wishes.mmas.clone().unwrap_or_else(|| vec![mma]),
            workers: wishes.workers.clone().unwrap_or(workers),
            signers: wishes.signers.clone(),
            inference: wishes.inference.clone(),
        };
        plan.check(available)?;
        Ok(plan)
    }

    fn check(&self, available: &[CoreId]) -> Result<(), PlanError> {
        let roles = [("gateway", &[self.gateway][..]), ("mmas", &self.mmas), ("workers", &self.workers)];
        let offload = [("signers", &self.signers), ("inference", &self.inference)];
        let offload = offload.into_iter().filter_map(|(role, cores)| Some((role, cores.as_deref()?)));
        for (role, cores) in roles.into_iter().chain(offload) {
            if cores.is_empty() {
                return Err(PlanError::NoCore(role));
            }
            for (i, &core) in cores.iter().enumerate() {
                if !available.contains(&core) {
                    let available = available.iter().map(|core| core.0).collect();
                    return Err(PlanError::NoSuchCore { role, core, available });
                }
                if cores[..i].contains(&core) {
                    return Err(PlanError::Twice { role, core });
                }
            }
        }
        Ok(())
    }

    /// Returns those of the available cores that have no role.
    #[must_use]
    pub fn without_role(&self, available: &[CoreId]) -> Vec<CoreId> {
        let has_role = |core: &CoreId| self.moves_frames(*core) || self.workers.contains(core);
        available.iter().copied().filter(|core| !has_role(core)).collect()
    }

    /// Returns the launcher's cores, out of those this process may run on: the cores without a role. If there are none, the cores without
    /// gateway and MMAs; if there are none of these either, the workers'.
    #[must_use]
    pub fn for_launcher(&self, available: &[CoreId]) -> Vec<CoreId> {
        let beside_workers = available.iter().copied().filter(|core| !self.moves_frames(*core)).collect();
        let choices: [Vec<CoreId>; 2] = [self.without_role(available), beside_workers];
        choices.into_iter().find(|cores| !cores.is_empty()).unwrap_or_else(|| self.workers.clone())
    }

    /// Returns the ticker's cores: those without a role. The ticker takes its core from another thread each time it wakes. If all cores
    /// have roles, it gets those without a worker, since on a worker's core the guests would pay for it. If there are none of these either,
    /// it gets all cores.
    #[must_use]
    pub fn for_ticker(&self, available: &[CoreId]) -> Vec<CoreId> {
        let beside_guests = available.iter().copied().filter(|core| !self.workers.contains(core)).collect();
        let choices: [Vec<CoreId>; 2] = [self.without_role(available), beside_guests];
        choices.into_iter().find(|cores| !cores.is_empty()).unwrap_or_else(|| available.to_vec())
    }

    /// Returns the cores for all threads other than roles, launcher and ticker: those without a role, as in any DPDK program. If there are
    /// none, all cores that this process may run on.
    #[must_use]
    pub fn for_control(&self, available: &[CoreId]) -> Vec<CoreId> {
        let choices = [self.without_role(available), available.to_vec()];
        choices.into_iter().find(|cores| !cores.is_empty()).unwrap_or_default()
    }

    /// Returns the cores of the offload threads of a kind, one for each thread: those that the operator has named, or else the launcher's.
    #[must_use]
    pub fn for_offload(&self, named: Option<&[CoreId]>, available: &[CoreId]) -> Vec<CoreId> {
        named.map_or_else(|| self.for_launcher(available), <[CoreId]>::to_vec)
    }

    fn moves_frames(&self, core: CoreId) -> bool {
        core == self.gateway || self.mmas.contains(&core)
    }

    /// Returns the plan's cores, ascending, each with the names of its roles.
    #[must_use]
    pub fn by_core(&self) -> Vec<(CoreId, Vec<&'static str>)> {
        let mut cores = [&[self.gateway], &self.mmas[..], &self.workers].concat();
        cores.sort_unstable();
        cores.dedup();
        let roles = |core| {
            let has = [
                ("gateway", core == self.gateway),
                ("mma", self.mmas.contains(&core)),
                ("worker", self.workers.contains(&core)),
            ];
            has.into_iter().filter_map(|(role, here)| here.then_some(role)).collect()
        };
        cores.into_iter().map(|core| (core, roles(core))).collect()
    }
}

/// Returns the cores this process may run on, ascending.
///
/// # Errors
/// The operating system's error.
pub fn available_cores() -> std::io::Result<Vec<CoreId>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU as u16).filter(|&core| set.is_set(usize::from(core))).map(CoreId).collect())
}

/// Binds the calling thread to these cores.
///
/// The operating system's error.
/// The operating system's.
pub fn pin_here(cores: &[CoreId]) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    cores.iter().for_each(|core| set.set(usize::from(core.0)));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Binds the calling thread to these cores; logs a warning if the operating system refuses.
pub fn stay_on(cores: &[CoreId]) {
    if let Err(error) = pin_here(cores) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread");
        tracing::warn!("{name} may run on any core, and disturb the threads there: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(count: u16) -> Vec<CoreId> {
        (0..count).map(CoreId).collect()
    }

    fn plan(gateway: u16, mma: u16, workers: &[u16]) -> CorePlan {
        let workers = workers.iter().copied().map(CoreId).collect();
        CorePlan { gateway: CoreId(gateway), mmas: vec![CoreId(mma)], workers, signers: None, inference: None }
    }

    #[test]
    fn the_default_fits_the_machine() {
        let default = |count| CorePlan::new(&CoreWishes::default(), &cores(count)).unwrap();
        assert_eq!(default(1), plan(0, 0, &[0]));
        assert_eq!(default(2), plan(0, 0, &[1]));
        assert_eq!(default(3), plan(0, 1, &[2]));
        assert_eq!(default(4), plan(0, 1, &[2]));
        assert_eq!(default(8), plan(0, 1, &[2, 3, 4, 5, 6]));
    }

    #[test]
    fn the_launcher_keeps_off_the_cores_of_all_roles_if_it_can_or_else_of_gateway_and_mmas() {
        let of = |count| CorePlan::new(&CoreWishes::default(), &cores(count)).unwrap().for_launcher(&cores(count));
        let ids = |of: &[u16]| of.iter().copied().map(CoreId).collect::<Vec<_>>();
        assert_eq!([of(1), of(2), of(3), of(4)], [ids(&[0]), ids(&[1]), ids(&[2]), ids(&[3])]);
        assert_eq!(plan(1, 1, &[1]).for_launcher(&cores(2)), ids(&[0]));
        assert_eq!(plan(0, 1, &[1]).for_launcher(&cores(2)), ids(&[1]));
    }

    #[test]
    fn settings_override_the_default_and_are_checked() {
        let wish = |workers: &[u16]| CoreWishes {
            workers: Some(workers.iter().copied().map(CoreId).collect()),
            ..CoreWishes::default()
        };
        assert_eq!(CorePlan::new(&wish(&[0, 1]), &cores(2)), Ok(plan(0, 0, &[0, 1])));
        assert_eq!(CorePlan::new(&wish(&[]), &cores(2)), Err(PlanError::NoCore("workers")));
        assert_eq!(
            CorePlan::new(&wish(&[1, 1]), &cores(2)),
            Err(PlanError::Twice { role: "workers", core: CoreId(1) })
        );
        let error = CorePlan::new(&wish(&[7]), &cores(2)).unwrap_err().to_string();
        assert_eq!(error, "cores.workers = 7: this process may run on cores [0, 1] only");
    }

    #[test]
    fn offload_threads_are_where_the_operator_wants_them_or_else_with_the_launcher() {
        let signers = Some(vec![CoreId(1)]);
        let plan = CorePlan::new(&CoreWishes { signers, ..CoreWishes::default() }, &cores(2)).unwrap();
        assert_eq!(plan.for_offload(plan.signers.as_deref(), &cores(2)), [CoreId(1)]);
        assert_eq!(plan.for_offload(plan.inference.as_deref(), &cores(2)), plan.for_launcher(&cores(2)));
        let wish = |inference: &[CoreId]| {
            let inference = Some(inference.to_vec());
            CorePlan::new(&CoreWishes { inference, ..CoreWishes::default() }, &cores(2))
        };
        assert_eq!(wish(&[]), Err(PlanError::NoCore("inference")));
        assert_eq!(wish(&[CoreId(1); 2]), Err(PlanError::Twice { role: "inference", core: CoreId(1) }));
    }

    #[test]
    fn the_ticker_keeps_off_the_cores_of_all_roles_if_it_can_or_else_of_workers() {
        let of = |count| CorePlan::new(&CoreWishes::default(), &cores(count)).unwrap().for_ticker(&cores(count));
        let ids = |of: &[u16]| of.iter().copied().map(CoreId).collect::<Vec<_>>();
        assert_eq!([of(1), of(2), of(3), of(4)], [ids(&[0]), ids(&[0]), ids(&[0, 1]), ids(&[3])]);
        assert_eq!(plan(0, 0, &[0, 1]).for_ticker(&cores(2)), cores(2), "where else?");
    }

    #[test]
    fn control_threads_keep_off_the_cores_of_roles_if_there_are_others() {
        assert_eq!(plan(1, 1, &[1]).for_control(&cores(3)), [CoreId(0), CoreId(2)]);
        assert_eq!(plan(0, 1, &[1]).for_control(&cores(2)), cores(2), "where else?");
    }

    #[test]
    fn roles_of_a_shared_core_are_listed_together() {
        assert_eq!(plan(0, 0, &[1]).by_core(), [(CoreId(0), vec!["gateway", "mma"]), (CoreId(1), vec!["worker"])]);
    }
}
