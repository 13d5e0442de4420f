//! The way by which a packet came: [`Way`].

/// The way by which a packet came: its ingress port and, in a chain with a way back, its direction. A packet that the function
/// [makes](crate::Slots::make) goes by such a way: as a [reply](crate::Packet::reply) out of that port, and by the stage's outputs in that
/// direction.
///
/// A way is learned from a packet and stays valid as long as the instance. Two packets came by the same way if these are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// The node's number of it.
    pub(crate) number: u16,
    pub(crate) port: u16,
}

impl Way {
    /// Returns the index of the ingress port.
    #[must_use]
    pub fn ingress_port(self) -> u16 {
        self.port
    }
}
