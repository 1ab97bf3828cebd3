//! Weight files of a checkpoint, on disk or in memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use pulp::bytemuck::cast_slice_mut;

use crate::checkpoint::LoadError;
use crate::checkpoint::files::{LFS_POINTER, check_pointer};
use crate::precision::{WeightType, decode};

/// A weight file.
#[derive(Debug)]
pub(in crate::checkpoint) struct Shard {
    pub(in crate::checkpoint) file: String,
    pub(in crate::checkpoint) source: Source,
    /// Start of the tensor data, bytes from the beginning of the file.
    pub(in crate::checkpoint) data_start: u64,
}

/// Location of a file's bytes.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) enum Source {
    File(Arc<File>),
    Memory(Bytes),
    /// A tensor of a file whose elements are not in row-major order.
    Strided(Strided),
}

impl Source {
    /// Reads little-endian f32 values; from a file, without a copy of the bytes.
    pub(in crate::checkpoint) fn read_f32(&self, offset: u64, count: usize) -> Result<Vec<f32>, String> {
        if let Self::File(file) = self {
            let mut values = vec![0.0_f32; count];
            let mut file = file.as_ref();
            file.seek(SeekFrom::Start(offset))
                .and_then(|_| file.read_exact(cast_slice_mut(&mut values)))
                .map_err(|error| error.to_string())?;
            if cfg!(target_endian = "big") {
                for value in &mut values {
                    *value = f32::from_bits(value.to_bits().swap_bytes());
                }
            }
            return Ok(values);
        }
        let bytes = self.read(offset, (count * size_of::<f32>()) as u64)?;
        let mut values = vec![0.0; count];
        decode(&bytes, WeightType::F32, &mut values);
        Ok(values)
    }

    /// Rejects a Git LFS pointer.
    pub(in crate::checkpoint) fn check_pointer(&self, file: &str, length: u64) -> Result<(), LoadError> {
        // If reading fails, the parser of the format reports the error.
        let first = self.read(0, length.min(LFS_POINTER.len() as u64));
        first.map_or(Ok(()), |bytes| check_pointer(file, &bytes))
    }

    /// Reads `bytes` bytes at an offset.
    pub(in crate::checkpoint) fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, String> {
        match self {
            Self::Memory(memory) => usize::try_from(offset)
                .ok()
                .zip(usize::try_from(bytes).ok())
                .and_then(|(offset, bytes)| memory.get(offset..offset.checked_add(bytes)?))
                .map(<[u8]>::to_vec)
                .ok_or_else(|| format!("it ends before byte {}", offset.saturating_add(bytes))),
            Self::Strided(tensor) => tensor.read(offset, bytes),
            Self::File(file) => {
                let mut file = file.as_ref();
                file.seek(SeekFrom::Start(offset))
                    .map_err(|error| error.to_string())?;
                let mut buffer = Vec::new();
                file.take(bytes)
                    .read_to_end(&mut buffer)
                    .map_err(|error| error.to_string())?;
                if (buffer.len() as u64) < bytes {
                    return Err(format!("it ends before byte {}", offset.saturating_add(bytes)));
                }
                Ok(buffer)
            }
        }
    }
}

/// A tensor whose elements are not in row-major order in its file, such as a transposed matrix. It is read in row-major order.
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
