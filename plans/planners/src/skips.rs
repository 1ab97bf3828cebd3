//! Drops variants that do not pay off, and adds connections that skip some (HybridServe §IV-C, Algorithm 2).

use std::collections::BTreeSet;

use serde::Serialize;

use crate::thresholds::{Band, CascadeOutcome, Exits, Family, Frontier, Point, evaluate, threshold_exits};

/// A variant that was left out, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dropped {
    /// The variant.
    pub name: String,
    /// Why.
    pub reason: Reason,
}

/// Why a variant was left out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// The variant costs at least as much as it saves at the next one.
    NoEnergyBenefit {
        /// `(rho_i - rho_{i+1}) e_{i+1} - rho_i e_i`, per request.
        benefit: f64,
        /// Energy per request of the cascade with it.
        energy_before: f64,
        /// Energy per request of the cascade that was found without it.
        energy_after: f64,
    },
    /// No validation sample reaches it.
    NeverReached,
    /// The cheapest certified cascade does without it.
    CheaperWithout,
}

/// A family without the variants that do not pay, its frontier and the chosen point.
#[derive(Debug, Clone, PartialEq)]
pub struct Pruned {
    /// The remaining family.
    pub family: Family,
    /// The chosen point on it.
    pub point: Point,
    /// The dropped variants, in order.
    pub dropped: Vec<Dropped>,
}

/// The energy that a variant spares its successor, less its own, per request (Algorithm 2). `None` for the last.
pub(crate) fn energy_benefit(family: &Family, reach: &[f64], variant: usize) -> Option<f64> {
    let (rho, rho_next) = (reach.get(variant)?, reach.get(variant + 1)?);
    let (own, next) = (family.columns().get(variant)?, family.columns().get(variant + 1)?);
    Some((rho - rho_next) * next.energy_j - rho * own.energy_j)
}

/// Drops the variants without energy benefit, one at a time from small to large, searching again after each (Algorithm 2).
///
/// `search` finds the frontier of a family, `choose` the point on it that is wanted, if there is one. The benefit is that of the
/// thresholds before the drop; a drop after which the wanted point is gone or costs more is taken back, and the variant stays.
pub(crate) fn prune(
    family: &Family,
    found: &Frontier,
    search: impl Fn(&Family) -> Frontier,
    choose: impl Fn(&Family, &Frontier) -> Option<Point>,
) -> Option<Pruned> {
    let mut pruned = Pruned {
        family: family.clone(),
        point: choose(family, found)?,
        dropped: Vec::new(),
    };
    let mut stays: BTreeSet<String> = BTreeSet::new();
    while let Some((variant, name, benefit)) = useless(&pruned, &stays) {
        let smaller = pruned.family.without(variant);
        match choose(&smaller, &search(&smaller)) {
            Some(point) if point.energy_j <= pruned.point.energy_j => {
                pruned.dropped.push(Dropped {
                    name,
                    reason: Reason::NoEnergyBenefit {
                        benefit,
                        energy_before: pruned.point.energy_j,
                        energy_after: point.energy_j,
                    },
                });
                pruned.family = smaller;
                pruned.point = point;
            }
            _ => {
                stays.insert(name);
            }
        }
    }
    trim(&mut pruned);
    Some(pruned)
}

/// The smallest variant without benefit.
fn useless(pruned: &Pruned, stays: &BTreeSet<String>) -> Option<(usize, String, f64)> {
    let columns = pruned.family.columns().iter().enumerate();
    columns
        .filter(|(_, column)| !stays.contains(&column.name))
        .find_map(|(variant, column)| {
            let benefit = energy_benefit(&pruned.family, &pruned.point.reach, variant)?;
            (benefit <= 0.0).then(|| (variant, column.name.clone(), benefit))
        })
}

