//! An instance's beginning and end.

use std::path::Path;

use pinion_mma::wiring::{Edge, Wiring};

use super::Scene;
use crate::node::House;

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "prepare", part: "launcher", what: "preparing an instance", repetitions: 40, steps: 1, run: prepare },
    Scene {
        name: "dismantle",
        part: "launcher",
        what: "taking an instance apart",
        repetitions: 40,
        steps: 1,
        run: take_apart,
    },
    Scene {
        name: "prepare_dismantle",
        part: "launcher",
        what: "preparing an instance and taking it apart",
        repetitions: 40,
        steps: 1,
        run: both,
    },
];

fn wiring() -> Wiring {
    Wiring::to(Edge::EgressWhereItCame)
}

fn prepare(templates: &Path, scene: &Scene) {
    let house = std::cell::RefCell::new(House::new(templates, "packet_filter", 2));
    scene.repeat(
        |_| None,
        |prepared| *prepared = Some(house.borrow_mut().prepare(0, wiring())),
        |prepared| house.borrow_mut().take_apart(prepared.expect("just prepared")),
    );
}

fn take_apart(templates: &Path, scene: &Scene) {
    let house = std::cell::RefCell::new(House::new(templates, "packet_filter", 2));
    scene.repeat(
        |_| Some(house.borrow_mut().prepare(0, wiring())),
        |prepared| house.borrow_mut().take_apart(prepared.take().expect("just prepared")),
        |_| (),
    );
}

fn both(templates: &Path, scene: &Scene) {
    let mut house = House::new(templates, "packet_filter", 2);
    scene.repeat(
        |_| (),
        |()| {
            let prepared = house.prepare(0, wiring());
            house.take_apart(prepared);
        },
        |()| (),
    );
}
