//! Configurations are read into a function's types, or refused.

#![cfg(all(feature = "config", not(target_family = "wasm")))]

use core::net::IpAddr;
use std::collections::BTreeMap;

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
fn invalid_toml_is_refused_with_its_line() {
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

/// A type that any table can be read into, so that two readers can be compared.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Anything {
    Boolean(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<Anything>),
    Table(BTreeMap<String, Anything>),
}

type Document = BTreeMap<String, Anything>;

/// Returns whether the `toml` crate reads a text alike, apart from the words of its errors.
fn is_read_as_by_toml(text: &str) -> bool {
    let wanted = toml::from_str::<Document>(text);
    match (config::parse::<Document>(text.as_bytes()), wanted) {
        // Compared as text, as NaN does not equal itself.
        (Ok(read), Ok(wanted)) => format!("{read:?}") == format!("{wanted:?}"),
        (Err(_), Err(_)) => true,
        // The other reader has a type for dates, and reads them into tables of that type.
        (Err(refusal), Ok(_)) => refusal.to_string().contains("is a date or a time"),
        (Ok(_), Err(_)) => false,
    }
}

#[test]
fn toml_is_read_as_others_read_it() {
    let texts = [
        "a = 1\nb = -1\nc = +1\nd = 0\ne = 1_000\nf = 0xdead_BEEF\ng = 0o17\nh = 0b1_0",
        "a = 9223372036854775807\nb = -9223372036854775808\nc = 18446744073709551615",
        "a = 18446744073709551616",
        "a = -9223372036854775809",
        "a = 01",
        "a = -01",
        "a = 1__0",
        "a = _1",
        "a = 1_",
        "a = +0x1",
        "a = 0x",
        "a = 0x_1",
        "a = 0X1",
        "a = 1.5\nb = -0.0\nc = 1e3\nd = 1E-3\ne = 1.5e+3\nf = 1_0.0_1\ng = inf\nh = -inf\ni = nan\nj = +nan",
        "a = 1.",
        "a = .5",
        "a = 1.e3",
        "a = 00.5",
        "a = 1e",
        "a = 1e400",
        "a = true\nb = false",
        "a = True",
        "a = tru",
        "a = \"\\b\\t\\n\\f\\r\\e\\\"\\\\\\x41\\u00e9\\U0001F600\"",
        "a = \"\\q\"",
        "a = \"\\ud800\"",
        "a = \"\\u+041\"",
        "a = \"\\u0_41\"",
        "a = \"x",
        "a = 'C:\\x'\nb = ''",
        "a = 'x\ny'",
        "a = \"\"\"\nline\n\"two\"\"\\\n\n   three\"\"\"\"\"",
        "a = '''\nline ''two'''''",
        "a = '''x''''''",
        "a = \"\"\"\\   \n  x\"\"\"",
        "a = \"\"\"\\  x\"\"\"",
        "a = \"tab\there\"",
        "a = \"bell\u{7}\"",
        "a = 1 # \u{7}",
        "a = 1 # a comment",
        "\u{feff}a = 1",
        "a = 1\r\nb = 2\r\n",
        "a = 1\rb = 2",
        "a = 1 b = 2",
        "a = \"\"\"x\r\ny\"\"\"",
        "a = [1, 'x', [2],]\nb = [ # comment\n 1\n , 2\n]",
        "a = [1 2]",
        "a = [,]",
        "a = [1,,]",
        "a = { b = 1, c.d = 2, c.e = 3 }",
        "a = { b = 1,\n c = 2, # comment\n }",
        "a = { b = 1, b = 2 }",
        "a = { b.c = 1, b = 2 }",
        "a = { , }",
        "a = {}\na.b = 1",
        "a = {}\n[a.b]",
        "a.b = 1\na.c = 2\n\"a\".'d e' = 3\n\"\" = 4",
        "a = 1\na.b = 2",
        "a.b = 1\n[a]\nc = 2",
        "a.b.c = 1\n[a.d]\ne = 2",
        "a = ",
        "= 1",
        "a",
        "a b = 1",
        "a. = 1",
        ".a = 1",
        "\"\"\"a\"\"\" = 1",
        "é = 1",
        "[a]\nb = 1\n[c]\nd = 2\n[a.e]\nf = 3",
        "[a.b]\nc = 1\n[a]\nd = 2",
        "[a.b]\nc = 1\n[a]\nb.d = 2",
        "[a.b.c]\nd = 1\n[a]\nb.d = 2",
        "[a.b.c]\nd = 1\n[a]\nb.d = 2\n[a.b]",
        "[a]\n[a]",
        "[a]\n[[a]]",
        "[[a]]\n[a]",
        "[[a]]\nb = 1\n[[a]]\nb = 2\n[a.c]\nd = 3\n[[a.e]]\n[[a.e]]\nf = 4",
        "a = [{}]\n[[a]]",
        "a = [{}]\n[a.b]",
        "[[a.b]]\n[a]\nc = 1",
        "[[a.b]]\n[a.b.c]",
        "[a]\n[a.b]\n[[a.b]]",
        "[ a . \"b\" ] # comment\nc = 1",
        "[]",
        "[a",
        "[a]]",
        "[[a]",
        "[ [a]]",
        "[a] b = 1",
        "[a]\n\n# comment\n  b = 1  \n",
    ];
    for text in texts {
        let theirs = toml::from_str::<Document>(text);
        let ours = config::parse::<Document>(text.as_bytes());
        assert!(is_read_as_by_toml(text), "{text:?} is {ours:?}, and by the other reader {theirs:?}");
    }
}

