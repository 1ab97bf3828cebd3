//! The plan versions that a process knows, and the gear of each.
//!
//! [`kaskade_policy::adoption`] decides under which epoch requests are admitted and which are kept. The versions live in a watch channel, so
//! that control does not wait behind a full mailbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kaskade_policy::adoption::{Adoption, EPOCHS_KEPT};
use kaskade_policy::confidence::Calibration;
use kaskade_policy::plan::{Batching, Dropping, Edge, Exit, Gear, Plan, Replica, Stage};
use kaskade_policy::slack;
use thiserror::Error;
use tokio::sync::watch;

/// A plan and the epoch under which it was adopted.
#[derive(Debug)]
pub struct PlanVersion {
    /// Its epoch.
    pub epoch: u64,
    /// The validated plan.
    pub plan: Plan,
    /// The variant of each replica.
    variants: BTreeMap<String, String>,
    /// By gear and place of a stage: the time of the rest of the path after it, microseconds; empty unless the plan drops by slack.
    after_us: Vec<Vec<u64>>,
}

/// Why a plan or a gear was not adopted. The running plan keeps serving.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// The plan is invalid.
    #[error("the plan of epoch {epoch} is refused: {reason}")]
    Invalid {
        /// Its epoch.
        epoch: u64,
        /// The first problem.
        reason: String,
    },
    /// The plan is for another app.
    #[error("the plan of epoch {epoch} is for app `{theirs}`, this is `{ours}`")]
    WrongApp {
        /// Its epoch.
        epoch: u64,
        /// Its app.
        theirs: String,
        /// This app.
        ours: String,
    },
    /// A newer plan has been adopted already.
    #[error("epoch {epoch} is stale: {current} is the newest")]
    Stale {
        /// The offered epoch.
        epoch: u64,
        /// The newest epoch.
        current: u64,
    },
    /// The plan of the epoch is not known, or has no such gear.
    #[error(
        "gear {gear} of epoch {epoch} does not exist (the newest epoch is {current}, epoch {epoch} has {gears} gears)"
    )]
    NoSuchGear {
        /// The requested gear.
        gear: u32,
        /// The epoch that it was meant for.
        epoch: u64,
        /// The newest epoch.
        current: u64,
        /// Number of gears of that epoch's plan; 0 if it is not known.
        gears: usize,
    },
}

impl PlanVersion {
    fn new(epoch: u64, plan: Plan) -> Self {
        let placed = plan.placement.iter();
        let variants = placed.map(|replica| (replica.id.clone(), replica.variant.clone()));
        let after_us = match plan.dropping {
            // The broker's time is small beside a model's, and a plan does not have it.
            Dropping::Slack => plan
                .gears
                .iter()
                .map(|gear| slack::remaining_times_us(&plan, &gear.wiring, 0))
                .collect(),
            _ => Vec::new(),
        };
        Self {
            epoch,
            variants: variants.collect(),
            after_us,
            plan,
        }
    }

    /// Returns the time of the rest of the path after a stage, microseconds; 0 unless the plan drops by slack.
    pub fn after_us(&self, gear: u32, stage: &str) -> u64 {
        let of_gear = self.after_us.get(gear as usize).zip(self.gear(gear));
        let found = of_gear.and_then(|(after, gear)| {
            let place = gear.wiring.stages.iter().position(|one| one.name == stage)?;
            after.get(place).copied()
        });
        found.unwrap_or(0)
    }

    /// Returns the stage at which that replica handles a request that came along an edge ([`Wiring::stage_for`]);
    /// without a replica, the stage that the edge names.
    ///
    /// [`Wiring::stage_for`]: kaskade_policy::plan::Wiring::stage_for
    pub(crate) fn stage_at(&self, gear: u32, edge: &Edge, replica: Option<&str>) -> Option<&Stage> {
        let wiring = &self.gear(gear)?.wiring;
        match replica.and_then(|id| self.variants.get(id)) {
            Some(variant) => wiring.stage_for(edge, variant),
            None => wiring.stages.iter().find(|stage| stage.name == edge.stage),
        }
    }

    /// Returns the gear of that number; those after the plan's own are of its certified list.
    pub fn gear(&self, index: u32) -> Option<&Gear> {
        self.plan.gear(index)
    }

