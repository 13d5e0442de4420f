//! Generates the C SDK's `pinion/abi.h` from the ABI crate: [`header`].
//!
//! The build script collects the constants, structs and enums with their documentation; the compiler adds their values and offsets. So an
//! addition to the contract appears in the header as soon as `cargo run -p pinion-c-header` writes it again; until then a test fails.
//! [`assertions`] is C code that compiles only if a C compiler lays everything out as Rust does.
#![forbid(unsafe_code)]

mod names;

use std::fmt::Write;

use names::{constant_of, decimal, type_of};

/// An item of the contract.
enum Item {
    Constant { name: &'static str, docs: &'static str, value: Value },
    Struct { name: &'static str, docs: &'static str, size: usize, align: usize, fields: &'static [Field] },
    Enum { name: &'static str, docs: &'static str, variants: &'static [(&'static str, &'static str, i128)] },
}

enum Value {
    Integer {
        ty: &'static str,
        value: i128,
    },
    Text(&'static str),
    /// An array of texts: in C the elements of an initializer.
    Texts(&'static [&'static str]),
    /// A value that C cannot express.
    #[allow(dead_code)] // The contract has no such value at present.
    Other,
}

struct Field {
    name: &'static str,
    docs: &'static str,
    ty: &'static str,
    offset: usize,
}

include!(concat!(env!("OUT_DIR"), "/contract.rs"));

const OPENING: &str = "\
/* The contract between a guest and the node that runs it: written by `cargo run -p pinion-c-header` of guest-sdk/abi, where all of it is
 * explained. Not to be changed by hand. */
#ifndef PINION_ABI_H
#define PINION_ABI_H

#include <stdint.h>
";

/// Returns the text of `pinion/abi.h`.
#[must_use]
pub fn header() -> String {
    let mut text = OPENING.to_owned();
    for item in ITEMS {
        text.push('\n');
        text.push_str(&match item {
            Item::Constant { name, docs, value } => constant(name, docs, value),
            Item::Struct { name, docs, align, fields, .. } => structure(name, docs, *align, fields),
            Item::Enum { name, docs, variants } => enumeration(name, docs, variants),
        });
    }
    text.push_str(&imports());
    text.push_str("\n#endif\n");
    text
}

fn constant(name: &str, docs: &str, value: &Value) -> String {
    let macro_name = constant_of(name);
    match value {
        Value::Integer { ty, value } => format!("{}#define {macro_name} {}\n", comment(docs, ""), decimal(ty, *value)),
        Value::Text(value) => format!("{}#define {macro_name} {value:?}\n", comment(docs, "")),
        Value::Texts(values) => {
            let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
            format!("{}#define {macro_name} {}\n", comment(docs, ""), values.join(", "))
        }
        Value::Other => format!("/* {macro_name} is nothing that C could say: see `{name}` in guest-sdk/abi. */\n"),
    }
}

fn structure(name: &str, docs: &str, align: usize, fields: &[Field]) -> String {
    let mut text = format!("{}struct {} {{\n", comment(docs, ""), type_of(name));
    for (number, Field { name, docs, ty, .. }) in fields.iter().enumerate() {
        let (ty, count) =
            ty.split_once(';').map_or((*ty, String::new()), |(ty, count)| (ty, format!("[{}]", names::count(count))));
        // The first field's alignment sets that of the struct.
        let aligned = if number == 0 { format!(" __attribute__((aligned({align})))") } else { String::new() };
        let ty = names::c_type(ty);
        writeln!(text, "{}    {ty} {name}{count}{aligned};", comment(docs, "    ")).expect("memory takes all");
    }
    text + "};\n"
}

fn enumeration(name: &str, docs: &str, variants: &[(&str, &str, i128)]) -> String {
    let mut text = format!("{}enum {} {{\n", comment(docs, ""), type_of(name));
    let prefix = type_of(name).to_uppercase();
    for (name, docs, value) in variants {
        let variant = names::snake(name).to_uppercase();
        writeln!(text, "{}    {prefix}_{variant} = {value},", comment(docs, "    ")).expect("memory takes all");
    }
    text + "};\n"
}

/// Returns declarations of the calls, made from the signature at the start of each `IMPORT_` constant's documentation: `` `clock() -> i64`:
/// ... ``.
fn imports() -> String {
    let mut text = "\n/* The calls themselves, as WebAssembly has them. */\n#if defined(__wasm__)\n".to_owned();
    for item in ITEMS {
        if let Item::Constant { name, docs, value: Value::Text(value) } = item
            && name.starts_with("IMPORT_")
            && let Some(declaration) = names::import(value, docs)
        {
            let (module, import) = (constant_of("IMPORT_MODULE"), constant_of(name));
            writeln!(text, "__attribute__((import_module({module}), import_name({import})))\n{declaration}")
                .expect("memory takes all");
        }
    }
    text + "#endif\n"
}

/// Formats documentation as a C comment, and replaces rustdoc links by C names.
fn comment(docs: &str, indent: &str) -> String {
    if docs.is_empty() {
        return String::new();
    }
    let mut parts = docs.split("[`");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once("`]") {
            Some((link, rest)) => write!(plain, "`{}`{rest}", names::linked(link)).expect("memory takes all"),
            None => plain.push_str(part),
        }
    }
    let plain = plain.replace("*/", "* /");
    let lines: Vec<&str> = plain.lines().filter(|line| !line.starts_with("```")).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let (opening, closing) = (number == 0, number + 1 == lines.len());
        let lead = if opening { "/** " } else { " *  " };
        let line = format!("{indent}{lead}{line}");
        text.push_str(line.trim_end());
        text.push_str(if closing { " */\n" } else { "\n" });
    }
    text
}

/// Returns C code that consists of assertions on the layout of every item.
#[must_use]
pub fn assertions() -> String {
    let mut text = "#include <stddef.h>\n#include <pinion/abi.h>\n".to_owned();
    let mut hold = |condition: String| {
        writeln!(text, "_Static_assert({condition}, {condition:?});").expect("memory takes all");
    };
    for item in ITEMS {
        match item {
            Item::Constant { name, value: Value::Integer { ty, value }, .. } => {
                hold(format!("{} == {}", constant_of(name), decimal(ty, *value)));
            }
            Item::Constant { name, value: Value::Text(value), .. } => {
                hold(format!("sizeof {} == {}", constant_of(name), value.len() + 1));
            }
            Item::Constant { name, value: Value::Texts(values), .. } => {
                let array = format!("(const char *const[]){{{}}}", constant_of(name));
                hold(format!("sizeof {array} / sizeof(char *) == {}", values.len()));
            }
            Item::Constant { value: Value::Other, .. } => {}
            Item::Struct { name, size, align, fields, .. } => {
                let name = type_of(name);
                hold(format!("sizeof(struct {name}) == {size}"));
                hold(format!("_Alignof(struct {name}) == {align}"));
                for field in *fields {
                    hold(format!("offsetof(struct {name}, {}) == {}", field.name, field.offset));
                }
            }
            Item::Enum { name, variants, .. } => {
                let prefix = type_of(name).to_uppercase();
                for (name, _, value) in *variants {
                    hold(format!("{prefix}_{} == {value}", names::snake(name).to_uppercase()));
                }
            }
        }
    }
    text
}
