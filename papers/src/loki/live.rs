//! A live pipeline under a load that rises and falls, and the same in the simulator: real actors with real models in this process,
//! planned by the planner that runs beside the ingress.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kaskade_actors::bus::BusConfig;
use kaskade_actors::wire::InferReply;
use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::config::App;
use kaskade_app::config::pipeline::{AllocatorRule, Late, PipelineRule};
use kaskade_app::data::scenes::{Scenes, Score};
use kaskade_app::family::Family;
use kaskade_app::load::arrivals::{self, Arrivals};
use kaskade_app::load::drive::{self, Target};
use kaskade_app::load::record::{Outcome, Record};
use kaskade_app::measure::tree::{Measured, TreePlan};
use kaskade_app::planning::{allocator, initial};
use kaskade_app::report::progress::say;
use kaskade_app::report::{self, units};
use kaskade_app::serving::{self, Client, Service};
use kaskade_planners::allocate::{AllocateOptions, Allocator, Scaling};
use kaskade_planners::manager::Manager;
use kaskade_policy::plan::Plan;
use kaskade_simulator::trace::{Spacing, Trace};
use kaskade_simulator::{Answered, Controller, Look, Lost, Observer, SimConfig, Simulator, Sink};

use crate::reproduction::{Claim, Reproduction};

/// What the load falls to and rises to, of what the most accurate variants carry.
const LOADS: (f64, f64) = (0.2, 2.0);
/// Number of parts into which a run is divided for evaluation.
const PARTS: usize = 12;
/// How often the workers in use are counted.
const COUNTED_EVERY: Duration = Duration::from_millis(200);
/// From the client to the first queue and back, and from the end of a batch to the beginning of the next, as the digits' comparison
/// measured them on two cores: a thousandth of the objective.
const ENTRY_US: u64 = 320;
const TURNAROUND_US: u64 = 260;

/// A pipeline, measured and about to be served.
struct Live {
    app: App,
    rule: PipelineRule,
    measured: Measured,
    scenes: Scenes,
    trace: Trace,
    seed: u64,
}

/// Outcomes of a run, by parts of it.
struct Run {
    parts: Vec<Part>,
    /// Mean number of workers in use.
    workers: f64,
}

/// Outcomes of the requests that arrived in one part of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    requests: u64,
    violations: u64,
    /// Sum of the branches' accuracies, and their number: of a live run the two sides of F1.
    worth: f64,
    judged: f64,
    /// Workers in use, summed over the times they were counted.
    workers: f64,
    counted: f64,
}

impl Part {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.violations += other.violations;
        self.worth += other.worth;
        self.judged += other.judged;
        self.workers += other.workers;
        self.counted += other.counted;
    }

    fn accuracy(&self) -> f64 {
        self.worth / self.judged
    }

    fn violation_ratio(&self) -> f64 {
        self.violations as f64 / self.requests.max(1) as f64
    }
}

impl Run {
    fn of(parts: Vec<Part>) -> Self {
        let mut run = Self { parts, workers: 0.0 };
        let total = run.total();
        run.workers = total.workers / total.counted.max(1.0);
        run
    }

    fn total(&self) -> Part {
        let mut total = Part::default();
        for part in &self.parts {
            total.add(part);
        }
        total
    }
}

/// Serves the app under a load that rises and falls for `seconds`, once with rerouting and once with per-task dropping, and simulates the
/// same.
///
/// # Errors
/// When the app is no pipeline, cannot be served, or has no load that its most accurate variants carry.
pub(super) fn run(path: &Path, folder: &Path, seconds: u32, seed: u64) -> anyhow::Result<Reproduction> {
    let live = Live::prepare(path, folder, seconds as usize, seed)?;
    let mut found = Reproduction {
        system: "loki",
        ..Reproduction::default()
    };
    found.assumptions.push(format!(
        "{} on {} places, each {} of a core; measured before the run; asked are the scenes that it was measured on",
        live.app.name,
        allocator::slots(&live.app)?.len(),
        live.app.core_share.get()
    ));
    let rerouting = live.both(Late::Rerouting)?;
    let per_task = live.both(Late::PerTask)?;
    found.claims.extend(claims(&rerouting, &per_task));
    let file = folder.join("live-pipeline.svg");
    report::write_file(&file, &panels::svg(&live.picture(&rerouting))?)?;
    found.files.push(file);
    Ok(found)
}

