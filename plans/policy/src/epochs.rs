//! Epochs of stored plans: which one a writer takes, and what a process does with the plan that it finds in the store.
//!
//! The stored plan carries its epoch. The store's own revision serves the compare-and-set only, because a store that is deleted and
//! created again counts from the beginning: with revisions as epochs, every later plan would be older than the running one, and no
//! process would adopt it.

/// Returns the epoch for a new plan: one above the stored one and above the newest one that the writer knows (0 for none).
pub fn next(stored: Option<u64>, known: u64) -> u64 {
    stored.unwrap_or(0).max(known).saturating_add(1)
}

/// Content of the store, compared with the running plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreContent {
    /// The stored epoch; `None` if the store is empty.
    pub stored: Option<u64>,
    /// The running epoch; `None` before the first plan.
    pub running: Option<u64>,
    /// Whether both are the same plan; irrelevant if one is missing.
    pub same_plan: bool,
}

/// Action of a process for the content of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreAction {
    /// Keep the running plan: it is the stored one, or there is none anywhere.
    Keep,
    /// Adopt the stored plan.
    Adopt,
    /// Write the running plan under this epoch, by compare-and-set against the stored value.
    Restore {
        /// The epoch to write.
        epoch: u64,
    },
}

/// Decides what a process does with the plan that it found in the store.
///
/// A newer plan is adopted. An empty store, or one with an older plan, has lost what was written to it: the running plan is restored.
/// Another plan under the running epoch was written without knowledge of it: the running plan is restored under the next epoch, so
/// that no two processes run different plans under one epoch. Restoring is a compare-and-set, so of several processes that restore,
/// one writes at a time, and the newest epoch remains.
pub fn step(found: StoreContent) -> StoreAction {
    match (found.running, found.stored) {
        (None, None) => StoreAction::Keep,
        (None, Some(_)) => StoreAction::Adopt,
        (Some(running), None) => StoreAction::Restore { epoch: running },
        (Some(running), Some(stored)) if stored > running => StoreAction::Adopt,
        (Some(running), Some(stored)) if stored < running => StoreAction::Restore { epoch: running },
        (Some(_), Some(_)) if found.same_plan => StoreAction::Keep,
        (Some(running), Some(_)) => StoreAction::Restore {
            epoch: running.saturating_add(1),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(running: Option<u64>, stored: Option<u64>, same_plan: bool) -> StoreAction {
        step(StoreContent {
            stored,
            running,
            same_plan,
        })
    }

    #[test]
    fn a_writer_goes_above_everything_that_it_knows() {
        assert_eq!(next(None, 0), 1);
        assert_eq!(next(Some(4), 0), 5);
        assert_eq!(next(Some(1), 9), 10, "a recreated store");
        assert_eq!(next(None, 9), 10);
    }

    #[test]
    fn an_emptied_or_recreated_store_gets_the_running_plan_back() {
        assert_eq!(found(Some(7), None, false), StoreAction::Restore { epoch: 7 });
        assert_eq!(found(Some(7), Some(1), false), StoreAction::Restore { epoch: 7 });
        assert_eq!(
            found(Some(7), Some(1), true),
            StoreAction::Restore { epoch: 7 },
            "the same plan needs its epoch back too"
        );
    }

    #[test]
    fn newer_plans_are_adopted_and_the_running_one_is_kept() {
        assert_eq!(found(None, None, false), StoreAction::Keep);
        assert_eq!(found(None, Some(3), false), StoreAction::Adopt);
        assert_eq!(found(Some(2), Some(3), false), StoreAction::Adopt);
        assert_eq!(found(Some(3), Some(3), true), StoreAction::Keep);
        assert_eq!(found(Some(3), Some(3), false), StoreAction::Restore { epoch: 4 });
    }

    proptest! {
        /// Processes that run different plans look at the store in any order: in the end all run the same plan under the same epoch,
        /// which is not older than any of theirs.
        #[test]
        fn processes_agree_after_the_store_is_lost(
            starts in prop::collection::vec((1_u64..5, 0_u8..3), 1..5),
            stored in prop::option::of((1_u64..5, 0_u8..3)),
            order in prop::collection::vec(0_usize..5, 0..20),
        ) {
            let newest = starts.iter().chain(&stored).map(|(epoch, _)| *epoch).max().unwrap();
            let mut processes = starts.clone();
            let mut store = stored;
            let rounds = (0..4 * starts.len()).map(|at| at % starts.len());
            for at in order.into_iter().filter(|at| *at < starts.len()).chain(rounds) {
                let (running, plan) = processes[at];
                let found = StoreContent {
                    stored: store.map(|(epoch, _)| epoch),
                    running: Some(running),
                    same_plan: store.is_some_and(|(_, stored)| stored == plan),
                };
                match (step(found), store) {
                    (StoreAction::Restore { epoch }, _) => {
                        store = Some((epoch, plan));
                        processes[at] = (epoch, plan);
                    }
                    (StoreAction::Adopt, Some(stored)) => processes[at] = stored,
                    _ => {}
                }
            }
            prop_assert!(processes.iter().all(|process| Some(*process) == store));
            prop_assert!(store.unwrap().0 >= newest);
        }
    }
}
