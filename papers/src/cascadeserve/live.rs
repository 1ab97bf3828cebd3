//! Simulated against live (CascadeServe appendix C, Figure 13), and a live spike: the same plans on the same arrivals, once in
//! the simulator and once on real actors with real models in this process.

mod differences;
mod foreign;
mod noted;
mod served;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::charts::bars::{self, Bars};
use crate::parallel::compute_threads;
use crate::peers::gears::{Peer, plan_peer};
use anyhow::{Context as _, ensure};
use kaskade_actors::bus::BusConfig;
use kaskade_app::config::App;
use kaskade_app::data::Samples;
use kaskade_app::family::Family;
use kaskade_app::load::arrivals::{self, Arrivals};
use kaskade_app::load::generator::{self, Target};
use kaskade_app::load::record::{Figures, Record};
use kaskade_app::measure::Profiler;
use kaskade_app::measure::serving_overhead::RecordingTarget;
use kaskade_app::planning::{gears, initial};
use kaskade_app::report;
use kaskade_app::report::progress::say;
use kaskade_app::serving::{self, Client, Service};
use kaskade_models::Inputs;
use kaskade_planners::gears::{GearOptions, GearPlan, Simulated, plan_gears};
use kaskade_policy::plan::{Plan, Slo};
use kaskade_policy::profile::Profile;
use kaskade_policy::shifting::ShiftConfig;
use kaskade_simulator::trace::{ArrivalProcess, Spike, Trace, Zipf};
use kaskade_simulator::{SimConfig, Simulator};

use self::differences::Differences;
use self::foreign::Times;
use self::served::{Served, capacity};
use super::Args;
use crate::reproduction::{Claim, Reproduction};

/// Plans and traces of the comparison, as the paper has them.
const PLANS: usize = 15;

/// Approximate number of requests of a live run: with fewer, the 95th percentile is too noisy. Runs take as long as that takes, within
/// bounds, seconds.
const REQUESTS: f64 = 600.0;
const RUN_S: std::ops::RangeInclusive<usize> = 10..=40;
/// Requests that are sent before and not counted.
const WARM_UP: Duration = Duration::from_secs(1);

/// Most runs of one trace on one plan, of which the last one counts whatever disturbed it.
const TRIES: u32 = 20;

/// An app in this process, and its requests.
struct Bench {
    app: App,
    inputs: Vec<Inputs>,
    seed: u64,
    /// Share of the processor that other processes may take during a run.
    foreign: f64,
    /// How often each plan is served on each trace.
    runs: u32,
}

/// Runs both comparisons.
///
/// # Errors
/// When the app cannot be served or a plan not be made.
pub(super) fn run(app: &Path, profile: Option<Profile>, args: &Args) -> anyhow::Result<Reproduction> {
    // A core is left to actors, broker and clients: beside a GPU they would have them all.
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = NonZeroUsize::new(cores - 1).unwrap_or(NonZeroUsize::MIN);
    ensure!(
        compute_threads(threads),
        "models have computed in this process already; compare in a separate process"
    );
    let mut app = App::load(app)?;
    app.core_share = args.core_share.unwrap_or(app.core_share);
    let share = app.core_share.get();
    // A given profile is of whole cores; one that is measured here, as `kaskade profile` does, of the share.
    let profile = match profile {
        Some(given) => slowed(&given, share),
        None => Profiler::new(&app).run()?,
    };
    let bench = Bench::new(app, &profile, args)?;
    let mut found = Reproduction {
        system: "cascadeserve",
        ..Reproduction::default()
    };
    let alone = bench.as_served(&profile)?;
    let served = bench.as_served_together(&alone)?;
    found.assumptions.push(format!(
        "models compute on {threads} of {cores} cores, each on {share} of one; latencies of batches and messages as measured while serving together: {served}; other processes may take {} of the processor",
        args.foreign
    ));
    found.claims.extend(bench.spike(&served)?);
    let (claims, picture) = bench.compare(&served)?;
    found.claims.extend(claims);
    let file = args.out.join("simulated-against-live.svg");
    report::write_file(&file, &bars::svg(&picture)?)?;
    found.files.push(file);
    Ok(found)
}

