//! Validation of a profile.

use std::collections::BTreeSet;

use super::{BatchCost, HopTime, LatencyQuantiles, PROFILE_VERSION, Profile, VariantProfile};
use crate::invalid::{Invalid, Path, Problem};

impl Profile {
    /// Checks everything that the types cannot express: names, ranges, and that all columns are of one length.
    ///
    /// # Errors
    /// The first [`Invalid`] found, with the path to it.
    pub fn validate(&self) -> Result<(), Invalid> {
        let root = Path::Root;
        root.version(self.version, PROFILE_VERSION)?;
        root.field("app").name(&self.app)?;
        root.field("samples")
            .within(self.samples as f64, self.samples > 0, "at least 1")?;
        if let Some(repeats) = self.repeats {
            let sound = repeats < self.samples;
            root.field("repeats")
                .within(repeats as f64, sound, "less than the number of samples")?;
        }
        if let Some(hop) = &self.hop {
            times(&root.field("hop"), hop)?;
        }
        if let Some(turnaround_s) = self.turnaround_s {
            root.field("turnaround_s").not_negative(turnaround_s)?;
        }
        if let Some(texts) = self.texts {
            texts.check(&root.field("texts"))?;
        }
        if !self.input_bytes.is_empty() {
            length(&root.field("input_bytes"), self.input_bytes.len(), self.samples)?;
        }
        let variants = root.field("variants");
        variants.not_empty(&self.variants)?;
        let mut names = BTreeSet::new();
        for (index, profiled) in self.variants.iter().enumerate() {
            let path = variants.index(index);
            path.field("name").new_name(&profiled.name, &mut names)?;
            variant(&path, profiled, self.samples)?;
        }
        Ok(())
    }
}

fn times(path: &Path<'_>, hop: &HopTime) -> Result<(), Invalid> {
    path.field("median_s").positive(hop.median_s)?;
    quantiles(&path.field("quantiles"), hop.quantiles)?;
    let mut before = 0.0;
    let rows = path.field("by_rate");
    for (index, row) in hop.by_rate.iter().enumerate() {
        let path = rows.index(index);
        path.field("qps")
            .within(row.qps, row.qps > before, "above 0 and above the one before it")?;
        before = row.qps;
        path.field("factor").positive(row.factor)?;
        quantiles(&path.field("quantiles"), row.quantiles)?;
    }
    Ok(())
}

fn variant(path: &Path<'_>, variant: &VariantProfile, samples: usize) -> Result<(), Invalid> {
    costs(&path.field("costs"), &variant.costs)?;
    if let Some(money) = variant.money {
        let sound = money.per_request.is_finite() && money.per_request >= 0.0;
        let field = path.field("money");
        field
            .field("per_request")
            .within(money.per_request, sound, "a finite amount of at least 0")?;
    }
    variant.calibration.check(&path.field("calibration"))?;
    path.field("ece")
        .field("before")
        .unit_interval(variant.ece.before)?;
    path.field("ece")
        .field("after")
        .unit_interval(variant.ece.after)?;
    let path = path.field("validation");
    length(
        &path.field("predictions"),
        variant.validation.predictions.len(),
        samples,
    )?;
    length(
        &path.field("confidences"),
        variant.validation.confidences.len(),
        samples,
    )?;
    length(&path.field("correct"), variant.validation.correct.len(), samples)?;
    if !variant.validation.agrees.is_empty() {
        length(&path.field("agrees"), variant.validation.agrees.len(), samples)?;
    }
    let confidences = path.field("confidences");
    for (index, confidence) in variant.validation.confidences.iter().enumerate() {
        confidences.index(index).unit_interval(*confidence)?;
    }
    let validation = &variant.validation;
    for (name, column) in [
        ("margins", &validation.margins),
        ("entropies", &validation.entropies),
    ] {
        let path = path.field(name);
        // Both or neither.
        if !validation.margins.is_empty() || !validation.entropies.is_empty() {
            length(&path, column.len(), samples)?;
        }
        for (index, value) in column.iter().enumerate() {
            path.index(index).unit_interval(*value)?;
        }
    }
    Ok(())
}

fn length(path: &Path<'_>, found: usize, expected: usize) -> Result<(), Invalid> {
    if found == expected {
        Ok(())
    } else {
        path.fail(Problem::Length { found, expected })
    }
}

fn costs(path: &Path<'_>, costs: &[BatchCost]) -> Result<(), Invalid> {
    path.not_empty(costs)?;
    let mut before = 0;
    for (index, cost) in costs.iter().enumerate() {
        let path = path.index(index);
        let ascends = cost.batch > before;
        path.field("batch").within(
            f64::from(cost.batch),
            ascends,
            "at least 1 and above the one before it",
        )?;
        before = cost.batch;
        path.field("latency_s").positive(cost.latency_s)?;
        quantiles(&path.field("quantiles"), cost.quantiles)?;
        if let Some(energy) = cost.energy_j {
            path.field("energy_j").not_negative(energy)?;
        }
        if let Some(utilisation) = cost.utilisation {
            path.field("utilisation").unit_interval(utilisation)?;
        }
    }
    Ok(())
}

fn quantiles(path: &Path<'_>, quantiles: Option<LatencyQuantiles>) -> Result<(), Invalid> {
    let needs = "0 <= p10 <= 1 <= p90 <= p95 <= p99, finite";
    quantiles.map_or(Ok(()), |quantiles| {
        path.within(quantiles.p99, quantiles.is_sound(), needs)
    })
}

#[cfg(test)]
mod tests;
