//! Random requests.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// A request with all of its bytes, after which a new one can follow.
pub(crate) type Request = Vec<u8>;

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned),
        1 => (249..=250_usize).prop_map(|len| "k".repeat(len)),
        1 => "[!-~]{1,80}".prop_filter("it says noreply", |key| key != "noreply"),
    ]
}

/// How large a request may become.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) value_bytes: usize,
    pub(crate) keys: usize,
}

/// Without line ends, as they could end in what marks the end of an answer.
fn value(size: Size) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "[a-z]{0,12}".prop_map(String::into_bytes),
        4 => "[0-9]{1,3}".prop_map(String::into_bytes),
        1 => select(vec!["18446744073709551615", "18446744073709551616", "9223372036854775808", " 7", "5 ", "5x", "-1", "+5"])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(0x20..=0xff_u8, 0..size.value_bytes.min(3000)),
        1 => (0..size.value_bytes).prop_map(|len| b"0123456789".repeat(len / 10)),
    ]
}

fn exptime() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => Just("0"),
        2 => Just("-1"),
        1 => Just("-2147483648"),
        2 => Just("1000"),
        1 => Just("2592000"),
        1 => Just("2000000000"),
        1 => Just("2592001"),
        1 => Just("x"),
        1 => Just("4294967296"),
    ]
    .prop_map(str::to_owned)
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0..200_u64).prop_map(|number| number.to_string()),
        1 => any::<u64>().prop_map(|number| number.to_string()),
        1 => select(vec!["-1", "x", "", "99999999999999999999", "1x", "+1", "0x10"]).prop_map(str::to_owned),
    ]
}

fn no_reply() -> impl Strategy<Value = &'static str> {
    prop_oneof![6 => Just(""), 1 => Just(" noreply"), 1 => Just(" other")]
}

fn line_end() -> impl Strategy<Value = &'static str> {
    prop_oneof![5 => Just("\r\n"), 1 => Just("\n")]
}

fn with_value(line: String, value: &[u8], end: &[u8]) -> Request {
    [line.as_bytes(), value, end].concat()
}

fn update(size: Size) -> impl Strategy<Value = Request> {
    let name = select(vec!["set", "set", "add", "replace", "append", "prepend", "cas"]);
    let flags = prop_oneof![4 => Just("0"), 1 => Just("7"), 1 => Just("4294967295"), 1 => Just("4294967296")];
    // Never too little, for the test would wait for the rest.
    let value_end = prop_oneof![12 => Just("\r\n"), 1 => Just("xy\r\n"), 1 => Just("\n\n\r\n")];
    (name, key(), flags, exptime(), value(size), 0..12_u64, no_reply(), value_end).prop_map(
        |(name, key, flags, exptime, value, cas, no_reply, value_end)| {
            let cas = if name == "cas" { format!(" {cas}") } else { String::new() };
            // What is refused without its value would have the value taken for commands.
            let is_refused = exptime == "x";
            let line = format!("{name} {key} {flags} {exptime} {}{cas}{no_reply}\r\n", value.len());
            if is_refused { line.into_bytes() } else { with_value(line, &value, value_end.as_bytes()) }
        },
    )
}

/// The longest line whose end may come later, but for `get` and `gets`.
const LINE_BYTES_MAX: usize = 2048;

fn get(size: Size) -> impl Strategy<Value = Request> {
    let name = select(vec!["get".to_owned(), "gets".into(), "bget".into()]);
    let touching = (select(vec!["gat", "gats"]), exptime()).prop_map(|(name, exptime)| format!("{name} {exptime}"));
    (prop_oneof![3 => name, 1 => touching], vec(key(), 1..=size.keys), line_end()).prop_map(|(name, mut keys, end)| {
        // memcached closes the connection on a longer line of another name if it comes in parts, as its reads happen to be.
        while !matches!(&*name, "get" | "gets") && keys.join(" ").len() > LINE_BYTES_MAX - 40 {
            keys.pop();
        }
        format!("{name} {}{end}", keys.join(" ")).into_bytes()
    })
}

fn meta_flag(letters: &'static str) -> impl Strategy<Value = String> {
    let letter = select(letters.chars().collect::<Vec<_>>());
    (letter, number(), 0..40_u8, exptime(), "[!-~]{0,34}").prop_map(|(letter, number, cas, exptime, text)| match letter
    {
        'T' | 'N' | 'R' => format!("{letter}{exptime}"),
        // Mostly one that an item may have, or had.
        'C' if number.len() < 4 => format!("C{cas}"),
        'C' | 'F' | 'D' | 'J' => format!("{letter}{number}"),
        'M' => format!("M{}", &text[..text.len().min(1)]),
        'O' => format!("O{text}"),
        letter => letter.to_string(),
    })
}

