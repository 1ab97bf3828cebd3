//! SP1, cascade search: the cascades to choose from (CascadeServe §4.2).
//!
//! Every variant may choose among a few thresholds, quantiles of its confidences. A validation set then is a few bit sets
//! (which samples a variant gets right, which it forwards at a threshold), and a cascade is evaluated by a few operations on them,
//! shared with all cascades of the same prefix. So all of them are evaluated, tens of thousands in milliseconds; only families too
//! large for that are sampled, by seed.
//!
//! The kept cascades are Pareto-optimal in accuracy and throughput. Throughput is that of the placement: the load at which the load
//! balancer reports the busiest device fully busy. It depends on batch sizes, and not in one direction: in full batches a
//! large variant costs a hundred times a tiny one, alone only six times. Under a light load, where devices idle and
//! latency is what counts, other cascades are the good ones. So the front is taken for full batches and for single
//! requests, and both are kept. So are the single variants that no other single one beats: a cascade's slowest requests wait at
//! every stage, so where the latency objective is tight, a variant alone may be the only one that meets it.

use rand::Rng;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::balance::{Demand, Group, HallBounds};
use super::model_costs::Models;
use super::model_set::ModelSet;
use super::options::CascadeSearch;
use crate::pareto::{Place, pareto_front};
use crate::thresholds::between;
use kaskade_policy::profile::{Profile, VariantProfile};

/// A cascade: its variants, and the confidence below which each escalates to the next.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cascade {
    /// The stages' variants, by index in the profile, ascending.
    pub variants: Vec<usize>,
    /// A confidence below it is forwarded; one per stage but the last.
    pub thresholds: Vec<f64>,
    /// Share of right answers on the validation set.
    pub accuracy: f64,
    /// Share of requests that reach every stage.
    pub reach: Vec<f64>,
}

impl Cascade {
    pub(super) fn models(&self) -> ModelSet {
        self.variants.iter().copied().collect()
    }

    /// Returns the cascade's work for every model at a load, in batches of the working size.
    pub(super) fn demands(&self, models: &Models, qps: f64) -> Vec<Demand> {
        self.demands_by(qps, |model| models.batched_time_s(model))
    }

    fn demands_by(&self, qps: f64, seconds: impl Fn(usize) -> f64) -> Vec<Demand> {
        let demand = |(model, reach): (&usize, &f64)| Demand {
            model: *model,
            work: qps * reach * seconds(*model),
        };
        self.variants.iter().zip(&self.reach).map(demand).collect()
    }

    /// The highest load that the placement carries, requests/s, in batches of the working size.
    pub(super) fn throughput(&self, models: &Models, groups: &[Group]) -> f64 {
        1.0 / HallBounds::new(self.demands(models, 1.0), groups)
            .load()
            .utilisation
    }

    /// Returns the highest load with batches of single requests.
    fn throughput_alone(&self, models: &Models, groups: &[Group]) -> f64 {
        let demands = self.demands_by(1.0, |model| models.run_time_s(model));
        1.0 / HallBounds::new(demands, groups).load().utilisation
    }
}

/// Every cascade that can be formed, or a sample of them.
#[derive(Debug, Clone)]
pub(super) struct Space {
    cascades: Vec<Cascade>,
}

impl Space {
    /// Forms the cascades of a profile; single variants are always among them.
    pub(super) fn new(profile: &Profile, search: &CascadeSearch, seed: u64) -> Self {
        let columns: Vec<Column> = profile
            .variants
            .iter()
            .map(|variant| Column::new(variant, search.thresholds))
            .collect();
        let mut former = Former {
            columns: &columns,
            samples: profile.samples,
            found: Vec::new(),
        };
        let limit = f64::from(search.exhaustive_up_to);
        if former.count(search.max_stages as usize) <= limit {
            former.form_all(search.max_stages as usize);
        } else {
            former.draw(search, seed);
        }
        Self {
            cascades: former.found,
        }
    }

    /// Takes these cascades.
    pub(super) fn of(cascades: Vec<Cascade>) -> Self {
        Self { cascades }
    }

    /// Keeps cascades of one stage.
    pub(super) fn singles(mut self) -> Self {
        self.cascades.retain(|cascade| cascade.variants.len() == 1);
        self
    }

