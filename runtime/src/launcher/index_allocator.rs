//! Allocates FWP indices: which are free, each index's generation, and how full each worker and each MMA is. All FWPs of a chain instance
//! are on one worker and one MMA; an FWP's index determines its MMA ([`FwpId::mma`]).
//!
//! FWPs do not migrate, so load is balanced only when they are placed: over workers by measured load, over MMAs by number of FWPs.

use std::collections::VecDeque;
use std::time::Instant;

use pinion_mma::id::{FwpId, MmaIndex, WorkerIndex};

use super::loads::Loads;

/// Loads that differ by less count as equal. Among equally loaded workers the one with the fewest FWPs gets the next.
const ALIKE_PPM: u64 = 50_000;

/// The allocator of FWP indices; see the module.
pub struct IndexAllocator {
    /// Free indices, by MMA. The one that was used last is first.
    free: Vec<VecDeque<u32>>,
    generations: Vec<u32>,
    per_worker_max: usize,
    taken: Vec<usize>,
    loads: Loads,
}

impl IndexAllocator {
    /// Creates an allocator of `fwps_max` indices, spread evenly over `workers` workers and over `mmas` MMAs.
    #[must_use]
    pub fn new(fwps_max: usize, workers: usize, mmas: usize) -> Self {
        let of_mma = |mma: u32| (mma..fwps_max as u32).step_by(mmas).collect();
        Self {
            free: (0..mmas as u32).map(of_mma).collect(),
            generations: vec![0; fwps_max],
            per_worker_max: per_worker(fwps_max, workers),
            taken: vec![0; workers],
            loads: Loads::new(workers, Instant::now()),
        }
    }

    /// Returns the number of indices, free and taken.
    #[must_use]
    pub fn count(&self) -> usize {
        self.generations.len()
    }

    /// Samples the workers' loads; `busy_ns` returns how long a worker has been busy since its start. To be called before each
    /// [`IndexAllocator::take`].
    pub fn look(&mut self, now: Instant, busy_ns: impl Fn(WorkerIndex) -> u64) {
        self.loads.look(now, busy_ns);
    }

    /// Returns whether there are indices for a chain instance of `stages` FWPs.
    #[must_use]
    pub fn has_room(&self, stages: usize) -> bool {
        self.taken.iter().any(|taken| taken + stages <= self.per_worker_max)
            && self.free.iter().any(|free| free.len() >= stages)
    }

    /// Takes indices for a chain instance of `stages` FWPs on the least loaded worker and MMA; none if the node is full.
    pub fn take(&mut self, stages: usize) -> Option<(WorkerIndex, Vec<FwpId>)> {
        let worker = self.least_loaded(stages)?;
        let free = self.free.iter_mut().rev().max_by_key(|free| free.len()).filter(|free| free.len() >= stages)?;
        let id = |index: u32| FwpId { index, generation: self.generations[index as usize] };
        let ids = free.drain(..stages).map(id).collect();
        self.taken[worker.0] += stages;
        self.loads.placed(worker, stages);
        Some((worker, ids))
    }

    /// Returns the least loaded worker that has room. Among equally loaded ones it is the one with the fewest FWPs.
    fn least_loaded(&self, stages: usize) -> Option<WorkerIndex> {
        let has_room = |worker: &WorkerIndex| self.taken[worker.0] + stages <= self.per_worker_max;
        let with_room = || (0..self.taken.len()).map(WorkerIndex).filter(has_room);
        let least_ppm = with_room().map(|worker| self.loads.ppm(worker)).min()?;
        let alike = with_room().filter(|worker| self.loads.ppm(*worker) < least_ppm + ALIKE_PPM);
        alike.min_by_key(|worker| self.taken[worker.0])
    }

    /// Gives an index back.
    pub fn give_back(&mut self, worker: WorkerIndex, id: FwpId) {
        self.taken[worker.0] -= 1;
        self.generations[id.index as usize] = id.generation.wrapping_add(1);
        let MmaIndex(mma) = id.mma(self.free.len());
        // The index that was used last is reused first: its data is most likely still in a cache.
        self.free[mma].push_front(id.index);
    }
}

/// Returns how many FWPs a worker must have room for.
#[must_use]
pub fn per_worker(fwps_max: usize, workers: usize) -> usize {
    fwps_max.div_ceil(workers.max(1))
}

