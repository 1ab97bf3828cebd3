//! Data that all plans of a run share, by number: variants, replicas, devices, tasks, and run times of batches.
//!
//! Numbers are given once and stay, so that what is in flight under one plan means the same under the next. A replica is known
//! by its id, variant and device: a planner that uses its ids again keeps this as small as its cluster.

use std::collections::BTreeMap;

use super::config::{Power, SimConfig, SimError};
use super::run_times::RunTimes;
use kaskade_policy::plan::{Batching, Partition, Plan, Replica};
use kaskade_policy::profile::{Profile, VariantProfile};

/// Data that all plans of a run share.
#[derive(Debug, Clone, Default)]
pub(super) struct RunTables {
    pub(super) variants: Numbered<String>,
    pub(super) devices: Numbered<(String, String)>,
    pub(super) workers: Numbered<String>,
    /// Tasks, and stages without one.
    pub(super) tasks: Numbered<String>,
    pub(super) replicas: Vec<KnownReplica>,
    pub(super) run_times: Vec<RunTimes>,
    /// Variants with the partition of them that a replica may hold: what a queue group has in common.
    pub(super) kinds: Numbered<(u32, PartitionKey)>,
    numbers: BTreeMap<ReplicaKey, u32>,
    /// Index in [`RunTables::run_times`], by variant and number of partitions.
    timed: BTreeMap<(u32, u32), u32>,
}

/// Index and number of partitions; absent for the whole model.
pub(super) type PartitionKey = Option<(u32, u32)>;

/// A partition as a key.
pub(super) fn partition_key(partition: Option<Partition>) -> PartitionKey {
    partition.map(|Partition { index, of }| (index, of))
}

/// Id, variant, device and partition.
type ReplicaKey = (String, u32, u32, PartitionKey);

/// A replica of any plan.
#[derive(Debug, Clone)]
pub(super) struct KnownReplica {
    pub(super) id: String,
    pub(super) variant: u32,
    pub(super) device: u32,
    /// The process that runs it.
    pub(super) worker: u32,
    /// The number of its variant and partition.
    pub(super) kind: u32,
    /// Index of the replica's run times in [`RunTables::run_times`].
    pub(super) run_times: u32,
}

/// Things with a number each, in order of first mention.
#[derive(Debug, Clone)]
pub(super) struct Numbered<T> {
    pub(super) list: Vec<T>,
    numbers: BTreeMap<T, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            numbers: BTreeMap::new(),
        }
    }
}

impl<T: Ord + Clone> Numbered<T> {
    pub(super) fn number(&mut self, thing: &T) -> u32 {
        if let Some(number) = self.numbers.get(thing) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(thing.clone());
        self.numbers.insert(thing.clone(), number);
        number
    }

    pub(super) fn find(&self, thing: &T) -> Option<u32> {
        self.numbers.get(thing).copied()
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.list.get(number as usize)
    }
}

impl RunTables {
    /// Numbers a plan's variants, tasks and replicas. Gives its replicas in the order of its placement.
    pub(super) fn place(
        &mut self,
        plan: &Plan,
        profile: &Profile,
        config: &SimConfig,
    ) -> Result<Vec<u32>, SimError> {
        for variant in &plan.variants {
            self.variants.number(&variant.name);
        }
        for stage in plan.gears.iter().flat_map(|gear| &gear.wiring.stages) {
            self.tasks.number(stage.task.as_ref().unwrap_or(&stage.name));
        }
        let mut placed = Vec::with_capacity(plan.placement.len());
        for replica in &plan.placement {
            let variant = self.variants.number(&replica.variant);
            let device = self
                .devices
                .number(&(replica.worker.clone(), replica.device.clone()));
            let worker = self.workers.number(&replica.worker);
            let partition = partition_key(replica.partition);
            let kind = self.kinds.number(&(variant, partition));
            let key = (replica.id.clone(), variant, device, partition);
            let run_times = self.run_times(plan, replica, variant, profile, config)?;
            let replicas = &mut self.replicas;
            placed.push(*self.numbers.entry(key).or_insert_with(|| {
                replicas.push(KnownReplica {
                    id: replica.id.clone(),
                    variant,
                    device,
                    worker,
                    kind,
                    run_times,
                });
                replicas.len() as u32 - 1
            }));
        }
        Ok(placed)
    }

    /// The names of the tasks and variants of a path.
    pub(super) fn path_names(&self, steps: &[(u32, u32)]) -> Vec<(String, String)> {
        let named = |(task, variant): &(u32, u32)| {
            Some((
                self.tasks.get(*task)?.clone(),
                self.variants.get(*variant)?.clone(),
            ))
        };
        steps.iter().filter_map(named).collect()
    }

    fn run_times(
        &mut self,
        plan: &Plan,
        replica: &Replica,
        variant: u32,
        profile: &Profile,
        config: &SimConfig,
    ) -> Result<u32, SimError> {
        let parts = replica.partition.map_or(1, |partition| partition.of.max(1));
        if let Some(known) = self.timed.get(&(variant, parts)) {
            return Ok(*known);
        }
        let with_energy = matches!(config.power, Some(Power::Profiled { .. }));
        let largest = largest_batch(plan, &replica.variant);
        let times = RunTimes::new(profiled(profile, &replica.variant)?, parts, largest, with_energy)?;
        self.run_times.push(times);
        let number = self.run_times.len() as u32 - 1;
        self.timed.insert((variant, parts), number);
        Ok(number)
    }
}

/// Returns the measurements of a variant.
pub(super) fn profiled<'a>(profile: &'a Profile, variant: &str) -> Result<&'a VariantProfile, SimError> {
    let mut profiles = profile.variants.iter();
    profiles
        .find(|profiled| profiled.name == variant)
        .ok_or_else(|| SimError::NoProfile {
            variant: variant.to_owned(),
        })
}

/// The largest batch that a replica of the variant may be given in any gear.
fn largest_batch(plan: &Plan, variant: &str) -> u32 {
    let stages = plan.gears.iter().flat_map(|gear| &gear.wiring.stages);
    stages
        .filter(|stage| stage.variant == variant)
        .map(|stage| stage.batching.max_batch)
        .fold(Batching::default().max_batch, u32::max)
}
