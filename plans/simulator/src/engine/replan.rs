//! Changes from one plan to the next while requests are in flight. [`Controller`](crate::Controller) defines the rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use kaskade_policy::demand::RunCounts;
use kaskade_policy::plan::Plan;

use super::Engine;
use crate::compile::Compiled;
use crate::config::SimError;
use crate::controller::{Factor, Factors, Observation, ReplicaObservation, VariantRuns};
use crate::events::Event;
use crate::fleet::Health;
use crate::observer::Observer;
use crate::replan::Next;
use crate::report::{PLANS_KEPT, PlanChange};

impl<O: Observer> Engine<'_, O> {
    /// Calls the controller with the state of the service, and adopts its plan.
    pub(super) fn observe(&mut self) {
        let Some(mut replanning) = self.replanning.take() else {
            return;
        };
        let factors = std::mem::take(&mut replanning.factors);
        let runs = std::mem::take(&mut replanning.runs);
        let arrivals = self.report.requests - replanning.arrivals_before;
        replanning.arrivals_before = self.report.requests;
        let observation = self.seen((&factors, &runs), arrivals, replanning.next.is_some());
        let plan = replanning.controller.decide(&observation);
        self.replanning = Some(replanning);
        if let Some(plan) = plan
            && let Err(error) = self.take_up(plan)
        {
            self.report.plans_refused += 1;
            if self.report.refused_plans.len() < PLANS_KEPT {
                self.report.refused_plans.push(error.to_string());
            }
        }
    }

    fn seen<'s>(
        &'s self,
        (factors, runs): (&Factors, &BTreeMap<u32, RunCounts>),
        arrivals: u64,
        loading: bool,
    ) -> Observation<'s> {
        let (tasks, variants) = (&self.tables.tasks, &self.tables.variants);
        let factor = |((task, variant, child), (served, made))| {
            Some(Factor {
                task: tasks.get(task)?,
                variant: variants.get(variant)?,
                child: tasks.get(child)?,
                served,
                made,
            })
        };
        let runs = runs.iter().filter_map(|(variant, ran)| {
            let (variant, ran) = (variants.get(*variant)?, *ran);
            Some(VariantRuns { variant, ran })
        });
        let placement = self.epochs.current().plan.placement.iter();
        let replica = |number: &u32| {
            let (known, state) = (
                self.tables.replicas.get(*number as usize)?,
                self.fleet.replicas.get(*number as usize)?,
            );
            Some(ReplicaObservation {
                id: &known.id,
                variant: variants.get(known.variant)?,
                queue: state.queue.len(),
                alive: state.health.believed_alive(),
            })
        };
        Observation {
            at_us: self.now,
            arrivals,
            in_flight: self.in_flight,
            factors: factors.iter().filter_map(factor).collect(),
            runs: runs.collect(),
            replicas: placement.filter_map(replica).collect(),
            active_devices: self.fleet.active,
            loading,
        }
    }

    /// Compiles a plan and begins to load what it needs.
    fn take_up(&mut self, plan: Plan) -> Result<(), SimError> {
        let Some(replanning) = &mut self.replanning else {
            return Ok(());
        };
        let tables = self.tables.to_mut();
        let compiled = Compiled::new(&plan, replanning.profile, self.config, tables)?;
        if compiled.sharing != self.fleet.sharing {
            return Err(SimError::SharingChanged {
                found: compiled.sharing,
                expected: self.fleet.sharing,
            });
        }
        let compiled = Arc::new(compiled);
        replanning.next = Some(Next {
            plan,
            compiled: Arc::clone(&compiled),
            decided_us: self.now,
        });
        self.fleet.grow(&self.tables, self.config);
        self.report.grow(&self.tables);
        for replica in &compiled.placement {
            self.keep_or_load(*replica);
        }
        // Replicas that only the plan that waited before needs are not loaded any further.
        self.retire();
        self.begin_if_loaded();
        Ok(())
    }

    /// A plan places this replica: it is kept, or loaded.
    fn keep_or_load(&mut self, number: u32) {
        let now = self.now;
        let Some(replica) = self.fleet.replica(number).filter(|replica| !replica.out) else {
            return;
        };
        match replica.health {
            // Its model has not gone yet.
            Health::Draining => self.fleet.set_health(number, Health::Up, now),
            Health::Down => {
                let variant = self.tables.variants.get(replica.variant);
                let loading_us = self.config.loading.time_us(variant.map_or("", String::as_str));
                replica.loaded_at = now.saturating_add(loading_us);
                self.events.add(replica.loaded_at, Event::Loaded(number));
                self.fleet.set_health(number, Health::Loading, now);
                self.report.loads += 1;
            }
            Health::Loading | Health::Up | Health::Failed => {}
        }
    }

    pub(super) fn loaded(&mut self, number: u32, at: u64) {
        let replica = self.fleet.replica(number);
        if replica.is_some_and(|replica| replica.health == Health::Loading && replica.loaded_at == at) {
            self.fleet.set_health(number, Health::Up, self.now);
            self.begin_if_loaded();
        }
    }

    /// Puts the plan that waits in force, unless something of it is still being loaded.
    pub(super) fn begin_if_loaded(&mut self) {
        let Some(replanning) = &mut self.replanning else {
            return;
        };
        let fleet = &self.fleet;
        let loading = |replica: &u32| fleet.health(*replica) == Health::Loading;
        let waits = |next: &mut Next| !next.compiled.placement.iter().any(loading);
        let Some(next) = replanning.next.take_if(waits) else {
            return;
        };
        self.control.gear = self.control.adopt(&next.plan);
        self.epochs.begin(Arc::clone(&next.compiled), &self.fleet);
        self.report.plans += 1;
        self.report.max_plans = self.report.max_plans.max(self.epochs.count());
        if self.report.plan_log.len() < PLANS_KEPT {
            self.report.plan_log.push(PlanChange {
                decided_us: next.decided_us,
                at_us: self.now,
            });
        }
        self.batch_as_the_gear_says();
        self.retire();
    }

    /// Replicas that no plan places any more, in force, to come, or still with requests in flight, finish what they hold and
    /// go.
    pub(super) fn retire(&mut self) {
        let mut wanted = vec![false; self.fleet.replicas.len()];
        let next = self
            .replanning
            .as_ref()
            .and_then(|replanning| replanning.next.as_ref());
        let placements = self.epochs.plans().chain(next.map(|next| &*next.compiled));
        for number in placements.flat_map(|plan| &plan.placement) {
            if let Some(wanted) = wanted.get_mut(*number as usize) {
                *wanted = true;
            }
        }
        let replicas = (0..).zip(&self.fleet.replicas).zip(wanted);
        let left: Vec<(u32, Health)> = replicas
            .filter(|((_, replica), wanted)| {
                !wanted && matches!(replica.health, Health::Up | Health::Loading)
            })
            .map(|((number, replica), _)| (number, replica.health))
            .collect();
        for (number, health) in left {
            if health == Health::Loading {
                self.fleet.set_health(number, Health::Down, self.now);
            } else {
                self.fleet.set_health(number, Health::Draining, self.now);
                self.settle(number);
            }
        }
    }
}
