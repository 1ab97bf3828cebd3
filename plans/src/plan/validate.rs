//! What makes a plan sound. Everything that serves relies on it and checks nothing of it again.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Band, Batching, Child, Edge, Exit, Expected, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant,
    Replica, Slo, Stage, Target, Wiring,
};
use crate::confidence::{Calibration, Estimator};
use crate::invalid::{Invalid, Path, Problem};

/// How far the shares of an edge may sum from 1.
const SHARE_SLACK: f64 = 1e-6;

impl Plan {
    /// Checks everything that the types cannot say: names, references, ranges, and that every stage can serve.
    ///
    /// # Errors
    /// The first [`Invalid`] found, with the path to it.
    pub fn validate(&self) -> Result<(), Invalid> {
        let root = Path::Root;
        root.version(self.version, PLAN_VERSION)?;
        root.field("app").name(&self.app)?;
        variants(&root.field("variants"), &self.variants)?;
        let known = Known {
            variants: self
                .variants
                .iter()
                .map(|variant| (variant.name.as_str(), variant))
                .collect(),
            replicas: self
                .placement
                .iter()
                .map(|replica| (replica.id.as_str(), replica))
                .collect(),
        };
        placement(&root.field("placement"), &self.placement, &known)?;
        slo(&root.field("slo"), self.slo)?;
        gears(&root.field("gears"), &self.gears, &known)
    }
}

/// What the rest of the plan refers to.
struct Known<'a> {
    variants: BTreeMap<&'a str, &'a PlannedVariant>,
    replicas: BTreeMap<&'a str, &'a Replica>,
}

fn variants(path: &Path<'_>, variants: &[PlannedVariant]) -> Result<(), Invalid> {
    path.not_empty(variants)?;
    let mut names = BTreeSet::new();
    for (index, variant) in variants.iter().enumerate() {
        let path = path.index(index);
        path.field("name").new_name(&variant.name, &mut names)?;
        if let Some(fitted) = &variant.calibration {
            calibration(&path.field("calibration"), fitted)?;
        }
    }
    Ok(())
}

/// Shared with the profile.
pub(crate) fn calibration(path: &Path<'_>, calibration: &Calibration) -> Result<(), Invalid> {
    path.field("temperature").positive(calibration.temperature)?;
    match calibration.estimator {
        Estimator::TopK { k } => {
            let estimator = path.field("estimator");
            estimator.field("k").within(f64::from(k), k >= 2, "at least 2")
        }
        _ => Ok(()),
    }
}

fn placement(path: &Path<'_>, placement: &[Replica], known: &Known<'_>) -> Result<(), Invalid> {
    path.not_empty(placement)?;
    let mut ids = BTreeSet::new();
    for (index, replica) in placement.iter().enumerate() {
        let path = path.index(index);
        path.field("id").new_name(&replica.id, &mut ids)?;
        variant(&path.field("variant"), &replica.variant, known)?;
        path.field("worker").name(&replica.worker)?;
        path.field("device").not_empty(replica.device.as_bytes())?;
        if let Some(slice) = &replica.partition {
            let inside = slice.index < slice.of;
            path.field("partition").field("index").within(
                f64::from(slice.index),
                inside,
                "below the number of partitions `of`",
            )?;
        }
    }
    Ok(())
}

fn variant(path: &Path<'_>, name: &str, known: &Known<'_>) -> Result<(), Invalid> {
    if known.variants.contains_key(name) {
        Ok(())
    } else {
        path.fail(Problem::Unknown {
            what: "variant",
            name: name.to_owned(),
        })
    }
}

fn slo(path: &Path<'_>, slo: Option<Slo>) -> Result<(), Invalid> {
    match slo {
        Some(Slo::Latency { p95_us }) => {
            path.field("p95_us")
                .within(p95_us as f64, p95_us > 0, "at least 1 microsecond")
        }
        Some(Slo::Accuracy { at_least }) => path.field("at_least").unit_interval(at_least),
        None => Ok(()),
    }
}