impl Live {
    fn prepare(path: &Path, folder: &Path, seconds: usize, seed: u64) -> anyhow::Result<Self> {
        let mut app = App::load(path)?;
        let rule = app
            .pipeline
            .clone()
            .context("the app is no pipeline; name one that has `[pipeline]`")?;
        let set = app
            .data
            .validation
            .clone()
            .context("the app names no `data.validation` to ask from")?;
        let plan = TreePlan {
            app: &app,
            rule: &rule,
            rounds: 3,
            stretch: Duration::from_millis(150),
            quiet: false,
        };
        let measured = plan.measure(&set)?;
        let file = folder.join("pipeline.json");
        report::write_file(&file, &serde_json::to_string_pretty(&measured.pipeline)?)?;
        if let Some(rule) = &mut app.pipeline {
            rule.profile = Some(file);
        }
        let rule = app.pipeline.clone().unwrap_or(rule);
        let root = rule.root().and_then(|task| task.variants.first());
        let members = Family::of(&app).members;
        let root = members
            .iter()
            .find(|member| root.is_some_and(|root| root.as_str() == member.name));
        let root = root.context("the root task has no variants")?;
        let scenes = Scenes::read(&set, &root.load(root.device)?.model.signature())?;
        let slots = allocator::slots(&app)?.len();
        let carried = carried(&measured, u32::try_from(slots).unwrap_or(u32::MAX))?;
        say(&format!(
            "the most accurate variants carry {carried:.0} requests/s on {slots} places"
        ));
        let (low, high) = LOADS;
        let rate = |second: usize| {
            let way = (second as f64 + 0.5) / seconds as f64;
            carried * (low + (high - low) * (std::f64::consts::PI * way).sin().powi(2))
        };
        let trace = Trace::per_second((0..seconds).map(rate).collect())?;
        Ok(Self {
            app,
            rule,
            measured,
            scenes,
            trace,
            seed,
        })
    }

    /// Live and simulated.
    fn both(&self, dropping: Late) -> anyhow::Result<(Run, Run)> {
        let allocator = AllocatorRule {
            dropping,
            ..self.rule.planner.unwrap_or_default()
        };
        let simulated = self.simulated(&allocator)?;
        let live = self.served(&allocator)?;
        for (name, run) in [("simulated", &simulated), ("live", &live)] {
            let total = run.total();
            say(&format!(
                "{name}, {dropping:?}: accuracy {}, violations {}, {:.2} workers",
                units::percent(total.accuracy()),
                units::percent(total.violation_ratio()),
                run.workers
            ));
        }
        Ok((live, simulated))
    }

    fn part_of(&self, after_s: f64) -> usize {
        let way = after_s / self.trace.seconds().max(1) as f64;
        ((way * PARTS as f64) as usize).min(PARTS - 1)
    }

    fn simulated(&self, allocator: &AllocatorRule) -> anyhow::Result<Run> {
        let mut manager = allocator::manager(&self.app, &self.rule, allocator)?;
        let plan = manager.begin(allocator.demand.floor_qps, 0)?;
        let pipeline = &self.measured.pipeline;
        let profile = pipeline.profile();
        let config = SimConfig {
            seed: self.seed,
            entry_hop_us: ENTRY_US,
            hop_us: pipeline.hop_us,
            turnaround_us: TURNAROUND_US,
            // A client does not wait longer than its objective: what cannot be answered by then is not begun.
            budget_us: Some(pipeline.slo_us),
            slo_us: Some(pipeline.slo_us),
            look_us: allocator.demand.step_us,
            copies: self.measured.copies.clone(),
            path_accuracies: pipeline.path_accuracies(),
            ..SimConfig::default()
        };
        let simulator = Simulator::new(&plan, &profile, &config)?;
        let mut seen = Seen {
            live: self,
            parts: vec![Part::default(); PARTS],
        };
        let arrivals = self.trace.arrivals(Spacing::Poisson, self.seed);
        let mut counting = Counting {
            used: plan.placement.len(),
            manager,
            counted: Vec::new(),
        };
        let report = simulator.run_controlled(arrivals, &mut seen, &profile, &mut counting);
        ensure!(
            report.refused_plans.is_empty(),
            "the simulator refused a plan: {:?}",
            report.refused_plans
        );
        let mut parts = seen.parts;
        for (at_us, used) in counting.counted {
            if let Some(part) = parts.get_mut(self.part_of(at_us as f64 / 1e6)) {
                part.workers += used as f64;
                part.counted += 1.0;
            }
        }
        Ok(Run::of(parts))
    }

