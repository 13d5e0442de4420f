//! Which bulk memory operations may be long.

use wasmparser::Operator;

use super::CHUNK_BYTES;
use super::outline::Outline;

/// A kind of operation that may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Copy,
    Fill,
    /// Out of a passive data segment of this index and so many bytes.
    Init {
        segment: u32,
        bytes: u32,
    },
}

impl Operation {
    /// The name that its function has in backtraces.
    pub(super) fn name(self) -> String {
        match self {
            Self::Copy => "pinion:memory.copy".to_owned(),
            Self::Fill => "pinion:memory.fill".to_owned(),
            Self::Init { segment, .. } => format!("pinion:memory.init {segment}"),
        }
    }
}

/// A bulk memory operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bulk {
    /// One that moves so many bytes at most, which are no more than [`CHUNK_BYTES`].
    Short {
        bytes: u32,
    },
    Long(Operation),
}

impl Bulk {
    /// What an instruction is, if `count` is the constant that was pushed last.
    pub(super) fn of(operator: &Operator<'_>, count: Option<u32>, outline: &Outline<'_>) -> Option<Self> {
        let (operation, bytes_max) = match *operator {
            Operator::MemoryCopy { .. } => (Operation::Copy, u32::MAX),
            Operator::MemoryFill { .. } => (Operation::Fill, u32::MAX),
            Operator::MemoryInit { data_index: segment, .. } => {
                // More than a segment has is never moved, so those of short ones are short.
                let bytes = outline.segment_bytes(segment);
                (Operation::Init { segment, bytes }, bytes)
            }
            _ => return None,
        };
        let bytes = count.map_or(bytes_max, |count| count.min(bytes_max));
        Some(if bytes <= CHUNK_BYTES { Self::Short { bytes } } else { Self::Long(operation) })
    }
}
