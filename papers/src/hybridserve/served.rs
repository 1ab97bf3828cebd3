//! The results of a family on the servers, in each of its modes.

use anyhow::Context as _;
use kaskade_simulator::Report;

use super::field::{Constructed, Deployed, Field, Judged, Mode, joules};
use crate::parallel::in_parallel;

/// Load under which the energy of a deployment is measured, as a share of the load that it sustains.
const FULL: f64 = 0.8;

/// Load under which all latencies are measured, as a share of the load that the largest model alone sustains.
const EQUAL: f64 = 0.5;

/// A load with little queueing, as a share of the load that the largest model alone sustains: a twenty-fifth of the common load.
const QUIET: f64 = 0.02;

/// A family in all its modes.
#[derive(Debug, Clone)]
pub(super) struct Served {
    /// The family.
    pub(super) field: Field,
    /// The common load of all modes, requests/s.
    pub(super) equal_qps: f64,
    /// The results of each, in the order of [`Mode::ALL`].
    pub(super) reached: Vec<Reached>,
}

/// The results of one mode.
#[derive(Debug, Clone)]
pub(super) struct Reached {
    /// The mode.
    pub(super) mode: Mode,
    /// Cascade of the mode.
    pub(super) constructed: Constructed,
    /// Accuracy of the cascade on the second draw.
    pub(super) judged: Judged,
    /// Placement of the cascade on all servers.
    pub(super) deployed: Deployed,
    /// The highest load that it sustains, requests/s.
    pub(super) sustained_qps: f64,
    /// The simulation under most of that load.
    pub(super) full: Report,
    /// The simulation under the common load, on all servers.
    pub(super) equal: Report,
    /// The simulation under a twenty-fifth of the common load, with little queueing.
    pub(super) quiet: Report,
    /// The simulation under the common load on the fewest servers that carry it; the other servers host nothing.
    pub(super) few: Report,
    /// Number of servers of `few`.
    pub(super) few_servers: usize,
}

impl Reached {
    /// Joules per request under most of the highest load that it sustains.
    pub(super) fn full_j(&self) -> f64 {
        joules(&self.full)
    }

    /// Mean latency under the common load, seconds.
    pub(super) fn mean_s(&self) -> f64 {
        self.equal.latency.mean().unwrap_or(f64::NAN) / 1e6
    }

    /// 99.9 % latency under the common load, seconds.
    pub(super) fn tail_s(&self) -> f64 {
        tail_s(&self.equal)
    }

    /// 99.9 % latency under a twenty-fifth of the common load, seconds.
    pub(super) fn quiet_tail_s(&self) -> f64 {
        tail_s(&self.quiet)
    }

    /// The share of requests that a model answers, on the second draw.
    pub(super) fn answered(&self, model: &str) -> f64 {
        self.judged.answered(model)
    }

    /// Kernel time of a request in the largest batches that were profiled, seconds, over all models that it reaches.
    pub(super) fn work_s(&self) -> f64 {
        let models = self.deployed.placed.models.iter();
        let work = models.map(|model| {
            let batch = f64::from(model.curves.largest);
            model.reach * model.curves.kernel.of_batch(batch) / batch
        });
        work.sum()
    }

    /// The share of requests that reach a model.
    pub(super) fn reach(&self, model: &str) -> f64 {
        let mut models = self.deployed.placed.models.iter();
        let found = models.find(|placed| placed.variant == model);
        found.map_or(0.0, |model| model.reach)
    }
}

fn tail_s(report: &Report) -> f64 {
    let tail = report.latency.quantile(0.999);
    tail.map_or(f64::NAN, |us| us as f64 / 1e6)
}

impl Served {
    /// Constructs, places and simulates every mode of a family.
    ///
    /// # Errors
    /// When a cascade cannot be constructed, placed or simulated.
    pub(super) fn of(field: Field) -> anyhow::Result<Self> {
        let deployed = in_parallel(&Mode::ALL, |mode| {
            let constructed = field.construct(*mode)?;
            let deployed = field.place(&constructed.planned.plan)?;
            let sustained_qps = field.sustained_qps(&deployed.placed)?;
            Ok((*mode, constructed, deployed, sustained_qps))
        });
        let deployed = deployed.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let largest_qps = deployed.first().map_or(0.0, |(.., qps)| *qps);
        anyhow::ensure!(
            largest_qps > 0.0,
            "the largest model of {} sustains no load on the servers; simulate longer (`--seconds`)",
            field.family.name
        );
        let equal_qps = EQUAL * largest_qps;
        let reached = in_parallel(&deployed, |(mode, constructed, deployed, sustained_qps)| {
            let few = field.place_few(&constructed.planned.plan, equal_qps)?;
            Ok(Reached {
                mode: *mode,
                full: field.play(&deployed.placed, FULL * sustained_qps)?,
                equal: field.play(&deployed.placed, equal_qps)?,
                quiet: field.play(&deployed.placed, QUIET * largest_qps)?,
                few: field.play(&few.placed, equal_qps)?,
                few_servers: few.placed.used(),
                judged: field.judge(&deployed.placed.plan)?,
                constructed: constructed.clone(),
                deployed: deployed.clone(),
                sustained_qps: *sustained_qps,
            })
        });
        Ok(Self {
            reached: reached.into_iter().collect::<anyhow::Result<_>>()?,
            field,
            equal_qps,
        })
    }

    /// Returns the results of a mode.
    ///
    /// # Errors
    /// Never, as long as every mode was deployed.
    pub(super) fn mode(&self, mode: Mode) -> anyhow::Result<&Reached> {
        let mut reached = self.reached.iter();
        reached
            .find(|reached| reached.mode == mode)
            .with_context(|| format!("{} was not deployed", mode.name()))
    }

    /// The name of the family's largest model.
    pub(super) fn largest_model(&self) -> &str {
        let largest = self.field.family.models.last();
        largest.map_or("", |model| model.name.as_str())
    }
}