    /// Returns the stage of that name in that gear.
    pub fn stage(&self, gear: u32, name: &str) -> Option<&Stage> {
        self.gear(gear)?
            .wiring
            .stages
            .iter()
            .find(|stage| stage.name == name)
    }

    /// Returns whether a request that comes along that edge may move on to another stage without its ingress ([`Wiring::may_be_forwarded`]).
    ///
    /// [`Wiring::may_be_forwarded`]: kaskade_policy::plan::Wiring::may_be_forwarded
    pub(crate) fn may_be_forwarded(&self, gear: u32, edge: &Edge, returns: bool) -> bool {
        let gear = self.gear(gear);
        gear.is_some_and(|gear| gear.wiring.may_be_forwarded(edge, returns))
    }

    /// Returns the task that an edge leads to; the stage's name if it serves no task.
    pub(crate) fn task_of<'a>(&'a self, gear: u32, edge: &'a Edge) -> &'a str {
        let task = self
            .stage(gear, &edge.stage)
            .and_then(|stage| stage.task.as_deref());
        task.unwrap_or(&edge.stage)
    }

    /// Returns the calibration of a variant.
    pub fn calibration(&self, variant: &str) -> Option<&Calibration> {
        self.plan
            .variants
            .iter()
            .find(|planned| planned.name == variant)?
            .calibration
            .as_ref()
    }

    /// Returns whether a stage's results go to the next partition of its model.
    pub(crate) fn has_next_partition(&self, gear: u32, stage: &str) -> bool {
        let found = self.stage(gear, stage);
        found.is_some_and(|stage| matches!(stage.exit, Exit::Next { .. }))
    }

    /// Returns the replicas that the plan places on that worker.
    pub(crate) fn placed_on<'a>(&'a self, worker: &'a str) -> impl Iterator<Item = &'a Replica> {
        let placed = self.plan.placement.iter();
        placed.filter(move |replica| replica.worker == worker)
    }

    /// Returns whether the replica runs the stage, or another stage of its task.
    pub fn serves(&self, gear: u32, stage: &Stage, replica: &Replica) -> bool {
        let Some(gear) = self.gear(gear) else { return false };
        gear.wiring
            .siblings(stage)
            .any(|sibling| sibling.is_run_by(replica))
    }

    /// Returns the names of the stages that the replica runs, over all gears, without duplicates: those of its
    /// variant and partition.
    pub(crate) fn stages_of(&self, replica: &Replica) -> Vec<String> {
        let mut names: Vec<String> = self
            .plan
            .all_gears()
            .flat_map(|gear| &gear.wiring.stages)
            .filter(|stage| stage.is_run_by(replica))
            .map(|stage| stage.name.clone())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the batching of the variant's first stage in that gear.
    pub fn batching(&self, gear: u32, variant: &str) -> Option<Batching> {
        self.gear(gear)?.batching(variant)
    }
}

/// The versions at one moment.
type State = Adoption<Arc<PlanVersion>>;

/// The plan versions of one app, shared by the actors of a process.
#[derive(Debug, Clone)]
pub struct PlanVersions {
    app: String,
    state: Arc<watch::Sender<State>>,
    /// Whether no plan has been in place yet, and workers load the first one.
    loading: Arc<AtomicBool>,
    /// Stages of the current plan that no live replica runs, as an ingress found them.
    unserved: Arc<watch::Sender<Vec<String>>>,
}

impl PlanVersions {
    /// Creates an empty set of versions.
    pub fn new(app: &str) -> Self {
        Self {
            app: app.to_owned(),
            state: Arc::new(watch::Sender::new(State::with_kept_epochs(EPOCHS_KEPT))),
            loading: Arc::default(),
            unserved: Arc::default(),
        }
    }

    /// Returns the name of the app.
    pub fn app(&self) -> &str {
        &self.app
    }

    /// Returns the plan under which requests are admitted, and its gear; `None` before the first plan.
    pub fn current(&self) -> Option<(Arc<PlanVersion>, u32)> {
        let state = self.state.borrow();
        state
            .current()
            .map(|(_, version, gear)| (Arc::clone(version), gear))
    }

