//! Reads TOML 1.1 into a tree. Dates and times are refused, as Rust's standard library has no types for them.
//!
//! No text causes a panic or a stack overflow: nesting deeper than [`DEPTH_MAX`] is refused.

use super::refusal::Refusal;
use super::tree::{Key, Node, Origin, Table, Value};

/// Most arrays, tables and parts of a key around a value; a table in double brackets counts once, though it is in an array.
const DEPTH_MAX: usize = 80;

/// Reads a whole text.
pub(super) fn read(text: &str) -> Result<Node, Refusal> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    reader.skip("\u{feff}");
    let mut root = Table::new(Origin::Header);
    let mut table = &mut root;
    loop {
        reader.skip_blanks();
        match reader.peek() {
            None => return Ok(Node { key: Key::default(), at: 0, value: Value::Table(root) }),
            Some(b'#' | b'\n' | b'\r') => {}
            Some(b'[') => table = reader.header(&mut root)?,
            Some(_) => reader.entry(table)?,
        }
        reader.end_line()?;
    }
}

/// Returns the table with that name, and creates it if there is none.
fn table_within(table: &mut Table, key: Key, origin: Origin) -> Result<&mut Table, Refusal> {
    let at = key.at;
    let index = match table.position(&key.name) {
        Some(index) => match &mut table.entries[index].value {
            Value::Tables(_) if origin == Origin::HeaderWithin => index,
            Value::Table(there) if origin == Origin::HeaderWithin && there.origin != Origin::Braces => index,
            Value::Table(there) if matches!(there.origin, Origin::HeaderWithin | Origin::Key) => {
                there.origin = Origin::Key;
                index
            }
            _ => return Err(twice(&key)),
        },
        None => table.add(key, at, Value::Table(Table::new(origin))),
    };
    table.entries[index].table_mut(at)
}

/// Returns the table that a header begins.
fn table_begun(parent: &mut Table, key: Key, at: usize, is_double: bool) -> Result<&mut Table, Refusal> {
    let index = match parent.position(&key.name) {
        Some(index) => match &mut parent.entries[index] {
            Node { value: Value::Tables(_), .. } if is_double => index,
            Node { value: Value::Table(table), at: table_at, .. }
                if !is_double && table.origin == Origin::HeaderWithin =>
            {
                table.origin = Origin::Header;
                *table_at = at;
                index
            }
            _ => return Err(twice(&key)),
        },
        None if is_double => parent.add(key, at, Value::Tables(Vec::new())),
        None => parent.add(key, at, Value::Table(Table::new(Origin::Header))),
    };
    let node = &mut parent.entries[index];
    if let Value::Tables(tables) = &mut node.value {
        tables.push(Node { key: Key::default(), at, value: Value::Table(Table::new(Origin::Header)) });
    }
    node.table_mut(at)
}

fn twice(key: &Key) -> Refusal {
    Refusal::new(format_args!("`{}` is defined twice", key.name)).at(key.at)
}

