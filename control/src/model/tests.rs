mod graph;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn tenant(name: &str) -> TenantName {
    TenantName::new(name).unwrap()
}

fn module_of(tenant_name: &str, name: &str) -> Module {
    Module {
        tenant: tenant(tenant_name),
        name: ModuleName::new(name).unwrap(),
        digest: Digest::of(name.as_bytes()),
        size_bytes: 8,
    }
}

fn chain_of(tenant_name: &str, name: &str, modules: &[&str]) -> Chain {
    let stage = |module: &&str| Stage::new(ModuleName::new(*module).unwrap(), Vec::new());
    Chain::new(tenant(tenant_name), ChainName::new(name).unwrap(), modules.iter().map(stage).collect())
}

fn rule_of(tenant_name: &str, name: &str, chain: &str, destination: &str) -> Rule {
    Rule {
        tenant: tenant(tenant_name),
        name: RuleName::new(name).unwrap(),
        priority: 0,
        matcher: Match { destination: Some(destination.parse().unwrap()), ..Match::default() },
        policy: Policy::PerClient,
        chain: ChainName::new(chain).unwrap(),
    }
}

fn key_of(tenant: &str, name: &str) -> Key {
    let (tenant, name) = (tenant.parse().unwrap(), name.parse().unwrap());
    Key { tenant, name, digest: Digest::of(b"a public key"), algorithm: "ecdsa-p256".to_owned() }
}

fn model_of(tenant: &str, name: &str) -> Model {
    let (tenant, name) = (tenant.parse().unwrap(), name.parse().unwrap());
    Model { tenant, name, digest: Digest::of(b"a model"), size_bytes: 7 }
}

/// Returns a change of module `m`, key `k` and model `n`, and a chain `c` whose stage is granted both, all of tenant `t`.
fn granted() -> Change {
    let mut chain = chain_of("t", "c", &["m"]);
    chain.stages[0].keys = vec!["k".parse().unwrap()];
    chain.stages[0].models = vec!["n".parse().unwrap()];
    Change {
        modules: vec![module_of("t", "m")],
        keys: vec![key_of("t", "k")],
        models: vec![model_of("t", "n")],
        chains: vec![chain],
        ..Change::default()
    }
}

/// Returns module `m`, chain `c` of it, and rule `r` to the chain, all of tenant `t`.
fn small() -> Change {
    Change {
        modules: vec![module_of("t", "m")],
        chains: vec![chain_of("t", "c", &["m"])],
        rules: vec![rule_of("t", "r", "c", "10.0.0.1")],
        ..Change::default()
    }
}

fn deleting(objects: &[ObjectRef]) -> Change {
    Change { delete: objects.to_vec(), ..Change::default() }
}

fn effects(applied: &Applied) -> Vec<String> {
    applied.outcomes.iter().map(|outcome| format!("{} {}", outcome.object, outcome.effect)).collect()
}

fn refusal(state: &DesiredState, change: &Change) -> String {
    state.apply(change).unwrap_err().to_string()
}

#[test]
fn applying_a_change_twice_says_created_and_then_unchanged() {
    let first = DesiredState::default().apply(&small()).unwrap();
    assert_eq!(effects(&first), ["module t/m created", "chain t/c created", "rule t/r created"]);
    assert_eq!(first.state.version(), 1);
    let second = first.state.apply(&small()).unwrap();
    assert_eq!(effects(&second), ["module t/m unchanged", "chain t/c unchanged", "rule t/r unchanged"]);
    assert!(!second.changed());
    assert_eq!(second.state, first.state);
}

#[test]
fn a_different_object_under_the_same_name_says_configured() {
    let state = DesiredState::default().apply(&small()).unwrap().state;
    let mut change = small();
    change.chains[0].cache_min = 9;
    let applied = state.apply(&change).unwrap();
    assert_eq!(effects(&applied), ["module t/m unchanged", "chain t/c configured", "rule t/r unchanged"]);
    assert_eq!(applied.state.version(), 2);
}

