use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "what is read is not looked at")]
struct House {
    rooms: Option<u16>,
    heating: Option<Heating>,
    garden: Option<Garden>,
    #[serde(default, rename = "door")]
    doors: Vec<Door>,
    #[serde(default)]
    shelves: BTreeMap<String, Garden>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Heating {
    Wood,
    Gas,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "what is read is not looked at")]
struct Garden {
    trees: Option<u8>,
    pond: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "what is read is not looked at")]
struct Door {
    name: String,
    locks: Option<u32>,
    keys: Option<Vec<u8>>,
    frame: Option<BTreeMap<String, u8>>,
}

/// Returns the line and the problem.
fn fault(text: &str) -> (usize, String) {
    let allowed = |key: &str| match key {
        "door.locks" => Some(whole_number(&(1..=64))),
        "garden" => Some("a table with the header [garden]".to_owned()),
        "door" => Some("tables, each with the header [[door]]".to_owned()),
        _ => None,
    };
    let Fault { span, problem } = read::<House>(text, allowed).unwrap_err();
    (line_of(text, span.start), problem)
}

#[track_caller]
fn assert_faults(cases: &[(&str, usize, &str)]) {
    for (text, line, problem) in cases {
        assert_eq!(fault(text), (*line, (*problem).to_owned()), "{text}");
    }
}

#[test]
fn a_value_of_another_type_is_reported_with_its_key_and_the_allowed_values() {
    assert_faults(&[
        ("rooms = 20.0", 1, "rooms: invalid type: floating point `20.0`, expected a whole number from 0 to 65535"),
        ("rooms = \"64MiB\"", 1, "rooms: invalid type: string \"64MiB\", expected a whole number from 0 to 65535"),
        ("\nrooms = true", 2, "rooms: invalid type: boolean `true`, expected a whole number from 0 to 65535"),
        ("\"rooms\" = nan", 1, "rooms: invalid type: floating point `NaN`, expected a whole number from 0 to 65535"),
        ("rooms = [1]", 1, "rooms: invalid type: a list, expected a whole number from 0 to 65535"),
        ("[rooms]\n", 1, "rooms: invalid type: a table, expected a whole number from 0 to 65535"),
        ("[garden]\npond = 1", 2, "garden.pond: invalid type: integer `1`, expected true or false"),
        ("garden.pond = 1", 1, "garden.pond: invalid type: integer `1`, expected true or false"),
        ("garden = { trees = 1,\n pond = 1 }", 2, "garden.pond: invalid type: integer `1`, expected true or false"),
        ("[[door]]\nname = \"a\"\n[[door]]\nname = 5", 4, "door.name: invalid type: integer `5`, expected a string"),
        (
            "[[door]]\nname = \"a\"\nlocks = 2.0",
            3,
            "door.locks: invalid type: floating point `2.0`, expected a whole number from 1 to 64",
        ),
        (
            "[[door]]\nname = \"a\"\nkeys = [\n1,\n\"b\",\n]",
            5,
            "door.keys: invalid type: string \"b\", expected a whole number from 0 to 255",
        ),
        (
            "[[door]]\nname = \"a\"\n[door.frame]\nwood = true",
            4,
            "door.frame.wood: invalid type: boolean `true`, expected a whole number from 0 to 255",
        ),
        (
            "[shelves.\"in hall\"]\ntrees = 1.0",
            2,
            "shelves.\"in hall\".trees: invalid type: floating point `1.0`, expected a whole number from 0 to 255",
        ),
    ]);
}

#[test]
fn a_number_out_of_its_types_bounds_is_reported_with_its_key_and_bounds() {
    let huge = "9".repeat(40);
    assert_faults(&[
        ("rooms = -1", 1, "rooms: invalid value: integer `-1`, expected a whole number from 0 to 65535"),
        ("rooms = 65536", 1, "rooms: invalid value: integer `65536`, expected a whole number from 0 to 65535"),
        (
            "[[door]]\nname = \"a\"\nlocks = -5",
            3,
            "door.locks: invalid value: integer `-5`, expected a whole number from 1 to 64",
        ),
        (
            "rooms = 99999999999999999999",
            1,
            "rooms: invalid value: integer `99999999999999999999`, expected a whole number from 0 to 65535",
        ),
        (
            "rooms = -99999999999999999999",
            1,
            "rooms: invalid value: integer `-99999999999999999999`, expected a whole number from 0 to 65535",
        ),
        (&format!("rooms = {huge}"), 1, &format!("rooms: invalid value: integer `{huge}`: it is too large")),
        (
            &format!("[[door]]\nlocks = {huge}"),
            2,
            &format!("door.locks: invalid value: integer `{huge}`, expected a whole number from 1 to 64"),
        ),
    ]);
}