fn gears(path: &Path<'_>, gears: &[Gear], known: &Known<'_>) -> Result<(), Invalid> {
    path.not_empty(gears)?;
    let mut names = BTreeSet::new();
    let mut before: Option<LoadRange> = None;
    for (index, gear) in gears.iter().enumerate() {
        let path = path.index(index);
        path.field("name").new_name(&gear.name, &mut names)?;
        load(&path.field("load"), gear.load, before)?;
        before = Some(gear.load);
        if let Some(figures) = gear.expected {
            expected(&path.field("expected"), figures)?;
        }
        wiring(&path.field("wiring"), &gear.wiring, known)?;
    }
    Ok(())
}

fn expected(path: &Path<'_>, expected: Expected) -> Result<(), Invalid> {
    path.field("time_share").unit_interval(expected.time_share)?;
    path.field("accuracy").unit_interval(expected.accuracy)?;
    path.field("utilisation").not_negative(expected.utilisation)
}

fn load(path: &Path<'_>, load: LoadRange, before: Option<LoadRange>) -> Result<(), Invalid> {
    path.field("from_qps").not_negative(load.from_qps)?;
    if let Some(to) = load.to_qps {
        path.field("to_qps")
            .within(to, to > load.from_qps, "above `from_qps`, and finite")?;
    }
    match before {
        Some(before) if before.to_qps.is_none_or(|end| load.from_qps < end) => path.fail(Problem::Overlap),
        _ => Ok(()),
    }
}

fn wiring(path: &Path<'_>, wiring: &Wiring, known: &Known<'_>) -> Result<(), Invalid> {
    let stages_path = path.field("stages");
    stages_path.not_empty(&wiring.stages)?;
    let mut names = BTreeSet::new();
    for (index, stage) in wiring.stages.iter().enumerate() {
        stages_path
            .index(index)
            .field("name")
            .new_name(&stage.name, &mut names)?;
    }
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
        if !self
            .known
            .replicas
            .values()
            .any(|replica| replica.variant == stage.variant)
        {
            return path.field("variant").fail(Problem::NoReplica {
                variant: stage.variant.clone(),
            });
        }
        batching(&path.field("batching"), stage.batching)?;
        let exit = path.field("exit");
        match &stage.exit {
            Exit::Reply => Ok(()),
            Exit::Next { to } => self.edge(&exit.field("to"), to, Some(index)),
            Exit::FanOut { children } => self.children(&exit.field("children"), children, index),
            Exit::Bands { bands } => {
                self.bands(&exit.field("bands"), bands, index)?;
                self.calibrated(path, stage, bands)
            }
        }
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
        let answers = |stage: &&Stage| stage.exit != Exit::Reply && members.contains(stage.name.as_str());
        match self.stages.iter().find(answers) {
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
            path.field("multiplicity").positive(child.multiplicity)?;
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
        if from.is_some_and(|from| place <= from) {
            return path.field("stage").fail(Problem::LeadsBack {
                stage: edge.stage.clone(),
            });
        }
        self.shares(&path.field("shares"), edge, stage)?;
        let backup_path = path.field("backup");
        let mut ids = BTreeSet::new();
        for (index, id) in edge.backup.iter().enumerate() {
            let path = backup_path.index(index);
            path.new_name(id, &mut ids)?;
            self.replica(&path, id)?;
        }
        Ok(())
    }

    fn shares(&self, path: &Path<'_>, edge: &Edge, stage: &Stage) -> Result<(), Invalid> {
        for (id, share) in &edge.shares {
            let path = path.key(id);
            path.unit_interval(*share)?;
            let replica = self.replica(&path, id)?;
            if replica.variant != stage.variant {
                return path.fail(Problem::WrongVariant {
                    replica: id.clone(),
                    actual: replica.variant.clone(),
                    expected: stage.variant.clone(),
                });
            }
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

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