#[test]
fn a_chain_that_names_an_unknown_module_is_refused_even_if_another_tenant_has_one() {
    let change = Change {
        modules: vec![module_of("other", "m")],
        chains: vec![chain_of("t", "c", &["m"])],
        ..Change::default()
    };
    let message = refusal(&DesiredState::default(), &change);
    assert!(message.starts_with("chain t/c: stage 1 names the module m, which its tenant does not have"), "{message}");
}

#[test]
fn a_stage_is_granted_only_keys_and_models_that_its_own_tenant_has() {
    let outcomes = DesiredState::default().apply(&granted()).unwrap();
    let created = ["module t/m created", "key t/k created", "model t/n created", "chain t/c created"];
    assert_eq!(effects(&outcomes), created);
    for (change, object) in [
        (Change { keys: vec![key_of("other", "k")], ..granted() }, "key t/k"),
        (Change { models: vec![model_of("other", "n")], ..granted() }, "model t/n"),
    ] {
        let expected =
            format!("chain t/c: stage 1 names {object}, which does not exist: apply it first or with the chain");
        assert_eq!(refusal(&DesiredState::default(), &change), expected, "though another tenant has one");
    }
}

#[test]
fn keys_and_models_that_a_stage_is_granted_are_not_deleted_without_the_chain() {
    let state = DesiredState::default().apply(&granted()).unwrap().state;
    let [key, model] = [ObjectRef::from(&key_of("t", "k")), ObjectRef::from(&model_of("t", "n"))];
    for object in [&key, &model] {
        let expected = format!("{object} is in use by chain t/c: delete or change that first, or both together");
        assert_eq!(refusal(&state, &deleting(std::slice::from_ref(object))), expected);
    }
    let all = [key.clone(), model, ObjectRef::from(&granted().chains[0])];
    let state = state.apply(&deleting(&all)).unwrap().state;
    assert_eq!((state.keys().len(), state.models().len()), (0, 0));
    assert_eq!(refusal(&state, &deleting(&[key])), "there is no key t/k");
}

#[test]
fn a_stage_is_granted_a_key_once_and_no_more_than_sixteen() {
    let names = |count: usize| (0..count).map(|number| format!("k{number}").parse().unwrap()).collect::<Vec<_>>();
    let with = |keys: Vec<KeyName>| {
        let mut change = granted();
        change.keys = names(17).iter().map(|name: &KeyName| key_of("t", name.as_str())).collect();
        change.chains[0].stages[0].keys = keys;
        DesiredState::default().apply(&change).map(|_| ()).map_err(|invalid| invalid.to_string())
    };
    assert_eq!(with(names(16)), Ok(()));
    assert_eq!(with(names(17)).unwrap_err(), "chain t/c: stage 1 is granted 17 keys: at most 16 are allowed");
    let twice = with([names(2), names(1)].concat()).unwrap_err();
    assert_eq!(twice, "chain t/c: stage 1 is granted k0 twice (keys): leave one of the two out");
}

#[test]
fn another_key_or_model_of_the_same_name_touches_the_chains_that_use_it() {
    let before = DesiredState::default().apply(&granted()).unwrap().state;
    let of = |change: &Change| {
        let applied = before.apply(change).unwrap();
        let objects = applied.outcomes.iter().map(|outcome| &outcome.object).collect();
        let chain = &applied.state.chains()[&(tenant("t"), "c".parse().unwrap())];
        let is_same = applied.state.ingredients(chain) == before.ingredients(chain);
        (applied.state.touched(&before, &objects).len(), is_same)
    };
    let key = Key { digest: Digest::of(b"another public key"), ..key_of("t", "k") };
    let model = Model { digest: Digest::of(b"another model"), ..model_of("t", "n") };
    assert_eq!(of(&Change { keys: vec![key], ..Change::default() }), (1, false));
    assert_eq!(of(&Change { models: vec![model], ..Change::default() }), (1, false));
    let again = Change { keys: vec![key_of("t", "k")], ..Change::default() };
    assert_eq!(of(&again), (1, true), "one that is applied again may mend the chain");
    let other = Change { keys: vec![key_of("t", "other")], ..Change::default() };
    assert_eq!(of(&other), (0, true));
}

#[test]
fn a_rule_that_names_an_unknown_chain_is_refused() {
    let change = Change { rules: vec![rule_of("t", "r", "nope", "10.0.0.1")], ..Change::default() };
    let message = refusal(&DesiredState::default(), &change);
    assert!(message.starts_with("rule t/r names chain t/nope, which does not exist"), "{message}");
}

