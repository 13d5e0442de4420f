//! The ports of one outside address and protocol: which are free, and who has the others.

use pinion_sdk::lru::Id;

/// All memory is there from the start; taking and giving back take constant time.
#[derive(Clone, Debug)]
pub struct Ports {
    first: u16,
    free: Vec<u16>,
    owners: Box<[Option<Id>]>,
}

impl Ports {
    /// Ports `first` to `last`, all free.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Self {
        let free: Vec<u16> = (first..=last).collect();
        let owners = vec![None; free.len()].into();
        Self { first, free, owners }
    }

    /// Takes a port: by a random number, as ports that can be guessed can be written to (RFC 6056).
    pub fn take(&mut self, random: u64) -> Option<u16> {
        // The upper half of a product is a number below the count, as evenly as matters.
        let at = (u128::from(random) * self.free.len() as u128) >> 64;
        (!self.free.is_empty()).then(|| self.free.swap_remove(at as usize))
    }

    /// Says whose a port is that was taken.
    pub fn assign(&mut self, port: u16, owner: Id) {
        if let Some(place) = self.owners.get_mut(usize::from(port - self.first)) {
            *place = Some(owner);
        }
    }

    /// Whose a port is.
    #[must_use]
    pub fn owner(&self, port: u16) -> Option<Id> {
        *self.owners.get(usize::from(port.checked_sub(self.first)?))?
    }

    /// Gives back a port that was taken.
    pub fn give_back(&mut self, port: u16) {
        if let Some(place) = self.owners.get_mut(usize::from(port - self.first)) {
            *place = None;
        }
        // Never more than at first, so it never grows.
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
    fn a_port_out_of_range_is_nobodys() {
        let ports = Ports::new(2000, 3000);
        assert_eq!([0, 1999, 3001, 65_535].map(|port| ports.owner(port)), [None; 4]);
    }
}