    fn served(&self, allocator: &AllocatorRule) -> anyhow::Result<Run> {
        let mut app = self.app.clone();
        if let Some(rule) = &mut app.pipeline {
            rule.planner = Some(*allocator);
        }
        let bus = BusConfig::new(app.name.as_str());
        let plan = initial::of(&app)?;
        let service = Service::builder(&app)
            .first_worker()
            .plan(plan)
            .bus(bus.clone())
            .start()?;
        let runtime = serving::runtime()?;
        let client = runtime.block_on(Client::open(app.name.as_str(), bus, app.slo.duration()))?;
        let watch = Arc::new(Watch {
            client: client.clone(),
            scenes: self.scenes.clone(),
            slo: app.slo.duration(),
            begun: Instant::now(),
            seconds: self.trace.seconds(),
            parts: Mutex::new(vec![Part::default(); PARTS]),
        });
        let record = Arc::new(Mutex::new(Record::new(app.slo.duration())?));
        let arrivals = Arrivals::of_trace(&self.trace, arrivals::Spacing::Poisson, 1.0, self.seed);
        let book = service.node().plans().clone();
        let counting = {
            let watch = Arc::clone(&watch);
            runtime.spawn(async move {
                let mut ticks = tokio::time::interval(COUNTED_EVERY);
                loop {
                    ticks.tick().await;
                    let used = book
                        .current()
                        .map_or(0, |(adopted, _)| adopted.plan.placement.len());
                    watch.note(watch.begun.elapsed(), |part| {
                        part.workers += used as f64;
                        part.counted += 1.0;
                    });
                }
            })
        };
        runtime.block_on(drive::open_loop(
            Arc::clone(&watch),
            drive::paced(arrivals),
            Duration::ZERO,
            record,
        ));
        counting.abort();
        runtime.block_on(client.leave());
        service.stop();
        let parts = watch.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Run::of(parts))
    }

    fn picture(&self, (live, simulated): &(Run, Run)) -> Panels {
        let seconds = self.trace.seconds() as f64;
        let series = |name: &str, run: &Run, value: fn(&Part) -> f64| {
            let points = run.parts.iter().enumerate();
            Series {
                name: name.to_owned(),
                points: points
                    .map(|(at, part)| ((at as f64 + 0.5) * seconds / PARTS as f64, value(part)))
                    .collect(),
                shape: Shape::Marked,
            }
        };
        let row = |axis: &str, value: fn(&Part) -> f64| Panel {
            axis: axis.to_owned(),
            series: vec![series("live", live, value), series("simulated", simulated, value)],
            ..Panel::default()
        };
        let demand = self.trace.rates().into_iter().enumerate();
        let demand = Panel {
            axis: "requests/s".to_owned(),
            series: vec![Series {
                name: "demand".to_owned(),
                points: demand.map(|(second, rate)| (second as f64, rate)).collect(),
                shape: Shape::Line,
            }],
            ..Panel::default()
        };
        Panels {
            title: "a live pipeline under a load that rises and falls".to_owned(),
            axis: "time (s)".to_owned(),
            rows: vec![
                demand,
                row("workers", |part| part.workers / part.counted.max(1.0)),
                row("accuracy (F1, %)", |part| part.accuracy() * 100.0),
                row("violations (%)", |part| part.violation_ratio() * 100.0),
            ],
        }
    }
}

