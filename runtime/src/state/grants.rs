//! What a stage may do with each field, and its guests' calls for that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pinion_abi::Errno;
use pinion_control::model::{Access, FieldName, Grant};
use pinion_guest::calls::state::{Key, State};

use super::StateField;
use crate::clock;

/// The fields of a stage, by number: their positions in the stage's list. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Grants(Arc<[Granted]>);

#[derive(Debug)]
struct Granted {
    name: FieldName,
    access: Access,
    field: Arc<StateField>,
}

impl Grants {
    /// Creates grants; `of_name` returns the fields. All of them exist, since a chain must declare the fields that it grants to its stages.
    pub(super) fn new(grants: &[Grant], of_name: impl Fn(&FieldName) -> Option<Arc<StateField>>) -> Self {
        let granted = |grant: &Grant| {
            let field = of_name(&grant.field).expect("a chain declares the fields of its grants");
            Granted { name: grant.field.clone(), access: grant.access, field }
        };
        Self(grants.iter().map(granted).collect())
    }

    /// Returns the number of a field.
    pub(crate) fn number(&self, name: &[u8]) -> Option<u32> {
        self.0.iter().position(|granted| granted.name.as_str().as_bytes() == name).map(|number| number as u32)
    }

    #[inline]
    fn granted(&self, field: u32) -> Result<&Granted, Errno> {
        self.0.get(field as usize).ok_or(Errno::NoField)
    }

    /// Returns a field, if it may be written to.
    #[inline]
    fn writable(&self, field: u32) -> Result<&StateField, Errno> {
        let granted = self.granted(field)?;
        match granted.access {
            Access::Write => Ok(&granted.field),
            Access::Read => {
                granted.field.denied.fetch_add(1, Ordering::Relaxed);
                Err(Errno::Denied)
            }
        }
    }
}

impl State for Grants {
    #[inline]
    fn get(&self, field: u32, key: &Key, value: &mut [u8]) -> Result<u32, Errno> {
        self.granted(field)?.field.table.get(key, value, clock::now_ns)
    }

    #[inline]
    fn put(&self, field: u32, key: &Key, value: &[u8]) -> Result<(), Errno> {
        self.writable(field)?.table.put(key, value, clock::now_ns)
    }

    #[inline]
    fn compare_and_swap(&self, field: u32, key: &Key, expected: Option<&[u8]>, value: &[u8]) -> Result<(), Errno> {
        self.writable(field)?.table.compare_and_swap(key, expected, value, clock::now_ns)
    }

    #[inline]
    fn add(&self, field: u32, key: &Key, delta: i64) -> Result<i64, Errno> {
        self.writable(field)?.table.add(key, delta, clock::now_ns)
    }

    #[inline]
    fn expire(&self, field: u32, key: &Key, ttl_ms: Option<u64>) -> Result<(), Errno> {
        let ttl_ns = ttl_ms.map(|ttl_ms| ttl_ms.saturating_mul(1_000_000));
        self.writable(field)?.table.expire(key, ttl_ns, clock::now_ns)
    }

    #[inline]
    fn delete(&self, field: u32, key: &Key) -> Result<(), Errno> {
        self.writable(field)?.table.delete(key, clock::now_ns)
    }
}
