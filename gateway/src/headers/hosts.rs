//! Which addresses a host can have in a network, whatever networks there are.

use std::net::IpAddr;

/// Returns whether one host can have this address: it is neither a group's, nor the sender's own alone, nor none
/// (RFC 1122, section 3.2.1.3; RFC 4291, sections 2.5 and 2.7).
pub(crate) fn is_of_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(it) => it.octets()[0] != 0 && !it.is_loopback() && it.octets()[0] < 224,
        IpAddr::V6(it) => {
            let is_of_none = it.is_unspecified() || it.is_loopback() || it.to_ipv4_mapped().is_some();
            !is_of_none && !it.is_multicast()
        }
    }
}

/// Returns whether an address is that of a group with members beyond the sender, or of all hosts on the link.
pub(crate) fn is_of_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(it) => it.is_multicast() || it.is_broadcast(),
        // The scope that is reserved, and that of the sender's interface.
        IpAddr::V6(it) => it.is_multicast() && it.octets()[1] & 0xf > 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_hosts_or_a_groups_or_neithers() {
        let kinds = |address: &str| {
            let address = address.parse().unwrap();
            (is_of_host(address), is_of_group(address))
        };
        for host in ["10.0.0.1", "1.0.0.0", "223.255.255.255", "2001:db8::1", "fe80::1"] {
            assert_eq!(kinds(host), (true, false), "{host}");
        }
        for group in ["224.0.0.1", "239.1.2.3", "255.255.255.255", "ff02::1", "ff0e::1"] {
            assert_eq!(kinds(group), (false, true), "{group}");
        }
        for neither in
            ["0.0.0.0", "0.1.2.3", "127.0.0.1", "240.0.0.1", "::", "::1", "::ffff:10.0.0.1", "ff00::1", "ff01::1"]
        {
            assert_eq!(kinds(neither), (false, false), "{neither}");
        }
    }
}
