//! Kaskade's own scheme, written by `kaskade quantise`.
//!
//! ```json
//! "quantization_config": {"quant_method": "kaskade", "dtype": "q8_0", "transposed": ["attn.c_attn.weight"]}
//! ```
//!
//! A quantised matrix `[rows, columns]` is a byte tensor `[rows, bytes]`: each row is a sequence of GGML blocks of 32
//! weights along the inputs of the layer. Matrices that models store as `[inputs, outputs]` are therefore transposed;
//! `transposed` lists the suffixes of their names. All other tensors are unquantised.

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::{Fault, KEY, Part, Scheme, Stored};
use crate::checkpoint::{Config, LoadError, transposed};
use crate::precision::{BLOCK, WeightType, decode};

/// Value of `quant_method`.
const METHOD: &str = "kaskade";

/// Settings of the scheme.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quantisation {
    quant_method: String,
    /// Type of the layers.
    #[serde(rename = "dtype")]
    pub kind: WeightType,
    /// Name suffixes of matrices that are stored transposed.
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

    /// Reads the settings from a configuration of this scheme.
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

    /// Returns whether the matrix with this name is stored transposed.
    pub(crate) fn is_transposed(&self, name: &str) -> bool {
        self.transposed.iter().any(|end| name.ends_with(end.as_str()))
    }

    /// Returns type and transposition of a byte tensor of shape `stored` that holds a matrix of shape `shape`. `None`
    /// if the shapes do not fit.
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
