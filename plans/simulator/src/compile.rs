//! Compiles a plan and a profile for the engine: names become numbers.

use super::config::{SimConfig, SimError};
use super::fan_out::Copies;
use super::names::{EnsembleAnswer, Names, Stages};
use super::run_tables::RunTables;
use kaskade_policy::plan::{Batching, Dropping, Edge, Exit, Gear, Plan, Sharing, Stage, Target};
use kaskade_policy::profile::{Profile, Validation};
use kaskade_policy::routing::{self, Route};
use kaskade_policy::slack;

/// A plan and a profile as the engine reads them. Edges and stages are numbered over all gears; variants, replicas and tasks
/// over all plans of the run, by [`RunTables`].
#[derive(Debug, Clone)]
pub(super) struct Compiled {
    pub(super) gears: Vec<CompiledGear>,
    pub(super) stages: Vec<CompiledStage>,
    pub(super) edges: Vec<CompiledEdge>,
    pub(super) exits: Vec<CompiledExit>,
    /// Replicas of the plan, by their number in [`RunTables`].
    pub(super) placement: Vec<u32>,
    pub(super) sharing: Sharing,
    pub(super) dropping: Dropping,
    /// Number of validation samples.
    pub(super) samples: u32,
    /// Requests that its replicas run at once, for the admission.
    pub(super) at_once: usize,
}

#[derive(Debug, Clone)]
pub(super) struct CompiledGear {
    /// The entry and the ensemble's other members.
    pub(super) entries: Vec<u32>,
    /// Answer of an ensemble to each sample.
    pub(super) vote: Option<Vec<EnsembleAnswer>>,
    /// Batching of each variant in the running gear.
    pub(super) batching: Vec<Option<Batching>>,
    /// The variant of the entry's stage.
    pub(super) first: u32,
    /// Whether any of its stages serves a task: then its requests are answered branch by branch.
    pub(super) pipeline: bool,
}

#[derive(Debug, Clone)]
pub(super) struct CompiledStage {
    /// Outcome of each sample, by variant. The stage's own variant comes first; others only where a backup runs them.
    outcomes: Vec<(u32, Vec<Outcome>)>,
    /// The number of its task, or of itself where it has none.
    pub(super) task: u32,
    /// Whether it serves a task: its requests may be dropped early.
    pub(super) of_task: bool,
    pub(super) budget_us: Option<u64>,
    /// Profiled execution time, microseconds, and accuracy (NaN where unknown).
    pub(super) run_us: u64,
    pub(super) accuracy: f64,
    /// Time of the rest of the path after it, microseconds ([`slack`]).
    pub(super) after_us: u64,
    /// Whether its results are replies.
    pub(super) last: bool,
    /// Whether it replies, below the threshold too, if the request must not escalate.
    pub(super) settles: bool,
}

impl CompiledStage {
    #[inline]
    pub(super) fn outcome(&self, variant: u32, sample: u32) -> Option<Outcome> {
        let (_, outcomes) = self.outcomes.iter().find(|(of, _)| *of == variant)?;
        outcomes.get(sample as usize).copied()
    }
}

/// The outcome of a sample at a stage: whether the answer is right, and the index of its exit in [`Compiled::exits`].
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
    /// Along an edge that pairs senders with receivers.
    Paired(u32),
    /// Edges with the number of copies.
    FanOut(Vec<(u32, Copies)>),
}

#[derive(Debug, Clone)]
pub(super) struct CompiledEdge {
    pub(super) stage: u16,
    /// The variant of that stage and its partition, whose living replicas are the queue group.
    pub(super) kind: u32,
    pub(super) shares: Vec<(u32, f64)>,
    pub(super) backup: Vec<u32>,
    /// For each sender, the replica that receives all of its results.
    pub(super) pairs: Vec<(u32, u32)>,
    /// The stages of its task by variant; empty where it leads to a stage without a task.
    siblings: Vec<(u32, u16)>,
}

impl CompiledEdge {
    /// The replica that receives everything that this one sends along the edge.
    pub(super) fn partner(&self, sender: u32) -> Option<u32> {
        let found = self.pairs.binary_search_by_key(&sender, |(from, _)| *from).ok()?;
        self.pairs.get(found).map(|(_, to)| *to)
    }

    /// The stage at which a replica of this variant handles what comes along the edge
    /// ([`Wiring::stage_for`](kaskade_policy::plan::Wiring::stage_for)).
    #[inline]
    pub(super) fn stage_for(&self, variant: u32) -> u16 {
        let mut siblings = self.siblings.iter();
        siblings
            .find(|(of, _)| *of == variant)
            .map_or(self.stage, |(_, stage)| *stage)
    }
}

