//! Convolutions and pooling with burn.

use std::ops::Range;

use burn::tensor::{Tensor, s};

use super::Convolution;

/// Reshapes rows to images of `count` pixels, `[images, pixels, channels]`.
pub(super) fn by_image(rows: &Tensor<2>, count: usize) -> Tensor<3> {
    let [height, width] = rows.dims();
    rows.clone().reshape([height / count.max(1), count, width])
}

/// Returns the L2 norms of the channels of each image over their mean, `[images, 1, channels]`.
pub(super) fn responses(rows: &Tensor<2>, count: usize, epsilon: f32) -> Tensor<3> {
    let images = by_image(rows, count);
    let lengths = (images.clone() * images).sum_dim(1).sqrt();
    let mean = lengths.clone().mean_dim(2) + epsilon;
    lengths / mean
}

/// Returns, for each pixel of the window, the image pixels that it covers, `[batch, down, across, channels]`; padding
/// has the value `outside`.
fn covered(images: &Tensor<2>, convolution: &Convolution, outside: f32) -> Vec<Tensor<4>> {
    let Convolution {
        height,
        width,
        channels,
        kernel,
        stride,
        border: [top, left, bottom, right],
    } = *convolution;
    let [rows, _] = images.dims();
    let batch = rows / (height * width).max(1);
    let [down, across] = convolution.result();
    let images = images.clone().reshape([batch, height, width, channels]);
    // Padding after the image extends to the stride of the last window.
    let size = [
        batch,
        top + height + bottom + stride,
        left + width + right + stride,
        channels,
    ];
    let padded: Tensor<4> = Tensor::full(size, outside, &images.device());
    let inside = |from: usize, side: usize| Range {
        start: from,
        end: from + side,
    };
    let padded = padded.slice_assign(
        [0..batch, inside(top, height), inside(left, width), 0..channels],
        images,
    );
    let parts = (0..kernel).flat_map(|row| (0..kernel).map(move |column| (row, column)));
    let step = isize::try_from(stride).unwrap_or(1);
    let parts = parts.map(|(row, column)| {
        let rows = row..row + down.saturating_sub(1) * stride + 1;
        let columns = column..column + across.saturating_sub(1) * stride + 1;
        padded.clone().slice(s![.., rows; step, columns; step, ..])
    });
    parts.collect()
}

/// Extracts the windows of images (im2col), `[windows, kernel * kernel * channels]`.
pub(super) fn windows(images: &Tensor<2>, convolution: &Convolution) -> Tensor<2> {
    let parts = covered(images, convolution, 0.0);
    let windows = Tensor::cat(parts, 3);
    let [batch, down, across, values] = windows.dims();
    windows.reshape([batch * down * across, values])
}

/// Computes a depthwise convolution; `weights` has one row per pixel of the window, then the bias.
pub(super) fn depthwise_convolve(
    images: &Tensor<2>,
    convolution: &Convolution,
    weights: &Tensor<2>,
) -> Tensor<2> {
    let [_, channels] = images.dims();
    let row = |index: usize| -> Tensor<2> { weights.clone().slice([index..index + 1, 0..channels]) };
    let parts = covered(images, convolution, 0.0);
    let bias = row(parts.len());
    let products = parts.into_iter().enumerate().map(|(index, part)| {
        let [batch, down, across, _] = part.dims();
        let part: Tensor<2> = part.reshape([batch * down * across, channels]);
        part * row(index)
    });
    products.fold(bias, |sum, product| sum + product)
}