    /// Keeps cascades that do not use this model.
    pub(super) fn without(mut self, model: usize) -> Self {
        self.cascades.retain(|cascade| !cascade.variants.contains(&model));
        self
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> &[Cascade] {
        &self.cascades
    }

    /// The cascades that none other beats in accuracy and throughput on this placement, in ascending order of accuracy; at most
    /// `most`, evenly over the accuracies. The cheapest and the most accurate are always kept, and so are single variants.
    pub(super) fn front(&self, models: &Models, groups: &[Group], most: usize) -> Vec<Cascade> {
        let working = self.pareto(|cascade| cascade.throughput(models, groups));
        let alone = self.pareto(|cascade| cascade.throughput_alone(models, groups));
        let cheapest = working.first().copied();
        let singles = self.pareto(|cascade| match cascade.variants.len() {
            1 => cascade.throughput(models, groups),
            _ => 0.0,
        });
        let mut kept: Vec<&Cascade> = working.into_iter().chain(alone).collect();
        kept.sort_by(|a, b| a.accuracy.total_cmp(&b.accuracy));
        let mut thinned = thin(&kept, most);
        for always in cheapest.into_iter().chain(singles) {
            if !thinned.contains(&always) {
                thinned.push(always);
            }
        }
        thinned.sort_by(|a, b| a.accuracy.total_cmp(&b.accuracy));
        thinned.dedup();
        thinned.into_iter().cloned().collect()
    }

    /// Returns the Pareto front, ascending in accuracy and descending in throughput, without cascades whose throughput is 0 (a
    /// model without a replica).
    fn pareto(&self, throughput: impl Fn(&Cascade) -> f64) -> Vec<&Cascade> {
        let placed = self.cascades.iter().map(|cascade| (throughput(cascade), cascade));
        let placed = placed.filter(|(throughput, _)| *throughput > 0.0).collect();
        // The gain has a tolerance, and it is throughputs that are sums in another order.
        let front = pareto_front(placed, |(throughput, cascade)| Place {
            cost: -cascade.accuracy,
            gain: *throughput,
        });
        front.into_iter().rev().map(|(_, cascade)| cascade).collect()
    }
}

/// At most this many, the first and the last among them, nearest to even steps of accuracy in between.
fn thin<'a>(cascades: &[&'a Cascade], most: usize) -> Vec<&'a Cascade> {
    let (Some(first), Some(last)) = (cascades.first(), cascades.last()) else {
        return Vec::new();
    };
    if cascades.len() <= most {
        return cascades.to_vec();
    }
    let width = (last.accuracy - first.accuracy).max(f64::MIN_POSITIVE);
    let steps = (most.max(2) - 1) as f64;
    let slot = |cascade: &Cascade| ((cascade.accuracy - first.accuracy) / width * steps).round();
    let mut kept: Vec<&Cascade> = Vec::new();
    let distance =
        |cascade: &Cascade| (cascade.accuracy - (first.accuracy + slot(cascade) * width / steps)).abs();
    for cascade in cascades {
        match kept.last_mut() {
            Some(before) if slot(before) >= slot(cascade) => {
                if distance(cascade) < distance(before) {
                    *before = cascade;
                }
            }
            _ => kept.push(cascade),
        }
    }
    kept
}

/// A variant's answers as bit sets over the samples, 64 in each integer.
struct Column {
    right: Vec<u64>,
    /// Thresholds, ascending, and the samples below each.
    below: Vec<(f64, Vec<u64>)>,
}

impl Column {
    fn new(variant: &VariantProfile, thresholds: u32) -> Self {
        let validation = &variant.validation;
        let below = quantiles(&validation.confidences, thresholds)
            .into_iter()
            .map(|threshold| {
                let forwarded = validation
                    .confidences
                    .iter()
                    .map(|confidence| *confidence < threshold);
                (threshold, bits(forwarded))
            });
        Self {
            below: below.collect(),
            right: bits(validation.correct.iter().copied()),
        }
    }
}

fn bits(flags: impl Iterator<Item = bool>) -> Vec<u64> {
    let mut words = Vec::new();
    for (index, flag) in flags.enumerate() {
        if index % 64 == 0 {
            words.push(0);
        }
        if let Some(word) = words.last_mut() {
            *word |= u64::from(flag) << (index % 64);
        }
    }
    words
}

/// `count` thresholds that lie between distinct confidences, at even steps of these, as short decimals. None is 0, which would forward
/// nothing. Confidences that crowd near 1 still have different thresholds.
fn quantiles(confidences: &[f64], count: u32) -> Vec<f64> {
    let mut distinct = confidences.to_vec();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    let at = |level: u32| {
        let place = distinct.len() * level as usize / (count as usize + 1);
        let below = *distinct.get(place.checked_sub(1)?)?;
        Some(between(below, *distinct.get(place)?))
    };
    let mut thresholds: Vec<f64> = (1..=count).filter_map(at).collect();
    thresholds.dedup();
    thresholds
}

/// Forms cascades stage by stage.
struct Former<'a> {
    columns: &'a [Column],
    samples: usize,
    found: Vec<Cascade>,
}

/// The stages so far, and the samples that they forward.
#[derive(Clone)]
struct Prefix {
    variants: Vec<usize>,
    thresholds: Vec<f64>,
    reach: Vec<f64>,
    /// Samples that none of them answered.
    left: Vec<u64>,
    /// Right answers so far.
    right: u32,
}