#[test]
fn two_identical_rules_of_a_tenant_are_refused_by_both_names() {
    let mut change = small();
    change.rules.push(rule_of("t", "s", "c", "10.0.0.1/32"));
    let message = refusal(&DesiredState::default(), &change);
    assert!(message.starts_with("rule t/r and rule t/s are alike: both match destination 10.0.0.1/32"), "{message}");
    change.rules[1].priority = 1;
    assert!(DesiredState::default().apply(&change).is_ok());
}

#[test]
fn of_identical_rules_of_two_tenants_that_of_the_first_name_shadows_the_other() {
    let mut change = small();
    change.modules.push(module_of("a", "m"));
    change.chains.push(chain_of("a", "c", &["m"]));
    change.rules.push(rule_of("a", "s", "c", "10.0.0.1/32"));
    let state = DesiredState::default().apply(&change).unwrap().state;
    let shadowed: Vec<_> =
        state.shadowed_rules().into_iter().map(|(first, rule)| (first.tenant.as_str(), rule.tenant.as_str())).collect();
    assert_eq!(shadowed, [("a", "t")]);
    change.rules[1].priority = 1;
    assert_eq!(DesiredState::default().apply(&change).unwrap().state.shadowed_rules(), []);
}

#[test]
fn deleting_something_in_use_names_its_user() {
    let state = DesiredState::default().apply(&small()).unwrap().state;
    let module = ObjectRef::from(&module_of("t", "m"));
    let chain = ObjectRef::from(&chain_of("t", "c", &["m"]));
    let rule = ObjectRef::from(&rule_of("t", "r", "c", "10.0.0.1"));
    assert!(refusal(&state, &deleting(std::slice::from_ref(&module))).starts_with("module t/m is in use by chain t/c"));
    assert!(refusal(&state, &deleting(std::slice::from_ref(&chain))).starts_with("chain t/c is in use by rule t/r"));
    let applied = state.apply(&deleting(&[module, chain, rule])).unwrap();
    assert_eq!(effects(&applied), ["module t/m deleted", "chain t/c deleted", "rule t/r deleted"]);
    assert_eq!(applied.state, DesiredState::restore(2, Change::default()).unwrap());
}

#[test]
fn deleting_something_that_is_not_there_is_refused() {
    let message = refusal(&DesiredState::default(), &deleting(&[ObjectRef::from(&module_of("t", "m"))]));
    assert_eq!(message, "there is no module t/m");
}

#[test]
fn a_change_that_names_an_object_twice_is_refused() {
    let mut change = small();
    change.delete.push(ObjectRef::from(&change.chains[0]));
    assert_eq!(refusal(&DesiredState::default(), &change), "the change names chain t/c twice");
}

