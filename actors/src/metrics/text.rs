//! The metrics in Prometheus' text format 0.0.4. Unknown values are omitted, never zero.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    ACCEPTED, ANSWERED, ARRIVED, BETWEEN_TOKENS, DEAD_LETTERS, DURABLE_RESULTS, Distributions, ENERGY,
    ENERGY_PER_REQUEST, FAN_OUT_CHILDREN, FAN_OUTS, FAULTS, FIRST_TOKENS, FORGED, FULL, IN_FLIGHT, Metrics,
    PLAN_EPOCH, QUEUE_FULL, QUEUED, READY, REDELIVERED, REQUEST, RETRIED, SHIFTS, STALE, Snapshot,
    TO_FIRST_TOKEN, TOKENS, UNREADABLE, VARIANT_BATCH, VARIANT_BATCHES, VARIANT_BUSY, VARIANT_COST,
    VARIANT_ENERGY, VARIANT_PRICED, VARIANT_QUEUE, VARIANT_REQUESTS, VARIANT_RUN, VariantCount,
    histogram::Histogram,
};

/// Media type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Values that are not counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gauges {
    /// [`READY`].
    pub ready: bool,
    /// [`FULL`].
    pub full: bool,
    /// [`PLAN_EPOCH`]; none before the first plan.
    pub epoch: Option<u64>,
    /// [`IN_FLIGHT`]; `None` without an ingress.
    pub in_flight: Option<u64>,
    /// [`QUEUED`], by variant.
    pub queued: BTreeMap<String, u64>,
}

/// The type of a metric in Prometheus.
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

/// Labels beside `app`, with their values.
type Labels<'a> = [(&'static str, &'a str)];

impl<'a> Page<'a> {
    /// Starts a metric; its samples follow.
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
            REQUEST,
            Kind::Histogram,
            "Time from a request's arrival at the ingress to its result, seconds.",
        );
        page.histogram(REQUEST, &[], &self.request.0);
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
                VARIANT_QUEUE,
                "Time from a request's arrival at a replica to the start of its batch, seconds.",
                |of| &of.queue,
            ),
            (VARIANT_RUN, "Run time of batches, seconds.", |of| &of.run),
            (VARIANT_BATCH, "Sizes of batches.", |of| &of.batch),
            (
                TO_FIRST_TOKEN,
                "Time from a request's arrival at the replica to its first token, seconds.",
                |of| &of.first_token,
            ),
            (
                BETWEEN_TOKENS,
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
                // A language model has tokens, every other model batches.
                if histogram.read().total() > 0 {
                    page.histogram(name, &[("variant", variant)], histogram);
                }
            }
        }
    }

    fn watch_text(&self, page: &mut Page<'_>) {
        for family in self.watch.families() {
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
        FULL,
        Kind::Gauge,
        "1 if the ingress or a replica's queue is at its limit, so that further requests are refused, 0 otherwise.",
        Some(u64::from(gauges.full)),
    );
    page.one(
        PLAN_EPOCH,
        Kind::Gauge,
        "Epoch of the newest plan that the process knows.",
        gauges.epoch,
    );
    page.one(
        IN_FLIGHT,
        Kind::Gauge,
        "Requests in flight at the ingress.",
        gauges.in_flight,
    );
    let queued = gauges
        .queued
        .iter()
        .map(|(variant, count)| (variant.as_str(), *count));
    page.by(
        QUEUED,
        Kind::Gauge,
        "Requests waiting in the queues of a variant's replicas.",
        "variant",
        queued,
    );
}

