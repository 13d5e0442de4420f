//! The scheduler's choice: who comes next, and what that FWP did.

use pinion_mma::id::{FwpId, TENANTS_MAX, TenantIndex};
use pinion_runtime::scheduler::{After, CpuShare, Scheduler};
use pinion_runtime::tenants::scheduling_params::SchedulingParams;

use super::Scene;

const QUANTUM_NS: u64 = 20_000;
const TURN_NS: u64 = 1_000;

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "choose_2",
        part: "scheduler",
        what: "a choice among 2 runnable FWPs",
        repetitions: 2_000,
        steps: 1,
        run: |_, scene| choose(scene, 2),
    },
    Scene {
        name: "choose_2000",
        part: "scheduler",
        what: "a choice among 2,000 runnable FWPs",
        repetitions: 4_000,
        steps: 1,
        run: |_, scene| choose(scene, 2_000),
    },
];

/// FWPs of as many tenants that always have something to do.
fn choose(scene: &Scene, fwps: u32) {
    let mut scheduler = Scheduler::new(fwps as usize, TENANTS_MAX, QUANTUM_NS);
    let mut now_ns = 0;
    for index in 0..fwps {
        let id = FwpId { index, generation: 0 };
        let share = CpuShare { tenant: TenantIndex(index as u16), ..SchedulingParams::default().share };
        scheduler.adopt(id, share, now_ns);
        scheduler.wake(id, now_ns);
    }
    let mut chosen = 0_u64;
    scene.repeat(
        |_| {
            now_ns += TURN_NS;
            now_ns
        },
        |now_ns| {
            let next = scheduler.choose().expect("all are runnable");
            chosen += u64::from(next.id.index);
            scheduler.charge(next.id, TURN_NS, *now_ns, After::HasInput);
        },
        |_| (),
    );
    assert!(chosen > 0, "not always the first");
}
