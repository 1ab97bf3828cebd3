//! Run times of the batches of a replica, by size.

use super::config::SimError;
use kaskade_policy::linear_fit;
use kaskade_policy::profile::{BatchCost, LatencyQuantiles, VariantProfile};

/// Batch sizes whose times are precomputed; larger ones are rare and computed on demand.
const PREPARED: u32 = 4096;

/// Run times and energy of the batches of one variant, or of one partition of it.
#[derive(Debug, Clone)]
pub(super) struct RunTimes {
    costs: Vec<BatchCost>,
    parts: u32,
    /// Costs by batch size, from 0.
    prepared: Vec<Cost>,
}

/// Cost of one batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// Latency, microseconds, at least 1.
    pub(super) run_us: u64,
    /// Variation of the latency, if it was measured.
    pub(super) quantiles: Option<LatencyQuantiles>,
    /// Joules, NaN where unknown.
    pub(super) energy_j: f64,
    /// Share of the device that it keeps busy, in (0, 1]; 1 where unknown.
    pub(super) kernel: f64,
}

impl RunTimes {
    /// Prepares the costs of batches up to `largest`. A partition takes its part of the whole model's time: partitions are cut to be even.
    pub(super) fn new(
        profiled: &VariantProfile,
        parts: u32,
        largest: u32,
        with_energy: bool,
    ) -> Result<Self, SimError> {
        let mut times = Self {
            costs: profiled.costs.clone(),
            parts,
            prepared: Vec::new(),
        };
        if !with_energy {
            for cost in &mut times.costs {
                cost.energy_j = None;
            }
        }
        times.prepared.push(Cost::default());
        for batch in 1..=largest.clamp(1, PREPARED) {
            let cost = times.estimate(batch).ok_or_else(|| SimError::NoLatency {
                variant: profiled.name.clone(),
                batch,
            })?;
            times.prepared.push(cost);
        }
        Ok(times)
    }

    pub(super) fn of(&self, batch: usize) -> Cost {
        if let Some(cost) = self.prepared.get(batch) {
            return *cost;
        }
        let batch = u32::try_from(batch).unwrap_or(u32::MAX);
        self.estimate(batch).unwrap_or_default()
    }

    fn estimate(&self, batch: u32) -> Option<Cost> {
        let parts = f64::from(self.parts);
        let latency_s = linear_fit::batch_latency_s(&self.costs, batch)? / parts;
        let energy_j =
            linear_fit::batch_energy_j(&self.costs, batch).map_or(f64::NAN, |joules| joules / parts);
        Some(Cost {
            run_us: ((latency_s * 1e6).round() as u64).max(1),
            quantiles: linear_fit::batch_quantiles(&self.costs, batch),
            energy_j,
            kernel: linear_fit::batch_utilisation(&self.costs, batch).unwrap_or(1.0),
        })
    }
}
