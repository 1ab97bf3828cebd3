//! Measures the cost of a batch: latency, energy and utilisation by batch size.
//!
//! Every batch size is measured in several rounds, each of which goes through all sizes in order. Other load that lasts
//! a second then affects one round of each size instead of all rounds of one size, and medians exclude that round.

use std::time::{Duration, Instant};

use kaskade_models::{Inputs, Model};
use kaskade_policy::profile::{BatchCost, LatencyQuantiles};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::MeasureError;
use super::meter::{IntervalCost, Meter};

/// Interval for reading energy sources that integrate power.
const SAMPLED_EVERY: Duration = Duration::from_millis(100);

/// Seed of the order of the samples.
const ORDER: u64 = 7;

/// Options of the cost measurement: batch sizes, rounds and duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostOptions {
    /// Batch sizes, ascending.
    pub batches: Vec<u32>,
    /// Number of passes through all sizes.
    pub rounds: u32,
    /// Minimum duration for each size in each round; at least one run is measured.
    pub measure_for: Duration,
}

impl CostOptions {
    /// Returns options with powers of two up to 64 and three rounds.
    pub fn new(measure_for: Duration) -> Self {
        Self {
            batches: (0..=6).map(|power| 1 << power).collect(),
            rounds: 3,
            measure_for,
        }
    }

    /// Returns the number of measured intervals.
    pub fn steps(&self) -> u64 {
        self.batches.len() as u64 * u64::from(self.rounds)
    }
}

/// Measurements of one batch size.
#[derive(Debug, Default)]
struct BatchSamples {
    latencies: Vec<f64>,
    energies: Vec<f64>,
    utilisations: Vec<f64>,
}

/// Measures a model on representative requests.
///
/// # Errors
/// [`MeasureError`] if the model fails on a request, or there are no requests.
pub fn measure(
    model: &mut dyn Model,
    requests: &[Inputs],
    options: &CostOptions,
    meter: &mut Meter,
    mut step: impl FnMut(),
) -> Result<Vec<BatchCost>, MeasureError> {
    if requests.is_empty() {
        return Err(MeasureError::NoRequests);
    }
    let largest = options.batches.iter().max().copied().unwrap_or(1) as usize;
    // Adjacent samples of a file may be alike. The same seed gives every variant the same order.
    let mut order: Vec<&Inputs> = requests.iter().collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(ORDER));
    // Repeat the first requests, so that every window of the largest batch is contiguous.
    let padded: Vec<Inputs> = order
        .into_iter()
        .cycle()
        .take(requests.len() + largest)
        .cloned()
        .collect();
    let mut seen: Vec<BatchSamples> = options.batches.iter().map(|_| BatchSamples::default()).collect();
    // Each size continues where its previous round ended, so that the few runs of a slow model use different samples.
    let batches = options.batches.iter().map(|batch| Batches {
        padded: &padded,
        count: requests.len(),
        size: *batch as usize,
        next: 0,
    });
    let mut batches: Vec<Batches<'_>> = batches.collect();
    for _ in 0..options.rounds {
        let sizes = options.batches.iter().zip(&mut batches);
        for ((batch, batches), seen) in sizes.zip(&mut seen) {
            run_round(model, batches, options.measure_for, meter, seen).map_err(|source| {
                MeasureError::BatchSize {
                    batch: *batch,
                    source: Box::new(source),
                }
            })?;
            step();
        }
    }
    let costs = options.batches.iter().zip(seen).map(|(batch, mut seen)| {
        let energies = (seen.energies.len() == options.rounds as usize).then_some(&mut seen.energies);
        // `median` sorts the latencies.
        let latency_s = median(&mut seen.latencies).ok_or(MeasureError::Nothing)?;
        Ok(BatchCost {
            batch: *batch,
            latency_s,
            quantiles: LatencyQuantiles::from_sorted(&seen.latencies),
            energy_j: energies.and_then(|energies| median(energies)),
            memory_bytes: None,
            utilisation: median(&mut seen.utilisations),
        })
    });
    costs.collect()
}

/// Cycles through the batches of one size.
struct Batches<'a> {
    /// The requests, followed by the first ones again, so that a batch may begin at any request.
    padded: &'a [Inputs],
    /// Number of requests.
    count: usize,
    size: usize,
    /// Index of the next batch's first request.
    next: usize,
}

impl<'a> Batches<'a> {
    fn next(&mut self) -> Option<&'a [Inputs]> {
        let batch = self.padded.get(self.next..self.next + self.size)?;
        self.next = (self.next + self.size) % self.count;
        Some(batch)
    }
}

/// Runs one batch size for a time. The first run warms up caches and does not count.
fn run_round(
    model: &mut dyn Model,
    batches: &mut Batches<'_>,
    length: Duration,
    meter: &mut Meter,
    seen: &mut BatchSamples,
) -> Result<(), MeasureError> {
    let mut run = || -> Result<f64, MeasureError> {
        let batch = batches.next().ok_or(MeasureError::TooFewRequests)?;
        let started = Instant::now();
        let results = model.run(batch);
        let took = started.elapsed().as_secs_f64();
        for result in results {
            result.map_err(MeasureError::Refused)?;
        }
        Ok(took)
    };
    run()?;
    let started = Instant::now();
    let mut touched = started;
    let reading = meter.begin();
    let mut runs = 0_u32;
    while runs == 0 || started.elapsed() < length {
        seen.latencies.push(run()?);
        runs += 1;
        if touched.elapsed() >= SAMPLED_EVERY {
            meter.touch();
            touched = Instant::now();
        }
    }
    let IntervalCost { joules, utilisation } = meter.end_busy(reading);
    seen.energies
        .extend(joules.map(|joules| joules / f64::from(runs)));
    seen.utilisations.extend(utilisation);
    Ok(())
}

