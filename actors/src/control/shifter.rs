//! The shifter: selects the gear of the app. The policy is [`kaskade_policy::shifting`].
//!
//! Every ingress has a shifter. Each publishes its arrival count; the leader ([`kaskade_policy::load`]) acts on the
//! sum and publishes the gear in one small message. Every actor knows all gears of a plan beforehand and all their
//! models stay loaded, so a shift loads nothing and loses nothing: requests in flight finish in the gear that
//! admitted them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::actor::{self, Actor, Addr, AsyncContext, Context, Handler, Message};
use futures::StreamExt;
use kaskade_policy::arrivals::ArrivalCounter;
use kaskade_policy::drift::{Drift, DriftConfig, DriftWatch};
use kaskade_policy::plan::{Plan, Slo};
use kaskade_policy::shifting;
use kaskade_policy::shifting::ShiftConfig;

use crate::{
    bus::{Bus, BusError},
    dispatch::dispatcher::Dispatcher,
    metrics::Metrics,
    plan::beats,
    plan::versions::{PlanVersion, PlanVersions},
    subjects::event::{DRIFT, LOAD, SHIFTED},
    wire::{Beat, DriftNotice, GearShift, LoadCount, Message as _, ShiftReport},
};

/// Ticks after which the leader publishes the gear again, for processes that joined later: one second.
const SAY_AGAIN: u64 = 10;

/// Age at which reported queue lengths are ignored, microseconds.
const STALE_QUEUE_US: u64 = 500_000;

/// The shifter actor.
pub(crate) struct Shifter {
    ingress: String,
    config: ShiftConfig,
    drift_config: DriftConfig,
    plans: PlanVersions,
    dispatcher: Dispatcher,
    metrics: Arc<Metrics>,
    load: ArrivalCounter,
    queues: BTreeMap<String, Queues>,
    epoch: u64,
    policy: shifting::Shifter,
    drift: Option<DriftWatch>,
    last_tick: u64,
    ticks: u64,
}

/// Queue lengths reported by one worker.
struct Queues {
    heard: u64,
    of_replica: BTreeMap<String, (String, u64)>,
}

#[derive(Message)]
#[rtype(result = "()")]
enum Heard {
    Load(LoadCount),
    Beat(Beat),
}

impl Shifter {
    /// Creates the shifter of that ingress.
    pub(crate) fn new(
        ingress: &str,
        config: ShiftConfig,
        drift: DriftConfig,
        plans: PlanVersions,
        dispatcher: Dispatcher,
        metrics: Arc<Metrics>,
    ) -> Self {
        let last_tick = dispatcher.clock().now();
        let mut load = ArrivalCounter::new(last_tick);
        load.heard(ingress, metrics.arrivals(), last_tick);
        Self {
            ingress: ingress.to_owned(),
            policy: shifting::Shifter::new(&[], config),
            config,
            drift_config: drift,
            plans,
            dispatcher,
            metrics,
            load,
            queues: BTreeMap::new(),
            epoch: 0,
            drift: None,
            last_tick,
            ticks: 0,
        }
    }

    /// Starts the shifter; it subscribes to the other ingresses' counts and to the workers' heartbeats.
    ///
    /// # Errors
    /// [`BusError`] if a subscription fails.
    pub(crate) async fn listen(self, bus: &Bus) -> Result<Addr<Self>, BusError> {
        let app = self.dispatcher.app().clone();
        let mut heartbeats = bus.subscribe(app.beats(), None).await?;
        let mut loads = bus.subscribe(app.event(LOAD)?, None).await?;
        // Only a round trip proves that the subscriptions are active.
        bus.barrier().await?;
        let plans = self.plans.clone();
        let shifter = self.start();
        let listener = shifter.clone();
        actor::spawn(async move {
            loop {
                let heard = tokio::select! {
                    message = heartbeats.next() => match message {
                        Some(message) => match beats::read(&app, &plans, &message) {
                            Ok(Some(beat)) => Ok(Heard::Beat(beat)),
                            Ok(None) => continue,
                            Err(error) => Err(error),
                        },
                        None => return,
                    },
                    message = loads.next() => match message {
                        Some(message) => LoadCount::decode(&message.payload).map(Heard::Load),
                        None => return,
                    },
                };
                match heard {
                    Ok(heard) => listener.do_send(heard),
                    Err(error) => tracing::warn!(%error, "a heartbeat or load count could not be decoded"),
                }
            }
        });
        Ok(shifter)
    }

    fn tick(&mut self) {
        let now = self.dispatcher.clock().now();
        self.tell_own_count(now);
        let elapsed = now.saturating_sub(self.last_tick).max(1);
        self.last_tick = now;
        let arrivals = self.load.take(now);
        let Some((version, gear)) = self.plans.current() else {
            return;
        };
        self.follow(&version);
        if !self.load.leads(&self.ingress, now) {
            return self.policy.set_gear(gear);
        }
        // A late timer makes a long tick; scale the count to a tick of the configured length.
        let counted = (arrivals as f64 * self.config.tick_us as f64 / elapsed as f64).round() as u64;
        let first_queue = self.first_queue(&version, gear, now);
        if let Some(to) = self.policy.tick(now, counted, first_queue as usize) {
            self.shift(&version, gear, to, first_queue);
        }
        self.watch_drift(&version);
        self.ticks += 1;
        if self.ticks.is_multiple_of(SAY_AGAIN) && version.plan.gears.len() > 1 {
            self.say(&version);
        }
    }