impl Bench {
    fn new(app: App, profile: &Profile, args: &Args) -> anyhow::Result<Self> {
        ensure!(
            profile.app == app.name.as_str(),
            "the profile is of app `{}`, not of `{}`; give its own by `--profile`",
            profile.app,
            app.name
        );
        let set = app
            .data
            .validation
            .as_ref()
            .context("the app names no `data.validation` to ask from")?;
        let family = Family::from_app(&app);
        let smallest = family.members.first().context("the app has no variants")?;
        let inputs = Samples::read(set, &smallest.load(smallest.device)?)?.inputs;
        Ok(Self {
            app,
            inputs,
            seed: args.seed,
            foreign: args.foreign,
            runs: args.runs,
        })
    }

    fn bus(&self) -> BusConfig {
        BusConfig::new(self.app.name.as_str())
    }

    /// Serves the plan while `ask` sends requests; returns their outcomes.
    fn serve<T: Target>(
        &self,
        plan: &Plan,
        target: impl FnOnce(Client, Vec<Inputs>) -> T,
        ask: impl AsyncFnOnce(Arc<T>, Arc<Mutex<Record>>) -> Duration,
    ) -> anyhow::Result<(Arc<T>, Figures)> {
        let service = Service::builder(&self.app)
            .on_first_worker()
            .plan(plan.clone())
            .bus(self.bus())
            .start()?;
        let record = Arc::new(Mutex::new(Record::new(self.app.slo.duration())?));
        let runtime = serving::runtime()?;
        let budget = Duration::from_secs(30);
        let client = runtime
            .block_on(Client::connect_with(self.bus(), self.app.name.as_str()))?
            .budget(budget);
        let target = Arc::new(target(client.clone(), self.inputs.clone()));
        let length = runtime.block_on(ask(Arc::clone(&target), Arc::clone(&record)));
        runtime.block_on(client.close());
        service.stop();
        let figures = record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .figures(length);
        Ok((target, figures))
    }

    /// Replays a trace on real actors, and notes the replies.
    ///
    /// Waits until other processes leave the processor alone, and repeats a run that they disturbed.
    fn replay(&self, plan: &Plan, trace: &Trace) -> anyhow::Result<(Arc<RecordingTarget>, Figures)> {
        let mut tried = 0;
        loop {
            foreign::wait_for_quiet(self.foreign);
            let before = Times::now();
            let arrivals = Arrivals::from_trace(trace, arrivals::ArrivalProcess::Poisson, 1.0, self.seed);
            let found = self.serve(plan, RecordingTarget::new, async |target, record| {
                generator::open_loop(target, generator::spawn_pacer(arrivals), WARM_UP, record).await
            })?;
            tried += 1;
            let share = before
                .zip(Times::now())
                .map_or(0.0, |(before, now)| before.foreign_until(&now));
            if share <= self.foreign || tried == TRIES {
                return Ok(found);
            }
        }
    }

    /// Replays a trace on real actors.
    fn live(&self, plan: &Plan, trace: &Trace) -> anyhow::Result<Figures> {
        Ok(self.replay(plan, trace)?.1)
    }

    /// Replays it in the simulator; gives the 95th percentile, microseconds.
    fn simulated(&self, plan: &Plan, served: &Served, trace: &Trace) -> anyhow::Result<u64> {
        let profile = &served.profile;
        let hop = profile
            .hop
            .as_ref()
            .context("the time of a message was not measured")?;
        let config = SimConfig {
            seed: self.seed,
            entry_hop_us: 2 * hop.median_us(),
            hop_us: served.between_us,
            hop_quantiles: hop.quantiles,
            hop_by_rate: hop.by_rate.clone(),
            turnaround_us: profile.turnaround_us(),
            shift: Some(ShiftConfig::default()),
            ..SimConfig::default()
        };
        let simulator = Simulator::new(plan, profile, &config)?;
        let mut after = AfterWarmUp::default();
        simulator.run(trace.arrivals(ArrivalProcess::Poisson, self.seed), &mut after);
        after.latencies.p95().context("the simulation answered nothing")
    }

    /// The options of `kaskade plan gears`.
    fn options(&self, profile: &Profile, slo: Slo, qps_max: f64, ranges: u32) -> anyhow::Result<GearOptions> {
        let mut options = GearOptions {
            ranges,
            seed: self.seed,
            ..GearOptions::serving(profile, slo, qps_max, gears::devices(&self.app, 1 << 34)?)
        };
        gears::limit_batches(&mut options, &self.app);
        Ok(options)
    }

