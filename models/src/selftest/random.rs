//! Checkpoints with random weights in memory, so that measured networks need no files.

use bytes::Bytes;
use serde_json::{Map, Value, json};

/// A tensor with random values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Filled {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    mean: f32,
    spread: f32,
}

impl Filled {
    /// Fills a tensor uniformly from `mean - spread` to `mean + spread`.
    pub(super) fn around(name: impl Into<String>, shape: &[usize], mean: f32, spread: f32) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            mean,
            spread,
        }
    }

    /// Creates a weight that preserves the variance of its input, so that activations neither vanish nor overflow in
    /// deep networks. The first dimension is the outputs; the others are summed over.
    pub(super) fn weight(name: impl Into<String>, shape: &[usize]) -> Self {
        let summed: usize = shape.iter().skip(1).product();
        Self::around(name, shape, 0.0, (3.0 / summed.max(1) as f32).sqrt())
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the values of the tensor, determined by `seed` and `position`.
    pub(super) fn values(&self, seed: u64, position: usize) -> impl Iterator<Item = f32> + use<> {
        let (mean, spread) = (self.mean, self.spread);
        Uniform::new(seed, position as u64)
            .take(self.elements())
            .map(move |unit| mean + spread * unit)
    }
}

/// Serialises tensors as `model.safetensors`: length of the header, header, values.
pub(super) fn safetensors(tensors: &[Filled], seed: u64) -> Bytes {
    let mut header = Map::new();
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.elements() * 4;
        let entry = json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, end]});
        header.insert(tensor.name.clone(), entry);
        offset = end;
    }
    // The format requires aligned values, so the header is padded with spaces.
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = Vec::with_capacity(8 + header.len() + offset);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    for (position, tensor) in tensors.iter().enumerate() {
        file.extend(tensor.values(seed, position).flat_map(f32::to_le_bytes));
    }
    file.into()
}

/// Uniform random numbers in [-1, 1) by splitmix64 (Steele, Lea and Flood 2014); fast, because a network has a hundred
/// million of them.
pub(super) struct Uniform {
    state: u64,
}

impl Uniform {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut start = Self {
            state: seed ^ stream.wrapping_mul(0xD134_2543_DE82_EF95),
        };
        let state = start.bits();
        Self { state }
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }
}

impl Iterator for Uniform {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        // An f32 holds 24 bits exactly.
        let top = (self.bits() >> 40) as f32;
        Some(top / (1 << 23) as f32 - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_valid_safetensors() {
        let tensors = [
            Filled::weight("a.weight", &[3, 5]),
            Filled::around("a.bias", &[3], 1.0, 0.0),
        ];
        let file = safetensors(&tensors, 7);
        let read = safetensors::SafeTensors::deserialize(&file).unwrap();
        let bias = read.tensor("a.bias").unwrap();
        assert_eq!(bias.shape(), [3]);
        assert_eq!(bias.data(), [0, 0, 128, 63].repeat(3));
        let weight: Vec<f32> = read
            .tensor("a.weight")
            .unwrap()
            .data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        assert_eq!(weight, tensors[0].values(7, 0).collect::<Vec<_>>());
        assert_eq!(file.len() % 4, 0);
    }

    #[test]
    fn numbers_are_uniform_and_depend_on_seed_and_stream() {
        let numbers = |seed, stream| Uniform::new(seed, stream).take(100_000).collect::<Vec<_>>();
        let first = numbers(1, 0);
        assert!(first.iter().all(|number| (-1.0..1.0).contains(number)));
        let mean = first.iter().sum::<f32>() / 1e5;
        let square = first.iter().map(|number| number * number).sum::<f32>() / 1e5;
        assert!(
            mean.abs() < 0.01 && (square - 1.0 / 3.0).abs() < 0.01,
            "{mean} {square}"
        );
        assert_eq!(first, numbers(1, 0));
        assert_ne!(first, numbers(1, 1));
        assert_ne!(first, numbers(2, 0));
    }
}
