//! Configurations that are read into a tenant's types, and how they are refused.

#![cfg(all(feature = "config", not(target_family = "wasm")))]

use core::net::IpAddr;

use pinion_sdk::config;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Guard {
    name: String,
    #[serde(default)]
    rule: Vec<Rule>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    from: IpAddr,
    #[serde(default)]
    ports: Vec<u16>,
    action: Action,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Allow,
    Deny,
}

fn refusal(text: &str) -> String {
    config::parse::<Guard>(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn names_and_types_are_read() {
    let text = "name = \"web\"\n[[rule]]\nfrom = \"10.0.0.1\"\nports = [80, 443]\naction = \"allow\"\n";
    let rule = Rule { from: "10.0.0.1".parse().unwrap(), ports: vec![80, 443], action: Action::Allow };
    assert_eq!(config::parse(text.as_bytes()), Ok(Guard { name: "web".to_owned(), rule: vec![rule] }));
}

#[test]
fn a_refusal_names_line_path_and_problem() {
    let cases = [
        ("", "configuration, line 1: missing field `name`"),
        ("name = \"a\"\nrulle = []", "configuration, line 2: rulle: unknown field `rulle`, expected `name` or `rule`"),
        (
            "name = \"a\"\n[[rule]]\nfrom = \"::1\"\naction = \"deny\"\n[[rule]]\nfrom = \"::1\"\nports = [80, 65536]",
            "configuration, line 7: rule[1].ports[1]: invalid value: integer `65536`, expected u16",
        ),
        (
            "name = \"a\"\n[[rule]]\nfrom = \"10.0.0.256\"",
            "configuration, line 3: rule[0].from: invalid IP address syntax",
        ),
        (
            "name = \"a\"\n[[rule]]\nfrom = \"::1\"\naction = \"pass\"",
            "configuration, line 4: rule[0].action: unknown variant `pass`, expected `allow` or `deny`",
        ),
        ("name = \"a\"\n[[rule]]\nfrom = \"::1\"", "configuration, line 2: rule[0]: missing field `action`"),
    ];
    for (text, message) in cases {
        assert_eq!(refusal(text), message);
    }
}

#[test]
fn what_is_no_toml_is_refused_with_its_line() {
    assert!(refusal("name = \"a\"\nrule = [").starts_with("configuration, line 2: "), "{}", refusal("rule = ["));
    let binary = config::parse::<Guard>(&[0xff]).unwrap_err().to_string();
    assert!(binary.starts_with("the configuration is no text: "), "{binary}");
}

proptest! {
    #[test]
    fn no_text_panics_and_no_refusal_has_two_lines(text in "(name|rule|=|\\[|\\]|\"[a-z:.]{0,4}\"|[0-9]|\n|[ .]|.){0,30}") {
        if let Err(refusal) = config::parse::<Guard>(text.as_bytes()) {
            prop_assert!(!refusal.to_string().contains('\n'));
        }
    }
}
