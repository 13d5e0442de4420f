//! Addresses, as text or as values: [`Address`].

use core::fmt::Display;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use crate::headers::Mac;

/// What can be given as an address: a text like `"10.0.0.1:53"`, `"[2001:db8::1]:53"`, `"2001:db8::1"` or `"02:00:00:00:00:01"`, or a
/// value, also an address and a port: `("10.0.0.1", 53)`, `(Ipv4Addr::LOCALHOST, 53)`.
pub trait Address<T> {
    /// Returns the address.
    ///
    /// # Panics
    ///
    /// If a text is no such address.
    fn address(self) -> T;
}

impl<T: FromStr<Err: Display>> Address<T> for &str {
    fn address(self) -> T {
        self.parse().unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }
}

impl<T: FromStr<Err: Display>> Address<T> for &String {
    fn address(self) -> T {
        self.as_str().address()
    }
}

impl<A: Address<IpAddr>> Address<SocketAddr> for (A, u16) {
    fn address(self) -> SocketAddr {
        SocketAddr::new(self.0.address(), self.1)
    }
}

impl Address<SocketAddr> for SocketAddr {
    fn address(self) -> SocketAddr {
        self
    }
}

impl Address<IpAddr> for IpAddr {
    fn address(self) -> IpAddr {
        self
    }
}

impl Address<IpAddr> for Ipv4Addr {
    fn address(self) -> IpAddr {
        self.into()
    }
}

impl Address<IpAddr> for Ipv6Addr {
    fn address(self) -> IpAddr {
        self.into()
    }
}

impl Address<IpAddr> for [u8; 4] {
    fn address(self) -> IpAddr {
        self.into()
    }
}

impl Address<IpAddr> for [u8; 16] {
    fn address(self) -> IpAddr {
        self.into()
    }
}

impl Address<Mac> for Mac {
    fn address(self) -> Mac {
        self
    }
}

impl Address<Mac> for [u8; 6] {
    fn address(self) -> Mac {
        Mac(self)
    }
}