#[test]
fn invalid_toml_is_refused_with_a_reason() {
    let cases = [
        ("name = ", "line 1: expected a value, found the end of the text"),
        ("\nname", "line 2: expected `=`, found the end of the text"),
        ("name = 1 2", "line 1: expected the end of the line, found '2'"),
        ("name = web", "line 1: `web` is no value: strings have quotes"),
        ("name = \"a", "line 1: expected the end of the string, found the end of the text"),
        ("name = \"\\d\"", "line 1: this backslash escapes nothing"),
        ("rule = [1,\n2 3]", "line 2: expected `,` or `]`, found '3'"),
        ("name = 'a'\n\nname = 'b'", "line 3: `name` is defined twice"),
        ("name = 1979-05-27", "line 1: `1979-05-27` is a date or a time, and those are not read: write a string"),
        ("name = 99999999999999999999", "line 1: `99999999999999999999` is an integer of more than 64 bits"),
        ("[[rule]", "line 1: expected `]]`, found ']'"),
    ];
    for (text, message) in cases {
        assert_eq!(refusal(text), format!("configuration, {message}"));
    }
}

#[test]
fn values_out_of_a_types_range_are_refused() {
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Fixed {
        pair: Option<(u8, u8)>,
        address: Option<[u8; 4]>,
        point: Option<Point>,
        ratio: Option<f32>,
    }
    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Point {
        x: u8,
        y: u8,
    }
    let refusal = |text: &str| config::parse::<Fixed>(text.as_bytes()).unwrap_err().to_string();
    let cases = [
        ("pair = [1,\n2,\n3]", "line 3: pair: there are 3 elements, and 2 are wanted"),
        ("address = [10, 0, 0, 1, 7, 8]", "line 1: address: there are 6 elements, and 4 are wanted"),
        ("point = [1, 2, 3]", "line 1: point: there are 3 elements, and 2 are wanted"),
        ("ratio = 1e39", "line 1: ratio: `1e39` is too large"),
        ("ratio = 1\rpair = [1, 2]", "line 1: expected the end of the line, found '\\r'"),
    ];
    for (text, message) in cases {
        assert_eq!(refusal(text), format!("configuration, {message}"));
    }
    let fitting = "pair = [1, 2]\naddress = [10, 0, 0, 1]\npoint = [1, 2]\nratio = inf";
    assert!(config::parse::<Fixed>(fitting.as_bytes()).is_ok());
}

