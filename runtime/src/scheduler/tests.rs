use pinion_control::model::OverBudget;

use super::*;

const QUANTUM_NS: u64 = 20_000;

fn id(index: u32) -> FwpId {
    FwpId { index, generation: 1 }
}

fn scheduler() -> Scheduler {
    Scheduler::new(16, 16, QUANTUM_NS)
}

/// Returns a scheduler in which these FWPs are runnable, in this order.
fn with_runnable(shares: &[CpuShare]) -> Scheduler {
    let mut scheduler = scheduler();
    for (share, index) in shares.iter().zip(0..) {
        scheduler.adopt(id(index), *share, 0);
        scheduler.wake(id(index), 0);
    }
    scheduler
}

fn share(tenant: u16, class: Class) -> CpuShare {
    CpuShare {
        tenant: TenantIndex(tenant),
        generation: TenantGeneration(0),
        weight: 1,
        class,
        budget: Budget::default(),
        tenant_rate: None,
    }
}

/// Returns which FWPs have the core in the next `count` turns of this length, when all want to continue.
fn turns(scheduler: &mut Scheduler, count: usize, cpu_ns: u64) -> Vec<u32> {
    let mut turn = || {
        let chosen = scheduler.choose().unwrap();
        assert_eq!(scheduler.charge(chosen.id, cpu_ns, 0, After::Preempted), None);
        chosen.id.index
    };
    (0..count).map(|_| turn()).collect()
}

