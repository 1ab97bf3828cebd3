//! Validation of a wiring: the targets of its edges, and what its stages need to serve.

use std::collections::BTreeSet;

use super::super::{Band, Batching, Child, Dropping, Edge, Exit, Replica, Stage, Target, Wiring};
use super::{Known, partitions, variant};
use crate::fan_in::MAX_BRANCHES;
use crate::invalid::{Invalid, Path, Problem};
use crate::partition::ModelPart;

/// Tolerance of the sum of an edge's shares around 1.
const SHARE_SLACK: f64 = 1e-6;

pub(super) fn wiring(path: &Path<'_>, wiring: &Wiring, known: &Known<'_>) -> Result<(), Invalid> {
    let stages_path = path.field("stages");
    stages_path.not_empty(&wiring.stages)?;
    let mut names = BTreeSet::new();
    for (index, stage) in wiring.stages.iter().enumerate() {
        let path = stages_path.index(index);
        path.field("name").new_name(&stage.name, &mut names)?;
        if let Some(task) = &stage.task {
            path.field("task").name(task)?;
        }
    }
    partitions::chained(path, wiring)?;
    let graph = Graph {
        stages: &wiring.stages,
        known,
    };
    graph.edge(&path.field("entry"), &wiring.entry, None)?;
    graph.ensemble(&path.field("ensemble"), wiring)?;
    for (index, stage) in wiring.stages.iter().enumerate() {
        graph.stage(&stages_path.index(index), index, stage)?;
    }
    Ok(())
}

/// A wiring whose stages have unique names.
struct Graph<'a> {
    stages: &'a [Stage],
    known: &'a Known<'a>,
}

