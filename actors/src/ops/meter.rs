//! The energy meter: reports joules per request, idle energy included, and the work done.
//!
//! It reads the energy every 100 ms (HybridServe §VI-C). The readings come from [`kaskade_models::power`]; the
//! arithmetic is in [`kaskade_policy::energy`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::actor::{Actor, AsyncContext, Context, Handler, Message, MessageResult};
use kaskade_models::power::{EnergySample, PowerMeter};
use kaskade_policy::energy;

use crate::{
    dispatch::dispatcher::Dispatcher,
    metrics::{Metrics, Snapshot, VariantCount},
    subjects::event::ENERGY,
    supervision::TaskGuard,
    wire::{EnergyReport, Message as _, ModelEnergy},
};

/// Interval of the energy readings.
pub(crate) const SAMPLE: Duration = Duration::from_millis(100);

/// Readings per published report: one report per second.
const READINGS_PER_REPORT: u32 = 10;

/// The meter actor.
pub(crate) struct Meter {
    node: String,
    power: PowerMeter,
    start: EnergySample,
    last: EnergySample,
    dispatcher: Dispatcher,
    metrics: Arc<Metrics>,
    readings: u32,
    _guard: TaskGuard,
}

impl Meter {
    /// Creates a meter that counts energy from now.
    pub(crate) fn new(
        node: &str,
        mut power: PowerMeter,
        dispatcher: Dispatcher,
        metrics: Arc<Metrics>,
    ) -> Self {
        let start = power.sample();
        Self {
            _guard: dispatcher.supervisor().guard("meter"),
            node: node.to_owned(),
            power,
            last: start,
            start,
            dispatcher,
            metrics,
            readings: 0,
        }
    }

    fn report(&self) -> EnergyReport {
        let Snapshot {
            answered,
            variants,
            forwarded,
            ..
        } = self.metrics.read();
        // Without an ingress, another process may run the last stage: count the requests run in this process.
        let run = variants.values().map(|count| count.requests).max().unwrap_or(0);
        let requests = answered.max(run);
        let joules = self
            .last
            .joules_total
            .zip(self.start.joules_total)
            .map(|(now, then)| now - then);
        EnergyReport {
            node: self.node.clone(),
            source: self.last.source.to_string(),
            counter: self.power.counter(),
            joules,
            requests,
            joules_per_request: energy::joules_per_request(joules, requests),
            busy_core_s: self.last.busy_core_s - self.start.busy_core_s,
            wall_s: self.last.wall_s - self.start.wall_s,
            models: models(&variants, joules),
            forwarded,
        }
    }

    fn read(&mut self) {
        self.last = self.power.sample();
        self.readings += 1;
        if !self.readings.is_multiple_of(READINGS_PER_REPORT) {
            return;
        }
        let report = self.report();
        if let (Ok(subject), Ok(payload)) = (self.dispatcher.app().event(ENERGY), report.encode()) {
            self.dispatcher.publish_control(subject, payload);
        }
        self.metrics.metered(report);
    }
}

fn models(variants: &BTreeMap<String, VariantCount>, joules: Option<f64>) -> BTreeMap<String, ModelEnergy> {
    let busy_s = |count: &VariantCount| count.busy_us as f64 / 1e6;
    let busy = variants
        .iter()
        .map(|(name, count)| (name.as_str(), busy_s(count)));
    let shares = energy::energy_by_variant(joules, &busy.collect());
    let models = variants.iter().map(|(name, count)| {
        let joules = shares.get(name.as_str()).copied();
        let model = ModelEnergy {
            requests: count.requests,
            batches: count.batches,
            busy_s: busy_s(count),
            joules,
            priced: count.priced,
            spent: count.spent,
            tokens: count.tokens,
            joules_per_token: energy::joules_per_request(joules, count.tokens.count),
        };
        (name.clone(), model)
    });
    models.collect()
}

impl Actor for Meter {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(SAMPLE, |meter, _| meter.read());
    }
}

/// Requests a reading now.
#[derive(Message)]
#[rtype(result = "EnergyReport")]
pub(crate) struct ReadEnergy;

impl Handler<ReadEnergy> for Meter {
    type Result = MessageResult<ReadEnergy>;

    fn handle(&mut self, _: ReadEnergy, _: &mut Context<Self>) -> Self::Result {
        self.last = self.power.sample();
        MessageResult(self.report())
    }
}
