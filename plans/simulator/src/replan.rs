//! The controller, and the plan that waits for its replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compile::Compiled;
use super::controller::{Controller, Factors};
use kaskade_policy::demand::RunCounts;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;

/// The controller, and what it waits for.
pub(super) struct Replanning<'a> {
    pub(super) profile: &'a Profile,
    pub(super) controller: &'a mut dyn Controller,
    /// The plan that will be in force once its replicas are loaded.
    pub(super) next: Option<Next>,
    /// Factors since the last call.
    pub(super) factors: Factors,
    /// Runs since the last call, by the number of the variant.
    pub(super) runs: BTreeMap<u32, RunCounts>,
    pub(super) arrivals_before: u64,
}

pub(super) struct Next {
    pub(super) plan: Plan,
    pub(super) compiled: Arc<Compiled>,
    pub(super) decided_us: u64,
}

impl<'a> Replanning<'a> {
    pub(super) fn new(profile: &'a Profile, controller: &'a mut dyn Controller) -> Self {
        Self {
            profile,
            controller,
            next: None,
            factors: Factors::default(),
            runs: BTreeMap::new(),
            arrivals_before: 0,
        }
    }

    pub(super) fn note(&mut self, task: u32, variant: u32, child: u32, made: u32) {
        self.factors.note(task, variant, child, made);
    }

    pub(super) fn ran(&mut self, variant: u32, requests: usize, run_us: u64) {
        *self.runs.entry(variant).or_default() += RunCounts {
            batches: 1,
            requests: requests as u64,
            busy_us: run_us,
        };
    }
}