#[test]
fn a_chain_out_of_bounds_is_refused_with_the_bounds() {
    let refused = |alter: fn(&mut Chain)| {
        let mut change = small();
        alter(&mut change.chains[0]);
        refusal(&DesiredState::default(), &change)
    };
    assert_eq!(refused(|c| c.stages.clear()), "chain t/c: it has 0 stages: a chain has 1 to 16");
    assert_eq!(
        refused(|c| c.stages = vec![c.stages[0].clone(); 17]),
        "chain t/c: it has 17 stages: a chain has 1 to 16"
    );
    assert_eq!(
        refused(|c| c.stages[0].config = vec![0; 65537]),
        "chain t/c: the config of stage 1 is 65537 bytes long: at most 65536 are allowed"
    );
    assert_eq!(refused(|c| c.memory_limit_kib = 63), "chain t/c: memory_limit_kib is 63: it must be from 64 to 65536");
    assert_eq!(
        refused(|c| c.cache_max = 3),
        "chain t/c: cache_max is 3: it must be from cache_min, which is 4, to 1024"
    );
    assert_eq!(
        refused(|c| c.cache_max = 1025),
        "chain t/c: cache_max is 1025: it must be from cache_min, which is 4, to 1024"
    );
    assert_eq!(
        refused(|c| c.memory_total_kib = Some(63)),
        "chain t/c: memory_total_kib is 63: it must be from 64, 64 for each stage, to 1073741824, or be left out for no such \
         limit"
    );
    assert!(
        refused(|c| c.memory_total_kib = Some((1 << 30) + 1)).starts_with("chain t/c: memory_total_kib is 1073741825")
    );
    assert_eq!(refused(|c| c.cache_min = 1025), "chain t/c: cache_min is 1025: it must be from 0 to 1024");
    assert_eq!(
        refused(|c| c.idle_timeout_ms = 99),
        "chain t/c: idle_timeout_ms is 99: it must be from 100 to 604800000"
    );
    assert_eq!(
        refused(|c| c.drain_timeout_ms = 604_800_001),
        "chain t/c: drain_timeout_ms is 604800001: it must be from 0 to 604800000"
    );
    assert_eq!(
        refused(|c| c.scheduling.cpu_per_batch_us = Some(9)),
        "chain t/c: cpu_per_batch_us is 9: it must be from 10 to 60000000"
    );
    assert_eq!(
        refused(|c| c.scheduling.cpu_per_second_ms = Some(1001)),
        "chain t/c: cpu_per_second_ms is 1001: it must be from 1 to 1000"
    );
    assert_eq!(refused(|c| c.hold_frames = 1025), "chain t/c: hold_frames is 1025: it must be from 0 to 1024");
}

#[test]
fn the_names_of_a_chains_stages_are_distinct() {
    let named = |names: [&str; 2]| {
        let mut chain = chain_of("t", "c", &["m", "m"]);
        for (stage, name) in chain.stages.iter_mut().zip(names) {
            stage.name = Some(name.parse().unwrap());
        }
        chain.check().map_err(|problem| problem.to_string())
    };
    assert_eq!(named(["fast", "slow"]), Ok(()));
    assert_eq!(named(["fast", "fast"]).unwrap_err(), "stages 1 and 2 are both named fast: name one of them otherwise");
    assert_eq!(
        named(["fast", "egress"]).unwrap_err(),
        "stage 2 is named egress: that is what outputs call the way out of the chain, so name it otherwise"
    );
    assert!("Fast".parse::<StageName>().unwrap_err().to_string().starts_with("\"Fast\" is not a stage name"));
}

#[test]
fn a_match_that_no_packet_could_have_is_refused() {
    let refused = |alter: fn(&mut Match)| {
        let mut matcher = Match::default();
        alter(&mut matcher);
        matcher.check().unwrap_err().to_string()
    };
    assert_eq!(
        refused(|m| m.source_ports = Some(PortRange::new(80, 80).unwrap())),
        "it matches ports of any protocol: ports need protocol tcp or udp"
    );
    assert_eq!(
        refused(|m| {
            m.protocol = Some(Protocol::ICMP);
            m.destination_ports = Some(PortRange::new(80, 90).unwrap());
        }),
        "it matches ports of protocol icmp: ports need protocol tcp or udp"
    );
    assert_eq!(
        refused(|m| {
            m.source = Some("10.0.0.0/8".parse().unwrap());
            m.destination = Some("fd00::/8".parse().unwrap());
        }),
        "no packet goes from 10.0.0.0/8 to fd00::/8: give both in the same IP version"
    );
    assert_eq!(
        refused(|m| {
            m.destination = Some("fd00::1".parse().unwrap());
            m.protocol = Some(Protocol::ICMP);
        }),
        "no packet with fd00::1/128 has protocol icmp: it is icmp with IPv4 and icmpv6 with IPv6"
    );
    assert_eq!(
        refused(|m| m.icmp_type = Some(8)),
        "it matches an ICMP type of any protocol: icmp_type needs protocol icmp or icmpv6"
    );
    assert_eq!(
        refused(|m| m.inner_vlan = Some(VlanId::new(20).unwrap())),
        "inner_vlan 20 is not within any VLAN: give vlan, too"
    );
}

