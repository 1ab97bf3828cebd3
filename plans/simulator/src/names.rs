//! Resolves the names of a plan to numbers.

use std::collections::BTreeMap;

use super::config::{SimConfig, SimError};
use super::fan_out::Copies;
use super::run_tables::{self, RunTables};
use kaskade_policy::plan::{Child, Edge, Exit, Gear, Plan, Stage, Target};
use kaskade_policy::profile::{Profile, Validation};
use kaskade_policy::vote::{self, Vote};

/// The answer of an ensemble to a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct EnsembleAnswer {
    pub(super) variant: u32,
    pub(super) right: bool,
}

/// Names of a plan by number.
pub(super) struct Names<'a> {
    profile: &'a Profile,
    config: &'a SimConfig,
    tables: &'a RunTables,
    variants: BTreeMap<&'a str, u32>,
    replicas: BTreeMap<&'a str, (u32, &'a str)>,
}

impl<'a> Names<'a> {
    /// Collects the names of a plan whose replicas have these numbers.
    pub(super) fn new(
        plan: &'a Plan,
        profile: &'a Profile,
        config: &'a SimConfig,
        tables: &'a RunTables,
        placement: &[u32],
    ) -> Self {
        let variants = plan.variants.iter().map(|variant| &variant.name);
        let replicas = plan.placement.iter().zip(placement);
        Self {
            profile,
            config,
            variants: variants
                .filter_map(|name| Some((name.as_str(), tables.variants.find(name)?)))
                .collect(),
            replicas: replicas
                .map(|(replica, number)| (replica.id.as_str(), (*number, replica.variant.as_str())))
                .collect(),
            tables,
        }
    }

    /// All variants that have a number, in order of their numbers.
    pub(super) fn variants(&self) -> &[String] {
        &self.tables.variants.list
    }

    /// The number of a stage's task, or of the stage itself where it has none.
    pub(super) fn task(&self, stage: &Stage) -> u32 {
        let tasks = &self.tables.tasks;
        tasks
            .find(stage.task.as_ref().unwrap_or(&stage.name))
            .unwrap_or_default()
    }

    /// Names are known, since the plan is sound.
    pub(super) fn variant(&self, name: &str) -> u32 {
        self.variants.get(name).copied().unwrap_or_default()
    }

    pub(super) fn replica(&self, id: &str) -> u32 {
        self.replicas.get(id).map_or(0, |(number, _)| *number)
    }

    pub(super) fn validation(&self, variant: &str) -> Result<&'a Validation, SimError> {
        let validation = &run_tables::profiled(self.profile, variant)?.validation;
        let found = validation
            .confidences
            .len()
            .min(validation.correct.len())
            .min(validation.predictions.len());
        if found == 0 || found < self.profile.samples || self.profile.samples == 0 {
            return Err(SimError::Samples {
                variant: variant.to_owned(),
                found,
                expected: self.profile.samples.max(1),
            });
        }
        Ok(validation)
    }
}

/// The stages of one gear.
pub(super) struct Stages<'a> {
    pub(super) gear: &'a Gear,
    pub(super) names: &'a Names<'a>,
    /// The number of the first.
    pub(super) first: usize,
}

impl<'a> Stages<'a> {
    /// Returns the value that the bands of a stage compare for a validation sample.
    pub(super) fn confidence_at(&self, stage: &Stage, sample: usize) -> Option<f64> {
        let profile = self.names.profile;
        profile.confidence_at(&self.gear.wiring.stages, stage, sample)
    }

    fn stage(&self, name: &str) -> Option<(usize, &'a Stage)> {
        let mut stages = self.gear.wiring.stages.iter().enumerate();
        stages.find(|(_, stage)| stage.name == name)
    }

    pub(super) fn number(&self, name: &str) -> usize {
        self.first + self.stage(name).map_or(0, |(place, _)| place)
    }

    pub(super) fn variant_of(&self, edge: &Edge) -> u32 {
        self.stage(&edge.stage)
            .map_or(0, |(_, stage)| self.names.variant(&stage.variant))
    }

