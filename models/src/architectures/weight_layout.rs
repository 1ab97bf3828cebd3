//! Storage layouts of linear layers in files: whole, by groups of inputs and outputs, or by heads.

use super::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::Ops;

/// Storage layout of a linear layer's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum WeightLayout {
    /// `{name}.weight`, `[outputs, inputs]`.
    #[default]
    Whole,
    /// Grouped convolution over one token, with this number of groups; an output reads only its own group:
    /// `{name}.weight`, `[outputs, inputs / groups, 1]`.
    Convolution(usize),
    /// Grouped, with this number of groups; an output reads only its own group: `{name}.weight`, `[groups, inputs /
    /// groups, outputs / groups]`.
    Groups(usize),
    /// By input, with outputs split into this number of heads: `{name}`, `[inputs, heads, outputs / heads]`.
    OutputHeads(usize),
    /// By output, with inputs split into this number of heads: `{name}`, `[outputs, heads, inputs / heads]`.
    InputHeads(usize),
}

/// Storage layouts of a block's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct WeightLayouts {
    /// Query, key and value projections.
    pub projections: [WeightLayout; 3],
    /// Output projection of the attention.
    pub output: WeightLayout,
    /// First layer of the feed-forward.
    pub up: WeightLayout,
    /// Second layer of the feed-forward.
    pub down: WeightLayout,
}

impl<O: Ops> Layers<'_, O> {
    /// Takes the weight of the linear layer `name` as `[inputs, outputs]`.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn take_weight(
        &mut self,
        name: &str,
        layout: WeightLayout,
        inputs: usize,
        outputs: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let stored = format!("{name}.weight");
        match layout {
            WeightLayout::Whole => self.weights.take_transposed(&stored, inputs, outputs),
            WeightLayout::Convolution(groups) => {
                let each = inputs / groups.max(1);
                let weight = self.weights.take(&stored, &[outputs, each, 1])?;
                let by_input: Vec<f32> = weight
                    .chunks((outputs / groups.max(1) * each).max(1))
                    .flat_map(|group| transposed(group, each))
                    .collect();
                Ok(spread(&by_input, groups, inputs, outputs))
            }
            WeightLayout::Groups(groups) => {
                let parts = groups.max(1);
                let weight = self
                    .weights
                    .take(&stored, &[groups, inputs / parts, outputs / parts])?;
                Ok(spread(&weight, groups, inputs, outputs))
            }
            WeightLayout::OutputHeads(heads) => {
                self.weights.take(name, &[inputs, heads, outputs / heads.max(1)])
            }
            WeightLayout::InputHeads(heads) => {
                let weight = self
                    .weights
                    .take(name, &[outputs, heads, inputs / heads.max(1)])?;
                Ok(transposed(&weight, inputs))
            }
        }
    }

    /// Takes the linear layer `name` with `{name}.bias` if `biased`.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn linear_from_host(
        &mut self,
        name: &str,
        layout: WeightLayout,
        [inputs, outputs]: [usize; 2],
        biased: bool,
    ) -> Result<O::Linear, LoadError> {
        let weight = self.take_weight(name, layout, inputs, outputs)?;
        let bias = if biased {
            self.weights.take(&format!("{name}.bias"), &[outputs])?
        } else {
            Vec::new()
        };
        Ok(self.upload(weight, bias, inputs, outputs))
    }
}

/// Expands the weights of groups, each `[inputs / groups, outputs / groups]`, to `[inputs, outputs]`; weights between
/// groups are zero.
fn spread(by_group: &[f32], groups: usize, inputs: usize, outputs: usize) -> Vec<f32> {
    let each = outputs / groups.max(1);
    let rows = (inputs / groups.max(1)).max(1);
    let mut weight = vec![0.0; inputs * outputs];
    let lines = weight
        .chunks_mut(outputs.max(1))
        .zip(by_group.chunks(each.max(1)));
    for (input, (line, own)) in lines.enumerate() {
        let from = input / rows * each;
        if let Some(slots) = line.get_mut(from..from + own.len()) {
            slots.copy_from_slice(own);
        }
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_reads_the_inputs_of_its_group_only() {
        let by_group = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0];
        // Two groups of two inputs and three outputs.
        let expected = [
            [1.0, 2.0, 3.0, 0.0, 0.0, 0.0],
            [4.0, 5.0, 6.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 7.0, 8.0, 9.0],
            [0.0, 0.0, 0.0, 10.0, 11.0, 12.0],
        ];
        assert_eq!(spread(&by_group, 2, 4, 6), expected.concat());
    }
}