/// A text and the position of the reader in it.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Arrays, tables and parts of a key around the current position.
    depth: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips the expected text if it comes next. Returns whether it did.
    #[inline(never)]
    fn skip(&mut self, expected: &str) -> bool {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let is_there = rest.starts_with(expected.as_bytes());
        if is_there {
            self.at += expected.len();
        }
        is_there
    }

    /// Skips letters, digits and `others`, and returns them.
    #[inline(never)]
    fn skip_word(&mut self, others: &[u8]) -> &'a str {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte)) {
            self.at += 1;
        }
        self.text.get(from..self.at).unwrap_or_default()
    }

    /// Skips characters that may be in comments and strings, except those in `but`, and returns them.
    #[inline(never)]
    fn skip_text(&mut self, but: &[u8]) -> &'a str {
        let from = self.at;
        while self.peek().is_some_and(|byte| (byte == b'\t' || !byte.is_ascii_control()) && !but.contains(&byte)) {
            self.at += 1;
        }
        self.text.get(from..self.at).unwrap_or_default()
    }

    #[inline(never)]
    fn skip_blanks(&mut self) {
        while self.skip(" ") || self.skip("\t") {}
    }

    #[inline(never)]
    fn skip_newline(&mut self) -> bool {
        self.skip("\n") || self.skip("\r\n")
    }

    fn skip_comment(&mut self) {
        if self.skip("#") {
            self.skip_text(b"");
        }
    }

    /// Skips blanks, comments and line ends, which may be between the elements of an array.
    fn skip_lines(&mut self) {
        loop {
            self.skip_blanks();
            self.skip_comment();
            if !self.skip_newline() {
                return;
            }
        }
    }

    /// Skips the rest of a line after its content.
    fn end_line(&mut self) -> Result<(), Refusal> {
        self.skip_blanks();
        self.skip_comment();
        if self.peek().is_none() || self.skip_newline() { Ok(()) } else { Err(self.expected("the end of the line")) }
    }

    #[inline(never)]
    fn expect(&mut self, expected: &str, name: &str) -> Result<(), Refusal> {
        if self.skip(expected) { Ok(()) } else { Err(self.expected(name)) }
    }

    #[cold]
    #[inline(never)]
    fn expected(&self, what: &str) -> Refusal {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let quoted;
        let found = match rest.chars().next() {
            None => "the end of the text",
            Some('\n') => "the end of the line",
            Some('\r') if rest.starts_with("\r\n") => "the end of the line",
            Some(found) => {
                quoted = format!("{found:?}");
                &quoted
            }
        };
        Refusal::new(format_args!("expected {what}, found {found}")).at(self.at)
    }

    /// Enters one more level of nesting.
    #[inline(never)]
    fn enter(&mut self) -> Result<(), Refusal> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Refusal::new(format_args!("nested more than {DEPTH_MAX} deep")).at(self.at));
        }
        Ok(())
    }

    /// Reads a header in brackets, and returns the table that it begins.
    fn header<'t>(&mut self, root: &'t mut Table) -> Result<&'t mut Table, Refusal> {
        let at = self.at;
        let is_double = self.skip("[[");
        if !is_double {
            self.at += 1;
        }
        self.depth = 0;
        let (parent, key) = self.keys(root, Origin::HeaderWithin)?;
        if is_double {
            self.expect("]]", "`]]`")?
        } else {
            self.expect("]", "`]`")?
        }
        table_begun(parent, key, at, is_double)
    }

    /// Reads a key and its value.
    fn entry(&mut self, table: &mut Table) -> Result<(), Refusal> {
        let depth = self.depth;
        let (table, key) = self.keys(table, Origin::Key)?;
        self.expect("=", "`=`")?;
        self.skip_blanks();
        let at = self.at;
        let value = self.value()?;
        self.depth = depth;
        if table.position(&key.name).is_some() {
            return Err(twice(&key));
        }
        table.add(key, at, value);
        Ok(())
    }

    /// Reads a key and the blanks around it. Returns the table that all parts but the last name, and the last part.
    fn keys<'t>(&mut self, mut table: &'t mut Table, origin: Origin) -> Result<(&'t mut Table, Key), Refusal> {
        loop {
            self.enter()?;
            self.skip_blanks();
            let at = self.at;
            let name = match self.peek() {
                Some(quote @ (b'"' | b'\'')) => self.string(quote, false)?,
                _ => self.skip_word(b"_-").to_owned(),
            };
            if self.at == at {
                return Err(self.expected("a key"));
            }
            self.skip_blanks();
            let key = Key { at, name };
            if !self.skip(".") {
                return Ok((table, key));
            }
            table = table_within(table, key, origin)?;
        }
    }

    fn value(&mut self) -> Result<Value, Refusal> {
        let at = self.at;
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => {
                let is_long = self.skip(if quote == b'"' { "\"\"\"" } else { "'''" });
                self.string(quote, is_long).map(Value::String)
            }
            Some(b'[') => self.array().map(Value::Array),
            Some(b'{') => self.braces().map(Value::Table),
            _ => match self.skip_word(b"+-_.:") {
                "" => Err(self.expected("a value")),
                word => scalar(word).map_err(|problem| Refusal::new(format_args!("`{word}` {problem}")).at(at)),
            },
        }
    }

    fn array(&mut self) -> Result<Vec<Node>, Refusal> {
        self.enter()?;
        let mut elements = Vec::new();
        while self.goes_on(elements.is_empty(), "]", "`,` or `]`")? {
            let at = self.at;
            elements.push(Node { key: Key::default(), at, value: self.value()? });
        }
        self.depth -= 1;
        Ok(elements)
    }

    fn braces(&mut self) -> Result<Table, Refusal> {
        self.enter()?;
        let mut table = Table::new(Origin::Braces);
        let mut is_first = true;
        while self.goes_on(is_first, "}", "`,` or `}`")? {
            self.entry(&mut table)?;
            is_first = false;
        }
        self.depth -= 1;
        Ok(table)
    }

    /// Skips the opening bracket or a comma, or else the closing bracket. Returns whether another element follows.
    #[inline(never)]
    fn goes_on(&mut self, is_first: bool, end: &str, expected: &str) -> Result<bool, Refusal> {
        if is_first {
            // The opening bracket.
            self.at += 1;
        } else {
            self.skip_lines();
            if !self.skip(",") {
                return self.expect(end, expected).map(|()| false);
            }
        }
        self.skip_lines();
        Ok(!self.skip(end))
    }

    /// Reads a string. The opening quotes of a multi-line string were skipped before.
    fn string(&mut self, quote: u8, is_long: bool) -> Result<String, Refusal> {
        if is_long {
            self.skip_newline();
        } else {
            self.at += 1;
        }
        let plain_until: &[u8] = if quote == b'"' { b"\"\\" } else { b"'" };
        let mut string = String::new();
        loop {
            string.push_str(self.skip_text(plain_until));
            let from = self.at;
            match self.peek() {
                Some(b'\\') => self.escape(is_long, &mut string)?,
                Some(byte) if byte == quote && !is_long => {
                    self.at += 1;
                    return Ok(string);
                }
                Some(byte) if byte == quote => {
                    // The last three of up to five quotes in a row end the string.
                    while self.at < from + 5 && self.peek() == Some(quote) {
                        self.at += 1;
                    }
                    let is_end = self.at - from >= 3;
                    let to = if is_end { self.at - 3 } else { self.at };
                    string.push_str(self.text.get(from..to).unwrap_or_default());
                    if is_end {
                        return Ok(string);
                    }
                }
                _ if is_long && self.skip_newline() => {
                    string.push_str(self.text.get(from..self.at).unwrap_or_default())
                }
                _ => return Err(self.expected("the end of the string")),
            }
        }
    }

    /// Reads an escape sequence, and appends its character.
    fn escape(&mut self, is_long: bool, string: &mut String) -> Result<(), Refusal> {
        let at = self.at;
        self.at += 1;
        let escaped = self.peek();
        self.at += 1;
        let character = match escaped {
            Some(b'"') => Some('"'),
            Some(b'\\') => Some('\\'),
            Some(b'b') => Some('\u{8}'),
            Some(b'e') => Some('\u{1b}'),
            Some(b'f') => Some('\u{c}'),
            Some(b'n') => Some('\n'),
            Some(b'r') => Some('\r'),
            Some(b't') => Some('\t'),
            Some(b'x') => self.coded(2),
            Some(b'u') => self.coded(4),
            Some(b'U') => self.coded(8),
            Some(b' ' | b'\t' | b'\r' | b'\n') if is_long => {
                // At the end of a line: the string continues at the next character that is not white space.
                self.at -= 1;
                self.skip_blanks();
                if self.skip_newline() {
                    while self.skip_newline() || self.skip(" ") || self.skip("\t") {}
                    return Ok(());
                }
                None
            }
            _ => None,
        };
        match character {
            Some(character) => string.push(character),
            None => return Err(Refusal::new(format_args!("this backslash escapes nothing")).at(at)),
        }
        Ok(())
    }

    /// Reads a character code of `digits` hexadecimal digits.
    #[inline(never)]
    fn coded(&mut self, digits: usize) -> Option<char> {
        let code = self.text.get(self.at..self.at + digits)?;
        self.at += digits;
        if !code.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        char::from_u32(self::digits(code.as_bytes(), 16)?.number?.try_into().ok()?)
    }
}

