//! Weights with task adapters, as in Jina Embeddings v3 (Sturua et al. 2024). Not a quantisation, but several tensors
//! form one weight.
//!
//! Next to a module's `parametrizations.weight.original` are `lora_A` and `lora_B` with one matrix per task of
//! `lora_adaptations`. The product of a task's matrices, times `lora_alpha / lora_rank`, is added to the weight;
//! without a task, nothing is added.

use safetensors::Dtype;

use super::{Fault, Part, Scheme, Stored, all_beside};
use crate::checkpoint::{Config, LoadError};
use crate::precision::WeightType;

/// Key of the tasks.
const TASKS: &str = "lora_adaptations";
const ORIGINAL: &str = "parametrizations.weight.original";
const LORA: [&str; 2] = [
    "parametrizations.weight.0.lora_A",
    "parametrizations.weight.0.lora_B",
];

/// Returns whether a configuration has task adapters.
pub(in crate::checkpoint) fn has_adapters(config: &Config) -> bool {
    config.keys().contains_key(TASKS)
}

/// Scheme for task adapters.
#[derive(Debug)]
pub(super) struct Adapters {
    kind: WeightType,
    tasks: usize,
    rank: usize,
    /// Index of the task whose adapter is applied, and the factor of the product.
    chosen: Option<(usize, f32)>,
}

impl Adapters {
    /// Reads the adapters of a configuration, if it has any; selects that of `task` if there is one.
    pub(super) fn read(
        config: &Config,
        task: Option<&str>,
        kind: WeightType,
    ) -> Result<Option<Self>, LoadError> {
        let Some(tasks) = config.optional::<Vec<String>>(TASKS)? else {
            return Ok(None);
        };
        let rank = config.size("lora_rank")?;
        let scale = config.optional::<f32>("lora_alpha")?.unwrap_or(1.0) / rank as f32;
        let chosen = tasks.iter().position(|name| Some(name.as_str()) == task);
        Ok(Some(Self {
            kind,
            tasks: tasks.len(),
            rank,
            chosen: chosen.map(|index| (index, scale)),
        }))
    }
}

impl Scheme for Adapters {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        all_beside(name, &[ORIGINAL, LORA[0], LORA[1]])
    }

    fn is_code(&self, _dtype: Dtype) -> bool {
        false
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let weight = stored.required(ORIGINAL)?;
        if weight.shape() != shape {
            return Err(Fault::Shape(weight.shape().to_vec()));
        }
        let mut values = weight.numbers()?;
        let Some((task, scale)) = self.chosen else {
            return Ok(values);
        };
        let [rows, columns] = *shape else {
            return Err(weight.fault("should be a matrix"));
        };
        let [a, b] = LORA.map(|role| stored.required(role));
        // For embeddings the product is A B, for linear layers B A.
        let (left, right) = if a
            .as_ref()
            .is_ok_and(|a| a.shape() == [self.tasks, self.rank, columns])
        {
            (b?, a?)
        } else {
            (a?, b?)
        };
        let left = left.of_shape(&[self.tasks, rows, self.rank])?.numbers()?;
        let right = right.of_shape(&[self.tasks, self.rank, columns])?.numbers()?;
        let of_task =
            |values: &'_ [f32], size: usize| values.chunks(size.max(1)).nth(task).map(<[f32]>::to_vec);
        let left = of_task(&left, rows * self.rank).unwrap_or_default();
        let right = of_task(&right, self.rank * columns).unwrap_or_default();
        let of_rows = values
            .chunks_mut(columns.max(1))
            .zip(left.chunks(self.rank.max(1)));
        for (row, factors) in of_rows {
            for (factor, added) in factors.iter().zip(right.chunks(columns.max(1))) {
                for (value, added) in row.iter_mut().zip(added) {
                    *value += scale * factor * added;
                }
            }
        }
        Ok(values)
    }
}
