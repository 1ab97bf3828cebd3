//! Live runs: a cascade of many models with and without skip connections (§IV-C), and replicas that share a
//! device, within the bound on its utilisation and beyond it (eq. 4; [`crowded`]).

mod crowded;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade_actors::bus::BusConfig;
use kaskade_app::config::App;
use kaskade_app::data::Samples;
use kaskade_app::family::Family;
use kaskade_app::load::arrivals::{ArrivalProcess, Arrivals};
use kaskade_app::load::generator;
use kaskade_app::load::record::{Figures, Record};
use kaskade_app::load::requests::{RequestSender, RequestSet};
use kaskade_app::measure::meter::Meter;
use kaskade_app::planning::{self, initial};
use kaskade_app::report::progress::say;
use kaskade_app::report::units;
use kaskade_app::serving::{self, Client, Service};
use kaskade_planners::cascade::Objective;
use kaskade_planners::thresholds::NonInferiorityTest;
use kaskade_policy::plan::{Band, Edge, Exit, Plan, Target};
use kaskade_policy::profile::{Profile, VariantProfile};

use crate::parallel::compute_threads;
use crate::reproduction::{Claim, Reproduction};

/// Requests of the warm-up, before a run is recorded.
const WARM_UP: Duration = Duration::from_secs(1);

/// Time budget of a request, longer than any wait in a queue.
const BUDGET: Duration = Duration::from_mins(1);

/// Requests per second of the cascades, as a share of what the largest variant alone carries.
const EQUAL: f64 = 0.5;

/// How often sampled energy sources are read.
const TICK: Duration = Duration::from_millis(100);

/// An app that is served in this process.
struct Bench {
    app: App,
    family: Family,
    profile: Profile,
    samples: Samples,
    length: Duration,
    seed: u64,
}

/// The results of a run.
struct Served {
    figures: Figures,
    /// Models that a request used.
    hops: f64,
    accuracy: f64,
    joules: Option<f64>,
}

/// Runs both.
///
/// # Errors
/// When the app or its profile cannot be read, or nothing can be served.
pub(super) fn run(app: &Path, length: Duration, seed: u64, found: &mut Reproduction) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // Each replica computes on its own thread: the cores that they use together are measured.
    ensure!(
        compute_threads(NonZeroUsize::MIN),
        "models have computed in this process already; compare in a separate process"
    );
    let bench = Bench::new(app, length, seed)?;
    found.assumptions.push(format!(
        "live: {cores} cores for models, actors, broker and clients; each model computes on one thread; {} s a run; energy {}",
        length.as_secs(),
        bench.profile.energy_source
    ));
    found.claims.push(bench.skips()?);
    found.claims.push(bench.colocated(cores as f64)?);
    Ok(())
}

impl Bench {
    fn new(file: &Path, length: Duration, seed: u64) -> anyhow::Result<Self> {
        let app = App::load(file)?;
        ensure!(
            app.pipeline.is_none(),
            "`{}` is a pipeline, and this measures a cascade of one task; `kaskade-papers loki --live` takes pipelines",
            app.name
        );
        let named_profile = file.with_file_name(format!("{}.profile.json", app.name));
        let named = if named_profile.exists() {
            named_profile
        } else {
            file.with_file_name("profile.json")
        };
        let text = std::fs::read_to_string(&named).with_context(|| {
            format!(
                "{} cannot be read; make it: kaskade profile --app {} --out {}",
                named.display(),
                file.display(),
                named.display()
            )
        })?;
        let profile = Profile::from_json(&text).with_context(|| named.display().to_string())?;
        ensure!(
            profile.app == app.name.as_str(),
            "{} is of app `{}`, not of `{}`",
            named.display(),
            profile.app,
            app.name
        );
        let set = app
            .data
            .test
            .as_ref()
            .or(app.data.validation.as_ref())
            .context("the app names no labelled data to ask from")?;
        let family = Family::from_app(&app);
        let smallest = family.members.first().context("the app has no variants")?;
        let samples = Samples::read(set, &smallest.load(smallest.device)?)?;
        Ok(Self {
            app,
            family,
            profile,
            samples,
            length,
            seed,
        })
    }

