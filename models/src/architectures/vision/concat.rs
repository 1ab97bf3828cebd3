//! Concatenation of channels.

use crate::ops::{Ops, Span};

/// Concatenates the rows of `one` and `other`; `widths` are their widths.
pub(super) fn appended<O: Ops>(
    ops: &O,
    one: &O::Matrix,
    other: O::Matrix,
    rows: usize,
    widths: [usize; 2],
) -> O::Matrix {
    let part = common_divisor(widths).max(1);
    let [ones, others] = widths.map(|width| width / part);
    // Copies by taking the mean of one row.
    let narrow = [
        ops.with_width(ops.mean(one, 1), part),
        ops.with_width(other, part),
    ];
    let [first, second] = &narrow;
    let span = |matrix, count| Span {
        matrix,
        from: 0,
        count,
    };
    let stacked = ops.gather(&[span(first, rows * ones), span(second, rows * others)], part);
    let of_row = |row: usize| {
        let from = rows * ones + row * others;
        (row * ones..(row + 1) * ones).chain(from..from + others)
    };
    let places: Vec<usize> = (0..rows).flat_map(of_row).collect();
    ops.with_width(ops.select(&stacked, &places), widths.iter().sum())
}

fn common_divisor([one, other]: [usize; 2]) -> usize {
    if other == 0 {
        one
    } else {
        common_divisor([other, one % other])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::Cpu;

    #[test]
    fn rows_are_put_behind_each_other() {
        let one = Cpu.upload((0..8).map(|value| value as f32).collect(), 4);
        let other = Cpu.upload(
            vec![
                10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0,
            ],
            6,
        );
        let both = appended(&Cpu, &one, other, 2, [4, 6]);
        let values = Cpu.values(&both).unwrap();
        let expected = [
            0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 4.0, 5.0, 6.0, 7.0, 16.0, 17.0, 18.0,
            19.0, 20.0, 21.0,
        ];
        assert_eq!(values.as_ref(), expected);
    }
}