    /// Returns the newest plan; `None` before the first. It is not admitted before it is in place.
    pub fn newest(&self) -> Option<Arc<PlanVersion>> {
        let state = self.state.borrow();
        state.newest().map(|(_, version, _)| Arc::clone(version))
    }

    /// Returns whether the current plan was found in place at the workers.
    pub fn is_admitted(&self) -> bool {
        self.state.borrow().is_admitted()
    }

    /// Returns whether no plan has been in place yet, and workers load the first one: requests must be refused.
    pub fn is_loading(&self) -> bool {
        self.loading.load(Ordering::Relaxed)
    }

    /// Returns whether requests are admitted: there is a plan, and no first one is being loaded.
    pub(crate) fn is_serving(&self) -> bool {
        !self.is_loading() && self.state.borrow().current().is_some()
    }

    /// Sets whether the first plan is being loaded.
    pub(crate) fn set_loading(&self, loading: bool) {
        if self.loading.swap(loading, Ordering::Relaxed) != loading {
            tracing::info!(loading, "workers load the first plan");
        }
    }

    /// Returns the stages of the current plan that no live replica runs; empty in a process without an ingress.
    pub fn unserved(&self) -> Vec<String> {
        self.unserved.borrow().clone()
    }

    /// Sets the stages of the current plan that no live replica runs.
    pub(crate) fn set_unserved(&self, stages: Vec<String>) {
        self.unserved.send_replace(stages);
    }

    /// Returns the epochs under which requests were admitted here, the newest last.
    pub(crate) fn served(&self) -> Vec<u64> {
        self.state.borrow().served().to_vec()
    }

    /// Admits requests under that epoch from here on. Returns whether that changed anything.
    pub fn admit(&self, epoch: u64) -> bool {
        self.state.send_if_modified(|state| state.admit(epoch))
    }

    /// Keeps these epochs, however many newer ones come.
    pub(crate) fn pin(&self, epochs: BTreeSet<u64>) {
        self.state.send_if_modified(|state| {
            state.pin(epochs);
            false
        });
    }

    /// Returns every plan that is kept, the oldest first.
    pub fn all(&self) -> Vec<Arc<PlanVersion>> {
        let state = self.state.borrow();
        state.iter().map(|(_, version)| Arc::clone(version)).collect()
    }

    /// Returns the gear of that epoch, while it is kept.
    pub fn gear_of(&self, epoch: u64) -> Option<u32> {
        self.state.borrow().gear_of(epoch)
    }

    /// Returns the plan of that epoch, while it is kept.
    pub fn at(&self, epoch: u64) -> Option<Arc<PlanVersion>> {
        self.state.borrow().at(epoch).cloned()
    }

    /// Returns whether a plan that is kept places replicas on that worker.
    pub(crate) fn is_worker(&self, worker: &str) -> bool {
        self.any_placed(|replica| replica.worker == worker)
    }

    /// Returns whether a plan that is kept places the replica on that worker.
    pub fn places(&self, worker: &str, id: &str) -> bool {
        self.any_placed(|replica| replica.worker == worker && replica.id == id)
    }

    /// Returns whether a plan that is kept places a replica of that variant.
    pub(crate) fn has_variant(&self, variant: &str) -> bool {
        self.any_placed(|replica| replica.variant == variant)
    }

    fn any_placed(&self, is: impl Fn(&Replica) -> bool) -> bool {
        let state = self.state.borrow();
        let mut placed = state.iter().flat_map(|(_, version)| &version.plan.placement);
        placed.any(is)
    }

    /// Adopts a plan in its first gear. An ingress admits requests under it once it is in place at the workers.
    ///
    /// # Errors
    /// [`AdoptError`]; nothing changes.
    pub fn adopt(&self, epoch: u64, plan: Plan) -> Result<(), AdoptError> {
        plan.validate().map_err(|error| AdoptError::Invalid {
            epoch,
            reason: error.to_string(),
        })?;
        if plan.app != self.app {
            return Err(AdoptError::WrongApp {
                epoch,
                theirs: plan.app,
                ours: self.app.clone(),
            });
        }
        let version = Arc::new(PlanVersion::new(epoch, plan));
        let gears = version.plan.all_gears().count();
        let mut outcome = Ok(());
        self.state.send_if_modified(|state| {
            outcome = state.adopt(epoch, gears, version);
            outcome.is_ok()
        });
        outcome.map_err(|stale| AdoptError::Stale {
            epoch: stale.epoch,
            current: stale.newest,
        })
    }

