//! Finds bulk operations that may be long.

use wasmparser::Operator;

use super::outline::Outline;
use super::{CHUNK_BYTES, CHUNK_ELEMENTS};

/// What an operation works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Space {
    /// Linear memory, by bytes.
    Memory,
    /// The table, by elements.
    Table,
}

impl Space {
    /// Returns the most that is moved at once.
    pub(super) fn chunk(self) -> u32 {
        match self {
            Self::Memory => CHUNK_BYTES,
            Self::Table => CHUNK_ELEMENTS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Table => "table",
        }
    }
}

/// A kind of operation that may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Copy(Space),
    Fill(Space),
    /// Copies from the passive segment of this index, which has this many bytes or elements.
    Init {
        space: Space,
        segment: u32,
        size: u32,
    },
}

impl Operation {
    pub(super) fn space(self) -> Space {
        match self {
            Self::Copy(space) | Self::Fill(space) | Self::Init { space, .. } => space,
        }
    }

    /// Returns the name of its function in backtraces.
    pub(super) fn name(self) -> String {
        let space = self.space().name();
        match self {
            Self::Copy(_) => format!("pinion:{space}.copy"),
            Self::Fill(_) => format!("pinion:{space}.fill"),
            Self::Init { segment, .. } => format!("pinion:{space}.init {segment}"),
        }
    }
}

/// A bulk operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bulk {
    /// An operation that moves at most this many bytes or elements, which is no more than its space's chunk.
    Short {
        space: Space,
        size: u32,
    },
    Long(Operation),
}

impl Bulk {
    /// Classifies an instruction; `count` is the constant that was pushed last, if it was one.
    pub(super) fn of(operator: &Operator<'_>, count: Option<u32>, outline: &Outline<'_>) -> Option<Self> {
        let (operation, size_max) = match *operator {
            Operator::MemoryCopy { .. } => (Operation::Copy(Space::Memory), u32::MAX),
            Operator::MemoryFill { .. } => (Operation::Fill(Space::Memory), u32::MAX),
            Operator::TableCopy { .. } => (Operation::Copy(Space::Table), u32::MAX),
            Operator::TableFill { .. } => (Operation::Fill(Space::Table), u32::MAX),
            // No more than the segment is ever moved, so operations on short segments are short.
            Operator::MemoryInit { data_index: segment, .. } => {
                let size = outline.segment_bytes(segment);
                (Operation::Init { space: Space::Memory, segment, size }, size)
            }
            Operator::TableInit { elem_index: segment, .. } => {
                let size = outline.segment_elements(segment);
                (Operation::Init { space: Space::Table, segment, size }, size)
            }
            _ => return None,
        };
        let size = count.map_or(size_max, |count| count.min(size_max));
        let space = operation.space();
        Some(if size <= space.chunk() { Self::Short { space, size } } else { Self::Long(operation) })
    }
}