    /// Serves a plan under an even open-loop load, and takes the figures of the process.
    fn serve(&self, family: &Family, plan: &Plan, qps: f64) -> anyhow::Result<Served> {
        let bus = BusConfig::new(self.app.name.as_str());
        let service = Service::builder(&self.app)
            .family(family.clone())
            .on_first_worker()
            .plan(plan.clone())
            .bus(bus.clone())
            .start()?;
        let served = serving::runtime()?.block_on(self.ask(bus, qps));
        service.stop();
        served
    }

    async fn ask(&self, bus: BusConfig, qps: f64) -> anyhow::Result<Served> {
        let client = Client::connect_with(bus, self.app.name.as_str())
            .await?
            .budget(BUDGET);
        let target = Arc::new(RequestSender::new(
            client.clone(),
            RequestSet::Samples(self.samples.clone()),
        ));
        let record = Arc::new(Mutex::new(Record::new(self.app.slo.duration())?));
        let arrivals = Arrivals::generated(ArrivalProcess::Poisson, qps, WARM_UP + self.length, self.seed);
        let mut meter = Meter::open(self.app.device, &(&self.app.power).into())?;
        let begun = meter.begin();
        let run = generator::open_loop(
            Arc::clone(&target),
            generator::spawn_pacer(arrivals),
            WARM_UP,
            Arc::clone(&record),
        );
        let mut run = std::pin::pin!(run);
        let mut tick = tokio::time::interval(TICK);
        let length = loop {
            tokio::select! {
                length = &mut run => break length,
                _ = tick.tick() => meter.touch(),
            }
        };
        let joules = meter.end(begun).joules;
        client.close().await;
        let figures = record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .figures(length);
        // The figures include the warm-up.
        let answered = target.answered().max(1) as f64;
        Ok(Served {
            hops: target.hops() as f64 / answered,
            accuracy: target.accuracy().context("nothing was answered")?,
            joules: joules.map(|joules| joules / answered),
            figures,
        })
    }

    /// Requests/s that the largest variant alone carries, by its profile.
    fn largest_qps(&self) -> f64 {
        let costs = self.profile.variants.last().map(|variant| variant.costs.iter());
        costs
            .into_iter()
            .flatten()
            .map(|cost| f64::from(cost.batch) / cost.latency_s)
            .fold(0.0, f64::max)
    }

    /// All models as a chain, with skips, and what the planner makes of AP. The first two pass on by [`cautious`] thresholds, so that every
    /// model runs: AP's own would leave some of them out.
    fn skips(&self) -> anyhow::Result<Claim> {
        let planner = planning::cascade(&self.profile)
            .app(&self.app)
            .safety_margin(NonInferiorityTest::None)
            .seed(self.seed);
        let thresholds = cautious(&self.profile);
        let given = |skips: bool| {
            let given = planner.clone().skips(skips).skip_loss(1.0);
            given.objective(Objective::Thresholds(thresholds.clone())).plan()
        };
        let largest = initial::single(&self.app, &self.largest()?.name);
        let chosen = planner.clone().objective(Objective::Ap).plan()?;
        let (chain, skipping) = (given(false)?, given(true)?);
        let qps = EQUAL * self.largest_qps();
        let mut served = Vec::new();
        let jumping = jumping(&chain.plan, &self.profile)?;
        for (name, plan) in [
            ("chain of all", &chain.plan),
            ("with the planner's skips", &skipping.plan),
            (
                "with the less sure half of what is passed on jumping to the largest",
                &jumping,
            ),
            ("AP, models dropped", &chosen.plan),
            ("largest alone", &largest),
        ] {
            let one = self.serve(&self.family, plan, qps)?;
            ensure!(
                one.figures.errors.is_empty(),
                "requests failed live: {:?}",
                one.figures.errors
            );
            say(&format!("live: {}", in_words(name, &one)));
            served.push((name, one));
        }
        let found = chain.plan.gears != skipping.plan.gears;
        Ok(connected(self.family.members.len(), qps, found, &served))
    }

    fn largest(&self) -> anyhow::Result<&kaskade_app::family::VariantSpec> {
        self.family.members.last().context("the app has no variants")
    }
}

fn in_words(name: &str, served: &Served) -> String {
    let ms = |value: Option<f64>| units::seconds(value.unwrap_or(f64::NAN) / 1e3);
    let latency = &served.figures.latency_ms;
    format!(
        "{name}: {:.2} models run, {} on average and {} at 99.9 %, {} per request, {} right",
        served.hops,
        ms(latency.mean),
        ms(latency.p999),
        units::joules(served.joules),
        units::percent(served.accuracy)
    )
}

