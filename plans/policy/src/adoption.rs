//! Which plan a process runs, in which gear, and which past plans it keeps.
//!
//! Plans are ordered by epoch: the store gives every written plan a larger epoch. Notices may arrive late, twice or out of
//! order. The newest epoch always stays in force: a plan that arrives later with a smaller epoch was written earlier. A
//! request finishes under the epoch that admitted it, so a few past epochs are kept. A gear belongs to one plan: a gear notice
//! applies only to the running plan, since the same number means another wiring in other plans. A process that receives a gear
//! before its plan loses nothing, because the leader repeats the gear.

use std::collections::BTreeMap;

use thiserror::Error;

/// Epochs that are kept, the running one included, for the requests they admitted.
pub const EPOCHS_KEPT: usize = 8;

/// A newer plan, or this very one, has been adopted already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("epoch {epoch} is stale: {current} is running")]
pub struct Stale {
    /// The epoch offered.
    pub epoch: u64,
    /// The one that runs.
    pub current: u64,
}

/// The gear does not exist in the running plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("gear {gear} of epoch {epoch} does not exist in the running plan (epoch {current}, {gears} gears)")]
pub struct NoSuchGear {
    /// The requested gear.
    pub gear: u32,
    /// The epoch it was meant for.
    pub epoch: u64,
    /// The epoch that runs; 0 before the first.
    pub current: u64,
    /// How many gears that has.
    pub gears: usize,
}

/// The plans that a process has adopted, by epoch, and the gear of the running one. `P` is what it keeps of a plan.
#[derive(Debug, Clone)]
pub struct Adoption<P> {
    keeps: usize,
    epochs: BTreeMap<u64, Entry<P>>,
    gear: u32,
}

#[derive(Debug, Clone)]
struct Entry<P> {
    plan: P,
    gears: usize,
}

impl<P> Adoption<P> {
    /// Nothing adopted yet; at most this many epochs will be kept, at least the running one.
    pub fn keeping(epochs: usize) -> Self {
        Self {
            keeps: epochs.max(1),
            epochs: BTreeMap::new(),
            gear: 0,
        }
    }

    /// The running epoch, its plan and its gear; `None` before the first plan.
    pub fn current(&self) -> Option<(u64, &P, u32)> {
        let (epoch, entry) = self.epochs.last_key_value()?;
        Some((*epoch, &entry.plan, self.gear))
    }

    /// The plan of that epoch, while it is kept.
    pub fn at(&self, epoch: u64) -> Option<&P> {
        self.epochs.get(&epoch).map(|entry| &entry.plan)
    }

    /// Returns the plans that are kept, oldest first.
    pub fn kept(&self) -> impl Iterator<Item = &P> {
        self.epochs.values().map(|entry| &entry.plan)
    }

    /// Makes a plan of that many gears the running one, in its first gear, and forgets the oldest beyond those that are kept.
    ///
    /// # Errors
    /// [`Stale`] unless the epoch is larger than the running one; nothing changes.
    pub fn adopt(&mut self, epoch: u64, gears: usize, plan: P) -> Result<(), Stale> {
        if let Some((&current, _)) = self.epochs.last_key_value()
            && current >= epoch
        {
            return Err(Stale { epoch, current });
        }
        self.epochs.insert(epoch, Entry { plan, gears });
        self.gear = 0;
        while self.epochs.len() > self.keeps {
            self.epochs.pop_first();
        }
        Ok(())
    }

    /// Shifts the running plan into another gear. True if that changed anything.
    ///
    /// # Errors
    /// [`NoSuchGear`] when the gear is meant for a plan that does not run, or that one has no such gear; nothing changes.
    pub fn shift(&mut self, epoch: u64, gear: u32) -> Result<bool, NoSuchGear> {
        let (current, gears) = self
            .epochs
            .last_key_value()
            .map_or((0, 0), |(epoch, entry)| (*epoch, entry.gears));
        if current != epoch || gear as usize >= gears {
            return Err(NoSuchGear {
                gear,
                epoch,
                current,
                gears,
            });
        }
        Ok(std::mem::replace(&mut self.gear, gear) != gear)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_newest_epoch_runs_and_a_few_past_ones_are_kept() {
        let mut adoption = Adoption::keeping(3);
        assert!(adoption.current().is_none());
        for epoch in [1, 2, 5, 9] {
            adoption.adopt(epoch, 1, epoch * 10).unwrap();
        }
        assert_eq!(adoption.current(), Some((9, &90, 0)));
        assert_eq!(
            [1, 2, 5, 9].map(|epoch| adoption.at(epoch).is_some()),
            [false, true, true, true]
        );
    }

    #[test]
    fn a_stale_epoch_changes_nothing() {
        let mut adoption = Adoption::keeping(3);
        adoption.adopt(5, 2, "five").unwrap();
        adoption.shift(5, 1).unwrap();
        for epoch in [5, 4] {
            assert_eq!(adoption.adopt(epoch, 2, "old"), Err(Stale { epoch, current: 5 }));
        }
        assert_eq!(adoption.current(), Some((5, &"five", 1)));
        assert_eq!(adoption.at(4), None);
    }

    #[test]
    fn a_gear_counts_for_the_running_plan_only() {
        let mut adoption = Adoption::keeping(3);
        assert!(adoption.shift(0, 0).is_err(), "there is no plan yet");
        adoption.adopt(1, 3, ()).unwrap();
        assert_eq!(adoption.shift(1, 2), Ok(true));
        assert_eq!(adoption.shift(1, 2), Ok(false));
        adoption.adopt(2, 2, ()).unwrap();
        assert_eq!(
            adoption.current(),
            Some((2, &(), 0)),
            "a new plan begins in its first gear"
        );
        let refused = |epoch, gear| NoSuchGear {
            gear,
            epoch,
            current: 2,
            gears: 2,
        };
        assert_eq!(adoption.shift(1, 1), Err(refused(1, 1)), "late");
        assert_eq!(adoption.shift(3, 1), Err(refused(3, 1)), "early");
        assert_eq!(adoption.shift(2, 2), Err(refused(2, 2)), "unknown");
    }

    proptest! {
        /// Whatever order word of plans and gears comes in, the largest epoch heard of runs, in a gear that it has.
        #[test]
        fn the_largest_epoch_wins(
            words in prop::collection::vec((1_u64..20, 1_usize..4, 0_u32..5), 1..60), keeps in 1_usize..6,
        ) {
            let mut adoption = Adoption::keeping(keeps);
            let mut largest = 0;
            for (epoch, gears, gear) in words {
                prop_assert_eq!(adoption.adopt(epoch, gears, (epoch, gears)).is_ok(), epoch > largest);
                largest = largest.max(epoch);
                let _ = adoption.shift(epoch, gear);
                let (current, &(stored, has), gear) = adoption.current().unwrap();
                prop_assert_eq!((current, stored), (largest, largest));
                prop_assert!((gear as usize) < has);
                prop_assert!((1..=20).filter(|epoch| adoption.at(*epoch).is_some()).count() <= keeps);
            }
        }
    }
}
