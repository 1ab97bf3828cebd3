//! This project's own scheme, which `kaskade quantise` writes.
//!
//! ```json
//! "quantization_config": {"quant_method": "kaskade", "dtype": "q8_0", "transposed": ["attn.c_attn.weight"]}
//! ```
//!
//! A quantised matrix `[rows, columns]` is a tensor of bytes `[rows, bytes]`: every row is a sequence of GGML's blocks of
//! 32 weights. Blocks run along the inputs of a layer. Matrices whose columns are outputs are therefore stored
//! transposed, and `transposed` lists the ends of their names. Tensors of any other type are as without quantisation.

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::{Fault, KEY, Part, Scheme, Stored};
use crate::checkpoint::{Config, LoadError, transposed};
use crate::precision::{BLOCK, WeightType, decode};

/// The method that this project writes and reads.
const METHOD: &str = "kaskade";

/// How matrices are quantised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quantisation {
    quant_method: String,
    /// The type of the layers.
    #[serde(rename = "dtype")]
    pub kind: WeightType,
    /// Ends of the names of matrices that are stored transposed.
    #[serde(default)]
    pub transposed: Vec<String>,
}

impl Quantisation {
    pub(crate) fn new(kind: WeightType, transposed: &[&str]) -> Self {
        Self {
            quant_method: METHOD.to_owned(),
            kind,
            transposed: transposed.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Reads the key of a configuration that states this project's method.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if a value is missing or malformed.
    pub(super) fn read(config: &Config) -> Result<Self, LoadError> {
        let read: Self = config.required(KEY)?;
        if !read.kind.is_quantised() {
            return Err(config.invalid_value(KEY, "its `dtype` must be q8_0 or q4_0"));
        }
        Ok(read)
    }

    /// Whether the matrix of this name is stored transposed.
    pub(crate) fn is_transposed(&self, name: &str) -> bool {
        self.transposed.iter().any(|end| name.ends_with(end.as_str()))
    }

    /// Returns how the tensor of bytes of shape `stored` holds a matrix of shape `shape`: its type, and whether it is
    /// transposed. `None` if it does not.
    fn layout(&self, name: &str, shape: &[usize], stored: &[usize]) -> Option<(WeightType, bool)> {
        let transposed = self.is_transposed(name);
        let (&[mut rows, mut columns], &[lines, bytes]) = (shape, stored) else {
            return None;
        };
        if transposed {
            (rows, columns) = (columns, rows);
        }
        let kinds = [WeightType::Q8_0, WeightType::Q4_0].into_iter();
        let kind = kinds
            .filter(|_| lines == rows && columns.is_multiple_of(BLOCK))
            .find(|kind| kind.bytes(columns) == bytes)?;
        Some((kind, transposed))
    }
}

impl Scheme for Quantisation {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        vec![("weight", name.to_owned())]
    }

    fn is_code(&self, dtype: Dtype) -> bool {
        dtype == Dtype::U8
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let Some((_, name, Some(tensor))) = stored.parts.first() else {
            return Err(Fault::Reason("it is missing".into()));
        };
        let layout = self.layout(name, shape, &tensor.shape);
        let (kind, is_transposed) = layout.ok_or_else(|| Fault::Shape(tensor.shape.clone()))?;
        let mut values = vec![0.0; shape.iter().product()];
        decode(&tensor.bytes, kind, &mut values);
        Ok(match shape {
            [rows, _] if is_transposed => transposed(&values, *rows),
            _ => values,
        })
    }

    fn is_output_major(&self) -> bool {
        false
    }
}
