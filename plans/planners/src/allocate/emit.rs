//! Turns an allocation into a plan: placement, wiring and budgets.
//!
//! Workers keep their variant wherever the allocation still needs it, because a change costs the time of loading. Every
//! variant in use is one stage of its task, named like the variant, and every sender has its own shares of the workers of the
//! child tasks, with the rest of the capacity as backups (§5.1).

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::allocation::{Allocation, Scaling};
use crate::balance::{Balanced, Balancer, Instances, Table};
use kaskade_policy::invalid::Invalid;
use kaskade_policy::pipeline::Pipeline;
use kaskade_policy::plan::{
    Batching, Child, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant, Profiled,
    Replica, Sharing, Slo, Stage, Wiring,
};

/// A place that runs one variant at a time: a device of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// The worker.
    pub worker: String,
    /// Device of the worker: `cpu`, `cuda:0`, ...
    pub device: String,
}

/// The context of a plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanFor<'a> {
    /// The app.
    pub app: &'a str,
    /// Slots for replicas; their order breaks ties.
    pub slots: &'a [Slot],
    /// The running plan.
    pub previous: Option<&'a Plan>,
    /// Policy for late requests (§5.2).
    pub dropping: Dropping,
}

/// An allocation cannot become a plan. The caller keeps an older plan.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum EmitError {
    /// There are fewer slots than the allocation uses.
    #[error("the allocation uses {needed} workers, and there are {slots}; allocate to those there are")]
    TooFewSlots {
        /// Workers in the allocation.
        needed: u32,
        /// Available slots.
        slots: usize,
    },
    /// The plan would be unsound.
    #[error("the allocation does not make a sound plan: {0}")]
    Unsound(Box<Invalid>),
}

impl Allocation {
    /// The routing tables for this many requests/s at the root.
    pub fn balance(&self, pipeline: &Pipeline, demand_qps: f64) -> Balanced {
        Balancer::new(pipeline, &self.instances).balance(demand_qps)
    }

    /// The plan of this allocation of `pipeline`, balanced for the demand that it serves. It has one gear for every load.
    ///
    /// # Errors
    /// An [`EmitError`] if there are too few slots, or the pipeline is not the one that was allocated.
    pub fn plan(&self, pipeline: &Pipeline, plan_for: PlanFor<'_>) -> Result<Plan, EmitError> {
        let balanced = self.balance(pipeline, self.served_qps);
        self.plan_balanced(pipeline, &balanced, plan_for)
    }

    /// The plan of this allocation with these routing tables, which are renewed between two allocations.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub(crate) fn plan_balanced(
        &self,
        pipeline: &Pipeline,
        balanced: &Balanced,
        plan_for: PlanFor<'_>,
    ) -> Result<Plan, EmitError> {
        let placement = place(&self.instances, plan_for)?;
        let emitter = Emitter {
            pipeline,
            instances: &self.instances,
            replicas: self
                .instances
                .iter()
                .map(|own| replicas(&placement, &own.variant))
                .collect(),
            balanced,
        };
        let variant = |own: &Instances| PlannedVariant {
            name: own.variant.clone(),
            calibration: None,
        };
        let holding = |replica: Replica| {
            let profiled = pipeline.checkpoint(&replica.variant);
            replica.with_checkpoint(profiled)
        };
        let plan = Plan {
            version: PLAN_VERSION,
            app: plan_for.app.to_owned(),
            made_by: self.made_by(),
            variants: self.instances.iter().map(variant).collect(),
            sharing: Sharing::Concurrent,
            dropping: plan_for.dropping,
            certificate: None,
            certified: None,
            slo: Some(Slo::Latency {
                p95_us: pipeline.slo_us,
            }),
            gears: vec![Gear {
                name: "pipeline".to_owned(),
                load: LoadRange::ALL,
                expected: None,
                wiring: emitter.wiring(),
            }],
            placement: placement.into_iter().map(holding).collect(),
        };
        plan.validate()
            .map_err(|invalid| EmitError::Unsound(Box::new(invalid)))?;
        Ok(plan)
    }

    fn made_by(&self) -> String {
        let scaling = match self.scaling {
            Scaling::Hardware => "hardware",
            Scaling::Accuracy => "accuracy",
            Scaling::Overload => "overload",
        };
        format!(
            "{}/{scaling} qps={:.1} workers={}/{}",
            self.policy, self.served_qps, self.used, self.workers
        )
    }
}

