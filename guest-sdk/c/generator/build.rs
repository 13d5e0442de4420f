//! Reads names, types and documentation from the ABI crate's source, and generates Rust code by which the compiler fills in values, sizes
//! and offsets. So this script evaluates no Rust, and no item has to be listed by hand.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use syn::{
    Attribute, Expr, Fields, Item, ItemConst, ItemEnum, ItemMod, ItemStruct, Lit, Meta, Type, UseTree, Visibility,
};

const INTEGERS: [&str; 10] = ["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize"];

fn main() {
    let source = Path::new("../../abi/src");
    println!("cargo::rerun-if-changed={}", source.display());
    let mut items = String::new();
    read(&source.join("lib.rs"), "pinion_abi", None, &mut items);
    let text = format!("const ITEMS: &[Item] = &[\n{items}];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder")).join("contract.rs");
    fs::write(out, text).expect("cargo's folder can be written to");
}

/// Appends a file's public items under `path`; with `only`, just the items with these names.
fn read(file: &Path, path: &str, only: Option<&[String]>, items: &mut String) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let is_wanted = |name: &str| only.is_none_or(|only| only.iter().any(|it| it == name || it == "*"));
    let offered = offered(&parsed.items);
    for item in &parsed.items {
        match item {
            Item::Const(it) if is_public(&it.vis) && is_wanted(&it.ident.to_string()) => constant(it, path, items),
            Item::Struct(it) if is_public(&it.vis) && is_wanted(&it.ident.to_string()) => structure(it, path, items),
            Item::Enum(it) if is_public(&it.vis) && is_wanted(&it.ident.to_string()) => enumeration(it, path, items),
            Item::Mod(it) if it.content.is_none() => module(it, file, path, &offered, items),
            _ => {}
        }
    }
}

/// Reads a module in a file of its own. Of a private module, reads only what its parent re-exports.
fn module(it: &ItemMod, parent: &Path, path: &str, offered: &[(String, String)], items: &mut String) {
    let name = it.ident.to_string();
    let folder = parent.parent().expect("a file is in a folder");
    let folder = if parent.ends_with("lib.rs") { folder.to_owned() } else { parent.with_extension("") };
    let file = [format!("{name}.rs"), format!("{name}/mod.rs")].map(|file| folder.join(file));
    let file = file.iter().find(|file| file.is_file()).unwrap_or_else(|| panic!("module {name} has no file"));
    if is_public(&it.vis) {
        return read(file, &format!("{path}::{name}"), None, items);
    }
    let of_it: Vec<String> = offered.iter().filter(|(from, _)| *from == name).map(|(_, name)| name.clone()).collect();
    read(file, path, Some(&of_it), items);
}

/// Returns the modules and names in `pub use module::name` lines, with the name `*` for all.
fn offered(items: &[Item]) -> Vec<(String, String)> {
    fn names(tree: &UseTree, module: &str, found: &mut Vec<(String, String)>) {
        match tree {
            UseTree::Path(path) if path.ident == "self" || path.ident == "crate" => names(&path.tree, module, found),
            UseTree::Path(path) => names(&path.tree, &path.ident.to_string(), found),
            UseTree::Name(name) => found.push((module.to_owned(), name.ident.to_string())),
            UseTree::Glob(_) => found.push((module.to_owned(), "*".to_owned())),
            UseTree::Group(group) => group.items.iter().for_each(|tree| names(tree, module, found)),
            UseTree::Rename(_) => {}
        }
    }
    let mut found = Vec::new();
    for item in items {
        if let Item::Use(it) = item
            && is_public(&it.vis)
        {
            names(&it.tree, "", &mut found);
        }
    }
    found
}

fn constant(it: &ItemConst, path: &str, items: &mut String) {
    let (name, docs) = (it.ident.to_string(), docs(&it.attrs));
    let value = match c_type(&it.ty) {
        Some(ty) if INTEGERS.contains(&ty.as_str()) => {
            format!("Value::Integer {{ ty: {ty:?}, value: {path}::{name} as i128 }}")
        }
        Some(ty) if ty == "str" => format!("Value::Text({path}::{name})"),
        Some(ty) if ty.starts_with("str;") => format!("Value::Texts(&{path}::{name})"),
        _ => "Value::Other".to_owned(),
    };
    writeln!(items, "    Item::Constant {{ name: {name:?}, docs: {docs:?}, value: {value} }},")
        .expect("memory takes all");
}

fn structure(it: &ItemStruct, path: &str, items: &mut String) {
    let (name, docs_of_it) = (it.ident.to_string(), docs(&it.attrs));
    let Fields::Named(fields) = &it.fields else { return };
    let mut text = String::new();
    for field in &fields.named {
        let field_name = field.ident.as_ref().expect("it is named").to_string();
        let Some(ty) = c_type(&field.ty) else { return other(&name, &docs_of_it, items) };
        let docs = docs(&field.attrs);
        writeln!(
            text,
            "        Field {{ name: {field_name:?}, docs: {docs:?}, ty: {ty:?}, \
             offset: std::mem::offset_of!({path}::{name}, {field_name}) }},"
        )
        .expect("memory takes all");
    }
    writeln!(
        items,
        "    Item::Struct {{ name: {name:?}, docs: {docs_of_it:?}, size: size_of::<{path}::{name}>(), \
         align: align_of::<{path}::{name}>(), fields: &[\n{text}    ] }},"
    )
    .expect("memory takes all");
}

fn enumeration(it: &ItemEnum, path: &str, items: &mut String) {
    let (name, docs_of_it) = (it.ident.to_string(), docs(&it.attrs));
    if it.variants.iter().any(|variant| !matches!(variant.fields, Fields::Unit)) {
        return other(&name, &docs_of_it, items);
    }
    let mut text = String::new();
    for variant in &it.variants {
        let (variant_name, docs) = (variant.ident.to_string(), docs(&variant.attrs));
        writeln!(text, "        ({variant_name:?}, {docs:?}, {path}::{name}::{variant_name} as i128),")
            .expect("memory takes all");
    }
    writeln!(items, "    Item::Enum {{ name: {name:?}, docs: {docs_of_it:?}, variants: &[\n{text}    ] }},")
        .expect("memory takes all");
}

/// Lists an item that C cannot express, with its name only.
fn other(name: &str, docs: &str, items: &mut String) {
    writeln!(items, "    Item::Constant {{ name: {name:?}, docs: {docs:?}, value: Value::Other }},")
        .expect("memory takes all");
}

/// Returns a type's text: `u32`, `u32;2` for an array, `u32;COUNT` if a constant gives the length, `str` for a text, or the name of a type
/// of the crate.
fn c_type(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.get_ident().map(ToString::to_string),
        Type::Reference(reference) => c_type(&reference.elem).filter(|ty| ty == "str"),
        Type::Array(array) => Some(format!("{};{}", c_type(&array.elem)?, count(&array.len)?)),
        _ => None,
    }
}

/// Returns an array's length: a number, or the name of a constant of any integer type.
fn count(len: &Expr) -> Option<String> {
    match len {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => Some(number.base10_digits().to_owned()),
            _ => None,
        },
        Expr::Cast(cast) => count(&cast.expr),
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn docs(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(it) if it.path.is_ident("doc") => match &it.value {
            Expr::Lit(value) => match &value.lit {
                Lit::Str(text) => Some(text.value().trim_end().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    let lines: Vec<String> = attributes.iter().filter_map(line).collect();
    lines.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
}
