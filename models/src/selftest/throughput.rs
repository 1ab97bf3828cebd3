//! Measures latency, throughput, memory and energy of BERT and ViT by batch size.
//!
//! Times [`Model::run`], from requests in host memory to logits in host memory, as in serving.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::options::{SelftestExtent, SelftestOptions};
use super::section::{Section, guarded};
use super::shapes::{BERT_BASE, BERT_SMALL, BERT_TINY, Shape, VIT_BASE, VIT_TINY};
use crate::device::memory::{of_process, reset_peak};
use crate::device::{Device, DeviceChoice};
use crate::power::PowerMeter;
use crate::precision::WeightType;
use crate::runtime::model::{Inputs, Model, Outputs};
use crate::runtime::usage::USAGE;

/// Maximum predicted duration of a run, in budgets; longer runs are skipped.
const BUDGET_MULTIPLE: u32 = 10;
const MAX_RUNS: usize = 10_000;
/// Interval of meter readings, short enough for sampled power.
const TICK: Duration = Duration::from_millis(100);

/// Results of the measurements.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThroughputReport {
    /// Results per network, input size and batch size.
    pub points: Vec<Point>,
}

impl ThroughputReport {
    /// Returns whether all runs gave finite logits. Skipped runs do not count.
    pub fn answered(&self) -> bool {
        self.points.iter().all(|point| match &point.measured {
            Section::Done(measured) => measured.finite,
            Section::Failed(_) => false,
            Section::Skipped(_) => true,
        })
    }
}

/// Result for one network, input size and batch size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Network and input size.
    #[serde(flatten)]
    pub shape: Shape,
    /// Requests per batch.
    pub batch: usize,
    /// Measurement on this device.
    pub measured: Section<Measured>,
}

/// Measurement of a batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// Number of timed batches.
    pub runs: usize,
    /// Total duration of the timed batches, seconds.
    pub window_s: f64,
    /// Median latency of a batch, seconds.
    pub median_s: f64,
    /// Throughput over the total duration, requests per second.
    pub items_per_s: f64,
    /// Energy per request, joules; `None` if unknown.
    pub joules_per_item: Option<f64>,
    /// Memory, bytes: on a CPU the process's maximum during the run; on a GPU the memory that burn has reserved at the
    /// end.
    pub peak_memory_bytes: Option<u64>,
    /// Whether every logit of the last batch is finite.
    pub finite: bool,
}

pub(super) fn measure_all(
    options: &SelftestOptions,
    device: &Device,
    began: Instant,
    mut meter: Option<&mut PowerMeter>,
    progress: &mut dyn FnMut(&str),
) -> ThroughputReport {
    let mut points = Vec::new();
    let plan = plan(options).into_iter();
    for (shape, batches) in plan.filter(|(shape, _)| options.times(shape.network.name)) {
        let batches = options.batches(&batches);
        let bench = Bench {
            shape,
            device,
            on_processor: options.device == DeviceChoice::Cpu,
            budget: options.budget,
            dtype: options.dtype,
            left: options.left(began),
        };
        let rows = guarded(|| bench.by_batch(&batches, meter.as_deref_mut(), progress));
        match rows {
            Section::Done(rows) => points.extend(rows),
            Section::Failed(reason) | Section::Skipped(reason) => {
                points.extend(
                    batches
                        .iter()
                        .map(|batch| point(shape, *batch, Section::Failed(reason.clone()))),
                );
            }
        }
        device.release_memory();
    }
    ThroughputReport { points }
}

fn plan(options: &SelftestOptions) -> Vec<(Shape, Vec<usize>)> {
    let batches: &[usize] = match (options.extent, options.device) {
        (SelftestExtent::Quick, _) => {
            return vec![(BERT_TINY.at(64), vec![1, 4]), (VIT_TINY.at(224), vec![1])];
        }
        (SelftestExtent::Standard, DeviceChoice::Cpu) => &[1, 8, 32],
        (SelftestExtent::Standard, DeviceChoice::Cuda(_)) | (SelftestExtent::Full, _) => {
            &[1, 2, 4, 8, 16, 32, 64]
        }
    };
    let berts = [BERT_TINY, BERT_SMALL, BERT_BASE];
    let texts = berts
        .into_iter()
        .flat_map(|network| [network.at(64), network.at(128)]);
    let images = [VIT_TINY.at(224), VIT_BASE.at(224)];
    texts
        .chain(images)
        .map(|shape| (shape, batches.to_vec()))
        .collect()
}