#[test]
fn vlan_ids_are_those_that_a_tag_can_name() {
    assert_eq!(VlanId::new(0).unwrap_err().to_string(), "\"0\" is not a VLAN id: use a number from 1 to 4094");
    assert!(VlanId::new(4095).is_err() && "-1".parse::<VlanId>().is_err() && "70000".parse::<VlanId>().is_err());
    assert_eq!(("1".parse().ok(), VlanId::new(4094).map(VlanId::number)), (VlanId::new(1).ok(), Ok(4094)));
}

#[test]
fn the_same_conditions_in_two_vlans_are_two_rules() {
    let mut change = small();
    for (name, vlan, inner_vlan) in [("v", "100", None), ("w", "200", None), ("x", "100", Some("20"))] {
        let mut rule = rule_of("t", name, "c", "10.0.0.1");
        rule.matcher.vlan = Some(vlan.parse().unwrap());
        rule.matcher.inner_vlan = inner_vlan.map(|id: &str| id.parse().unwrap());
        change.rules.push(rule);
    }
    assert_eq!(DesiredState::default().apply(&change).unwrap().state.rules().len(), 4);
}

#[test]
fn more_configuration_than_the_node_takes_is_refused() {
    let mut change = Change { modules: vec![module_of("t", "m")], ..Change::default() };
    for at in 0..65 {
        let mut chain = chain_of("t", &format!("c{at}"), &["m"; 16]);
        chain.stages.iter_mut().for_each(|stage| stage.config = vec![0; CONFIG_BYTES_MAX]);
        change.chains.push(chain);
    }
    let message = refusal(&DesiredState::default(), &change);
    assert!(
        message.starts_with("the node takes at most 65536 KiB of stage configuration of all tenants together"),
        "{message}"
    );
}

#[test]
fn a_prefix_with_host_bits_is_refused_with_the_corrected_form() {
    let message = "10.77.0.2/24".parse::<Prefix>().unwrap_err().to_string();
    assert_eq!(
        message,
        "10.77.0.2/24 has bits set beyond its prefix length: write 10.77.0.0/24 if you mean all of these"
    );
    assert_eq!("10.77.0.2".parse::<Prefix>().unwrap().to_string(), "10.77.0.2/32");
    assert!("10.77.0.300".parse::<Prefix>().unwrap_err().to_string().contains("is not an IP prefix"));
}

#[test]
fn port_ranges_are_refused_when_empty_or_everything() {
    assert_eq!("80".parse::<PortRange>().unwrap().to_string(), "80");
    assert_eq!("8000-8999".parse::<PortRange>().unwrap().to_string(), "8000-8999");
    assert!("90-80".parse::<PortRange>().unwrap_err().to_string().contains("write the lower port first"));
    assert!("0-65535".parse::<PortRange>().unwrap_err().to_string().contains("leave the key out"));
    assert!("http".parse::<PortRange>().unwrap_err().to_string().contains("\"http\" is not a port"));
}

#[test]
fn a_bad_name_is_quoted_and_cut() {
    let long = "x".repeat(1000);
    let message = TenantName::new(format!("\u{1b}{long}")).unwrap_err().to_string();
    assert!(message.starts_with("\"\\u{1b}xxx") && message.len() < 250, "{message}");
}

#[test]
fn well_known_protocols_have_names() {
    assert_eq!("tcp".parse::<Protocol>().unwrap(), "6".parse().unwrap());
    assert_eq!(Protocol(89).to_string(), "89");
    assert_eq!(Protocol(58).to_string(), "icmpv6");
    for (name, number) in [("ipip", 4), ("ipv6-in-ip", 41), ("gre", 47), ("esp", 50), ("ah", 51), ("sctp", 132)] {
        assert_eq!((name.parse(), Protocol(number).to_string()), (Ok(Protocol(number)), name.to_owned()));
    }
    assert!("256".parse::<Protocol>().unwrap_err().to_string().contains("is not a protocol"));
}

