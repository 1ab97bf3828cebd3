//! A family on the paper's servers: a cascade is constructed, placed and simulated.

use std::collections::BTreeMap;

use anyhow::Context as _;
use kaskade_planners::cascade::{CascadeOptions, CascadePlan, Objective, plan_cascade};
use kaskade_planners::gears::DeviceSpec;
use kaskade_planners::placement::{
    Channel, Channels, Fleet, Placement, PlacementObjective, PlacementOptions, Route, plan_placement,
};
use kaskade_planners::thresholds::NonInferiorityTest;
use kaskade_policy::energy::EnergyModel;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use kaskade_simulator::trace::{ArrivalProcess, Trace};
use kaskade_simulator::{IdleDevices, Power, Report, SimConfig, Simulator};
use kaskade_stated::families::StatedFamily;

use super::took::Took;

/// The paper's cluster: servers with one GPU each (§VI).
pub(super) const SERVERS: usize = 12;

/// How many times a sustained load is halved for.
const HALVINGS: u32 = 10;

/// A load is sustained if the last answer comes no later after the last request than this share of the whole run.
const DRAIN: f64 = 0.05;

/// How busy a load may keep a deployment that is made for it.
const UTILISATION: f64 = 0.7;

/// Mode in which a family is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The largest model alone, the paper's baseline.
    Largest,
    /// Accuracy-preserving.
    Ap,
    /// Energy-optimising.
    Eo,
}

impl Mode {
    /// All modes.
    pub(super) const ALL: [Self; 3] = [Self::Largest, Self::Ap, Self::Eo];

    /// Returns the mode's name in tables and plots.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Largest => "largest only",
            Self::Ap => "HybridServe (AP)",
            Self::Eo => "HybridServe (EO)",
        }
    }

    fn objective(self) -> Objective {
        match self {
            Self::Largest => Objective::Largest,
            Self::Ap => Objective::Ap,
            Self::Eo => Objective::Eo,
        }
    }
}

/// A family, and how long loads last.
#[derive(Debug, Clone)]
pub(super) struct Field {
    /// The family, every figure stated.
    pub(super) family: StatedFamily,
    /// The profile of its figures: cascades are chosen and placed by it.
    pub(super) profile: Profile,
    /// A second draw of the models' answers: chosen cascades are judged and simulated on it.
    pub(super) judged: Profile,
    /// Duration of a load, seconds.
    pub(super) seconds: usize,
    /// Seed of arrivals and searches.
    pub(super) seed: u64,
}

/// A cascade as constructed, and how long that took.
#[derive(Debug, Clone)]
pub(super) struct Constructed {
    /// The cascade that the planner found.
    pub(super) planned: CascadePlan,
    /// Time of the construction.
    pub(super) took: Took,
}

/// A cascade on samples that it was not chosen on.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    /// Share of right answers.
    pub(super) accuracy: f64,
    /// Accuracy of the largest model alone, on the same samples.
    pub(super) largest_accuracy: f64,
    /// Number of samples.
    samples: usize,
    /// Number of samples that each model answers.
    answered: BTreeMap<String, u64>,
}

impl Judged {
    /// Points of accuracy that the cascade lost against the largest model; negative if it gained some.
    pub(super) fn lost_points(&self) -> f64 {
        100.0 * (self.largest_accuracy - self.accuracy)
    }

    /// The share of the samples that a model answers.
    pub(super) fn answered(&self, model: &str) -> f64 {
        let answered = self.answered.get(model).copied().unwrap_or(0);
        answered as f64 / self.samples.max(1) as f64
    }

    /// Standard error of an accuracy on this many samples, in points.
    pub(super) fn error_points(&self) -> f64 {
        let variance = self.accuracy * (1.0 - self.accuracy);
        100.0 * (variance / self.samples.max(1) as f64).sqrt()
    }
}

/// A cascade as placed, and how long that took.
#[derive(Debug, Clone)]
pub(super) struct Deployed {
    /// The placement.
    pub(super) placed: Placement,
    /// Time of the placement.
    pub(super) took: Took,
}

impl Field {
    /// Creates the field of a stated family.
    pub(super) fn new(family: StatedFamily, seconds: u32, seed: u64) -> Self {
        Self {
            profile: family.profile(),
            judged: family.second_draw(),
            family,
            seconds: seconds as usize,
            seed,
        }
    }

    /// The planner's options, with the paper's rule for AP: as accurate on the validation set, without a safety margin against overfitting.
    pub(super) fn cascade_options(&self, objective: Objective) -> CascadeOptions {
        CascadeOptions {
            objective,
            seed: self.seed,
            safety_margin: NonInferiorityTest::None,
            ..CascadeOptions::default()
        }
    }

    /// Constructs the cascade of a mode (Algorithms 1 and 2).
    ///
    /// # Errors
    /// When the profile cannot be planned from.
    pub(super) fn construct(&self, mode: Mode) -> anyhow::Result<Constructed> {
        let options = self.cascade_options(mode.objective());
        let (planned, took) = Took::by(|| plan_cascade(&self.profile, &options));
        Ok(Constructed {
            planned: planned?,
            took,
        })
    }

    /// Returns the options of placements: the family's own sizes, on the paper's servers.
    pub(super) fn placement_options(&self, goal: PlacementObjective) -> PlacementOptions {
        let devices = DeviceSpec::fleet(SERVERS, self.family.device.memory_bytes);
        PlacementOptions {
            request_bytes: self.family.request_bytes,
            hidden_bytes: self.family.hidden_bytes(),
            layers: self.family.layers(),
            seed: self.seed,
            ..PlacementOptions::new(devices, goal)
        }
    }

