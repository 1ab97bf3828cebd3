//! The plain form of `kaskade top`: tables, one refresh after the other.

use kaskade_actors::wire::CertificateReport;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_app::serving::overview::{AppSnapshot, ModelRow, NodeRow};

pub(super) fn as_text(snapshot: &AppSnapshot) -> String {
    let gear = snapshot
        .gear
        .map_or_else(String::new, |gear| format!(", gear {gear}"));
    let ingresses = snapshot.ingresses.map_or_else(
        || "no ingress reports".to_owned(),
        |rates| {
            format!(
                "{:.1} requests/s, {:.1} answered/s{}, {:.1} errors/s, {:.1} retries/s",
                rates.arrived_per_s,
                rates.answered_per_s,
                rates.mean_latency_s.map_or_else(String::new, |mean| format!(
                    " in {} on average",
                    units::seconds(mean)
                )),
                rates.errors_per_s,
                rates.retried_per_s,
            )
        },
    );
    format!(
        "{} · epoch {}{gear}\n{ingresses}\nper request: energy {}, cost {}; total power {} (idle included)\n{}\n{}\n\n{}{}",
        snapshot.app,
        snapshot.epoch,
        units::joules(snapshot.joules_per_request),
        units::money_with_source(snapshot.money_per_request, snapshot.money_source),
        watts(snapshot.watts),
        snapshot
            .certificates
            .as_ref()
            .map_or_else(String::new, certificates),
        models(&snapshot.models),
        tokens(&snapshot.models),
        nodes(&snapshot.nodes),
    )
}

/// What is known of the certificate of the cascade that runs, as a line.
pub(super) fn certificates(report: &CertificateReport) -> String {
    let Some(running) = report.cascades.get(report.limit as usize) else {
        return String::new();
    };
    let range = |[low, high]: [f64; 2]| format!("{} to {}", units::percent(low), units::percent(high));
    let mut parts = vec![format!(
        "certified cascade {} of {}",
        report.limit + 1,
        report.cascades.len()
    )];
    if running.audited > 0 {
        let allowed = running.may_differ.map_or_else(String::new, |high| {
            format!(", at most {} expected", units::percent(high))
        });
        parts.push(format!(
            "{} of {} audited answers differ from the largest variant's{allowed}",
            range(running.differs),
            running.audited
        ));
    }
    if running.labelled > 0 {
        parts.push(format!(
            "loss {} by {} labels, at most {} certified",
            range(running.loss),
            running.labelled,
            units::percent(running.may_lose)
        ));
    }
    if report.cascades.iter().any(|cascade| cascade.inputs_drifted) {
        parts.push("the inputs have drifted".to_owned());
    }
    format!("{}\n", parts.join("; "))
}

pub(super) fn models(rows: &[ModelRow]) -> String {
    let heads = [
        ("variant", Align::Left),
        ("replicas", Align::Right),
        ("requests/s", Align::Right),
        ("batch", Align::Right),
        ("busy", Align::Right),
        ("queue", Align::Right),
        ("power", Align::Right),
        ("per request", Align::Right),
        ("cost", Align::Right),
    ];
    let rows = rows.iter().map(|row| {
        let money = if row.requests_per_s > 0.0 {
            units::money_with_source(row.money_per_request(), row.money_source)
        } else {
            "-".to_owned()
        };
        [
            row.variant.clone(),
            row.replicas.to_string(),
            format!("{:.1}", row.requests_per_s),
            row.batch()
                .map_or_else(|| "-".to_owned(), |batch| format!("{batch:.1}")),
            units::percent(row.busy / row.replicas.max(1) as f64),
            row.queue.to_string(),
            watts(row.watts),
            units::joules(row.joules_per_request()),
            money,
        ]
    });
    table(heads, rows)
}

/// The table of language models; empty if there is none.
fn tokens(rows: &[ModelRow]) -> String {
    let heads = [
        ("variant", Align::Left),
        ("tokens/s", Align::Right),
        ("to the first", Align::Right),
        ("between two", Align::Right),
        ("per token", Align::Right),
    ];
    let seconds = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), units::seconds);
    let mut rows = rows.iter().filter(|row| row.tokens_per_s > 0.0).peekable();
    if rows.peek().is_none() {
        return String::new();
    }
    let rows = rows.map(|row| {
        [
            row.variant.clone(),
            format!("{:.1}", row.tokens_per_s),
            seconds(row.made.to_first_s()),
            seconds(row.made.between_s()),
            units::joules(row.joules_per_token()),
        ]
    });
    format!("{}\n\n", table(heads, rows))
}

fn nodes(rows: &[NodeRow]) -> String {
    let heads = [
        ("process", Align::Left),
        ("cores", Align::Right),
        ("power", Align::Right),
        ("since its start", Align::Right),
        ("energy source", Align::Left),
    ];
    let rows = rows.iter().map(|row| {
        [
            row.node.clone(),
            row.cores
                .map_or_else(|| "-".to_owned(), |cores| format!("{cores:.2}")),
            watts(row.watts),
            units::joules(row.joules),
            row.source.clone(),
        ]
    });
    table(heads, rows)
}

fn watts(power: Option<f64>) -> String {
    power.map_or_else(|| "unknown".to_owned(), |power| units::prefixed(power, "W"))
}
