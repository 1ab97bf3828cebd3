//! Exports the metrics in Prometheus' text format 0.0.4. Unknown values are omitted, never zero.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    ACCEPTED_REQUESTS, ANSWERED_REQUESTS, ARRIVED_REQUESTS, DECODE_ERRORS, DURABLE_DEAD_LETTERS,
    DURABLE_REDELIVERIES, DURABLE_RESULTS, Distributions, ENERGY_JOULES, ERROR_REPLIES, FAILED_REPLICAS,
    FAN_OUT_CHILD_REQUESTS, FAN_OUT_REQUESTS, FIRST_TOKENS, GEAR_SHIFTS, GENERATED_TOKENS,
    IN_FLIGHT_REQUESTS, INTER_TOKEN_LATENCY_SECONDS, INVALID_TOKEN_RESULTS, LATE_RESULTS, Metrics,
    PLAN_EPOCH, PLAN_EPOCH_IN_PLACE, PLAN_STALE, QUEUE_FULL_REJECTIONS, QUEUED_REQUESTS, READY,
    REQUEST_SECONDS, RETRIED_ATTEMPTS, SATURATED, Snapshot, TIME_TO_FIRST_TOKEN_SECONDS, VARIANT_BATCH_SIZE,
    VARIANT_BATCHES, VARIANT_BUSY_SECONDS, VARIANT_COST, VARIANT_ENERGY_JOULES, VARIANT_PRICED_REQUESTS,
    VARIANT_QUEUE_SECONDS, VARIANT_REQUESTS, VARIANT_RUN_SECONDS, VARIANT_STEPS, VariantCount,
    histogram::Histogram,
};

/// Media type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Values of the gauges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gauges {
    /// [`READY`].
    pub ready: bool,
    /// [`SATURATED`].
    pub full: bool,
    /// [`PLAN_STALE`].
    pub plan_stale: bool,
    /// [`PLAN_EPOCH`]; `None` before the first plan.
    pub epoch: Option<u64>,
    /// [`PLAN_EPOCH_IN_PLACE`]; `None` before the first plan.
    pub epoch_in_place: Option<u64>,
    /// [`FAILED_REPLICAS`]; `None` without a worker.
    pub failed_replicas: Option<u64>,
    /// [`IN_FLIGHT_REQUESTS`]; `None` without an ingress.
    pub in_flight: Option<u64>,
    /// [`QUEUED_REQUESTS`], by variant.
    pub queued: BTreeMap<String, u64>,
}

/// Prometheus type of a metric.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Builder of the page.
struct Page<'a> {
    app: &'a str,
    text: String,
}

/// Labels other than `app`, with their values.
type Labels<'a> = [(&'static str, &'a str)];

impl<'a> Page<'a> {
    /// Writes the header of a metric; its samples follow.
    fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(&["# HELP ", name, " ", help]);
        self.line(&["# TYPE ", name, " ", kind]);
    }

    fn sample(&mut self, name: &str, labels: &Labels<'_>, value: &dyn std::fmt::Display) {
        let mut written = vec![format!("app=\"{}\"", escaped(self.app))];
        written.extend(
            labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value))),
        );
        self.line(&[name, "{", &written.join(","), "} ", &value.to_string()]);
    }

    /// Writes the samples of a histogram.
    fn histogram(&mut self, name: &str, labels: &Labels<'_>, histogram: &Histogram) {
        histogram.samples(|suffix, bound, value| {
            let bound = bound.map(|bound| ("le", bound));
            let labels: Vec<(&'static str, &str)> = labels.iter().copied().chain(bound).collect();
            self.sample(&format!("{name}{suffix}"), &labels, &value);
        });
    }

    fn line(&mut self, parts: &[&str]) {
        self.text.extend(parts.iter().copied());
        self.text.push('\n');
    }

    /// Writes a metric with one sample.
    fn one(&mut self, name: &str, kind: Kind, help: &str, value: Option<u64>) {
        self.metric(name, kind, help);
        if let Some(value) = value {
            self.sample(name, &[], &value);
        }
    }

    /// Writes a metric with one sample per value of a label.
    fn by<T: std::fmt::Display>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        label: &'static str,
        values: impl Iterator<Item = (&'a str, T)>,
    ) {
        self.metric(name, kind, help);
        for (key, value) in values {
            self.sample(name, &[(label, key)], &value);
        }
    }
}

impl Metrics {
    /// Returns every metric of the process in Prometheus' text format, each with its help, type and the label `app`.
    pub fn text(&self, app: &str, gauges: &Gauges) -> String {
        let snapshot = self.read();
        let mut page = Page {
            app,
            text: String::new(),
        };
        state(&mut page, gauges);
        requests(&mut page, &snapshot);
        page.metric(
            REQUEST_SECONDS,
            Kind::Histogram,
            "Time from a request's arrival at the ingress to its result, seconds.",
        );
        page.histogram(REQUEST_SECONDS, &[], &self.request.0);
        variants(&mut page, &snapshot.variants);
        self.distributions_text(&mut page);
        fan_outs(&mut page, &snapshot);
        energy(&mut page, &snapshot);
        self.watch_text(&mut page);
        page.text
    }
}

