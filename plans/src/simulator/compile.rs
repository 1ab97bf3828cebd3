//! From names to numbers: a plan and a profile as the engine reads them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::config::{Power, SimConfig, SimError};
use super::names::{Names, Stages};
use super::run_times::RunTimes;
use crate::plan::{Batching, Edge, Exit, Gear, Plan, Stage, Target};
use crate::profile::{Profile, Validation};
use crate::routing::{self, Route};

/// A plan and a profile as the engine reads them. Edges and stages are numbered over all gears.
#[derive(Debug, Clone)]
pub(super) struct Compiled {
    pub(super) variants: Vec<String>,
    pub(super) replicas: Vec<CompiledReplica>,
    pub(super) devices: Vec<(String, String)>,
    pub(super) run_times: Vec<RunTimes>,
    pub(super) gears: Vec<CompiledGear>,
    pub(super) stages: Vec<CompiledStage>,
    pub(super) edges: Vec<CompiledEdge>,
    pub(super) exits: Vec<CompiledExit>,
    /// Number of validation samples.
    pub(super) samples: u32,
}

#[derive(Debug, Clone)]
pub(super) struct CompiledReplica {
    pub(super) id: String,
    pub(super) variant: u32,
    pub(super) device: u32,
    /// Its place in [`Compiled::run_times`].
    pub(super) run_times: u32,
}

#[derive(Debug, Clone)]
pub(super) struct CompiledGear {
    /// The entry and the ensemble's other members.
    pub(super) entries: Vec<u32>,
    /// By sample, what an ensemble answers.
    pub(super) vote: Option<Vec<Ballot>>,
    /// By variant, as the running gear sets it.
    pub(super) batching: Vec<Option<Batching>>,
    /// The variant of the entry's stage.
    pub(super) first: u32,
}

/// What an ensemble answers to a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ballot {
    pub(super) variant: u32,
    pub(super) right: bool,
}

#[derive(Debug, Clone)]
pub(super) struct CompiledStage {
    /// By variant, what becomes of each sample. The stage's own variant comes first; others only where a backup runs them.
    outcomes: Vec<(u32, Vec<Outcome>)>,
}

impl CompiledStage {
    pub(super) fn outcome(&self, variant: u32, sample: u32) -> Option<Outcome> {
        let (_, outcomes) = self.outcomes.iter().find(|(of, _)| *of == variant)?;
        outcomes.get(sample as usize).copied()
    }
}

/// What becomes of a sample at a stage: whether the answer is right, and the place of its exit in [`Compiled::exits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome(u32);

impl Outcome {
    fn new(exit: usize, right: bool) -> Self {
        Self((exit as u32) << 1 | u32::from(right))
    }

    pub(super) fn right(self) -> bool {
        self.0 & 1 == 1
    }

    pub(super) fn exit(self) -> usize {
        (self.0 >> 1) as usize
    }
}

/// The place of [`CompiledExit::Reply`], which all stages share.
const REPLY: usize = 0;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum CompiledExit {
    Reply,
    Forward(u32),
    /// Edges with the mean number of copies.
    FanOut(Vec<(u32, f64)>),
}

#[derive(Debug, Clone)]
pub(super) struct CompiledEdge {
    pub(super) stage: u16,
    /// The variant of that stage, whose living replicas are the queue group.
    pub(super) variant: u32,
    pub(super) shares: Vec<(u32, f64)>,
    pub(super) backup: Vec<u32>,
}

impl Compiled {
    pub(super) fn new(plan: &Plan, profile: &Profile, config: &SimConfig) -> Result<Self, SimError> {
        plan.validate()?;
        let names = Names::new(plan, profile);
        let mut compiled = Self {
            variants: plan.variants.iter().map(|variant| variant.name.clone()).collect(),
            replicas: Vec::new(),
            devices: Vec::new(),
            run_times: Vec::new(),
            gears: Vec::new(),
            stages: Vec::new(),
            edges: Vec::new(),
            exits: vec![CompiledExit::Reply],
            samples: u32::try_from(profile.samples).map_err(|_| SimError::TooMany {
                what: "validation samples",
                limit: u32::MAX as usize,
            })?,
        };
        compiled.place(plan, &names, config)?;
        for gear in &plan.gears {
            compiled.gear(gear, &names)?;
        }
        Ok(compiled)
    }

    fn place(&mut self, plan: &Plan, names: &Names<'_>, config: &SimConfig) -> Result<(), SimError> {
        let with_energy = matches!(config.power, Some(Power::Profiled { .. }));
        let mut devices = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        for replica in &plan.placement {
            let key = (&replica.worker, &replica.device);
            let device = *devices.entry(key).or_insert_with(|| {
                self.devices
                    .push((replica.worker.clone(), replica.device.clone()));
                self.devices.len() as u32 - 1
            });
            let parts = replica.partition.map_or(1, |slice| slice.of.max(1));
            if let Entry::Vacant(kind) = kinds.entry((&replica.variant, parts)) {
                let profiled = names.profile(&replica.variant)?;
                let largest = largest_batch(plan, &replica.variant);
                kind.insert(self.run_times.len() as u32);
                self.run_times
                    .push(RunTimes::new(profiled, parts, largest, with_energy)?);
            }
            self.replicas.push(CompiledReplica {
                id: replica.id.clone(),
                variant: names.variant(&replica.variant),
                device,
                run_times: kinds.get(&(&replica.variant, parts)).copied().unwrap_or_default(),
            });
        }
        Ok(())
    }

