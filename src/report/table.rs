//! Tables for people.

use comfy_table::{CellAlignment, Table, presets};

/// How a column reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table with the given heads; each row has one cell per head.
pub fn table<const N: usize>(
    heads: [(&str, Align); N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_header(heads.map(|(head, _)| head));
    for row in rows {
        table.add_row(row);
    }
    for (column, (_, align)) in table.column_iter_mut().zip(heads) {
        column.set_cell_alignment(match align {
            Align::Left => CellAlignment::Left,
            Align::Right => CellAlignment::Right,
        });
    }
    table.trim_fmt()
}