#[cfg(test)]
pub(super) fn networks(options: &SelftestOptions) -> Vec<&'static str> {
    plan(options)
        .iter()
        .map(|(shape, _)| shape.network.name)
        .collect()
}

struct Bench<'a> {
    shape: Shape,
    device: &'a Device,
    on_processor: bool,
    budget: Duration,
    dtype: WeightType,
    /// Time left for this and all other shapes.
    left: Option<Duration>,
}

impl Bench<'_> {
    /// Measures batch sizes in ascending order, so that a small one predicts whether a large one takes too long.
    fn by_batch(
        &self,
        batches: &[usize],
        mut meter: Option<&mut PowerMeter>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<Point>, String> {
        let (shape, started) = (self.shape, Instant::now());
        let out_of_time = || self.left.is_some_and(|left| started.elapsed() >= left);
        if out_of_time() {
            return Ok(batches
                .iter()
                .map(|batch| out_of_time_at(shape, *batch))
                .collect());
        }
        progress(&format!("loading {shape}"));
        let model = shape.load(self.device, self.dtype);
        let mut model = model.map_err(|error| error.to_string())?;
        let mut per_item = None;
        let mut points = Vec::new();
        for batch in batches.iter().copied() {
            if out_of_time() {
                points.push(out_of_time_at(shape, batch));
                continue;
            }
            if let Some(reason) = self.too_slow(per_item, batch) {
                points.push(point(shape, batch, Section::Skipped(reason)));
                continue;
            }
            progress(&format!("timing {shape}, batch {batch}"));
            let measured = guarded(|| {
                let requests = shape.requests(batch).map_err(|error| error.to_string())?;
                self.measure(model.as_mut(), &requests, meter.as_deref_mut())
            });
            if let Section::Done(measured) = &measured {
                per_item = Some(measured.median_s / batch as f64);
            }
            points.push(point(shape, batch, measured));
        }
        Ok(points)
    }

    /// Returns the reason to skip a batch, predicted from the time per request at a smaller batch size.
    fn too_slow(&self, per_item: Option<f64>, batch: usize) -> Option<String> {
        let expected = per_item? * batch as f64;
        let limit = (self.budget * BUDGET_MULTIPLE).as_secs_f64();
        (expected > limit).then(|| {
            format!("one batch would take about {expected:.0} s, more than its limit of {limit:.0} s")
        })
    }

    fn measure(
        &self,
        model: &mut dyn Model,
        requests: &[Inputs],
        mut meter: Option<&mut PowerMeter>,
    ) -> Result<Measured, String> {
        let peak_is_fresh = self.on_processor && reset_peak();
        self.warm_up(model, requests)?;
        let joules_before = meter.as_deref_mut().and_then(|meter| meter.sample().joules_total);
        let started = Instant::now();
        let mut last_tick = started;
        let mut seconds = Vec::new();
        let mut answers = Vec::new();
        while seconds.is_empty() || (started.elapsed() < self.budget && seconds.len() < MAX_RUNS) {
            let begun = Instant::now();
            answers = model.run(requests);
            seconds.push(begun.elapsed().as_secs_f64());
            if last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                meter.as_deref_mut().map(PowerMeter::sample);
            }
        }
        let window_s = started.elapsed().as_secs_f64();
        let joules_after = meter.and_then(|meter| {
            meter.add_device_busy(window_s);
            meter.sample().joules_total
        });
        let items = (seconds.len() * requests.len()) as f64;
        let joules = joules_before
            .zip(joules_after)
            .map(|(before, after)| after - before);
        Ok(Measured {
            runs: seconds.len(),
            window_s,
            median_s: median(&mut seconds).ok_or("nothing was timed")?,
            items_per_s: items / window_s,
            joules_per_item: joules.map(|joules| joules / items),
            peak_memory_bytes: if self.on_processor {
                of_process().peak.filter(|_| peak_is_fresh)
            } else {
                self.device.reserved_bytes()
            },
            finite: all_finite(answers)?,
        })
    }

    /// Warms up a model: on a GPU the first batch compiles and tunes kernels, the second may still do so, the third
    /// runs as timed. On a CPU one batch is enough, and takes long for a large network.
    fn warm_up(&self, model: &mut dyn Model, requests: &[Inputs]) -> Result<(), String> {
        let rounds = if self.on_processor { 1 } else { 3 };
        for _ in 0..rounds {
            all_finite(model.run(requests))?;
        }
        Ok(())
    }
}

