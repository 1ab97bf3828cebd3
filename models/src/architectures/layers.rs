//! Takes layers from a checkpoint by the names of torch modules.

use super::weight_layout::WeightLayout;
use crate::checkpoint::{LoadError, Weights, transposed};
use crate::ops::Ops;
use crate::precision::{Table, WeightType};

/// Loader that takes layers from a checkpoint onto a device.
pub(super) struct Layers<'a, O> {
    pub(super) ops: &'a O,
    pub(super) weights: &'a mut Weights,
}

impl<O: Ops> Layers<'_, O> {
    /// Takes the linear layer `{prefix}.weight` (`[outputs, inputs]`) and `{prefix}.bias` (`[outputs]`).
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn linear(
        &mut self,
        prefix: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<O::Linear, LoadError> {
        self.linear_with(prefix, inputs, outputs, true)
    }

    /// Takes the linear layer `{prefix}`, with a bias if `biased`.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn linear_with(
        &mut self,
        prefix: &str,
        inputs: usize,
        outputs: usize,
        biased: bool,
    ) -> Result<O::Linear, LoadError> {
        self.concatenated(&[prefix.to_owned()], inputs, outputs, biased)
    }

    /// Takes the scale factors `{name}` for the elements of rows of size `width` ([`Ops::scale`]).
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn factors(&mut self, name: &str, width: usize) -> Result<O::Norm, LoadError> {
        let factors = self.weights.take(name, &[width])?;
        Ok(self.ops.norm(factors, None, 0.0))
    }

    /// Copies the linear layer `{prefix}`, which another layer shares and may take later.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn shared_linear(
        &mut self,
        prefix: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<O::Linear, LoadError> {
        let weight = self
            .weights
            .copy(&format!("{prefix}.weight"), &[outputs, inputs])?;
        let bias = self.weights.copy(&format!("{prefix}.bias"), &[outputs])?;
        let weight = transposed(&weight, inputs);
        let prepared = self
            .ops
            .prepare(weight, inputs, outputs, self.weights.weight_type());
        Ok(self.ops.linear(prepared, bias, inputs, outputs))
    }

    /// Takes linear layers of the same size as one fused layer, which reads the input once and concatenates their
    /// outputs; with biases if `biased`.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn concatenated(
        &mut self,
        prefixes: &[String],
        inputs: usize,
        outputs: usize,
        biased: bool,
    ) -> Result<O::Linear, LoadError> {
        let biased: Vec<bool> = vec![biased; prefixes.len()];
        self.concatenated_with(prefixes, inputs, outputs, &biased)
    }

    /// Takes linear layers like [`Layers::concatenated`]; `biased` states which of them have a bias.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn concatenated_with(
        &mut self,
        prefixes: &[String],
        inputs: usize,
        outputs: usize,
        biased: &[bool],
    ) -> Result<O::Linear, LoadError> {
        self.concatenated_of(prefixes, &[], [inputs, outputs], biased)
    }

    /// Takes linear layers like [`Layers::concatenated_with`]; `layouts` states their storage layouts, by default
    /// whole.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn concatenated_of(
        &mut self,
        prefixes: &[String],
        layouts: &[WeightLayout],
        [inputs, outputs]: [usize; 2],
        biased: &[bool],
    ) -> Result<O::Linear, LoadError> {
        let (mut parts, mut bias): (Vec<Vec<f32>>, Vec<f32>) =
            (Vec::with_capacity(prefixes.len()), Vec::new());
        for (part, (prefix, has_bias)) in prefixes.iter().zip(biased).enumerate() {
            let layout = layouts.get(part).copied().unwrap_or_default();
            parts.push(self.take_weight(prefix, layout, inputs, outputs)?);
            if *has_bias {
                bias.extend(self.weights.take(&format!("{prefix}.bias"), &[outputs])?);
            } else if biased.contains(&true) {
                bias.resize(bias.len() + outputs, 0.0);
            }
        }
        Ok(self.side_by_side(parts, bias, inputs, outputs))
    }

    /// Uploads the weights of linear layers of the same size, each `[inputs, outputs]`, as one fused layer.
    pub(super) fn side_by_side(
        &mut self,
        mut parts: Vec<Vec<f32>>,
        bias: Vec<f32>,
        inputs: usize,
        outputs: usize,
    ) -> O::Linear {
        if parts.len() == 1 {
            let weight = parts.pop().unwrap_or_default();
            return self.upload(weight, bias, inputs, outputs);
        }
        let mut weight = Vec::with_capacity(parts.iter().map(Vec::len).sum());
        for row in 0..inputs {
            for part in &parts {
                let columns = part.get(row * outputs..(row + 1) * outputs);
                weight.extend_from_slice(columns.unwrap_or_default());
            }
        }
        self.upload(weight, bias, inputs, outputs * parts.len())
    }

    /// Takes the linear layer `{prefix}` with the halves of its outputs swapped.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn swapped(
        &mut self,
        prefix: &str,
        inputs: usize,
        outputs: usize,
        biased: bool,
    ) -> Result<O::Linear, LoadError> {
        let name = format!("{prefix}.weight");
        let mut weight = self.weights.take(&name, &[outputs, inputs])?;
        let half = weight.len() / 2;
        weight.rotate_left(half);
        let mut bias = Vec::new();
        if biased {
            bias = self.weights.take(&format!("{prefix}.bias"), &[outputs])?;
            bias.rotate_left(outputs / 2);
        }
        Ok(self.upload(transposed(&weight, inputs), bias, inputs, outputs))
    }

    /// Takes the projections of grouped-query attention as one fused layer, in which each query head has its own key
    /// and value head. `biased` states which projections have a bias.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn grouped(
        &mut self,
        prefixes: &[String],
        [inputs, width]: [usize; 2],
        [heads, shared]: [usize; 2],
        biased: &[bool],
    ) -> Result<O::Linear, LoadError> {
        let (head, group) = (width / heads.max(1), heads / shared.max(1));
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for (part, (prefix, has_bias)) in prefixes.iter().zip(biased).enumerate() {
            let copies = if part == 0 { 1 } else { group };
            let outputs = width / copies.max(1);
            let repeated = |values: Vec<f32>, row: usize| -> Vec<f32> {
                let heads = values.chunks((head * row).max(1));
                heads.flat_map(|head| head.repeat(copies)).collect()
            };
            let own = self
                .weights
                .take(&format!("{prefix}.weight"), &[outputs, inputs])?;
            weight.extend(repeated(own, inputs));
            if *has_bias {
                let own = self.weights.take(&format!("{prefix}.bias"), &[outputs])?;
                bias.extend(repeated(own, 1));
            } else if biased.contains(&true) {
                bias.resize(bias.len() + width, 0.0);
            }
        }
        let outputs = width * prefixes.len();
        Ok(self.upload(transposed(&weight, inputs), bias, inputs, outputs))
    }

    /// Takes the query, key and value projections from a fused layer `{prefix}.weight`, which is ordered by `groups`
    /// groups of heads, with separate biases for queries and values.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn with_split_biases(
        &mut self,
        prefix: &str,
        [query_bias, value_bias]: &[String; 2],
        width: usize,
        groups: usize,
    ) -> Result<O::Linear, LoadError> {
        let rows = 3 * width;
        let weight = self.weights.take(&format!("{prefix}.weight"), &[rows, width])?;
        let part = (width / groups.max(1)).saturating_mul(width).max(1);
        let mut ordered = Vec::with_capacity(weight.len());
        for kind in 0..3 {
            let parts = weight.chunks(part).skip(kind).step_by(3);
            ordered.extend(parts.flatten());
        }
        let mut bias = self.weights.take(query_bias, &[width])?;
        bias.resize(2 * width, 0.0);
        bias.extend(self.weights.take(value_bias, &[width])?);
        Ok(self.upload(transposed(&ordered, width), bias, width, rows))
    }

    /// Takes the 3x3 convolution `{prefix}.weight` (`[outputs, channels, 3, 3]`) and `{prefix}.bias` (`[outputs]`) as
    /// a linear layer over windows ([`Ops::convolve`]).
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn convolution(
        &mut self,
        prefix: &str,
        channels: usize,
        outputs: usize,
    ) -> Result<O::Linear, LoadError> {
        self.by_pixel(prefix, &[outputs, channels, 3, 3], 9)
    }

    /// Takes the linear layer `{prefix}.weight` (`[outputs, channels, ...]`) and `{prefix}.bias` (`[outputs]`) over an
    /// image of `pixels` pixels; inputs are the pixels with interleaved channels.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn by_pixel(
        &mut self,
        prefix: &str,
        shape: &[usize],
        pixels: usize,
    ) -> Result<O::Linear, LoadError> {
        let weight = self
            .weights
            .take_by_pixel(&format!("{prefix}.weight"), shape, pixels)?;
        let outputs = shape.first().copied().unwrap_or_default();
        let bias = self.weights.take(&format!("{prefix}.bias"), &[outputs])?;
        let inputs = weight.len() / outputs.max(1);
        Ok(self.upload(weight, bias, inputs, outputs))
    }

    /// Takes the layer norm `{prefix}.weight` and `{prefix}.bias` over rows of size `width`.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn layer_norm(
        &mut self,
        prefix: &str,
        width: usize,
        epsilon: f64,
    ) -> Result<O::Norm, LoadError> {
        self.layer_norm_with(prefix, width, epsilon, true)
    }

    /// Takes the layer norm `{prefix}`, with a bias if `biased`.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn layer_norm_with(
        &mut self,
        prefix: &str,
        width: usize,
        epsilon: f64,
        biased: bool,
    ) -> Result<O::Norm, LoadError> {
        let gamma = self.weights.take(&format!("{prefix}.weight"), &[width])?;
        let beta = if biased {
            self.weights.take(&format!("{prefix}.bias"), &[width])?
        } else {
            // `None` would mean an RMS norm.
            vec![0.0; width]
        };
        Ok(self.ops.norm(gamma, Some(beta), epsilon as f32))
    }

    /// Uploads a linear layer in the type of the checkpoint's weights; `weight` is `[inputs, outputs]`, `bias` is
    /// empty without a bias.
    pub(super) fn upload(
        &mut self,
        weight: Vec<f32>,
        bias: Vec<f32>,
        inputs: usize,
        outputs: usize,
    ) -> O::Linear {
        let kind = self.weights.weight_type();
        self.upload_as(kind, weight, bias, [inputs, outputs])
    }

    /// Uploads a linear layer with weights computed from those of the checkpoint, which no smaller type represents
    /// exactly: in the requested type, else f32.
    pub(super) fn upload_folded(
        &mut self,
        weight: Vec<f32>,
        bias: Vec<f32>,
        inputs: usize,
        outputs: usize,
    ) -> O::Linear {
        let kind = self.weights.requested_type().unwrap_or(WeightType::F32);
        self.upload_as(kind, weight, bias, [inputs, outputs])
    }

    fn upload_as(
        &mut self,
        kind: WeightType,
        weight: Vec<f32>,
        bias: Vec<f32>,
        [inputs, outputs]: [usize; 2],
    ) -> O::Linear {
        let elements = weight.len();
        let prepared = self.ops.prepare(weight, inputs, outputs, kind);
        self.weights
            .count_prepared(elements, prepared.kind.bytes(elements));
        self.ops.linear(prepared, bias, inputs, outputs)
    }

    /// Takes the table `{name}.weight` (`[rows, width]`) in the type of the checkpoint's embeddings; empty if `rows`
    /// is 0.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<Table, LoadError> {
        if rows == 0 {
            return Ok(Table::new(Vec::new(), width));
        }
        let values = self.weights.take(&format!("{name}.weight"), &[rows, width])?;
        let elements = values.len();
        let table = Table::new(values, width).stored_as(self.weights.weight_type().of_embeddings());
        self.weights.count_prepared(elements, table.bytes());
        Ok(table)
    }
}
