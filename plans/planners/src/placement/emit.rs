//! Writes a placement into a plan: named replicas and partitions, stages in chains, shares over copies.

use std::collections::{BTreeMap, BTreeSet};

use super::error::PlacementError;
use super::options::{PlacementObjective, PlacementOptions};
use super::outcome::{DeviceLoad, PlacedModel, Placement};
use super::problem::{Cluster, Problem};
use super::search::SearchResult;
use super::shapes::{Models, ReplicaPartition};
use kaskade_policy::confidence::deferral::DeferralScore;
use kaskade_policy::plan::{
    Band, Batching, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Partition, Plan, Replica, Sharing,
    Stage, Target, Wiring,
};
use kaskade_policy::profile::Profile;

/// The outcome of a search, with its plan.
pub(super) fn placed(
    profile: &Profile,
    cascade: &Plan,
    models: &Models<'_>,
    options: &PlacementOptions,
    cluster: &Cluster,
    found: &SearchResult,
) -> Result<Placement, PlacementError> {
    let names = Names {
        profile,
        models,
        shape: &found.shape,
    };
    let problem = Problem::new(
        cluster,
        found.parts.kinds.clone(),
        found.parts.pairs.clone(),
        found.parts.chains.clone(),
    );
    let placement = names.replicas(&problem, options, &found.solved.placed);
    let mut plan = Plan {
        version: PLAN_VERSION,
        app: profile.app.clone(),
        made_by: made_by(cascade, options, found.qps),
        variants: cascade.variants.clone(),
        sharing: Sharing::Concurrent,
        dropping: Dropping::None,
        slo: cascade.slo,
        certificate: cascade.certificate.clone(),
        certified: cascade.certified.clone(),
        gears: names.gears(cascade),
        placement,
    };
    // The list needs whole replicas of its variants, and this placement may split or leave out one of them.
    let unaudited = match plan.validate() {
        Err(_) => without_whole_replica(&plan),
        Ok(()) => Vec::new(),
    };
    if !unaudited.is_empty() {
        plan.certified = None;
    }
    plan.validate().map_err(PlacementError::Plan)?;
    Ok(Placement {
        devices: devices(&plan, &problem, options, &found.solved.placed),
        models: names.placed(found, options),
        plan,
        qps: found.qps,
        batch: options.batch,
        overhead_s: found.solved.overhead,
        proof: found.proof,
        shapes: found.shapes,
        flow: models.flow.clone(),
        unaudited,
    })
}

/// Returns the variants of the certified list that have no whole replica, each once.
fn without_whole_replica(plan: &Plan) -> Vec<String> {
    let list = plan.certified.iter().flat_map(|list| &list.cascades);
    let stages = list.flat_map(|cascade| &cascade.gear.wiring.stages);
    let is_whole = |variant: &str| {
        let mut replicas = plan.placement.iter();
        replicas.any(|replica| replica.variant == variant && replica.partition.is_none())
    };
    let variants: BTreeSet<&str> = stages.map(|stage| stage.variant.as_str()).collect();
    let missing = variants.into_iter().filter(|variant| !is_whole(variant));
    missing.map(str::to_owned).collect()
}

fn made_by(cascade: &Plan, options: &PlacementOptions, qps: f64) -> String {
    let goal = match options.goal {
        PlacementObjective::Carry { .. } => "carry",
        PlacementObjective::Most => "most",
    };
    format!(
        "placement/{goal} qps={qps:.3} batch={} seed={}; {}",
        options.batch, options.seed, cascade.made_by
    )
}

/// The names of replicas and stages.
struct Names<'a> {
    profile: &'a Profile,
    models: &'a Models<'a>,
    shape: &'a ReplicaPartition,
}

