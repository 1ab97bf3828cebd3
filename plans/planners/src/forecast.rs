//! What cascades of a family are expected to do on new samples, smoothed over the samples that they are chosen on.
//!
//! The best of thousands of cascades by counts is to a good part lucky. So no cascade is judged by counts here: for each variant, two logistic
//! curves over its confidence say how probable a loss and a gain are, and a cascade is expected to lose and gain what they say of the
//! samples where it answers. Curves have four numbers per variant in place of one per sample, so that what they say of a cascade hardly
//! depends on which cascade it is. Where many losses are seen, their count corrects the curves, which ignore what a sample has passed before.

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

/// What an answer loses or gains against.
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
    search.visit(0, (0..family.samples()).collect(), &Beginning::default());
    search.found
}

/// A variant: by sample its confidence, and what its answer loses and gains.
struct Gate {
    cost: f64,
    confidences: Vec<f64>,
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

impl Gate {
    fn new(family: &Family, variant: usize, against: Against<'_>) -> Self {
        let column = family.columns().get(variant);
        let confidences = column.map_or(&[][..], |column| &column.confidences);
        let correct = column.map_or(&[][..], |column| &column.correct);
        let (lost, gained) = match against {
            Against::Truth => {
                let wrong: Vec<bool> = correct.iter().map(|right| !right).collect();
                (events(confidences, &wrong), Vec::new())
            }
            // It loses nothing against itself.
            Against::Largest(largest) if column.is_some_and(|column| column.name == largest.name) => {
                (Vec::new(), Vec::new())
            }
            Against::Largest(largest) => {
                let pairs = || correct.iter().zip(&largest.correct);
                let lost: Vec<bool> = pairs().map(|(right, largest)| !right && *largest).collect();
                let gained: Vec<bool> = pairs().map(|(right, largest)| *right && !largest).collect();
                (events(confidences, &lost), events(confidences, &gained))
            }
        };
        Self {
            cost: column.map_or(0.0, |column| column.energy_j),
            confidences: confidences.to_vec(),
            lost,
            gained,
        }
    }
}

fn at<T: Copy + Default>(values: &[T], sample: usize) -> T {
    values.get(sample).copied().unwrap_or_default()
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
    /// Tries the shares of a gate on the samples that reach it, after a beginning.
    fn visit(&mut self, place: usize, mut alive: Vec<usize>, before: &Beginning) {
        let gates = self.gates;
        let Some(gate) = gates.get(place) else { return };
        let mut now = before.clone();
        now.cost += gate.cost * alive.len() as f64 / self.samples;
        if place + 1 == gates.len() {
            for sample in alive {
                now.lost.add(at(&gate.lost, sample));
                now.gained.add(at(&gate.gained, sample));
            }
            self.found.push(Forecast {
                thresholds: now.thresholds,
                cost: now.cost,
                lost: now.lost.corrected() / self.samples,
                gained: now.gained.corrected() / self.samples,
            });
            return;
        }
        let confidence = |sample: &usize| at(&gate.confidences, *sample);
        // The surest first.
        alive.sort_by(|one, other| confidence(other).total_cmp(&confidence(one)).then(one.cmp(other)));
        let shares = if place + 2 == gates.len() {
            LAST_SHARES
        } else {
            self.shares
        };
        let mut next = 1;
        for (left, sample) in (1..).zip(&alive) {
            now.lost.add(at(&gate.lost, *sample));
            now.gained.add(at(&gate.gained, *sample));
            let Some(after) = alive.get(left) else { break };
            let (below, above) = (confidence(after), confidence(sample));
            // No threshold parts equal confidences.
            if left * shares < next * alive.len() || below >= above {
                continue;
            }
            next = left * shares / alive.len() + 1;
            let mut beginning = now.clone();
            beginning.thresholds.push(between(below, above));
            let rest = alive.get(left..).unwrap_or_default().to_vec();
            self.visit(place + 1, rest, &beginning);
        }
    }
}

#[cfg(test)]
#[path = "forecast_tests.rs"]
mod tests;
