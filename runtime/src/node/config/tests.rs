//! Tests of [`super`].

use super::*;

fn error_of(text: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let error = NodeConfig::read(file.path()).unwrap_err().to_string();
    error.replace(file.path().to_str().unwrap(), "FILE")
}

const PORT: &str = "[[port]]\nname = \"lan\"\ndevice = \"net_tap0\"\n";

#[test]
fn the_example_configuration_is_valid_and_shows_the_defaults() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("piniond.example.toml");
    let example = NodeConfig::read(&example).unwrap();
    let minimal: NodeConfig = toml::from_str(PORT).unwrap();
    assert_eq!(example.state_dir, minimal.state_dir);
    assert_eq!(example.socket, minimal.socket);
    assert_eq!(example.secret, minimal.secret);
    assert_eq!(example.quantum_us, minimal.quantum_us);
    assert_eq!(example.limits.fwps_max, minimal.limits.fwps_max);
    assert_eq!(example.limits.flows_max, minimal.limits.flows_max);
    assert_eq!(example.limits.buffers, minimal.limits.buffers);
    assert_eq!(example.memory_reset, minimal.memory_reset);
    assert_eq!(example.limits.tenant_memory_mib, minimal.limits.tenant_memory_mib);
    assert_eq!(example.limits.keep_alive_max_s, minimal.limits.keep_alive_max_s);
    assert_eq!(example.limits.clock_step_us, minimal.limits.clock_step_us);
    assert_eq!(example.limits.signatures_per_second, minimal.limits.signatures_per_second);
    assert_eq!(example.limits.jobs_max, minimal.limits.jobs_max);
    assert_eq!(example.history_limits(), minimal.history_limits());
    assert_eq!(minimal.history_limits(), HistoryLimits::default());
    assert_eq!(example.cores, minimal.cores);
    assert_eq!(example.memory_cgroup, minimal.memory_cgroup);
    assert_eq!(example.confinement, minimal.confinement);
    assert!(example.tenants.is_empty());
    // The commented-out keys of a tenant show the defaults.
    let text = include_str!("../../../piniond.example.toml");
    let terms = Tenant::new("lab".parse().unwrap());
    let limits = minimal.api.limits();
    for shown in [
        format!("# weight = {}\n", terms.weight),
        format!("# class_max = \"{}\"\n", terms.class_max),
        format!("# connections_per_address_max = {}\n", limits.connections_per_address_max),
        format!("# connections_per_tenant_max = {}\n", limits.connections_per_identity_max),
        format!("# requests_at_once = {}\n", limits.requests_at_once),
        format!("# requests_per_second = {}\n", limits.requests_per_second),
    ] {
        assert!(text.contains(&shown), "{shown}");
    }
    let minimal: NodeConfig = toml::from_str(&format!("{PORT}[[tenant]]\nname = \"lab\"\n")).unwrap();
    assert_eq!(minimal.tenants, std::slice::from_ref(&terms));
    assert_eq!(minimal.cpu_grants().default.with(Some(&terms)), CpuGrant::default());
    assert_eq!(example.ports[0].mtu_bytes, minimal.ports[0].mtu_bytes);
    assert_eq!(example.ports[0].queues, minimal.ports[0].queues);
    assert_eq!(example.ports[0].promiscuous, minimal.ports[0].promiscuous);
}