/// The claims that the live runs confirm.
fn claims(rerouting: &(Run, Run), per_task: &(Run, Run)) -> Vec<Claim> {
    let (live, simulated) = rerouting;
    let workers = |part: Option<&Part>| part.map_or(f64::NAN, |part| part.workers / part.counted.max(1.0));
    let (off_peak, peak) = (workers(live.parts.first()), workers(live.parts.get(PARTS / 2)));
    let (lost, lost_per_task) = (
        live.total().violation_ratio(),
        per_task.0.total().violation_ratio(),
    );
    let concordance = concordance(&live.parts, &simulated.parts);
    let mut claims = vec![
        Claim {
            name: "live: workers off-peak".to_owned(),
            paper: "fewer than at the peak".to_owned(),
            ours: format!("{off_peak:.1} off-peak, {peak:.1} at the peak"),
            met: off_peak < peak,
            note: String::new(),
        },
        Claim {
            name: "live: accuracy falls and rises as planned".to_owned(),
            paper: "as planned".to_owned(),
            ours: format!(
                "{:.0} % of the parts of the run in the simulated order",
                concordance * 100.0
            ),
            met: concordance >= 0.9,
            note: format!("pairs of {PARTS} parts whose simulated accuracies differ by a point or more"),
        },
        Claim {
            name: "live: violations, rerouting against per-task dropping".to_owned(),
            paper: "fewer".to_owned(),
            ours: format!(
                "{} against {}",
                units::percent(lost),
                units::percent(lost_per_task)
            ),
            met: lost < lost_per_task,
            note: format!(
                "simulated: {} against {}",
                units::percent(simulated.total().violation_ratio()),
                units::percent(per_task.1.total().violation_ratio())
            ),
        },
    ];
    claims.extend(difference(live, simulated));
    claims
}

/// How far the simulator is from the live run (§6.4).
fn difference(live: &Run, simulated: &Run) -> [Claim; 3] {
    let (l, s) = (live.total(), simulated.total());
    let claim =
        |name: &str, paper: &str, live: String, simulated: String, difference: f64, unit: &str| Claim {
            name: format!("simulated against live: {name}"),
            paper: paper.to_owned(),
            ours: format!("{difference:.1} {unit} ({simulated} simulated, {live} live)"),
            met: difference <= 5.0,
            note: "wanted: 5 at most".to_owned(),
        };
    let points = |one: f64, other: f64| (one - other).abs() * 100.0;
    [
        claim(
            "accuracy",
            "1.2 %",
            units::percent(l.accuracy()),
            units::percent(s.accuracy()),
            points(l.accuracy(), s.accuracy()) / l.accuracy(),
            "%",
        ),
        claim(
            "violations",
            "1.8 %",
            units::percent(l.violation_ratio()),
            units::percent(s.violation_ratio()),
            points(l.violation_ratio(), s.violation_ratio()),
            "points",
        ),
        claim(
            "workers",
            "1.5 %",
            format!("{:.2}", live.workers),
            format!("{:.2}", simulated.workers),
            points(live.workers, simulated.workers) / live.workers,
            "%",
        ),
    ]
}

/// Share of the pairs of parts, of those whose simulated accuracies differ by a point or more, that lie in the same order live.
fn concordance(live: &[Part], simulated: &[Part]) -> f64 {
    let parts: Vec<(f64, f64)> = live
        .iter()
        .zip(simulated)
        .map(|(live, simulated)| (live.accuracy(), simulated.accuracy()))
        .collect();
    let (mut same, mut all) = (0_u32, 0_u32);
    for (at, one) in parts.iter().enumerate() {
        for other in parts.iter().skip(at + 1) {
            let planned = one.1 - other.1;
            if planned.abs() >= 0.01 {
                all += 1;
                same += u32::from((one.0 - other.0) * planned > 0.0);
            }
        }
    }
    f64::from(same) / f64::from(all.max(1))
}

