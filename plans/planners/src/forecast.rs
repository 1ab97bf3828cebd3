//! Expected outcomes of cascades of a family on new samples, smoothed over the samples that they are chosen on.
//!
//! Picking the best of thousands of cascades by counts largely picks a lucky one. So no cascade is judged by counts here: for each variant,
//! two logistic curves over its confidence estimate the probability of a loss and of a gain, and the expected loss and gain of a cascade
//! are the sums over the samples that it answers. Curves have four numbers per variant in place of one per sample, so that they hardly
//! depend on the choice of the cascade. Where many losses are observed, their count corrects the curves, which ignore the earlier stages of
//! a sample.

use std::sync::Arc;

use crate::deferral::Curve;
use crate::thresholds::{Column, Family, between};

/// A cascade, and what is expected of it per request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Forecast {
    /// One per variant but the last.
    pub(crate) thresholds: Vec<f64>,
    pub(crate) cost: f64,
    pub(crate) lost: f64,
    pub(crate) gained: f64,
}

/// Reference for losses and gains of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Against<'a> {
    /// The largest variant: an answer is lost if only that one is right.
    Largest(&'a Column),
    /// The truth: a wrong answer is lost, none is gained.
    Truth,
}

/// Shares of the samples at a gate that leave there, for the last gate of a cascade.
const LAST_SHARES: usize = 48;

/// Expected events that weigh as much as one that is counted: the expectation is multiplied by `(PRIOR + counted) / (PRIOR + expected)`.
const PRIOR: f64 = 32.0;

/// Combinations of shares at all gates but the last, at most.
const COMBINATIONS: f64 = 400.0;

/// Returns cascades of all variants of a family: at every gate, thresholds at even shares of the samples that reach it. A family of one
/// variant has one cascade.
pub(crate) fn forecasts(family: &Family, against: Against<'_>) -> Vec<Forecast> {
    let gates: Vec<Gate> = (0..family.columns().len())
        .map(|variant| Gate::new(family, variant, against))
        .collect();
    let before = gates.len().saturating_sub(2);
    let shares = match before {
        0 => LAST_SHARES,
        _ => (COMBINATIONS.powf(1.0 / before as f64) as usize).clamp(3, LAST_SHARES),
    };
    let mut search = SharesSearch {
        gates: &gates,
        shares,
        samples: family.samples() as f64,
        found: Vec::new(),
    };
    if let Some(first) = gates.first() {
        search.visit(0, &first.order, Beginning::default());
    }
    search.found
}

/// A variant: by sample its confidence, and what its answer loses and gains.
struct Gate {
    cost: f64,
    confidences: Arc<[f64]>,
    /// All samples, the most confident first, equally confident ones ascending.
    order: Vec<u32>,
    /// Position of each sample in that order.
    places: Vec<u32>,
    lost: Vec<Event>,
    gained: Vec<Event>,
}

/// An event at a sample, or the sum over some.
#[derive(Debug, Clone, Copy, Default)]
struct Event {
    expected: f64,
    counted: f64,
}

impl Event {
    fn add(&mut self, other: Self) {
        self.expected += other.expected;
        self.counted += other.counted;
    }

    fn corrected(self) -> f64 {
        self.expected * (PRIOR + self.counted) / (PRIOR + self.expected)
    }
}

/// The first gates of a cascade.
#[derive(Debug, Clone, Default)]
struct Beginning {
    thresholds: Vec<f64>,
    cost: f64,
    lost: Event,
    gained: Event,
}

impl Beginning {
    /// Adds what the answers of a gate to some samples lose and gain.
    fn add(&mut self, gate: &Gate, samples: &[u32]) {
        for sample in samples {
            self.lost.add(at(&gate.lost, *sample));
        }
        if !gate.gained.is_empty() {
            for sample in samples {
                self.gained.add(at(&gate.gained, *sample));
            }
        }
    }
}

impl Gate {
    fn new(family: &Family, variant: usize, against: Against<'_>) -> Self {
        let column = family.columns().get(variant);
        let confidences = column.map_or_else(Arc::default, |column| column.confidences.clone());
        let correct = column.map_or(&[][..], |column| &column.correct);
        let (lost, gained) = match against {
            Against::Truth => {
                let wrong: Vec<bool> = correct.iter().map(|right| !right).collect();
                (events(&confidences, &wrong), Vec::new())
            }
            // It loses nothing against itself.
            Against::Largest(largest) if column.is_some_and(|column| column.name == largest.name) => {
                (Vec::new(), Vec::new())
            }
            Against::Largest(largest) => {
                let pairs = || correct.iter().zip(largest.correct.iter());
                let lost: Vec<bool> = pairs().map(|(right, largest)| !right && *largest).collect();
                let gained: Vec<bool> = pairs().map(|(right, largest)| *right && !largest).collect();
                (events(&confidences, &lost), events(&confidences, &gained))
            }
        };
        let mut order: Vec<u32> = (0..confidences.len() as u32).collect();
        let confidence = |sample: u32| at(&confidences, sample);
        order.sort_unstable_by(|one, other| {
            let surer = confidence(*other).total_cmp(&confidence(*one));
            surer.then(one.cmp(other))
        });
        let mut places = vec![0; order.len()];
        for (place, sample) in (0..).zip(&order) {
            if let Some(slot) = places.get_mut(*sample as usize) {
                *slot = place;
            }
        }
        Self {
            cost: column.map_or(0.0, |column| column.energy_j),
            confidences,
            order,
            places,
            lost,
            gained,
        }
    }

