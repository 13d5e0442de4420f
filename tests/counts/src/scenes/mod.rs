//! The scenes: each sets up parts of a node, and counts one step of a packet's way many times.

mod data_path;
mod frames;
mod gateway;
mod guests;
mod lifecycle;
mod movers;
mod net_in;
mod scheduler;
mod state;
mod whole;

use std::collections::BTreeMap;
use std::path::Path;

use crate::valgrind;

/// What is counted, and how often it is repeated.
pub(crate) struct Scene {
    /// The row's name, by which other programs know it.
    pub(crate) name: &'static str,
    /// The part of the node whose cost it is.
    pub(crate) part: &'static str,
    pub(crate) what: &'static str,
    repetitions: u64,
    /// How often the step is in one repetition.
    steps: u64,
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

/// The part of scenes of which only the guest's instructions count.
pub(crate) const GUEST: &str = "guest";

const SCENES: &[&[Scene]] = &[
    gateway::SCENES,
    data_path::SCENES,
    whole::SCENES,
    lifecycle::SCENES,
    scheduler::SCENES,
    state::SCENES,
    guests::SCENES,
];

/// All scenes, in the order in which a reader wants them.
pub(crate) fn all() -> impl Iterator<Item = &'static Scene> {
    SCENES.iter().copied().flatten()
}

/// Runs all scenes, one after another; each writes a dump.
pub(crate) fn run_all(templates: &Path) {
    for scene in all() {
        (scene.run)(templates, scene);
    }
}

/// How many steps each scene counts.
pub(crate) fn steps() -> BTreeMap<&'static str, u64> {
    all().map(|scene| (scene.name, scene.repetitions * scene.steps)).collect()
}
