//! The scenes: each sets up parts of a node, and counts one step of a packet's way many times.

mod data_path;
mod gateway;
mod lifecycle;
mod scheduler;
mod state;

use std::collections::BTreeMap;
use std::path::Path;

use crate::valgrind;

/// What is counted, and how often it is repeated.
struct Scene {
    name: &'static str,
    repetitions: u64,
    run: fn(&Path, &Scene),
}

impl Scene {
    /// Repeats something that is counted as a whole; `before` and `after` each repetition are not.
    fn repeat<T>(&self, mut before: impl FnMut(u64) -> T, mut work: impl FnMut(&mut T), mut after: impl FnMut(T)) {
        // The first ones fill caches, and find pages that were never touched.
        let warm_up = self.repetitions / 10 + 1;
        valgrind::start();
        for number in 0..warm_up + self.repetitions {
            if number == warm_up {
                valgrind::forget();
            }
            let mut thing = before(number);
            valgrind::counted(|| work(&mut thing));
            after(thing);
        }
        valgrind::write_down(self.name);
    }
}

const SCENES: &[&[Scene]] = &[gateway::SCENES, data_path::SCENES, lifecycle::SCENES, scheduler::SCENES, state::SCENES];

/// Runs all scenes, one after another; each writes a dump.
pub(crate) fn run_all(templates: &Path) {
    for scene in SCENES.iter().copied().flatten() {
        (scene.run)(templates, scene);
    }
}

/// How often each scene repeats what it counts.
pub(crate) fn repetitions() -> BTreeMap<&'static str, u64> {
    SCENES.iter().copied().flatten().map(|scene| (scene.name, scene.repetitions)).collect()
}