#[test]
fn fwps_of_a_tenant_are_scheduled_round_robin() {
    let mut scheduler = with_runnable(&[share(0, Class::Throughput); 3]);
    assert_eq!(turns(&mut scheduler, 6, QUANTUM_NS), [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_tenant_with_more_fwps_gets_no_more_cpu_time() {
    let many = [0, 0, 0, 0, 0, 1].map(|tenant| share(tenant, Class::Throughput));
    let of_the_other = turns(&mut with_runnable(&many), 1000, QUANTUM_NS).iter().filter(|index| **index == 5).count();
    assert!((499..=501).contains(&of_the_other), "{of_the_other} of 1000 turns");
}

#[test]
fn short_turns_of_a_tenant_are_given_together_until_it_has_had_a_quantum() {
    let mut scheduler = with_runnable(&[0, 0, 1].map(|tenant| share(tenant, Class::Throughput)));
    assert_eq!(turns(&mut scheduler, 8, QUANTUM_NS / 4), [0, 1, 0, 1, 2, 2, 2, 2]);
}

#[test]
fn a_higher_class_comes_first_except_for_one_part_in_twenty() {
    let mut scheduler =
        with_runnable(&[share(0, Class::Throughput), share(1, Class::Latency), share(2, Class::System)]);
    let turns = turns(&mut scheduler, 2200, QUANTUM_NS);
    assert_eq!(turns[..20], [2; 20]);
    let of = |index| turns.iter().filter(|turn| **turn == index).count();
    // The lowest class gets a part of the time of the middle class, too.
    assert!((1993..=1997).contains(&of(2)) && (98..=101).contains(&of(1)) && (103..=106).contains(&of(0)), "{turns:?}");
}

#[test]
fn a_waiting_fwp_has_no_turn_until_woken_and_is_woken_once() {
    let mut scheduler = with_runnable(&[share(0, Class::Latency)]);
    scheduler.wake(id(0), 7);
    let chosen = scheduler.choose().unwrap();
    assert_eq!(chosen, Chosen { id: id(0), woken_ns: 0 });
    scheduler.wake(id(0), 8);
    scheduler.charge(id(0), 10, 0, After::Waits);
    assert_eq!((scheduler.choose(), scheduler.is_idle()), (None, true));
    scheduler.wake(id(0), 9);
    assert_eq!(scheduler.choose(), Some(Chosen { id: id(0), woken_ns: 9 }));
}

#[test]
fn an_fwp_that_has_ended_or_was_removed_or_is_unknown_is_never_chosen() {
    let mut scheduler = with_runnable(&[share(0, Class::Latency); 3]);
    let chosen = scheduler.choose().unwrap();
    scheduler.charge(chosen.id, 10, 0, After::Over);
    scheduler.forget(id(2));
    scheduler.wake(chosen.id, 0);
    scheduler.wake(id(2), 0);
    scheduler.wake(id(5), 0);
    scheduler.wake(FwpId { index: 1, generation: 2 }, 0);
    assert_eq!(scheduler.choose().map(|chosen| chosen.id), Some(id(1)));
    scheduler.charge(id(1), 10, 0, After::Waits);
    assert_eq!(scheduler.choose(), None);
}

#[test]
fn an_index_can_be_reused_although_its_last_fwp_was_runnable() {
    let mut scheduler = with_runnable(&[share(0, Class::Latency); 3]);
    scheduler.forget(id(1));
    let next = FwpId { index: 1, generation: 2 };
    scheduler.adopt(next, share(1, Class::Throughput), 0);
    scheduler.wake(next, 0);
    let mut order = Vec::new();
    while let Some(chosen) = scheduler.choose() {
        order.push(chosen.id);
        scheduler.charge(chosen.id, 10, 0, After::Waits);
    }
    assert_eq!(order, [id(0), id(2), next]);
}

#[test]
fn an_fwp_woken_after_a_wait_has_the_core_within_one_slice_of_each_busy_tenant() {
    let mut scheduler = with_runnable(&[0, 1, 2, 3, 4].map(|tenant| share(tenant, Class::Throughput)));
    turns(&mut scheduler, 500, QUANTUM_NS);
    scheduler.adopt(id(9), share(9, Class::Throughput), 0);
    scheduler.wake(id(9), 0);
    assert_eq!(turns(&mut scheduler, 1, QUANTUM_NS), [9]);
}

#[test]
fn upcoming_fwps_are_in_order_within_a_tenant() {
    let mut scheduler = with_runnable(&[0, 0, 0, 1].map(|tenant| share(tenant, Class::Throughput)));
    assert_eq!(turns(&mut scheduler, 1, 10), [0]);
    assert_eq!(scheduler.upcoming().collect::<Vec<_>>(), [1, 2, 0, 3]);
}

#[test]
fn a_throttled_fwp_has_no_turn_until_its_budget_refills_and_then_gets_its_input() {
    let rate = Rate { per_second_ns: 1_000_000, over_budget: OverBudget::Throttle };
    let mut limited = share(0, Class::Latency);
    limited.budget.rate = Some(rate);
    let mut scheduler = with_runnable(&[limited, share(1, Class::Latency)]);
    // The burst is 100 us; each us beyond it is a wait of 1 ms.
    assert_eq!(scheduler.choose().map(|chosen| chosen.id), Some(id(0)));
    assert_eq!(scheduler.charge(id(0), 101_000, 0, After::Waits), None);
    scheduler.wake(id(0), 5);
    assert_eq!(turns(&mut scheduler, 6, QUANTUM_NS), [1; 6]);
    assert_eq!(scheduler.held_until_ns(), Some(1_000_000));
    assert_eq!((scheduler.release(999_999), scheduler.release(1_000_000)), (0, 1));
    assert_eq!(scheduler.choose(), Some(Chosen { id: id(0), woken_ns: 5 }));
}

#[test]
fn a_throttled_tenant_has_no_turn_in_any_class() {
    let tenant_rate = Some(Rate { per_second_ns: 1_000_000, over_budget: OverBudget::Throttle });
    let [high, low] = [Class::Latency, Class::Throughput].map(|class| CpuShare { tenant_rate, ..share(0, class) });
    let mut scheduler = with_runnable(&[high, low, share(1, Class::Throughput)]);
    assert_eq!(scheduler.choose().map(|chosen| chosen.id), Some(id(0)));
    assert_eq!(scheduler.charge(id(0), 200_000, 0, After::Preempted), None);
    assert_eq!(turns(&mut scheduler, 2, QUANTUM_NS), [2, 2]);
    assert_eq!(scheduler.release(200_000_000), 1);
    let first = scheduler.choose().unwrap().id;
    assert_eq!(scheduler.charge(first, 10, 200_000_000, After::Waits), None);
    assert_eq!([Some(first), scheduler.choose().map(|chosen| chosen.id)], [0, 2].map(|index| Some(id(index))));
}

#[test]
fn an_fwp_removed_while_throttled_leaves_no_entry() {
    let mut limited = share(0, Class::Latency);
    limited.budget.rate = Some(Rate { per_second_ns: 1, over_budget: OverBudget::Throttle });
    let mut scheduler = with_runnable(&[limited]);
    assert!(scheduler.choose().is_some());
    assert_eq!(scheduler.charge(id(0), 1_000, 0, After::Preempted), None);
    scheduler.forget(id(0));
    assert_eq!((scheduler.held_until_ns(), scheduler.is_idle()), (None, true));
}

/// Returns a scheduler with one FWP that has this limit per batch, and one of another tenant that always wants the core.
fn with_batch_limit(limit_ns: u64) -> Scheduler {
    let mut limited = share(0, Class::Latency);
    limited.budget.per_batch_ns = Some(limit_ns);
    with_runnable(&[limited, share(1, Class::Latency)])
}

/// Runs the limited FWP's next turn, after whole quanta of FWPs that are chosen before it. Returns the result.
fn limited_turn(scheduler: &mut Scheduler, cpu_ns: u64, after: After) -> Option<Overrun> {
    loop {
        match scheduler.choose().map(|chosen| chosen.id) {
            Some(chosen) if chosen == id(0) => return scheduler.charge(chosen, cpu_ns, 0, after),
            Some(other) => assert_eq!(scheduler.charge(other, QUANTUM_NS, 0, After::Preempted), None),
            None => panic!("the limited FWP wants the core, and no FWP is chosen"),
        }
    }
}

#[test]
fn a_batch_that_exceeds_its_limit_is_ended_within_a_quantum() {
    for limit_ns in (10_000..2_000_000).step_by(7_919) {
        let mut scheduler = with_batch_limit(limit_ns);
        let mut had_ns = 0;
        let overrun = loop {
            assert!(had_ns <= limit_ns, "it goes on after {had_ns} ns of {limit_ns}");
            had_ns += QUANTUM_NS;
            if let Some(overrun) = limited_turn(&mut scheduler, QUANTUM_NS, After::Preempted) {
                break overrun;
            }
        };
        assert_eq!(overrun, Overrun::Batch { limit_ns });
        assert!((limit_ns + 1..=limit_ns + QUANTUM_NS).contains(&had_ns), "{had_ns} ns of {limit_ns}");
        assert_eq!(turns(&mut scheduler, 100, QUANTUM_NS), [1; 100]);
    }
}

#[test]
fn batches_up_to_their_limit_are_never_ended_however_they_are_interrupted() {
    let limit_ns = 5 * QUANTUM_NS / 2;
    let mut scheduler = with_batch_limit(limit_ns);
    for batch in 0..10_000 {
        let last_ns = limit_ns - 2 * QUANTUM_NS;
        let turns = [(QUANTUM_NS, After::Preempted), (QUANTUM_NS, After::Preempted)];
        // With input waiting, the next turn begins another batch.
        let done = if batch % 2 == 0 { After::Waits } else { After::HasInput };
        for (cpu_ns, after) in turns.into_iter().chain([(last_ns, done)]) {
            assert_eq!(limited_turn(&mut scheduler, cpu_ns, after), None, "batch {batch}");
        }
        scheduler.wake(id(0), 0);
    }
    // One nanosecond more exceeds the limit.
    assert_eq!(limited_turn(&mut scheduler, limit_ns + 1, After::Waits), Some(Overrun::Batch { limit_ns }));
}

/// Returns a scheduler in which two tenants always want the core and the first has used `debt_ns` too much. Its FWP was then removed, and
/// another one was added with this generation of the tenant.
fn after_debt(debt_ns: u64, generation: TenantGeneration) -> Scheduler {
    let mut scheduler = with_runnable(&[share(0, Class::Latency), share(1, Class::Latency)]);
    assert_eq!(turns(&mut scheduler, 1, debt_ns), [0]);
    scheduler.forget(id(0));
    scheduler.adopt(id(2), CpuShare { generation, ..share(0, Class::Latency) }, 0);
    scheduler.wake(id(2), 0);
    scheduler
}

#[test]
fn a_tenants_debt_survives_the_deletion_of_its_fwps() {
    let mut scheduler = after_debt(100 * QUANTUM_NS, TenantGeneration(0));
    let turns = turns(&mut scheduler, 110, QUANTUM_NS);
    let first = turns.iter().position(|index| *index == 2).unwrap();
    assert!((98..=101).contains(&first), "it has a turn after {first} of the other's");
}

#[test]
fn a_later_tenant_with_the_same_number_has_no_debt() {
    let mut scheduler = after_debt(100 * QUANTUM_NS, TenantGeneration(1));
    let turns = turns(&mut scheduler, 100, QUANTUM_NS);
    let of_the_new_one = turns.iter().filter(|index| **index == 2).count();
    assert!((49..=51).contains(&of_the_new_one), "{of_the_new_one} of 100 turns: {turns:?}");
}

#[test]
fn a_tenant_stays_throttled_without_fwps_and_a_later_tenant_with_its_number_is_not() {
    let tenant_rate = Some(Rate { per_second_ns: 1_000_000, over_budget: OverBudget::Throttle });
    let limited = CpuShare { tenant_rate, ..share(0, Class::Latency) };
    for (generation, chosen) in [(TenantGeneration(0), None), (TenantGeneration(1), Some(id(1)))] {
        let mut scheduler = with_runnable(&[limited]);
        assert!(scheduler.choose().is_some());
        assert_eq!(scheduler.charge(id(0), 200_000, 0, After::Preempted), None);
        scheduler.forget(id(0));
        let until_ns = scheduler.held_until_ns().expect("the tenant is throttled");
        scheduler.adopt(id(1), CpuShare { generation, ..limited }, 0);
        scheduler.wake(id(1), 0);
        assert_eq!(scheduler.choose().map(|chosen| chosen.id), chosen, "{generation:?}");
        assert_eq!(scheduler.held_until_ns(), chosen.is_none().then_some(until_ns));
        if chosen.is_some() {
            // It has not used any of its burst either.
            assert_eq!(scheduler.charge(id(1), 99_000, 0, After::Preempted), None);
            assert_eq!(scheduler.held_until_ns(), None);
        }
        assert_eq!(scheduler.release(until_ns), usize::from(chosen.is_none()));
        assert_eq!(scheduler.choose().map(|chosen| chosen.id), Some(id(1)));
    }
}

#[test]
fn a_reused_tenant_number_is_queued_once_although_its_last_fwps_were_runnable() {
    // The number changes hands while the tenant has its slice, or while it waits for one.
    for slices in 0..2 {
        let mut scheduler = with_runnable(&[0, 0, 1].map(|tenant| share(tenant, Class::Latency)));
        assert_eq!(turns(&mut scheduler, 1, if slices == 0 { 10 } else { QUANTUM_NS }), [0]);
        (0..2).for_each(|index| scheduler.forget(id(index)));
        scheduler.adopt(id(3), CpuShare { generation: TenantGeneration(1), ..share(0, Class::Latency) }, 0);
        let mut order = Vec::new();
        scheduler.wake(id(3), 0);
        while let Some(chosen) = scheduler.choose() {
            order.push(chosen.id.index);
            scheduler.charge(chosen.id, 10, 0, After::Waits);
        }
        order.sort_unstable();
        assert_eq!((order, scheduler.is_idle()), (vec![2, 3], true));
    }
}

#[test]
fn copying_counts_against_a_tenants_share_while_it_has_the_core_waits_or_rests() {
    let shares = [0, 1, 2].map(|tenant| share(tenant, Class::Throughput));
    let mut scheduler = with_runnable(&shares);
    // All three are queued.
    scheduler.charge_besides(id(0), shares[0], 4 * QUANTUM_NS, 0);
    assert_eq!(turns(&mut scheduler, 8, QUANTUM_NS), [1, 2, 1, 2, 1, 2, 1, 2]);
    let of_the_first = turns(&mut scheduler, 300, QUANTUM_NS).iter().filter(|index| **index == 0).count();
    assert!((99..=101).contains(&of_the_first), "{of_the_first} of 300 turns");
    // One has the core: its slice is over.
    let mut scheduler = with_runnable(&shares[..2]);
    let chosen = scheduler.choose().unwrap();
    scheduler.charge_besides(chosen.id, shares[0], QUANTUM_NS, 0);
    assert_eq!(scheduler.charge(chosen.id, QUANTUM_NS / 2, 0, After::Preempted), None);
    assert_eq!(turns(&mut scheduler, 2, QUANTUM_NS / 2), [1, 1]);
    // One rests.
    let mut scheduler = with_runnable(&shares[..2]);
    let chosen = scheduler.choose().unwrap();
    assert_eq!(scheduler.charge(chosen.id, 0, 0, After::Waits), None);
    scheduler.charge_besides(id(0), shares[0], 3 * QUANTUM_NS, 0);
    scheduler.wake(id(0), 0);
    assert_eq!(turns(&mut scheduler, 4, QUANTUM_NS), [1, 1, 1, 0]);
}

#[test]
fn copying_counts_against_the_budgets_of_a_tenant_and_of_an_fwp() {
    let rate = Rate { per_second_ns: 100_000_000, over_budget: OverBudget::Throttle };
    let of_tenant = CpuShare { tenant_rate: Some(rate), ..share(0, Class::Throughput) };
    let of_fwp =
        CpuShare { budget: Budget { per_batch_ns: Some(50_000), rate: Some(rate) }, ..share(1, Class::Throughput) };
    let mut scheduler = with_runnable(&[of_tenant, of_fwp]);
    // A burst is a tenth of a second's worth; copying is no part of a batch.
    scheduler.charge_besides(id(0), of_tenant, 11_000_000, 0);
    scheduler.charge_besides(id(1), of_fwp, 11_000_000, 0);
    assert_eq!(turns(&mut scheduler, 1, QUANTUM_NS), [1]);
    assert!(scheduler.is_idle());
    assert!(scheduler.held_until_ns() >= Some(10_000_000));
    assert_eq!(scheduler.release(200_000_000), 2);
    assert!(!scheduler.is_idle());
}

#[test]
fn copying_for_a_tenant_whose_number_was_passed_on_is_charged_to_none() {
    let gone = share(0, Class::Throughput);
    let next = CpuShare { generation: TenantGeneration(1), ..gone };
    let mut scheduler = with_runnable(&[next, share(1, Class::Throughput)]);
    scheduler.charge_besides(id(9), gone, 100 * QUANTUM_NS, 0);
    assert_eq!(turns(&mut scheduler, 4, QUANTUM_NS), [0, 1, 0, 1]);
}

fn granted(share: &CpuShare) -> TenantShare {
    TenantShare { tenant: share.tenant, generation: share.generation, weight: share.weight, rate: share.tenant_rate }
}

#[test]
fn another_weight_holds_at_once_for_all_fwps_of_a_tenant_that_are_runnable() {
    let shares = [0, 0, 1].map(|tenant| share(tenant, Class::Throughput));
    let mut scheduler = with_runnable(&shares);
    let of_the_other =
        |scheduler: &mut Scheduler| turns(scheduler, 1000, QUANTUM_NS).iter().filter(|index| **index == 2).count();
    assert!((499..=501).contains(&of_the_other(&mut scheduler)));
    scheduler.regrant(TenantShare { weight: 3, ..granted(&shares[2]) }, 0);
    let turns = of_the_other(&mut scheduler);
    assert!((748..=752).contains(&turns), "{turns} of 1000 turns");
    // What is meant for an earlier tenant with this number changes nothing.
    scheduler.regrant(TenantShare { weight: 9, generation: TenantGeneration(7), ..granted(&shares[2]) }, 0);
    let turns = of_the_other(&mut scheduler);
    assert!((748..=752).contains(&turns), "{turns} of 1000 turns");
}

#[test]
fn a_tenant_that_is_throttled_goes_on_at_once_with_no_rate_and_sooner_with_a_higher_one() {
    const MS: u64 = 1_000_000;
    let rate = |per_second_ms: u64| Rate { per_second_ns: per_second_ms * MS, over_budget: OverBudget::Throttle };
    let limited = CpuShare { tenant_rate: Some(rate(10)), ..share(0, Class::Throughput) };
    let throttled = || {
        let mut scheduler = with_runnable(&[limited]);
        // It owes eleven milliseconds.
        turns(&mut scheduler, 1, 11 * MS);
        assert!(scheduler.is_idle());
        assert_eq!(scheduler.held_until_ns(), Some(1_100 * MS));
        scheduler
    };
    let mut scheduler = throttled();
    scheduler.regrant(TenantShare { rate: Some(rate(100)), ..granted(&limited) }, 0);
    assert_eq!(scheduler.held_until_ns(), Some(110 * MS));
    scheduler.release(110 * MS);
    assert!(!scheduler.is_idle());
    let mut scheduler = throttled();
    scheduler.regrant(TenantShare { rate: None, ..granted(&limited) }, 0);
    assert_eq!((scheduler.is_idle(), scheduler.held_until_ns()), (false, None));
    turns(&mut scheduler, 100, 11 * MS);
    // A rate where there was none begins with a burst.
    scheduler.regrant(granted(&limited), 0);
    turns(&mut scheduler, 1, MS / 2);
    assert!(!scheduler.is_idle());
    turns(&mut scheduler, 1, MS);
    assert_eq!((scheduler.is_idle(), scheduler.held_until_ns()), (true, Some(50 * MS)));
}
