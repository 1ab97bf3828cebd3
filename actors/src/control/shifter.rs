//! The shifter: selects the gear of the app. The policy is [`kaskade_policy::shifting`].
//!
//! Every ingress process has a shifter. Each publishes its arrival count; the leader ([`kaskade_policy::arrivals`])
//! acts on the sum and publishes the gear in one small message. Every actor knows all gears of a plan in advance and
//! all their models stay loaded, so a shift loads nothing and loses nothing: requests in flight finish in the gear that
//! admitted them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::actor::{Actor, Addr, AsyncContext, Context, Handler, Message};
use futures::StreamExt;
use kaskade_policy::arrivals::ArrivalCounter;
use kaskade_policy::load_drift::{LoadDrift, LoadDriftConfig, LoadDriftDetector};
use kaskade_policy::plan::{Plan, Slo};
use kaskade_policy::shifting;
use kaskade_policy::shifting::ShiftConfig;

use super::certificates::Certificates;
use crate::{
    audit_counts::AuditCounts,
    bus::{Bus, BusError},
    control::heartbeats::Heartbeats,
    dispatch::dispatcher::Dispatcher,
    metrics::Metrics,
    plan::versions::{PlanVersion, PlanVersions},
    subjects::event::{AUDIT, GEAR, LOAD, LOAD_DRIFT},
    supervision::TaskGuard,
    wire::{AuditReport, GearShift, Heartbeat, LoadCount, LoadDriftNotice, Message as _, ShiftReport},
};

/// Number of ticks after which the leader publishes the gear again, for processes that joined later: one second at the
/// default tick.
const REPUBLISH_TICKS: u64 = 10;

/// Age from which reported queue lengths are ignored, microseconds.
const STALE_QUEUE_US: u64 = 500_000;

/// The shifter actor.
pub(crate) struct Shifter {
    ingress: String,
    config: ShiftConfig,
    load_drift_config: LoadDriftConfig,
    plans: PlanVersions,
    dispatcher: Dispatcher,
    metrics: Arc<Metrics>,
    load: ArrivalCounter,
    queues: BTreeMap<String, Queues>,
    epoch: u64,
    policy: shifting::Shifter,
    load_drift: Option<LoadDriftDetector>,
    certificates: Certificates,
    /// The gear decided on last.
    wanted: u32,
    last_tick: u64,
    ticks: u64,
    _guard: TaskGuard,
}

/// The newest heartbeat of a worker, with its queue lengths.
struct Queues {
    last_seen: u64,
    beat: Arc<Heartbeat>,
}

#[derive(Message)]
#[rtype(result = "()")]
enum ShifterEvent {
    Load(LoadCount),
    Audits(Box<AuditReport>),
    Beat(Arc<Heartbeat>),
}

impl Shifter {
    /// Creates the shifter of `ingress`.
    pub(crate) fn new(
        ingress: &str,
        config: ShiftConfig,
        load_drift: LoadDriftConfig,
        plans: PlanVersions,
        dispatcher: Dispatcher,
        metrics: Arc<Metrics>,
        audit_counts: Arc<AuditCounts>,
    ) -> Self {
        let last_tick = dispatcher.clock().now();
        let mut load = ArrivalCounter::new(last_tick);
        load.record(ingress, metrics.arrivals(), last_tick);
        Self {
            ingress: ingress.to_owned(),
            policy: shifting::Shifter::new(&[], config),
            config,
            load_drift_config: load_drift,
            plans,
            _guard: dispatcher.supervisor().guard("shifter"),
            certificates: Certificates::new(ingress, audit_counts, dispatcher.clone(), Arc::clone(&metrics)),
            dispatcher,
            metrics,
            load,
            queues: BTreeMap::new(),
            epoch: 0,
            load_drift: None,
            wanted: 0,
            last_tick,
            ticks: 0,
        }
    }