impl Compiled {
    /// Compiles a plan and numbers what is new in it.
    pub(super) fn new(
        plan: &Plan,
        profile: &Profile,
        config: &SimConfig,
        tables: &mut RunTables,
    ) -> Result<Self, SimError> {
        plan.validate()?;
        let placement = tables.place(plan, profile, config)?;
        let mut compiled = Self {
            gears: Vec::new(),
            stages: Vec::new(),
            edges: Vec::new(),
            exits: vec![CompiledExit::Reply],
            sharing: plan.sharing,
            dropping: plan.dropping,
            samples: u32::try_from(profile.samples).map_err(|_| SimError::TooMany {
                what: "validation samples",
                limit: u32::MAX as usize,
            })?,
            at_once: plan.runs_at_once(),
            placement,
        };
        let names = Names::new(plan, profile, config, tables, &compiled.placement);
        for gear in &plan.gears {
            let after = slack::remaining_times_us(plan, &gear.wiring, config.hop_us);
            compiled.gear(gear, &names, &after)?;
        }
        Ok(compiled)
    }

    /// `after` is the time after each stage, microseconds.
    fn gear(&mut self, gear: &Gear, names: &Names<'_>, after: &[u64]) -> Result<(), SimError> {
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
        for (stage, after_us) in wiring.stages.iter().zip(after) {
            let compiled = self.stage(stage, &stages)?;
            self.stages.push(CompiledStage {
                after_us: *after_us,
                ..compiled
            });
        }
        let variants = names.variants().iter();
        let batching = variants.map(|variant| gear.batching(variant)).collect();
        self.gears.push(CompiledGear {
            entries,
            vote: stages.vote(self.samples)?,
            batching,
            first: stages.variant_of(&wiring.entry),
            pipeline: wiring.stages.iter().any(|stage| stage.task.is_some()),
        });
        Ok(())
    }

    fn edge(&mut self, edge: &Edge, stages: &Stages<'_>) -> u32 {
        let replica = |id: &String| stages.names.replica(id);
        let shares = edge.shares.iter();
        let mut pairs: Vec<(u32, u32)> = edge
            .pairs
            .iter()
            .map(|(from, to)| (replica(from), replica(to)))
            .collect();
        pairs.sort_unstable();
        self.edges.push(CompiledEdge {
            stage: stages.number(&edge.stage) as u16,
            kind: stages.kind_of(edge),
            shares: shares.map(|(id, share)| (replica(id), *share)).collect(),
            backup: edge.backup.iter().map(replica).collect(),
            pairs,
            siblings: stages.siblings(edge),
        });
        self.edges.len() as u32 - 1
    }

    fn stage(&mut self, stage: &Stage, stages: &Stages<'_>) -> Result<CompiledStage, SimError> {
        let exits = self.exits_of(stage, stages);
        let mut outcomes = Vec::new();
        for variant in stages.variants_at(stage) {
            let validation = stages.names.validation(variant)?;
            let table = self.outcomes(stage, validation, &exits, stages)?;
            outcomes.push((stages.names.variant(variant), table));
        }
        let profiled = stage.profiled;
        Ok(CompiledStage {
            outcomes,
            task: stages.names.task(stage),
            of_task: stage.task.is_some(),
            budget_us: stage.budget_us,
            run_us: profiled.map_or(0, |profiled| profiled.run_us),
            accuracy: profiled.map_or(f64::NAN, |profiled| profiled.accuracy),
            after_us: 0,
            last: stage.exit == Exit::Reply,
            settles: matches!(
                routing::accept_below_threshold(&stage.exit, Some(0.0)),
                Ok(Route::Reply)
            ),
        })
    }

    /// The exits of a stage, in the plan's order, each with its number.
    fn exits_of<'a>(&mut self, stage: &'a Stage, stages: &Stages<'_>) -> Vec<(Route<'a>, usize)> {
        let mut ways = vec![(Route::Reply, REPLY)];
        match &stage.exit {
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
                Route::Forward(edge) if edge.pairs.is_empty() => {
                    CompiledExit::Forward(self.edge(edge, stages))
                }
                Route::Forward(edge) => CompiledExit::Paired(self.edge(edge, stages)),
                Route::FanOut(children) => {
                    let children = children.iter();
                    let copies =
                        children.map(|child| (self.edge(&child.to, stages), stages.copies(stage, child)));
                    CompiledExit::FanOut(copies.collect())
                }
            };
            self.exits.push(exit);
            *number = self.exits.len() - 1;
        }
        ways
    }

    /// The outcome of each sample, by the policy that routes when serving.
    fn outcomes(
        &self,
        stage: &Stage,
        validation: &Validation,
        exits: &[(Route<'_>, usize)],
        stages: &Stages<'_>,
    ) -> Result<Vec<Outcome>, SimError> {
        let samples = validation.confidences.iter().zip(&validation.correct);
        let outcome = |(sample, (confidence, right)): (usize, (&f64, &bool))| {
            let confidence = if stage.score.is_some() {
                stages.confidence_at(stage, sample)
            } else {
                Some(*confidence)
            };
            let way = routing::route(&stage.exit, confidence).map_err(|source| SimError::NoRoute {
                gear: stages.gear.name.clone(),
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

/// Whether two exits of one stage are the same one, not merely equal.
fn same(a: &Route<'_>, b: &Route<'_>) -> bool {
    match (a, b) {
        (Route::Reply, Route::Reply) => true,
        (Route::Forward(a), Route::Forward(b)) => std::ptr::eq(*a, *b),
        (Route::FanOut(a), Route::FanOut(b)) => std::ptr::eq(*a, *b),
        _ => false,
    }
}
