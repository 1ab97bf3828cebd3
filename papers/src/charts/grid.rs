//! A grid of figures: devices needed by latency and accuracy (CascadeServe Figure 7).

use kaskade_app::charts::ChartError;
use kaskade_app::charts::drawing::{Drawn, axis, palette, text, title, with_dark_mode};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

/// A table of coloured cells.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Grid {
    /// Title.
    pub(crate) title: String,
    /// Name and unit of the columns.
    pub(crate) column_axis: String,
    /// Names of the columns, from the left.
    pub(crate) columns: Vec<String>,
    /// Name of the rows.
    pub(crate) row_axis: String,
    /// Rows from the top: a name, and a cell for each column.
    pub(crate) rows: Vec<(String, Vec<Cell>)>,
}

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    /// Text of the cell.
    pub(crate) says: String,
    /// Whether it is emphasised.
    pub(crate) strong: bool,
}

const CELL: (i32, i32) = (104, 44);
const LEFT: i32 = 110;
const TOP: i32 = 92;

/// Draws it.
///
/// # Errors
/// When there are no rows or no columns.
pub(crate) fn svg(grid: &Grid) -> Result<String, ChartError> {
    if grid.rows.is_empty() || grid.columns.is_empty() {
        return Err(ChartError::Empty {
            what: "grid",
            title: grid.title.clone(),
            missing: "cells",
        });
    }
    let mut drawn = String::new();
    draw(grid, &mut drawn).map_err(ChartError::backend("grid"))?;
    Ok(with_dark_mode(&drawn))
}

fn draw(grid: &Grid, into: &mut String) -> Drawn {
    let (columns, rows) = (
        i32::try_from(grid.columns.len())?,
        i32::try_from(grid.rows.len())?,
    );
    let width = (LEFT + columns * CELL.0 + 24).max(560);
    let size = (width.cast_unsigned(), (TOP + rows * CELL.1 + 44).cast_unsigned());
    let root = SVGBackend::with_string(into, size).into_drawing_area();
    root.fill(&palette::GROUND)?;
    title(&root, &grid.title)?;
    axis(&root, &grid.row_axis, (20, 50))?;
    for (column, name) in (0..).zip(&grid.columns) {
        let at = (LEFT + column * CELL.0 + CELL.0 / 2, TOP - 8);
        root.draw(&text(name, at, 13, palette::FAINT, HPos::Center, VPos::Bottom))?;
    }
    for (row, (name, cells)) in (0..).zip(&grid.rows) {
        let top = TOP + row * CELL.1;
        let at = (LEFT - 12, top + CELL.1 / 2);
        root.draw(&text(name, at, 13, palette::FAINT, HPos::Right, VPos::Center))?;
        for (column, cell) in (0..).zip(cells) {
            let left = LEFT + column * CELL.0;
            let corners = [(left + 2, top + 2), (left + CELL.0 - 2, top + CELL.1 - 2)];
            let ground = if cell.strong {
                palette::FRONTIER
            } else {
                palette::GRID
            };
            root.draw(&Rectangle::new(corners, ground.filled()))?;
            let ink = if cell.strong {
                palette::GROUND
            } else {
                palette::INK
            };
            let middle = (left + CELL.0 / 2, top + CELL.1 / 2);
            root.draw(&text(&cell.says, middle, 14, ink, HPos::Center, VPos::Center))?;
        }
    }
    let foot = (LEFT + columns * CELL.0 / 2, TOP + rows * CELL.1 + 14);
    root.draw(&text(
        &grid.column_axis,
        foot,
        13,
        palette::INK,
        HPos::Center,
        VPos::Top,
    ))?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::colours_are_known;

    #[test]
    fn every_cell_is_drawn() {
        let cell = |says: &str, strong| Cell {
            says: says.to_owned(),
            strong,
        };
        let grid = Grid {
            title: "devices".to_owned(),
            column_axis: "p95 at most (ms)".to_owned(),
            columns: vec!["50".to_owned(), "100".to_owned()],
            row_axis: "accuracy at least".to_owned(),
            rows: vec![("80 %".to_owned(), vec![cell("2 / 5", true), cell("2 / 3", false)])],
        };
        let svg = svg(&grid).unwrap();
        for name in [
            "devices",
            "p95 at most (ms)",
            "50",
            "100",
            "accuracy at least",
            "80 %",
            "2 / 5",
            "2 / 3",
        ] {
            assert!(svg.contains(name), "{name}");
        }
        assert!(colours_are_known(&svg));
    }

    #[test]
    fn no_cells_are_an_error() {
        assert!(svg(&Grid::default()).is_err());
    }
}