    fn confidence(&self, sample: u32) -> f64 {
        at(&self.confidences, sample)
    }

    fn place(&self, sample: u32) -> u32 {
        at(&self.places, sample)
    }

    /// Returns some samples in the order of this gate.
    fn ordered(&self, samples: &[u32]) -> Vec<u32> {
        let mut is_one = vec![false; self.order.len()];
        for sample in samples {
            if let Some(slot) = is_one.get_mut(*sample as usize) {
                *slot = true;
            }
        }
        let ordered = self.order.iter().filter(|sample| at(&is_one, **sample));
        ordered.copied().collect()
    }
}

fn at<T: Copy + Default>(values: &[T], sample: u32) -> T {
    values.get(sample as usize).copied().unwrap_or_default()
}

/// Returns an event with its chance at each confidence.
fn events(confidences: &[f64], happens: &[bool]) -> Vec<Event> {
    let chances = chances(confidences, happens).into_iter().zip(happens);
    let events = chances.map(|(expected, happens)| Event {
        expected,
        counted: f64::from(u8::from(*happens)),
    });
    events.collect()
}

/// Returns the chance of an event at each confidence: never rising with it, and never certain to fail.
fn chances(confidences: &[f64], happens: &[bool]) -> Vec<f64> {
    Curve::fit(confidences, happens).map_or_else(
        || {
            // Half an event more: that none was seen does not mean that none can be.
            let count = happens.iter().filter(|happens| **happens).count() as f64;
            vec![(count + 0.5) / (happens.len() as f64 + 1.0); happens.len()]
        },
        |curve| curve.at(confidences),
    )
}

struct SharesSearch<'a> {
    gates: &'a [Gate],
    /// Shares at every gate but the last.
    shares: usize,
    samples: f64,
    found: Vec<Forecast>,
}

impl SharesSearch<'_> {
    /// Tries the shares of a gate on the samples that reach it, after a beginning. They are in the order of the gate.
    fn visit(&mut self, place: usize, alive: &[u32], mut now: Beginning) {
        let gates = self.gates;
        let Some(gate) = gates.get(place) else { return };
        now.cost += gate.cost * alive.len() as f64 / self.samples;
        let Some(next) = gates.get(place + 1) else {
            now.add(gate, alive);
            self.found.push(self.end(now));
            return;
        };
        let is_last = place + 2 == gates.len();
        let splits = splits(gate, alive, if is_last { LAST_SHARES } else { self.shares });
        // What the last variant loses and gains of the samples after each split; the last split comes first.
        let mut rests = Vec::new();
        let mut rest = if is_last { Vec::new() } else { next.ordered(alive) };
        if is_last {
            let mut sum = Beginning::default();
            let mut end = alive.len();
            for (left, _) in splits.iter().rev() {
                sum.add(next, alive.get(*left..end).unwrap_or_default());
                rests.push((sum.lost, sum.gained));
                end = *left;
            }
        }
        let mut begin = 0;
        for (left, threshold) in splits {
            let leaving = alive.get(begin..left).unwrap_or_default();
            begin = left;
            now.add(gate, leaving);
            let mut beginning = now.clone();
            beginning.thresholds.push(threshold);
            if let Some((lost, gained)) = rests.pop() {
                beginning.cost += next.cost * (alive.len() - left) as f64 / self.samples;
                beginning.lost.add(lost);
                beginning.gained.add(gained);
                self.found.push(self.end(beginning));
            } else if let Some(last) = leaving.last() {
                rest.retain(|sample| gate.place(*sample) > gate.place(*last));
                self.visit(place + 1, &rest, beginning);
            }
        }
    }

    fn end(&self, cascade: Beginning) -> Forecast {
        Forecast {
            thresholds: cascade.thresholds,
            cost: cascade.cost,
            lost: cascade.lost.corrected() / self.samples,
            gained: cascade.gained.corrected() / self.samples,
        }
    }
}

/// Returns how many samples leave at a gate, and the threshold of which they do: at even shares of those that reach it, which are in the order of the
/// gate. No threshold parts equal confidences.
fn splits(gate: &Gate, alive: &[u32], shares: usize) -> Vec<(usize, f64)> {
    let mut splits = Vec::with_capacity(shares);
    let mut next = 1;
    for (left, pair) in (1..).zip(alive.windows(2)) {
        let [sample, after] = pair else { break };
        if left * shares < next * alive.len() {
            continue;
        }
        let (below, above) = (gate.confidence(*after), gate.confidence(*sample));
        if below < above {
            next = left * shares / alive.len() + 1;
            splits.push((left, between(below, above)));
        }
    }
    splits
}

#[cfg(test)]
mod tests;