proptest! {
    #[test]
    fn a_digest_reads_back_as_printed(bytes: [u8; 32]) {
        let digest = Digest::from_bytes(bytes);
        prop_assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
    }

    #[test]
    fn a_digest_is_read_in_one_spelling_only(text in "sha256:[0-9a-fA-F]{62,66}") {
        if let Ok(digest) = text.parse::<Digest>() {
            prop_assert_eq!(digest.to_string(), text);
        }
    }

    #[test]
    fn names_follow_exactly_the_stated_rule(text in "[-a-zA-Z0-9._]{0,66}") {
        let label = text.len() <= 63
            && text.split('-').next().is_some_and(|first| !first.is_empty())
            && text.rsplit('-').next().is_some_and(|last| !last.is_empty())
            && text.chars().all(|c| c == '-' || c.is_ascii_lowercase() || c.is_ascii_digit());
        prop_assert_eq!(ChainName::new(text).is_ok(), label);
    }

    #[test]
    fn a_prefix_reads_back_as_printed(address: u32, length in 0u8..=32) {
        let net = ipnet::Ipv4Net::new(address.into(), length).unwrap().trunc();
        let prefix = Prefix::new(net.into()).unwrap();
        prop_assert_eq!(prefix.to_string().parse::<Prefix>().unwrap(), prefix);
    }

    /// For any changes: a refused change has no effect. An accepted change leaves a state that can be restored, and
    /// that the same change leaves unchanged.
    #[test]
    fn any_sequence_of_changes_leaves_a_consistent_state(changes in prop::collection::vec(any_change(), 1..12)) {
        let mut state = DesiredState::default();
        for change in &changes {
            let before = state.clone();
            let Ok(applied) = state.apply(change) else {
                prop_assert_eq!(&state, &before);
                continue;
            };
            state = applied.state;
            prop_assert_eq!(state.version(), before.version() + u64::from(state != before));
            let objects = Change {
                tenants: state.tenants().values().map(|t| (**t).clone()).collect(),
                modules: state.modules().values().map(|m| (**m).clone()).collect(),
                keys: state.keys().values().map(|k| (**k).clone()).collect(),
                models: state.models().values().map(|m| (**m).clone()).collect(),
                chains: state.chains().values().map(|c| (**c).clone()).collect(),
                rules: state.rules().values().map(|r| (**r).clone()).collect(),
                labels: state.labels().clone(),
                ..Change::default()
            };
            prop_assert!(state.labels().keys().all(|object| state.object(object).is_some()));
            prop_assert_eq!(&DesiredState::restore(state.version(), objects.clone()).unwrap(), &state);
            prop_assert!(!state.apply(&objects).unwrap().changed());
        }
    }
}

/// Changes over few names, so that they conflict often.
fn any_change() -> impl Strategy<Value = Change> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    let owner = || prop::sample::select(vec!["t", "u"]);
    let module = (owner(), name()).prop_map(|(t, n)| module_of(t, n));
    let key = (owner(), name()).prop_map(|(t, n)| key_of(t, n));
    let model = (owner(), name()).prop_map(|(t, n)| model_of(t, n));
    let stages = prop::collection::vec(name(), 0..3);
    let granted = prop::collection::vec(name(), 0..2);
    let chain = (owner(), name(), stages, granted).prop_map(|(t, n, m, granted)| {
        let mut chain = chain_of(t, n, &m);
        for stage in &mut chain.stages {
            stage.keys = granted.iter().map(|name| name.parse().unwrap()).collect();
            stage.models = granted.iter().map(|name| name.parse().unwrap()).collect();
        }
        chain
    });
    let addresses = || prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "::1"]);
    let rule = (owner(), name(), name(), addresses()).prop_map(|(t, n, c, d)| rule_of(t, n, c, d));
    let terms = (owner(), prop::sample::select(vec!["10.0.0.0/31", "::/0"])).prop_map(|(t, within)| {
        let addresses = [within.parse().unwrap()].into();
        Tenant { addresses, chains_max: Some(2), ..Tenant::new(tenant(t)) }
    });
    let gone = || {
        (owner(), name(), 0..6).prop_map(|(t, n, kind)| match kind {
            0 => ObjectRef::from(&module_of(t, n)),
            1 => ObjectRef::from(&chain_of(t, n, &[])),
            2 => ObjectRef::Tenant { name: tenant(t) },
            3 => ObjectRef::from(&key_of(t, n)),
            4 => ObjectRef::from(&model_of(t, n)),
            _ => ObjectRef::from(&rule_of(t, n, "a", "::1")),
        })
    };
    (
        prop::collection::vec(terms, 0..2),
        prop::collection::vec(module, 0..4),
        prop::collection::vec(key, 0..3),
        prop::collection::vec(model, 0..3),
        prop::collection::vec(chain, 0..3),
        prop::collection::vec(rule, 0..3),
        (prop::collection::vec(gone(), 0..2), prop::collection::vec(gone(), 0..2)),
        prop::option::of(prop::sample::select(vec!["x", "y"])),
    )
        .prop_map(|(tenants, modules, keys, models, chains, rules, (delete, prune), label)| {
            let labels = BTreeMap::new();
            let mut change = Change { tenants, modules, keys, models, chains, rules, labels, delete, prune };
            let label: Option<Label> = label.map(|label| label.parse().unwrap());
            let objects = change.sets().filter(|object| !matches!(object, ObjectRef::Tenant { .. }));
            change.labels = objects.filter_map(|object| Some((object, label.clone()?))).collect();
            change
        })
}

