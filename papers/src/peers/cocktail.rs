//! Cocktail+: a bagging ensemble whose replicas start and stop with the load (CascadeServe §6.2).
//!
//! Every request goes to all members, and the majority of their answers is the reply. Each replica has a device to itself. Once
//! per period the replicas of every member are set to what the highest load of the coming period needs, which the
//! improved system has beforehand; a new one has its device at once and answers after loading and warming up. So short
//! periods follow the load closely and load all the time, and long ones pay for their highest second throughout.

use serde::{Deserialize, Serialize};

use kaskade_planners::gears::{GearError, GearOptions, ModelSet, Models};
use kaskade_planners::pareto::{Place, pareto_front};
use kaskade_policy::plan::{
    Batching, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant, Replica, Sharing,
    Slo, Stage, Wiring,
};
use kaskade_policy::profile::Profile;
use kaskade_policy::vote::{Vote, majority};
use kaskade_simulator::{Change, ReplicaEvent};

/// Variants that vote.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ensemble {
    /// The members, by index in the profile.
    pub variants: Vec<usize>,
    /// Share of right majorities on the validation set.
    pub accuracy: f64,
    /// Seconds of device time per request in full batches, over all members.
    pub work_s: f64,
}

/// Scaling of replicas with the load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Autoscale {
    /// Time between two changes of the number of replicas, microseconds.
    pub period_us: u64,
    /// Time between getting a device and answering, microseconds.
    pub loading_us: u64,
    /// Planned utilisation of a replica at the highest load of a period, in (0, 1].
    pub utilisation: f64,
    /// When a replica's queue becomes a batch.
    pub min_queue: u32,
}

impl Default for Autoscale {
    fn default() -> Self {
        Self {
            period_us: 60_000_000,
            loading_us: 10_000_000,
            utilisation: 0.7,
            min_queue: 1,
        }
    }
}

/// A plan with the largest number of replicas needed at any time, and the times at which each replica runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CocktailPlan {
    /// The plan, validated. Its one gear has no shares: requests go to the replicas that run.
    pub plan: Plan,
    /// Replicas that do not run at the start.
    pub initially_down: Vec<String>,
    /// Starts and stops of replicas, by time.
    pub timeline: Vec<ReplicaEvent>,
    /// Mean number of devices in use over the trace; a device that loads a model is in use.
    pub mean_devices: f64,
    /// Highest number of devices in use at one time.
    pub max_devices: usize,
}

/// All ensembles of at most `max_members` members that no other dominates in accuracy and work, ascending in both.
///
/// # Errors
/// A [`GearError`] if the profile or an option is unusable.
pub fn ensembles(
    profile: &Profile,
    options: &GearOptions,
    max_members: usize,
) -> Result<Vec<Ensemble>, GearError> {
    let models = Models::checked(profile, options)?;
    let mut found = Vec::new();
    extend(profile, &models, max_members, &[], &mut found);
    Ok(pareto_front(found, |ensemble: &Ensemble| Place {
        cost: ensemble.work_s,
        gain: ensemble.accuracy,
    }))
}

fn extend(
    profile: &Profile,
    models: &Models,
    max_members: usize,
    members: &[usize],
    found: &mut Vec<Ensemble>,
) {
    if members.len() >= max_members {
        return;
    }
    let next = members.last().map_or(0, |last| last + 1);
    for variant in next..models.len() {
        let variants: Vec<usize> = members.iter().copied().chain([variant]).collect();
        found.push(Ensemble {
            accuracy: accuracy(profile, &variants),
            work_s: variants
                .iter()
                .map(|variant| models.batched_time_s(*variant))
                .sum(),
            variants: variants.clone(),
        });
        extend(profile, models, max_members, &variants, found);
    }
}

/// Share of the samples for which the winning answer is right.
fn accuracy(profile: &Profile, variants: &[usize]) -> f64 {
    let members: Vec<_> = variants
        .iter()
        .filter_map(|variant| profile.variants.get(*variant))
        .collect();
    let right = (0..profile.samples).filter(|sample| {
        let vote = |member: &&kaskade_policy::profile::VariantProfile| {
            Some(Vote {
                prediction: *member.validation.predictions.get(*sample)?,
                confidence: *member.validation.confidences.get(*sample)?,
            })
        };
        let votes: Vec<Vote> = members.iter().filter_map(vote).collect();
        let winner = majority(&votes).and_then(|place| members.get(place)?.validation.correct.get(*sample));
        winner.copied().unwrap_or(false)
    });
    right.count() as f64 / profile.samples as f64
}

