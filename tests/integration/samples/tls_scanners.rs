//! `tls-proxy` under scanners for weaknesses of TLS, which speak what no browser would, and under load by `ab` and `wrk`.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use pinion_tests::machine::process::{output, run};
use pinion_tests::network::bed::{Client, NODE};
use pinion_tests::traffic::load::{ab, wrk};
use pinion_tests::traffic::tls::{BIG_BYTES, NAME, P256, Site};
use pinion_tests::traffic::web::assert_no_connection_is_left;

/// The suites of TLS 1.2 by their names of IANA without what they begin with: with keys of ECDSA and of RSA, key agreement for each session
/// and authenticated encryption.
const SUITES_12: [&str; 6] = [
    "ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// The suites of TLS 1.3.
const SUITES_13: [&str; 3] = ["AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"];

/// Runs a scanner, two minutes at most. Returns what it writes.
#[track_caller]
fn scan(client: &Client, words: &[&str]) -> String {
    run(client.namespace.command("timeout").arg("120").args(words))
}

#[test]
fn scanners_find_two_versions_with_strong_suites_and_no_weakness_while_others_are_served() {
    // With two keys, so that each suite can be agreed on.
    let site = Site::new(&[(NAME, P256), (NAME, &["rsa:2048"])], "");
    let [first, second, quick] = &site.bed.clients[..] else { panic!("a bed has three clients") };
    thread::scope(|scope| {
        let scans = [
            scope.spawn(|| assert_testssl_finds_no_weakness(&site, first)),
            scope.spawn(|| {
                assert_sslscan_finds_what_is_offered(second);
                assert_nmap_finds_what_is_offered(second);
            }),
        ];
        let mut served = 0;
        while served == 0 || !scans.iter().all(thread::ScopedJoinHandle::is_finished) {
            assert_eq!(site.curl(quick, &[], "/"), "hello");
            served += 1;
        }
        println!("{served} requests were answered beside the scans");
    });
    for scanner in [first, second] {
        assert_eq!(site.curl(scanner, &[], "/"), "hello", "a scanner's own instance still serves");
    }
}

/// Scans by `sslscan`, which is built on OpenSSL.
#[track_caller]
fn assert_sslscan_finds_what_is_offered(client: &Client) {
    let (name, target) = (format!("--sni-name={NAME}"), format!("{NODE}:443"));
    let report = scan(client, &["sslscan", "--no-colour", "--ipv4", "--show-sigs", &name, &target]);
    let lines: Vec<Vec<&str>> = report.lines().map(|line| line.split_whitespace().collect()).collect();
    let state =
        |version: &str| lines.iter().find(|words| words.len() == 2 && words[0] == version).map(|words| words[1]);
    for (version, expected) in [
        ("SSLv2", "disabled"),
        ("SSLv3", "disabled"),
        ("TLSv1.0", "disabled"),
        ("TLSv1.1", "disabled"),
        ("TLSv1.2", "enabled"),
        ("TLSv1.3", "enabled"),
    ] {
        assert_eq!(state(version), Some(expected), "{version}: {report}");
    }
    for version in ["TLSv1.2", "TLSv1.3"] {
        assert!(report.contains(&format!("{version} not vulnerable to heartbleed")), "{report}");
        let suites = lines.iter().filter(|words| words.len() > 4 && words[1] == version && words[3] == "bits").count();
        let expected = if version == "TLSv1.2" { SUITES_12.len() } else { SUITES_13.len() };
        assert_eq!(suites, expected, "{report}");
    }
    // Those of TLS 1.3 alone: it does not look for others.
    let groups = lines.iter().filter(|words| words.len() > 3 && words[0] == "TLSv1.3" && words[2] == "bits");
    let groups: BTreeSet<&str> = groups.map(|words| words[3]).collect();
    assert_eq!(groups, BTreeSet::from(["secp256r1", "x25519"]), "{report}");
    assert!(report.contains("Session renegotiation not supported"), "{report}");
    assert!(!report.contains("_sha1") && !report.contains("_md5"), "a weak scheme of signatures: {report}");
}

/// Scans by scripts of `nmap`, which make each record themselves.
#[track_caller]
fn assert_nmap_finds_what_is_offered(client: &Client) {
    let nmap = ["nmap", "-n", "-Pn", "-sT", "--disable-arp-ping", "-p", "443"];
    let scripts = ["--script", "ssl-enum-ciphers,ssl-cert,sslv2,tls-alpn"];
    let report = scan(client, &[&nmap[..], &scripts, &[NODE]].concat());
    let mut version = "";
    let mut found = BTreeSet::new();
    for line in report.lines().map(|line| line.trim_matches(['|', '_', ' '])) {
        if let Some(name) = line.strip_suffix(':').filter(|name| name.starts_with("TLSv") || name.starts_with("SSLv")) {
            version = name;
        } else if let Some((suite, _)) = line.strip_prefix("TLS_").and_then(|suite| suite.split_once(' ')) {
            found.insert((version, suite.strip_prefix("AKE_WITH_").unwrap_or(suite)));
        }
    }
    let expected = SUITES_12.map(|suite| ("TLSv1.2", suite)).into_iter();
    assert_eq!(found, expected.chain(SUITES_13.map(|suite| ("TLSv1.3", suite))).collect(), "{report}");
    assert!(report.contains("least strength: A"), "{report}");
    assert!(report.contains(&format!("ssl-cert: Subject: commonName={NAME}")), "{report}");
    assert!(!report.contains("sslv2:"), "it speaks SSL 2: {report}");

    let scripts = ["--script", "ssl-heartbleed,ssl-poodle,ssl-ccs-injection,ssl-dh-params"];
    let shows = ["--script-args", "vulns.showall"];
    let report = scan(client, &[&nmap[..], &scripts, &shows, &[NODE]].concat());
    let states: Vec<&str> =
        report.lines().filter_map(|line| line.split_once("State: ")).map(|(_, state)| state).collect();
    // Four of them are of `ssl-dh-params`.
    assert_eq!(states, ["NOT VULNERABLE"; 7], "{report}");
}

/// Scans by `testssl`, without what the others look for too.
#[track_caller]
fn assert_testssl_finds_no_weakness(site: &Site, client: &Client) {
    let findings = site.bed.node.path("findings.json");
    let path = findings.to_str().expect("the folder's path is UTF-8");
    let mut command = client.namespace.command("timeout");
    command.args(["120", "testssl", "--quiet", "--color", "0", "--warnings", "off", "--nodns", "none"]);
    command.args(["--ip", NODE, "--jsonfile", path]).env("TERM", "dumb").stdin(std::process::Stdio::null());
    command.args(["--protocols", "--heartbleed", "--ticketbleed", "--robot", "--renegotiation", "--crime", "--grease"]);
    let said = output(command.arg(format!("https://{NAME}")));
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let text = fs::read_to_string(&findings).unwrap_or_else(|error| panic!("no findings: {error}: {said}"));
    let findings: Vec<serde_json::Value> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let finding = |id: &str| {
        let found = findings.iter().find(|finding| finding["id"] == id);
        let found = found.unwrap_or_else(|| panic!("nothing is said of {id}: {said}"));
        (found["severity"].as_str().unwrap_or_default(), found["finding"].as_str().unwrap_or_default())
    };
    for version in ["SSLv2", "SSLv3", "TLS1", "TLS1_1"] {
        assert_eq!(finding(version).1, "not offered", "{version}: {said}");
    }
    for id in [
        "TLS1_2",
        "TLS1_3",
        "heartbleed",
        "ticketbleed",
        "ROBOT",
        "secure_renego",
        "secure_client_renego",
        "CRIME_TLS",
        "GREASE",
    ] {
        assert_eq!(finding(id).0, "OK", "{id}: {said}");
    }
    assert_eq!(finding("ALPN").1, "http/1.1", "{said}");
}

#[test]
fn ab_and_wrk_get_each_answer_whole_over_connections_that_are_kept_and_new_ones() {
    let site = Site::new(&[(NAME, P256)], "connections_max = 64\n");
    let client = &site.bed.clients[0];
    let url = |path: &str| format!("https://{NODE}{path}");
    for (requests, words) in [
        (3_000, &["-k", "-c", "20", "-f", "TLS1.3"][..]),
        (3_000, &["-k", "-c", "20", "-f", "TLS1.2"]),
        (300, &["-c", "20"]),
    ] {
        let rate = ab(client, requests, words, &url("/"));
        println!("ab {words:?}: {rate} requests per second");
    }
    for (path, body_bytes, connections) in [("/", 5, 20), ("/big", BIG_BYTES, 10)] {
        let answers = wrk(&site.bed, client, connections, &url(path), body_bytes);
        println!("wrk over {connections} connections for {path}: {answers} answers, each of them whole");
    }
    assert_eq!(site.curl(client, &[], "/"), "hello");
    assert_no_connection_is_left(client);
}
