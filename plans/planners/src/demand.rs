//! Inputs of the allocator, learned while serving (Loki §4.2): the demand, the time of the next plan, the multiplicative factors, and
//! the run times of batches.

mod factors;
mod run_times;

use std::collections::VecDeque;

use kaskade_policy::demand::DemandTrend;
use serde::Serialize;

pub use factors::{FactorEstimator, FactorOptions};
pub use run_times::{RunTimeEstimator, RunTimeOptions};

/// Options for estimating the demand and triggering planning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DemandOptions {
    /// Length of one entry of the history, microseconds.
    pub step_us: u64,
    /// Centre of mass of the moving average, in steps: the last step weighs `1 / (1 + com)`. 1.6 in the published artefact.
    pub com: f64,
    /// Steps that are averaged over. 20 in the published artefact.
    pub window: usize,
    /// Lower bound of the estimated demand, requests/s, so that the first request finds a worker.
    pub min_rate: f64,
    /// Period of planning, microseconds. 10 s in the paper.
    pub period_us: u64,
    /// Relative change of the demand since the last plan that triggers planning at once. The paper gives no value.
    pub change: f64,
    /// Minimum time between two plans, microseconds, so that noise does not make workers change variants repeatedly.
    pub min_interval_us: u64,
    /// How far ahead a rise of the demand is continued, microseconds: about the time from planning to loaded models. 0 plans for the moving
    /// average alone, as in the paper, and routes for it.
    pub forecast_us: u64,
}

impl DemandOptions {
    /// The paper's: the moving average alone.
    pub const PAPER: Self = Self {
        step_us: 1_000_000,
        com: 1.6,
        window: 20,
        min_rate: 1.0,
        period_us: 10_000_000,
        change: 0.25,
        min_interval_us: 2_000_000,
        forecast_us: 0,
    };
}

impl Default for DemandOptions {
    fn default() -> Self {
        Self {
            forecast_us: 2_000_000,
            ..Self::PAPER
        }
    }
}

/// Why it is time to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanReason {
    /// There is no plan yet.
    First,
    /// The period is over.
    Period,
    /// The demand changed significantly.
    Change,
}

/// Estimates the demand and decides when to plan for it.
#[derive(Debug, Clone)]
pub struct DemandEstimator {
    options: DemandOptions,
    /// Requests per complete step, the latest last.
    steps: VecDeque<f64>,
    /// Start of the incomplete step, and the arrivals in it.
    step: u64,
    arrived: f64,
    /// The newest time, microseconds.
    seen: u64,
    /// When was planned last, microseconds, and for how many requests/s.
    planned: Option<(u64, f64)>,
}

impl DemandEstimator {
    /// Creates an estimator without a history that starts at `now` (microseconds).
    pub fn new(options: DemandOptions, now: u64) -> Self {
        Self {
            options,
            steps: VecDeque::new(),
            step: now,
            arrived: 0.0,
            seen: now,
            planned: None,
        }
    }

    /// Notes `arrivals` since the last call, at `now` (microseconds). They count evenly over the time since then, for the steps that it
    /// touches.
    pub fn observe(&mut self, arrivals: u64, now: u64) {
        let length = self.options.step_us.max(1);
        let from = self.seen.max(self.step);
        let rate = arrivals as f64 / now.saturating_sub(from).max(1) as f64;
        let begun = self.step;
        self.complete(now);
        if now <= from || self.step == begun {
            self.arrived += arrivals as f64;
            return;
        }
        // The complete steps, the latest first; the earliest that is touched had begun before.
        let mut end = self.step;
        for requests in self.steps.iter_mut().rev() {
            let start = end.saturating_sub(length);
            *requests += rate * end.saturating_sub(start.max(from)) as f64;
            if start <= from {
                break;
            }
            end = start;
        }
        self.arrived += rate * now.saturating_sub(self.step) as f64;
    }

    fn complete(&mut self, now: u64) {
        self.seen = self.seen.max(now);
        let length = self.options.step_us.max(1);
        let mut over = now.saturating_sub(self.step) / length;
        self.step += over * length;
        // After a long silence the window is empty; its steps are not counted one by one.
        over = over.min(self.options.window as u64 + 1);
        for _ in 0..over {
            self.steps.push_back(std::mem::take(&mut self.arrived));
        }
        while self.steps.len() > self.options.window.max(1) {
            self.steps.pop_front();
        }
    }

    /// The demand to allocate for, requests/s: the moving average, or its trend continued where it rises faster than chance explains. The
    /// floor where nothing is known.
    pub(crate) fn estimate_qps(&self) -> f64 {
        let average = self.average_qps();
        if self.options.forecast_us == 0 {
            return average;
        }
        average.max(self.trend(average).trend(self.options.forecast_us) / self.seconds())
    }

    /// The demand to route for, requests/s: at least the estimate, and what arrives at present where the average does not explain it.
    pub(crate) fn present_qps(&self) -> f64 {
        let (average, estimate) = (self.average_qps(), self.estimate_qps());
        if self.options.forecast_us == 0 {
            return estimate;
        }
        estimate.max(self.trend(average).present() / self.seconds())
    }

    fn trend(&self, average_qps: f64) -> DemandTrend {
        DemandTrend {
            steps: self.steps.iter().copied().collect(),
            step_us: self.options.step_us.max(1),
            average: average_qps * self.seconds(),
            arrived: self.arrived,
            into_us: self.seen.saturating_sub(self.step),
        }
    }

    fn seconds(&self) -> f64 {
        self.options.step_us.max(1) as f64 / 1e6
    }

    /// The exponentially weighted moving average over the window, requests/s.
    fn average_qps(&self) -> f64 {
        let keep = self.options.com / (1.0 + self.options.com);
        let (mut sum, mut weights, mut weight) = (0.0, 0.0, 1.0);
        for requests in self.steps.iter().rev() {
            sum += weight * requests;
            weights += weight;
            weight *= keep;
        }
        let mean = if weights > 0.0 {
            sum / weights / self.seconds()
        } else {
            0.0
        };
        mean.max(self.options.min_rate)
    }

    /// Whether to plan at `now` (microseconds), and why.
    pub fn due(&mut self, now: u64) -> Option<PlanReason> {
        self.complete(now);
        let Some((at, planned)) = self.planned else {
            return (!self.steps.is_empty()).then_some(PlanReason::First);
        };
        let since = now.saturating_sub(at);
        if since >= self.options.period_us {
            return Some(PlanReason::Period);
        }
        let changed = (self.estimate_qps() - planned).abs() > self.options.change * planned;
        (changed && self.has_settled(now)).then_some(PlanReason::Change)
    }

    /// Whether it was not planned so lately that noise would make workers change variants all the time.
    pub(crate) fn has_settled(&self, now: u64) -> bool {
        let settled = |at: u64| now.saturating_sub(at) >= self.options.min_interval_us;
        self.planned.is_none_or(|(at, _)| settled(at))
    }

    /// Whether it was not planned in the last half of the minimum time: what has no capacity at all is planned for that soon.
    pub(crate) fn can_replan_now(&self, now: u64) -> bool {
        self.planned
            .is_none_or(|(at, _)| now.saturating_sub(at) >= self.options.min_interval_us / 2)
    }

    /// Records that planning was done for this many requests/s at `now` (microseconds), whether or not it made another plan: a demand that
    /// cannot be planned for now is tried again when planning is due.
    pub fn planned(&mut self, qps: f64, now: u64) {
        self.planned = Some((now, qps));
    }
}

#[cfg(test)]
mod tests;