impl Names<'_> {
    fn variant(&self, model: usize) -> &str {
        self.models.flow.variants.get(model).map_or("", String::as_str)
    }

    fn counts(&self, model: usize) -> (u32, u32) {
        let count = |counts: &[u32]| counts.get(model).copied().unwrap_or(1);
        (count(&self.shape.replicas), count(&self.shape.partitions))
    }

    fn partition(&self, model: usize, part: u32) -> Option<Partition> {
        let (_, of) = self.counts(model);
        (of > 1).then_some(Partition { index: part, of })
    }

    /// `large-2`, or `large-2-p1of3` where it is a partition: the same copy cut otherwise has another id.
    fn replica(&self, model: usize, copy: u32, part: u32) -> String {
        let name = self.variant(model);
        match self.partition(model, part) {
            None => format!("{name}-{copy}"),
            Some(Partition { index, of }) => format!("{name}-{copy}-p{index}of{of}"),
        }
    }

    fn replicas(&self, problem: &Problem<'_>, options: &PlacementOptions, devices: &[usize]) -> Vec<Replica> {
        let replica = |(number, device): (usize, &usize)| {
            let kind = problem.kind_of(number)?;
            let instance = problem.instances.get(number)?;
            let at = options.devices.get(*device)?;
            let checkpoint = self.profile.checkpoint(self.variant(kind.model));
            Some(Replica {
                id: self.replica(kind.model, instance.copy, kind.part),
                variant: self.variant(kind.model).to_owned(),
                worker: at.worker.clone(),
                device: at.device.clone(),
                partition: self.partition(kind.model, kind.part),
                checkpoint: checkpoint.map(str::to_owned),
            })
        };
        devices.iter().enumerate().filter_map(replica).collect()
    }

    fn gears(&self, cascade: &Plan) -> Vec<Gear> {
        let wiring = |gear: &Gear| Wiring {
            entry: self.onto(gear, &gear.wiring.entry),
            ensemble: Vec::new(),
            stages: gear
                .wiring
                .stages
                .iter()
                .enumerate()
                .flat_map(|(model, stage)| self.stages(gear, stage, model))
                .collect(),
        };
        let first = cascade.gears.first();
        let gear = first.map(|gear| Gear {
            name: gear.name.clone(),
            load: LoadRange::ALL,
            expected: None,
            wiring: wiring(gear),
        });
        gear.into_iter().collect()
    }

    /// The stages of a model: one per partition, chained, the last with the model's own exit.
    fn stages(&self, gear: &Gear, stage: &Stage, model: usize) -> Vec<Stage> {
        let (replicas, partitions) = self.counts(model);
        let part = |part: u32| Stage {
            // Only the last partition has a confidence.
            score: (part + 1 == partitions)
                .then(|| self.score(gear, stage))
                .flatten(),
            name: part_name(&stage.name, part, partitions),
            partition: self.partition(model, part),
            exit: if part + 1 < partitions {
                Exit::Next {
                    to: self.chain(stage, model, part),
                }
            } else {
                self.exit(gear, &stage.exit)
            },
            batching: Batching {
                min_queue: 1,
                max_batch: self.models.largest_batch(model, replicas),
                ..stage.batching
            },
            ..stage.clone()
        };
        (0..partitions).map(part).collect()
    }

    /// The score of a stage, reading the stages that have the answers of partitioned models: their last partitions.
    fn score(&self, gear: &Gear, stage: &Stage) -> Option<DeferralScore> {
        let renamed = |name: &str| {
            let mut stages = gear.wiring.stages.iter();
            let model = stages.position(|stage| stage.name == name);
            let partitions = model.map_or(1, |model| self.counts(model).1);
            part_name(name, partitions.saturating_sub(1), partitions)
        };
        stage
            .score
            .clone()
            .map(|score| score.with_renamed_variants(renamed))
    }

    /// Connects a partition to the next one, copy by copy.
    fn chain(&self, stage: &Stage, model: usize, part: u32) -> Edge {
        let (replicas, partitions) = self.counts(model);
        let pairs = (0..replicas).map(|copy| {
            (
                self.replica(model, copy, part),
                self.replica(model, copy, part + 1),
            )
        });
        Edge {
            shares: self.shares(model, part + 1),
            pairs: pairs.collect(),
            ..Edge::to(part_name(&stage.name, part + 1, partitions))
        }
    }

    fn shares(&self, model: usize, part: u32) -> BTreeMap<String, f64> {
        let (replicas, _) = self.counts(model);
        let share = 1.0 / f64::from(replicas.max(1));
        (0..replicas)
            .map(|copy| (self.replica(model, copy, part), share))
            .collect()
    }

    fn exit(&self, gear: &Gear, exit: &Exit) -> Exit {
        match exit {
            Exit::Bands { bands } => Exit::Bands {
                bands: bands
                    .iter()
                    .map(|band| Band {
                        from: band.from,
                        to: match &band.to {
                            Target::Reply => Target::Reply,
                            Target::Stage(edge) => Target::Stage(self.onto(gear, edge)),
                        },
                    })
                    .collect(),
            },
            Exit::Next { to } => Exit::Next {
                to: self.onto(gear, to),
            },
            Exit::Reply | Exit::FanOut { .. } => exit.clone(),
        }
    }

    /// An edge of the cascade, over the copies of the model that it leads to.
    fn onto(&self, gear: &Gear, edge: &Edge) -> Edge {
        let mut stages = gear.wiring.stages.iter();
        let model = stages.position(|stage| stage.name == edge.stage).unwrap_or(0);
        Edge {
            shares: self.shares(model, 0),
            ..Edge::to(edge.stage.clone())
        }
    }

    fn placed(&self, found: &SearchResult, options: &PlacementOptions) -> Vec<PlacedModel> {
        let period_s = f64::from(options.batch) / found.qps;
        let placed = |(model, curves): (usize, &super::curves::Curves)| {
            let (replicas, partitions) = self.counts(model);
            let demand = self.models.demand.get(model).copied().unwrap_or(0.0);
            PlacedModel {
                variant: curves.variant.clone(),
                reach: self.models.flow.reach.get(model).copied().unwrap_or(0.0),
                replicas,
                partitions,
                requests: self.models.requests(model, replicas),
                max_batch: self.models.largest_batch(model, replicas),
                share_s: demand / f64::from(replicas) / f64::from(partitions),
                utilisation: self.models.kernel(model, replicas) / period_s / f64::from(partitions),
                memory_bytes: self.models.memory(model, replicas, partitions),
                curves: curves.clone(),
            }
        };
        self.models.curves.iter().enumerate().map(placed).collect()
    }
}

/// The first partition has the name of the model's stage, so that edges into it stay as they are.
fn part_name(stage: &str, part: u32, of: u32) -> String {
    if part == 0 {
        stage.to_owned()
    } else {
        format!("{stage}-p{part}of{of}")
    }
}

fn devices(
    plan: &Plan,
    problem: &Problem<'_>,
    options: &PlacementOptions,
    placed: &[usize],
) -> Vec<DeviceLoad> {
    let load = |(number, device): (usize, &crate::device::DeviceSpec)| {
        let mut load = DeviceLoad {
            worker: device.worker.clone(),
            device: device.device.clone(),
            instances: Vec::new(),
            memory_bytes: 0.0,
            capacity_bytes: device.memory_bytes,
            utilisation: 0.0,
        };
        let here = placed.iter().enumerate().filter(|(_, at)| **at == number);
        for (instance, _) in here {
            let id = plan.placement.get(instance).map(|replica| replica.id.clone());
            load.instances.extend(id);
            if let Some(kind) = problem.kind_of(instance) {
                load.memory_bytes += kind.memory;
                load.utilisation += kind.work / device.speed;
            }
        }
        load
    };
    options.devices.iter().enumerate().map(load).collect()
}