fn requests<'a>(page: &mut Page<'a>, snapshot: &'a Snapshot) {
    let counters = [
        (
            ARRIVED,
            "Requests received by an ingress, accepted or not.",
            snapshot.arrived,
        ),
        (ACCEPTED, "Requests accepted by an ingress.", snapshot.accepted),
        (ANSWERED, "Requests answered with a result.", snapshot.answered),
        (RETRIED, "Attempts that were resent.", snapshot.retried),
        (
            STALE,
            "Results that arrived after the request had been answered.",
            snapshot.stale,
        ),
        (FORGED, "Results without a valid token, dropped.", snapshot.forged),
        (
            UNREADABLE,
            "Messages between actors that could not be read.",
            snapshot.unreadable,
        ),
        (
            QUEUE_FULL,
            "Deliveries refused because a replica's queue was full.",
            snapshot.queue_full,
        ),
        (
            DURABLE_RESULTS,
            "Stored results of durable requests.",
            snapshot.durable_results,
        ),
        (
            REDELIVERED,
            "Deliveries of durable requests returned to the stream for a retry.",
            snapshot.redelivered,
        ),
        (
            DEAD_LETTERS,
            "Durable requests that became dead letters.",
            snapshot.dead_letters,
        ),
        (SHIFTS, "Gear shifts that the process followed.", snapshot.shifts),
    ];
    for (name, help, value) in counters {
        page.one(name, Kind::Counter, help, Some(value));
    }
    let faults = snapshot
        .faults
        .iter()
        .map(|(code, count)| (code.as_str(), *count));
    page.by(
        FAULTS,
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
        (
            VARIANT_BUSY,
            "Time that the model's threads were busy.",
            |count| count.busy_us,
        ),
        (TOKENS, "Tokens generated by a language model.", |count| {
            count.tokens.count
        }),
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
    costs(page, variants);
}

/// Money carries its source as a label, as joules do.
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
        page.sample(VARIANT_COST, &labels, &(count.spent.billionths as f64 / 1e3));
    }
    page.by(
        VARIANT_PRICED,
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
        FAN_OUTS,
        Kind::Counter,
        "Requests fanned out by a task of a pipeline.",
        "variant",
        parents,
    );
    page.metric(
        FAN_OUT_CHILDREN,
        Kind::Counter,
        "Child requests of fan-outs, by task.",
    );
    for (variant, fan_outs) in fan_outs {
        for (task, count) in &fan_outs.children {
            page.sample(FAN_OUT_CHILDREN, &[("variant", variant), ("task", task)], count);
        }
    }
}