    /// Fifteen gear plans that differ in objective, load and planner.
    fn plans(&self, profile: &Profile) -> anyhow::Result<Vec<GearPlan>> {
        let largest = profile.variants.last().context("the profile has no variants")?;
        let alone_us = largest.costs.first().map_or(1e4, |cost| cost.latency_s * 1e6);
        let alone_us = alone_us + profile.hop.as_ref().map_or(0.0, |hop| 2.0 * hop.median_s * 1e6);
        let capacity = capacity(&largest.costs);
        let mut plans: Vec<GearPlan> = Vec::new();
        for (times, share) in [
            (6.0, 0.6),
            (12.0, 0.9),
            (8.0, 1.5),
            (16.0, 2.5),
            (12.0, 4.0),
            (20.0, 1.2),
        ] {
            let slo = Slo::Latency {
                p95_us: (alone_us * times) as u64,
            };
            let options = self.options(profile, slo, capacity * share, 4)?;
            for peer in [None, Some(Peer::NoCascade), Some(Peer::NoSwitching)] {
                let planned = match &peer {
                    None => plan_gears(profile, &options, |_| {}),
                    Some(peer) => plan_peer(profile, &options, peer, Simulated::new(profile, &options)),
                };
                // Not every planner has a plan for every objective.
                plans.extend(planned.ok().filter(|_| plans.len() < PLANS));
            }
        }
        ensure!(
            !plans.is_empty(),
            "no gear plan holds any of the objectives on this machine"
        );
        Ok(plans)
    }

    /// Every plan on every trace, simulated and live.
    fn compare(&self, served: &Served) -> anyhow::Result<([Claim; 2], Bars)> {
        let plans = self.plans(&served.profile)?;
        let (mut groups, mut all) = (Vec::new(), Differences::default());
        let (mut kept, mut promised) = (0, 0);
        for (number, planned) in (1..).zip(&plans) {
            let peak = peak(&planned.plan);
            let limit_ms = match planned.plan.slo {
                Some(Slo::Latency { p95_us }) => p95_us as f64 / 1e3,
                _ => f64::INFINITY,
            };
            let mut differences = Vec::new();
            for (name, trace) in traces(0.8 * peak, self.seed)? {
                let simulated = self.simulated(&planned.plan, served, &trace)? as f64 / 1e3;
                let mut runs = Vec::new();
                for _ in 0..self.runs {
                    let (noted, figures) = self.replay(&planned.plan, &trace)?;
                    let p95 = figures.latency_ms.p95.context("nothing was answered live")?;
                    say(&format!(
                        "plan {number} ({}), {name}, up to {:.0}/s: p95 {simulated:.2} ms simulated, {p95:.2} ms live, promised {limit_ms:.2} ms, {} errors; {}",
                        planned.plan.made_by,
                        0.8 * peak,
                        figures.errors.len(),
                        noted::summary(&noted),
                    ));
                    promised += 1;
                    kept += u32::from(p95 <= limit_ms && figures.errors.is_empty());
                    runs.push(p95);
                }
                differences.extend(all.add(simulated, &runs));
            }
            groups.push((number.to_string(), differences));
        }
        let middle = all.median().unwrap_or(f64::NAN);
        let difference = Claim {
            name: "simulated against live p95".to_owned(),
            paper: "15 gear plans on 3 traces; single bars, most within a few per cent".to_owned(),
            ours: format!(
                "{} plans on 3 traces: median difference {middle:.1} %, largest {:.0} %",
                plans.len(),
                all.largest()
            ),
            met: middle < 10.0,
            note: all.between_runs().map_or_else(String::new, |between| {
                format!(
                    "live is the median of {} runs; two runs of the same plan on the same arrivals differ by {between:.1} % (median)",
                    self.runs
                )
            }),
        };
        let keeping = Claim {
            name: "plans keep the p95 that they promise, live".to_owned(),
            paper: "holds it".to_owned(),
            ours: format!("{kept} of {promised} runs"),
            met: f64::from(kept) >= 0.9 * f64::from(promised),
            note: String::new(),
        };
        let picture = Bars {
            title: "p95, simulated against live".to_owned(),
            axis: "difference (%), by gear plan".to_owned(),
            names: ["even", "spike", "Zipf"].map(str::to_owned).to_vec(),
            groups,
        };
        Ok(([difference, keeping], picture))
    }

