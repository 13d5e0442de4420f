//! What a power cut leaves of a file: all that was synced, and of each later write any of its sectors, in any order.

/// What a disk writes at once, or not.
const SECTOR_BYTES: usize = 512;

/// A file as the disk has it, and what it may have lost.
#[derive(Debug, Default)]
pub(crate) struct Volatile {
    synced: Vec<u8>,
    later: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Sector(u64, Vec<u8>),
    Len(u64),
}

impl Volatile {
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let sectors = data.chunks(SECTOR_BYTES).enumerate();
        self.later
            .extend(sectors.map(|(at, sector)| Change::Sector(offset + (at * SECTOR_BYTES) as u64, sector.to_vec())));
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.later.push(Change::Len(len));
    }

    pub(super) fn sync(&mut self) {
        let later = std::mem::take(&mut self.later);
        later.into_iter().for_each(|change| self.apply(change));
    }

    /// Returns what is left. Half of the power cuts keep the order of writes, as a process that is killed does; the others lose
    /// and reorder.
    pub(super) fn lose(&mut self, dice: &mut Dice) -> &[u8] {
        let mut later = std::mem::take(&mut self.later);
        if dice.below(2) == 0 {
            later.truncate(dice.below(later.len() as u64 + 1) as usize);
        } else {
            later.retain(|_| dice.below(2) == 0);
            for at in (1..later.len()).rev() {
                later.swap(at, dice.below(at as u64 + 1) as usize);
            }
        }
        later.into_iter().for_each(|change| self.apply(change));
        &self.synced
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Len(len) => self.synced.resize(len as usize, 0),
            Change::Sector(offset, data) => {
                let (start, end) = (offset as usize, offset as usize + data.len());
                if self.synced.len() < end {
                    self.synced.resize(end, 0);
                }
                self.synced[start..end].copy_from_slice(&data);
            }
        }
    }
}

/// Numbers that look random and are the same for the same seed (splitmix64).
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Returns a number below this one.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
