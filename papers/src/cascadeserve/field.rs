//! Contestants on one workload: each plans for a fleet and an objective, and is simulated on the same arrivals.

use crate::peers::cocktail::{Autoscale, Ensemble, ensembles, plan_cocktail};
use crate::peers::gears::{Peer, plan_peer};
use kaskade_planners::gears::{
    CascadeSearch, DeviceSpec, GearError, GearOptions, GearPlan, Prior, Simulated, plan_gears,
};
use kaskade_policy::plan::{Plan, Slo};
use kaskade_policy::profile::Profile;
use kaskade_policy::shifting::ShiftConfig;
use kaskade_simulator::trace::{ArrivalProcess, Trace};
use kaskade_simulator::{Observer, Report, SimConfig, Simulator};

/// Time of a message between stages, and between the client and the service there and back, microseconds: what was
/// measured of this project's own bus.
pub(super) const HOP_US: u64 = 100;
/// See [`HOP_US`].
pub(super) const ENTRY_HOP_US: u64 = 400;

/// Ranges of load that plans are made for.
pub(super) const RANGES: u32 = 10;

/// A workload, shared by all contestants.
#[derive(Debug, Clone)]
pub(super) struct Field {
    /// Measured or stated profile of the family.
    pub(super) profile: Profile,
    /// Memory of a device, bytes.
    pub(super) memory_bytes: u64,
    /// The load.
    pub(super) trace: Trace,
    /// Seed of the arrivals and of every search.
    pub(super) seed: u64,
}

/// The planning system.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Contestant {
    /// The gear planner.
    CascadeServe,
    /// A peer, or an ablation.
    Peer(Peer),
}

impl Contestant {
    /// Returns the contestant's name in tables and plots.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::CascadeServe => "CascadeServe",
            Self::Peer(Peer::DynBa { .. }) => "DynBa",
            Self::Peer(Peer::MsPlus) => "MS+",
            Self::Peer(Peer::NoSwitching) => "no switching",
            Self::Peer(Peer::NoCascade) => "no cascade",
        }
    }
}

/// The results of a contestant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reached {
    /// Devices, averaged over time.
    pub(super) devices: f64,
    /// 95th percentile of latency over the whole trace, microseconds.
    pub(super) p95_us: u64,
    /// Share of right answers over all requests.
    pub(super) accuracy: f64,
}

impl Reached {
    /// Whether it is as fast and as accurate as the objective. A trace has finitely many requests, so a thousandth of accuracy is tolerated.
    pub(super) fn holds(&self, p95_us: u64, accuracy: f64) -> bool {
        self.p95_us <= p95_us && self.accuracy + 1e-3 >= accuracy
    }
}

impl Field {
    /// The options for a fleet and an objective. The trace's own distribution of load is the prior, for every contestant: what
    /// is compared is accuracy over requests, so each range weighs as much as it has requests.
    pub(super) fn options(&self, devices: usize, slo: Slo) -> GearOptions {
        let qps_max = self.trace.statistics().peak_qps;
        let time = self.trace.load_distribution(RANGES as usize, qps_max);
        let weights = time
            .iter()
            .enumerate()
            .map(|(range, time)| time * (range as f64 + 0.5));
        GearOptions {
            ranges: RANGES,
            prior: Prior::Measured {
                weights: weights.collect(),
            },
            search: CascadeSearch {
                max_cascades: 32,
                ..CascadeSearch::default()
            },
            hop_us: HOP_US,
            seed: self.seed,
            ..GearOptions::new(slo, qps_max, DeviceSpec::fleet(devices, self.memory_bytes))
        }
    }

    /// Plans for a contestant.
    ///
    /// # Errors
    /// A [`GearError`] when it has no plan for this fleet and objective.
    pub(super) fn plan(
        &self,
        contestant: &Contestant,
        devices: usize,
        slo: Slo,
    ) -> Result<GearPlan, GearError> {
        let options = self.options(devices, slo);
        match contestant {
            Contestant::CascadeServe => plan_gears(&self.profile, &options, |_| {}),
            Contestant::Peer(peer) => plan_peer(
                &self.profile,
                &options,
                peer,
                Simulated::new(&self.profile, &options),
            ),
        }
    }

    /// Simulates a plan on the trace.
    ///
    /// # Errors
    /// When the plan cannot be simulated.
    pub(super) fn simulate(
        &self,
        plan: &Plan,
        config: SimConfig,
        observer: &mut impl Observer,
    ) -> anyhow::Result<Report> {
        let config = SimConfig {
            seed: self.seed,
            entry_hop_us: ENTRY_HOP_US,
            hop_us: HOP_US,
            shift: Some(ShiftConfig::default()),
            ..config
        };
        let simulator = Simulator::new(plan, &self.profile, &config)?;
        Ok(simulator.run(self.trace.arrivals(ArrivalProcess::Poisson, self.seed), observer))
    }

    /// Plans and simulates. `None` where there is no plan.
    ///
    /// # Errors
    /// When the plan cannot be simulated.
    pub(super) fn reach(
        &self,
        contestant: &Contestant,
        devices: usize,
        p95_us: u64,
    ) -> anyhow::Result<Option<Reached>> {
        let Ok(planned) = self.plan(contestant, devices, Slo::Latency { p95_us }) else {
            return Ok(None);
        };
        let report = self.simulate(&planned.plan, SimConfig::default(), &mut ())?;
        Ok(reached(&report, devices as f64))
    }

    /// The ensembles that Cocktail+ may choose from, and what each reaches with each period of autoscaling.
    ///
    /// # Errors
    /// When an ensemble cannot be planned or simulated.
    pub(super) fn cocktails(&self, devices: usize) -> anyhow::Result<Vec<Reached>> {
        const MAX_MEMBERS: usize = 3;
        const PERIODS_S: [u64; 2] = [10, 60];
        const UTILISATIONS: [f64; 2] = [0.6, 0.85];
        let loads = self.trace.rates();
        let options = self.options(devices, Slo::Latency { p95_us: 1_000_000 });
        let mut all = Vec::new();
        for ensemble in ensembles(&self.profile, &options, MAX_MEMBERS)? {
            for period_s in PERIODS_S {
                for utilisation in UTILISATIONS {
                    let autoscale = Autoscale {
                        period_us: period_s * 1_000_000,
                        utilisation,
                        ..Autoscale::default()
                    };
                    all.extend(self.cocktail(&options, &ensemble, &autoscale, &loads)?);
                }
            }
        }
        Ok(all)
    }

    fn cocktail(
        &self,
        options: &GearOptions,
        ensemble: &Ensemble,
        autoscale: &Autoscale,
        loads: &[f64],
    ) -> anyhow::Result<Option<Reached>> {
        let planned = plan_cocktail(&self.profile, options, ensemble, autoscale, loads)?;
        let config = SimConfig {
            timeline: planned.timeline,
            initially_down: planned.initially_down,
            ..SimConfig::default()
        };
        let report = self.simulate(&planned.plan, config, &mut ())?;
        Ok(reached(&report, planned.mean_devices))
    }
}

/// Returns the results of a simulation; `None` if it left requests unanswered.
fn reached(report: &Report, devices: f64) -> Option<Reached> {
    let complete = report.answered == report.requests;
    Some(Reached {
        devices,
        p95_us: report.latency.p95()?,
        accuracy: report.accuracy()?,
    })
    .filter(|_| complete)
}
