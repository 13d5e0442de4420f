use crate::model::{
    Access, Branch, Case, Chain, Class, Field, Grant, Match, Module, ObjectRef, Outbound, Outcome, Output, Policy,
    PortRange, Protocol, Reverse, Rule, Scheduling, Stage, Target, Tenant, WhenFull,
};
use crate::node::{
    BuildPhase, BuildStatus, ChainDrop, ChainStatus, CoreStatus, FwpCounters, FwpState, FwpStatus, JobStatus,
    LatencyStatus, MeterStatus, NodeStatus, StateFieldStatus, TenantStatus,
};
use crate::proto;

fn full_rule() -> Rule {
    Rule {
        tenant: "demo".parse().unwrap(),
        name: "web".parse().unwrap(),
        priority: 7,
        matcher: Match {
            port: Some("lan".parse().unwrap()),
            vlan: Some("100".parse().unwrap()),
            inner_vlan: Some("20".parse().unwrap()),
            source: Some("10.0.0.0/8".parse().unwrap()),
            destination: Some("10.77.0.2/32".parse().unwrap()),
            protocol: Some("tcp".parse().unwrap()),
            icmp_type: Some(0),
            source_ports: Some("1024-65535".parse().unwrap()),
            destination_ports: Some("80".parse().unwrap()),
        },
        policy: Policy::PerFlow,
        chain: "echo".parse().unwrap(),
    }
}

#[test]
fn objects_come_through_messages_as_they_were() {
    let rule = full_rule();
    assert_eq!(Rule::try_from(proto::Rule::from(&rule)).unwrap(), rule);

    let stage = Stage::new("m".parse().unwrap(), vec![0, 255]);
    let mut chain = Chain::new("demo".parse().unwrap(), "echo".parse().unwrap(), vec![stage]);
    chain.egress = Some("wan".parse().unwrap());
    chain.cache_min = 1;
    chain.cache_max = 7;
    chain.memory_total_kib = Some(1 << 20);
    chain.hold_frames = 9;
    chain.idempotent = true;
    chain.routed = true;
    chain.outbound = vec![
        Outbound {
            protocol: Protocol::UDP,
            to: "10.0.0.0/8".parse().unwrap(),
            ports: Some(PortRange::new(53, 54).unwrap()),
        },
        Outbound { protocol: Protocol::TCP, to: "fd77::1".parse().unwrap(), ports: None },
    ];
    let port = |name: &str| name.parse().unwrap();
    chain.reverse = Some(Reverse { from: vec![port("wan"), port("dmz")], entry: None, egress: Some(port("lan")) });
    assert_eq!(Chain::try_from(proto::Chain::from(&chain)).unwrap(), chain);
    chain.reverse = Some(Reverse { from: vec![], entry: None, egress: None });
    assert_eq!(Chain::try_from(proto::Chain::from(&chain)).unwrap(), chain);
}

#[test]
fn tenants_come_through_messages_as_they_were() {
    let plain = Tenant::new("demo".parse().unwrap());
    let full = Tenant {
        weight: 1000,
        class_max: Class::System,
        memory_mib: Some(1),
        state_mib: Some(0),
        cpu_per_second_ms: Some(200),
        clock_step_us: Some(1),
        modules_max: Some(2),
        chains_max: Some(3),
        rules_max: Some(4),
        upload_mib: Some(5),
        ports: ["lan", "wan"].map(|port| port.parse().unwrap()).into(),
        addresses: ["10.0.0.0/8", "fd00::/64"].map(|prefix| prefix.parse().unwrap()).into(),
        outbound_flows: true,
        transparent_forwarding: true,
        keys_max: Some(6),
        models_max: Some(7),
        model_mib: Some(8),
        ..plain.clone()
    };
    for tenant in [&plain, &full] {
        assert_eq!(&Tenant::try_from(proto::Tenant::from(tenant)).unwrap(), tenant);
    }
    let absent = proto::Tenant { name: "demo".into(), ..proto::Tenant::default() };
    assert_eq!(Tenant::try_from(absent).unwrap(), plain);
    let mut message = proto::Tenant::from(&full);
    message.addresses[1] = "10.0.0.1/8".into();
    let error = Tenant::try_from(message).unwrap_err().to_string();
    assert!(error.starts_with("tenant.addresses[1]: 10.0.0.1/8 has bits set"), "{error}");

    let object = ObjectRef::from(&plain);
    let message = proto::ObjectRef::from(&object);
    assert_eq!(ObjectRef::try_from(message.clone()).unwrap(), object);
    assert_eq!(ObjectRef::try_from(proto::ObjectRef { tenant: String::new(), ..message.clone() }).unwrap(), object);
    assert!(ObjectRef::try_from(proto::ObjectRef { tenant: "other".into(), ..message }).is_err());
}