/// Ids of the replicas of a variant.
fn replicas(placement: &[Replica], variant: &str) -> Vec<String> {
    let own = placement.iter().filter(|replica| replica.variant == variant);
    own.map(|replica| replica.id.clone()).collect()
}

/// Gives every instance a slot. A slot keeps its variant where that is still wanted; what is new goes to idle slots first, where
/// nothing has to leave before it can be loaded.
fn place(instances: &[Instances], plan_for: PlanFor<'_>) -> Result<Vec<Replica>, EmitError> {
    let needed: u32 = instances.iter().map(|own| own.count).sum();
    let slots = plan_for.slots;
    if slots.len() < needed as usize {
        let slots = slots.len();
        return Err(EmitError::TooFewSlots { needed, slots });
    }
    let before: BTreeMap<(&str, &str), &Replica> = plan_for
        .previous
        .into_iter()
        .flat_map(|plan| &plan.placement)
        .filter(|replica| replica.partition.is_none())
        .map(|replica| ((replica.worker.as_str(), replica.device.as_str()), replica))
        .collect();
    let before = |slot: &Slot| before.get(&(slot.worker.as_str(), slot.device.as_str())).copied();
    let mut wanted: BTreeMap<&str, u32> = instances
        .iter()
        .map(|own| (own.variant.as_str(), own.count))
        .collect();
    let mut taken: Vec<Option<Replica>> = vec![None; slots.len()];
    for (slot, taken) in slots.iter().zip(&mut taken) {
        let kept =
            before(slot).filter(|replica| wanted.get(replica.variant.as_str()).is_some_and(|left| *left > 0));
        if let Some(kept) = kept {
            wanted.entry(kept.variant.as_str()).and_modify(|left| *left -= 1);
            *taken = Some(kept.clone());
        }
    }
    let mut ids: BTreeSet<String> = taken.iter().flatten().map(|replica| replica.id.clone()).collect();
    let mut free: Vec<usize> = (0..slots.len())
        .filter(|at| taken.get(*at).is_some_and(Option::is_none))
        .collect();
    free.sort_by_key(|at| slots.get(*at).is_some_and(|slot| before(slot).is_some()));
    let new = instances.iter().flat_map(|own| {
        let count = wanted.get(own.variant.as_str()).copied().unwrap_or(0);
        std::iter::repeat_n(own.variant.as_str(), count as usize)
    });
    for (variant, at) in new.zip(free) {
        if let (Some(slot), Some(taken)) = (slots.get(at), taken.get_mut(at)) {
            *taken = Some(Replica::whole(
                new_id(variant, at, &mut ids),
                variant,
                &slot.worker,
                &slot.device,
            ));
        }
    }
    Ok(taken.into_iter().flatten().collect())
}

/// A replica is named after its variant and its slot, unless one that was kept has that name.
fn new_id(variant: &str, slot: usize, ids: &mut BTreeSet<String>) -> String {
    // A name has at most 64 letters.
    let stem: String = variant.chars().take(48).collect();
    let mut id = format!("{stem}-{slot}");
    let mut more = 1;
    while !ids.insert(id.clone()) {
        more += 1;
        id = format!("{stem}-{slot}-{more}");
    }
    id
}

/// The rest of a path: time of its batches, microseconds, and tasks.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    us: f64,
    levels: usize,
}

impl Rest {
    fn with(self, us: f64) -> Self {
        Self {
            us: self.us + us,
            levels: self.levels + 1,
        }
    }
}

struct Emitter<'a> {
    pipeline: &'a Pipeline,
    instances: &'a [Instances],
    /// Ids of the replicas, by instances.
    replicas: Vec<Vec<String>>,
    balanced: &'a Balanced,
}

