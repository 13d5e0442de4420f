//! Places for FWPs: which of the node's indices are free, how often each was given out, and how full each worker is.

use std::collections::VecDeque;

use pinion_mma::id::FwpId;

/// A worker, by its order in the core plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerIndex(pub usize);

/// See the module.
pub struct Places {
    /// First in, first out: an index rests as long as possible before it is given out again.
    free: VecDeque<u32>,
    generations: Vec<u32>,
    per_worker_max: usize,
    taken: Vec<usize>,
}

impl Places {
    /// Places for `fwps_max` FWPs, evenly shared by `workers` workers.
    #[must_use]
    pub fn new(fwps_max: usize, workers: usize) -> Self {
        Self {
            free: (0..fwps_max as u32).collect(),
            generations: vec![0; fwps_max],
            per_worker_max: per_worker(fwps_max, workers),
            taken: vec![0; workers],
        }
    }

    /// Takes places for a chain instance of `stages` FWPs on the least loaded worker; none if the node is full.
    pub fn take(&mut self, stages: usize) -> Option<(WorkerIndex, Vec<FwpId>)> {
        let (worker, &taken) = self.taken.iter().enumerate().min_by_key(|(_, taken)| **taken)?;
        if taken + stages > self.per_worker_max || self.free.len() < stages {
            return None;
        }
        self.taken[worker] += stages;
        let id = |index: u32| FwpId { index, generation: self.generations[index as usize] };
        let ids = self.free.drain(..stages).map(id).collect();
        Some((WorkerIndex(worker), ids))
    }

    /// Gives a place back.
    pub fn give_back(&mut self, worker: WorkerIndex, id: FwpId) {
        self.taken[worker.0] -= 1;
        self.generations[id.index as usize] = id.generation.wrapping_add(1);
        self.free.push_back(id.index);
    }
}

/// How many FWPs a worker must have room for.
#[must_use]
pub fn per_worker(fwps_max: usize, workers: usize) -> usize {
    fwps_max.div_ceil(workers.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_go_to_the_least_loaded_worker() {
        let mut places = Places::new(8, 2);
        let workers: Vec<usize> = (0..4).map(|_| places.take(2).unwrap().0.0).collect();
        assert_eq!(workers, [0, 1, 0, 1]);
        assert!(places.take(1).is_none(), "a full node gave a place");
    }

    #[test]
    fn a_place_comes_back_with_another_generation() {
        let mut places = Places::new(1, 1);
        let (worker, ids) = places.take(1).unwrap();
        assert_eq!(ids, [FwpId { index: 0, generation: 0 }]);
        places.give_back(worker, ids[0]);
        assert_eq!(places.take(1).unwrap().1, [FwpId { index: 0, generation: 1 }]);
    }
}