    fn gear(&mut self, gear: &Gear, names: &Names<'_>) -> Result<(), SimError> {
        let wiring = &gear.wiring;
        let stages = Stages {
            gear,
            names,
            first: self.stages.len(),
        };
        let last = stages.first + wiring.stages.len();
        if last > usize::from(u16::MAX) {
            return Err(SimError::TooMany {
                what: "stages over all gears",
                limit: u16::MAX.into(),
            });
        }
        let entries = std::iter::once(&wiring.entry).chain(&wiring.ensemble);
        let entries = entries.map(|edge| self.edge(edge, &stages)).collect();
        for stage in &wiring.stages {
            let compiled = self.stage(stage, &stages)?;
            self.stages.push(compiled);
        }
        let batching = self
            .variants
            .iter()
            .map(|variant| gear.batching(variant))
            .collect();
        self.gears.push(CompiledGear {
            entries,
            vote: stages.vote(self.samples)?,
            batching,
            first: stages.variant_of(&wiring.entry),
        });
        Ok(())
    }

    fn edge(&mut self, edge: &Edge, stages: &Stages<'_>) -> u32 {
        let replica = |id: &String| stages.names.replica(id);
        let shares = edge.shares.iter();
        self.edges.push(CompiledEdge {
            stage: stages.number(&edge.stage) as u16,
            variant: stages.variant_of(edge),
            shares: shares.map(|(id, share)| (replica(id), *share)).collect(),
            backup: edge.backup.iter().map(replica).collect(),
        });
        self.edges.len() as u32 - 1
    }

    fn stage(&mut self, stage: &Stage, stages: &Stages<'_>) -> Result<CompiledStage, SimError> {
        let exits = self.exits_of(&stage.exit, stages);
        let mut outcomes = Vec::new();
        for variant in stages.variants_at(stage) {
            let validation = stages.names.validation(variant)?;
            let table = self.outcomes(stage, validation, &exits, stages.gear)?;
            outcomes.push((stages.names.variant(variant), table));
        }
        Ok(CompiledStage { outcomes })
    }

    /// The ways out of a stage, in the plan's order, each with its number.
    fn exits_of<'a>(&mut self, exit: &'a Exit, stages: &Stages<'_>) -> Vec<(Route<'a>, usize)> {
        let mut ways = vec![(Route::Reply, REPLY)];
        match exit {
            Exit::Reply => {}
            Exit::Next { to } => ways.push((Route::Forward(to), 0)),
            Exit::FanOut { children } => ways.push((Route::FanOut(children), 0)),
            Exit::Bands { bands } => ways.extend(bands.iter().filter_map(|band| match &band.to {
                Target::Reply => None,
                Target::Stage(edge) => Some((Route::Forward(edge), 0)),
            })),
        }
        for (way, number) in ways.iter_mut().skip(1) {
            let exit = match way {
                Route::Reply => continue,
                Route::Forward(edge) => CompiledExit::Forward(self.edge(edge, stages)),
                Route::FanOut(children) => {
                    let children = children.iter();
                    let copies = children.map(|child| (self.edge(&child.to, stages), child.multiplicity));
                    CompiledExit::FanOut(copies.collect())
                }
            };
            self.exits.push(exit);
            *number = self.exits.len() - 1;
        }
        ways
    }

    /// What becomes of each sample, by the policy that routes when serving.
    fn outcomes(
        &self,
        stage: &Stage,
        validation: &Validation,
        exits: &[(Route<'_>, usize)],
        gear: &Gear,
    ) -> Result<Vec<Outcome>, SimError> {
        let samples = validation.confidences.iter().zip(&validation.correct);
        let outcome = |(sample, (confidence, right)): (usize, (&f64, &bool))| {
            let way = routing::route(&stage.exit, Some(*confidence)).map_err(|source| SimError::NoRoute {
                gear: gear.name.clone(),
                stage: stage.name.clone(),
                sample,
                source,
            })?;
            let number = exits.iter().find(|(known, _)| same(known, &way));
            Ok(Outcome::new(number.map_or(REPLY, |(_, number)| *number), *right))
        };
        samples
            .take(self.samples as usize)
            .enumerate()
            .map(outcome)
            .collect()
    }
}

/// Whether two ways out of one stage are the same one, not merely alike.
fn same(a: &Route<'_>, b: &Route<'_>) -> bool {
    match (a, b) {
        (Route::Reply, Route::Reply) => true,
        (Route::Forward(a), Route::Forward(b)) => std::ptr::eq(*a, *b),
        (Route::FanOut(a), Route::FanOut(b)) => std::ptr::eq(*a, *b),
        _ => false,
    }
}

/// The largest batch that a replica of the variant may be given in any gear.
fn largest_batch(plan: &Plan, variant: &str) -> u32 {
    let batchings = plan.gears.iter().filter_map(|gear| gear.batching(variant));
    batchings
        .map(|batching| batching.max_batch)
        .fold(Batching::default().max_batch, u32::max)
}
