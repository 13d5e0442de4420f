//! The process's memory: its heap, pages that are populated before they are written, and what happens when memory is short.
//!
//! Charging memory to tenants is in `tenants`.

pub mod allocator;
pub(crate) mod hot_pages;
pub mod pressure;
pub mod reset_check;
pub mod spare_pages;
mod written_pages;
