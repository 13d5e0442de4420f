mod graph;

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::model::{Outbound, Policy, Protocol, Stage, WhenFull};

const GOOD: &str = r#"version = "pinion.v1"
tenant = "demo"

[[module]]
name = "icmp-echo"
path = "icmp_echo.wasm"

[[chain]]
name = "echo"
egress = "lan"
idle_timeout_ms = 1000
memory_limit_kib = 1024
cache_min = 2

[[chain.stage]]
module = "icmp-echo"
config = "greeting = hello"

[[chain.stage]]
module = "icmp-echo"
config_path = "second.conf"

[[rule]]
name = "ping"
priority = 100
policy = "per-client"
chain = "echo"

[rule.match]
destination = "10.77.0.2/32"
protocol = "icmp"

[[rule]]
name = "web"
policy = "per-flow"
chain = "echo"
match = { destination = "10.77.0.0/24", protocol = 6, destination_ports = 80, source_ports = "1024-2047" }

[[rule]]
name = "ping-in-vlan"
policy = "per-client"
chain = "echo"
match = { vlan = 100, inner_vlan = 20, protocol = "icmp", icmp_type = 8 }
"#;

fn read(text: &str) -> Result<Bundle, ManifestError> {
    let mut bundle = Bundle::default();
    document::read(Path::new("demo.toml"), text, &default_tenant(), &mut bundle)?;
    Ok(bundle)
}

fn refused(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

/// Returns the error for the good manifest with one text replaced.
fn refused_with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    refused(&GOOD.replacen(from, to, 1))
}

#[test]
fn a_manifest_defines_modules_chains_and_rules() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("demo.toml"), GOOD).unwrap();
    fs::write(folder.path().join("icmp_echo.wasm"), b"wasm").unwrap();
    fs::write(folder.path().join("second.conf"), [0, 255]).unwrap();
    let bundle = Bundle::read(&[folder.path().join("demo.toml")]).unwrap();
    let objects: Vec<String> = bundle.objects().iter().map(ObjectRef::to_string).collect();
    assert_eq!(
        objects,
        ["module demo/icmp-echo", "chain demo/echo", "rule demo/ping", "rule demo/web", "rule demo/ping-in-vlan"]
    );

    let contents = bundle.load().unwrap();
    assert_eq!(contents.modules[0].wasm, b"wasm");
    let chain = &contents.chains[0];
    assert_eq!((chain.idle_timeout_ms, chain.memory_limit_kib, chain.cache_min), (1000, 1024, 2));
    assert_eq!((chain.cache_max, chain.memory_total_kib, chain.drain_timeout_ms), (64, None, 30_000));
    assert_eq!(chain.egress.as_ref().unwrap().as_str(), "lan");
    assert_eq!(chain.stages[0].config, b"greeting = hello");
    assert_eq!(chain.stages[1].config, [0, 255]);
    let [ping, web, ping_in_vlan] = &contents.rules[..] else { panic!("{:?}", contents.rules) };
    assert_eq!((ping.priority, ping.policy), (100, Policy::PerClient));
    assert_eq!(ping.matcher.to_string(), "destination 10.77.0.2/32, protocol icmp");
    assert_eq!(web.matcher.protocol, Some(Protocol::TCP));
    assert_eq!(web.matcher.destination_ports.unwrap().to_string(), "80");
    assert_eq!(ping_in_vlan.matcher.to_string(), "vlan 100, inner-vlan 20, protocol icmp, icmp-type 8");
}

#[test]
fn objects_without_a_tenant_belong_to_the_default_tenant() {
    let bundle = read("version = \"pinion.v1\"\n[[module]]\nname = \"m\"\npath = \"m.wasm\"\n").unwrap();
    assert_eq!(bundle.objects()[0].to_string(), "module default/m");
}

