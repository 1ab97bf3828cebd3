//! How `config.json` states that a checkpoint's matrices are quantised, and how they lie in the file.
//!
//! ```json
//! "quantization_config": {"quant_method": "kaskade", "dtype": "q8_0", "transposed": ["attn.c_attn.weight"]}
//! ```
//!
//! A quantised matrix `[rows, columns]` is a tensor of bytes `[rows, bytes]`: every row is a sequence of GGML's blocks of
//! 32 weights. Blocks run along the inputs of a layer. Matrices whose columns are outputs are therefore stored
//! transposed, and `transposed` lists the ends of their names. Tensors of any other type are as without quantisation.

use serde::{Deserialize, Serialize};

use super::{Config, LoadError, transposed};
use crate::precision::{BLOCK, WeightType, decode};

/// The key of `config.json`.
pub(crate) const KEY: &str = "quantization_config";
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

/// How a tensor lies in the file.
pub(super) struct Layout {
    kind: WeightType,
    transposed: bool,
}

impl Quantisation {
    pub(crate) fn new(kind: WeightType, transposed: &[&str]) -> Self {
        Self {
            quant_method: METHOD.to_owned(),
            kind,
            transposed: transposed.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Reads the key of a configuration; `None` without it.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for another method than this project's.
    pub(crate) fn read(config: &Config) -> Result<Option<Self>, LoadError> {
        let Some(stated) = config.optional::<serde_json::Value>(KEY)? else {
            return Ok(None);
        };
        let method = stated.get("quant_method").and_then(|method| method.as_str());
        if method != Some(METHOD) {
            let reason = "only directories that `kaskade quantise` wrote are read quantised; save the original weights, and \
                          set `dtype` or run `kaskade quantise`";
            return Err(config.invalid_value(KEY, reason));
        }
        let read: Option<Self> = config.optional(KEY)?;
        if read.as_ref().is_some_and(|read| !read.kind.is_quantised()) {
            return Err(config.invalid_value(KEY, "its `dtype` must be q8_0 or q4_0"));
        }
        Ok(read)
    }

    /// Whether the matrix of this name is stored transposed.
    pub(crate) fn is_transposed(&self, name: &str) -> bool {
        self.transposed.iter().any(|end| name.ends_with(end.as_str()))
    }

    /// Returns how the tensor of bytes of shape `stored` holds a matrix of shape `shape`; `None` if it does not.
    pub(super) fn layout(&self, name: &str, shape: &[usize], stored: &[usize]) -> Option<Layout> {
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
        Some(Layout { kind, transposed })
    }
}

impl Layout {
    /// A tensor of this type as it is.
    pub(super) fn plain(kind: WeightType) -> Self {
        Self {
            kind,
            transposed: false,
        }
    }

    /// Whether the elements are in the file as they are in memory.
    pub(super) fn is_f32(&self) -> bool {
        self.kind == WeightType::F32
    }

    /// Returns the elements of a tensor of this shape, row-major, from its bytes.
    pub(super) fn values(&self, bytes: &[u8], shape: &[usize]) -> Vec<f32> {
        let mut values = vec![0.0; shape.iter().product()];
        decode(bytes, self.kind, &mut values);
        match shape {
            [rows, _] if self.transposed => transposed(&values, *rows),
            _ => values,
        }
    }
}
