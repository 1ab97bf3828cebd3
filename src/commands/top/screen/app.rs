//! The page of the app: rates, wiring, load and gears, variants.

use std::fmt::Write as _;

use kaskade_app::report::units;
use kaskade_policy::plan::{Edge, Exit, Gear, Guarantee, Stage, Target};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Sparkline, Table};

use super::super::view::View;
use super::{block, certificates};

/// Most lines of the wiring that are shown.
const WIRING: usize = 9;

/// Draws the page.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let wiring = wiring(view);
    let height = wiring.len().clamp(1, WIRING) as u16 + 1;
    let [now, wired, load, variants] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(height),
        Constraint::Length(5),
        Constraint::Min(3),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(rates(view)).block(block("now")), now);
    frame.render_widget(
        Paragraph::new(wiring).block(block(
            "wiring in force, with the share of the requests on every edge",
        )),
        wired,
    );
    draw_load(frame, load, view);
    draw_variants(frame, variants, view);
}

fn seconds(time: Option<f64>) -> String {
    time.map_or_else(|| "-".to_owned(), units::seconds)
}

fn rates(view: &View) -> Vec<Line<'static>> {
    let snapshot = &view.snapshot;
    let Some(rates) = snapshot.ingresses else {
        return vec![Line::from("no ingress reports").fg(Color::Red)];
    };
    let errors = format!("{:.1} errors/s", rates.errors_per_s);
    let errors = if rates.errors_per_s > 0.0 {
        errors.fg(Color::Red)
    } else {
        errors.into()
    };
    let source = snapshot
        .money_source
        .map_or_else(String::new, |source| format!(" ({})", source.name()));
    let energy = format!(
        "energy {}, cost {}{source} per request · total {}, idle included",
        units::joules(snapshot.joules_per_request),
        units::money(snapshot.money_per_request),
        snapshot
            .watts
            .map_or_else(|| "power unknown".to_owned(), |power| units::prefixed(power, "W")),
    );
    vec![
        Line::from(vec![
            format!(
                "{:.1} requests/s · {:.1} answered/s · ",
                rates.arrived_per_s, rates.answered_per_s
            )
            .into(),
            errors,
            format!(" · {:.1} retries/s", rates.retried_per_s).into(),
        ]),
        Line::from(format!(
            "latency p50 {} · p95 {} · p99 {} · mean {}",
            seconds(rates.p50_s),
            seconds(rates.p95_s),
            seconds(rates.p99_s),
            seconds(rates.mean_latency_s),
        )),
        Line::from(energy),
    ]
}

fn wiring(view: &View) -> Vec<Line<'static>> {
    let Some((_, gear)) = view.gear() else {
        return vec![Line::from("unknown: the plan store cannot be read from here").dim()];
    };
    let mut lines: Vec<Line<'static>> = Vec::new();
    for stage in &gear.wiring.stages {
        let runs = if stage.name == stage.variant {
            stage.name.clone()
        } else {
            format!("{} runs {}", stage.name, stage.variant)
        };
        let mut ways = String::new();
        for (band, to) in edges(stage) {
            let share = share(view, gear, &stage.name, &to.stage);
            let _ = write!(ways, "  {band} → {} {share}", to.stage);
        }
        lines.push(Line::from(vec![runs.bold(), ways.into()]));
    }
    if let Some((_, plan)) = &view.plan
        && let Some(certificate) = &plan.certificate
    {
        let proven = match &certificate.guarantee {
            Guarantee::MaxLoss { loss, against } => {
                format!("loss against {against} at most {}", units::percent(*loss))
            }
            Guarantee::MinAccuracy { accuracy } => format!("accuracy at least {}", units::percent(*accuracy)),
            _ => "a guarantee that this version does not know".to_owned(),
        };
        lines.push(Line::from(format!(
            "certificate: {proven}, with confidence {} on {} samples",
            units::percent(certificate.confidence),
            certificate.samples
        )));
    }
    lines.extend(view.certificates().and_then(certificates::running));
    if let Some((at, drift)) = &view.load_drift {
        let ago = view.now.saturating_sub(*at).as_secs();
        let text = format!(
            "drift of the load {:.2} from the plan, {ago} s ago",
            drift.distance
        );
        lines.push(Line::from(text).fg(Color::Yellow));
    }
    lines
}