/// The ensemble for the objective: the cheapest that is accurate enough, or the most accurate whose members each answer
/// alone within half the latency, since a request may wait for one batch before its own. Where no member is that fast, the
/// cheapest ensemble serves.
///
/// # Errors
/// A [`GearError`] if the profile or an option is unusable, or no ensemble is accurate enough.
pub fn choose(profile: &Profile, options: &GearOptions, max_members: usize) -> Result<Ensemble, GearError> {
    let all = ensembles(profile, options, max_members)?;
    let models = Models::from_profile(profile, options);
    let reached = all.last().map_or(0.0, |best| best.accuracy);
    let cheapest = all.first().cloned();
    let chosen = match options.slo {
        Slo::Accuracy { at_least } => all.into_iter().find(|ensemble| ensemble.accuracy >= at_least),
        Slo::Latency { p95_us } => {
            let fast = |member: &usize| 2e6 * models.run_time_s(*member) <= p95_us as f64;
            let found = all
                .into_iter()
                .rfind(|ensemble| ensemble.variants.iter().all(fast));
            found.or(cheapest)
        }
    };
    chosen.ok_or(GearError::Inaccurate {
        at_least: match options.slo {
            Slo::Accuracy { at_least } => at_least,
            Slo::Latency { .. } => 0.0,
        },
        reached,
        devices: options.devices.len(),
        violation: None,
    })
}

/// Plans an ensemble for a trace: `loads` are the requests of every second, and known beforehand.
///
/// # Errors
/// A [`GearError`] if an input is unusable.
pub fn plan_cocktail(
    profile: &Profile,
    options: &GearOptions,
    ensemble: &Ensemble,
    autoscale: &Autoscale,
    loads: &[f64],
) -> Result<CocktailPlan, GearError> {
    let models = Models::checked(profile, options)?;
    let mut schedule = Schedule::new(loads, *autoscale);
    let mut plan = bare(profile, options, ensemble, autoscale, &models);
    for model in members(ensemble) {
        let name = models.name(model);
        for index in 0..schedule.add(name, models.batched_time_s(model)) {
            plan.placement.push(Replica::whole(
                format!("{name}-{index}"),
                name,
                format!("w{}", plan.placement.len()),
                "cuda:0",
            ));
        }
    }
    plan.validate()?;
    schedule.timeline.sort_by_key(|event| event.at_us);
    Ok(CocktailPlan {
        plan,
        mean_devices: schedule.device_us / schedule.length_us(),
        max_devices: schedule.taken.iter().copied().max().unwrap_or(0),
        initially_down: schedule.initially_down,
        timeline: schedule.timeline,
    })
}

/// Plans an ensemble for one period while serving: as many replicas of every member as its highest load needs, on the devices
/// that there are, round robin. If a whole fleet is too small for that, every device hosts one replica of what it is given.
///
/// # Errors
/// A [`GearError`] if an input is unusable.
pub fn plan_period(
    profile: &Profile,
    options: &GearOptions,
    ensemble: &Ensemble,
    autoscale: &Autoscale,
) -> Result<Plan, GearError> {
    let models = Models::checked(profile, options)?;
    let mut plan = bare(profile, options, ensemble, autoscale, &models);
    let mut devices = options.devices.iter().cycle();
    for model in members(ensemble) {
        let name = models.name(model);
        let wanted = replicas(options.qps_max, models.batched_time_s(model), autoscale);
        for (index, spec) in (0..wanted.min(options.devices.len())).zip(&mut devices) {
            plan.placement.push(Replica::whole(
                format!("{name}-{index}"),
                name,
                &spec.worker,
                &spec.device,
            ));
        }
    }
    plan.validate()?;
    Ok(plan)
}

/// The members in the order of the profile, each once.
fn members(ensemble: &Ensemble) -> impl Iterator<Item = usize> {
    let members: ModelSet = ensemble.variants.iter().copied().collect();
    members.iter()
}

/// Replicas that carry this load, requests/s, as busy as planned; at least one.
fn replicas(qps: f64, seconds_each: f64, autoscale: &Autoscale) -> usize {
    let busy = autoscale.utilisation.clamp(0.01, 1.0);
    ((qps * seconds_each / busy).ceil() as usize).max(1)
}

