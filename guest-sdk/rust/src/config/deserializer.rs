//! Deserializes a tree into a function's types. Generic code is instantiated for each type, so it is small: all the rest is in functions
//! without type parameters.

use core::slice;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, Expected, MapAccess, SeqAccess, Unexpected, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use super::refusal::Refusal;
use super::tree::{Node, Table, Value};

impl Node {
    /// Returns an error: the value has another type than expected.
    #[cold]
    #[inline(never)]
    fn mismatch(&self, expected: &dyn Expected) -> Refusal {
        let number;
        let found = match &self.value {
            Value::String(text) => Unexpected::Str(text),
            Value::Integer(value) => Unexpected::Signed(*value),
            Value::Unsigned(value) => Unexpected::Unsigned(*value),
            Value::Float(text) => {
                number = format!("floating point `{text}`");
                Unexpected::Other(&number)
            }
            Value::Boolean(value) => Unexpected::Bool(*value),
            Value::Array(_) | Value::Tables(_) => Unexpected::Seq,
            Value::Table(_) => Unexpected::Map,
        };
        Refusal::invalid_type(found, expected).at(self.at)
    }
}

/// Parses a floating-point number.
fn number(text: &str) -> Result<f64, Refusal> {
    let digits: String = text.chars().filter(|character| *character != '_').collect();
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() || text.ends_with("inf") || text.ends_with("nan") => Ok(number),
        _ => Err(too_large(text)),
    }
}

#[cold]
fn too_large(text: &str) -> Refusal {
    Refusal::new(format_args!("`{text}` is too large"))
}

impl Node {
    fn boolean<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::Boolean(value) => visitor.visit_bool(*value),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn integer<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::Integer(value) => visitor.visit_i64(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn float<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::Float(text) => visitor.visit_f64(number(text)?),
            _ => self.integer(visitor),
        }
    }

    fn string<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::String(text) => visitor.visit_str(text),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn array<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::Array(elements) | Value::Tables(elements) => in_full(elements, visitor),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn table<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::Table(table) => visitor.visit_map(Entries::of(table)),
            _ => Err(self.mismatch(&visitor)),
        }
    }
}

/// Defines methods that accept values of one kind.
macro_rules! wanted {
    ($($kind:ident: $($method:ident)+;)+) => {
        $($(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
            self.$kind(visitor)
        })+)+
    };
}

