//! Matrices whose codes share scales, and possibly offsets, per block.

use rayon::prelude::*;

use super::stored::Fault;

/// Block size of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Blocks {
    /// Returns the block size for `scales` scales of a matrix: the stated size, one block for the whole matrix, or one
    /// per row. `None` if none of these fits.
    pub(super) fn of(scales: usize, rows: usize, columns: usize, stated: Option<[usize; 2]>) -> Option<Self> {
        let stated = stated.map(|[height, width]| Self { height, width });
        let whole = Self {
            height: rows,
            width: columns,
        };
        let row = Self {
            height: 1,
            width: columns,
        };
        let candidates = [stated, Some(whole), Some(row)].into_iter().flatten();
        let mut candidates = candidates.filter(|blocks| blocks.height > 0 && blocks.width > 0);
        candidates.find(|blocks| blocks.count(rows, columns) == Some(scales))
    }

    /// Returns the number of blocks of a matrix, including smaller ones at its edges.
    fn count(self, rows: usize, columns: usize) -> Option<usize> {
        let across = columns.div_ceil(self.width.max(1));
        rows.div_ceil(self.height.max(1)).checked_mul(across)
    }

    /// Computes `(code - offset) * scale` in place for consecutive matrices of this shape, with one scale, and
    /// optionally one offset, per block.
    pub(super) fn scale(
        self,
        codes: &mut [f32],
        [rows, columns]: [usize; 2],
        scales: &[f32],
        offsets: Option<&[f32]>,
    ) -> Result<(), Fault> {
        let each = self.count(rows, columns).unwrap_or_default();
        let matrices = codes.len() / rows.max(1) / columns.max(1);
        let expected = each.checked_mul(matrices);
        if expected != Some(scales.len()) || offsets.is_some_and(|offsets| Some(offsets.len()) != expected) {
            let reason = format!(
                "{} scales do not fit {matrices} matrices of {each} blocks",
                scales.len()
            );
            return Err(Fault::Reason(reason));
        }
        let across = columns.div_ceil(self.width.max(1));
        let lines = codes.par_chunks_mut(columns.max(1)).enumerate();
        lines.for_each(|(line, codes)| {
            let (matrix, row) = (line / rows.max(1), line % rows.max(1));
            let first = matrix * each + row / self.height.max(1) * across;
            let scales = scales.get(first..).unwrap_or_default();
            let blocks = codes.chunks_mut(self.width.max(1)).zip(scales);
            let offsets = offsets.map(|offsets| offsets.get(first..).unwrap_or_default());
            let mut offsets = offsets.into_iter().flatten();
            for (block, scale) in blocks {
                let offset = offsets.next().copied().unwrap_or_default();
                for code in block {
                    *code = (*code - offset) * scale;
                }
            }
        });
        Ok(())
    }
}

/// Decodes a matrix `[inputs, outputs]` whose inputs are grouped, with a scale and an offset per group and output.
/// `codes` writes the codes of an input.
pub(super) fn grouped(
    group_of_input: &[usize],
    outputs: usize,
    scales: &[f32],
    offsets: &[f32],
    codes: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    let mut values = vec![0.0; group_of_input.len() * outputs];
    let lines = values
        .par_chunks_mut(outputs.max(1))
        .zip(group_of_input)
        .enumerate();
    lines.for_each(|(input, (line, group))| {
        codes(input, line);
        let of_group = group * outputs..;
        let scales = scales.get(of_group.clone()).unwrap_or_default();
        let offsets = offsets.get(of_group).unwrap_or_default();
        for ((value, scale), offset) in line.iter_mut().zip(scales).zip(offsets) {
            *value = (*value - offset) * scale;
        }
    });
    values
}