/// The edges of a stage, with the confidences that take them.
fn edges(stage: &Stage) -> Vec<(String, &Edge)> {
    match &stage.exit {
        Exit::Reply => Vec::new(),
        Exit::Next { to } => vec![(String::new(), to)],
        Exit::FanOut { children } => children
            .iter()
            .map(|child| ("each".to_owned(), &child.to))
            .collect(),
        Exit::Bands { bands } => {
            let mut edges = Vec::new();
            for (index, band) in bands.iter().enumerate() {
                let Target::Stage(to) = &band.to else { continue };
                let until = bands.get(index + 1).map_or(1.0, |next| next.from);
                let range = if band.from > 0.0 {
                    format!("{:.3} to {until:.3}", band.from)
                } else {
                    format!("below {until:.3}")
                };
                edges.push((range, to));
            }
            edges
        }
    }
}

/// The share of the requests that take an edge.
fn share(view: &View, gear: &Gear, from: &str, to: &str) -> String {
    let entry = &gear.wiring.entry.stage;
    let variant = |stage: &str| {
        let stage = gear.wiring.stages.iter().find(|found| found.name == stage)?;
        let row = view
            .snapshot
            .models
            .iter()
            .find(|row| row.variant == stage.variant)?;
        Some(row.requests_per_s)
    };
    let taken = view
        .snapshot
        .edges
        .iter()
        .find(|edge| edge.from == from && edge.to == to);
    match variant(entry).filter(|rate| *rate > 0.0) {
        None => "-".to_owned(),
        Some(all) => units::percent(taken.map_or(0.0, |edge| edge.per_s) / all),
    }
}

fn draw_load(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let width = area.width as usize;
    let skipped = view.history.len().saturating_sub(width);
    let recent = || view.history.iter().skip(skipped);
    // Gears by their number from 1, the newest at the right, as the load above it.
    let gears: String = recent()
        .map(|point| {
            let gear = point.gear.map(|gear| (gear + 1) % 36);
            gear.and_then(|gear| char::from_digit(gear, 36)).unwrap_or('·')
        })
        .collect();
    let most = recent().map(|point| point.arrived_per_s).fold(0.0, f64::max);
    let shifts: Vec<String> = view
        .shifts
        .iter()
        .rev()
        .map(|(at, shift)| {
            let ago = view.now.saturating_sub(*at).as_secs();
            format!(
                "{} to {} at {:.0}/s {ago} s ago",
                shift.from + 1,
                shift.to + 1,
                shift.qps
            )
        })
        .collect();
    let shifts = if shifts.is_empty() {
        "gear below; no shift lately".to_owned()
    } else {
        format!("gear below; shifts: {}", shifts.join(", "))
    };
    let title = format!("load, at most {most:.0} requests/s · {shifts}");
    let title: String = title.chars().take(width).collect();
    let loads: Vec<u64> = recent()
        .map(|point| (point.arrived_per_s * 10.0) as u64)
        .collect();
    let [chart, line] = Layout::vertical([Constraint::Length(4), Constraint::Length(1)]).areas(area);
    let block = block("").title(title);
    frame.render_widget(Sparkline::default().data(loads).block(block), chart);
    frame.render_widget(Paragraph::new(gears).dim(), line);
}

fn draw_variants(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let heads = [
        "variant",
        "replicas",
        "req/s",
        "batch",
        "busy",
        "queue",
        "power",
        "J/request",
        "cost",
        "tokens/s",
    ];
    let rows = view.snapshot.models.iter().map(|row| {
        let tokens = if row.tokens_per_s > 0.0 {
            format!("{:.1}", row.tokens_per_s)
        } else {
            "-".to_owned()
        };
        let (energy, spent) = if row.requests_per_s > 0.0 {
            (
                units::joules(row.joules_per_request()),
                units::money(row.money_per_request()),
            )
        } else {
            ("-".to_owned(), "-".to_owned())
        };
        Row::new([
            row.variant.clone(),
            row.replicas.to_string(),
            format!("{:.1}", row.requests_per_s),
            row.batch()
                .map_or_else(|| "-".to_owned(), |batch| format!("{batch:.1}")),
            units::percent(row.busy / row.replicas.max(1) as f64),
            row.queue.to_string(),
            row.watts
                .map_or_else(|| "unknown".to_owned(), |power| units::prefixed(power, "W")),
            energy,
            spent,
            tokens,
        ])
    });
    let widths = [
        Constraint::Min(8),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(5),
        Constraint::Length(7),
        Constraint::Length(5),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
    ];
    let table = Table::new(rows, widths)
        .header(Row::new(heads).bold())
        .block(block(
            "variants; energy and cost per request that the variant ran",
        ));
    frame.render_widget(table, area);
}