    /// Starts the shifter, and subscribes to the counts of other ingresses and to heartbeats.
    ///
    /// # Errors
    /// [`BusError`] if a subscription fails.
    pub(crate) async fn listen(self, bus: &Bus, heartbeats: &mut Heartbeats) -> Result<Addr<Self>, BusError> {
        let subject = self.dispatcher.app().event(LOAD)?;
        let supervisor = self.dispatcher.supervisor().clone();
        let mut loads = bus.control().subscribe(subject, None).await?;
        let audited = self.dispatcher.app().event(AUDIT)?;
        let mut audits = bus.control().subscribe(audited, None).await?;
        // Only a round trip proves that the subscription is active.
        bus.control().barrier().await?;
        let shifter = self.start();
        let listener = shifter.clone();
        heartbeats.listen(move |beat| listener.do_send(ShifterEvent::Beat(Arc::clone(beat))));
        let listener = shifter.clone();
        supervisor.spawn("subscription of the shifter", async move {
            while let Some(message) = loads.next().await {
                match LoadCount::decode(&message.payload) {
                    Ok(count) => listener.do_send(ShifterEvent::Load(count)),
                    Err(error) => tracing::warn!(%error, "a load count could not be decoded"),
                }
            }
        });
        let listener = shifter.clone();
        supervisor.spawn("subscription to audits", async move {
            while let Some(message) = audits.next().await {
                match AuditReport::decode_within(&message.payload, &AuditReport::LIMITS) {
                    Ok(report) => listener.do_send(ShifterEvent::Audits(Box::new(report))),
                    Err(error) => tracing::warn!(%error, "a report of audits could not be decoded"),
                }
            }
        });
        Ok(shifter)
    }

    fn tick(&mut self) {
        let now = self.dispatcher.clock().now();
        self.publish_own_count(now);
        let elapsed = now.saturating_sub(self.last_tick).max(1);
        self.last_tick = now;
        let arrivals = self.load.take(now);
        let Some((version, gear)) = self.plans.current() else {
            return;
        };
        self.follow(&version, now);
        self.ticks += 1;
        let leads = self.load.leads(&self.ingress, now);
        let is_second = self.ticks.is_multiple_of(REPUBLISH_TICKS);
        if is_second {
            self.certificates.tick(&version, leads);
        }
        // A late timer makes a tick longer; scale the count to the configured tick length.
        let counted = (arrivals as f64 * self.config.tick_us as f64 / elapsed as f64).round() as u64;
        if !leads {
            // Track the load and its drift, to be ready to lead.
            self.policy.count(counted);
            self.check_load_drift(&version, arrivals, now);
            // A gear of the certified list does not depend on the load.
            if (gear as usize) < version.plan.gears.len() {
                self.policy.set_gear(gear);
            }
            self.wanted = gear;
            return;
        }
        let first_queue = self.first_queue(&version, gear, now);
        self.policy.tick(now, counted, first_queue as usize);
        let to = self.certificates.clamp_gear(&version.plan, self.policy.gear());
        if to != self.wanted {
            self.wanted = to;
            self.shift(&version, gear, to, first_queue);
        }
        if let Some(drift) = self.check_load_drift(&version, arrivals, now) {
            self.publish_load_drift(&version.plan, version.epoch, drift);
        }
        if is_second && (version.plan.gears.len() > 1 || self.certificates.is_watching()) {
            self.publish_gear(&version, to);
        }
    }

    fn publish_own_count(&mut self, now: u64) {
        let count = LoadCount {
            ingress: self.ingress.clone(),
            arrivals: self.metrics.arrivals(),
        };
        self.load.record(&count.ingress, count.arrivals, now);
        self.publish_event(LOAD, &count);
    }

    /// Resets the policy if a new plan was adopted since the last tick.
    fn follow(&mut self, version: &PlanVersion, now: u64) {
        if self.epoch == version.epoch {
            return;
        }
        self.epoch = version.epoch;
        self.policy.adopt(&version.plan.gears);
        self.policy.set_scale(1.0);
        self.wanted = 0;
        self.load_drift = LoadDriftDetector::new(&version.plan.gears, self.load_drift_config, now);
        self.certificates.adopt(version);
    }