/// Returns the most stages that a chain can have to fit on an empty node.
#[must_use]
pub fn stages_max(fwps_max: usize, workers: usize, mmas: usize) -> usize {
    per_worker(fwps_max, workers).min(fwps_max.div_ceil(mmas.max(1)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_longest_possible_chain_fits_and_no_longer_one_does() {
        for (fwps_max, workers, mmas) in [(4, 1, 2), (4, 2, 1), (7, 3, 2), (9, 2, 4), (16, 1, 1)] {
            let stages = stages_max(fwps_max, workers, mmas);
            let take = |stages| IndexAllocator::new(fwps_max, workers, mmas).take(stages).is_some();
            assert!(take(stages) && !take(stages + 1), "{stages} of {fwps_max} FWPs, {workers} workers, {mmas} MMAs");
        }
    }

    /// Two workers, and what they have measured.
    struct Two {
        places: IndexAllocator,
        now: Instant,
        busy_ns: [u64; 2],
    }

    impl Two {
        fn new(fwps_max: usize) -> Self {
            Self { places: IndexAllocator::new(fwps_max, 2, 1), now: Instant::now(), busy_ns: [0; 2] }
        }

        /// The workers use `percent` of their cores, for so long that earlier load no longer counts.
        fn after_using(mut self, percent: [u64; 2]) -> Self {
            self.now += Duration::from_secs(1_000_000);
            self.busy_ns = std::array::from_fn(|worker| self.busy_ns[worker] + percent[worker] * 10_000_000_000_000);
            self.places.look(self.now, |worker| self.busy_ns[worker.0]);
            self
        }

        /// Returns the workers that get `instances` instances of `stages` stages, one after the other, as long as there is room.
        fn take(&mut self, instances: usize, stages: usize) -> Vec<usize> {
            (0..instances).map_while(|_| self.places.take(stages)).map(|(worker, _)| worker.0).collect()
        }
    }

    #[test]
    fn instances_are_spread_evenly_over_idle_workers_until_all_are_full() {
        let mut two = Two::new(8);
        assert_eq!(two.take(4, 2), [0, 1, 0, 1]);
        assert!(two.places.take(1).is_none(), "a full node gave a place");
        // A small difference in load does not count.
        assert_eq!(Two::new(8).after_using([3, 0]).take(4, 1), [0, 1, 0, 1]);
    }

    #[test]
    fn instances_go_to_the_less_busy_worker_however_many_fwps_it_has() {
        let mut two = Two::new(64);
        assert_eq!(two.take(2, 1), [0, 1]);
        let mut two = two.after_using([100, 20]);
        assert_eq!(two.take(20, 1), [1; 20]);
        assert_eq!(two.after_using([50, 56]).take(2, 1), [0; 2]);
    }

    #[test]
    fn equally_busy_workers_get_instances_by_the_number_of_their_fwps() {
        let mut two = Two::new(64).after_using([60, 0]);
        assert_eq!(two.take(3, 1), [1; 3]);
        assert_eq!(two.after_using([60, 62]).take(6, 1), [0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn a_burst_is_not_placed_entirely_on_a_slightly_less_busy_worker() {
        let taken = Two::new(1000).after_using([20, 30]).take(200, 1);
        let to_first = taken.iter().filter(|worker| **worker == 0).count();
        assert!((100..=150).contains(&to_first), "{to_first} of 200");
    }

    #[test]
    fn a_full_worker_gets_no_instance_however_idle_it_is() {
        assert_eq!(Two::new(8).after_using([100, 0]).take(5, 2), [1, 1, 0, 0]);
        assert_eq!(Two::new(8).after_using([100, 0]).take(3, 3), [1, 0]);
    }

    #[test]
    fn an_instance_is_on_one_mma_and_instances_are_spread_over_mmas() {
        let mut places = IndexAllocator::new(12, 1, 2);
        let mmas: Vec<Vec<usize>> = std::iter::from_fn(|| places.take(3))
            .map(|(_, ids)| ids.into_iter().map(|id| id.mma(2).0).collect())
            .collect();
        assert_eq!(mmas, [[0; 3], [1; 3], [0; 3], [1; 3]]);
    }

    #[test]
    fn a_reused_index_has_another_generation() {
        let mut places = IndexAllocator::new(1, 1, 1);
        let (worker, ids) = places.take(1).unwrap();
        assert_eq!(ids, [FwpId { index: 0, generation: 0 }]);
        places.give_back(worker, ids[0]);
        assert_eq!(places.take(1).unwrap().1, [FwpId { index: 0, generation: 1 }]);
    }
}