/// The plan without its placement.
fn bare(
    profile: &Profile,
    options: &GearOptions,
    ensemble: &Ensemble,
    autoscale: &Autoscale,
    models: &Models,
) -> Plan {
    let variant = |model| PlannedVariant {
        name: models.name(model).to_owned(),
        calibration: profile.variants.get(model).map(|variant| variant.calibration),
    };
    Plan {
        version: PLAN_VERSION,
        app: profile.app.clone(),
        made_by: format!(
            "cocktail+: {} members, period {} s, loading {} s",
            ensemble.variants.len(),
            autoscale.period_us as f64 / 1e6,
            autoscale.loading_us as f64 / 1e6
        ),
        variants: members(ensemble).map(variant).collect(),
        placement: Vec::new(),
        sharing: Sharing::Exclusive,
        dropping: Dropping::None,
        slo: Some(options.slo),
        certificate: None,
        certified: None,
        gears: vec![gear(models, ensemble, autoscale)],
    }
}

fn gear(models: &Models, ensemble: &Ensemble, autoscale: &Autoscale) -> Gear {
    let stage = |model: &usize| {
        Stage::new(
            models.name(*model),
            models.name(*model),
            Exit::Reply,
            Batching {
                min_queue: autoscale.min_queue.clamp(1, models.max_batch(*model)),
                max_batch: models.max_batch(*model),
                ..Batching::default()
            },
        )
    };
    let mut edges = ensemble
        .variants
        .iter()
        .map(|model| Edge::to(models.name(*model)));
    Gear {
        name: "ensemble".to_owned(),
        load: LoadRange::ALL,
        expected: None,
        wiring: Wiring {
            entry: edges.next().unwrap_or_else(|| Edge::to("")),
            ensemble: edges.collect(),
            stages: ensemble.variants.iter().map(stage).collect(),
        },
    }
}

/// The replicas that are present over time, under construction.
struct Schedule {
    autoscale: Autoscale,
    /// Highest load of every period, requests/s.
    peaks: Vec<f64>,
    seconds: usize,
    initially_down: Vec<String>,
    timeline: Vec<ReplicaEvent>,
    /// Devices times microseconds.
    device_us: f64,
    /// Devices by period.
    taken: Vec<usize>,
}

impl Schedule {
    fn new(loads: &[f64], autoscale: Autoscale) -> Self {
        let per_period = (autoscale.period_us / 1_000_000).max(1) as usize;
        let peaks: Vec<f64> = loads
            .chunks(per_period)
            .map(|period| period.iter().copied().fold(0.0, f64::max))
            .collect();
        Self {
            autoscale: Autoscale {
                period_us: per_period as u64 * 1_000_000,
                ..autoscale
            },
            taken: vec![0; peaks.len()],
            peaks,
            seconds: loads.len(),
            initially_down: Vec::new(),
            timeline: Vec::new(),
            device_us: 0.0,
        }
    }

    fn length_us(&self) -> f64 {
        (self.seconds.max(1) as u64 * 1_000_000) as f64
    }

    /// Schedules the replicas of a member; gives how many there are at most.
    fn add(&mut self, name: &str, seconds_each: f64) -> usize {
        let needed = |peak: &f64| replicas(*peak, seconds_each, &self.autoscale);
        let counts: Vec<usize> = self.peaks.iter().map(needed).collect();
        let most = counts.iter().copied().max().unwrap_or(1);
        for (taken, count) in self.taken.iter_mut().zip(&counts) {
            *taken += count;
        }
        for index in 0..most {
            let wanted: Vec<bool> = counts.iter().map(|count| index < *count).collect();
            self.replica(&format!("{name}-{index}"), &wanted);
        }
        most
    }

    /// Schedules one replica, wanted in some periods.
    fn replica(&mut self, id: &str, wanted: &[bool]) {
        let end = self.seconds as u64 * 1_000_000;
        let period_us = self.autoscale.period_us;
        let event = |at_us, change| ReplicaEvent {
            at_us,
            replica: id.to_owned(),
            change,
        };
        // There is always one replica of every member, also for a trace without seconds.
        let mut here = wanted.first().copied().unwrap_or(id.ends_with("-0"));
        if !here {
            self.initially_down.push(id.to_owned());
        }
        let mut answers_from = 0;
        for (period, wanted) in wanted.iter().enumerate() {
            let begin = period as u64 * period_us;
            let length = period_us.min(end.saturating_sub(begin));
            if *wanted {
                self.device_us += length as f64;
            }
            if *wanted && !here {
                answers_from = begin + self.autoscale.loading_us;
                self.timeline.push(event(answers_from, Change::Starts));
            }
            if !*wanted && here {
                if begin <= answers_from && answers_from > 0 {
                    // Stopped before it was loaded.
                    self.timeline.pop();
                } else {
                    self.timeline.push(event(begin, Change::Stops));
                }
            }
            here = *wanted;
        }
    }
}

#[cfg(test)]
mod tests;
