use proptest::prelude::*;

use super::*;

/// Bidirectional controls, separators, joiners and invisible characters: none is visible, and all change how text is
/// shown.
const DECEIVING: [char; 33] = [
    '\u{202a}',
    '\u{202b}',
    '\u{202c}',
    '\u{202d}',
    '\u{202e}',
    '\u{2066}',
    '\u{2067}',
    '\u{2068}',
    '\u{2069}',
    '\u{200e}',
    '\u{200f}',
    '\u{61c}',
    '\u{2028}',
    '\u{2029}',
    '\u{200b}',
    '\u{200c}',
    '\u{200d}',
    '\u{2060}',
    '\u{feff}',
    '\u{ad}',
    '\u{34f}',
    '\u{115f}',
    '\u{3164}',
    '\u{ffa0}',
    '\u{fe0f}',
    '\u{e0100}',
    '\u{e0041}',
    '\u{180e}',
    '\u{2800}',
    '\u{a0}',
    '\u{3000}',
    '\u{e000}',
    '\u{10ffff}',
];

#[test]
fn text_that_can_be_read_stays_as_it_is() {
    for text in ["", "it imports env.system", "größer als 5 °C", "日本語のログ", "नमस्ते", "C:\\temp \\n", "e\u{301} 🦀"]
    {
        assert_eq!(printable(text, 1024), text);
    }
}

#[test]
fn control_characters_and_bytes_that_are_no_text_are_escaped() {
    assert_eq!(
        printable(b"a\x1b[2J\nERROR forged\tb\r\xff\x7f", 1024),
        "a\\u{1b}[2J\\nERROR forged\\tb\\r\u{fffd}\\u{7f}"
    );
    assert_eq!(printable("\u{9b}31m\u{0}\u{85}", 1024), "\\u{9b}31m\\u{0}\\u{85}");
}

#[test]
fn characters_that_deceive_the_eye_are_escaped() {
    for c in DECEIVING {
        assert_eq!(printable(format!("a{c}b"), 1024), format!("a\\u{{{:x}}}b", c as u32));
        assert!(!is_printable(c), "{:x}", c as u32);
    }
}

#[test]
fn marks_need_a_letter_and_do_not_pile_up() {
    assert_eq!(printable("\u{301}a\u{301}\u{302}", 1024), "\\u{301}a\u{301}\u{302}");
    let marks = "\u{301}".repeat(6);
    assert_eq!(printable(format!("a{marks}b"), 1024), format!("a{}\\u{{301}}\\u{{301}}b", "\u{301}".repeat(4)));
    assert_eq!(printable_lines("a\n\u{301}", 1024), "a\n\\u{301}");
}

#[test]
fn a_long_text_is_cut_between_characters_and_says_how_much_is_missing() {
    assert_eq!(printable("x".repeat(100), 100), "x".repeat(100));
    assert_eq!(printable("x".repeat(101), 100), format!("{}... (45 bytes left out)", "x".repeat(56)));
    assert_eq!(printable("ä".repeat(100), 101), format!("{}... (144 bytes left out)", "ä".repeat(28)));
    // No escape is cut in two.
    assert_eq!(printable([0x1b; 100], 100), format!("{}... (91 bytes left out)", "\\u{1b}".repeat(9)));
    // Nor is the note cut, however little room there is.
    assert_eq!(printable("x".repeat(100), 0), format!("{}... (80 bytes left out)", "x".repeat(20)));
}

#[test]
fn several_lines_stay_lines_and_can_be_kept_apart_from_others() {
    let text = "it trapped\n   0: \u{1b}main\r\nerror: forged";
    assert_eq!(printable_lines(text, 1024), "it trapped\n   0: \\u{1b}main\\r\nerror: forged");
    assert_eq!(indented(text, 1024), "it trapped\n       0: \\u{1b}main\\r\n    error: forged");
}

/// Text of which much has to be escaped.
fn foreign() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<char>().prop_map(|c| c.to_string().into_bytes()),
        prop::sample::select(&DECEIVING[..]).prop_map(|c| c.to_string().into_bytes()),
        prop::sample::select(&["\n", "\r", "\t", "\u{1b}[", "\u{301}", "a", " ", "\\", "\\u{1b}"][..])
            .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec(piece, 0..200).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_becomes_printable_and_bounded_and_then_stays_unchanged(text in foreign(), bytes_max in 0_usize..600) {
        for lines in [Lines::One, Lines::Several] {
            let out = escape(&text, bytes_max, lines);
            prop_assert!(out.len() <= bytes_max.max(CUT_BYTES_MIN), "{} bytes of {bytes_max}: {out}", out.len());
            prop_assert!(out.chars().all(|c| is_printable(c) || lines == Lines::Several && c == '\n'), "{out:?}");
            for line in out.split('\n') {
                prop_assert!(!line.starts_with(is_mark), "{out:?}");
            }
            prop_assert_eq!(escape(out.as_bytes(), bytes_max, lines), out);
        }
    }

    #[test]
    fn text_that_fits_and_can_be_printed_is_not_altered(text in "[ -~äß日本]{0,60}") {
        prop_assert_eq!(printable(&text, 600), text);
    }

    #[test]
    fn what_can_be_printed_is_neither_control_nor_format_character(c in any::<char>()) {
        // A character that the standard library escapes in every position is not printable here either.
        let shown_anywhere = format!("a{c}").escape_debug().skip(1).eq([c]) || matches!(c, '"' | '\'' | '\\');
        prop_assert!(!is_printable(c) || shown_anywhere, "{:x}", c as u32);
    }
}
