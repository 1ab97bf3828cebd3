//! The plans of an app, and the epochs under which its ingresses admit requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use kaskade_actors::wire::{GearShift, InferReply};
use kaskade_policy::plan::{Plan, Wiring};

/// Number of plans kept.
const KEPT: usize = 16;

/// The newest stored plans, the epochs under which the live ingresses admit requests, and the current gear.
#[derive(Default)]
pub(super) struct Plans {
    stored: BTreeMap<u64, Arc<Plan>>,
    /// Epoch by ingress.
    admits: BTreeMap<String, u64>,
    gear: Option<GearShift>,
}

impl Plans {
    /// Adds a plan from the store.
    pub(super) fn stored(&mut self, epoch: u64, plan: Plan) {
        self.stored.insert(epoch, Arc::new(plan));
        while self.stored.len() > KEPT {
            self.stored.pop_first();
        }
    }

    /// Sets the epoch under which an ingress admits requests; 0 if none yet.
    pub(super) fn admits(&mut self, ingress: &str, epoch: u64) {
        self.admits.insert(ingress.to_owned(), epoch);
    }

    /// Removes an ingress that has left.
    pub(super) fn left(&mut self, ingress: &str) {
        self.admits.remove(ingress);
    }

    /// Removes the ingresses for which `is_known` is false.
    pub(super) fn keep_ingresses(&mut self, is_known: impl Fn(&str) -> bool) {
        self.admits.retain(|ingress, _| is_known(ingress));
    }

    /// Sets the current gear.
    pub(super) fn shifted(&mut self, shift: GearShift) {
        self.gear = Some(shift);
    }

    /// Returns the newest epoch under which an ingress admits requests, with its plan; the newest stored plan if no
    /// ingress admits under any. A stored plan whose models cannot be loaded never becomes the admitting one.
    pub(super) fn admitted(&self) -> Option<(u64, &Arc<Plan>)> {
        let newest = self.admits.values().copied().filter(|epoch| *epoch > 0).max();
        let (epoch, plan) = match newest {
            Some(epoch) => self.stored.get_key_value(&epoch)?,
            None => self.stored.last_key_value()?,
        };
        Some((*epoch, plan))
    }

    /// Returns the current gear under an epoch; 0 if none was published.
    pub(super) fn gear(&self, epoch: u64) -> u32 {
        let shift = self.gear.as_ref().filter(|shift| shift.epoch == epoch);
        shift.map_or(0, |shift| shift.gear)
    }

    /// Returns the plan and the gear that fit the stages of a reply: the current gear if it fits, else another gear of
    /// the plan, else one of another plan. A request finishes in the gear that admitted it, which may no longer be
    /// current.
    pub(super) fn of_reply(&self, reply: &InferReply) -> Option<(Arc<Plan>, u32)> {
        let admitted = self.admitted();
        let others = self.stored.iter().rev().map(|(epoch, plan)| (*epoch, plan));
        let others = others.filter(|(epoch, _)| admitted.is_none_or(|(admitted, _)| admitted != *epoch));
        admitted.into_iter().chain(others).find_map(|(epoch, plan)| {
            let in_force = self.gear(epoch);
            let all = (0_u32..).take(plan.all_gears().count());
            let mut gears = std::iter::once(in_force).chain(all.filter(|gear| *gear != in_force));
            let gear = gears.find(|gear| plan.gear(*gear).is_some_and(|gear| fits(&gear.wiring, reply)))?;
            Some((Arc::clone(plan), gear))
        })
    }
}

/// Returns whether a wiring has all stages of a reply, and its last stage runs the variant that answered.
fn fits(wiring: &Wiring, reply: &InferReply) -> bool {
    let has = |stage: &str| variant_in(wiring, stage).is_some();
    let answered = reply.stage.is_empty()
        || reply.variant.is_empty()
        || variant_in(wiring, &reply.stage) == Some(reply.variant.as_str());
    answered && reply.hops.iter().all(|hop| has(&hop.stage))
}

/// Returns the variant of a stage.
pub(super) fn variant_in<'a>(wiring: &'a Wiring, stage: &str) -> Option<&'a str> {
    let found = wiring.stages.iter().find(|found| found.name == stage);
    found.map(|found| found.variant.as_str())
}

#[cfg(test)]
mod tests;