impl Metrics {
    /// Writes the histograms by variant.
    fn distributions_text(&self, page: &mut Page<'_>) {
        /// Selects a histogram of a variant.
        type Part = fn(&Distributions) -> &Histogram;
        let histograms: [(&str, &str, Part); 5] = [
            (
                VARIANT_QUEUE_SECONDS,
                "Time from a request's arrival at a replica to the start of its batch, seconds.",
                |of| &of.queue,
            ),
            (VARIANT_RUN_SECONDS, "Run time of batches, seconds.", |of| &of.run),
            (VARIANT_BATCH_SIZE, "Sizes of batches.", |of| &of.batch),
            (
                TIME_TO_FIRST_TOKEN_SECONDS,
                "Time from a request's arrival at the replica to its first token, seconds.",
                |of| &of.first_token,
            ),
            (
                INTER_TOKEN_LATENCY_SECONDS,
                "Time between successive tokens of an answer, seconds.",
                |of| &of.per_token,
            ),
        ];
        let variants: BTreeMap<String, _> = self
            .distributions
            .iter()
            .map(|entry| (entry.key().clone(), Arc::clone(entry.value())))
            .collect();
        for (name, help, part) in histograms {
            page.metric(name, Kind::Histogram, help);
            for (variant, of) in &variants {
                let histogram = part(of);
                // Language models have token histograms, other models batch histograms.
                if histogram.read().total() > 0 {
                    page.histogram(name, &[("variant", variant)], histogram);
                }
            }
        }
    }

    fn watch_text(&self, page: &mut Page<'_>) {
        for family in self.certificates.families() {
            let kind = if family.is_counter {
                Kind::Counter
            } else {
                Kind::Gauge
            };
            page.metric(family.name, kind, family.help);
            for (labels, value) in &family.samples {
                let labels: Vec<(&'static str, &str)> = labels
                    .iter()
                    .map(|(label, value)| (*label, value.as_str()))
                    .collect();
                page.sample(family.name, &labels, value);
            }
        }
    }
}

fn state<'a>(page: &mut Page<'a>, gauges: &'a Gauges) {
    let ready = u64::from(gauges.ready);
    page.one(
        READY,
        Kind::Gauge,
        "1 if the process serves, 0 otherwise.",
        Some(ready),
    );
    page.one(
        SATURATED,
        Kind::Gauge,
        "1 if the ingress or a replica's queue is at its limit, so that further requests are refused, 0 otherwise.",
        Some(u64::from(gauges.full)),
    );
    page.one(
        PLAN_STALE,
        Kind::Gauge,
        "1 if plans or gear shifts no longer arrive, so that the process serves the newest plan that it knows, 0 otherwise.",
        Some(u64::from(gauges.plan_stale)),
    );
    page.one(
        PLAN_EPOCH,
        Kind::Gauge,
        "Epoch of the newest plan that the process knows.",
        gauges.epoch,
    );
    page.one(
        PLAN_EPOCH_IN_PLACE,
        Kind::Gauge,
        "Epoch of the plan that is in place at the worker, and under which the ingress admits requests; 0 before the first.",
        gauges.epoch_in_place,
    );
    page.one(
        FAILED_REPLICAS,
        Kind::Gauge,
        "Replicas of the newest plan that the worker could not load.",
        gauges.failed_replicas,
    );
    page.one(
        IN_FLIGHT_REQUESTS,
        Kind::Gauge,
        "Requests in flight at the ingress.",
        gauges.in_flight,
    );
    let queued = gauges
        .queued
        .iter()
        .map(|(variant, count)| (variant.as_str(), *count));
    page.by(
        QUEUED_REQUESTS,
        Kind::Gauge,
        "Requests waiting in the queues of a variant's replicas.",
        "variant",
        queued,
    );
}

fn requests<'a>(page: &mut Page<'a>, snapshot: &'a Snapshot) {
    let counters = [
        (
            ARRIVED_REQUESTS,
            "Requests received by an ingress, accepted or not.",
            snapshot.arrived,
        ),
        (
            ACCEPTED_REQUESTS,
            "Requests accepted by an ingress.",
            snapshot.accepted,
        ),
        (
            ANSWERED_REQUESTS,
            "Requests answered with a result.",
            snapshot.answered,
        ),
        (RETRIED_ATTEMPTS, "Attempts that were resent.", snapshot.retried),
        (
            LATE_RESULTS,
            "Results that arrived after the request had been answered.",
            snapshot.stale,
        ),
        (
            INVALID_TOKEN_RESULTS,
            "Results without a valid token, dropped.",
            snapshot.invalid_token_results,
        ),
        (
            DECODE_ERRORS,
            "Messages between actors that could not be read.",
            snapshot.decode_errors,
        ),
        (
            QUEUE_FULL_REJECTIONS,
            "Deliveries refused because a replica's queue was full.",
            snapshot.queue_full,
        ),
        (
            DURABLE_RESULTS,
            "Stored results of durable requests.",
            snapshot.durable_results,
        ),
        (
            DURABLE_REDELIVERIES,
            "Deliveries of durable requests returned to the stream for a retry.",
            snapshot.redelivered,
        ),
        (
            DURABLE_DEAD_LETTERS,
            "Durable requests that became dead letters.",
            snapshot.dead_letters,
        ),
        (
            GEAR_SHIFTS,
            "Gear shifts that the process followed.",
            snapshot.shifts,
        ),
    ];
    for (name, help, value) in counters {
        page.one(name, Kind::Counter, help, Some(value));
    }
    let faults = snapshot
        .faults
        .iter()
        .map(|(code, count)| (code.as_str(), *count));
    page.by(
        ERROR_REPLIES,
        Kind::Counter,
        "Requests answered or refused with a fault.",
        "code",
        faults,
    );
}

