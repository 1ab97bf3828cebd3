//! Formats tables.

use comfy_table::{CellAlignment, ContentLineStyle, LineStyle, Table, TableStyle};

/// Lines above, below and under the header; none between rows or columns.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none().junction(' '))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Left, for text.
    Left,
    /// Right, for numbers.
    Right,
}

/// Formats a table with the given column headers; each row has one cell per header.
pub fn table<const N: usize>(
    heads: [(&str, Align); N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(heads.map(|(head, _)| head));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let rows = [["tiny", "610"], ["large", "892 810"]].map(|row| row.map(str::to_owned));
        let text = table([("variant", Align::Left), ("weights", Align::Right)], rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert_eq!(lines[3], " tiny          610");
        assert_eq!(lines[4], " large     892 810");
    }
}