/// Returns the median.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied()?;
    if values.len().is_multiple_of(2) {
        values.get(middle - 1).map(|lower| f64::midpoint(*lower, upper))
    } else {
        Some(upper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaskade_models::device::DeviceChoice;
    use kaskade_models::power::{PowerConfig, SourceKind};
    use kaskade_models::{ModelError, Outputs, Tensor};

    /// Computes for a while per request, and fails on an input called `bad`.
    struct Busy;

    impl Model for Busy {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let answer = |inputs: &Inputs| {
                let started = Instant::now();
                while started.elapsed() < Duration::from_micros(300) {
                    std::hint::spin_loop();
                }
                match inputs.iter().find(|input| input.name == "bad") {
                    Some(_) => Err(ModelError::Failed {
                        reason: "no".to_owned(),
                    }),
                    None => Ok(Vec::new()),
                }
            };
            batch.iter().map(answer).collect()
        }
    }

    fn options() -> CostOptions {
        CostOptions {
            batches: vec![1, 4, 16],
            rounds: 3,
            measure_for: Duration::from_millis(5),
        }
    }

    fn meter() -> Meter {
        let config = PowerConfig {
            sources: vec![SourceKind::Modelled],
            ..PowerConfig::default()
        };
        Meter::open(DeviceChoice::Cpu, &config).unwrap()
    }

    fn requests(name: &str) -> Vec<Inputs> {
        let request = |_| vec![Tensor::from_f32(name, &[1], &[0.0]).unwrap()];
        (0..3).map(request).collect()
    }

    #[test]
    fn larger_batches_take_longer_and_cost_more() {
        let mut steps = 0;
        let costs = measure(&mut Busy, &requests("x"), &options(), &mut meter(), || steps += 1).unwrap();
        assert_eq!(steps, options().steps());
        assert_eq!(
            costs.iter().map(|cost| cost.batch).collect::<Vec<_>>(),
            [1, 4, 16]
        );
        assert!(costs[0].latency_s >= 3e-4, "{costs:?}");
        assert!(costs.is_sorted_by(|a, b| a.latency_s < b.latency_s), "{costs:?}");
        assert!(costs.is_sorted_by(|a, b| a.energy_j < b.energy_j), "{costs:?}");
        assert!(
            costs
                .iter()
                .all(|cost| cost.utilisation.is_some_and(|share| share <= 1.0))
        );
    }

    /// Records the numbers of the samples that it runs.
    struct Noting(Vec<f32>);

    impl Model for Noting {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            self.0
                .extend(batch.iter().map(|inputs| inputs[0].to_f32().unwrap()[0]));
            batch.iter().map(|_| Ok(Vec::new())).collect()
        }
    }

    /// Regression: a model that takes a second was measured only on the second sample of the file.
    #[test]
    fn rounds_run_different_samples_from_all_over_the_set() {
        let requests: Vec<Inputs> = (0..100_u8)
            .map(|number| vec![Tensor::from_f32("x", &[1], &[f32::from(number)]).unwrap()])
            .collect();
        let options = CostOptions {
            batches: vec![1],
            rounds: 3,
            measure_for: Duration::ZERO,
        };
        let mut model = Noting(Vec::new());
        measure(&mut model, &requests, &options, &mut meter(), || ()).unwrap();
        let ran = &mut model.0;
        // Each round has one warm-up run and one measured run.
        assert_eq!(ran.len(), 6);
        assert!(ran.iter().any(|number| *number >= 50.0), "{ran:?}");
        ran.sort_by(f32::total_cmp);
        ran.dedup();
        assert_eq!(ran.len(), 6, "{ran:?}");
        // Batches larger than the set repeat samples.
        let mut model = Noting(Vec::new());
        let few = requests.get(..3).unwrap();
        let options = CostOptions {
            batches: vec![1, 8],
            ..options
        };
        measure(&mut model, few, &options, &mut meter(), || ()).unwrap();
        assert_eq!(model.0.len(), 3 * 2 * (1 + 8));
    }

    #[test]
    fn a_model_that_fails_is_not_measured() {
        let failed = measure(&mut Busy, &requests("bad"), &options(), &mut meter(), || ()).unwrap_err();
        assert!(failed.to_string().contains("at batch size 1"), "{failed:?}");
        assert!(measure(&mut Busy, &[], &options(), &mut meter(), || ()).is_err());
    }

    #[test]
    fn the_median_leaves_the_outlier_out() {
        assert_eq!(median(&mut [3.0, 1.0, 100.0]), Some(3.0));
        assert_eq!(median(&mut [4.0, 2.0]), Some(3.0));
        assert_eq!(median(&mut []), None);
    }
}
