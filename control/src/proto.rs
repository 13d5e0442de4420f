//! The messages and services of `pinion.v1`, generated from the files of `proto/pinion/v1`, which document them.
//!
//! [`crate::wire`] converts them to checked values and back. Nothing else reads their fields.

#![allow(missing_docs, unreachable_pub, clippy::all)] // generated code

use std::fmt;

use zeroize::Zeroize;

tonic::include_proto!("pinion.v1");

/// The compiled `.proto` files, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("pinion.v1");

/// A private key is erased with its message, and is never shown.
impl Drop for UploadKeyRequest {
    fn drop(&mut self) {
        self.pem.zeroize();
    }
}

impl fmt::Debug for UploadKeyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UploadKeyRequest of {}, {} bytes", self.tenant, self.pem.len())
    }
}
