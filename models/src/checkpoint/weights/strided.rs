//! Tensors whose elements are not in row-major order in their file, such as transposed matrices.

use super::source::Source;

/// Such a tensor; it is read in row-major order.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Strided {
    pub(in crate::checkpoint) whole: Box<Source>,
    /// Offset of the first element in the file, bytes.
    pub(in crate::checkpoint) start: u64,
    pub(in crate::checkpoint) shape: Vec<usize>,
    /// Distance between neighbouring elements of each dimension in the file, elements.
    pub(in crate::checkpoint) strides: Vec<usize>,
    /// Size of an element, bytes.
    pub(in crate::checkpoint) element: usize,
}

impl Strided {
    /// Reads `bytes` bytes at an offset of the tensor in row-major order. The span of the whole tensor is in memory
    /// meanwhile.
    pub(super) fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, String> {
        let size = self.element.max(1);
        let dimensions = || self.shape.iter().zip(&self.strides);
        let last: usize = dimensions()
            .map(|(count, stride)| count.saturating_sub(1) * stride)
            .sum();
        let span = self.whole.read(self.start, ((last + 1) * size) as u64)?;
        let ends = || format!("it ends before byte {}", offset.saturating_add(bytes));
        let index = |bytes: u64| {
            usize::try_from(bytes)
                .map(|bytes| bytes / size)
                .map_err(|_| ends())
        };
        let (first, count) = (index(offset)?, index(bytes)?);
        let mut read = Vec::with_capacity(count * size);
        for element in first..first + count {
            let (mut rest, mut place) = (element, 0);
            for (count, stride) in dimensions().rev() {
                place += rest % count * stride;
                rest /= count;
            }
            read.extend_from_slice(span.get(place * size..(place + 1) * size).ok_or_else(ends)?);
        }
        Ok(read)
    }
}
