//! Forgets revisions beyond what may be kept.
//!
//! If there are more than [`HistoryLimits`] allow, the tenants of the change give up their oldest parts as long as they have more than an
//! equal share, and then those that have most. A tenant within its share loses nothing, so no tenant's changes push out revisions within
//! another's share. The parts of the revision that is being written stay.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use redb::ReadableTable;

use super::{History, PART_BYTES, PARTS, Share};
use crate::model::HistoryLimits;
use crate::store::contents::Contents;
use crate::store::{META, Store, StoreError};

/// How many parts are forgotten at a time, beside as many as are written. If there are more, the next change goes on.
const FORGOTTEN_AT_ONCE: usize = 1024;

/// What the limits count.
#[derive(Clone, Copy)]
enum Measure {
    Parts,
    Bytes,
}

impl Measure {
    const ALL: [Self; 2] = [Self::Parts, Self::Bytes];

    fn of(self, share: &Share) -> u64 {
        match self {
            Self::Parts => share.parts,
            Self::Bytes => share.bytes,
        }
    }

    /// Returns the name of the sum in META.
    fn total(self) -> &'static str {
        match self {
            Self::Parts => PARTS,
            Self::Bytes => PART_BYTES,
        }
    }

    fn max(self, limits: &HistoryLimits) -> u64 {
        match self {
            Self::Parts => limits.revisions,
            Self::Bytes => limits.bytes,
        }
    }
}

/// How much a tenant has, its oldest part, and its name. Of two that have as much, the one with the older part is greater.
type Rank = (u64, Reverse<u64>, String);

/// The tenants with parts that can be forgotten.
struct Ranking {
    /// How many tenants have parts, of whatever revision.
    tenants: u64,
    ranks: BTreeSet<Rank>,
}

impl Store {
    /// Forgets revisions until no more are left than may be kept. A node that starts does this, as the limits may have become lower.
    pub fn trim_history(&self) -> Result<(), StoreError> {
        loop {
            let (is_over, version) = self.opened.read(|read| {
                let meta = read.open_table(META).map_err(|e| self.failed(e))?;
                let number =
                    |name: &str| meta.get(name).map(|it| it.map_or(0, |it| it.value())).map_err(|e| self.failed(e));
                let mut is_over = false;
                for measure in Measure::ALL {
                    is_over |= number(measure.total())? > measure.max(&self.history);
                }
                Ok((is_over, number("version")?))
            })?;
            if !is_over {
                return Ok(());
            }
            let forgotten = self.opened.write(0, |write| {
                let mut contents = Contents::open(self, write)?;
                History::open(self, write)?.trim(&mut contents, &[], version)
            })?;
            if forgotten < FORGOTTEN_AT_ONCE {
                return Ok(());
            }
        }
    }
}

impl History<'_> {
    /// Forgets parts until no more are left than may be kept, or so many were forgotten. Spares those of the revision with this number,
    /// which has changed objects of these tenants. Returns how many were forgotten.
    pub(super) fn trim(
        &mut self,
        contents: &mut Contents<'_>,
        changed: &[&str],
        number: u64,
    ) -> Result<usize, StoreError> {
        let at_most = FORGOTTEN_AT_ONCE + changed.len();
        let mut forgotten = 0;
        for measure in Measure::ALL {
            if self.is_over(measure)? {
                forgotten += self.trim_by(measure, contents, changed, number, at_most - forgotten)?;
            }
        }
        Ok(forgotten)
    }

    fn trim_by(
        &mut self,
        measure: Measure,
        contents: &mut Contents<'_>,
        mut changed: &[&str],
        number: u64,
        at_most: usize,
    ) -> Result<usize, StoreError> {
        let mut ranking = self.ranking(measure, number)?;
        for forgotten in 0..at_most {
            if !self.is_over(measure)? {
                return Ok(forgotten);
            }
            let each = measure.max(&self.limits) / ranking.tenants.max(1);
            let Some(name) = self.next_to_forget(measure, &ranking, &mut changed, each)? else { return Ok(forgotten) };
            let before = self.share(&name)?.unwrap_or_default();
            ranking.ranks.remove(&rank(measure, &before, &name));
            self.forget_oldest(contents, &name, number)?;
            let after = self.share(&name)?.unwrap_or_default();
            ranking.tenants -= u64::from(after.parts == 0);
            if after.has_before(number) {
                ranking.ranks.insert(rank(measure, &after, &name));
            }
        }
        Ok(at_most)
    }

    /// Returns the tenant whose oldest part is next: one of those that the change touches, or else the one that has most. None: no tenant
    /// that has more than its share has a part that can be forgotten.
    fn next_to_forget(
        &self,
        measure: Measure,
        ranking: &Ranking,
        changed: &mut &[&str],
        each: u64,
    ) -> Result<Option<String>, StoreError> {
        while let [name, rest @ ..] = *changed {
            let share = self.share(name)?.unwrap_or_default();
            // With more tenants than revisions, each is sure of the latest.
            if measure.of(&share) > each.max(1) && ranking.ranks.contains(&rank(measure, &share, name)) {
                return Ok(Some((*name).to_owned()));
            }
            *changed = rest;
        }
        let largest = ranking.ranks.last().filter(|(has, ..)| *has > each);
        Ok(largest.map(|(.., name)| name.clone()))
    }

    fn ranking(&self, measure: Measure, number: u64) -> Result<Ranking, StoreError> {
        let mut ranking = Ranking { tenants: 0, ranks: BTreeSet::new() };
        for entry in self.shares.iter().map_err(|e| self.store.failed(e))? {
            let (name, row) = entry.map_err(|e| self.store.failed(e))?;
            let share = Share::of(row.value());
            ranking.tenants += u64::from(share.parts > 0);
            if share.has_before(number) {
                ranking.ranks.insert(rank(measure, &share, name.value()));
            }
        }
        Ok(ranking)
    }

    fn is_over(&self, measure: Measure) -> Result<bool, StoreError> {
        Ok(self.total(measure.total())? > measure.max(&self.limits))
    }
}

fn rank(measure: Measure, share: &Share, name: &str) -> Rank {
    (measure.of(share), Reverse(share.oldest), name.to_owned())
}