    /// A spike of ten times the load, replayed on the gear plan and on the largest variant alone.
    fn spike(&self, served: &Served) -> anyhow::Result<[Claim; 2]> {
        let profile = &served.profile;
        let largest = profile.variants.last().context("the profile has no variants")?;
        let base_qps = 0.3 * capacity(&largest.costs);
        let p95_us = self.app.slo.duration().as_micros() as u64;
        let options = self.options(profile, Slo::Latency { p95_us }, 10.0 * base_qps, 10)?;
        let geared = plan_gears(profile, &options, |_| {})?.plan;
        let trace = Spike {
            base_qps,
            peak_qps: 10.0 * base_qps,
            start_s: 5,
            length_s: 5,
        }
        .trace(15)?;
        let alone = initial::single(&self.app, &largest.name);
        let limit_ms = p95_us as f64 / 1e3;
        let simulated_ms = self.simulated(&geared, served, &trace)? as f64 / 1e3;
        let claim = |name: &str, figures: &Figures, wanted: bool, note: String| {
            let p95 = figures.latency_ms.p95.unwrap_or(f64::INFINITY);
            let held = p95 <= limit_ms && figures.errors.is_empty();
            Claim {
                name: format!(
                    "live spike, {base_qps:.0} to {:.0} requests/s: {name}",
                    10.0 * base_qps
                ),
                paper: if wanted {
                    "holds the objective"
                } else {
                    "breaks it"
                }
                .to_owned(),
                ours: format!(
                    "p95 {p95:.1} ms (objective {limit_ms:.0} ms), {} of {} answered",
                    figures.answered, figures.sent
                ),
                met: held == wanted,
                note,
            }
        };
        let with_gears = self.live(&geared, &trace)?;
        let static_largest = self.live(&alone, &trace)?;
        let note = format!("{} gears; {simulated_ms:.1} ms simulated", geared.gears.len());
        Ok([
            claim("gears", &with_gears, true, note),
            claim("the largest variant alone", &static_largest, false, String::new()),
        ])
    }
}

/// A profile whose models take but a share of a core.
fn slowed(profile: &Profile, share: f64) -> Profile {
    let mut slowed = profile.clone();
    let costs = slowed.variants.iter_mut().flat_map(|variant| &mut variant.costs);
    for cost in costs {
        cost.latency_s /= share;
    }
    slowed
}

/// The highest load that a plan is made for, requests per second.
fn peak(plan: &Plan) -> f64 {
    let top = plan.gears.last().and_then(|gear| gear.load.to_qps);
    top.unwrap_or(100.0)
}

/// An even load, a spike, and levels that jump about.
fn traces(peak_qps: f64, seed: u64) -> anyhow::Result<[(&'static str, Trace); 3]> {
    let run_s = ((REQUESTS / (0.6 * peak_qps)) as usize).clamp(*RUN_S.start(), *RUN_S.end());
    let spike = Spike {
        base_qps: peak_qps / 4.0,
        peak_qps,
        start_s: run_s / 2,
        length_s: run_s / 3,
    };
    let zipf = Zipf {
        peak_qps,
        levels: 5,
        exponent: 1.0,
        hold_s: 2,
    };
    Ok([
        ("even", Trace::constant(0.6 * peak_qps, run_s)?),
        ("spike", spike.trace(run_s)?),
        ("Zipf", zipf.trace(run_s, seed)?),
    ])
}

/// Latencies of the simulated requests that the live run counts too.
#[derive(Default)]
struct AfterWarmUp {
    latencies: kaskade_simulator::LatencyHistogram,
}

impl kaskade_simulator::Observer for AfterWarmUp {
    fn answered(&mut self, answered: &kaskade_simulator::Answered) {
        let sent_us = answered.at_us.saturating_sub(answered.latency_us);
        if u128::from(sent_us) >= WARM_UP.as_micros() {
            self.latencies.record(answered.latency_us);
        }
    }
}
