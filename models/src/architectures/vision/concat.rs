//! Concatenation of channels.

use crate::ops::{Ops, Span};

/// Concatenates the rows of `one` and `other`; `widths` are their widths.
pub(super) fn appended<O: Ops>(
    ops: &O,
    one: &O::Matrix,
    other: O::Matrix,
    rows: usize,
    [width, added]: [usize; 2],
) -> O::Matrix {
    // Copies by taking the mean of one row.
    concatenated(ops, vec![(ops.mean(one, 1), width), (other, added)], rows)
}

/// Concatenates the rows of matrices, which are given with their widths.
pub(super) fn concatenated<O: Ops>(ops: &O, parts: Vec<(O::Matrix, usize)>, rows: usize) -> O::Matrix {
    let divisor = parts
        .iter()
        .fold(0, |divisor, (_, width)| common_divisor([*width, divisor]));
    let unit = divisor.max(1);
    let width = parts.iter().map(|(_, width)| width).sum();
    let narrow = parts.into_iter().map(|(part, width)| {
        let count = width / unit;
        (ops.with_width(part, unit), count)
    });
    let narrow: Vec<(O::Matrix, usize)> = narrow.collect();
    let spans = narrow.iter().map(|(matrix, count)| Span {
        matrix,
        from: 0,
        count: rows * count,
    });
    let stacked = ops.gather(&spans.collect::<Vec<_>>(), unit);
    let firsts = narrow.iter().scan(0, |next, (_, count)| {
        let first = *next;
        *next += rows * count;
        Some((first, *count))
    });
    let firsts: Vec<(usize, usize)> = firsts.collect();
    let of_row = |row: usize| {
        let parts = firsts.iter();
        parts.flat_map(move |(first, count)| first + row * count..first + (row + 1) * count)
    };
    let places: Vec<usize> = (0..rows).flat_map(of_row).collect();
    ops.with_width(ops.select(&stacked, &places), width)
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
        let three = [2, 1, 3].map(|width| {
            let values = (0..2 * width).map(|value| (10 * width + value) as f32);
            (Cpu.upload(values.collect(), width), width)
        });
        let all = concatenated(&Cpu, three.into(), 2);
        let values = Cpu.values(&all).unwrap();
        let expected = [
            20.0, 21.0, 10.0, 30.0, 31.0, 32.0, 22.0, 23.0, 11.0, 33.0, 34.0, 35.0,
        ];
        assert_eq!(values.as_ref(), expected);
    }
}