/// Drops the variants after one that forwards nothing.
pub(crate) fn trim(pruned: &mut Pruned) {
    let used = 1 + pruned
        .point
        .thresholds
        .iter()
        .take_while(|threshold| **threshold > 0.0)
        .count();
    while pruned.family.columns().len() > used {
        let last = pruned.family.columns().len() - 1;
        if let Some(column) = pruned.family.columns().get(last) {
            pruned.dropped.push(Dropped {
                name: column.name.clone(),
                reason: Reason::NeverReached,
            });
        }
        pruned.family = pruned.family.without(last);
        pruned.point.thresholds.pop();
        pruned.point.reach.pop();
        pruned.point.answered.pop();
    }
}

/// Split of the interval under a threshold over the successors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Not at all: everything goes to the next variant.
    None,
    /// Into equal parts.
    Even,
    /// Into parts of equal ratio, from the least confidence seen.
    LogUniform,
}

/// The result of a split on the validation set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SplitOutcome {
    /// The split.
    pub split: Split,
    /// Accuracy of the split.
    pub accuracy: f64,
    /// Energy per request of the split, joules.
    pub energy_j: f64,
    /// Variants that a request runs, on average.
    pub hops: f64,
}

/// The split that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Skips {
    /// The split.
    pub split: Split,
    /// The exits with it.
    pub exits: Exits,
    /// Outcome of the exits on the validation set.
    pub outcome: CascadeOutcome,
    /// All splits that were tried, the plain cascade first.
    pub tried: Vec<SplitOutcome>,
}

/// Tries skip connections: the lowest confidences go to the largest variant, those just under the threshold to the next
/// (Algorithm 2, step 5). Takes the split of least energy that is accepted, if it needs less than the plain cascade.
pub(crate) fn add_skips(
    family: &Family,
    thresholds: &[f64],
    accepts: impl Fn(&CascadeOutcome) -> bool,
) -> Skips {
    let plain = threshold_exits(thresholds);
    let outcome = evaluate(family, &plain);
    let mut taken = Skips {
        split: Split::None,
        tried: vec![tried(Split::None, &outcome)],
        exits: plain,
        outcome,
    };
    for split in [Split::Even, Split::LogUniform] {
        let exits = split_exits(family, thresholds, split);
        if exits == taken.exits {
            continue;
        }
        let outcome = evaluate(family, &exits);
        taken.tried.push(tried(split, &outcome));
        if outcome.energy_j < taken.outcome.energy_j && accepts(&outcome) {
            taken = Skips {
                split,
                exits,
                outcome,
                ..taken
            };
        }
    }
    taken
}

fn tried(split: Split, outcome: &CascadeOutcome) -> SplitOutcome {
    SplitOutcome {
        split,
        accuracy: outcome.accuracy,
        energy_j: outcome.energy_j,
        hops: outcome.reach.iter().sum(),
    }
}

fn split_exits(family: &Family, thresholds: &[f64], split: Split) -> Exits {
    let last = family.columns().len().saturating_sub(1);
    let mut exits = threshold_exits(thresholds);
    for (variant, (bands, threshold)) in exits.iter_mut().zip(thresholds).enumerate() {
        let successors = last.saturating_sub(variant);
        let Some((on, reply)) = bands
            .split_first()
            .filter(|(on, _)| on.to.is_some() && successors > 1)
        else {
            continue;
        };
        let top = threshold.min(1.0);
        let lowest = family.columns().get(variant).map_or(top, |column| {
            column
                .confidences
                .iter()
                .copied()
                .filter(|c| *c > 0.0)
                .fold(top, f64::min)
        });
        let mut split_bands = vec![Band {
            to: Some(last),
            ..*on
        }];
        for part in 1..successors {
            let from = rounded(boundary(split, lowest, top, part as f64 / successors as f64));
            if split_bands.last().is_some_and(|before| from > before.from) && from < top {
                split_bands.push(Band {
                    from,
                    to: Some(last - part),
                });
            }
        }
        split_bands.extend_from_slice(reply);
        *bands = split_bands;
    }
    exits
}

fn boundary(split: Split, lowest: f64, top: f64, way: f64) -> f64 {
    match split {
        Split::None => 0.0,
        Split::Even => top * way,
        Split::LogUniform => lowest * (top / lowest).powf(way),
    }
}

/// Six digits are more than the split deserves, and keep the file readable.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests;