/// Parses a word as a value, or returns why it is none.
fn scalar(word: &str) -> Result<Value, &'static str> {
    let (unsigned, is_negative) = match word.as_bytes() {
        b"true" => return Ok(Value::Boolean(true)),
        b"false" => return Ok(Value::Boolean(false)),
        [b'0', b'x', number @ ..] => return integer(digits(number, 16), false),
        [b'0', b'o', number @ ..] => return integer(digits(number, 8), false),
        [b'0', b'b', number @ ..] => return integer(digits(number, 2), false),
        [b'+', unsigned @ ..] => (unsigned, false),
        [b'-', unsigned @ ..] => (unsigned, true),
        unsigned => (unsigned, false),
    };
    let number = digits(unsigned, 10);
    match (unsigned, &number) {
        (b"inf" | b"nan", _) => Ok(Value::Float(word.to_owned())),
        (_, Some(Digits { rest: [b'-' | b':', ..], .. })) => {
            Err("is a date or a time, and those are not read: write a string")
        }
        ([b'0', b'0'..=b'9' | b'_', ..], _) => Err("begins with a zero too many"),
        (_, Some(Digits { rest, .. })) if is_fraction(rest) => Ok(Value::Float(word.to_owned())),
        _ => integer(number, is_negative),
    }
}