fn point(shape: Shape, batch: usize, measured: Section<Measured>) -> Point {
    Point {
        shape,
        batch,
        measured,
    }
}

fn out_of_time_at(shape: Shape, batch: usize) -> Point {
    point(
        shape,
        batch,
        Section::Skipped("the suite's time limit was reached".into()),
    )
}

/// Returns whether all logits are finite.
fn all_finite(answers: Vec<Result<Outputs, crate::ModelError>>) -> Result<bool, String> {
    let mut finite = true;
    for answer in answers {
        let outputs = answer.map_err(|error| error.to_string())?;
        for output in outputs.iter().filter(|output| output.name != USAGE) {
            finite &= output
                .to_f32()
                .map_err(|error| error.to_string())?
                .iter()
                .all(|value| value.is_finite());
        }
    }
    Ok(finite)
}

/// Returns the median; for an even number of values, the upper of the two middle ones.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_grows_with_the_device() {
        let plan_of = |extent, device| {
            plan(&SelftestOptions {
                device,
                extent,
                ..SelftestOptions::default()
            })
        };
        let batches = |extent, device| {
            plan_of(extent, device)
                .iter()
                .map(|(_, batches)| batches.len())
                .sum::<usize>()
        };
        assert_eq!(batches(SelftestExtent::Quick, DeviceChoice::Cuda(0)), 3);
        assert_eq!(batches(SelftestExtent::Standard, DeviceChoice::Cpu), 8 * 3);
        assert_eq!(batches(SelftestExtent::Standard, DeviceChoice::Cuda(0)), 8 * 7);
        assert_eq!(batches(SelftestExtent::Full, DeviceChoice::Cpu), 8 * 7);
        for (shape, batches) in plan_of(SelftestExtent::Full, DeviceChoice::Cpu) {
            assert!(batches.is_sorted(), "{shape}");
        }
    }

    #[test]
    fn a_batch_that_would_take_too_long_is_skipped_with_a_reason() {
        let bench = Bench {
            shape: BERT_TINY.at(16),
            device: &Device::Cpu,
            on_processor: true,
            dtype: WeightType::F32,
            budget: Duration::from_nanos(1),
            left: None,
        };
        let points = bench.by_batch(&[1, 2], None, &mut |_| ()).unwrap();
        let first = points[0].measured.done().unwrap();
        assert_eq!((first.runs, first.joules_per_item), (1, None));
        let Section::Skipped(reason) = &points[1].measured else {
            panic!("{points:?}")
        };
        assert!(reason.contains("would take"), "{reason}");
    }

    #[test]
    fn the_time_limit_skips_shapes_without_failing() {
        let options = SelftestOptions {
            extent: SelftestExtent::Full,
            limit: Some(Duration::ZERO),
            ..SelftestOptions::default()
        };
        let report = measure_all(&options, &Device::Cpu, Instant::now(), None, &mut |_| ());
        assert_eq!(report.points.len(), 8 * 7);
        assert!(report.answered());
        for point in report.points {
            assert!(matches!(point.measured, Section::Skipped(reason) if reason.contains("time limit")));
        }
    }

    #[test]
    fn medians_are_of_the_sorted_values() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(4.0));
        assert_eq!(median(&mut []), None);
    }
}