fn variants<'a>(page: &mut Page<'a>, variants: &'a BTreeMap<String, VariantCount>) {
    /// Selects a counter of a variant.
    type Part = fn(&VariantCount) -> u64;
    let counters: [(&str, &str, Part); 5] = [
        (VARIANT_REQUESTS, "Requests run by the model.", |count| {
            count.requests
        }),
        (VARIANT_BATCHES, "Batches run by the model.", |count| {
            count.batches
        }),
        (VARIANT_STEPS, "Steps run by a language model.", |count| {
            count.steps
        }),
        (
            GENERATED_TOKENS,
            "Tokens generated by a language model.",
            |count| count.tokens.count,
        ),
        (FIRST_TOKENS, "First tokens of answers.", |count| {
            count.tokens.first
        }),
    ];
    for (name, help, part) in counters {
        let values = variants
            .iter()
            .map(|(variant, count)| (variant.as_str(), part(count)));
        page.by(name, Kind::Counter, help, "variant", values);
    }
    page.metric(
        VARIANT_BUSY_SECONDS,
        Kind::Counter,
        "Time that the model's threads were busy.",
    );
    for (variant, count) in variants {
        let seconds = count.busy_us as f64 / 1e6;
        page.sample(VARIANT_BUSY_SECONDS, &[("variant", variant)], &seconds);
    }
    costs(page, variants);
}

/// Writes the cost metrics. Money carries its source as a label, as joules do.
fn costs<'a>(page: &mut Page<'a>, variants: &'a BTreeMap<String, VariantCount>) {
    let known = || {
        let known = variants.iter();
        known.filter_map(|(variant, count)| Some((variant, count, count.spent.source?)))
    };
    page.metric(
        VARIANT_COST,
        Kind::Counter,
        "Cost of requests in money; absent if unknown.",
    );
    for (variant, count, source) in known() {
        let labels = [("variant", variant.as_str()), ("source", source.name())];
        page.sample(VARIANT_COST, &labels, &(count.spent.billionths as f64 / 1e9));
    }
    page.by(
        VARIANT_PRICED_REQUESTS,
        Kind::Counter,
        "Requests whose cost in money is known.",
        "variant",
        known().map(|(variant, count, _)| (variant.as_str(), count.priced)),
    );
}

fn fan_outs<'a>(page: &mut Page<'a>, snapshot: &'a Snapshot) {
    let fan_outs = &snapshot.fan_outs;
    let parents = fan_outs
        .iter()
        .map(|(variant, fan_outs)| (variant.as_str(), fan_outs.requests));
    page.by(
        FAN_OUT_REQUESTS,
        Kind::Counter,
        "Requests fanned out by a task of a pipeline.",
        "variant",
        parents,
    );
    page.metric(
        FAN_OUT_CHILD_REQUESTS,
        Kind::Counter,
        "Child requests of fan-outs, by task.",
    );
    for (variant, fan_outs) in fan_outs {
        for (task, count) in &fan_outs.children {
            page.sample(
                FAN_OUT_CHILD_REQUESTS,
                &[("variant", variant), ("task", task)],
                count,
            );
        }
    }
}

/// Writes the energy metrics. Joules carry their source as a label, so that modelled and measured values are not
/// summed, and their hardware counter, so that a counter read by several processes is counted once.
fn energy(page: &mut Page<'_>, snapshot: &Snapshot) {
    let report = snapshot.energy.as_ref();
    let source = report.map_or("", |report| report.source.as_str());
    page.metric(
        ENERGY_JOULES,
        Kind::Counter,
        "Energy of the process since its start, idle included; absent if unknown.",
    );
    if let Some(joules) = report.and_then(|report| report.joules) {
        let counter = report.map_or("", |report| report.counter.as_deref().unwrap_or(&report.node));
        page.sample(
            ENERGY_JOULES,
            &[("source", source), ("counter", counter)],
            &joules,
        );
    }
    page.metric(
        VARIANT_ENERGY_JOULES,
        Kind::Counter,
        "A variant's share of the process's energy, by busy time.",
    );
    for (variant, model) in report.iter().flat_map(|report| &report.models) {
        if let Some(joules) = model.joules {
            page.sample(
                VARIANT_ENERGY_JOULES,
                &[("source", source), ("variant", variant)],
                &joules,
            );
        }
    }
}

/// Escapes a label value.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