#[test]
fn outputs_and_names_of_stages_come_through_messages_as_they_were() {
    let mut stages: Vec<Stage> = (0..3).map(|_| Stage::new("m".parse().unwrap(), Vec::new())).collect();
    let targets =
        [Target::Stage(2), Target::Egress, Target::Port("wan".parse().unwrap()), Target::Stage(1), Target::Drop];
    stages[0].outputs = targets.map(Output::from).into();
    stages[2].name = Some("slow".parse().unwrap());
    let chain = Chain::new("demo".parse().unwrap(), "echo".parse().unwrap(), stages);
    assert_eq!(Chain::try_from(proto::Chain::from(&chain)).unwrap(), chain);
}

/// Returns a branch to each kind of target.
fn branch() -> Branch {
    let case = |number: u8, to| Case { matcher: Match { protocol: Some(Protocol(number)), ..Match::default() }, to };
    let targets = [Target::Stage(1), Target::Egress, Target::Port("wan".parse().unwrap()), Target::Drop];
    Branch { cases: (1..).zip(targets).map(|(number, to)| case(number, to)).collect(), default: Target::Stage(0) }
}

#[test]
fn branches_come_through_messages_as_they_were() {
    let mut stages: Vec<Stage> = (0..2).map(|_| Stage::new("m".parse().unwrap(), Vec::new())).collect();
    stages[0].outputs = vec![Output::Branch(branch())];
    let chain = Chain::new("demo".parse().unwrap(), "echo".parse().unwrap(), stages);
    let reverse = Reverse { from: vec!["wan".parse().unwrap()], entry: Some(branch()), egress: None };
    let chain = Chain { entry: Some(branch()), reverse: Some(reverse), ..chain };
    assert_eq!(Chain::try_from(proto::Chain::from(&chain)).unwrap(), chain);
}

#[test]
fn a_message_with_an_entrance_that_leads_out_or_that_drops_answers_is_read_and_refused_as_the_chain_of_a_manifest() {
    let refused = |change: fn(&mut proto::Chain)| {
        let stages = vec![Stage::new("m".parse().unwrap(), Vec::new())];
        let chain = Chain::new("demo".parse().unwrap(), "echo".parse().unwrap(), stages);
        let cases = vec![Case { matcher: Match::default(), to: Target::Stage(0) }];
        let chain = Chain { entry: Some(Branch { cases, default: Target::Drop }), ..chain };
        assert_eq!(chain.check(), Ok(()));
        let mut message = proto::Chain::from(&chain);
        change(&mut message);
        Chain::try_from(message).unwrap().check().unwrap_err().to_string()
    };
    let error = refused(|it| it.entry.as_mut().unwrap().default = Some((&Target::Egress).into()));
    assert!(error.starts_with("entry leads to egress: "), "{error}");
    let error = refused(|it| it.entry.as_mut().unwrap().cases[0].to = Some((&Target::Stage(7)).into()));
    assert_eq!(error, "entry leads to stage 8 of 1: name one that there is");
    let error = refused(|it| {
        it.outbound.push(proto::Outbound { protocol: 6, to: "192.0.2.0/24".into(), ports: None });
    });
    assert!(error.starts_with("outbound lets its functions open flows, and the default of entry is drop: "), "{error}");
}