    fn shift(&self, version: &PlanVersion, from: u32, to: u32, first_queue: u64) {
        // Shift this process first: its ingress admits under the new gear from now on.
        match self.plans.shift(version.epoch, to) {
            Ok(_) => self.metrics.shifted(),
            // A newer plan was adopted in between; the next tick uses its gears.
            Err(error) => return tracing::debug!(%error, "a shift was superseded by a newer plan"),
        }
        self.publish_gear(version, to);
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
        self.publish_event(GEAR, &report);
    }

    fn publish_gear(&self, version: &PlanVersion, gear: u32) {
        let shift = GearShift {
            epoch: version.epoch,
            gear,
        };
        if let Ok(payload) = shift.encode() {
            self.dispatcher
                .publish_control(self.dispatcher.app().gear(), payload);
        }
    }

    /// Compares the load of a tick with the planned load. Runs also while another process leads, so that a new leader
    /// can continue.
    fn check_load_drift(&mut self, version: &PlanVersion, arrivals: u64, now: u64) -> Option<LoadDrift> {
        let qps = self.policy.qps();
        let detector = self.load_drift.as_mut()?;
        let drift = detector.tick(qps, arrivals, now);
        if let Some(Slo::Accuracy { .. }) = version.plan.slo {
            let scale = detector.scale();
            self.policy.set_scale(scale);
        }
        drift
    }

    fn publish_load_drift(&self, plan: &Plan, epoch: u64, drift: LoadDrift) {
        tracing::warn!(
            epoch,
            distance = drift.distance,
            peak_qps = drift.peak_qps,
            made_by = plan.made_by,
            "the load has drifted from the plan; request a new plan on `{}`",
            self.dispatcher.app().replan()
        );
        let notice = LoadDriftNotice {
            epoch,
            distance: drift.distance,
            measured: drift.measured,
            peak_qps: drift.peak_qps,
        };
        self.publish_event(LOAD_DRIFT, &notice);
    }

    /// Returns the number of requests queued for the first stage of the gear, over all workers with a recent heartbeat.
    fn first_queue(&mut self, version: &PlanVersion, gear: u32, now: u64) -> u64 {
        self.queues
            .retain(|_, queues| now.saturating_sub(queues.last_seen) < STALE_QUEUE_US);
        let entry = version
            .gear(gear)
            .map(|gear| gear.wiring.entry.stage.as_str())
            .and_then(|stage| version.stage(gear, stage));
        let Some(entry) = entry else { return 0 };
        let replicas = self.queues.values().flat_map(|queues| &queues.beat.replicas);
        replicas
            .filter(|replica| replica.variant == entry.variant)
            .map(|replica| u64::from(replica.queue))
            .sum()
    }

    fn publish_event(&self, name: &str, event: &impl crate::wire::Message) {
        if let (Ok(subject), Ok(payload)) = (self.dispatcher.app().event(name), event.encode()) {
            self.dispatcher.publish_control(subject, payload);
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

impl Handler<ShifterEvent> for Shifter {
    type Result = ();

    fn handle(&mut self, event: ShifterEvent, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        match event {
            // The shifter reads its own count directly at each tick.
            ShifterEvent::Load(count) if count.ingress == self.ingress => {}
            ShifterEvent::Load(count) => self.load.record(&count.ingress, count.arrivals, now),
            ShifterEvent::Audits(report) => {
                let leads = self.load.leads(&self.ingress, now);
                if let Some((version, _)) = self.plans.current() {
                    self.certificates.record(&report, &version, leads);
                }
            }
            ShifterEvent::Beat(beat) => {
                self.queues
                    .insert(beat.actor.clone(), Queues { last_seen: now, beat });
            }
        }
    }
}

#[cfg(test)]
mod tests;
