//! Validation of a plan. The serving crates rely on it and do not repeat its checks.

mod graph;
mod partitions;

use std::collections::{BTreeMap, BTreeSet};

use super::{Dropping, Expected, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant, Replica, Slo};
use crate::invalid::{Invalid, Path, Problem};

impl Plan {
    /// Checks everything that the types cannot express: names, references, ranges, and that every stage can serve.
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
            dropping: self.dropping,
        };
        placement(&root.field("placement"), &self.placement, &known)?;
        slo(&root.field("slo"), self.slo)?;
        if let Some(certificate) = &self.certificate {
            certificate.check(&root.field("certificate"))?;
        }
        gears(&root.field("gears"), &self.gears, &known)?;
        certified(&root.field("certified"), self, &known)
    }
}

/// Names of the plan that other parts refer to.
struct Known<'a> {
    variants: BTreeMap<&'a str, &'a PlannedVariant>,
    replicas: BTreeMap<&'a str, &'a Replica>,
    dropping: Dropping,
}

fn variants(path: &Path<'_>, variants: &[PlannedVariant]) -> Result<(), Invalid> {
    path.not_empty(variants)?;
    let mut names = BTreeSet::new();
    for (index, variant) in variants.iter().enumerate() {
        let path = path.index(index);
        path.field("name").new_name(&variant.name, &mut names)?;
        if let Some(fitted) = &variant.calibration {
            fitted.check(&path.field("calibration"))?;
        }
    }
    Ok(())
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
        if let Some(partition) = &replica.partition {
            let inside = partition.index < partition.of;
            path.field("partition").field("index").within(
                f64::from(partition.index),
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
        graph::wiring(&path.field("wiring"), &gear.wiring, known)?;
    }
    Ok(())
}

fn certified(path: &Path<'_>, plan: &Plan, known: &Known<'_>) -> Result<(), Invalid> {
    let Some(list) = &plan.certified else {
        return Ok(());
    };
    list.check(path, plan.gears.len())?;
    for (index, cascade) in list.cascades.iter().enumerate() {
        let cascades = path.field("cascades");
        let path = cascades.index(index);
        graph::wiring(&path.field("gear").field("wiring"), &cascade.gear.wiring, known)?;
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

#[cfg(test)]
mod tests;