#[test]
fn nesting_that_is_too_deep_is_refused() {
    for text in [
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}", "{ a = ".repeat(100_000)),
        format!("a{} = 1", ".a".repeat(100_000)),
        format!("[a{}]", ".a".repeat(100_000)),
        format!("a = {}{}", "{ a.a.a.a = ".repeat(40), "1"),
    ] {
        assert_eq!(refusal(&text), "configuration, line 1: nested more than 80 deep");
    }
    let text = format!("a = {}{}", "[".repeat(70), "]".repeat(70));
    assert!(is_read_as_by_toml(&text));
}

/// One type of each kind that serde knows.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kinds {
    choice: Vec<Choice>,
    pair: (u8, String),
    wrapped: Wrapped,
    maybe: Option<char>,
    by_port: BTreeMap<u16, bool>,
    ratio: f32,
    from_integer: f64,
    large: u64,
    #[serde(default)]
    left_out: Option<u8>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Wrapped(i128);

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Choice {
    Nothing,
    Number(u8),
    Two(u8, u8),
    Named { x: u8 },
}

const KINDS: &str = "choice = ['nothing', { nothing = {} }, { number = 1 }, { two = [1, 2] }, { named = { x = 1 } }]\n\
    pair = [1, 'x']\nwrapped = -1\nmaybe = 'y'\nby_port = { 80 = true }\nratio = 1_0.5\nfrom_integer = 2\n\
    large = 18446744073709551615\n";

#[test]
fn all_kinds_of_types_are_read() {
    let read = config::parse::<Kinds>(KINDS.as_bytes());
    assert_eq!(read.as_ref().unwrap(), &toml::from_str(KINDS).unwrap());
    assert_eq!(read.unwrap().choice.len(), 5);
}

#[test]
fn all_kinds_of_types_are_refused_by_line_and_path() {
    let cases = [
        ("'nothing'", "5", "line 1: choice[0]: invalid type: integer `5`, expected a string or a table of one entry"),
        ("number = 1 }", "number = 256 }", "line 1: choice[2].number: invalid value: integer `256`, expected u8"),
        ("{ number = 1 }", "{}", "line 1: choice[2]: invalid type: map, expected a table of one entry"),
        ("x = 1", "x = 1.5", "line 1: choice[4].named.x: invalid type: floating point `1.5`, expected u8"),
        ("[1, 'x']", "[1]", "line 2: pair: invalid length 1, expected a tuple of size 2"),
        ("-1", "[]", "line 3: wrapped: invalid type: sequence, expected i128"),
        ("'y'", "'yes'", "line 4: maybe: invalid value: string \"yes\", expected a character"),
        ("80", "x", "line 5: by_port.x: invalid value: string \"x\", expected u16"),
        ("1_0.5", "1e400", "line 6: ratio: `1e400` is too large"),
        ("1_0.5", "true", "line 6: ratio: invalid type: boolean `true`, expected f32"),
    ];
    for (from, to, message) in cases {
        let refusal = config::parse::<Kinds>(KINDS.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert_eq!(refusal.to_string(), format!("configuration, {message}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    // Keys have at most two parts: with longer keys the other reader adds entries to tables in double brackets, which TOML does not allow.
    #[test]
    fn random_toml_is_read_as_others_read_it(
        text in "((\\[{1,2}[ab](\\.[ab]){0,2}\\]{1,2}|[ab](\\.[ab])? = (1|'x'|\\[\\]|\\[\\{\\}\\]|\\{ ?([ab](\\.b)? = 1)? ?\\}))\n){0,6}"
    ) {
        prop_assert!(is_read_as_by_toml(&text), "{text}");
    }

    #[test]
    fn random_scalars_are_read_as_others_read_them(
        scalar in "[-+]?(0[xob])?[0-9a-f_]{0,4}(\\.[0-9_]{0,3})?([eE][-+]?[0-9_]{0,3})?|\"(\"\")?([a\\\\nux0-9\" \n'#\t]{0,12})\"{1,3}|'{1,3}([a\\\\\" \n'#]{0,8})'{1,3}"
    ) {
        prop_assert!(is_read_as_by_toml(&format!("a = {scalar}")), "{scalar}");
    }
}
