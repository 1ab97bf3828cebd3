//! Shares of requests between models: `rho_i` from a cascade and its variants' answers on the validation set.

use serde::Serialize;

use super::error::PlacementError;
use kaskade_policy::plan::{Edge, Exit, Gear, Plan, Stage};
use kaskade_policy::profile::Profile;
use kaskade_policy::routing::{self, Route};

/// The dataflow of a cascade.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Flow {
    /// The variants of the stages, in the cascade's order.
    pub variants: Vec<String>,
    /// Share of requests that reaches each, `rho_i`.
    pub reach: Vec<f64>,
    /// Share of requests that each answers; they sum to 1.
    pub answered: Vec<f64>,
    /// The edges, skips included, with the share of requests that takes each. Edges that no sample takes have share 0.
    pub edges: Vec<FlowEdge>,
}

/// One edge of the dataflow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FlowEdge {
    /// The stage it leaves.
    pub from: usize,
    /// The stage it leads to.
    pub to: usize,
    /// Share of all requests.
    pub share: f64,
}

/// Sends every validation sample through the first gear of a cascade, by the policy that routes when serving.
///
/// # Errors
/// A [`PlacementError`] if the plan is no cascade of whole models, each once, or names a variant that the profile lacks.
pub fn flow(profile: &Profile, cascade: &Plan) -> Result<Flow, PlacementError> {
    profile.validate().map_err(PlacementError::Profile)?;
    cascade.validate().map_err(PlacementError::Cascade)?;
    let gear = cascade.gears.first().map_or_else(Vec::new, |gear| stages(gear));
    let first = cascade
        .gears
        .first()
        .map_or("", |gear| gear.wiring.entry.stage.as_str());
    is_cascade(cascade, &gear)?;
    for stage in &gear {
        has_variant(profile, &stage.variant)?;
    }
    let mut edges = Vec::new();
    for (from, stage) in gear.iter().enumerate() {
        for edge in successors(stage) {
            let to = place(&gear, edge);
            if let Some(to) = to
                && !edges.contains(&(from, to))
            {
                edges.push((from, to));
            }
        }
    }
    let start = gear.iter().position(|stage| stage.name == first).unwrap_or(0);
    let mut counts = Counts {
        reach: vec![0; gear.len()],
        answered: vec![0; gear.len()],
        edges: vec![0; edges.len()],
    };
    for sample in 0..profile.samples {
        let confidence = |stage: &Stage| {
            let stages = cascade.gears.first().map_or(&[][..], |gear| &gear.wiring.stages);
            profile.confidence_at(stages, stage, sample)
        };
        counts.follow(&gear, &edges, start, confidence);
    }
    let share = |count: &u64| *count as f64 / profile.samples.max(1) as f64;
    Ok(Flow {
        variants: gear.iter().map(|stage| stage.variant.clone()).collect(),
        reach: counts.reach.iter().map(share).collect(),
        answered: counts.answered.iter().map(share).collect(),
        edges: edges
            .iter()
            .zip(&counts.edges)
            .map(|((from, to), count)| FlowEdge {
                from: *from,
                to: *to,
                share: share(count),
            })
            .collect(),
    })
}

struct Counts {
    reach: Vec<u64>,
    answered: Vec<u64>,
    edges: Vec<u64>,
}

impl Counts {
    fn follow(
        &mut self,
        stages: &[&Stage],
        edges: &[(usize, usize)],
        start: usize,
        confidence: impl Fn(&Stage) -> Option<f64>,
    ) {
        let mut at = start;
        loop {
            add(&mut self.reach, at);
            let way = stages
                .get(at)
                .and_then(|stage| routing::route(&stage.exit, confidence(stage)).ok());
            let next = match way {
                Some(Route::Forward(edge)) => place(stages, edge),
                _ => None,
            };
            let Some(next) = next else {
                return add(&mut self.answered, at);
            };
            if let Some(edge) = edges.iter().position(|edge| *edge == (at, next)) {
                add(&mut self.edges, edge);
            }
            at = next;
        }
    }
}

fn add(counts: &mut [u64], place: usize) {
    if let Some(count) = counts.get_mut(place) {
        *count += 1;
    }
}

fn stages(gear: &Gear) -> Vec<&Stage> {
    gear.wiring.stages.iter().collect()
}

fn place(stages: &[&Stage], edge: &Edge) -> Option<usize> {
    stages.iter().position(|stage| stage.name == edge.stage)
}

/// The edges out of a cascade's stage.
pub(super) fn successors(stage: &Stage) -> Vec<&Edge> {
    match &stage.exit {
        Exit::Bands { bands } => {
            let edges = bands.iter().filter_map(|band| match &band.to {
                kaskade_policy::plan::Target::Reply => None,
                kaskade_policy::plan::Target::Stage(edge) => Some(edge),
            });
            edges.collect()
        }
        Exit::Next { to } => vec![to],
        Exit::Reply | Exit::FanOut { .. } => Vec::new(),
    }
}

fn is_cascade(cascade: &Plan, stages: &[&Stage]) -> Result<(), PlacementError> {
    let not = |stage: &Stage, why| {
        Err(PlacementError::NotACascade {
            stage: stage.name.clone(),
            why,
        })
    };
    let ensemble = cascade.gears.first().map_or(0, |gear| gear.wiring.ensemble.len());
    for (place, stage) in stages.iter().enumerate() {
        if stage.task.is_some() || matches!(stage.exit, Exit::FanOut { .. }) {
            return not(stage, "serves a task of a pipeline");
        }
        if stage.partition.is_some() {
            return not(stage, "is a partition already");
        }
        if ensemble > 0 {
            return not(stage, "belongs to an ensemble");
        }
        let mut before = stages.iter().take(place);
        if before.any(|other| other.variant == stage.variant) {
            return not(stage, "runs a variant that another stage runs");
        }
    }
    Ok(())
}

fn has_variant(profile: &Profile, variant: &str) -> Result<(), PlacementError> {
    if profile.variants.iter().any(|known| known.name == variant) {
        return Ok(());
    }
    Err(PlacementError::NoVariant {
        name: variant.to_owned(),
    })
}

#[cfg(test)]
mod tests;