    /// The number of the variant and partition of the stage that an edge names.
    pub(super) fn kind_of(&self, edge: &Edge) -> u32 {
        let Some((_, stage)) = self.stage(&edge.stage) else {
            return 0;
        };
        let kind = (
            self.names.variant(&stage.variant),
            run_tables::partition_key(stage.partition),
        );
        self.names.tables.kinds.find(&kind).unwrap_or_default()
    }

    /// The stages by variant at which what comes along an edge into a task is handled; none for a stage without a task.
    pub(super) fn siblings(&self, edge: &Edge) -> Vec<(u32, u16)> {
        let wiring = &self.gear.wiring;
        let Some((_, named)) = self.stage(&edge.stage).filter(|(_, stage)| stage.task.is_some()) else {
            return Vec::new();
        };
        let variants = wiring.siblings(named).map(|sibling| sibling.variant.as_str());
        let handled = variants.filter_map(|variant| Some((variant, wiring.stage_for(edge, variant)?)));
        handled
            .map(|(variant, stage)| (self.names.variant(variant), self.number(&stage.name) as u16))
            .collect()
    }

    /// Number of copies that a child gets: drawn from the measured distribution if configured, otherwise from its mean.
    pub(super) fn copies(&self, stage: &Stage, child: &Child) -> Copies {
        let to = self.stage(&child.to.stage);
        let to = to.map_or(child.to.stage.as_str(), |(_, to)| {
            to.task.as_ref().unwrap_or(&to.name)
        });
        let mut measured = self.names.config.copies.iter();
        let measured = measured.find(|copies| copies.variant == stage.variant && copies.to == to);
        measured
            .and_then(|copies| Copies::measured(&copies.weights))
            .unwrap_or(Copies::Mean(child.multiplicity))
    }

    /// Returns the stage's own variant, and those of the backups that any edge of the gear names for it. A task's backups have separate
    /// stages.
    pub(super) fn variants_at(&self, stage: &'a Stage) -> Vec<&'a str> {
        let mut variants = vec![stage.variant.as_str()];
        if stage.task.is_some() {
            return variants;
        }
        for edge in edges(self.gear)
            .into_iter()
            .filter(|edge| edge.stage == stage.name)
        {
            let backups = edge
                .backup
                .iter()
                .filter_map(|id| self.names.replicas.get(id.as_str()));
            for (_, variant) in backups {
                if !variants.contains(variant) {
                    variants.push(variant);
                }
            }
        }
        variants
    }

    /// The answer of an ensemble to each sample; `None` if there is no ensemble.
    pub(super) fn vote(&self, samples: u32) -> Result<Option<Vec<EnsembleAnswer>>, SimError> {
        let wiring = &self.gear.wiring;
        if wiring.ensemble.is_empty() {
            return Ok(None);
        }
        let mut members = Vec::new();
        for edge in std::iter::once(&wiring.entry).chain(&wiring.ensemble) {
            if let Some((_, stage)) = self.stage(&edge.stage) {
                let validation = self.names.validation(&stage.variant)?;
                members.push((self.names.variant(&stage.variant), validation));
            }
        }
        let ballot = |sample: usize| {
            let votes: Vec<Vote> = members
                .iter()
                .filter_map(|(_, validation)| {
                    Some(Vote {
                        prediction: *validation.predictions.get(sample)?,
                        confidence: *validation.confidences.get(sample)?,
                    })
                })
                .collect();
            let (variant, validation) = vote::majority(&votes).and_then(|winner| members.get(winner))?;
            let right = validation.correct.get(sample).is_some_and(|right| *right);
            Some(EnsembleAnswer {
                variant: *variant,
                right,
            })
        };
        Ok((0..samples as usize).map(ballot).collect())
    }
}

/// Returns all edges of a gear.
fn edges(gear: &Gear) -> Vec<&Edge> {
    let wiring = &gear.wiring;
    let mut edges: Vec<&Edge> = std::iter::once(&wiring.entry).chain(&wiring.ensemble).collect();
    for stage in &wiring.stages {
        match &stage.exit {
            Exit::Reply => {}
            Exit::Next { to } => edges.push(to),
            Exit::FanOut { children } => edges.extend(children.iter().map(|child| &child.to)),
            Exit::Bands { bands } => edges.extend(bands.iter().filter_map(|band| match &band.to {
                Target::Reply => None,
                Target::Stage(edge) => Some(edge),
            })),
        }
    }
    edges
}
