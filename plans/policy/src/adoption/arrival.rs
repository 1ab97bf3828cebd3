//! Decides what a replica does with a request that reaches it: epochs may use the same stage, or the same replica id, for different models.
//!
//! While a plan replaces another, the replicas of both run side by side. They listen on the same subjects if the plans use the
//! same names, so each request is checked against the plan that admitted it.

use crate::plan::{Plan, Replica, Stage};

/// A request as it arrives.
#[derive(Debug, Clone, Copy)]
pub struct ArrivingRequest<'a> {
    /// The epoch that admitted it; 0 if it was not admitted by an ingress.
    pub epoch: u64,
    /// The gear that admitted it.
    pub gear: u32,
    /// The stage to run.
    pub stage: &'a str,
    /// Whether it was sent to the replica itself: every process with a replica of that id receives it. Otherwise the stage's queue
    /// group gave it to this one alone.
    pub addressed: bool,
}

/// Action for a request that arrived at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// The replica runs it.
    Serve,
    /// Another replica of this process runs it.
    HandOver(&'a Replica),
    /// The plan places the id elsewhere; the replica there receives the same message.
    Ignore,
    /// A replica elsewhere runs it: one of those that the plan places.
    Forward,
    /// The request cannot be run here. The ingress may try again.
    Refuse,
}

/// Decides what `me` does with a request under the plan of its epoch (`None` if that is not known here). `here` are the other
/// replicas of this process.
pub fn arrival<'a>(
    plan: Option<&Plan>,
    request: ArrivingRequest<'_>,
    me: &Replica,
    mut here: impl Iterator<Item = &'a Replica> + Clone,
) -> Arrival<'a> {
    if request.epoch == 0 {
        return Arrival::Serve;
    }
    let Some(plan) = plan else {
        return Arrival::Refuse;
    };
    if serves(plan, request.gear, request.stage, me) {
        return Arrival::Serve;
    }
    let placed = plan.placement.iter().find(|replica| replica.id == me.id);
    if request.addressed
        && let Some(placed) = placed
        && (placed.worker != me.worker || here.clone().any(|other| other == placed))
    {
        return Arrival::Ignore;
    }
    if let Some(other) = here.find(|other| serves(plan, request.gear, request.stage, other)) {
        return Arrival::HandOver(other);
    }
    let mut members = members(plan, request.gear, request.stage);
    if !request.addressed && members.any(|member| member.worker != me.worker) {
        return Arrival::Forward;
    }
    Arrival::Refuse
}

/// Returns whether the plan places exactly this replica, and it runs the stage in that gear, or another stage of the same task.
pub fn serves(plan: &Plan, gear: u32, stage: &str, replica: &Replica) -> bool {
    let Some(gear) = plan.gear(gear) else {
        return false;
    };
    let Some(stage) = gear.wiring.stages.iter().find(|known| known.name == stage) else {
        return false;
    };
    let mut siblings = gear.wiring.siblings(stage);
    siblings.any(|sibling| sibling.is_run_by(replica)) && plan.placement.contains(replica)
}

/// The replicas that the plan places for a stage of a gear.
pub fn members<'a>(plan: &'a Plan, gear: u32, stage: &str) -> impl Iterator<Item = &'a Replica> + Clone {
    let stages = plan.gear(gear).map(|gear| &gear.wiring.stages);
    let stage: Option<&Stage> = stages.and_then(|stages| stages.iter().find(|known| known.name == stage));
    let placed = plan.placement.iter();
    placed.filter(move |replica| stage.is_some_and(|stage| stage.is_run_by(replica)))
}

#[cfg(test)]
mod tests;
