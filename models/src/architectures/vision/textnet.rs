//! `TextNet` (Chen et al. 2021, "FAST"): each convolution is the sum of a square or rectangular one, a vertical and a
//! horizontal one, and the identity, each with a batch norm.

use super::Family;
use super::builder::{BatchNorm, Builder, Window, by_pixel};
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

pub(in crate::architectures) struct TextNet;

/// Side of the kernel that contains all others, pixels.
const KERNEL: usize = 3;

impl Family for TextNet {
    const BASE: &'static str = "textnet";
    const CLASSIFIER: &'static str = "fc";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let epsilon = epsilon(config, "batch_norm_eps")?;
        if config.size("stem_num_channels")? != builder.channels() {
            return Err(config.invalid_value(
                "stem_num_channels",
                "it must be the number of channels of an image",
            ));
        }
        let norm = BatchNorm {
            name: "textnet.stem.batch_norm",
            epsilon,
        };
        let window = Window::centred(config.size("stem_kernel_size")?, config.size("stem_stride")?);
        let outputs = config.size("stem_out_channels")?;
        builder.convolve("textnet.stem.conv", Some(norm), outputs, window)?;
        builder.activate(activation(config, "stem_act_func")?);
        let key = "conv_layer_kernel_sizes";
        let kernels = config.required::<Vec<Vec<[usize; 2]>>>(key)?;
        let strides = config.required::<Vec<Vec<usize>>>("conv_layer_strides")?;
        let widths = config.required::<Vec<usize>>("hidden_sizes")?;
        if widths.len() != kernels.len() + 1 || strides.len() != kernels.len() {
            return Err(config.invalid_value(key, "it needs as many stages as conv_layer_strides"));
        }
        let stages = kernels.iter().zip(&strides).zip(widths.iter().skip(1));
        for (stage, ((kernels, strides), outputs)) in stages.enumerate() {
            if kernels.len() != strides.len()
                || kernels.iter().flatten().any(|side| ![1, KERNEL].contains(side))
            {
                return Err(
                    config.invalid_value(key, "kernels must have sides of 1 or 3 pixels, and a stride each")
                );
            }
            for (layer, (sides, stride)) in kernels.iter().zip(strides).enumerate() {
                let layer = Layer {
                    name: format!("textnet.encoder.stages.{stage}.stage.{layer}"),
                    sides: *sides,
                    outputs: *outputs,
                    epsilon,
                };
                layer.add(builder, *stride)?;
            }
        }
        builder.mean();
        Ok(())
    }
}

/// A sum of convolutions.
struct Layer {
    name: String,
    /// Height and width of the largest kernel, pixels.
    sides: [usize; 2],
    outputs: usize,
    epsilon: f64,
}

impl Layer {
    /// Adds the sum as one convolution.
    fn add<O: Ops>(&self, builder: &mut Builder<'_, '_, O>, stride: usize) -> Result<(), LoadError> {
        let (inputs, [height, width]) = (builder.channels(), self.sides);
        let (mut weight, mut bias) = (
            vec![0.0; self.outputs * inputs * KERNEL * KERNEL],
            vec![0.0; self.outputs],
        );
        let mut parts = vec![("main", self.sides)];
        parts.extend((width != 1).then_some(("vertical", [height, 1])));
        parts.extend((height != 1).then_some(("horizontal", [1, width])));
        for (part, sides) in parts {
            let norm = BatchNorm {
                name: &format!("{}.{part}_batch_norm", self.name),
                epsilon: self.epsilon,
            };
            let name = format!("{}.{part}_conv", self.name);
            let shape = [self.outputs, inputs, sides[0], sides[1]];
            let (own, shifts) = builder.weight(&name, Some(norm), &shape)?;
            add_centred(&mut weight, &own, sides);
            add(&mut bias, &shifts);
        }
        if inputs == self.outputs && stride == 1 {
            let (factors, shifts) = builder.scales(&BatchNorm {
                name: &format!("{}.rbr_identity", self.name),
                epsilon: self.epsilon,
            })?;
            add(&mut bias, &shifts);
            let centres = weight
                .iter_mut()
                .skip(KERNEL * KERNEL / 2)
                .step_by(KERNEL * KERNEL);
            // Centre weights from each channel to itself.
            for (centre, factor) in centres.step_by(inputs + 1).zip(&factors) {
                *centre += factor;
            }
        }
        let (weight, rows) = by_pixel(weight, self.outputs, KERNEL);
        let linear = builder.layers().upload_folded(weight, bias, rows, self.outputs);
        builder.convolve_by(linear, self.outputs, Window::centred(KERNEL, stride));
        builder.activate(Activation::Relu);
        Ok(())
    }
}

/// Adds kernels of this height and width to the centres of square ones.
fn add_centred(weight: &mut [f32], own: &[f32], [height, width]: [usize; 2]) {
    let (above, left) = ((KERNEL - height) / 2, (KERNEL - width) / 2);
    let kernels = weight
        .chunks_mut(KERNEL * KERNEL)
        .zip(own.chunks((height * width).max(1)));
    for (kernel, own) in kernels {
        let rows = kernel
            .chunks_mut(KERNEL)
            .skip(above)
            .zip(own.chunks(width.max(1)));
        for (row, own) in rows {
            for (sum, value) in row.iter_mut().skip(left).zip(own) {
                *sum += value;
            }
        }
    }
}

fn add(sums: &mut [f32], values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value;
    }
}