#[test]
fn every_key_of_a_tenant_is_in_the_example_configuration_with_a_possible_value() {
    let example = include_str!("../../../piniond.example.toml");
    let (_, tenant) = example.split_once("\n# [[tenant]]\n").unwrap();
    let lines = tenant.lines().map_while(|line| line.strip_prefix("# ")).collect::<Vec<_>>().join("\n");
    let text = format!("{PORT}{}[[tenant]]\n{lines}\n", PORT.replace("lan", "wan").replace('0', "1"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    NodeConfig::read(file.path()).unwrap();
    let keys: Vec<&str> = lines.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    let all = toml::Value::try_from(all_granted()).unwrap();
    assert_eq!(keys.len(), all.as_table().unwrap().len(), "{keys:?}");
}

/// Returns a tenant for which every key has a value.
fn all_granted() -> Tenant {
    let some = Some(1);
    Tenant {
        memory_mib: some,
        state_mib: some,
        cpu_per_second_ms: some,
        clock_step_us: some,
        modules_max: some,
        keys_max: some,
        models_max: some,
        model_mib: some,
        chains_max: some,
        rules_max: some,
        upload_mib: some,
        ..Tenant::new("lab".parse().unwrap())
    }
}

#[test]
fn the_api_is_served_on_tcp_only_with_all_that_tls_needs() {
    let of_api = |lines: &str| format!("[api]\n{lines}{PORT}");
    let all = "listen = \"[::1]:7443\"\ncertificate = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\nrequests_at_once = 3\n";
    let config: NodeConfig = toml::from_str(&of_api(all)).unwrap();
    config.check().unwrap();
    let (address, files) = config.api.tcp().unwrap();
    assert_eq!((address.port(), files.key.as_path(), files.revoked), (7443, Path::new("k"), None));
    assert_eq!(config.api.limits().requests_at_once, 3);
    assert!(toml::from_str::<NodeConfig>(PORT).unwrap().api.tcp().is_none());
    for (lines, expected) in [
        ("listen = \"[::1]:7443\"\ncertificate = \"c\"\n", "api.listen = [::1]:7443: api.key is missing"),
        ("revoked = \"r\"\n", "api.revoked is given and api.listen is not"),
        ("requests_at_once = 0\n", "api.requests_at_once = 0: from 1 to 4096 is possible"),
    ] {
        let error = error_of(&of_api(lines));
        assert!(error.contains(expected), "{error}");
    }
    let error = error_of(&of_api("listen = 7443\n"));
    assert!(error.contains("an address with a port, such as"), "{error}");
}

#[test]
fn a_misspelt_key_is_named_with_its_line() {
    let error = error_of(&format!("{PORT}adresses = []\n"));
    assert!(error.starts_with("FILE, line 4: port: unknown key `adresses`, expected one of `name`,"), "{error}");
}

#[test]
fn wrong_types_and_duplicate_keys_are_named_with_their_line_and_path() {
    let of_port = |line: &str| format!("{PORT}{line}\n");
    let of_tenant = |line: &str| format!("{PORT}[[tenant]]\nname = \"lab\"\n{line}\n");
    let cases = [
        (
            format!("{PORT}[limits]\ntenant_memory_mib = \"64MiB\"\n"),
            "5: limits.tenant_memory_mib: invalid type: string \"64MiB\", expected a whole number from 1 to 1048576",
        ),
        (
            format!("quantum_us = 20.0\n{PORT}"),
            "1: quantum_us: invalid type: floating point `20.0`, expected a whole number from 5 to 100000",
        ),
        (
            format!("quantum_us = -20\n{PORT}"),
            "1: quantum_us: invalid value: integer `-20`, expected a whole number from 5 to 100000",
        ),
        (
            format!("limits.fwps_max = 99999999999999999999\n{PORT}"),
            "1: limits.fwps_max: invalid value: integer `99999999999999999999`, expected a whole number from 1 to 30000",
        ),
        (
            of_port("mtu_bytes = 99999"),
            "4: port.mtu_bytes: invalid value: integer `99999`, expected a whole number from 576 to 1966",
        ),
        (
            format!("{PORT}{}queues = \"2\"\n", PORT.replace('0', "1")),
            "7: port.queues: invalid type: string \"2\", expected a whole number from 1 to 64",
        ),
        (of_port("promiscuous = \"yes\""), "4: port.promiscuous: invalid type: string \"yes\", expected true or false"),
        (
            of_port("addresses = \"10.77.0.2/24\""),
            "4: port.addresses: invalid type: string \"10.77.0.2/24\", expected a list of ADDRESS/LENGTH, such as [\"10.77.0.2/24\"]",
        ),
        (
            of_port("addresses = [\n\"10.77.0.2/24\",\n\"10.77.0.300/24\"]"),
            "6: port.addresses: \"10.77.0.300/24\" is not ADDRESS/LENGTH, such as \"10.77.0.2/24\" or \"fd77::2/64\"",
        ),
        (
            of_tenant("weight = 1.5"),
            "6: tenant.weight: invalid type: floating point `1.5`, expected a whole number from 1 to 1000",
        ),
        (
            of_tenant("class_max = 1"),
            "6: tenant.class_max: invalid type: 1, expected one of `system`, `latency`, `throughput`",
        ),
        (format!("idle = true\n{PORT}"), "1: idle: invalid type: true, expected `busy` or `adaptive`"),
        (format!("tuning = \"on\"\n{PORT}"), "1: tuning: unknown variant `on`, expected `full` or `off`"),
        (
            format!("{PORT}[cores]\nworkers = 1\n"),
            "5: cores.workers: invalid type: integer `1`, expected a list of numbers of cores, such as [0, 1]",
        ),
        (
            format!("{PORT}[[limits]]\nbuffers = 8192\n"),
            "4: limits: invalid type: a table, expected a table with the header [limits]",
        ),
        (
            PORT.replace("[[port]]", "[port]"),
            "1: port: invalid type: a table, expected tables, each with the header [[port]]",
        ),
        (
            format!("quantum_us = 20\nquantum_us = 30\n{PORT}"),
            "2: quantum_us: duplicate key: it has a value already, give it once",
        ),
        (of_port("queues = 1\nqueues = 2"), "5: port.queues: duplicate key: it has a value already, give it once"),
        (of_tenant("name = \"other\""), "6: tenant.name: duplicate key: it has a value already, give it once"),
        (of_port("[limits]\n[limits]"), "5: limits: duplicate key: it has a value already, give it once"),
        (format!("{PORT}[[port]]\nname = \"wan\"\n"), "4: port: missing key `device`"),
        (
            format!("{PORT}[limits]\nfwps = 1\n"),
            "5: limits: unknown key `fwps`, expected one of `fwps_max`, `flows_max`, `buffers`, `tenant_memory_mib`, `tenant_state_mib`, `state_mib`, `keep_alive_max_s`, `clock_step_us`, `signatures_per_second`, `jobs_max`, `history_revisions`, `history_mib`",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error_of(&text), format!("FILE, line {expected}"), "{text}");
    }
}

#[test]
fn every_number_of_the_example_configuration_is_within_its_bounds() {
    let example = include_str!("../../../piniond.example.toml");
    let mut table = String::new();
    let mut numbers = 0;
    for line in example.lines().map(|line| line.trim_start_matches("# ")) {
        if let Some(header) = line.strip_prefix('[') {
            table = format!("{}.", header.trim_matches(['[', ']']));
        }
        let Some((key, Ok(value))) = line.split_once(" = ").map(|(key, value)| (key, value.parse::<u64>())) else {
            continue;
        };
        if table != "cores." && table != "tenant." && !key.contains(' ') {
            let key = format!("{table}{key}");
            let bounds = bounds(&key).unwrap_or_else(|| panic!("{key} has no bounds"));
            assert!(bounds.contains(&value), "{key} = {value} is not within {bounds:?}");
            numbers += 1;
        }
    }
    assert!(numbers >= 8, "{numbers} numbers were found");
}

#[test]
fn impossible_values_are_named() {
    let cases = [
        (
            format!("memory_cgroup = \"/nowhere\"\n{PORT}"),
            "FILE: memory_cgroup = /nowhere: there is no memory.current: the directory of a cgroup (v2) with the memory \
             controller is needed",
        ),
        (format!("quantum_us = 1\n{PORT}"), "FILE: quantum_us = 1: from 5 to 100000 is possible"),
        (String::new(), "FILE: there is no [[port]]: a node needs at least one"),
        (PORT.repeat(64), "FILE: there are 64 tables [[port]]: a node has at most 63 ports"),
        (format!("{PORT}{PORT}"), "FILE: two ports are named lan"),
        (
            PORT.replace("lan", "invoke"),
            "FILE: port.name: invoke is reserved for calls of functions: choose another name",
        ),
        (format!("{PORT}{}", PORT.replace("lan", "wan")), "FILE: ports lan and wan share the device net_tap0"),
        (format!("{PORT}mtu_bytes = 9000\n"), "FILE: port lan: mtu_bytes = 9000: from 576 to 1966 is possible"),
        (
            format!("{PORT}[limits]\ntenant_memory_mib = 0\n"),
            "FILE: limits.tenant_memory_mib = 0: from 1 to 1048576 is possible",
        ),
        (
            format!("{PORT}[limits]\nstate_mib = 101\n[[tenant]]\nname = \"big\"\nstate_mib = 76\n"),
            "FILE: tenant big: state_mib is 76, and three quarters of limits.state_mib, for all tenants, are 75: raise limits.state_mib, or grant \
             less",
        ),
        (
            format!("{PORT}[limits]\nkeep_alive_max_s = 604801\n"),
            "FILE: limits.keep_alive_max_s = 604801: from 0 to 604800 is possible",
        ),
        (format!("{PORT}[limits]\nclock_step_us = 0\n"), "FILE: limits.clock_step_us = 0: from 1 to 10000 is possible"),
        (
            format!("{PORT}[[tenant]]\nname = \"lab\"\nclock_step_us = 10001\n"),
            "FILE, line 6: tenant.clock_step_us: invalid value: integer `10001`, expected a whole number from 1 to 10000",
        ),
        (
            format!("{PORT}[[tenant]]\nname = \"lab\"\nmemory_mib = 2000000\n"),
            "FILE, line 6: tenant.memory_mib: invalid value: integer `2000000`, expected a whole number from 1 to 1048576",
        ),
        (
            format!("{PORT}[[tenant]]\nname = \"lab\"\nports = [\"lan\", \"wan\"]\n"),
            "FILE: tenant lab: ports: there is no [[port]] named wan: add one, or leave it out",
        ),
        (
            format!("{PORT}{0}{0}", "[[tenant]]\nname = \"lab\"\nmemory_mib = 2\n"),
            "FILE: there are two [[tenant]] named lab",
        ),
        (format!("{PORT}queues = 0\n"), "FILE: port lan: queues = 0: from 1 to 64 is possible"),
        (
            format!("{PORT}namespace = \"../pinion\"\n"),
            "FILE: port lan: namespace = \"../pinion\" is not the name of a network namespace: give one that `ip netns` lists",
        ),
        (
            format!("{PORT}addresses = [\"10.77.0.2/24\", \"10.77.0.2/16\"]\n"),
            "FILE: port lan: addresses: 10.77.0.2 is given twice",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error_of(&text), expected);
    }
    for address in ["0.0.0.0/0", "10.77.0.0/24", "10.77.0.255/24", "224.0.0.1/24", "127.0.0.1/8", "::/64", "ff02::1/64"]
    {
        let error = error_of(&format!("{PORT}addresses = [{address:?}]\n"));
        assert!(error.starts_with(&format!("FILE: port lan: addresses: {address} is an unspecified,")), "{error}");
    }
    let error = error_of(&format!("{PORT}[[tenant]]\nname = \"Lab\"\nmemory_mib = 2\n"));
    assert!(error.starts_with("FILE, line 5: tenant.name: \"Lab\" is not a tenant name"), "{error}");
    let socket = "s".repeat(SOCKET_BYTES_MAX + 1);
    let error = error_of(&format!("socket = \"/{socket}\"\n{PORT}"));
    assert!(error.ends_with("the path has 109 bytes, and the kernel allows 107: use a shorter one"), "{error}");
}