impl Emitter<'_> {
    fn wiring(&self) -> Wiring {
        let entry = self.balanced.tables.iter().find(|table| table.from.is_none());
        let mut stages: Vec<(usize, Stage)> = Vec::new();
        for (place, own) in self.instances.iter().enumerate() {
            stages.push((self.depth(&own.task), self.stage(place, own)));
        }
        // An edge leads to a later stage.
        stages.sort_by_key(|(depth, _)| *depth);
        Wiring {
            entry: entry.map_or_else(|| Edge::to(""), |table| self.edge(table)),
            ensemble: Vec::new(),
            stages: stages.into_iter().map(|(_, stage)| stage).collect(),
        }
    }

    /// The budget of a request at a task by this variant, in its queue and its batch, microseconds.
    ///
    /// The paper's budgets are the batches' times (§4.2), to which the half of the objective comes that was set aside for queues. What
    /// the chosen batches leave of the objective is divided too: budgets are the objective's parts in proportion to the
    /// batches' times on the slowest path through the task, so that a request that keeps to them is in time by no more than it must.
    fn budget_us(&self, own: &Instances) -> f64 {
        let (above, below) = (self.above(&own.task), self.below(&own.task));
        let path_us = own.latency_us + above.us + below.us;
        let levels = above.levels + below.levels + 1;
        let objective_us = (self.pipeline.slo_us as f64) - levels as f64 * self.pipeline.hop_us as f64;
        // The slowest batches of two tasks need not be of one path, so this may be a little less than twice its time.
        own.latency_us * (objective_us / path_us).max(1.0)
    }

    /// The slowest batch of a task, microseconds.
    fn slowest_us(&self, task: &str) -> f64 {
        let own = self.instances.iter().filter(|own| own.task == task);
        own.map(|own| own.latency_us).fold(0.0, f64::max)
    }

    fn above(&self, task: &str) -> Rest {
        let tasks = std::iter::successors(self.parent(task), |task| self.parent(task));
        tasks.fold(Rest::default(), |rest, task| rest.with(self.slowest_us(task)))
    }

    fn below(&self, task: &str) -> Rest {
        let found = self.pipeline.tasks.iter().find(|found| found.name == task);
        let children = found.into_iter().flat_map(|task| &task.children);
        let paths = children.map(|child| self.below(child).with(self.slowest_us(child)));
        paths.fold(Rest::default(), |worst, path| Rest {
            us: worst.us.max(path.us),
            levels: worst.levels.max(path.levels),
        })
    }

    fn parent(&self, task: &str) -> Option<&str> {
        let mut tasks = self.pipeline.tasks.iter();
        let parent = tasks.find(|parent| parent.children.iter().any(|child| child == task));
        parent.map(|parent| parent.name.as_str())
    }

    /// Tasks above this one.
    fn depth(&self, task: &str) -> usize {
        std::iter::successors(self.parent(task), |task| self.parent(task)).count()
    }

    fn stage(&self, place: usize, own: &Instances) -> Stage {
        let found = self.pipeline.variant(&own.variant);
        let variant = found.and_then(|(task, variant)| self.pipeline.tasks.get(task)?.variants.get(variant));
        let tables = self
            .balanced
            .tables
            .iter()
            .filter(|table| table.from == Some(place));
        let children: Vec<Child> = tables
            .filter_map(|table| {
                let child = self.pipeline.tasks.get(table.to)?;
                Some(Child {
                    to: self.edge(table),
                    multiplicity: variant?.multiplicity(&child.name),
                })
            })
            .collect();
        Stage {
            score: None,
            name: own.variant.clone(),
            task: Some(own.task.clone()),
            variant: own.variant.clone(),
            partition: None,
            exit: if children.is_empty() {
                Exit::Reply
            } else {
                Exit::FanOut { children }
            },
            batching: Batching {
                min_queue: 1,
                max_batch: own.batch,
                // Never waited for: an idle worker starts with the first request.
                max_wait_us: 0,
            },
            budget_us: Some(micros(self.budget_us(own))),
            profiled: variant.map(|variant| Profiled {
                run_us: micros(own.latency_us),
                accuracy: variant.accuracy,
            }),
        }
    }

    /// An edge to a task: it names the most accurate of its stages, and leads to the workers of all.
    fn edge(&self, table: &Table) -> Edge {
        let task = self.pipeline.tasks.get(table.to).map(|task| task.name.as_str());
        let named = self.instances.iter().find(|own| Some(own.task.as_str()) == task);
        let mut shares = BTreeMap::new();
        for (place, share) in &table.shares {
            let ids = self.replicas.get(*place).map_or(&[][..], Vec::as_slice);
            shares.extend(ids.iter().map(|id| (id.clone(), share / ids.len() as f64)));
        }
        let backups = self.balanced.backups.get(table.to).into_iter().flatten();
        let backup = backups.flat_map(|(place, _)| self.replicas.get(*place).into_iter().flatten());
        Edge {
            shares,
            backup: backup.cloned().collect(),
            ..Edge::to(named.map(|own| own.variant.clone()).unwrap_or_default())
        }
    }
}

fn micros(us: f64) -> u64 {
    us.round().max(1.0) as u64
}

#[cfg(test)]
mod tests;
