//! Report of a simulation as text.

use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_policy::plan::{Plan, Slo};
use kaskade_simulator::{BranchReport, Report, VariantReport};

/// Most paths of a pipeline that are printed.
const PATHS: usize = 12;

/// Renders the report of a cascade.
pub(super) fn of_cascade(plan: &Plan, report: &Report, took_s: f64) -> String {
    let joules = report
        .energy_j
        .map(|joules| joules / report.answered.max(1) as f64);
    format!(
        "{}\n{}: {} answered, {} expired, {} refused, {} failed; {}\n{}{}\n{}\n\
         accuracy: {}; busiest device: {}; busy energy per request: {}",
        heading(plan, report, took_s),
        units::count_with_separators(report.requests, "request", "requests"),
        units::count(report.answered),
        units::count(report.expired),
        units::count(report.refused),
        units::count(report.failed),
        units::count_with_separators(report.shifts, "shift", "shifts"),
        quantiles(report),
        objective(plan, report),
        variants(report),
        share(report.accuracy()),
        units::percent(report.max_utilisation()),
        units::joules(joules),
    )
}

/// Renders the report of a pipeline: outcomes, branches and paths.
pub(super) fn of_pipeline(plan: &Plan, report: &Report, took_s: f64) -> String {
    let shown = report.paths.len().min(PATHS);
    let more = match report.paths.len() - shown {
        0 => String::new(),
        more => format!("\nand {}", units::count_of(more, "more path", "more paths")),
    };
    format!(
        "{}\n{}; {} rerouted\n{}\n{}\n{}\n{}{more}\n\
         accuracy: {}, mean over requests; busiest device: {}; {:.1} devices in use",
        heading(plan, report, took_s),
        units::count_with_separators(report.requests, "request", "requests"),
        units::count_with_separators(report.rerouted, "branch", "branches"),
        outcomes(report),
        quantiles(report),
        batches(report),
        paths(report),
        share(report.path_accuracy()),
        units::percent(report.max_utilisation()),
        report.mean_active_devices(),
    )
}

fn heading(plan: &Plan, report: &Report, took_s: f64) -> String {
    format!(
        "{}: {}, {:.0} s simulated in {}",
        plan.app,
        plan.made_by,
        report.duration_us as f64 / 1e6,
        units::seconds(took_s)
    )
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "unknown".to_owned(), units::percent)
}

/// Renders requests and their branches by outcome.
fn outcomes(report: &Report) -> String {
    let row = |name: &str, counts: [u64; 6], violations: Option<f64>, accuracy: Option<f64>| {
        let [answered, late, dropped, expired, refused, failed] = counts.map(units::count);
        let name = name.to_owned();
        let (violations, accuracy) = (share(violations), share(accuracy));
        [
            name, answered, late, dropped, expired, refused, failed, violations, accuracy,
        ]
    };
    let branches: &BranchReport = &report.branches;
    let heads = [
        "answered",
        "of them late",
        "dropped",
        "expired",
        "refused",
        "failed",
        "violations",
        "accuracy",
    ]
    .map(|head| (head, Align::Right));
    let [
        answered,
        late,
        dropped,
        expired,
        refused,
        failed,
        violations,
        accuracy,
    ] = heads;
    table(
        [
            ("", Align::Left),
            answered,
            late,
            dropped,
            expired,
            refused,
            failed,
            violations,
            accuracy,
        ],
        [
            row(
                "requests",
                [
                    report.answered,
                    report.late,
                    report.dropped,
                    report.expired,
                    report.refused,
                    report.failed,
                ],
                report.slo_violation_ratio(),
                report.path_accuracy(),
            ),
            row(
                "branches",
                [
                    branches.answered,
                    branches.late,
                    branches.dropped,
                    branches.expired,
                    branches.refused,
                    branches.failed,
                ],
                branches.slo_violation_ratio(),
                branches.accuracy(),
            ),
        ],
    )
}

/// Renders the paths through the tasks, the most frequent first.
fn paths(report: &Report) -> String {
    let mut taken: Vec<_> = report.paths.iter().collect();
    taken.sort_by_key(|path| std::cmp::Reverse(path.answered));
    let all = report.branches.answered.max(1) as f64;
    let rows = taken.into_iter().take(PATHS).map(|path| {
        let steps: Vec<&str> = path.path.iter().map(|(_, variant)| variant.as_str()).collect();
        [
            steps.join(" -> "),
            units::count(path.answered),
            units::percent(path.answered as f64 / all),
            share(path.accuracy),
        ]
    });
    table(
        [
            ("path", Align::Left),
            ("branches", Align::Right),
            ("of all", Align::Right),
            ("accuracy", Align::Right),
        ],
        rows,
    )
}

fn quantiles(report: &Report) -> String {
    let micros = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), |us| units::seconds(us as f64 / 1e6));
    let latency = &report.latency;
    table(
        ["p50", "p95", "p99", "p99.9", "max"].map(|head| (head, Align::Right)),
        [[
            micros(latency.quantile(0.5)),
            micros(latency.p95()),
            micros(latency.quantile(0.99)),
            micros(latency.quantile(0.999)),
            micros(latency.quantile(1.0)),
        ]],
    )
}

/// Compares the 95th percentile with the objective of the plan, on a line of its own; empty if the plan has none.
fn objective(plan: &Plan, report: &Report) -> String {
    let (Some(Slo::Latency { p95_us }), Some(reached)) = (plan.slo, report.latency.p95()) else {
        return String::new();
    };
    let promised = units::seconds(p95_us as f64 / 1e6);
    let verdict = if reached <= p95_us { "kept" } else { "missed" };
    format!("\nthe plan promises a p95 of at most {promised}: {verdict}")
}

/// Renders the work of a cascade's variants and their shares of the answers.
fn variants(report: &Report) -> String {
    let share = |count: u64| units::percent(count as f64 / report.answered.max(1) as f64);
    let ran = report.variants.iter().filter(|variant| variant.runs > 0);
    let rows = ran.map(|variant| {
        let [runs, mean] = work(variant);
        [variant.name.clone(), share(variant.answered), runs, mean]
    });
    table(
        [
            ("variant", Align::Left),
            ("answered", Align::Right),
            ("requests", Align::Right),
            ("mean batch", Align::Right),
        ],
        rows,
    )
}

/// Renders the work of a pipeline's variants.
fn batches(report: &Report) -> String {
    let ran = report.variants.iter().filter(|variant| variant.runs > 0);
    let rows = ran.map(|variant| {
        let [runs, mean] = work(variant);
        [variant.name.clone(), runs, mean]
    });
    table(
        [
            ("variant", Align::Left),
            ("requests", Align::Right),
            ("mean batch", Align::Right),
        ],
        rows,
    )
}

fn work(variant: &VariantReport) -> [String; 2] {
    let mean = format!("{:.1}", variant.mean_batch().unwrap_or(0.0));
    [units::count(variant.runs), mean]
}
