//! The types and shapes of a model's inputs and outputs.

use std::fmt;

use tract_core::prelude::{Datum, DatumType};

/// The type of a tensor's elements. All are stored with their least significant byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// A number of single precision (IEEE 754 binary32).
    F32,
    /// A byte.
    U8,
    /// A signed number of 32 bits.
    I32,
    /// A signed number of 64 bits.
    I64,
}

impl ElementType {
    /// Returns the size of an element, in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// Returns the type of this kind of the library; none if inputs and outputs can't have it.
    #[must_use]
    pub fn of(datum: DatumType) -> Option<Self> {
        [Self::F32, Self::U8, Self::I32, Self::I64].into_iter().find(|element| element.datum() == datum)
    }

    pub(crate) fn datum(self) -> DatumType {
        match self {
            Self::F32 => f32::datum_type(),
            Self::U8 => u8::datum_type(),
            Self::I32 => i32::datum_type(),
            Self::I64 => i64::datum_type(),
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
    }
}

/// An input or an output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the model.
    pub name: String,
    /// The type of its elements.
    pub element: ElementType,
    /// Its shape: the number of elements along each axis, the outermost first.
    pub shape: Vec<u32>,
}

impl TensorInfo {
    /// Returns its size, in bytes. A model's bounds make sure that it fits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shape.iter().map(|dim| *dim as usize).product::<usize>() * self.element.bytes()
    }
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(u32::to_string).collect();
        write!(f, "{} ({} of {})", self.name, self.element, shape.join(" x "))
    }
}