#[test]
fn what_is_wrong_in_a_branch_of_a_message_is_named_with_its_place() {
    let refused = |change: fn(&mut proto::Branch)| {
        let mut entry = proto::Branch::from(&branch());
        change(&mut entry);
        let message =
            proto::Chain { tenant: "demo".into(), name: "echo".into(), entry: Some(entry), ..Default::default() };
        Chain::try_from(message).unwrap_err().to_string()
    };
    let targets = "say one of stage, egress, port, drop";
    assert_eq!(refused(|it| it.default = None), format!("chain.entry.default: {targets}"));
    assert_eq!(refused(|it| it.cases[2].to = None), format!("chain.entry.cases[2].to: {targets}"));
    let error = refused(|it| it.cases[1].r#match.as_mut().unwrap().protocol = Some(256));
    assert!(error.starts_with("chain.entry.cases[1].match.protocol: 256 is not a protocol number"), "{error}");
    let error = refused(|it| {
        it.default = Some(proto::BranchTarget { target: Some(proto::branch_target::Target::Port("WAN".into())) });
    });
    assert!(error.starts_with("chain.entry.default.port: \"WAN\" is not a port name"), "{error}");
}

#[test]
fn fields_of_state_and_grants_come_through_messages_as_they_were() {
    let field = |name: &str, ttl_seconds, when_full| {
        let name = name.parse().unwrap();
        Field { name, value_bytes: 64, entries: 10_000, ttl_seconds, when_full }
    };
    let mut stage = Stage::new("m".parse().unwrap(), Vec::new());
    stage.state = vec![
        Grant { field: "b".parse().unwrap(), access: Access::Read },
        Grant { field: "a".parse().unwrap(), access: Access::Write },
    ];
    let mut chain = Chain::new("demo".parse().unwrap(), "echo".parse().unwrap(), vec![stage]);
    chain.fields = vec![field("a", Some(5), WhenFull::Evict), field("b", None, WhenFull::Refuse)];
    let message = proto::Chain::from(&chain);
    assert_eq!(Chain::try_from(message.clone()).unwrap(), chain);
    let refused = |message: proto::Chain| Chain::try_from(message).unwrap_err().to_string();
    let mut bad = message.clone();
    bad.stages[0].state[1].access = 0;
    assert_eq!(refused(bad), "chain.stages[0].state.access: say one of read, write");
    let mut bad = message.clone();
    bad.fields[0].when_full = 99;
    assert!(refused(bad).starts_with("chain.fields.when_full: "));
    let mut bad = message;
    bad.fields[1].name = "A".into();
    assert!(refused(bad).starts_with("chain.fields.name: \"A\" is not a field name"));
}

#[test]
fn stages_of_a_message_without_outputs_follow_each_other() {
    let stage = || proto::Stage { module: "m".into(), ..proto::Stage::default() };
    let stages = vec![stage(), stage()];
    let message = proto::Chain { tenant: "demo".into(), name: "echo".into(), stages, ..proto::Chain::default() };
    let chain = Chain::try_from(message).unwrap();
    assert_eq!(
        (&chain.stages[0].outputs, &chain.stages[1].outputs),
        (&vec![Target::Stage(1).into()], &vec![Target::Egress.into()])
    );
}

#[test]
fn an_invalid_port_in_the_reverse_of_a_message_is_named() {
    let refused = |from: &[&str], egress: &str| {
        let from = from.iter().map(|&port| port.to_owned()).collect();
        let reverse = Some(proto::Reverse { from, egress: egress.into(), entry: None });
        let message = proto::Chain { tenant: "demo".into(), name: "echo".into(), reverse, ..proto::Chain::default() };
        Chain::try_from(message).unwrap_err().to_string()
    };
    let error = refused(&["wan", "WAN"], "lan");
    assert!(error.starts_with("chain.reverse.from[1]: \"WAN\" is not a port name"), "{error}");
    let error = refused(&["wan"], "LAN");
    assert!(error.starts_with("chain.reverse.egress: \"LAN\" is not a port name"), "{error}");
}

#[test]
fn bad_stages_are_named_with_their_place_and_field() {
    let refused = |stage: proto::Stage| {
        let stages = vec![proto::Stage { module: "m".into(), ..proto::Stage::default() }, stage];
        let message = proto::Chain { tenant: "demo".into(), name: "echo".into(), stages, ..proto::Chain::default() };
        Chain::try_from(message).unwrap_err().to_string()
    };
    let stage = || proto::Stage { module: "m".into(), ..proto::Stage::default() };
    let port = proto::Output { target: Some(proto::output::Target::Port("WAN".into())) };
    let error = refused(proto::Stage { outputs: vec![port], ..stage() });
    assert!(error.starts_with("chain.stages[1].outputs[0].port: \"WAN\" is not a port name"), "{error}");
    let error = refused(proto::Stage { outputs: vec![proto::Output::default()], ..stage() });
    assert_eq!(error, "chain.stages[1].outputs[0].target: say one of stage, egress, port, drop, branch");
    let error = refused(proto::Stage { name: Some("A".into()), ..stage() });
    assert!(error.starts_with("chain.stages[1].name: \"A\" is not a stage name"), "{error}");
    let error = refused(proto::Stage { module: "M".into(), ..stage() });
    assert!(error.starts_with("chain.stages[1].module: \"M\" is not a module name"), "{error}");
}

#[test]
fn the_resource_use_of_chains_and_tenants_comes_through_messages_as_it_was() {
    let jobs = |first| JobStatus {
        waiting: first,
        done: first + 1,
        dropped: first + 2,
        refused_rate: first + 3,
        refused_queue_full: first + 4,
        refused_memory: first + 5,
        spent_us: first + 6,
    };
    let run_queue_wait = LatencyStatus { count: 15, p50_ns: 16, p90_ns: 17, p99_ns: 18, max_ns: 19 };
    let meter = MeterStatus {
        cpu_us: 10,
        activations: 11,
        turns: 12,
        preemptions: 13,
        copied_bytes: 14,
        dropped: 20,
        run_queue_wait,
        signatures: jobs(40),
        inferences: jobs(50),
    };
    let chain = ChainStatus {
        meter,
        tenant: "demo".parse().unwrap(),
        chain: "echo".parse().unwrap(),
        ready: 1,
        active: 2,
        failures: 3,
        last_failure: None,
        drops: vec![ChainDrop { place: "0/m".into(), reason: "no-slot".into(), count: 4 }],
        memory_kib: 7,
        memory_limit_kib: Some(8),
    };
    let field = StateFieldStatus {
        name: "counters".parse().unwrap(),
        entries: 21,
        entries_max: 22,
        memory_kib: 23,
        hits: 24,
        misses: 25,
        writes: 26,
        denied: 27,
        full: 28,
        evicted: 29,
    };
    let tenants = vec![TenantStatus {
        tenant: "demo".parse().unwrap(),
        memory_kib: 9,
        memory_limit_kib: None,
        fwps: 31,
        fwps_guaranteed: 32,
        fwps_refused: 33,
        meter,
        state: vec![field],
        state_limit_kib: 30,
    }];
    let status = NodeStatus {
        chains: vec![chain],
        copied_bytes: 5,
        dropped_instance_ended: 6,
        log_lines_lost: 7,
        guest_lines_left_out: 8,
        worker_panics: 9,
        calls_redelivered: 10,
        cores: vec![CoreStatus { core: 3, roles: vec!["worker".into()], worker_panics: 9 }],
        tenants,
        ..NodeStatus::default()
    };
    assert_eq!(NodeStatus::try_from(proto::Status::new(0, status.clone())).unwrap(), status);
}

#[test]
fn builds_come_through_messages_as_they_were() {
    let build = |phase| BuildStatus { tenant: "demo".parse().unwrap(), module: "echo/0 m".into(), phase, age_ms: 12 };
    let builds = BuildPhase::ALL.into_iter().map(build).collect();
    let status = NodeStatus { builds, ..NodeStatus::default() };
    assert_eq!(NodeStatus::try_from(proto::Status::new(0, status.clone())).unwrap(), status);
    let mut message = proto::Status::new(0, status);
    message.builds[0].phase = 99;
    let error = NodeStatus::try_from(message).unwrap_err().to_string();
    assert_eq!(error, "build.phase: the node reports a phase that this version does not know");
}

#[test]
fn latencies_come_through_messages_as_they_were() {
    let latency = |count| LatencyStatus { count, p50_ns: 10, p90_ns: 20, p99_ns: 30, max_ns: 40 };
    let (activation, chain_activation, preparation) = (latency(1), latency(2), latency(3));
    let (run_queue_wait, preemption_lateness) = (latency(4), latency(5));
    let status = NodeStatus {
        activation,
        chain_activation,
        preparation,
        run_queue_wait,
        preemption_lateness,
        ..NodeStatus::default()
    };
    assert_eq!(NodeStatus::try_from(proto::Status::new(0, status.clone())).unwrap(), status);
}

#[test]
fn an_fwp_comes_through_messages_as_it_was() {
    for state in FwpState::ALL {
        let fwp = FwpStatus {
            id: "3.1".into(),
            tenant: "demo".parse().unwrap(),
            chain: "echo".parse().unwrap(),
            module: "m".parse().unwrap(),
            stage: 2,
            chain_instance: 9,
            client: Some("10.0.0.1".into()),
            state,
            worker_core: 1,
            memory_kib: 64,
            age_ms: 5,
            counters: FwpCounters {
                received: 1,
                dropped_instance_ended: 2,
                cpu_us: 3,
                activations: 4,
                ..FwpCounters::default()
            },
            run_queue_wait: LatencyStatus { count: 6, p50_ns: 1, p90_ns: 2, p99_ns: 3, max_ns: 4 },
        };
        assert_eq!(FwpStatus::try_from(proto::Fwp::from(fwp.clone())).unwrap(), fwp);
    }
}

#[test]
fn absent_limits_of_a_chain_take_their_defaults() {
    let message = proto::Chain { tenant: "demo".into(), name: "echo".into(), ..proto::Chain::default() };
    let chain = Chain::try_from(message).unwrap();
    assert_eq!((chain.memory_limit_kib, chain.idle_timeout_ms, chain.cache_min), (16384, 300_000, 4));
    assert_eq!((chain.hold_frames, chain.cache_max, chain.memory_total_kib), (0, 64, None));
    assert_eq!((chain.drain_timeout_ms, chain.scheduling), (30_000, Scheduling::default()));
    let message =
        proto::Chain { tenant: "demo".into(), name: "echo".into(), cache_min: Some(100), ..proto::Chain::default() };
    assert_eq!(Chain::try_from(message).unwrap().cache_max, 100);
}

#[test]
fn a_bad_field_is_named_with_its_value() {
    let mut message = proto::Rule::from(&full_rule());
    message.r#match.as_mut().unwrap().source = Some("10.0.0.1/8".into());
    let error = Rule::try_from(message).unwrap_err().to_string();
    assert!(error.starts_with("rule.match.source: 10.0.0.1/8 has bits set"), "{error}");

    let mut message = proto::Rule::from(&full_rule());
    message.r#match.as_mut().unwrap().protocol = Some(256);
    let error = Rule::try_from(message).unwrap_err().to_string();
    assert_eq!(error, "rule.match.protocol: 256 is not a protocol number: it must be from 0 to 255");

    let mut message = proto::Rule::from(&full_rule());
    message.r#match.as_mut().unwrap().inner_vlan = Some(0x1_0001);
    let error = Rule::try_from(message).unwrap_err().to_string();
    assert!(error.starts_with("rule.match.inner_vlan: \"65537\" is not a VLAN id"), "{error}");

    let mut message = proto::Rule::from(&full_rule());
    message.r#match.as_mut().unwrap().icmp_type = Some(256);
    let error = Rule::try_from(message).unwrap_err().to_string();
    assert_eq!(error, "rule.match.icmp_type: 256 is not an ICMP type: it must be from 0 to 255");

    let mut message = proto::Rule::from(&full_rule());
    message.policy = 99;
    let error = Rule::try_from(message).unwrap_err().to_string();
    assert_eq!(error, "rule.policy: say one of shared, per-client, per-flow");

    let message = proto::Module { tenant: "demo".into(), name: "M".into(), ..proto::Module::default() };
    let error = Module::try_from(message).unwrap_err().to_string();
    assert!(error.starts_with("module.name: \"M\" is not a module name"), "{error}");

    assert!(Outcome::try_from(proto::Outcome::default()).is_err());
}
