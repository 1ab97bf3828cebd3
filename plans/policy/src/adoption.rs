//! The plans that a process knows, the one under which it admits requests, and the gear of each.
//!
//! Plans are ordered by epoch: the store gives every written plan a larger epoch. Notices may arrive late, twice or out of
//! order; a plan that arrives later with a smaller epoch was written earlier and is stale.
//!
//! Adoption has two phases. A new plan is first known: workers load what it places on them and report it in place. Then
//! it is admitted: ingresses admit requests under it. A request finishes under the epoch that admitted it, so past
//! epochs are kept, and workers unload what only those need once they have drained.
//!
//! | module | decides |
//! |---|---|
//! | this one | which plans are kept, and the gear of each |
//! | [`gate`] | the epoch under which an ingress admits |
//! | [`retention`] | what a worker still has to host |
//! | [`arrival`] | what a replica does with a request that reaches it |
//!
//! A gear belongs to one plan: the same number means another wiring in other plans. A process that receives a gear before its
//! plan loses nothing, because the leader repeats the gear.

pub mod arrival;
pub mod gate;
pub mod retention;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

/// Epochs that are kept, the newest included. Pinned ones are kept beyond that.
pub const EPOCHS_KEPT: usize = 8;

/// Epochs of [`Adoption::served`] that are kept.
pub const SERVED_KEPT: usize = 16;

/// An offered plan has an epoch that is not newer than the newest known one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("epoch {epoch} is stale: {newest} is the newest")]
pub struct Stale {
    /// The epoch offered.
    pub epoch: u64,
    /// The newest known epoch.
    pub newest: u64,
}

/// The plan of the epoch is not known, or has no such gear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "gear {gear} of epoch {epoch} does not exist (newest epoch {newest}, {gears} gears in epoch {epoch})"
)]
pub struct NoSuchGear {
    /// The requested gear.
    pub gear: u32,
    /// The epoch it was meant for.
    pub epoch: u64,
    /// The newest epoch known; 0 before the first.
    pub newest: u64,
    /// Number of gears of that epoch's plan; 0 if the plan is not known.
    pub gears: usize,
}

/// The plans that a process knows, by epoch, each with its gear. `P` is what it keeps of a plan.
#[derive(Debug, Clone)]
pub struct Adoption<P> {
    keeps: usize,
    epochs: BTreeMap<u64, Entry<P>>,
    /// The epoch that was admitted last; `None` until one was found in place.
    admitted: Option<u64>,
    /// The epochs that were admitted, the newest last.
    served: Vec<u64>,
    /// Epochs that must not be forgotten.
    pinned: BTreeSet<u64>,
}

#[derive(Debug, Clone)]
struct Entry<P> {
    plan: P,
    gears: usize,
    gear: u32,
}

impl<P> Adoption<P> {
    /// Creates a state without plans; at most this many epochs will be kept besides those that are pinned, at least the newest.
    pub fn with_kept_epochs(epochs: usize) -> Self {
        Self {
            keeps: epochs.max(1),
            epochs: BTreeMap::new(),
            admitted: None,
            served: Vec::new(),
            pinned: BTreeSet::new(),
        }
    }

    /// The epoch under which requests are admitted, its plan and its gear; `None` before the first plan.
    ///
    /// Until an epoch is admitted ([`Adoption::admit`]) it is the newest one.
    pub fn current(&self) -> Option<(u64, &P, u32)> {
        let (epoch, entry) = match self.admitted {
            Some(admitted) => self.epochs.get_key_value(&admitted)?,
            None => self.epochs.last_key_value()?,
        };
        Some((*epoch, &entry.plan, entry.gear))
    }

    /// The newest epoch, its plan and its gear; `None` before the first plan.
    pub fn newest(&self) -> Option<(u64, &P, u32)> {
        let (epoch, entry) = self.epochs.last_key_value()?;
        Some((*epoch, &entry.plan, entry.gear))
    }

    /// Returns whether some epoch was found in place.
    pub fn is_admitted(&self) -> bool {
        self.admitted.is_some()
    }

    /// The plan of that epoch, while it is kept.
    pub fn at(&self, epoch: u64) -> Option<&P> {
        self.epochs.get(&epoch).map(|entry| &entry.plan)
    }

