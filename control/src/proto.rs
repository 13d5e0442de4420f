//! The messages and services of `pinion.v1`, generated from the files of `proto/pinion/v1`, which document them.
//!
//! [`crate::wire`] converts them to checked values and back. Nothing else reads their fields.

#![allow(missing_docs, unreachable_pub, clippy::all)] // generated code

tonic::include_proto!("pinion.v1");

/// The compiled `.proto` files, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("pinion.v1");
