//! An instance's beginning and end.

use std::path::Path;

use pinion_mma::wiring::{Edge, Wiring};

use super::Scene;
use crate::node::House;

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "instance: preparing one", repetitions: 40, run: prepare },
    Scene { name: "instance: taking one apart", repetitions: 40, run: take_apart },
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
