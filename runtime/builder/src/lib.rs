//! Validates and compiles modules, in a process of its own.