#[test]
fn a_module_has_either_a_path_or_the_digest_of_a_pushed_module() {
    let digest = Digest::of(b"wasm");
    let named = GOOD.replace("path = \"icmp_echo.wasm\"", &format!("digest = \"{digest}\""));
    let rules_only = named.split("[[chain]]").next().unwrap();
    let bundle = read(rules_only).unwrap();
    assert_eq!((bundle.objects().len(), bundle.module_paths().count()), (1, 0));
    let contents = bundle.load().unwrap();
    assert_eq!((contents.modules.len(), contents.uploaded[0].digest), (0, digest));
    assert_eq!(
        refused(&named.replace("digest = ", "path = \"m.wasm\"\ndigest = ")),
        "demo.toml:5: module icmp-echo: path and digest exclude each other: give one of them"
    );
    assert_eq!(
        refused(&GOOD.replace("path = \"icmp_echo.wasm\"\n", "")),
        "demo.toml:5: module icmp-echo: its bytes are missing: give path, or digest of what was pushed"
    );
    let error = refused(&named.replace("sha256:", "sha1:"));
    assert!(error.starts_with("demo.toml:6: module.digest: \"sha1:"), "{error}");
}

#[test]
fn an_unknown_key_is_refused_by_line_and_name() {
    let message = refused_with("priority = 100", "prioritty = 100");
    assert!(message.starts_with("demo.toml:25: rule: unknown key `prioritty`, expected one of `name`,"), "{message}");
    let message = refused_with("protocol = \"icmp\"", "protocoll = \"icmp\"");
    assert!(message.starts_with("demo.toml:31: rule.match: unknown key `protocoll`"), "{message}");
    let message = refused_with("tenant =", "tennant =");
    assert!(message.starts_with("demo.toml:2: unknown key `tennant`"), "{message}");
    let message = refused_with("[[chain]]", "[[chian]]");
    assert!(message.starts_with("demo.toml:8: unknown key `chian`"), "{message}");
    let message = refused_with("config =", "cofnig =");
    assert!(message.starts_with("demo.toml:17: chain.stage: unknown key `cofnig`"), "{message}");
}

