//! Takes weights from a checkpoint, either plain or decoded by its [`Scheme`](super::super::quantised::Scheme).

use safetensors::tensor::{Dtype, TensorInfo};

use super::elements::{first_not_finite, kind_of, transposed};
use super::source::Shard;
use super::{Weights, bad_weights};
use crate::checkpoint::LoadError;
use crate::checkpoint::quantised::{Fault, Part, Stored, StoredTensor};
use crate::precision::{WeightType, decode};

/// Location of a weight.
pub(super) enum Place {
    /// A plain tensor, by its name in the file.
    Plain(String),
    /// The tensors of a quantised weight, with its name in the file.
    Quantised(String, Vec<Part>),
}

/// One of several equal slices of a tensor along its first dimension.
#[derive(Clone, Copy)]
struct Portion {
    index: usize,
    count: usize,
}

impl Portion {
    /// Returns the range of this slice within `from..to`.
    fn of(self, (from, to): (usize, usize)) -> (usize, usize) {
        let each = (to - from) / self.count.max(1);
        (from + self.index * each, from + (self.index + 1) * each)
    }
}

impl Weights {
    /// Finds the tensors of a weight that is not taken yet: by its name, without the base model's prefix, with the
    /// prefix of the part, or by the old TensorFlow name of a norm.
    pub(super) fn place(&self, name: &str) -> Option<Place> {
        let names = [Some(name), name.strip_prefix(&self.base)];
        let mut names = names.into_iter().flatten().flat_map(|name| self.part.names(name));
        names.find_map(|name| {
            if let Some(parts) = self.quantised_parts(&name) {
                return Some(Place::Quantised(name, parts));
            }
            let legacy = legacy_name(&name);
            let names = [Some(name), legacy];
            let mut names = names.into_iter().flatten();
            names
                .find(|name| self.remaining.contains_key(name))
                .map(Place::Plain)
        })
    }

    /// Returns the tensors that can hold a weight if the file has it quantised: a tensor of its name that holds codes,
    /// or a tensor that only quantised weights have. `None` if it is not quantised.
    fn quantised_parts(&self, name: &str) -> Option<Vec<Part>> {
        let scheme = self.scheme.as_ref()?;
        let parts = scheme.tensors(name);
        let is_quantised = parts.iter().any(|(_, part)| match self.remaining.get(part) {
            Some((_, info)) => part != name || scheme.is_code(info.dtype),
            None => false,
        });
        is_quantised.then_some(parts)
    }