/// Returns whether the text after the digits is a fraction or an exponent.
fn is_fraction(mut text: &[u8]) -> bool {
    let is_some = !text.is_empty();
    if let [b'.', fraction @ ..] = text {
        let Some(fraction) = digits(fraction, 10) else { return false };
        text = fraction.rest;
    }
    if let [b'e' | b'E', b'+' | b'-', exponent @ ..] | [b'e' | b'E', exponent @ ..] = text {
        let Some(exponent) = digits(exponent, 10) else { return false };
        text = exponent.rest;
    }
    is_some && text.is_empty()
}

/// A number's digits, and the text after them.
struct Digits<'a> {
    /// `None` if it does not fit into 64 bits.
    number: Option<u64>,
    rest: &'a [u8],
}

/// Reads at least one digit, with at most one underscore between two digits.
#[inline(never)]
fn digits(mut text: &[u8], radix: u32) -> Option<Digits<'_>> {
    let mut number = Some(0u64);
    loop {
        let (first, rest) = text.split_first()?;
        let digit = char::from(*first).to_digit(radix)?;
        number = number.and_then(|high| high.checked_mul(radix.into())?.checked_add(digit.into()));
        text = match rest {
            [b'_', rest @ ..] => rest,
            [next, ..] if char::from(*next).is_digit(radix) => rest,
            rest => return Some(Digits { number, rest }),
        };
    }
}

#[inline(never)]
fn integer(digits: Option<Digits<'_>>, is_negative: bool) -> Result<Value, &'static str> {
    let Some(Digits { number, rest: [] }) = digits else { return Err("is no value: strings have quotes") };
    let value = number.and_then(|number| {
        if is_negative {
            return 0i64.checked_sub_unsigned(number).map(Value::Integer);
        }
        Some(i64::try_from(number).map_or(Value::Unsigned(number), Value::Integer))
    });
    value.ok_or("is an integer of more than 64 bits")
}