impl Former<'_> {
    fn start(&self) -> Prefix {
        Prefix {
            variants: Vec::new(),
            thresholds: Vec::new(),
            reach: Vec::new(),
            left: bits((0..self.samples).map(|_| true)),
            right: 0,
        }
    }

    /// Returns the number of cascades.
    fn count(&self, stages: usize) -> f64 {
        // By length: cascades that end in a variant of those so far, and prefixes that a later variant may follow.
        let mut prefixes = vec![0.0; stages + 1];
        if let Some(empty) = prefixes.first_mut() {
            *empty = 1.0;
        }
        let mut count = 0.0;
        for column in self.columns {
            let shorter = prefixes.clone();
            count += shorter.iter().take(stages).sum::<f64>();
            for (longer, shorter) in prefixes.iter_mut().skip(1).zip(&shorter) {
                *longer += shorter * column.below.len() as f64;
            }
        }
        count
    }

    fn form_all(&mut self, stages: usize) {
        let start = self.start();
        self.extend(&start, 0, stages);
    }

    fn extend(&mut self, prefix: &Prefix, from: usize, stages: usize) {
        for variant in from..self.columns.len() {
            let found = self.ended(prefix, variant);
            self.found.extend(found);
            if prefix.variants.len() + 1 < stages {
                for threshold in 0..self.thresholds(variant) {
                    if let Some(longer) = self.forwarded(prefix, variant, threshold) {
                        self.extend(&longer, variant + 1, stages);
                    }
                }
            }
        }
    }

    fn thresholds(&self, variant: usize) -> usize {
        self.columns.get(variant).map_or(0, |column| column.below.len())
    }

    /// The cascade that ends in this variant.
    fn ended(&self, prefix: &Prefix, variant: usize) -> Option<Cascade> {
        let column = self.columns.get(variant)?;
        let right = prefix.right + common(&prefix.left, &column.right);
        let mut cascade = Cascade {
            variants: prefix.variants.clone(),
            thresholds: prefix.thresholds.clone(),
            reach: prefix.reach.clone(),
            accuracy: f64::from(right) / self.samples as f64,
        };
        cascade.variants.push(variant);
        cascade.reach.push(self.share(&prefix.left));
        Some(cascade)
    }

    /// The stages with this variant and one of its thresholds. `None` if that forwards everything or nothing: the cascade would
    /// be a shorter one, or pay for a variant that never answers.
    fn forwarded(&self, prefix: &Prefix, variant: usize, threshold: usize) -> Option<Prefix> {
        let column = self.columns.get(variant)?;
        let (threshold, below) = column.below.get(threshold)?;
        let left: Vec<u64> = prefix
            .left
            .iter()
            .zip(below)
            .map(|(left, below)| left & below)
            .collect();
        let answered: Vec<u64> = prefix
            .left
            .iter()
            .zip(below)
            .map(|(left, below)| left & !below)
            .collect();
        if left.iter().all(|word| *word == 0) || answered.iter().all(|word| *word == 0) {
            return None;
        }
        let mut longer = prefix.clone();
        longer.variants.push(variant);
        longer.thresholds.push(*threshold);
        longer.reach.push(self.share(&prefix.left));
        longer.right += common(&answered, &column.right);
        longer.left = left;
        Some(longer)
    }

    fn share(&self, samples: &[u64]) -> f64 {
        let count: u32 = samples.iter().map(|word| word.count_ones()).sum();
        f64::from(count) / self.samples as f64
    }

    /// Single variants, and random cascades.
    fn draw(&mut self, search: &CascadeSearch, seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        self.form_all(1);
        let mut order: Vec<usize> = (0..self.columns.len()).collect();
        for _ in 0..search.exhaustive_up_to {
            let most = order.len().min(search.max_stages as usize);
            let stages = rng.random_range(1..=most);
            order.shuffle(&mut rng);
            let mut variants: Vec<usize> = order.iter().copied().take(stages).collect();
            variants.sort_unstable();
            let found = self.drawn(&variants, &mut rng);
            self.found.extend(found);
        }
    }

    fn drawn(&self, variants: &[usize], rng: &mut ChaCha8Rng) -> Option<Cascade> {
        let (last, before) = variants.split_last()?;
        let mut prefix = self.start();
        for variant in before {
            let choices = self.thresholds(*variant);
            let threshold = rng.random_range(0..choices.max(1));
            prefix = self.forwarded(&prefix, *variant, threshold)?;
        }
        self.ended(&prefix, *last)
    }
}

fn common(a: &[u64], b: &[u64]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a & b).count_ones()).sum()
}

#[cfg(test)]
mod tests;
