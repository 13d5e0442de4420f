//! Places for FWPs: which of the node's indices are free, how often each was given out, and how full each worker and each
//! MMA is. All FWPs of a chain instance are with one worker and one MMA; their indices tell which MMA ([`FwpId::mma`]).

use std::collections::VecDeque;

use pinion_mma::id::{FwpId, MmaIndex};

/// A worker, by its order in the core plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerIndex(pub usize);

/// See the module.
pub struct Places {
    /// By MMA. First in, first out: an index rests as long as possible before it is given out again.
    free: Vec<VecDeque<u32>>,
    generations: Vec<u32>,
    per_worker_max: usize,
    taken: Vec<usize>,
    freed: u64,
}

impl Places {
    /// Places for `fwps_max` FWPs, evenly shared by `workers` workers and by `mmas` MMAs.
    #[must_use]
    pub fn new(fwps_max: usize, workers: usize, mmas: usize) -> Self {
        let of_mma = |mma: u32| (mma..fwps_max as u32).step_by(mmas).collect();
        Self {
            free: (0..mmas as u32).map(of_mma).collect(),
            generations: vec![0; fwps_max],
            per_worker_max: per_worker(fwps_max, workers),
            taken: vec![0; workers],
            freed: 0,
        }
    }

    /// Places in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.generations.len()
    }

    /// Takes places for a chain instance of `stages` FWPs on the least loaded worker and MMA; none if the node is full.
    pub fn take(&mut self, stages: usize) -> Option<(WorkerIndex, Vec<FwpId>)> {
        let (worker, &taken) = self.taken.iter().enumerate().min_by_key(|(_, taken)| **taken)?;
        let free = self.free.iter_mut().rev().max_by_key(|free| free.len())?;
        if taken + stages > self.per_worker_max || free.len() < stages {
            return None;
        }
        self.taken[worker] += stages;
        let id = |index: u32| FwpId { index, generation: self.generations[index as usize] };
        let ids = free.drain(..stages).map(id).collect();
        Some((WorkerIndex(worker), ids))
    }

    /// How often a place was given back.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Gives a place back.
    pub fn give_back(&mut self, worker: WorkerIndex, id: FwpId) {
        self.freed += 1;
        self.taken[worker.0] -= 1;
        self.generations[id.index as usize] = id.generation.wrapping_add(1);
        let MmaIndex(mma) = id.mma(self.free.len());
        self.free[mma].push_back(id.index);
    }
}

/// How many FWPs a worker must have room for.
#[must_use]
pub fn per_worker(fwps_max: usize, workers: usize) -> usize {
    fwps_max.div_ceil(workers.max(1))
}

/// How many stages a chain can have at most to find places while the node is empty.
#[must_use]
pub fn stages_max(fwps_max: usize, workers: usize, mmas: usize) -> usize {
    per_worker(fwps_max, workers).min(fwps_max.div_ceil(mmas.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_chain_that_is_possible_finds_places_and_none_longer_does() {
        for (fwps_max, workers, mmas) in [(4, 1, 2), (4, 2, 1), (7, 3, 2), (9, 2, 4), (16, 1, 1)] {
            let stages = stages_max(fwps_max, workers, mmas);
            let take = |stages| Places::new(fwps_max, workers, mmas).take(stages).is_some();
            assert!(take(stages) && !take(stages + 1), "{stages} of {fwps_max} FWPs, {workers} workers, {mmas} MMAs");
        }
    }

    #[test]
    fn instances_go_to_the_least_loaded_worker() {
        let mut places = Places::new(8, 2, 1);
        let workers: Vec<usize> = (0..4).map(|_| places.take(2).unwrap().0.0).collect();
        assert_eq!(workers, [0, 1, 0, 1]);
        assert!(places.take(1).is_none(), "a full node gave a place");
    }

    #[test]
    fn all_of_an_instance_is_with_one_mma_and_instances_are_spread_over_them() {
        let mut places = Places::new(12, 1, 2);
        let mmas: Vec<Vec<usize>> = std::iter::from_fn(|| places.take(3))
            .map(|(_, ids)| ids.into_iter().map(|id| id.mma(2).0).collect())
            .collect();
        assert_eq!(mmas, [[0; 3], [1; 3], [0; 3], [1; 3]]);
    }

    #[test]
    fn a_place_comes_back_with_another_generation() {
        let mut places = Places::new(1, 1, 1);
        let (worker, ids) = places.take(1).unwrap();
        assert_eq!(ids, [FwpId { index: 0, generation: 0 }]);
        places.give_back(worker, ids[0]);
        assert_eq!(places.take(1).unwrap().1, [FwpId { index: 0, generation: 1 }]);
    }
}
