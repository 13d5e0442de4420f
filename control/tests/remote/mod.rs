//! Tests of who may call what over mutual TLS on TCP, and of how much callers may take, with a fake data plane.

mod access;
mod authority;
mod calls;
mod handshakes;
mod limits;
mod peers;
mod served;
mod tenants;