    /// The gear of that epoch, while it is kept.
    pub fn gear_of(&self, epoch: u64) -> Option<u32> {
        self.epochs.get(&epoch).map(|entry| entry.gear)
    }

    /// The epochs that are kept and their plans, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &P)> + Clone {
        self.epochs.iter().map(|(epoch, entry)| (*epoch, &entry.plan))
    }

    /// Makes a plan of that many gears the newest one, in its first gear, and forgets the oldest beyond those that are kept.
    ///
    /// # Errors
    /// [`Stale`] unless the epoch is larger than the newest one; nothing changes.
    pub fn adopt(&mut self, epoch: u64, gears: usize, plan: P) -> Result<(), Stale> {
        if let Some((&newest, _)) = self.epochs.last_key_value()
            && newest >= epoch
        {
            return Err(Stale { epoch, newest });
        }
        let entry = Entry { plan, gears, gear: 0 };
        self.epochs.insert(epoch, entry);
        self.forget();
        Ok(())
    }

    /// Admits requests under that epoch from here on. True if that changed anything; an epoch that is unknown or older than the
    /// current one changes nothing.
    pub fn admit(&mut self, epoch: u64) -> bool {
        let current = self.current().map_or(0, |(current, ..)| current);
        if epoch < current || self.admitted == Some(epoch) || !self.epochs.contains_key(&epoch) {
            return false;
        }
        self.admitted = Some(epoch);
        self.served.push(epoch);
        if self.served.len() > SERVED_KEPT {
            self.served.remove(0);
        }
        true
    }

    /// Returns the epochs under which requests were admitted, the newest last, at most [`SERVED_KEPT`]: each was in place.
    pub fn served(&self) -> &[u64] {
        &self.served
    }

    /// Keeps these epochs, however many newer ones come.
    pub fn pin(&mut self, epochs: BTreeSet<u64>) {
        self.pinned = epochs;
        self.forget();
    }

    fn forget(&mut self) {
        while self.epochs.len() > self.keeps {
            let newest = self.epochs.last_key_value().map(|(newest, _)| *newest);
            let may_go = |epoch: &u64| {
                Some(*epoch) != newest && Some(*epoch) != self.admitted && !self.pinned.contains(epoch)
            };
            let Some(oldest) = self.epochs.keys().copied().find(may_go) else {
                return;
            };
            self.epochs.remove(&oldest);
        }
    }

    /// Shifts the plan of an epoch into another gear. True if that changed anything.
    ///
    /// # Errors
    /// [`NoSuchGear`] when the epoch is not known, or its plan has no such gear; nothing changes.
    pub fn shift(&mut self, epoch: u64, gear: u32) -> Result<bool, NoSuchGear> {
        let newest = self.newest().map_or(0, |(newest, ..)| newest);
        let entry = self.epochs.get_mut(&epoch);
        let gears = entry.as_ref().map_or(0, |entry| entry.gears);
        match entry {
            Some(entry) if (gear as usize) < gears => Ok(std::mem::replace(&mut entry.gear, gear) != gear),
            _ => Err(NoSuchGear {
                gear,
                epoch,
                newest,
                gears,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_newest_epoch_runs_until_one_is_in_place_and_a_few_past_ones_are_kept() {
        let mut adoption = Adoption::with_kept_epochs(3);
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
    fn an_admitted_epoch_stays_until_a_newer_one_is_admitted() {
        let mut adoption = Adoption::with_kept_epochs(2);
        adoption.adopt(1, 1, "one").unwrap();
        assert!(adoption.served().is_empty());
        assert!(adoption.admit(1) && !adoption.admit(1));
        assert_eq!(adoption.served(), [1]);
        for epoch in 2..=5 {
            adoption.adopt(epoch, 1, "newer").unwrap();
            assert_eq!(
                adoption.current(),
                Some((1, &"one", 0)),
                "and it is never forgotten"
            );
        }
        assert!(!adoption.admit(2), "it was forgotten");
        assert!(adoption.admit(5));
        assert!(!adoption.admit(1), "never back");
        assert_eq!(adoption.current(), Some((5, &"newer", 0)));
        assert_eq!(adoption.newest(), Some((5, &"newer", 0)));
    }

    #[test]
    fn before_any_epoch_was_in_place_an_older_one_is_not_admitted() {
        let mut adoption = Adoption::with_kept_epochs(3);
        adoption.adopt(1, 1, ()).unwrap();
        adoption.adopt(2, 1, ()).unwrap();
        assert!(!adoption.admit(1) && adoption.admit(2));
    }

    #[test]
    fn pinned_epochs_are_kept() {
        let mut adoption = Adoption::with_kept_epochs(2);
        adoption.adopt(1, 1, ()).unwrap();
        adoption.pin(BTreeSet::from([1]));
        for epoch in 2..=9 {
            adoption.adopt(epoch, 1, ()).unwrap();
        }
        let kept = |adoption: &Adoption<()>| adoption.iter().map(|(epoch, ())| epoch).collect::<Vec<_>>();
        assert_eq!(kept(&adoption), [1, 9]);
        adoption.pin(BTreeSet::new());
        adoption.adopt(10, 1, ()).unwrap();
        assert_eq!(kept(&adoption), [9, 10]);
    }

    #[test]
    fn a_stale_epoch_changes_nothing() {
        let mut adoption = Adoption::with_kept_epochs(3);
        adoption.adopt(5, 2, "five").unwrap();
        adoption.shift(5, 1).unwrap();
        for epoch in [5, 4] {
            assert_eq!(adoption.adopt(epoch, 2, "old"), Err(Stale { epoch, newest: 5 }));
        }
        assert_eq!(adoption.current(), Some((5, &"five", 1)));
        assert_eq!(adoption.at(4), None);
    }

    #[test]
    fn every_epoch_has_its_own_gear() {
        let mut adoption = Adoption::with_kept_epochs(3);
        assert!(adoption.shift(0, 0).is_err(), "there is no plan yet");
        adoption.adopt(1, 3, ()).unwrap();
        adoption.admit(1);
        assert_eq!(adoption.shift(1, 2), Ok(true));
        assert_eq!(adoption.shift(1, 2), Ok(false));
        adoption.adopt(2, 2, ()).unwrap();
        assert_eq!(adoption.current(), Some((1, &(), 2)));
        assert_eq!(
            adoption.newest(),
            Some((2, &(), 0)),
            "a new plan begins in its first gear"
        );
        assert_eq!(adoption.shift(1, 1), Ok(true), "the older one still admits");
        adoption.admit(2);
        assert_eq!((adoption.gear_of(1), adoption.gear_of(2)), (Some(1), Some(0)));
        let refused = |epoch, gear, gears| NoSuchGear {
            gear,
            epoch,
            newest: 2,
            gears,
        };
        assert_eq!(adoption.shift(3, 1), Err(refused(3, 1, 0)), "early");
        assert_eq!(adoption.shift(2, 2), Err(refused(2, 2, 2)), "unknown");
    }

    proptest! {
        /// Whatever order word of plans, gears and admissions comes in: the newest epoch is the largest received, the current one
        /// never goes back and is never forgotten, and a gear exists in its plan.
        #[test]
        fn epochs_only_grow(
            words in prop::collection::vec((1_u64..20, 1_usize..4, 0_u32..5, 1_u64..20), 1..60), keeps in 1_usize..6,
        ) {
            let mut adoption = Adoption::with_kept_epochs(keeps);
            let (mut largest, mut before) = (0, 0);
            for (epoch, gears, gear, admitted) in words {
                prop_assert_eq!(adoption.adopt(epoch, gears, (epoch, gears)).is_ok(), epoch > largest);
                largest = largest.max(epoch);
                let _ = adoption.shift(epoch, gear);
                adoption.admit(admitted);
                let (newest, &(stored, _), _) = adoption.newest().unwrap();
                prop_assert_eq!((newest, stored), (largest, largest));
                let (current, &(stored, has), gear) = adoption.current().unwrap();
                prop_assert!(current == stored && current >= before && (gear as usize) < has);
                before = current;
                prop_assert!(adoption.iter().count() <= keeps.max(2));
            }
        }
    }
}