fn meta_get() -> impl Strategy<Value = Request> {
    (key(), vec(meta_flag("cfhkOqstvuNTR"), 0..9), line_end())
        .prop_map(|(key, flags, end)| format!("mg {key} {}{end}", flags.join(" ")).into_bytes())
}

fn meta_set(size: Size) -> impl Strategy<Value = Request> {
    let mode = select(vec!["", " ME", " MA", " MP", " MR", " MS", " Mx"]);
    (key(), value(size), mode, vec(meta_flag("ckOqCFIT"), 0..5)).prop_map(|(key, value, mode, flags)| {
        with_value(format!("ms {key} {}{mode} {}\r\n", value.len(), flags.join(" ")), &value, b"\r\n")
    })
}

fn meta_delete() -> impl Strategy<Value = Request> {
    (key(), vec(meta_flag("kOqCIT"), 0..5), line_end())
        .prop_map(|(key, flags, end)| format!("md {key} {}{end}", flags.join(" ")).into_bytes())
}

fn meta_count() -> impl Strategy<Value = Request> {
    let mode = select(vec!["", " MI", " MD", " M+", " M-", " Mx"]);
    (key(), mode, vec(meta_flag("kOqCNJDTtcv"), 0..7))
        .prop_map(|(key, mode, flags)| format!("ma {key}{mode} {}\r\n", flags.join(" ")).into_bytes())
}

fn count() -> impl Strategy<Value = Request> {
    (select(vec!["incr", "decr"]), key(), number(), no_reply())
        .prop_map(|(name, key, delta, no_reply)| format!("{name} {key} {delta}{no_reply}\r\n").into_bytes())
}

fn base64() -> impl Strategy<Value = Request> {
    let key = prop_oneof![4 => Just("YWJj".to_owned()), 1 => "[A-Za-z0-9+/=!]{1,12}", 1 => Just("YQ==".to_owned())];
    (key, select(vec!["mg K b v k", "ms K 1 b k\r\n1", "md K b k", "me K b", "mg abc v k", "mg a v k"]))
        .prop_map(|(key, line)| format!("{}\r\n", line.replace('K', &key)).into_bytes())
}

fn other() -> impl Strategy<Value = Request> {
    prop_oneof![
        3 => (key(), exptime(), no_reply()).prop_map(|(key, exptime, no_reply)| format!("touch {key} {exptime}{no_reply}\r\n")),
        4 => (key(), no_reply()).prop_map(|(key, no_reply)| format!("delete {key}{no_reply}\r\n")),
        1 => no_reply().prop_map(|no_reply| format!("flush_all{}\r\n", no_reply.replace("other", "0"))),
        2 => key().prop_map(|key| format!("me {key}\r\n")),
        1 => Just("version\r\n".to_owned()),
        1 => Just("verbosity 0\r\n".to_owned()),
        1 => Just("get \0a\r\n".to_owned()),
    ]
    .prop_map(String::into_bytes)
}

/// Words in any order.
fn noise() -> impl Strategy<Value = Request> {
    let word = select(vec![
        "get",
        "gat",
        "incr",
        "delete",
        "touch",
        "verbosity",
        "mg",
        "md",
        "ma",
        "me",
        "a",
        "b",
        "0",
        "-1",
        "1",
        "noreply",
        "k",
        "v",
        "q",
        "N0",
        "T0",
        "ME",
        "x",
        "xx",
    ]);
    (vec(word, 0..7), line_end()).prop_map(|(words, end)| format!("{}{end}", words.join(" ")).into_bytes())
}

/// Any request that can be answered.
pub(crate) fn any_request(size: Size) -> impl Strategy<Value = Request> {
    prop_oneof![
        6 => update(size), 4 => get(size), 3 => meta_get(), 3 => meta_set(size), 2 => meta_delete(), 2 => meta_count(), 3 => count(), 2 => base64(),
        3 => other(), 1 => noise(),
    ]
}

/// Requests whose answers do not depend on whether those before them were sent already. A number of an item that is being sent is not changed
/// in place, so that its padding and its flags become others.
pub(crate) fn pipelined_request(size: Size) -> impl Strategy<Value = Request> {
    prop_oneof![6 => update(size), 4 => get(size), 3 => meta_get(), 3 => meta_set(size), 2 => meta_delete(), 3 => other()]
}