/// Computes max pooling.
pub(super) fn max_pool(images: &Tensor<2>, convolution: &Convolution) -> Tensor<2> {
    let parts = covered(images, convolution, f32::NEG_INFINITY).into_iter();
    let largest = parts.reduce(Tensor::max_pair);
    largest.map_or_else(
        || images.clone(),
        |largest| {
            let [batch, down, across, channels] = largest.dims();
            largest.reshape([batch * down * across, channels])
        },
    )
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::super::super::cpu::Cpu;
    use super::super::super::{Activation, Ops};
    use super::super::Burn;
    use super::*;
    use crate::precision::WeightType;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count)
            .map(|index| (index * 7919 % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    /// Computes every image operation.
    fn results<O: Ops>(ops: &O, convolution: &Convolution) -> Vec<Vec<f32>> {
        let Convolution {
            height,
            width,
            channels,
            ..
        } = *convolution;
        let (window, pixels) = (convolution.window(), height * width);
        let images = ops.upload(numbers(2 * pixels * channels), channels);
        let weight = ops.prepare(numbers(window * 5), window, 5, WeightType::F32);
        let linear = ops.linear(weight, numbers(5), window, 5);
        let weights = ops.upload(numbers(window + channels), channels);
        let norm = ops.norm(
            numbers(channels),
            Some(numbers(2 * channels).split_off(channels)),
            1e-6,
        );
        let mut normalised = ops.select(&images, &(0..2 * pixels).collect::<Vec<_>>());
        ops.global_response_norm(&mut normalised, pixels, &norm);
        let mut scaled = ops.select(&images, &(0..2 * pixels).collect::<Vec<_>>());
        ops.scale_images(&mut scaled, pixels, &ops.upload(numbers(2 * channels), channels));
        let squeezed = ops.select(&images, &(0..2 * pixels).collect::<Vec<_>>());
        let squeezed = ops.multiply(
            &squeezed,
            &ops.linear(
                ops.prepare(vec![5.0; channels], channels, 1, WeightType::F32),
                Vec::new(),
                channels,
                1,
            ),
        );
        let limited = ops.select(&squeezed, &(0..2 * pixels).collect::<Vec<_>>());
        let hard = [Activation::HardSigmoid, Activation::HardSwish].map(|activation| {
            let copy = ops.select(&squeezed, &(0..2 * pixels).collect::<Vec<_>>());
            ops.activate(copy, activation, false)
        });
        let [hard_sigmoid, hard_swish] = hard;
        let quick = ops.select(&images, &(0..2 * pixels).collect::<Vec<_>>());
        let results = [
            scaled,
            ops.activate(squeezed, Activation::Sigmoid, false),
            ops.activate(limited, Activation::Relu6, false),
            ops.activate(quick, Activation::QuickGelu, false),
            hard_sigmoid,
            hard_swish,
            ops.convolve(&images, convolution, &linear),
            ops.depthwise_convolve(&images, convolution, &weights),
            ops.max_pool(&images, convolution),
            ops.mean(&images, pixels),
            ops.select(&images, &[3, usize::MAX, 0]),
            normalised,
        ];
        results
            .iter()
            .map(|result| ops.values(result).unwrap().into_owned())
            .collect()
    }

    #[test]
    fn operations_on_images_match_the_kernels() {
        let burn = Burn::new(Device::flex());
        let centred = |kernel, stride| Convolution::centred([7, 4, 3], kernel, stride);
        for convolution in [
            centred(1, 1),
            centred(1, 2),
            centred(3, 1),
            centred(3, 2),
            centred(3, 3),
            centred(7, 1),
            Convolution {
                border: [0, 0, 1, 2],
                ..centred(4, 4)
            },
            Convolution {
                border: [0, 1, 2, 3],
                ..centred(4, 2)
            },
        ] {
            let pairs = results(&burn, &convolution)
                .into_iter()
                .zip(results(&Cpu, &convolution));
            for (index, (on_burn, on_cpu)) in pairs.enumerate() {
                assert_eq!(on_burn.len(), on_cpu.len(), "{index} {convolution:?}");
                for (one, other) in on_burn.iter().zip(&on_cpu) {
                    assert!(
                        (one - other).abs() < 1e-4,
                        "{index} {convolution:?}: {one} {other}"
                    );
                }
            }
        }
    }
}
