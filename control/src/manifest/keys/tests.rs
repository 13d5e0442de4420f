//! Holds the tables against the parser: what it accepts, the bounds that its messages name, and the defaults of what it reads.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::manifest::{Bundle, Contents, default_tenant, document};

const DIGEST: &str = "sha256:7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a";

/// Returns a manifest with this line in the table.
fn with(path: &str, line: &str) -> String {
    let body = match path {
        "" => return format!("{line}\nversion = \"pinion.v1\"\n"),
        "key" | "model" | "state" => format!("[{path}.it]\n{line}\n"),
        "chain.stage" => format!("[[chain]]\nname = \"c\"\n[[chain.stage]]\n{line}\n"),
        "chain.stage.files" => {
            format!("[[chain]]\nname = \"c\"\n[[chain.stage]]\nmodule = \"m\"\n[chain.stage.files]\n{line}\n")
        }
        "chain.entry" => format!("[[chain]]\nname = \"c\"\n[chain.entry]\n{line}\n"),
        "chain.entry.branch" => format!("[[chain]]\nname = \"c\"\n[[chain.entry.branch]]\n{line}\n"),
        "chain.reverse" => format!("[[chain]]\nname = \"c\"\n[chain.reverse]\n{line}\n"),
        "chain.outbound" => format!("[[chain]]\nname = \"c\"\n[[chain.outbound]]\n{line}\n"),
        "rule.match" => format!("[[rule]]\nname = \"r\"\n[rule.match]\n{line}\n"),
        table => format!("[[{table}]]\n{line}\n"),
    };
    format!("version = \"pinion.v1\"\n{body}")
}

fn read(text: &str) -> Result<Contents, String> {
    let mut bundle = Bundle::default();
    let read = document::read(Path::new("it.toml"), text, &default_tenant(), &mut bundle);
    read.and_then(|()| bundle.load()).map_err(|error| error.to_string())
}

fn refusal(path: &str, line: &str) -> String {
    read(&with(path, line)).expect_err(line)
}

/// Returns the words that a message lists as expected.
fn expected(message: &str) -> Vec<&str> {
    let (_, list) = message.rsplit_once("expected ").unwrap_or_default();
    list.split('`').skip(1).step_by(2).collect()
}

fn all_keys() -> impl Iterator<Item = (&'static str, Key)> {
    tables().into_iter().flat_map(|Table { path, keys, .. }| keys.into_iter().map(move |key| (path, key)))
}

#[test]
fn each_table_has_the_keys_that_the_parser_knows() {
    for Table { path, keys, .. } in tables() {
        let message = refusal(path, "nosuchkey = 1");
        let mut known: Vec<&str> = expected(&message).into_iter().collect();
        let mut listed: Vec<&str> = keys.iter().map(|key| key.name).collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, known, "{path}: {message}");
    }
}

#[test]
fn bounds_and_words_are_those_that_the_parser_names() {
    for (path, Key { name, values, .. }) in all_keys() {
        let line = |value: &str| format!("{name} = {value}");
        match &values {
            Values::Number(_) => {
                let message = refusal(path, &line("\"?\""));
                assert!(message.ends_with(&format!("expected {values}")), "{path}.{name} has {values}: {message}");
            }
            Values::Boolean => {
                let message = refusal(path, &line("7"));
                assert!(message.ends_with("expected true or false"), "{path}.{name}: {message}");
            }
            Values::OneOf(words) if name != "version" => {
                assert_eq!(expected(&refusal(path, &line("\"?\""))), *words, "{path}.{name}");
            }
            _ => {}
        }
    }
}

#[test]
fn each_key_refuses_a_value_of_another_type() {
    // The version is in each manifest already, and an empty list is one of tenants.
    for (path, Key { name, values, .. }) in all_keys().filter(|(_, key)| !["version", "tenant"].contains(&key.name)) {
        let value = match values {
            Values::List(_) | Values::Tables(_) | Values::TextOrNumber(_) => "true",
            Values::Text(_) | Values::Number(_) | Values::Boolean | Values::OneOf(_) => "[]",
        };
        let message = refusal(path, &format!("{name} = {value}"));
        assert!(message.contains("expected"), "{path}.{name} = {value}: {message}");
    }
}

#[test]
fn a_key_is_required_if_the_parser_misses_it() {
    for Table { path, keys, .. } in tables().into_iter().filter(|table| !table.path.is_empty()) {
        // Its own name is not a key of the table of a key, a model or a field.
        let missed = refusal_of_empty(path);
        let required = keys.iter().filter(|key| key.default == IfAbsent::Required).map(|key| key.name);
        match missed {
            Some(missed) => assert!(required.clone().any(|name| name == missed), "{path}: {missed} is not required"),
            None => assert_eq!(required.count(), 0, "{path}"),
        }
    }
}

/// Returns the key that the parser misses first in an empty table.
fn refusal_of_empty(path: &str) -> Option<String> {
    let message = read(&with(path, "")).err()?;
    let path = if path == "state" { "state.it" } else { path };
    let (_, name) = message.split_once(&format!("{path}: missing key `"))?;
    Some(name.trim_end_matches('`').to_owned())
}

/// Returns objects of which only what is required was given, as JSON by their tables.
fn least() -> Vec<(&'static str, Value)> {
    let text = format!(
        "version = \"pinion.v1\"\n[state.f]\nvalue_bytes = 1\nentries = 1\n[[module]]\nname = \"m\"\ndigest = \"{DIGEST}\"\n\
         [[chain]]\nname = \"c\"\n[[chain.stage]]\nmodule = \"m\"\nstate = {{ f = \"read\" }}\n\
         [[rule]]\nname = \"r\"\npolicy = \"shared\"\nchain = \"c\"\n"
    );
    let contents = read(&text).unwrap();
    let tenants = read("version = \"pinion.v1\"\n[[tenant]]\nname = \"t\"\n").unwrap().tenants;
    vec![
        ("", json!({ "tenant": contents.chains[0].tenant })),
        ("state", json!(contents.chains[0].fields[0])),
        ("chain", json!(contents.chains[0])),
        ("chain.stage", json!(contents.chains[0].stages[0])),
        ("rule", json!(contents.rules[0])),
        ("rule.match", json!(contents.rules[0].matcher)),
        ("tenant", json!(tenants[0])),
    ]
}

#[test]
fn defaults_are_what_is_read_without_the_key() {
    let objects = least();
    for (path, Key { name, default, .. }) in all_keys() {
        let expected = match default {
            IfAbsent::Number(number) => json!(number),
            IfAbsent::False => json!(false),
            IfAbsent::Word(word) => json!(word),
            IfAbsent::None(_) | IfAbsent::Required => continue,
        };
        let (_, object) = objects.iter().find(|(table, _)| *table == path).expect(path);
        assert_eq!(object[name], expected, "{path}.{name}");
    }
}