/// The highest demand that the most accurate variants carry, requests/s.
fn carried(measured: &Measured, workers: u32) -> anyhow::Result<f64> {
    let allocator = Allocator::new(measured.pipeline.clone(), AllocateOptions::default())?;
    let fits = |qps: f64| {
        allocator
            .allocate(qps, workers)
            .is_ok_and(|allocation| allocation.scaling == Scaling::Hardware)
    };
    ensure!(
        fits(0.1),
        "not even a request in ten seconds is carried by the most accurate variants"
    );
    let (mut low, mut high) = (0.1, 0.2);
    while fits(high) {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..20 {
        let middle = f64::midpoint(low, high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Sends scenes, and notes the outcome of each.
struct Watch {
    client: Client,
    scenes: Scenes,
    slo: Duration,
    begun: Instant,
    seconds: usize,
    parts: Mutex<Vec<Part>>,
}

impl Watch {
    fn note(&self, after: Duration, change: impl FnOnce(&mut Part)) {
        let way = after.as_secs_f64() / self.seconds.max(1) as f64;
        let at = ((way * PARTS as f64) as usize).min(PARTS - 1);
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get_mut(at) {
            change(part);
        }
    }

    /// How much of a reply is right.
    fn judge(&self, scene: usize, reply: &InferReply) -> Score {
        let told = self.scenes.told(reply).unwrap_or_default();
        let mut sum = Score::default();
        for score in self.scenes.judge(scene, &told) {
            sum.add(&score);
        }
        sum
    }
}

impl Target for Watch {
    async fn ask(&self, number: u64) -> Outcome {
        let scene = (number % self.scenes.len().max(1) as u64) as usize;
        let inputs = self.scenes.inputs.get(scene).cloned().unwrap_or_default();
        let came = self.begun.elapsed();
        let reply = self.client.ask(inputs).await;
        let late = self.begun.elapsed().saturating_sub(came) > self.slo;
        match reply {
            Ok(reply) => {
                let lost = reply.branches.iter().any(|branch| branch.error.is_some());
                let score = self.judge(scene, &reply);
                self.note(came, |part| {
                    part.requests += 1;
                    part.violations += u64::from(late || lost);
                    part.worth += 2.0 * score.right as f64;
                    part.judged += (score.told + score.there) as f64;
                });
                Outcome::Answered {
                    variant: reply.variant,
                }
            }
            Err(fault) => {
                self.note(came, |part| {
                    part.requests += 1;
                    part.violations += 1;
                });
                fault.into()
            }
        }
    }
}

/// A manager, and the number of workers that its plans use, by period.
struct Counting {
    manager: Manager,
    used: usize,
    counted: Vec<(u64, usize)>,
}

impl Controller for Counting {
    fn look(&mut self, look: &Look<'_>) -> Option<Plan> {
        let plan = self.manager.look(look);
        self.used = plan.as_ref().map_or(self.used, |plan| plan.placement.len());
        self.counted.push((look.at_us, self.used));
        plan
    }
}

/// Notes the outcome of each simulated request.
struct Seen<'a> {
    live: &'a Live,
    parts: Vec<Part>,
}

impl Seen<'_> {
    fn part(&mut self, at_us: u64) -> Option<&mut Part> {
        let at = self.live.part_of(at_us as f64 / 1e6);
        self.parts.get_mut(at)
    }
}

impl Observer for Seen<'_> {
    fn answered(&mut self, answered: &Answered) {
        if let Some(part) = self.part(answered.at_us.saturating_sub(answered.latency_us)) {
            part.requests += 1;
            part.violations += u64::from(answered.late);
        }
    }

    fn lost(&mut self, lost: &Lost) {
        if let Some(part) = self.part(lost.arrived_us) {
            part.requests += 1;
            part.violations += 1;
        }
    }

    fn sink(&mut self, sink: &Sink<'_>) {
        if let (Some(accuracy), Some(part)) = (
            sink.accuracy,
            self.part(sink.at_us.saturating_sub(sink.latency_us)),
        ) {
            part.worth += accuracy;
            part.judged += 1.0;
        }
    }
}