    /// Takes a weight as row-major f32: from F32, F16, BF16, or decoded by the quantisation scheme.
    ///
    /// The old TensorFlow names `.gamma` and `.beta`, which the first BERT checkpoints use for layer norms, are found
    /// as `.weight` and `.bias`.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], [`LoadError::WrongShape`], [`LoadError::WrongDtype`], [`LoadError::BadQuantised`],
    /// [`LoadError::NotFinite`], or [`LoadError::BadWeights`] if the file cannot be read.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let place = self.found(name, shape)?;
        let values = self.read(&place, shape, None)?;
        self.remove(&place, values.len());
        Ok(values)
    }

    /// Returns whether a weight that is not taken yet has these values, row-major. One slice along its first dimension at a time is in
    /// memory.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(crate) fn has_values(
        &mut self,
        name: &str,
        shape: &[usize],
        values: &[f32],
    ) -> Result<bool, LoadError> {
        let place = self.found(name, shape)?;
        let count = shape.first().copied().unwrap_or_default();
        let each = values.len().checked_div(count).unwrap_or_default();
        for (index, slice) in values.chunks(each.max(1)).enumerate() {
            if self.read(&place, shape, Some(Portion { index, count }))? != slice {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes a tensor that may also hold integers or f64, as tables of static embeddings do. Integers up to 2^24 are
    /// exact.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(crate) fn take_numbers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let Some((_, TensorInfo { dtype, .. })) = self.remaining.get(name) else {
            return self.take(name, shape);
        };
        if !matches!(dtype, Dtype::I8 | Dtype::I32 | Dtype::I64 | Dtype::F64) {
            return self.take(name, shape);
        }
        let place = Place::Plain(name.to_owned());
        let stored = self.stored(name, None)?;
        if stored.shape != shape {
            return Err(LoadError::WrongShape {
                file: self.file_of(&place),
                name: name.to_owned(),
                expected: shape.to_vec(),
                actual: stored.shape,
            });
        }
        let values = numbers(&stored);
        if let Some((index, value)) = first_not_finite(&values) {
            return Err(LoadError::NotFinite {
                file: self.file_of(&place),
                name: name.to_owned(),
                index,
                value: value.to_string(),
            });
        }
        self.remove(&place, values.len());
        Ok(values)
    }

    /// Takes the slices of a weight along its first dimension one at a time, so that only one is in memory as f32.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(crate) fn take_each<T>(
        &mut self,
        name: &str,
        shape: &[usize],
        mut each: impl FnMut(usize, Vec<f32>) -> T,
    ) -> Result<Vec<T>, LoadError> {
        let place = self.found(name, shape)?;
        let count = shape.first().copied().unwrap_or_default();
        let mut elements = 0;
        let mut parts = Vec::new();
        for index in 0..count {
            let values = self.read(&place, shape, Some(Portion { index, count }))?;
            elements += values.len();
            parts.push(each(index, values));
        }
        self.remove(&place, elements);
        Ok(parts)
    }

    /// Returns whether a weight has this shape in the file.
    pub(crate) fn has_shape(&self, name: &str, shape: &[usize]) -> bool {
        let Some(Place::Plain(name) | Place::Quantised(name, _)) = self.place(name) else {
            return false;
        };
        let found = self.remaining.get(&name);
        found.is_some_and(|(_, info)| info.shape == shape)
    }

    /// Reads a tensor as [`Weights::take`] does, but leaves it for another layer to take.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(crate) fn copy(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let place = self.found(name, shape)?;
        self.read(&place, shape, None)
    }

    /// Takes the weight of a linear layer as `[inputs, outputs]`; torch stores `[outputs, inputs]`.
    ///
    /// # Errors
    /// Same as [`Weights::take`], with shapes as in the file.
    pub(crate) fn take_transposed(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Vec<f32>, LoadError> {
        Ok(transposed(&self.take(name, &[outputs, inputs])?, inputs))
    }

    /// Takes a weight that the model stores as `[inputs, outputs]`, in that layout. Quantisation schemes may store it
    /// transposed, like any other linear layer.
    ///
    /// # Errors
    /// Same as [`Weights::take`], with shapes as in the file.
    pub(crate) fn take_input_major(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let is_output_major = self
            .scheme
            .as_ref()
            .is_some_and(|scheme| scheme.is_output_major());
        match self.place(name) {
            Some(Place::Quantised(..)) if is_output_major => self.take_transposed(name, inputs, outputs),
            _ => self.take(name, &[inputs, outputs]),
        }
    }

    /// Takes a weight of shape `[outputs, channels, ...]` as the matrix `[inputs, outputs]`. Inputs are ordered by
    /// pixel, channels interleaved, while the file orders them by channel; `pixels` is the number of pixels per
    /// channel.
    ///
    /// # Errors
    /// Same as [`Weights::take`], with shapes as in the file.
    pub(crate) fn take_by_pixel(
        &mut self,
        name: &str,
        shape: &[usize],
        pixels: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let weight = self.take(name, shape)?;
        let inputs = shape.iter().skip(1).product::<usize>().max(1);
        let by_pixel: Vec<f32> = weight
            .chunks(inputs)
            .flat_map(|output| transposed(output, pixels))
            .collect();
        Ok(transposed(&by_pixel, inputs))
    }

    /// Returns the name of the file that contains the first tensor of a weight.
    fn file_of(&self, place: &Place) -> String {
        let entry = match place {
            Place::Plain(name) => self.remaining.get(name),
            Place::Quantised(_, parts) => parts.iter().find_map(|(_, part)| self.remaining.get(part)),
        };
        let shard = entry.and_then(|(shard, _)| self.shards.get(*shard));
        shard.map_or(&self.file, |shard| &shard.file).clone()
    }

    fn found(&self, name: &str, shape: &[usize]) -> Result<Place, LoadError> {
        self.place(name).ok_or_else(|| LoadError::MissingTensor {
            file: self.file.clone(),
            name: self.part.expected(name, &self.base),
            expected: shape.to_vec(),
        })
    }

    /// Removes the tensors of a weight of `elements` elements and counts it.
    fn remove(&mut self, place: &Place, elements: usize) {
        let names: Vec<&String> = match place {
            Place::Plain(name) => vec![name],
            Place::Quantised(_, parts) => parts.iter().map(|(_, part)| part).collect(),
        };
        for name in names {
            if let Some((shard, info)) = self.remaining.remove(name) {
                self.taken_places.insert((shard, info.data_offsets));
            }
        }
        self.taken.parameters += elements as u64;
        self.taken.bytes += (elements * size_of::<f32>()) as u64;
    }

    /// Reads a weight, or a slice of it.
    fn read(
        &mut self,
        place: &Place,
        shape: &[usize],
        portion: Option<Portion>,
    ) -> Result<Vec<f32>, LoadError> {
        let (name, values) = match place {
            Place::Plain(name) => (name, self.read_plain(name, shape, portion)?),
            Place::Quantised(name, parts) => {
                let values = self.read_quantised(parts, shape, portion)?;
                (
                    name,
                    values.map_err(|fault| self.undecoded(fault, place, name, shape))?,
                )
            }
        };
        if let Some((index, value)) = first_not_finite(&values) {
            let first = portion.map_or(0, |portion| portion.index * values.len());
            return Err(LoadError::NotFinite {
                file: self.file_of(place),
                name: name.clone(),
                index: first + index,
                value: value.to_string(),
            });
        }
        Ok(values)
    }

    fn read_plain(
        &mut self,
        name: &str,
        shape: &[usize],
        portion: Option<Portion>,
    ) -> Result<Vec<f32>, LoadError> {
        let (shard, info) = self.entry(name)?;
        let Some(kind) = kind_of(info.dtype) else {
            return Err(LoadError::WrongDtype {
                file: shard.file.clone(),
                name: name.to_owned(),
                dtype: info.dtype.to_string(),
            });
        };
        if info.shape != shape {
            return Err(LoadError::WrongShape {
                file: shard.file.clone(),
                name: name.to_owned(),
                expected: shape.to_vec(),
                actual: info.shape,
            });
        }
        let (from, to) = portion.map_or(info.data_offsets, |portion| portion.of(info.data_offsets));
        let offset = shard.data_start + from as u64;
        let read = if kind == WeightType::F32 {
            shard.source.read_f32(offset, (to - from) / size_of::<f32>())
        } else {
            let bytes = shard.source.read(offset, (to - from) as u64);
            bytes.map(|bytes| {
                let mut values = vec![0.0; (to - from) / kind.bytes(1).max(1)];
                decode(&bytes, kind, &mut values);
                values
            })
        };
        read.map_err(|reason| unreadable(&shard.file, name, &reason))
    }

    fn read_quantised(
        &mut self,
        parts: &[Part],
        shape: &[usize],
        portion: Option<Portion>,
    ) -> Result<Result<Vec<f32>, Fault>, LoadError> {
        let mut stored = Stored::default();
        for (role, part) in parts {
            let tensor = self
                .remaining
                .contains_key(part)
                .then(|| self.stored(part, portion));
            stored.parts.push((role, part.clone(), tensor.transpose()?));
        }
        let mut wanted = shape.to_vec();
        if let (Some(_), Some(first)) = (portion, wanted.first_mut()) {
            *first = 1;
        }
        let decoded = self.scheme.as_ref().map(|scheme| {
            scheme.decode(&stored, &wanted).map_err(|fault| match fault {
                Fault::Shape(actual) if portion.is_some() => {
                    let first = shape.iter().take(1);
                    Fault::Shape(first.chain(actual.iter().skip(1)).copied().collect())
                }
                other => other,
            })
        });
        Ok(decoded.unwrap_or_else(|| Err(Fault::Reason("no scheme is stated".into()))))
    }

    fn undecoded(&self, fault: Fault, place: &Place, name: &str, shape: &[usize]) -> LoadError {
        let (file, name) = (self.file_of(place), name.to_owned());
        match fault {
            Fault::Shape(actual) => LoadError::WrongShape {
                file,
                name,
                expected: shape.to_vec(),
                actual,
            },
            Fault::Reason(reason) => LoadError::BadQuantised { file, name, reason },
        }
    }

    /// Reads a raw tensor, or a slice of it if its first dimension is the number of slices.
    fn stored(&mut self, name: &str, portion: Option<Portion>) -> Result<StoredTensor, LoadError> {
        let (
            shard,
            TensorInfo {
                dtype,
                mut shape,
                data_offsets,
            },
        ) = self.entry(name)?;
        let portion = portion.filter(|portion| shape.first() == Some(&portion.count));
        let (from, to) = portion.map_or(data_offsets, |portion| portion.of(data_offsets));
        if let (Some(_), Some(first)) = (portion, shape.first_mut()) {
            *first = 1;
        }
        let bytes = shard
            .source
            .read(shard.data_start + from as u64, (to - from) as u64);
        let bytes = bytes.map_err(|reason| unreadable(&shard.file, name, &reason))?;
        Ok(StoredTensor { dtype, shape, bytes })
    }

    /// Reads the raw bytes of a tensor.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], or [`LoadError::BadWeights`] if the file cannot be read.
    pub(crate) fn bytes_of(&mut self, name: &str) -> Result<Vec<u8>, LoadError> {
        Ok(self.stored(name, None)?.bytes)
    }

    /// Returns the file and the description of a tensor.
    fn entry(&mut self, name: &str) -> Result<(&mut Shard, TensorInfo), LoadError> {
        let found = self.remaining.get(name).cloned();
        let found = found.and_then(|(shard, info)| Some((self.shards.get_mut(shard)?, info)));
        found.ok_or_else(|| LoadError::MissingTensor {
            file: self.file.clone(),
            name: name.to_owned(),
            expected: Vec::new(),
        })
    }
}