/// Thresholds above every wrong answer of the validation set: a request of lower confidence than any wrong answer's is escalated.
fn cautious(profile: &Profile) -> Vec<f64> {
    let passing = profile.variants.split_last().map(|(_, passing)| passing);
    let above = |variant: &VariantProfile| {
        let sureness = variant.validation.confidences.iter();
        let wrong = sureness
            .zip(&variant.validation.correct)
            .filter(|(_, right)| !**right)
            .map(|(sureness, _)| *sureness);
        wrong.fold(0.0, f64::max).next_up().min(1.0)
    };
    passing.unwrap_or_default().iter().map(above).collect()
}

fn connected(models: usize, qps: f64, found: bool, served: &[(&str, Served)]) -> Claim {
    let described: Vec<String> = served.iter().map(|(name, one)| in_words(name, one)).collect();
    let mean = |one: &Served| one.figures.latency_ms.mean.unwrap_or(f64::NAN);
    let (fewer, faster, cheaper) = match served {
        [(_, chain), (_, skipping), ..] => (
            skipping.hops < chain.hops,
            mean(skipping) <= mean(chain),
            skipping
                .joules
                .zip(chain.joules)
                .is_none_or(|(skipping, chain)| skipping <= chain),
        ),
        _ => (false, false, false),
    };
    let missing = [
        (fewer, "fewer models run"),
        (faster, "lower latency"),
        (cheaper, "less energy"),
    ];
    let missing: Vec<&str> = missing
        .into_iter()
        .filter_map(|(holds, what)| (!holds).then_some(what))
        .collect();
    Claim {
        name: format!(
            "live: a cascade of {models} models with skip connections runs fewer of them, sooner, for less energy"
        ),
        paper: "fewer extra hops, latency and energy (\u{a7}IV-C, \u{a7}VI-B)".to_owned(),
        ours: format!("{}; at {qps:.0} requests/s", described.join("; ")),
        met: missing.is_empty(),
        note: if missing.is_empty() {
            "one run each, idle power included; energy and latency differ by what the machine does beside, hops do not".to_owned()
        } else {
            format!(
                "no {}{}",
                missing.join(", no "),
                if found {
                    ""
                } else {
                    ": the planner found no skip that pays, so both are one cascade and differ by what the machine does beside; what is jumped over is \
                     cheaper here than the largest model, to which more requests come"
                }
            )
        },
    }
}

/// The chain, in which the less confident half of the requests that a model escalates goes directly to the last model.
fn jumping(chain: &Plan, profile: &Profile) -> anyhow::Result<Plan> {
    let mut plan = chain.clone();
    let stages = plan.gears.iter_mut().flat_map(|gear| &mut gear.wiring.stages);
    let mut stages: Vec<_> = stages.collect();
    let last = stages.pop().context("the cascade has no stages")?.name.clone();
    for stage in stages {
        let Exit::Bands { bands } = &mut stage.exit else {
            continue;
        };
        let [passed, kept] = bands.as_slice() else {
            continue;
        };
        let variant = profile
            .variants
            .iter()
            .find(|variant| variant.name == stage.variant);
        let sureness = variant.map(|variant| &variant.validation.confidences);
        let mut below: Vec<f64> = sureness
            .into_iter()
            .flatten()
            .copied()
            .filter(|sureness| *sureness < kept.from)
            .collect();
        below.sort_by(f64::total_cmp);
        let half = below.get(below.len() / 2).copied().unwrap_or_default();
        if half > 0.0 && passed.to != Target::Stage(Edge::to(last.as_str())) {
            let jump = Band::forward(0.0, Edge::to(last.as_str()));
            let pass = Band {
                from: half,
                to: passed.to.clone(),
            };
            *bands = vec![jump, pass, kept.clone()];
        }
    }
    plan.validate()?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use kaskade_stated::families::vit;

    use super::*;

    #[test]
    fn no_wrong_answer_is_above_a_cautious_threshold() {
        let profile = vit().profile();
        let thresholds = cautious(&profile);
        assert_eq!(thresholds.len() + 1, profile.variants.len());
        for (variant, threshold) in profile.variants.iter().zip(&thresholds) {
            let answers = variant
                .validation
                .confidences
                .iter()
                .zip(&variant.validation.correct);
            for (sureness, right) in answers {
                assert!(*right || sureness < threshold || *threshold >= 1.0);
            }
        }
    }
}