    /// Adopts a plan of the store as [`PlanVersions::adopt`] does, and logs it.
    ///
    /// # Errors
    /// As [`PlanVersions::adopt`].
    pub(crate) fn adopt_stored(&self, epoch: u64, plan: Plan) -> Result<(), AdoptError> {
        let (made_by, replicas) = (plan.made_by.clone(), plan.placement.len());
        self.adopt(epoch, plan)?;
        tracing::info!(epoch, made_by, replicas, "adopted a plan of the plan store");
        Ok(())
    }

    /// Shifts the plan of an epoch into another gear. Returns whether that changed the gear.
    ///
    /// # Errors
    /// [`AdoptError::NoSuchGear`] if the epoch is not known or its plan has no such gear.
    pub fn shift(&self, epoch: u64, gear: u32) -> Result<bool, AdoptError> {
        let mut outcome = Ok(false);
        self.state.send_if_modified(|state| {
            outcome = state.shift(epoch, gear);
            outcome == Ok(true)
        });
        outcome.map_err(|refused| AdoptError::NoSuchGear {
            gear: refused.gear,
            epoch: refused.epoch,
            current: refused.newest,
            gears: refused.gears,
        })
    }

    /// Returns notices of changes of the plan or the gear.
    pub fn changes(&self) -> Changes {
        Changes(self.state.subscribe())
    }
}

/// Notices of changes in a [`PlanVersions`].
pub struct Changes(watch::Receiver<State>);

impl Changes {
    /// Waits for the next change. Returns false once the versions are dropped.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::plan::single;

    fn plan(app: &str) -> Plan {
        single(app, "m", "w", NonZeroU32::MIN, Batching::default())
    }

    fn two_gears() -> Plan {
        let mut plan = plan("a");
        let mut fast = plan.gears[0].clone();
        plan.gears[0].load.to_qps = Some(100.0);
        fast.name = "fast".into();
        fast.load.from_qps = 100.0;
        plan.gears.push(fast);
        plan
    }

    #[test]
    fn the_newest_epoch_runs_and_a_few_old_ones_are_kept() {
        let plans = PlanVersions::new("a");
        assert!(plans.current().is_none());
        for epoch in 1..=12 {
            plans.adopt(epoch, plan("a")).unwrap();
        }
        assert_eq!(plans.current().unwrap().0.epoch, 12);
        assert!(plans.at(12 - EPOCHS_KEPT as u64 + 1).is_some());
        assert!(plans.at(12 - EPOCHS_KEPT as u64).is_none());
    }

    #[test]
    fn stale_foreign_and_unsound_plans_change_nothing() {
        let plans = PlanVersions::new("a");
        plans.adopt(5, plan("a")).unwrap();
        assert!(matches!(
            plans.adopt(5, plan("a")),
            Err(AdoptError::Stale { epoch: 5, current: 5 })
        ));
        assert!(matches!(
            plans.adopt(6, plan("b")),
            Err(AdoptError::WrongApp { .. })
        ));
        let mut unsound = plan("a");
        unsound.placement.clear();
        assert!(matches!(
            plans.adopt(6, unsound),
            Err(AdoptError::Invalid { epoch: 6, .. })
        ));
        assert_eq!(plans.current().unwrap().0.epoch, 5);
    }

    #[test]
    fn gears_shift_within_a_known_plan_only() {
        let plans = PlanVersions::new("a");
        plans.adopt(1, two_gears()).unwrap();
        assert!(plans.shift(1, 1).unwrap());
        assert!(!plans.shift(1, 1).unwrap());
        assert_eq!(plans.current().unwrap().1, 1);
        assert!(matches!(
            plans.shift(1, 2),
            Err(AdoptError::NoSuchGear { gears: 2, .. })
        ));
        assert!(matches!(
            plans.shift(2, 0),
            Err(AdoptError::NoSuchGear {
                current: 1,
                gears: 0,
                ..
            })
        ));
        plans.adopt(2, two_gears()).unwrap();
        assert_eq!(
            plans.current().unwrap().1,
            0,
            "a new plan starts in its first gear"
        );
    }
}
