//! The report of a load.

use kaskade_app::load::record::{Figures, Latency};
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use serde::Serialize;

/// Results of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) app: String,
    pub(super) load: String,
    /// Whether Ctrl-C ended the run early.
    pub(super) interrupted: bool,
    pub(super) accuracy: Option<f64>,
    pub(super) joules_per_request: Option<f64>,
    pub(super) energy_source: Option<String>,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// Returns the title of the table of latencies, with the requests that are not in it.
fn latency_title(figures: &Figures) -> String {
    let missing = [
        (figures.timed_out, "timed out"),
        (figures.refused, "refused"),
        (figures.lost, "lost"),
    ];
    let missing = missing.iter().filter(|(count, _)| *count > 0);
    let missing: Vec<String> = missing
        .map(|(count, what)| format!("{} {what}", units::count(*count)))
        .collect();
    let title = format!(
        "latency of the {} answered requests",
        units::count(figures.answered)
    );
    if missing.is_empty() {
        return title;
    }
    format!(
        "{title}, without the {} ({})",
        units::percent(figures.error_rate),
        missing.join(", ")
    )
}

/// Returns a table of the latencies, and of the times of tokens if answers were streamed.
fn latencies(figures: &Figures) -> String {
    let millis = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2} ms"));
    let row = |name: &str, times: Latency| {
        [
            name.to_owned(),
            millis(times.mean),
            millis(times.p50),
            millis(times.p90),
            millis(times.p95),
            millis(times.p99),
            millis(times.p999),
            millis(times.max),
        ]
    };
    let mut rows = vec![row("latency", figures.latency_ms)];
    if let Some(stream) = &figures.stream {
        rows.push(row("time to first token", stream.ttft_ms));
        rows.push(row("time per output token", stream.tpot_ms));
    }
    let heads = ["mean", "p50", "p90", "p95", "p99", "p99.9", "max"].map(|head| (head, Align::Right));
    let [mean, p50, p90, p95, p99, p999, max] = heads;
    table([("", Align::Left), mean, p50, p90, p95, p99, p999, max], rows)
}

/// Formats a report for people.
pub(super) fn as_text(report: &Report) -> String {
    let figures = &report.figures;
    let times = latencies(figures);
    let shares = figures
        .variants
        .iter()
        .map(|(name, share)| format!("{name} {}", units::percent(*share)));
    let errors = figures
        .errors
        .iter()
        .map(|(code, count)| format!("{code} {count}"));
    let listed = |items: Vec<String>| {
        if items.is_empty() {
            "none".to_owned()
        } else {
            items.join(", ")
        }
    };
    let degraded = if figures.degraded > 0.0 {
        format!(
            "{} of the answers: a later stage was unavailable; an earlier stage's below-threshold answer was returned",
            units::percent(figures.degraded)
        )
    } else {
        "none".to_owned()
    };
    let accuracy = report
        .accuracy
        .map_or_else(|| "unknown".to_owned(), units::percent);
    let source = report
        .energy_source
        .as_deref()
        .unwrap_or("the app runs in another process; see `kaskade top`");
    let lost = if figures.lost > 0 {
        format!(", {} lost", units::count(figures.lost))
    } else {
        String::new()
    };
    let goodput = figures.goodput_per_s.zip(figures.slo_ms);
    let goodput = goodput.map_or_else(String::new, |(goodput, slo)| {
        format!(", of which {goodput:.1} /s within {slo} ms")
    });
    let tokens = figures.stream.map_or_else(String::new, |stream| {
        let (count, rate) = (units::count(stream.output_tokens), stream.output_tokens_per_s);
        format!("tokens: {count}, {rate:.1} /s\n")
    });
    let end = if report.interrupted { ", interrupted" } else { "" };
    format!(
        "{}: {}, {:.1} s{end}\n\
         {} sent, {} answered, {} refused, {} timed out{lost}: {:.1} answers/s{goodput}\n{}\n{times}\n\
         {tokens}answered by: {}\ndegraded: {degraded}\nerrors: {}\naccuracy: {accuracy}\nenergy per request: {} ({source})",
        report.app,
        report.load,
        figures.seconds,
        units::count(figures.sent),
        units::count(figures.answered),
        units::count(figures.refused),
        units::count(figures.timed_out),
        figures.throughput_per_s,
        latency_title(figures),
        listed(shares.collect()),
        listed(errors.collect()),
        units::joules(report.joules_per_request),
    )
}
