//! What must be known about a module before its code is read.

use wasmparser::{
    BlockType, CompositeInnerType, DataKind, ElementItems, ElementKind, FunctionBody, Parser, Payload, TypeRef,
};

use super::budget;

/// The numbers of parameters and results.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arity {
    pub(super) params: u32,
    pub(super) results: u32,
}

impl Arity {
    /// Returns how many values are moved.
    pub(super) fn values(self) -> u32 {
        self.params + self.results
    }
}

/// A module's types, functions and segments.
#[derive(Default)]
pub(super) struct Outline<'a> {
    /// By index; empty for types that are not function types.
    types: Vec<Arity>,
    /// The type of each function, imported ones first.
    functions: Vec<u32>,
    /// The cost of calling each imported function.
    import_costs: Vec<u32>,
    /// Bytes that can be copied out of each data segment.
    segment_bytes: Vec<u32>,
    /// Elements that can be copied out of each element segment.
    segment_elements: Vec<u32>,
    /// The code of each function that is not imported.
    bodies: Vec<FunctionBody<'a>>,
}

impl<'a> Outline<'a> {
    pub(super) fn of(wasm: &'a [u8]) -> wasmparser::Result<Self> {
        let mut outline = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            outline.take(payload?)?;
        }
        Ok(outline)
    }

    fn take(&mut self, payload: Payload<'a>) -> wasmparser::Result<()> {
        match payload {
            Payload::TypeSection(section) => {
                for group in section {
                    self.types.extend(group?.types().map(|ty| match &ty.composite_type.inner {
                        CompositeInnerType::Func(ty) => {
                            Arity { params: ty.params().len() as u32, results: ty.results().len() as u32 }
                        }
                        _ => Arity::default(),
                    }));
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import?;
                    if let TypeRef::Func(ty) = import.ty {
                        self.functions.push(ty);
                        self.import_costs.push(budget::of_import(import.module, import.name));
                    }
                }
            }
            Payload::FunctionSection(section) => {
                for ty in section {
                    self.functions.push(ty?);
                }
            }
            Payload::CodeSectionEntry(body) => self.bodies.push(body),
            Payload::DataSection(section) => {
                for segment in section {
                    let segment = segment?;
                    // An active segment is empty once the instance has been made.
                    let is_passive = matches!(segment.kind, DataKind::Passive);
                    self.segment_bytes.push(if is_passive { segment.data.len() as u32 } else { 0 });
                }
            }
            Payload::ElementSection(section) => {
                for segment in section {
                    let segment = segment?;
                    let elements = match segment.items {
                        ElementItems::Functions(functions) => functions.count(),
                        ElementItems::Expressions(_, expressions) => expressions.count(),
                    };
                    let is_passive = matches!(segment.kind, ElementKind::Passive);
                    self.segment_elements.push(if is_passive { elements } else { 0 });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the number of types.
    pub(super) fn types(&self) -> u32 {
        self.types.len() as u32
    }

    /// Returns the number of functions, imported ones included.
    pub(super) fn functions(&self) -> u32 {
        self.functions.len() as u32
    }

    /// Returns arity and code of the functions that are not imported.
    pub(super) fn defined(&self) -> impl Iterator<Item = (Arity, &FunctionBody<'a>)> {
        let types = self.functions.iter().skip(self.import_costs.len());
        types.zip(&self.bodies).map(|(ty, body)| (self.type_arity(*ty), body))
    }

    /// Returns the cost of calling a function, if it is imported.
    pub(super) fn import_cost(&self, function: u32) -> Option<u32> {
        self.import_costs.get(function as usize).copied()
    }

    pub(super) fn type_arity(&self, ty: u32) -> Arity {
        self.types.get(ty as usize).copied().unwrap_or_default()
    }

    pub(super) fn function_arity(&self, function: u32) -> Arity {
        self.functions.get(function as usize).map(|ty| self.type_arity(*ty)).unwrap_or_default()
    }

    pub(super) fn block_arity(&self, ty: BlockType) -> Arity {
        match ty {
            BlockType::Empty => Arity::default(),
            BlockType::Type(_) => Arity { params: 0, results: 1 },
            BlockType::FuncType(ty) => self.type_arity(ty),
        }
    }

    pub(super) fn segment_elements(&self, segment: u32) -> u32 {
        self.segment_elements.get(segment as usize).copied().unwrap_or(0)
    }

    pub(super) fn segment_bytes(&self, segment: u32) -> u32 {
        self.segment_bytes.get(segment as usize).copied().unwrap_or(0)
    }
}
