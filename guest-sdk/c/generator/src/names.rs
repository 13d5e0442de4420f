//! Writes Rust's names, types and numbers in C.

/// Converts `PoolHeader` to `pool_header`.
pub(crate) fn snake(name: &str) -> String {
    let mut text = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// Returns a type's name for use after `struct` or `enum`.
pub(crate) fn type_of(name: &str) -> String {
    format!("pinion_{}", snake(name))
}

/// Returns a constant's name.
pub(crate) fn constant_of(name: &str) -> String {
    format!("PINION_{name}")
}

/// Returns an array's length: a number, or a constant's name.
pub(crate) fn count(count: &str) -> String {
    if count.starts_with(|digit: char| digit.is_ascii_digit()) { count.to_owned() } else { constant_of(count) }
}

/// Returns the C name of a link target in documentation: a constant, a type, or a type's field.
pub(crate) fn linked(name: &str) -> String {
    match name.split_once("::") {
        Some((ty, field)) => format!("{}.{field}", type_of(ty)),
        None if name.chars().any(|letter| letter.is_ascii_lowercase()) => type_of(name),
        None => constant_of(name),
    }
}

/// Returns a field's type.
pub(crate) fn c_type(ty: &str) -> String {
    match ty {
        "u8" | "u16" | "u32" | "u64" | "i8" | "i16" | "i32" | "i64" => {
            let (sign, bits) = ty.split_at(1);
            format!("{}int{bits}_t", if sign == "u" { "u" } else { "" })
        }
        // Addresses and sizes in a guest have 32 bits.
        "usize" => "uint32_t".to_owned(),
        "isize" => "int32_t".to_owned(),
        other => format!("struct {}", type_of(other)),
    }
}

/// Formats a number of a type so that the preprocessor accepts it as well.
pub(crate) fn decimal(ty: &str, value: i128) -> String {
    let suffix = match ty {
        "u64" => "ull",
        "i64" => "ll",
        // A number that fits into an int has no suffix, so that it can be part of a text as well.
        _ if value > i32::MAX.into() => "u",
        _ => "",
    };
    if value < 0 { format!("({value}{suffix})") } else { format!("{value}{suffix}") }
}

/// Returns the declaration of a call from documentation that begins with its signature.
pub(crate) fn import(name: &str, docs: &str) -> Option<String> {
    let signature = docs.strip_prefix('`')?.split('`').next()?;
    let (parameters, result) = signature.strip_prefix(name)?.strip_prefix('(')?.split_once(')')?;
    let number = |ty: &str| matches!(ty, "i32" | "i64").then(|| c_type(ty));
    let parameter = |text: &str| {
        let (name, ty) = text.split_once(": ")?;
        Some(format!("{} {name}", number(ty)?))
    };
    let parameters = match parameters {
        "" => "void".to_owned(),
        some => some.split(", ").map(parameter).collect::<Option<Vec<_>>>()?.join(", "),
    };
    let result = match result.strip_prefix(" -> ") {
        Some(ty) => number(ty)?,
        None => "void".to_owned(),
    };
    Some(format!("{result} pinion_import_{name}({parameters});"))
}

#[cfg(test)]
mod tests {
    use super::{import, snake};

    #[test]
    fn a_call_is_declared_as_its_documentation_says() {
        let declared = import("wait_until", "`wait_until(deadline_ns: i64) -> i32`: as before.");
        assert_eq!(declared.as_deref(), Some("int32_t pinion_import_wait_until(int64_t deadline_ns);"));
        assert_eq!(import("yield", "`yield()`: let others run.").as_deref(), Some("void pinion_import_yield(void);"));
    }

    #[test]
    fn text_that_is_not_a_signature_declares_nothing() {
        assert_eq!(import("pinion", "The import module of everything."), None);
        assert_eq!(import("log", "`log(text: &str)`: a line."), None);
    }

    #[test]
    fn names_have_words() {
        assert_eq!(snake("InitStatus"), "init_status");
    }
}
