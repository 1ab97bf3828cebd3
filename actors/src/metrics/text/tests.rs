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
    metrics.tokens("gpt", &Tokens::first(1, 3_000));
    metrics.tokens("gpt", &Tokens::next(1, 2_000));
    metrics.step("gpt", 3_000);
    metrics.step("gpt", 2_000);
    metrics
}

/// Regression: steps counted as batches, so that a remote classifier seemed to run a batch in the microseconds of a
/// wake-up, which misled planners.
#[test]
fn steps_are_no_batches_and_waiting_is_neither() {
    let metrics = busy();
    metrics.waited("remote", 20);
    metrics.generated("remote");
    // An answer that is not streamed has no tokens.
    metrics.step("quiet", 5_000);
    metrics.generated("quiet");
    let runs = metrics.runs();
    assert_eq!(runs.keys().collect::<Vec<_>>(), ["small"]);
    let page = metrics.text("digits", &gauges());
    for line in [
        "kaskade_variant_batches_total{app=\"digits\",variant=\"gpt\"} 0",
        "kaskade_variant_batches_total{app=\"digits\",variant=\"remote\"} 0",
        "kaskade_variant_steps_total{app=\"digits\",variant=\"gpt\"} 2",
        "kaskade_variant_steps_total{app=\"digits\",variant=\"remote\"} 0",
        "kaskade_variant_busy_seconds_total{app=\"digits\",variant=\"remote\"} 0.00002",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "{line}\nis not in\n{page}"
        );
    }
}

fn metered(metrics: &Metrics, joules: Option<f64>) {
    metrics.metered(EnergyReport {
        node: "a".into(),
        source: "modelled".into(),
        counter: None,
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
        plan_stale: true,
        epoch: Some(3),
        epoch_in_place: Some(2),
        failed_replicas: Some(1),
        in_flight: Some(1),
        queued: BTreeMap::from([("small".to_owned(), 2)]),
    }
}

#[test]
fn tokens_of_one_part_count_each_at_their_mean_time() {
    let metrics = Metrics::default();
    metrics.tokens("gpt", &Tokens::first(1, 3_000));
    metrics.tokens("gpt", &Tokens::next(4, 8_000));
    // The largest number that a model may report.
    metrics.tokens("other", &Tokens::next(u32::MAX, 1));
    let page = metrics.text("digits", &gauges());
    for line in [
        "kaskade_inter_token_latency_seconds_sum{app=\"digits\",variant=\"gpt\"} 0.008",
        "kaskade_inter_token_latency_seconds_count{app=\"digits\",variant=\"gpt\"} 4",
        "kaskade_inter_token_latency_seconds_count{app=\"digits\",variant=\"other\"} 4294967295",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
}

#[test]
fn counters_have_their_labels_and_values() {
    let metrics = busy();
    metered(&metrics, Some(2.5));
    let page = metrics.text("digits", &gauges());
    for line in [
        "kaskade_ready{app=\"digits\"} 1",
        "kaskade_saturated{app=\"digits\"} 0",
        "kaskade_plan_stale{app=\"digits\"} 1",
        "kaskade_plan_epoch{app=\"digits\"} 3",
        "kaskade_plan_epoch_in_place{app=\"digits\"} 2",
        "kaskade_failed_replicas{app=\"digits\"} 1",
        "kaskade_in_flight_requests{app=\"digits\"} 1",
        "kaskade_queued_requests{app=\"digits\",variant=\"small\"} 2",
        "kaskade_arrived_requests_total{app=\"digits\"} 2",
        "kaskade_request_seconds_bucket{app=\"digits\",le=\"0.001\"} 0",
        "kaskade_request_seconds_bucket{app=\"digits\",le=\"0.0015\"} 1",
        "kaskade_request_seconds_sum{app=\"digits\"} 0.0015",
        "kaskade_variant_queue_seconds_bucket{app=\"digits\",variant=\"small\",le=\"0.0001\"} 3",
        "kaskade_variant_queue_seconds_count{app=\"digits\",variant=\"small\"} 4",
        "kaskade_variant_run_seconds_count{app=\"digits\",variant=\"small\"} 1",
        "kaskade_variant_batch_size_bucket{app=\"digits\",variant=\"small\",le=\"4\"} 1",
        "kaskade_variant_batch_size_sum{app=\"digits\",variant=\"small\"} 4",
        "kaskade_error_replies_total{app=\"digits\",code=\"KSK0006\"} 1",
        "kaskade_variant_requests_total{app=\"digits\",variant=\"small\"} 4",
        "kaskade_generated_tokens_total{app=\"digits\",variant=\"gpt\"} 2",
        "kaskade_first_tokens_total{app=\"digits\",variant=\"gpt\"} 1",
        "kaskade_time_to_first_token_seconds_sum{app=\"digits\",variant=\"gpt\"} 0.003",
        "kaskade_inter_token_latency_seconds_sum{app=\"digits\",variant=\"gpt\"} 0.002",
        "kaskade_variant_busy_seconds_total{app=\"digits\",variant=\"small\"} 0.0007",
        "kaskade_fan_out_child_requests_total{app=\"digits\",variant=\"find\\\"er\",task=\"tell\"} 3",
        "kaskade_energy_joules_total{app=\"digits\",source=\"modelled\",counter=\"a\"} 2.5",
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

/// Checks the format line by line: samples follow the help and type of their metric, and each metric occurs once.
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
    let names = include_str!("../../metrics.rs")
        .lines()
        .filter(|line| line.starts_with("pub const ") && line.contains(": &str = \"kaskade_"))
        .map(|line| line.split('"').nth(1).unwrap());
    let missing: Vec<&str> = names
        .filter(|name| !page.contains(&format!("# TYPE {name} ")))
        .collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
}
