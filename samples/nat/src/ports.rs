//! The ports of one outside address and protocol: which are free, and which mappings have the others.

use pinion_sdk::lru::Id;

/// All memory is allocated at the start; taking and returning a port take constant time.
#[derive(Clone, Debug)]
pub struct Ports {
    first: u16,
    free: Vec<u16>,
    owners: Box<[Option<Id>]>,
}

impl Ports {
    /// Makes a pool of ports `first` to `last`, all free.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Self {
        let free: Vec<u16> = (first..=last).collect();
        let owners = vec![None; free.len()].into();
        Self { first, free, owners }
    }

    /// Takes a free port, chosen by a random number: a port that can be guessed can be attacked (RFC 6056).
    pub fn take(&mut self, random: u64) -> Option<u16> {
        // The upper half of the product is a number below the count, uniform enough.
        let at = (u128::from(random) * self.free.len() as u128) >> 64;
        (!self.free.is_empty()).then(|| self.free.swap_remove(at as usize))
    }

    /// Returns whether no port is free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Sets the mapping that a taken port belongs to.
    pub fn assign(&mut self, port: u16, owner: Id) {
        if let Some(place) = self.owners.get_mut(usize::from(port - self.first)) {
            *place = Some(owner);
        }
    }

    /// Returns the mapping that a port belongs to.
    #[must_use]
    pub fn owner(&self, port: u16) -> Option<Id> {
        *self.owners.get(usize::from(port.checked_sub(self.first)?))?
    }

    /// Returns a taken port to the pool.
    pub fn give_back(&mut self, port: u16) {
        if let Some(place) = self.owners.get_mut(usize::from(port - self.first)) {
            *place = None;
        }
        // At most as many as at first, so it never grows.
        self.free.push(port);
    }
}

#[cfg(test)]
mod tests {
    use super::Ports;

    #[test]
    fn each_port_is_given_once_whatever_the_random_numbers() {
        let mut ports = Ports::new(65_000, u16::MAX);
        let mut given: Vec<_> = std::iter::from_fn(|| ports.take(u64::MAX)).collect();
        assert_eq!(ports.take(0), None);
        given.sort_unstable();
        assert_eq!(given, (65_000..=u16::MAX).collect::<Vec<_>>());
        ports.give_back(65_535);
        assert_eq!([ports.take(0), ports.take(0)], [Some(65_535), None]);
    }

    #[test]
    fn a_port_out_of_range_has_no_mapping() {
        let ports = Ports::new(2000, 3000);
        assert_eq!([0, 1999, 3001, 65_535].map(|port| ports.owner(port)), [None; 4]);
    }
}
