//! Places for FWPs: which of the node's indices are free, how often each was given out, and how full each worker and each
//! MMA is. All FWPs of a chain instance are with one worker and one MMA; their indices tell which MMA ([`FwpId::mma`]).
//!
//! FWPs do not migrate, so it is when one is placed that load is spread: over workers by what they have measured of it, over MMAs by
//! number.

use std::collections::VecDeque;
use std::time::Instant;

use pinion_mma::id::{FwpId, MmaIndex, WorkerIndex};

use super::loads::Loads;

/// Workers whose loads differ by less are equally loaded: then the number of their FWPs says who gets the next.
const ALIKE_PPM: u64 = 50_000;

/// See the module.
pub struct Places {
    /// By MMA. First in, first out: an index rests as long as possible before it is given out again.
    free: Vec<VecDeque<u32>>,
    generations: Vec<u32>,
    per_worker_max: usize,
    taken: Vec<usize>,
    loads: Loads,
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
            loads: Loads::new(workers, Instant::now()),
            freed: 0,
        }
    }

    /// Places in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.generations.len()
    }

    /// Looks how much workers have done lately, who have been busy for so long since they were started. To be called before places are
    /// taken, however often.
    pub fn look(&mut self, now: Instant, busy_ns: impl Fn(WorkerIndex) -> u64) {
        self.loads.look(now, busy_ns);
    }

    /// Takes places for a chain instance of `stages` FWPs on the least loaded worker and MMA; none if the node is full.
    pub fn take(&mut self, stages: usize) -> Option<(WorkerIndex, Vec<FwpId>)> {
        let worker = self.least_loaded(stages)?;
        let free = self.free.iter_mut().rev().max_by_key(|free| free.len()).filter(|free| free.len() >= stages)?;
        let id = |index: u32| FwpId { index, generation: self.generations[index as usize] };
        let ids = free.drain(..stages).map(id).collect();
        self.taken[worker.0] += stages;
        self.loads.placed(worker, stages);
        Some((worker, ids))
    }

    /// Of the workers that have room, the one with the least load; of several, the one with the fewest FWPs.
    fn least_loaded(&self, stages: usize) -> Option<WorkerIndex> {
        let has_room = |worker: &WorkerIndex| self.taken[worker.0] + stages <= self.per_worker_max;
        let with_room = || (0..self.taken.len()).map(WorkerIndex).filter(has_room);
        let least_ppm = with_room().map(|worker| self.loads.ppm(worker)).min()?;
        let alike = with_room().filter(|worker| self.loads.ppm(*worker) < least_ppm + ALIKE_PPM);
        alike.min_by_key(|worker| self.taken[worker.0])
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
        // What belongs to the place that was used last is the nearest.
        self.free[mma].push_front(id.index);
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_longest_chain_that_is_possible_finds_places_and_none_longer_does() {
        for (fwps_max, workers, mmas) in [(4, 1, 2), (4, 2, 1), (7, 3, 2), (9, 2, 4), (16, 1, 1)] {
            let stages = stages_max(fwps_max, workers, mmas);
            let take = |stages| Places::new(fwps_max, workers, mmas).take(stages).is_some();
            assert!(take(stages) && !take(stages + 1), "{stages} of {fwps_max} FWPs, {workers} workers, {mmas} MMAs");
        }
    }

    /// Two workers, and what they have measured.
    struct Two {
        places: Places,
        now: Instant,
        busy_ns: [u64; 2],
    }

    impl Two {
        fn new(fwps_max: usize) -> Self {
            Self { places: Places::new(fwps_max, 2, 1), now: Instant::now(), busy_ns: [0; 2] }
        }

        /// They use so many percent of their cores for longer than what was before counts.
        fn after_using(mut self, percent: [u64; 2]) -> Self {
            self.now += Duration::from_secs(1_000_000);
            self.busy_ns = std::array::from_fn(|worker| self.busy_ns[worker] + percent[worker] * 10_000_000_000_000);
            self.places.look(self.now, |worker| self.busy_ns[worker.0]);
            self
        }

        /// Where so many instances of so many stages go, one after the other, as long as there is room.
        fn take(&mut self, instances: usize, stages: usize) -> Vec<usize> {
            (0..instances).map_while(|_| self.places.take(stages)).map(|(worker, _)| worker.0).collect()
        }
    }

    #[test]
    fn instances_are_spread_evenly_over_workers_that_have_nothing_to_do_until_all_are_full() {
        let mut two = Two::new(8);
        assert_eq!(two.take(4, 2), [0, 1, 0, 1]);
        assert!(two.places.take(1).is_none(), "a full node gave a place");
        // What little idle workers do is no reason to prefer one.
        assert_eq!(Two::new(8).after_using([3, 0]).take(4, 1), [0, 1, 0, 1]);
    }

    #[test]
    fn instances_go_to_the_worker_that_is_less_busy_however_many_fwps_it_has() {
        let mut two = Two::new(64);
        assert_eq!(two.take(2, 1), [0, 1]);
        let mut two = two.after_using([100, 20]);
        assert_eq!(two.take(20, 1), [1; 20]);
        assert_eq!(two.after_using([50, 56]).take(2, 1), [0; 2]);
    }

    #[test]
    fn workers_that_are_equally_busy_get_instances_by_the_number_of_their_fwps() {
        let mut two = Two::new(64).after_using([60, 0]);
        assert_eq!(two.take(3, 1), [1; 3]);
        assert_eq!(two.after_using([60, 62]).take(6, 1), [0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn a_burst_does_not_all_go_where_there_was_a_little_less_to_do() {
        let taken = Two::new(1000).after_using([20, 30]).take(200, 1);
        let to_first = taken.iter().filter(|worker| **worker == 0).count();
        assert!((100..=150).contains(&to_first), "{to_first} of 200");
    }

    #[test]
    fn a_worker_that_is_full_gets_nothing_however_little_it_has_to_do() {
        assert_eq!(Two::new(8).after_using([100, 0]).take(5, 2), [1, 1, 0, 0]);
        assert_eq!(Two::new(8).after_using([100, 0]).take(3, 3), [1, 0]);
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