    /// Places a cascade for as much load as the servers carry (Algorithm 3).
    ///
    /// # Errors
    /// When it cannot be placed.
    pub(super) fn place(&self, cascade: &Plan) -> anyhow::Result<Deployed> {
        self.placed(cascade, &self.placement_options(PlacementObjective::Most))
    }

    /// Places a cascade for this load, on as few servers as carry it without being busier than [`UTILISATION`].
    ///
    /// # Errors
    /// When it cannot be placed.
    pub(super) fn place_few(&self, cascade: &Plan, qps: f64) -> anyhow::Result<Deployed> {
        let options = PlacementOptions {
            fleet: Fleet::Fewest,
            utilisation: UTILISATION,
            ..self.placement_options(PlacementObjective::Carry { qps })
        };
        self.placed(cascade, &options)
    }

    fn placed(&self, cascade: &Plan, options: &PlacementOptions) -> anyhow::Result<Deployed> {
        let (placed, took) = Took::by(|| plan_placement(&self.profile, cascade, options));
        let placed =
            placed.with_context(|| format!("the family {} on {SERVERS} servers", self.family.name))?;
        Ok(Deployed { placed, took })
    }

    /// Answers every sample of the second draw once, one after the other.
    ///
    /// # Errors
    /// When the plan cannot be simulated.
    pub(super) fn judge(&self, plan: &Plan) -> anyhow::Result<Judged> {
        /// Between two requests, so that none waits.
        const APART_US: u64 = 1_000_000_000;
        let simulator = Simulator::new(plan, &self.judged, &SimConfig::default())?;
        let report = simulator.run(
            (0..self.judged.samples as u64).map(|sample| sample * APART_US),
            &mut (),
        );
        let largest = self
            .judged
            .variants
            .last()
            .map(|variant| &variant.validation.correct);
        let right = largest.map_or(0, |correct| correct.iter().filter(|right| **right).count());
        Ok(Judged {
            accuracy: report.accuracy().unwrap_or(f64::NAN),
            largest_accuracy: right as f64 / self.judged.samples.max(1) as f64,
            samples: self.judged.samples,
            answered: report
                .variants
                .into_iter()
                .map(|variant| (variant.name, variant.answered))
                .collect(),
        })
    }

    /// Simulates a placement under an even load of Poisson arrivals.
    ///
    /// # Errors
    /// When the plan cannot be simulated.
    pub(super) fn play(&self, placed: &Placement, qps: f64) -> anyhow::Result<Report> {
        let device = &self.family.device;
        let request_s = network_s(self.family.request_bytes);
        let config = SimConfig {
            seed: self.seed,
            entry_hop_us: (2e6 * request_s) as u64,
            hop_us: (1e6 * self.hop_s(placed)) as u64,
            contention: true,
            power: Some(Power::Modelled(EnergyModel {
                idle_watts: device.idle_watts,
                active_watts_per_core: device.active_watts,
            })),
            spare: Some(IdleDevices {
                devices: u32::try_from(SERVERS - placed.used().min(SERVERS))?,
                watts: device.spare_watts,
            }),
            ..SimConfig::default()
        };
        let simulator = Simulator::new(&placed.plan, &self.judged, &config)?;
        let trace = Trace::constant(qps, self.seconds)?;
        Ok(simulator.run(trace.arrivals(ArrivalProcess::Poisson, self.seed), &mut ()))
    }

    /// The simulator's hops all take equally long: as long as the largest thing that this placement sends takes over the network.
    fn hop_s(&self, placed: &Placement) -> f64 {
        let hidden = self.family.hidden_bytes();
        let cut = placed.models.iter().filter(|model| model.partitions > 1);
        let largest = cut.filter_map(|model| hidden.get(&model.variant).copied());
        network_s(largest.fold(self.family.request_bytes, f64::max))
    }

    /// The most load that a placement sustains in simulation, requests/s.
    ///
    /// # Errors
    /// When the plan cannot be simulated.
    pub(super) fn sustained_qps(&self, placed: &Placement) -> anyhow::Result<f64> {
        let (mut low, mut high) = (0.0, 1.3 * placed.qps);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            let report = self.play(placed, middle)?;
            if report.duration_us as f64 / 1e6 <= self.seconds as f64 * (1.0 + DRAIN) {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

/// Seconds of a message over the network, as stated.
pub(super) fn network_s(bytes: f64) -> f64 {
    match Channels::stated().of(Route::Network) {
        Channel::Given {
            latency_s,
            bytes_per_s,
        } => latency_s + bytes / bytes_per_s,
        Channel::Measured { .. } => f64::NAN,
    }
}

/// Joules of a report per request of it, those of idle and spare devices included.
pub(super) fn joules(report: &Report) -> f64 {
    report.energy_j.unwrap_or(f64::NAN) / report.requests.max(1) as f64
}

/// Models that a request runs on, on average.
pub(super) fn hops(report: &Report, placed: &Placement) -> f64 {
    let runs = |name: &str| {
        let found = report.variants.iter().find(|variant| variant.name == name);
        found.map_or(0, |variant| variant.runs)
    };
    let models = placed.models.iter();
    // A model that is cut runs a request once in each of its partitions.
    let asked = models.map(|model| runs(&model.variant) as f64 / f64::from(model.partitions));
    asked.sum::<f64>() / report.requests.max(1) as f64
}