/// Joules carry their source as a label, so that modelled and measured values are not summed.
fn energy(page: &mut Page<'_>, snapshot: &Snapshot) {
    let report = snapshot.energy.as_ref();
    let source = report.map_or("", |report| report.source.as_str());
    page.metric(
        ENERGY,
        Kind::Counter,
        "Energy of the process since its start, idle included; absent if unknown.",
    );
    if let Some(joules) = report.and_then(|report| report.joules) {
        page.sample(ENERGY, &[("source", source)], &joules);
    }
    page.metric(
        ENERGY_PER_REQUEST,
        Kind::Gauge,
        "Energy per request that the process ran or answered.",
    );
    if let Some(joules) = report.and_then(|report| report.joules_per_request) {
        page.sample(ENERGY_PER_REQUEST, &[("source", source)], &joules);
    }
    page.metric(
        VARIANT_ENERGY,
        Kind::Counter,
        "A variant's share of the process's energy, by busy time.",
    );
    for (variant, model) in report.iter().flat_map(|report| &report.models) {
        if let Some(joules) = model.joules {
            page.sample(
                VARIANT_ENERGY,
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
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::error::{Code, Fault};
    use crate::wire::{EnergyReport, ModelEnergy, Tokens};

    fn busy() -> Metrics {
        let metrics = Metrics::default();
        metrics.arrived();
        metrics.arrived();
        metrics.accepted();
        metrics.answered(1_500);
        metrics.fault(&Fault::new(Code::Overloaded, "full"));
        metrics.count_fan_out("find\"er", &BTreeMap::from([("tell".to_owned(), 3)]));
        metrics.batch("small", [10, 20, 900, 40].into_iter(), 700);
        metrics.tokens("gpt", &Tokens::first(3_000));
        metrics.tokens("gpt", &Tokens::next(2_000));
        metrics
    }

    fn metered(metrics: &Metrics, joules: Option<f64>) {
        metrics.metered(EnergyReport {
            node: "a".into(),
            source: "modelled".into(),
            joules,
            requests: 4,
            joules_per_request: joules.map(|joules| joules / 4.0),
            busy_core_s: 1.0,
            wall_s: 2.0,
            models: BTreeMap::from([(
                "small".to_owned(),
                ModelEnergy {
                    joules,
                    ..ModelEnergy::default()
                },
            )]),
            forwarded: BTreeMap::new(),
        });
    }

    fn gauges() -> Gauges {
        Gauges {
            ready: true,
            full: false,
            epoch: Some(3),
            in_flight: Some(1),
            queued: BTreeMap::from([("small".to_owned(), 2)]),
        }
    }

    #[test]
    fn counters_have_their_labels_and_values() {
        let metrics = busy();
        metered(&metrics, Some(2.5));
        let page = metrics.text("digits", &gauges());
        for line in [
            "kaskade_ready_processes{app=\"digits\"} 1",
            "kaskade_full_processes{app=\"digits\"} 0",
            "kaskade_plan_epoch_number{app=\"digits\"} 3",
            "kaskade_in_flight_requests{app=\"digits\"} 1",
            "kaskade_queued_requests{app=\"digits\",variant=\"small\"} 2",
            "kaskade_arrived_requests_total{app=\"digits\"} 2",
            "kaskade_request_seconds_bucket{app=\"digits\",le=\"0.001\"} 0",
            "kaskade_request_seconds_bucket{app=\"digits\",le=\"0.0015\"} 1",
            "kaskade_request_seconds_sum{app=\"digits\"} 0.0015",
            "kaskade_variant_queue_seconds_bucket{app=\"digits\",variant=\"small\",le=\"0.0001\"} 3",
            "kaskade_variant_queue_seconds_count{app=\"digits\",variant=\"small\"} 4",
            "kaskade_variant_run_seconds_count{app=\"digits\",variant=\"small\"} 1",
            "kaskade_variant_batch_size_requests_bucket{app=\"digits\",variant=\"small\",le=\"4\"} 1",
            "kaskade_variant_batch_size_requests_sum{app=\"digits\",variant=\"small\"} 4",
            "kaskade_fault_replies_total{app=\"digits\",code=\"KSK0006\"} 1",
            "kaskade_variant_requests_total{app=\"digits\",variant=\"small\"} 4",
            "kaskade_generated_tokens_total{app=\"digits\",variant=\"gpt\"} 2",
            "kaskade_first_tokens_total{app=\"digits\",variant=\"gpt\"} 1",
            "kaskade_time_to_first_token_seconds_sum{app=\"digits\",variant=\"gpt\"} 0.003",
            "kaskade_time_per_output_token_seconds_sum{app=\"digits\",variant=\"gpt\"} 0.002",
            "kaskade_variant_busy_microseconds_total{app=\"digits\",variant=\"small\"} 700",
            "kaskade_fan_out_children_requests_total{app=\"digits\",variant=\"find\\\"er\",task=\"tell\"} 3",
            "kaskade_energy_joules_total{app=\"digits\",source=\"modelled\"} 2.5",
            "kaskade_energy_per_request_joules{app=\"digits\",source=\"modelled\"} 0.625",
            "kaskade_variant_energy_joules_total{app=\"digits\",source=\"modelled\",variant=\"small\"} 2.5",
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "{line}\nis not in\n{page}"
            );
        }
    }

    #[test]
    fn energy_that_is_unknown_is_no_zero() {
        let metrics = busy();
        metered(&metrics, None);
        let page = metrics.text("digits", &gauges());
        assert!(
            !page.lines().any(|line| line.starts_with("kaskade_energy")),
            "{page}"
        );
        assert!(page.contains("# TYPE kaskade_energy_joules_total counter"));
    }

    /// Checks the format line by line: a sample follows the help and type of its metric, and each metric occurs once.
    #[test]
    fn every_sample_stands_below_its_metric() {
        let metrics = busy();
        metered(&metrics, Some(2.5));
        let page = metrics.text("digits", &gauges());
        let (mut open, mut seen) = (String::new(), BTreeSet::new());
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                open = rest.split(' ').next().unwrap().to_owned();
                assert!(seen.insert(open.clone()), "{open} is told twice");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, open);
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            } else {
                let (name, rest) = line.split_once("{app=\"digits\"").unwrap();
                let part = name.strip_prefix(open.as_str());
                assert!(
                    part.is_some_and(|part| part.is_empty() || ["_bucket", "_sum", "_count"].contains(&part)),
                    "{line} below {open}"
                );
                assert!(rest.rsplit_once("} ").unwrap().1.parse::<f64>().is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn every_named_metric_is_exported() {
        let page = Metrics::default().text("digits", &Gauges::default());
        let names = include_str!("mod.rs")
            .lines()
            .filter(|line| line.starts_with("pub const ") && line.contains(": &str = \"kaskade_"))
            .map(|line| line.split('"').nth(1).unwrap());
        let missing: Vec<&str> = names
            .filter(|name| !page.contains(&format!("# TYPE {name} ")))
            .collect();
        assert!(missing.is_empty(), "not on the page: {missing:?}");
    }
}