#[test]
fn identical_files_count_once_and_their_total_size_is_bounded() {
    const SIZE_BYTES: u64 = 16 << 20;
    // One tenant alone gets three quarters only.
    let tenant = |at: u64| format!("tenant{at}");
    let chains = |count: u64, tenants: u64, archives: u64| -> Vec<Chain> {
        let chain = |at: u64| {
            let digest = Digest::of(&(at % archives).to_le_bytes());
            let files = Some(Files { digest, size_bytes: SIZE_BYTES });
            let stage = Stage { files, ..Stage::new("m".parse().unwrap(), Vec::new()) };
            Chain::new(tenant(at % tenants).parse().unwrap(), format!("c{at}").parse().unwrap(), vec![stage])
        };
        (0..count).map(chain).collect()
    };
    let change = |chains: Vec<Chain>| {
        let owners: BTreeSet<_> = chains.iter().map(|chain| chain.tenant.to_string()).collect();
        let modules = owners.iter().map(|owner| module_of(owner, "m")).collect();
        Change { modules, chains, ..Change::default() }
    };
    let apply = |chains: Vec<Chain>| DesiredState::default().apply(&change(chains)).map(|applied| applied.state);
    let most = FILES_BYTES_TOTAL_MAX / SIZE_BYTES;
    apply(chains(most, most, most)).unwrap();
    apply(chains(most + 10, 1, 1)).unwrap();
    let refused = "the node takes at most 262144 KiB of stages' files of all tenants together, and with this change it would have more: \
                   delete some first";
    // Whether or not tenants have the same archive, so that none learns what another one has.
    for archives in [most + 1, 1] {
        assert_eq!(apply(chains(most + 1, most + 1, archives)).unwrap_err().to_string(), refused);
    }
    // A store may have more, of tenants that have the same one: it opens, and what does not add to it is accepted.
    let stored = DesiredState::restore(7, change(chains(most + 1, most + 1, 1))).unwrap();
    let without = Change { delete: vec![ObjectRef::from(&chains(1, 1, 1)[0])], ..Change::default() };
    stored.apply(&without).unwrap();
}

#[test]
fn of_the_last_quarter_of_files_a_tenant_gets_no_more_if_another_has_the_same_archive() {
    const SIZE_BYTES: u64 = 16 << 20;
    let chain = |tenant: &str, at: u64| {
        let files = Some(Files { digest: Digest::of(&at.to_le_bytes()), size_bytes: SIZE_BYTES });
        let stage = Stage { files, ..Stage::new("m".parse().unwrap(), Vec::new()) };
        Chain::new(tenant.parse().unwrap(), format!("c{at}").parse().unwrap(), vec![stage])
    };
    let modules = vec![module_of("greedy", "m"), module_of("other", "m")];
    let most = FILES_BYTES_TOTAL_MAX / SIZE_BYTES / 4 * 3;
    let mut chains: Vec<Chain> = (0..most - 1).map(|at| chain("greedy", at)).collect();
    chains.push(chain("other", 100));
    let full = DesiredState::default().apply(&Change { modules, chains, ..Change::default() }).unwrap().state;
    let more =
        |at| full.apply(&Change { chains: vec![chain("greedy", at)], ..Change::default() }).unwrap_err().to_string();
    assert_eq!(more(100), more(101));
}
