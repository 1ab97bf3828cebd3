//! The page of certificates: what audits, labels and drift say about each cascade of the certified list, and the findings.

use std::fmt::Write as _;

use kaskade_actors::wire::{CascadeStatus, CertificateFinding, CertificateNotice, CertificateReport};
use kaskade_app::report::units;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Row, Table};

use super::super::view::View;
use super::{Place, block};

/// Draws the page.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View, place: &mut Place) {
    let Some(report) = view.certificates().filter(|report| !report.cascades.is_empty()) else {
        let why =
            "The plan has no certified cascades, or no process reports them: see `plan cascade --max-loss`.";
        let text = Paragraph::new(Line::from(why).dim()).block(block("certified cascades"));
        frame.render_widget(text, area);
        return;
    };
    let rows = report.cascades.len() as u16;
    let [list, findings] =
        Layout::vertical([Constraint::Length(rows.saturating_add(2)), Constraint::Min(3)]).areas(area);
    cascades(frame, list, report);
    let lines: Vec<Line<'_>> = view
        .findings
        .iter()
        .rev()
        .map(|(at, notice)| {
            let ago = view.now.saturating_sub(*at).as_secs();
            Line::from(vec![format!("{ago} s ago  ").dim(), said(notice)])
        })
        .collect();
    let lines = if lines.is_empty() {
        vec![Line::from("none since this program started").dim()]
    } else {
        lines
    };
    let first = place.first(lines.len(), usize::from(findings.height.saturating_sub(1)));
    let lines: Vec<Line<'_>> = lines.into_iter().skip(first).collect();
    let text = Paragraph::new(lines).block(block("findings, the newest first"));
    frame.render_widget(text, findings);
}

/// The cascades of the list, those that may not run dimmed.
fn cascades(frame: &mut Frame<'_>, area: Rect, report: &CertificateReport) {
    let rows = report.cascades.iter().zip(0_u32..).map(|(cascade, place)| {
        let number = if place == report.limit {
            format!("{} runs", place + 1)
        } else {
            (place + 1).to_string()
        };
        let drift = if cascade.inputs_drifted {
            Text::from("drifted".fg(Color::Yellow))
        } else {
            Text::from("-")
        };
        let row = Row::new([
            Text::from(number),
            Text::from(cascade.audited.to_string()),
            Text::from(live(cascade.audited, cascade.differs)),
            Text::from(cascade.may_differ.map_or_else(|| "-".to_owned(), units::percent)),
            Text::from(cascade.labelled.to_string()),
            Text::from(live(cascade.labelled, cascade.loss)),
            Text::from(units::percent(cascade.may_lose)),
            drift,
        ]);
        match place.cmp(&report.limit) {
            std::cmp::Ordering::Less => row,
            std::cmp::Ordering::Equal => row.bold(),
            std::cmp::Ordering::Greater => row.dim(),
        }
    });
    let heads = [
        "cascade", "audits", "differs", "at most", "labels", "loses", "at most", "inputs",
    ];
    let widths = [
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(7),
    ];
    let table = Table::new(rows, widths)
        .header(Row::new(heads).bold())
        .block(block(
            "certified cascades, from the largest variant alone to the cheapest",
        ));
    frame.render_widget(table, area);
}

/// The interval of a share, if anything was counted for it.
fn live(count: u64, [low, high]: [f64; 2]) -> String {
    if count == 0 {
        "-".to_owned()
    } else {
        let low = units::percent(low);
        format!("{} to {}", low.trim_end_matches(" %"), units::percent(high))
    }
}

/// The line of the cascade that runs, for the page of the app.
pub(super) fn running(report: &CertificateReport) -> Option<Line<'static>> {
    let running = report.cascades.get(report.limit as usize)?;
    let mut text = format!(
        "certified cascade {} of {}",
        report.limit + 1,
        report.cascades.len()
    );
    if running.audited > 0 {
        let differs = live(running.audited, running.differs);
        let _ = write!(text, ": differs {differs} in {} audits", running.audited);
        if let Some(high) = running.may_differ {
            let _ = write!(text, ", at most {}", units::percent(high));
        }
    }
    let fell = report.limit as usize + 1 < report.cascades.len();
    let mut spans: Vec<Span<'static>> = vec![if fell { text.fg(Color::Yellow) } else { text.into() }];
    if report
        .cascades
        .iter()
        .any(|cascade: &CascadeStatus| cascade.inputs_drifted)
    {
        spans.push("; the inputs have drifted".fg(Color::Yellow));
    }
    Some(Line::from(spans))
}

/// A finding as a sentence.
fn said(notice: &CertificateNotice) -> Span<'static> {
    match &notice.found {
        CertificateFinding::Refuted { from, to, by } => format!(
            "{by} refute the certificate of cascade {}: cascade {} runs",
            from + 1,
            to + 1
        )
        .fg(Color::Red),
        CertificateFinding::Restored { to, .. } => {
            format!("the certificate of cascade {} holds again", to + 1).fg(Color::Green)
        }
        CertificateFinding::InputsDrifted { cascade, stage } => format!(
            "the inputs of stage {stage} of cascade {} have drifted",
            cascade + 1
        )
        .fg(Color::Yellow),
        CertificateFinding::Settled { cascade } => {
            format!("no further drift of cascade {}", cascade + 1).into()
        }
    }
}
