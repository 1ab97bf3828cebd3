//! The run on real actors with real models, in this process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kaskade_actors::bus::BusConfig;
use kaskade_actors::wire::InferReply;
use kaskade_app::config::pipeline::PipelinePlannerConfig;
use kaskade_app::data::scenes::{Scenes, Score};
use kaskade_app::load::arrivals::{self, Arrivals};
use kaskade_app::load::generator::{self, Target};
use kaskade_app::load::record::{Outcome, Record};
use kaskade_app::planning::initial;
use kaskade_app::serving::{self, Client, Service};

use super::Live;
use super::parts::{PARTS, Part, Run, part_at};

/// Period at which the workers in use are counted.
const COUNTED_EVERY: Duration = Duration::from_millis(200);

/// Serves the app in this process and sends the load.
///
/// # Errors
/// When the app cannot be served or asked.
pub(super) fn run(live: &Live, allocator: &PipelinePlannerConfig) -> anyhow::Result<Run> {
    let mut app = live.app.clone();
    if let Some(config) = &mut app.pipeline {
        config.planner = Some(*allocator);
    }
    let bus = BusConfig::new(app.name.as_str());
    let plan = initial::of(&app)?;
    let service = Service::builder(&app)
        .on_first_worker()
        .plan(plan)
        .bus(bus.clone())
        .start()?;
    let runtime = serving::runtime()?;
    let client = runtime
        .block_on(Client::connect_with(bus, app.name.as_str()))?
        .budget(app.slo.duration());
    let watch = Arc::new(Watch {
        client: client.clone(),
        scenes: live.scenes.clone(),
        slo: app.slo.duration(),
        begun: Instant::now(),
        seconds: live.trace.seconds(),
        parts: Mutex::new(vec![Part::default(); PARTS]),
    });
    let record = Arc::new(Mutex::new(Record::new(app.slo.duration())?));
    let arrivals = Arrivals::from_trace(&live.trace, arrivals::ArrivalProcess::Poisson, 1.0, live.seed);
    let plans = service.node().plans().clone();
    let counting = {
        let watch = Arc::clone(&watch);
        runtime.spawn(async move {
            let mut ticks = tokio::time::interval(COUNTED_EVERY);
            loop {
                ticks.tick().await;
                let used = plans
                    .current()
                    .map_or(0, |(adopted, _)| adopted.plan.placement.len());
                watch.note(watch.begun.elapsed(), |part| {
                    part.workers += used as f64;
                    part.counted += 1.0;
                });
            }
        })
    };
    runtime.block_on(generator::open_loop(
        Arc::clone(&watch),
        generator::spawn_pacer(arrivals),
        Duration::ZERO,
        record,
    ));
    counting.abort();
    runtime.block_on(client.close());
    service.stop();
    let parts = watch.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Run::of(parts))
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
        let at = part_at(after.as_secs_f64(), self.seconds);
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get_mut(at) {
            change(part);
        }
    }

    /// Returns the share of a reply that is right.
    fn judge(&self, scene: usize, reply: &InferReply) -> Score {
        let reported = self.scenes.reported_objects(reply).unwrap_or_default();
        let mut sum = Score::default();
        for score in self.scenes.judge(scene, &reported) {
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
        let reply = self.client.infer(inputs).await;
        let late = self.begun.elapsed().saturating_sub(came) > self.slo;
        match reply {
            Ok(reply) => {
                let lost = reply.branches.iter().any(|branch| branch.error.is_some());
                let score = self.judge(scene, &reply);
                self.note(came, |part| {
                    part.requests += 1;
                    part.violations += u64::from(late || lost);
                    part.worth += 2.0 * score.right as f64;
                    part.judged += (score.reported + score.actual) as f64;
                });
                Outcome::Answered {
                    variant: reply.variant,
                    degraded: reply.degraded,
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