/// Converts a tensor of i8, i32, i64 or f64 to f32.
fn numbers(tensor: &StoredTensor) -> Vec<f32> {
    let bytes = tensor.bytes.as_slice();
    match tensor.dtype {
        Dtype::I8 => bytes.iter().map(|byte| f32::from(byte.cast_signed())).collect(),
        Dtype::I32 => {
            let elements = bytes.as_chunks().0.iter();
            elements.map(|bytes| i32::from_le_bytes(*bytes) as f32).collect()
        }
        Dtype::I64 => {
            let elements = bytes.as_chunks().0.iter();
            elements.map(|bytes| i64::from_le_bytes(*bytes) as f32).collect()
        }
        _ => {
            let elements = bytes.as_chunks().0.iter();
            elements.map(|bytes| f64::from_le_bytes(*bytes) as f32).collect()
        }
    }
}

fn unreadable(file: &str, name: &str, reason: &str) -> LoadError {
    bad_weights(file, format!("tensor `{name}` cannot be read: {reason}"))
}

fn legacy_name(name: &str) -> Option<String> {
    let (stem, end) = name.rsplit_once('.')?;
    match end {
        "weight" => Some(format!("{stem}.gamma")),
        "bias" => Some(format!("{stem}.beta")),
        _ => None,
    }
}
