//! The dashboard on a terminal: pages, drawn from a view. It needs 80 columns and 24 rows, and uses more.

mod app;
mod certificates;
mod lists;
#[cfg(test)]
mod tests;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders};

use super::view::{Liveness, View};

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Leave,
    NextPage,
    PreviousPage,
    Page(usize),
    /// Move by this many lines.
    Scroll(isize),
    /// The size of the terminal has changed.
    Redraw,
}

/// The pages, in order.
const PAGES: [&str; 5] = ["app", "replicas", "processes", "errors", "certificates"];

/// Where the user looks.
#[derive(Debug, Default)]
pub(super) struct Place {
    page: usize,
    /// Lines above the first one that is shown; drawing bounds it.
    scroll: usize,
}

impl Place {
    /// Moves.
    pub(super) fn press(&mut self, key: Key) {
        let page = match key {
            Key::NextPage => self.page + 1,
            Key::PreviousPage => self.page + PAGES.len() - 1,
            Key::Page(page) if page < PAGES.len() => page,
            Key::Scroll(by) => {
                self.scroll = self.scroll.saturating_add_signed(by);
                return;
            }
            Key::Leave | Key::Redraw | Key::Page(_) => return,
        };
        (self.page, self.scroll) = (page % PAGES.len(), 0);
    }

    /// Returns the first line to show of `lines`, of which `height` fit.
    fn first(&mut self, lines: usize, height: usize) -> usize {
        self.scroll = self.scroll.min(lines.saturating_sub(height));
        self.scroll
    }
}

/// Draws a page.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, place: &mut Place) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(title(view), head);
    match place.page {
        0 => app::draw(frame, body, view),
        1 => lists::replicas(frame, body, view, place),
        2 => lists::processes(frame, body, view, place),
        3 => lists::errors(frame, body, view, place),
        _ => certificates::draw(frame, body, view, place),
    }
    frame.render_widget(pages(place), foot);
}

fn title(view: &View) -> Line<'static> {
    let mut spans = vec![Span::from(view.snapshot.app.clone()).bold()];
    spans.push(Span::from(format!(" · epoch {}", view.snapshot.epoch)));
    if let Some((index, gear)) = view.gear() {
        let all = view.plan.as_ref().map_or(1, |(_, plan)| plan.gears.len());
        spans.push(Span::from(format!(
            " · gear {} ({} of {all})",
            gear.name,
            index + 1
        )));
    }
    let live = view
        .replicas
        .iter()
        .filter(|replica| replica.liveness == Liveness::Live);
    let (live, all) = (live.count(), view.replicas.len());
    let replicas = Span::from(format!(" · {live} of {all} replicas live"));
    spans.push(if live < all {
        replicas.fg(Color::Red)
    } else {
        replicas
    });
    Line::from(spans)
}

/// The pages, and the keys.
fn pages(place: &Place) -> Line<'static> {
    let mut spans = Vec::new();
    for (index, page) in PAGES.iter().enumerate() {
        let style = if index == place.page {
            Style::new().reversed()
        } else {
            Style::new().dim()
        };
        spans.push(Span::styled(format!(" {page} "), style));
    }
    spans.push(Span::from("  Tab or 1-5 · arrows · q leave").dim());
    Line::from(spans)
}

fn block(title: &'static str) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

const fn colour(liveness: Liveness) -> Color {
    match liveness {
        Liveness::Live => Color::Green,
        Liveness::Leaving => Color::DarkGray,
        Liveness::Unavailable => Color::Yellow,
        Liveness::Silent => Color::Red,
    }
}