impl Graph<'_> {
    fn stage(&self, path: &Path<'_>, index: usize, stage: &Stage) -> Result<(), Invalid> {
        variant(&path.field("variant"), &stage.variant, self.known)?;
        let mut replicas = self.known.replicas.values();
        if !replicas.any(|replica| stage.is_run_by(replica)) {
            return path.field("variant").fail(Problem::NoReplica {
                variant: stage.variant.clone(),
                partition: stage.partition.map(|partition| ModelPart(Some(partition))),
            });
        }
        batching(&path.field("batching"), stage.batching)?;
        self.task(path, index, stage)?;
        self.score(&path.field("score"), index, stage)?;
        let exit = path.field("exit");
        match &stage.exit {
            Exit::Reply => Ok(()),
            Exit::Next { to } => {
                let path = exit.field("to");
                self.edge(&path, to, Some(index))?;
                self.pairs(&path.field("pairs"), stage, to)
            }
            Exit::FanOut { children } => self.children(&exit.field("children"), children, index),
            Exit::Bands { bands } => {
                self.bands(&exit.field("bands"), bands, index)?;
                self.calibrated(path, stage, bands)
            }
        }
    }

    /// Checks that stages of one task run different variants and have the fields that the plan's early dropping needs.
    fn task(&self, path: &Path<'_>, index: usize, stage: &Stage) -> Result<(), Invalid> {
        if let Some(budget) = stage.budget_us {
            let within = budget > 0;
            path.field("budget_us")
                .within(budget as f64, within, "at least 1 microsecond")?;
        }
        if let Some(profiled) = stage.profiled {
            let path = path.field("profiled");
            let run = profiled.run_us;
            path.field("run_us")
                .within(run as f64, run > 0, "at least 1 microsecond")?;
            path.field("accuracy").unit_interval(profiled.accuracy)?;
        }
        let Some(task) = &stage.task else {
            return Ok(());
        };
        let mut before = self.stages.iter().take(index);
        if before.any(|other| other.is_sibling(stage) && other.variant == stage.variant) {
            return path.field("variant").fail(Problem::TaskVariantTwice {
                task: task.clone(),
                variant: stage.variant.clone(),
            });
        }
        self.dropping(path, stage)
    }

    fn dropping(&self, path: &Path<'_>, stage: &Stage) -> Result<(), Invalid> {
        let dropping = self.known.dropping;
        let by_budget = matches!(dropping, Dropping::PerTask | Dropping::Rerouting);
        let by_profile = matches!(dropping, Dropping::LastTask | Dropping::Rerouting);
        if by_budget && stage.budget_us.is_none() {
            return path.field("budget_us").fail(Problem::DroppingNeeds { dropping });
        }
        if by_profile && stage.profiled.is_none() {
            return path.field("profiled").fail(Problem::DroppingNeeds { dropping });
        }
        Ok(())
    }

    /// The members of an ensemble are different stages, and each of them replies: a vote needs one answer of each.
    fn ensemble(&self, path: &Path<'_>, wiring: &Wiring) -> Result<(), Invalid> {
        if wiring.ensemble.is_empty() {
            return Ok(());
        }
        let mut members = BTreeSet::from([wiring.entry.stage.as_str()]);
        for (index, edge) in wiring.ensemble.iter().enumerate() {
            let path = path.index(index);
            self.edge(&path, edge, None)?;
            if !members.insert(&edge.stage) {
                return path.field("stage").fail(Problem::Twice {
                    name: edge.stage.clone(),
                });
            }
        }
        let mut stages = self.stages.iter();
        match stages.find(|stage| {
            members.contains(stage.name.as_str()) && (stage.exit != Exit::Reply || stage.task.is_some())
        }) {
            Some(stage) => path.fail(Problem::MemberExits {
                stage: stage.name.clone(),
            }),
            None => Ok(()),
        }
    }

    fn calibrated(&self, path: &Path<'_>, stage: &Stage, bands: &[Band]) -> Result<(), Invalid> {
        let variant = self.known.variants.get(stage.variant.as_str());
        if bands.len() > 1 && variant.is_some_and(|variant| variant.calibration.is_none()) {
            return path.field("variant").fail(Problem::NotCalibrated {
                variant: stage.variant.clone(),
            });
        }
        Ok(())
    }

    /// Checks the figures of a score, and that it reads earlier stages only.
    fn score(&self, path: &Path<'_>, index: usize, stage: &Stage) -> Result<(), Invalid> {
        let Some(score) = &stage.score else {
            return Ok(());
        };
        score.check(path)?;
        for read in score.terms().filter_map(|term| term.feature.earlier_variant()) {
            let mut earlier = self.stages.iter().take(index);
            if !earlier.any(|stage| stage.name == read) {
                return path.fail(Problem::Unknown {
                    what: "earlier stage",
                    name: read.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn bands(&self, path: &Path<'_>, bands: &[Band], index: usize) -> Result<(), Invalid> {
        path.not_empty(bands)?;
        let mut before: Option<f64> = None;
        for (place, band) in bands.iter().enumerate() {
            let path = path.index(place);
            let from = path.field("from");
            from.unit_interval(band.from)?;
            match before {
                None => from.within(band.from, band.from <= 0.0, "0, where the first band begins")?,
                Some(before) => from.within(band.from, band.from > before, "above the band before it")?,
            }
            before = Some(band.from);
            if let Target::Stage(edge) = &band.to {
                self.edge(&path.field("to").field("stage"), edge, Some(index))?;
            }
        }
        Ok(())
    }

    fn children(&self, path: &Path<'_>, children: &[Child], index: usize) -> Result<(), Invalid> {
        path.not_empty(children)?;
        for (place, child) in children.iter().enumerate() {
            let path = path.index(place);
            let multiplicity = child.multiplicity;
            path.field("multiplicity").within(
                multiplicity,
                multiplicity > 0.0 && multiplicity <= MAX_BRANCHES as f64,
                "above 0 and at most 4096, as many branches as are gathered",
            )?;
            self.edge(&path.field("to"), &child.to, Some(index))?;
        }
        Ok(())
    }

    fn edge(&self, path: &Path<'_>, edge: &Edge, from: Option<usize>) -> Result<(), Invalid> {
        let place = self.stages.iter().position(|stage| stage.name == edge.stage);
        let Some((place, stage)) = place.and_then(|place| Some((place, self.stages.get(place)?))) else {
            return path.field("stage").fail(Problem::Unknown {
                what: "stage",
                name: edge.stage.clone(),
            });
        };
        self.leads_on(path, place, stage, from)?;
        self.shares(&path.field("shares"), edge, stage)?;
        let backup_path = path.field("backup");
        let mut ids = BTreeSet::new();
        for (index, id) in edge.backup.iter().enumerate() {
            let path = backup_path.index(index);
            path.new_name(id, &mut ids)?;
            let replica = self.replica(&path, id)?;
            if stage.task.is_some() || replica.partition.is_some() {
                self.serves(&path, replica, stage)?;
            }
        }
        Ok(())
    }

    /// Pairs lead from replicas of the one stage to replicas of the other.
    fn pairs(&self, path: &Path<'_>, from: &Stage, edge: &Edge) -> Result<(), Invalid> {
        let Some(to) = self.stages.iter().find(|stage| stage.name == edge.stage) else {
            return Ok(());
        };
        for (sender, receiver) in &edge.pairs {
            let path = path.key(sender);
            self.serves(&path, self.replica(&path, sender)?, from)?;
            self.serves(&path, self.replica(&path, receiver)?, to)?;
        }
        Ok(())
    }

    /// An edge leads to a later stage, and an edge into a task to a task all of whose stages are later: it may be handled at
    /// any of them. So no stage of a task is reached from another of the same task.
    fn leads_on(
        &self,
        path: &Path<'_>,
        place: usize,
        stage: &Stage,
        from: Option<usize>,
    ) -> Result<(), Invalid> {
        let Some(from) = from else {
            return Ok(());
        };
        let path = path.field("stage");
        if place <= from {
            return path.fail(Problem::LeadsBack {
                stage: stage.name.clone(),
            });
        }
        let mut before = self.stages.iter().take(from + 1);
        match (&stage.task, before.find(|other| other.is_sibling(stage))) {
            (Some(task), Some(sibling)) => path.fail(Problem::LeadsBackToTask {
                task: task.clone(),
                stage: sibling.name.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns whether a replica runs the stage's partition of its variant, or any variant of its task.
    fn serves(&self, path: &Path<'_>, replica: &Replica, stage: &Stage) -> Result<(), Invalid> {
        let siblings = || self.stages.iter().filter(|other| other.is_sibling(stage));
        if siblings().any(|sibling| sibling.is_run_by(replica)) {
            return Ok(());
        }
        let mut same = siblings().filter(|sibling| sibling.variant == replica.variant);
        if let Some(same) = same.next() {
            return path.fail(Problem::WrongPartition {
                replica: replica.id.clone(),
                actual: ModelPart(replica.partition),
                expected: ModelPart(same.partition),
            });
        }
        path.fail(match &stage.task {
            Some(task) => Problem::NotOfTask {
                replica: replica.id.clone(),
                actual: replica.variant.clone(),
                task: task.clone(),
            },
            None => Problem::WrongVariant {
                replica: replica.id.clone(),
                actual: replica.variant.clone(),
                expected: stage.variant.clone(),
            },
        })
    }

    fn shares(&self, path: &Path<'_>, edge: &Edge, stage: &Stage) -> Result<(), Invalid> {
        for (id, share) in &edge.shares {
            let path = path.key(id);
            path.unit_interval(*share)?;
            let replica = self.replica(&path, id)?;
            self.serves(&path, replica, stage)?;
        }
        let sum: f64 = edge.shares.values().sum();
        if !edge.shares.is_empty() && (sum - 1.0).abs() > SHARE_SLACK {
            return path.fail(Problem::Shares { sum });
        }
        Ok(())
    }

    fn replica(&self, path: &Path<'_>, id: &str) -> Result<&Replica, Invalid> {
        match self.known.replicas.get(id) {
            Some(replica) => Ok(replica),
            None => path.fail(Problem::Unknown {
                what: "replica",
                name: id.chars().take(64).collect(),
            }),
        }
    }
}

fn batching(path: &Path<'_>, batching: Batching) -> Result<(), Invalid> {
    let Batching {
        min_queue, max_batch, ..
    } = batching;
    path.field("max_batch")
        .within(f64::from(max_batch), max_batch >= 1, "at least 1")?;
    let fits = (1..=max_batch).contains(&min_queue);
    path.field("min_queue")
        .within(f64::from(min_queue), fits, "from 1 to `max_batch`")
}
