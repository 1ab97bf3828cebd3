//! `BitNet` b1.58 (Ma et al. 2024): weights of linear layers are -1, 0 or 1 times a scale per tensor.
//!
//! Offline, `{name}` is U8 and packs four 2-bit values, from rows that are a quarter of all rows apart; `{name}_scale`
//! is the scale, by which the value is divided if `linear_class` is `bitlinear`. Online, `{name}` holds training
//! weights, which are rounded when they are loaded.

use safetensors::Dtype;

use super::{Fault, Part, Scheme, Stored, beside};
use crate::checkpoint::{Config, LoadError};
use crate::precision::WeightType;

/// Values per byte.
const PACKED: usize = 4;
/// Minimum mean magnitude for rounding.
const MIN_SCALE: f32 = 1e-5;

/// Scheme for `BitNet`.
#[derive(Debug)]
pub(super) struct BitNet {
    kind: WeightType,
    /// Whether weights are rounded when they are loaded.
    online: bool,
    /// Whether to divide by the scale.
    divides: bool,
}

impl BitNet {
    pub(super) fn read(settings: &Config, kind: WeightType) -> Result<Self, LoadError> {
        let key = "use_rms_norm";
        if settings.optional(key)?.unwrap_or(false) {
            return Err(settings.invalid_value(key, "a norm before every linear layer is not supported"));
        }
        let one_of = |key: &str, [absent, other]: [&str; 2]| {
            let value = settings.optional::<String>(key)?;
            match value.as_deref().unwrap_or(absent) {
                value if value == absent => Ok(false),
                value if value == other => Ok(true),
                _ => Err(settings.invalid_value(key, format!("{absent} and {other} are read"))),
            }
        };
        Ok(Self {
            kind,
            online: one_of("quantization_mode", ["offline", "online"])?,
            divides: !one_of("linear_class", ["bitlinear", "autobitlinear"])?,
        })
    }
}

impl Scheme for BitNet {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        // Only linear layers in blocks are quantised.
        if !name.ends_with("_proj.weight") {
            return Vec::new();
        }
        let scale = beside(name, "weight_scale").map(|scale| ("weight_scale", scale));
        std::iter::once(("weight", name.to_owned()))
            .chain(scale)
            .collect()
    }

    fn is_code(&self, dtype: Dtype) -> bool {
        self.online || dtype == Dtype::U8
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let weight = stored.required("weight")?;
        let [rows, columns] = *shape else {
            return Err(weight.fault("should be a matrix"));
        };
        if self.online {
            let mut values = weight.of_shape(shape)?.numbers()?;
            let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
            let scale = 1.0 / ((sum / values.len().max(1) as f64) as f32).max(MIN_SCALE);
            for value in &mut values {
                *value = (*value * scale).round_ties_even().clamp(-1.0, 1.0) / scale;
            }
            return Ok(values);
        }
        let quarter = rows.div_ceil(PACKED);
        let bytes = weight.of_shape(&[quarter, columns])?.bytes();
        let scale = stored.required("weight_scale")?;
        let [factor] = scale.numbers()?[..] else {
            return Err(scale.fault("should be one number"));
        };
        let factor = if self.divides { 1.0 / factor } else { factor };
        let places = (0..PACKED).flat_map(|part| bytes.iter().map(move |byte| byte >> (2 * part) & 3));
        let values = places.map(|code| (f32::from(code) - 1.0) * factor);
        Ok(values.take(rows * columns).collect())
    }
}
