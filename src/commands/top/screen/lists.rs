//! The pages of lists: replicas, processes, errors.

use std::collections::BTreeMap;

use kaskade_actors::Code;
use kaskade_app::report::units;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

use super::super::view::{Liveness, View};
use super::{Place, block, colour};

/// Most lines of the counts by variant.
const VARIANTS: usize = 6;

/// Counts of replicas by variant and liveness, then the replicas one by one, those to look at first.
pub(super) fn replicas(frame: &mut Frame<'_>, area: Rect, view: &View, place: &mut Place) {
    let mut counts: BTreeMap<&str, BTreeMap<Liveness, usize>> = BTreeMap::new();
    for replica in &view.replicas {
        let by_state = counts.entry(&replica.variant).or_default();
        *by_state.entry(replica.liveness).or_default() += 1;
    }
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (variant, states) in counts.iter().take(VARIANTS) {
        let mut spans: Vec<Span<'_>> = vec![variant.bold(), ":".into()];
        for liveness in Liveness::ALL {
            if let Some(count) = states.get(&liveness) {
                spans.push(format!(" {count} {}", liveness.name()).fg(colour(liveness)));
            }
        }
        lines.push(Line::from(spans));
    }
    if counts.len() > VARIANTS {
        let more = counts.len() - VARIANTS;
        lines.push(
            Line::from(format!(
                "and {}",
                units::count_of(more, "more variant", "more variants")
            ))
            .dim(),
        );
    }
    let height = lines.len().max(1) as u16 + 1;
    let [summary, list] = Layout::vertical([Constraint::Length(height), Constraint::Min(3)]).areas(area);
    let title = format!(
        "replicas, by {}",
        units::count_of(view.ingresses(), "ingress", "ingresses")
    );
    frame.render_widget(Paragraph::new(lines).block(block("").title(title)), summary);
    let rows = view.replicas.iter().map(|replica| {
        Row::new([
            Text::from(replica.id.as_str()),
            Text::from(replica.variant.as_str()),
            Text::from(replica.worker.as_str()),
            Text::from(replica.liveness.name().fg(colour(replica.liveness))),
            Text::from(replica.queue.to_string()),
            Text::from(replica.in_flight.to_string()),
        ])
    });
    let heads = ["replica", "variant", "worker", "state", "queue", "in flight"];
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(11),
        Constraint::Length(6),
        Constraint::Length(9),
    ];
    scrolled(frame, list, place, (heads, widths), rows.collect());
}

/// The processes with their power and its source.
pub(super) fn processes(frame: &mut Frame<'_>, area: Rect, view: &View, place: &mut Place) {
    let rows = view.snapshot.nodes.iter().map(|node| {
        Row::new([
            node.node.clone(),
            node.cores
                .map_or_else(|| "-".to_owned(), |cores| format!("{cores:.2}")),
            node.watts
                .map_or_else(|| "unknown".to_owned(), |power| units::prefixed(power, "W")),
            units::joules(node.joules),
            node.models.to_string(),
            node.source.clone(),
        ])
    });
    let heads = [
        "process",
        "cores",
        "power",
        "since start",
        "variants",
        "energy source",
    ];
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(11),
        Constraint::Length(8),
        Constraint::Fill(2),
    ];
    scrolled(frame, area, place, (heads, widths), rows.collect());
}

/// Draws the part of a table that is scrolled to.
fn scrolled<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    place: &mut Place,
    (heads, widths): ([&'static str; N], [Constraint; N]),
    rows: Vec<Row<'_>>,
) {
    let height = usize::from(area.height.saturating_sub(2));
    let all = rows.len();
    let first = place.first(all, height);
    let until = (first + height).min(all);
    let title = if all > height {
        format!("{} to {until} of {all}", first + 1)
    } else {
        format!("{all}")
    };
    let rows = rows.into_iter().skip(first).take(height);
    let table = Table::new(rows, widths)
        .header(Row::new(heads).bold())
        .block(block("").title(title));
    frame.render_widget(table, area);
}

/// Errors by code with what they mean, and the last one.
pub(super) fn errors(frame: &mut Frame<'_>, area: Rect, view: &View, place: &mut Place) {
    let mut lines: Vec<Line<'_>> = Vec::new();
    if let Some(last) = &view.last_error {
        lines.push(Line::from(vec!["last: ".bold(), last.as_str().fg(Color::Red)]));
        lines.push(Line::default());
    }
    for (id, count) in view.errors() {
        let code = Code::ALL.iter().find(|code| code.id() == id);
        let title = code.map_or("", |code| code.title());
        lines.push(Line::from(vec![
            format!("{count} × {id} ").bold(),
            title.to_owned().into(),
        ]));
        let explained = code.map_or("", |code| code.explain()).lines();
        lines.extend(explained.map(|line| Line::from(format!("    {line}")).dim()));
    }
    if lines.is_empty() {
        lines.push(Line::from("none").fg(Color::Green));
    }
    let first = place.first(lines.len(), usize::from(area.height.saturating_sub(1)));
    let lines: Vec<Line<'_>> = lines.into_iter().skip(first).collect();
    let text = Paragraph::new(lines)
        .wrap(Wrap { trim: false })
        .block(block("errors since the start of the ingresses"));
    frame.render_widget(text, area);
}