    fn tell_own_count(&mut self, now: u64) {
        let count = LoadCount {
            ingress: self.ingress.clone(),
            arrivals: self.metrics.arrivals(),
        };
        self.load.heard(&count.ingress, count.arrivals, now);
        self.publish_event(LOAD, &count);
    }

    /// Resets the policy if a new plan was adopted since the last tick.
    fn follow(&mut self, version: &PlanVersion) {
        if self.epoch == version.epoch {
            return;
        }
        self.epoch = version.epoch;
        self.policy.adopt(&version.plan.gears);
        self.policy.set_scale(1.0);
        self.drift = DriftWatch::new(&version.plan.gears, self.drift_config);
    }

    fn shift(&self, version: &PlanVersion, from: u32, to: u32, first_queue: u64) {
        // This process shifts first: its ingress admits by the new gear from here on.
        match self.plans.shift(version.epoch, to) {
            Ok(_) => self.metrics.shifted(),
            // A newer plan was adopted in between; the next tick considers its gears.
            Err(error) => return tracing::debug!(%error, "a shift was superseded by a newer plan"),
        }
        self.say(version);
        let report = ShiftReport {
            epoch: version.epoch,
            from,
            to,
            qps: self.policy.qps(),
            first_queue,
        };
        tracing::info!(
            epoch = report.epoch,
            from,
            to,
            qps = report.qps,
            first_queue,
            "gear shift"
        );
        self.publish_event(SHIFTED, &report);
    }

    fn say(&self, version: &PlanVersion) {
        let shift = GearShift {
            epoch: version.epoch,
            gear: self.policy.gear(),
        };
        if let Ok(payload) = shift.encode() {
            self.dispatcher
                .publish(self.dispatcher.app().gear(), None, None, payload);
        }
    }

    fn watch_drift(&mut self, version: &PlanVersion) {
        let qps = self.policy.qps();
        let Some(watch) = &mut self.drift else { return };
        let drift = watch.tick(qps);
        if let Some(Slo::Accuracy { .. }) = version.plan.slo {
            let scale = watch.scale();
            self.policy.set_scale(scale);
        }
        if let Some(drift) = drift {
            self.tell_drift(&version.plan, version.epoch, drift);
        }
    }

    fn tell_drift(&self, plan: &Plan, epoch: u64, drift: Drift) {
        tracing::warn!(
            epoch,
            distance = drift.distance,
            peak_qps = drift.peak_qps,
            made_by = plan.made_by,
            "the load has drifted from the plan; request a new plan on `{}`",
            self.dispatcher.app().replan()
        );
        let notice = DriftNotice {
            epoch,
            distance: drift.distance,
            measured: drift.measured,
            peak_qps: drift.peak_qps,
        };
        self.publish_event(DRIFT, &notice);
    }

    /// Requests that wait for the first stage of the gear, over all workers heard recently.
    fn first_queue(&mut self, version: &PlanVersion, gear: u32, now: u64) -> u64 {
        self.queues
            .retain(|_, queues| now.saturating_sub(queues.heard) < STALE_QUEUE_US);
        let entry = version
            .gear(gear)
            .map(|gear| gear.wiring.entry.stage.as_str())
            .and_then(|stage| version.stage(gear, stage));
        let Some(entry) = entry else { return 0 };
        let of_replica = self.queues.values().flat_map(|queues| queues.of_replica.values());
        of_replica
            .filter(|(variant, _)| *variant == entry.variant)
            .map(|(_, waiting)| waiting)
            .sum()
    }

    fn publish_event(&self, name: &str, event: &impl crate::wire::Message) {
        if let (Ok(subject), Ok(payload)) = (self.dispatcher.app().event(name), event.encode()) {
            self.dispatcher.publish(subject, None, None, payload);
        }
    }
}

impl Actor for Shifter {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let tick = Duration::from_micros(self.config.tick_us.max(1_000));
        ctx.run_interval(tick, |shifter, _| shifter.tick());
    }
}

impl Handler<Heard> for Shifter {
    type Result = ();

    fn handle(&mut self, heard: Heard, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        match heard {
            // The shifter reads its own count directly at each tick.
            Heard::Load(count) if count.ingress == self.ingress => {}
            Heard::Load(count) => self.load.heard(&count.ingress, count.arrivals, now),
            Heard::Beat(beat) => {
                let of_replica = beat.replicas.into_iter();
                let of_replica = of_replica.map(|one| (one.id, (one.variant, u64::from(one.queue))));
                let queues = Queues {
                    heard: now,
                    of_replica: of_replica.collect(),
                };
                self.queues.insert(beat.actor, queues);
            }
        }
    }
}
