//! Interleaves rows, so that a kernel reads the elements to multiply with one matrix row contiguously.

/// Interleaves rows to `[inputs, rows]`.
pub(in crate::ops) fn interleaved<T: Copy + Default>(rows: &[T], inputs: usize) -> Vec<T> {
    let mut out = vec![T::default(); rows.len()];
    interleave_into(&mut out, rows, inputs);
    out
}

/// Writes the result of [`interleaved`] to a slice of the same length.
pub(super) fn interleave_into<T: Copy>(out: &mut [T], rows: &[T], inputs: usize) {
    match rows.len() / inputs.max(1) {
        12 => interleave_squares::<T, 12>(rows, inputs, out),
        11 => interleave_squares::<T, 11>(rows, inputs, out),
        10 => interleave_squares::<T, 10>(rows, inputs, out),
        9 => interleave_squares::<T, 9>(rows, inputs, out),
        8 => interleave_squares::<T, 8>(rows, inputs, out),
        7 => interleave_squares::<T, 7>(rows, inputs, out),
        6 => interleave_squares::<T, 6>(rows, inputs, out),
        5 => interleave_squares::<T, 5>(rows, inputs, out),
        4 => interleave_squares::<T, 4>(rows, inputs, out),
        3 => interleave::<T, 3>(rows, inputs, out),
        2 => interleave::<T, 2>(rows, inputs, out),
        _ => out.copy_from_slice(rows),
    }
}

/// Interleaves in blocks of a cache line, with a compile-time number of rows.
fn interleave<T: Copy, const ROWS: usize>(rows: &[T], inputs: usize, out: &mut [T]) {
    let (columns, _) = out.as_chunks_mut::<ROWS>();
    for (block, columns) in columns.chunks_mut(16).enumerate() {
        let from = block * 16;
        for (index, row) in rows.chunks_exact(inputs).enumerate() {
            let part = row.get(from..from + columns.len()).unwrap_or_default();
            for (column, value) in columns.iter_mut().zip(part) {
                if let Some(slot) = column.get_mut(index) {
                    *slot = *value;
                }
            }
        }
    }
}

/// Interleaves at least four rows: transposes 4x4 squares in registers. The last square begins four rows before the
/// end, so that a remainder is also written four at a time.
fn interleave_squares<T: Copy, const ROWS: usize>(rows: &[T], inputs: usize, out: &mut [T]) {
    let (columns, _) = out.as_chunks_mut::<ROWS>();
    for square in 0..ROWS.div_ceil(4) {
        let from = (4 * square).min(ROWS - 4);
        let four = rows.get(from * inputs..(from + 4) * inputs).unwrap_or_default();
        let mut rows = four.chunks_exact(inputs).map(|row| row.as_chunks::<4>().0);
        let (Some(a), Some(b), Some(c), Some(d)) = (rows.next(), rows.next(), rows.next(), rows.next())
        else {
            return;
        };
        let squares = a.iter().zip(b).zip(c).zip(d);
        for ((((a, b), c), d), columns) in squares.zip(columns.as_chunks_mut::<4>().0) {
            let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (*a, *b);
            let ([c0, c1, c2, c3], [d0, d1, d2, d3]) = (*c, *d);
            let transposed = [
                [a0, b0, c0, d0],
                [a1, b1, c1, d1],
                [a2, b2, c2, d2],
                [a3, b3, c3, d3],
            ];
            for (column, values) in columns.iter_mut().zip(transposed) {
                if let Some(slots) = column.get_mut(from..from + 4) {
                    slots.copy_from_slice(&values);
                }
            }
        }
        let whole = inputs / 4 * 4;
        for (row, values) in four.chunks_exact(inputs).enumerate() {
            let rest = values.iter().zip(columns.iter_mut()).skip(whole);
            for (value, column) in rest {
                if let Some(slot) = column.get_mut(from + row) {
                    *slot = *value;
                }
            }
        }
    }
}