#[test]
fn an_enumeration_is_reported_with_its_words_whatever_was_found() {
    assert_faults(&[
        ("heating = \"oil\"", 1, "heating: unknown variant `oil`, expected `wood` or `gas`"),
        ("heating = 5", 1, "heating: invalid type: 5, expected `wood` or `gas`"),
        ("heating = {}", 1, "heating: invalid type: {}, expected `wood` or `gas`"),
        ("[heating]\n", 1, "heating: invalid type: [heating], expected a string"),
    ]);
}

#[test]
fn a_duplicate_key_is_reported_with_its_path() {
    let twice = ": duplicate key: it has a value already, give it once";
    for (text, line, key) in [
        ("rooms = 1\nrooms = 2", 2, "rooms"),
        ("[garden]\ntrees = 1\n[garden]\npond = true", 3, "garden"),
        ("[garden]\ntrees = 1\ntrees = 3", 3, "garden.trees"),
        ("garden.trees = 1\ngarden.trees = 2", 2, "garden.trees"),
        ("garden = { trees = 1,\n trees = 2 }", 2, "garden.trees"),
        ("[[door]]\nname = \"a\"\nname = \"b\"", 3, "door.name"),
        ("[[door]]\nname = \"a\"\n[[door]]\nname = \"b\"\nlocks = 1\nlocks = 1\n[garden]\n", 6, "door.locks"),
        ("[[door]]\nname = \"a\"\nframe = { x = 1, x = 2 }", 3, "door.frame.x"),
        ("garden = 1\n[garden]\ntrees = 1", 2, "garden"),
        ("[garden]\ntrees = 1\n[garden.trees]\nx = 2", 3, "garden.trees"),
        ("[[door]]\nname = \"a\"\n[door]\nname = \"b\"", 3, "door"),
        ("[shelves.x]\ntrees = 1\n[shelves.y]\ntrees = 1\n trees = 1", 5, "shelves.y.trees"),
    ] {
        assert_eq!(fault(text), (line, format!("{key}{twice}")), "{text}");
    }
}

#[test]
fn an_unknown_or_missing_key_is_reported_with_its_table() {
    assert_faults(&[
        ("roms = 1", 1, "unknown key `roms`, expected one of `rooms`, `heating`, `garden`, `door`, `shelves`"),
        ("[garden]\n\ntree = 1", 3, "garden: unknown key `tree`, expected `trees` or `pond`"),
        (
            "[[door]]\nname = \"a\"\nlock = 1",
            3,
            "door: unknown key `lock`, expected one of `name`, `locks`, `keys`, `frame`",
        ),
        ("door = [{ name = \"a\" }, { locks = 1 }]", 1, "door: missing key `name`"),
        ("[[door]]\nname = \"a\"\n\n[[door]]\nlocks = 1", 4, "door: missing key `name`"),
    ]);
}

#[test]
fn a_table_in_place_of_an_array_of_tables_is_reported_and_the_reverse_too() {
    let tables = "expected tables, each with the header [[door]]";
    assert_faults(&[
        ("[door]\nname = \"a\"", 1, &format!("door: invalid type: a table, {tables}")),
        ("door = 3", 1, &format!("door: invalid type: integer `3`, {tables}")),
        ("garden = 3", 1, "garden: invalid type: integer `3`, expected a table with the header [garden]"),
        ("[[garden]]\ntrees = 1", 1, "garden: invalid type: a table, expected a table with the header [garden]"),
    ]);
}

#[test]
fn text_that_is_not_toml_is_refused_in_one_line() {
    for (text, line) in [("rooms = ", 1), ("\nrooms 3", 2), ("rooms = 2x", 1), ("[[door\n", 1), ("a = 'b\n[door]", 1)] {
        let (found, problem) = fault(text);
        assert_eq!(found, line, "{text}: {problem}");
        assert!(!problem.is_empty() && !problem.contains('\n'), "{problem}");
    }
    assert!(fault("rooms = 2x").1.starts_with("rooms: "), "{:?}", fault("rooms = 2x"));
}