impl<'de> Deserializer<'de> for &Node {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::String(text) => visitor.visit_str(text),
            Value::Integer(value) => visitor.visit_i64(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Float(text) => visitor.visit_f64(number(text)?),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Array(elements) | Value::Tables(elements) => in_full(elements, visitor),
            Value::Table(table) => visitor.visit_map(Entries::of(table)),
        }
    }

    wanted! {
        boolean: deserialize_bool;
        integer: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
            deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128;
        float: deserialize_f64;
        string: deserialize_char deserialize_str deserialize_string deserialize_identifier;
        array: deserialize_seq;
        table: deserialize_map;
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            // A finite number that an f32 cannot represent.
            Value::Float(text) if number(text)?.is_finite() && (number(text)? as f32).is_infinite() => {
                Err(too_large(text))
            }
            _ => self.float(visitor),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Refusal> {
        self.array(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        self.array(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        // A struct may also be written as an array of its fields.
        match &self.value {
            Value::Table(table) => visitor.visit_map(Entries::of(table)),
            Value::Array(elements) | Value::Tables(elements) => in_full(elements, visitor),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::String(name) => visitor.visit_enum(Variant { name, content: None }),
            Value::Table(table) => match &*table.entries {
                [entry] => visitor.visit_enum(Variant { name: &entry.key.name, content: Some(entry) }),
                _ => Err(self.mismatch(&"a table of one entry")),
            },
            _ => Err(self.mismatch(&"a string or a table of one entry")),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! { bytes byte_buf unit unit_struct }
}

/// The elements of an array.
struct Elements<'a> {
    left: slice::Iter<'a, Node>,
    index: usize,
}

/// Visits all elements, and refuses an array with more elements than the type takes.
fn in_full<'de, V: Visitor<'de>>(elements: &[Node], visitor: V) -> Result<V::Value, Refusal> {
    let mut visited = Elements { left: elements.iter(), index: 0 };
    let value = visitor.visit_seq(&mut visited)?;
    visited.is_through().map(|()| value)
}

impl Elements<'_> {
    #[inline(never)]
    fn is_through(&self) -> Result<(), Refusal> {
        let Some(surplus) = self.left.as_slice().first() else { return Ok(()) };
        Err(Refusal::new(format_args!(
            "there are {} elements, and {} are wanted",
            self.index + self.left.len(),
            self.index
        ))
        .at(surplus.at))
    }
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refusal> {
        let Some(node) = self.left.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(node).map(Some).map_err(|refusal| refusal.in_element(index, node.at))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

/// The entries of a table.
struct Entries<'a> {
    left: slice::Iter<'a, Node>,
    /// The entry of the last key read.
    current: Option<&'a Node>,
}

impl<'a> Entries<'a> {
    fn of(table: &'a Table) -> Self {
        Self { left: table.entries.iter(), current: None }
    }
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refusal> {
        let Some(entry) = self.left.next() else { return Ok(None) };
        self.current = Some(entry);
        let key = &entry.key;
        seed.deserialize(Name(&key.name)).map(Some).map_err(|refusal| refusal.in_field(&key.name, key.at))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Refusal> {
        match self.current.take() {
            Some(entry) => seed.deserialize(entry).map_err(|refusal| refusal.in_field(&entry.key.name, entry.at)),
            None => Err(Refusal::new(format_args!("a value is read before its key"))),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

/// A key, which may be parsed as a number.
struct Name<'a>(&'a str);

macro_rules! named_values {
    ($($method:ident $visit:ident)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
            match self.0.parse() {
                Ok(value) => visitor.$visit(value),
                Err(_) => Err(Refusal::invalid_value(Unexpected::Str(self.0), &visitor)),
            }
        })+
    };
}

impl<'de> Deserializer<'de> for Name<'_> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_str(self.0)
    }

    named_values! {
        deserialize_bool visit_bool
        deserialize_i8 visit_i8 deserialize_i16 visit_i16 deserialize_i32 visit_i32 deserialize_i64 visit_i64
        deserialize_u8 visit_u8 deserialize_u16 visit_u16 deserialize_u32 visit_u32 deserialize_u64 visit_u64
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_enum(Variant { name: self.0, content: None })
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// An enum variant's name, and its content.
struct Variant<'a> {
    name: &'a str,
    content: Option<&'a Node>,
}

impl<'a> Variant<'a> {
    fn content(&self, expected: &dyn Expected) -> Result<&'a Node, Refusal> {
        self.content.ok_or_else(|| Refusal::invalid_type(Unexpected::Str(self.name), expected))
    }
}

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Refusal;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Refusal> {
        seed.deserialize(Name(self.name)).map(|choice| (choice, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Refusal;

    fn unit_variant(self) -> Result<(), Refusal> {
        match self.content {
            Some(Node { value: Value::Table(table), .. }) if table.entries.is_empty() => Ok(()),
            Some(node) => Err(node.mismatch(&"an empty table").in_field(self.name, node.at)),
            None => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refusal> {
        let node = self.content(&"a table with that key and its value")?;
        seed.deserialize(node).map_err(|refusal| refusal.in_field(self.name, node.at))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Refusal> {
        let node = self.content(&visitor)?;
        node.array(visitor).map_err(|refusal| refusal.in_field(self.name, node.at))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        let node = self.content(&visitor)?;
        node.table(visitor).map_err(|refusal| refusal.in_field(self.name, node.at))
    }
}