#[test]
fn a_bad_value_is_refused_by_line_and_key() {
    for (from, to, start) in [
        ("\"10.77.0.2/32\"", "\"10.77.0.2/24\"", "demo.toml:30: rule.match.destination: 10.77.0.2/24 has bits set"),
        ("\"icmp\"\n", "\"icmpp\"\n", "demo.toml:31: rule.match.protocol: \"icmpp\" is not a protocol"),
        ("protocol = 6", "protocol = 600", "demo.toml:37: rule.match.protocol: \"600\" is not a protocol"),
        (
            "vlan = 100",
            "vlan = 4095",
            "demo.toml:43: rule.match.vlan: \"4095\" is not a VLAN id: use a number from 1 to 4094",
        ),
        ("inner_vlan = 20", "inner_vlan = \"x\"", "demo.toml:43: rule.match.inner_vlan: \"x\" is not a VLAN id"),
        (
            "icmp_type = 8",
            "icmp_type = 256",
            "demo.toml:43: rule.match.icmp_type: invalid value: integer `256`, expected a whole number",
        ),
        (
            "_ports = 80",
            "_ports = \"90-80\"",
            "demo.toml:37: rule.match.destination_ports: the port range 90-80 is empty",
        ),
        ("\"per-client\"", "\"per-clent\"", "demo.toml:26: rule.policy: unknown variant `per-clent`, expected one of"),
        (
            "priority = 100",
            "priority = -1",
            "demo.toml:25: rule.priority: invalid value: integer `-1`, expected a whole number from 0",
        ),
        ("name = \"echo\"", "name = \"Echo\"", "demo.toml:9: chain.name: \"Echo\" is not a chain name"),
        ("idle_timeout_ms = 1000", "idle_timeout_ms = 1", "demo.toml:11: chain echo: idle_timeout_ms is 1: it must be"),
        ("cache_min = 2", "cache_min = 1025", "demo.toml:13: chain echo: cache_min is 1025: it must be from 0 to 1024"),
        (
            "cache_min = 2",
            "cache_min = 2\ncache_max = 1",
            "demo.toml:14: chain echo: cache_max is 1: it must be from cache_min, which is 2, to 1024",
        ),
        (
            "cache_min = 2",
            "memory_total_kib = 32",
            "demo.toml:13: chain echo: memory_total_kib is 32: it must be from 128",
        ),
        ("memory_limit_kib = 1024", "memory_limit_kib = 1", "demo.toml:12: chain echo: memory_limit_kib is 1: it must"),
        (
            "cache_min = 2",
            "cache_min = 2.0",
            "demo.toml:13: chain.cache_min: invalid type: floating point `2.0`, expected a whole number from 0 to 1024",
        ),
        (
            "idle_timeout_ms = 1000",
            "idle_timeout_ms = \"1 s\"",
            "demo.toml:11: chain.idle_timeout_ms: invalid type: string \"1 s\", expected a whole number from 100 to 604800000",
        ),
        (
            "cache_min = 2",
            "cache_min = 2\ncache_min = 3",
            "demo.toml:14: chain.cache_min: duplicate key: it has a value already, give it once",
        ),
        (
            "cache_min = 2",
            "over_budget = 3",
            "demo.toml:13: chain.over_budget: invalid type: 3, expected `throttle` or `kill`",
        ),
        ("[[rule]]\nname = \"ping\"", "[rule]\nname = \"ping\"", "demo.toml:33: rule: duplicate key"),
        (
            "[[module]]",
            "[module]",
            "demo.toml:4: module: invalid type: a table, expected tables, each with the header [[",
        ),
        ("egress = \"lan\"", "egress = 5", "demo.toml:10: chain.egress: invalid type: integer `5`, expected a string"),
    ] {
        let message = refused_with(from, to);
        assert!(message.starts_with(start), "{to}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_chain_says_which_flows_its_functions_may_open() {
    let with = |entries: &str| GOOD.replacen("cache_min = 2", &format!("outbound = [{entries}]"), 1);
    let bundle = read(&with(
        "{ protocol = \"udp\", to = \"10.0.0.0/8\", ports = 53 }, { protocol = 6, to = \"fd77::1\", ports = \"80-81\" },
         { protocol = \"tcp\", to = \"192.0.2.0/24\" }",
    ));
    let outbound = |Outbound { protocol, to, ports }: &Outbound| {
        (protocol.to_string(), to.to_string(), ports.map(|it| it.to_string()))
    };
    let said: Vec<_> = bundle.unwrap().chains[0].chain.outbound.iter().map(outbound).collect();
    let entry = |protocol: &str, to: &str, ports: Option<&str>| (protocol.into(), to.into(), ports.map(Into::into));
    let expected = [
        entry("udp", "10.0.0.0/8", Some("53")),
        entry("tcp", "fd77::1/128", Some("80-81")),
        entry("tcp", "192.0.2.0/24", None),
    ];
    assert_eq!(said, expected);
    let one = "{ protocol = \"udp\", to = \"10.0.0.0/8\" }";
    assert!(read(&with(&[one; 16].join(", "))).is_ok());
    for (entries, start) in [
        (&[one; 17].join(", ")[..], "demo.toml:13: chain echo: outbound has 17 entries: at most 16 are allowed"),
        (
            "{ protocol = \"icmp\", to = \"10.0.0.0/8\" }",
            "demo.toml:13: chain echo: outbound allows flows of icmp: functions open flows of tcp and udp only",
        ),
        ("{ protocol = \"udp\" }", "demo.toml:13: chain.outbound: missing key `to`"),
        ("{ protocol = \"udp\", to = \"10.0.0.1/8\" }", "demo.toml:13: chain.outbound.to: 10.0.0.1/8 has bits set"),
        ("{ protocol = \"udp\", to = \"::/0\", port = 3 }", "demo.toml:13: chain.outbound: unknown key `port`"),
    ] {
        let message = refused(&with(entries));
        assert!(message.starts_with(start), "{entries}: {message}");
    }
}

#[test]
fn keys_that_contradict_each_other_are_refused_by_line() {
    let message = refused_with("protocol = 6, ", "");
    assert!(message.starts_with("demo.toml:37: rule web: match: it matches ports of any protocol"), "{message}");
    let message = refused_with("vlan = 100, ", "");
    assert!(
        message.starts_with("demo.toml:43: rule ping-in-vlan: match: inner_vlan 20 is not within any"),
        "{message}"
    );
    let message = refused_with("protocol = \"icmp\", icmp_type", "protocol = \"tcp\", icmp_type");
    assert!(message.contains("match: it matches an ICMP type of protocol tcp: icmp_type needs protocol"), "{message}");
    let message = refused_with("config = \"greeting = hello\"", "config = \"a\"\nconfig_path = \"b\"");
    assert!(message.starts_with("demo.toml:17: config and config_path exclude each other"), "{message}");
    let message = refused_with("name = \"web\"", "name = \"ping\"");
    assert_eq!(message, "demo.toml:34: rule demo/ping is there already, at demo.toml:24");
}

#[test]
fn a_missing_key_is_refused_by_line() {
    let message = refused_with("policy = \"per-flow\"\n", "");
    assert!(message.starts_with("demo.toml:33: rule: missing key `policy`"), "{message}");
}

#[test]
fn text_that_is_not_toml_is_refused_by_line() {
    let message = refused("version = \"pinion.v1\"\ntenant = \"demo\n");
    assert!(message.starts_with("demo.toml:2: "), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn a_manifest_of_another_version_is_refused_whatever_its_keys() {
    let message = refused("new_key = 1\nversion = \"pinion.v2\"\n");
    assert_eq!(message, "demo.toml:2: version is \"pinion.v2\": this pinion reads version = \"pinion.v1\"");
    let message = refused("tenant = \"demo\"\n");
    assert_eq!(message, "demo.toml: the key version is missing: this pinion reads version = \"pinion.v1\"");
}

#[test]
fn a_folder_stands_for_all_its_manifests_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = |module: &str| format!("version = \"pinion.v1\"\n[[module]]\nname = \"{module}\"\npath = \"m\"\n");
    fs::write(folder.path().join("20.toml"), manifest("second")).unwrap();
    fs::write(folder.path().join("10.toml"), manifest("first")).unwrap();
    fs::write(folder.path().join("notes.txt"), "no manifest").unwrap();
    let bundle = Bundle::read(&[folder.path().to_owned()]).unwrap();
    let names: Vec<String> = bundle.objects().iter().map(|object| object.name().to_owned()).collect();
    assert_eq!(names, ["first", "second"]);

    let both = [folder.path().join("10.toml"), folder.path().to_owned()];
    assert!(matches!(Bundle::read(&both).unwrap_err(), ManifestError::Twice { .. }));
}

#[test]
fn missing_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.toml");
    let message = Bundle::read(std::slice::from_ref(&missing)).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: cannot be read: No such file", missing.display())), "{message}");
    let message = Bundle::read(&[folder.path().to_owned()]).unwrap_err().to_string();
    assert!(message.ends_with("there is no .toml file in this folder"), "{message}");

    let manifest = folder.path().join("demo.toml");
    fs::write(&manifest, GOOD).unwrap();
    let message = Bundle::read(&[manifest]).unwrap().load().unwrap_err().to_string();
    assert!(message.contains("demo.toml:6: path names ") && message.contains("icmp_echo.wasm"), "{message}");
}

#[test]
fn files_that_are_too_long_are_refused_without_being_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let wasm = folder.path().join("m.wasm");
    fs::File::create(&wasm).unwrap().set_len(1 << 40).unwrap();
    let manifest = folder.path().join("demo.toml");
    fs::write(&manifest, "version = \"pinion.v1\"\n[[module]]\nname = \"m\"\npath = \"m.wasm\"\n").unwrap();
    let paths: [PathBuf; 1] = [manifest];
    let message = Bundle::read(&paths).unwrap().load().unwrap_err().to_string();
    assert!(message.ends_with("m.wasm is longer than the 16777216 bytes that a module may have"), "{message}");
}

#[test]
fn the_files_of_a_stage_come_from_a_folder_beside_the_manifest() {
    const SITES: &str = "version = \"pinion.v1\"\ntenant = \"demo\"\n[[chain]]\nname = \"site\"\n\
        stage = [{ module = \"m\" }, { module = \"m\", files = \"pages\" }]\n\
        [[chain]]\nname = \"mirror\"\nstage = [{ module = \"m\", files = \"pages\" }]\n";
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("site.toml");
    fs::write(&manifest, SITES).unwrap();
    let load = || Bundle::read(std::slice::from_ref(&manifest)).unwrap().load();
    let message = load().unwrap_err().to_string();
    assert!(message.contains("site.toml:5: files: ") && message.contains("pages: cannot be read: "), "{message}");

    fs::create_dir(folder.path().join("pages")).unwrap();
    fs::write(folder.path().join("pages/index.html"), "it works").unwrap();
    let contents = load().unwrap();
    let [files] = &contents.files[..] else { panic!("both are the same: {:?}", contents.files) };
    let expected = Files { digest: Digest::of(&files.archive), size_bytes: 2048 };
    assert_eq!((files.tenant.as_str(), files.digest), ("demo", expected.digest));
    let expected = Some(expected);
    let [site, mirror] = &contents.chains[..] else { panic!("{:?}", contents.chains) };
    assert_eq!([site.stages[0].files, site.stages[1].files, mirror.stages[0].files], [None, expected, expected]);
}

const STATE: &str = r#"version = "pinion.v1"

[state.counters]
value_bytes = 64
entries = 10000
ttl_seconds = 60
when_full = "evict"

[state.blocked]
value_bytes = 8
entries = 100

[[chain]]
name = "guard"

[[chain.stage]]
module = "meter"
state = { counters = "write", blocked = "write" }

[[chain.stage]]
module = "gate"
[chain.stage.state]
blocked = "read"

[[chain]]
name = "report"
stage = [{ module = "report", state = { counters = "read" } }]
"#;

#[test]
fn a_manifest_declares_fields_of_state_and_grants_them_to_stages() {
    let bundle = read(STATE).unwrap();
    let [guard, report] = &bundle.chains[..] else { panic!("{:?}", bundle.chains) };
    let [blocked, counters] = &guard.chain.fields[..] else { panic!("{:?}", guard.chain.fields) };
    assert_eq!((counters.name.as_str(), counters.value_bytes, counters.entries), ("counters", 64, 10_000));
    assert_eq!((counters.ttl_seconds, counters.when_full), (Some(60), WhenFull::Evict));
    assert_eq!((blocked.name.as_str(), blocked.ttl_seconds, blocked.when_full), ("blocked", None, WhenFull::Refuse));
    // A chain has the fields of its own stages.
    assert_eq!(report.chain.fields, std::slice::from_ref(counters));
    let granted = |stage: &Stage| {
        let grants = stage.state.iter().map(|grant| format!("{} {}", grant.access.as_str(), grant.field));
        grants.collect::<Vec<_>>().join(", ")
    };
    let stages: Vec<String> = guard.chain.stages.iter().chain(&report.chain.stages).map(granted).collect();
    assert_eq!(stages, ["write blocked, write counters", "read blocked", "read counters"]);
}

#[test]
fn invalid_state_is_refused_by_line() {
    for (from, to, start) in [
        (
            "value_bytes = 64",
            "value_bytes = 1025",
            "demo.toml:4: state.counters: value_bytes is 1025: it must be from 1 to",
        ),
        ("entries = 10000", "entries = 0", "demo.toml:5: state.counters: entries is 0: it must be from 1 to 1048576"),
        ("ttl_seconds = 60", "ttl_seconds = 0", "demo.toml:6: state.counters: ttl_seconds is 0: it must be from 1 to"),
        ("\"evict\"", "\"forget\"", "demo.toml:7: state.counters.when_full: unknown variant `forget`, expected"),
        ("entries = 100\n", "", "demo.toml:9: state.blocked: missing key `entries`"),
        ("entries = 100\n", "entries = 100\nkey_bytes = 8\n", "demo.toml:12: state.blocked: unknown key `key_bytes`"),
        ("[state.blocked]", "[state.Blocked]", "demo.toml:9: state.Blocked: \"Blocked\" is not a field name"),
        (
            "[state.blocked]",
            "[state.counters]",
            "demo.toml:9: state.counters: duplicate key: it has a value already, give it once",
        ),
        (
            "blocked = \"write\"",
            "blcked = \"write\"",
            "demo.toml:18: chain guard: stage 1 is granted the state field blcked",
        ),
        (
            "blocked = \"read\"",
            "blocked = \"append\"",
            "demo.toml:23: chain.stage.state.blocked: unknown variant `append`, expected",
        ),
        (
            "blocked = \"write\"",
            "counters = \"read\"",
            "demo.toml:18: chain.stage.state.counters: duplicate key: it has",
        ),
        (
            "[state.blocked]",
            "[state.other]\nvalue_bytes = 1\nentries = 1\n\n[state.blocked]",
            "demo.toml:9: state.other: no stage of this manifest is granted it",
        ),
    ] {
        assert!(STATE.contains(from), "{from}");
        let message = refused(&STATE.replacen(from, to, 1));
        assert!(message.starts_with(start), "{to}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn text_quoted_from_a_manifest_can_neither_control_nor_flood_a_terminal() {
    let foreign = "\\u001b[2J\\nerror: forged\\u202e";
    for text in [
        GOOD.replace("priority = 100", &format!("\"prio{foreign}\" = 100")),
        GOOD.replace("pinion.v1", foreign),
        GOOD.replace("per-client", foreign),
        GOOD.replace("10.77.0.2/32", foreign),
        GOOD.replace("protocol = \"icmp\"\n\n", &format!("protocol = \"{}\"\n\n", foreign.repeat(10_000))),
        GOOD.replace("priority = 100", &format!("\"{}\" = 100", "x".repeat(100_000))),
    ] {
        assert_ne!(text, GOOD);
        let refused = refused(&text);
        assert!(refused.chars().all(pinion_text::is_printable) && refused.len() < 4096, "{refused:?}");
    }
}

#[test]
fn the_kind_of_a_file_is_detected_by_its_content() {
    use super::FileKind;
    for (bytes, kind) in [
        (&b"\0asm\x01\0\0\0"[..], FileKind::Module),
        (b"\0asm\x0d\0\x01\0", FileKind::Module),
        (b"\0asm", FileKind::Module),
        (b"\0as", FileKind::Other),
        (b"(module)", FileKind::ModuleText),
        (b" \n;; a comment\n\t(; another ;) (module)", FileKind::ModuleText),
        (b";; (module", FileKind::Text),
        (b"", FileKind::Text),
        (b"version = \"pinion.v1\"", FileKind::Text),
        (b"\xef\xbb\xbfversion = 1", FileKind::Text),
        ("# caf\u{e9}".as_bytes(), FileKind::Text),
        // Cut within a character, as the beginning of a file may be; and invalid UTF-8.
        (b"# caf\xc3", FileKind::Text),
        (b"# caf\xc3 ", FileKind::Other),
        (b"# caf\xe9 ", FileKind::Other),
        (b"text\0", FileKind::Other),
        (b"\x7fELF", FileKind::Text),
        (b"\x7fELF\x02\x01\x01\0", FileKind::Other),
    ] {
        assert_eq!(FileKind::of(bytes), kind, "{:?}", bytes.escape_ascii().to_string());
    }
}

#[test]
fn a_manifest_has_a_label_and_an_owner_also_without_objects() {
    let contents = read("version = \"pinion.v1\"\ntenant = \"demo\"\nlabel = \"web\"\n").unwrap().load().unwrap();
    assert_eq!(contents.label.as_ref().map(Label::as_str), Some("web"));
    assert_eq!(contents.owners.iter().map(TenantName::as_str).collect::<Vec<_>>(), ["demo"]);
    assert_eq!(read("version = \"pinion.v1\"\n").unwrap().load().unwrap().label, None);
    let message = refused("version = \"pinion.v1\"\nlabel = \"Web\"\n");
    let expected = "demo.toml:2: label: \"Web\" is not a label name: use 1 to 63 of a-z";
    assert!(message.starts_with(expected), "{message}");
    let tenants = refused("version = \"pinion.v1\"\nlabel = \"web\"\n[[tenant]]\nname = \"demo\"\n");
    assert!(tenants.starts_with("demo.toml:2: label: the terms of tenants have none: "), "{tenants}");
}

#[test]
fn manifests_of_one_change_have_the_same_label_and_those_of_tenants_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("version = \"pinion.v1\"\n{text}")).unwrap();
        path
    };
    let (web, other) = (write("web.toml", "label = \"web\"\n"), write("other.toml", "label = \"web\"\n"));
    let (db, none) = (write("db.toml", "label = \"db\"\n"), write("none.toml", ""));
    let tenants = write("tenants.toml", "[[tenant]]\nname = \"demo\"\n");
    let label = |paths: &[&PathBuf]| {
        let paths: Vec<PathBuf> = paths.iter().map(|path| (*path).clone()).collect();
        let loaded = Bundle::read(&paths).unwrap().load();
        loaded.map(|contents| contents.label.map(|label| label.to_string())).map_err(|error| error.to_string())
    };
    assert_eq!(label(&[&web, &tenants, &other]), Ok(Some("web".to_owned())));
    let several = |first: &PathBuf, of: &str, second: &PathBuf, and: &str| {
        let [first, second] = [first, second].map(|path| path.display().to_string());
        format!(
            "{first} has {of}, and {second} has {and}: manifests that are one change have the same label, so apply them one after the other"
        )
    };
    assert_eq!(label(&[&web, &db]), Err(several(&db, "label db", &web, "label web")));
    assert_eq!(label(&[&web, &none]), Err(several(&none, "no label", &web, "label web")));
}
