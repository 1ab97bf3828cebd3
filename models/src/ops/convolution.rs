//! Convolutions on the CPU: a packed matrix multiplies the windows, which are read from images stored by channel ([`direct`]), or copied
//! to rows (im2col) where they do not overlap or the weights are not f32.

mod direct;

use std::cell::Cell;

use pulp::Arch;
use rayon::prelude::*;

use super::activation::Activate;
use super::cpu::Cpu;
use super::cpu_layers::{PackedLinear, sum_into};
use super::gemm::{FEW, gemm, is_small, rows_per_task};
use super::rows::Rows;
use super::{Convolution, Epilogue};
use direct::Planes;

thread_local! {
    /// Buffer for the windows of a task, reused because a new vector would be mapped and zeroed by the system each
    /// time.
    static WINDOWS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Computes a convolution; see [`Ops::convolve_with`](super::Ops::convolve_with).
pub(super) fn convolve(
    images: &Rows,
    convolution: &Convolution,
    linear: &PackedLinear,
    epilogue: Epilogue<'_, Rows>,
) -> Rows {
    let Convolution {
        height,
        width,
        channels,
        stride,
        ..
    } = *convolution;
    let image = (height * width * channels).max(1);
    let [down, across] = convolution.result();
    let count = images.values.len() / image * down * across;
    let (inputs, outputs) = (convolution.window(), linear.outputs);
    let by_pixel = convolution.is_by_pixel();
    if by_pixel && count < FEW {
        // Few rows are split by columns instead.
        let panels = linear.weight.panels();
        let values = gemm(&images.values, inputs, panels, &linear.bias, outputs);
        let width = outputs;
        return epilogue.apply(&Cpu, Rows { values, width });
    }
    let arch = Arch::new();
    let mut out = vec![0.0; count * outputs];
    let planes = Planes::new(&images.values, convolution, linear);
    // The windows and the results of a task stay in the cache until the task ends.
    let compute = |first: usize, out: &mut [f32]| {
        let pixels = out.len() / outputs.max(1);
        if by_pixel {
            let rows = images.values.get(first * inputs..(first + pixels) * inputs);
            linear.multiply_into(out, rows.unwrap_or_default());
        } else if let Some(planes) = &planes {
            planes.multiply_into(out, first, linear);
        } else {
            let mut windows = WINDOWS.take();
            windows.clear();
            windows.reserve(pixels * inputs);
            for pixel in first..first + pixels {
                let (index, row) = (pixel / (down * across), pixel / across % down);
                let values = images.values.get(index * image..(index + 1) * image);
                let corner = [row, pixel % across].map(|place| place * stride);
                add_window(&mut windows, values.unwrap_or_default(), convolution, corner);
            }
            linear.multiply_into(out, &windows);
            WINDOWS.set(windows);
        }
        if let Some(residual) = epilogue.residual {
            sum_into(out, residual.span(first, pixels));
        }
        if let Some(activation) = epilogue.activation {
            arch.dispatch(Activate {
                values: out,
                activation,
            });
        }
    };
    if is_small(count.saturating_mul(inputs).saturating_mul(outputs)) {
        compute(0, &mut out);
    } else {
        let each = match planes {
            // Whole rows of windows, unless the threads would wait for each other.
            Some(_) if count > 4 * across * rayon::current_num_threads() => {
                rows_per_task(count).next_multiple_of(across)
            }
            _ => rows_per_task(count),
        };
        let tasks = out.par_chunks_mut((each * outputs).max(1)).enumerate();
        tasks.for_each(|(index, out)| compute(index * each, out));
    }
    Rows {
        values: out,
        width: outputs,
    }
}

/// Appends the window with upper left pixel `corner`, in coordinates that include the padding.
fn add_window(windows: &mut Vec<f32>, image: &[f32], convolution: &Convolution, [top, left]: [usize; 2]) {
    let Convolution {
        height,
        width,
        channels,
        kernel,
        border: [above, before, ..],
        ..
    } = *convolution;
    // Columns of padding in the window, then columns of the image.
    let border = before.saturating_sub(left).min(kernel);
    let from = left.saturating_sub(before);
    let to = (left + kernel).saturating_sub(before).min(width).max(from);
    for row in top..top + kernel {
        let end = windows.len() + kernel * channels;
        if (above..height + above).contains(&row) {
            let line = (row - above) * width;
            windows.resize(windows.len() + border * channels, 0.0);
            let pixels = image.get((line + from) * channels..(line + to) * channels);
            windows.extend_from_slice(pixels.unwrap_or_default());
        }
        windows.resize(end, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ops;
    use super::*;
    use crate::ops::Activation;
    use crate::precision::WeightType;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    /// Computes one value of the result by definition.
    fn plain(image: &[f32], c: &Convolution, weight: &[f32], outputs: usize, at: [usize; 3]) -> f64 {
        let [row, column, output] = at;
        let [above, before, ..] = c.border;
        let mut sum = 0.0;
        let places = (0..c.kernel).flat_map(|row| (0..c.kernel).map(move |column| (row, column)));
        for (window_row, window_column) in places {
            let (y, x) = (row * c.stride + window_row, column * c.stride + window_column);
            if y < above || x < before || y >= c.height + above || x >= c.width + before {
                continue;
            }
            for channel in 0..c.channels {
                let pixel = image[((y - above) * c.width + x - before) * c.channels + channel];
                let input = (window_row * c.kernel + window_column) * c.channels + channel;
                sum += f64::from(pixel) * f64::from(weight[input * outputs + output]);
            }
        }
        sum
    }

    /// Returns convolutions of many shapes, with the numbers of images and outputs.
    fn forms() -> Vec<(usize, Convolution, usize)> {
        let mut forms = Vec::new();
        for (batch, height, width, channels, stride, outputs) in [
            (1, 1, 1, 1, 1, 1),
            (1, 1, 2, 3, 2, 33),
            (2, 5, 3, 2, 1, 4),
            (3, 4, 7, 1, 2, 5),
            (1, 2, 1, 4, 3, 2),
            (4, 9, 8, 5, 3, 7),
            // Large enough for several threads.
            (20, 8, 8, 12, 1, 40),
            (9, 13, 11, 16, 2, 35),
        ] {
            for kernel in [1, 3, 7] {
                let convolution = Convolution::centred([height, width, channels], kernel, stride);
                forms.push((batch, convolution, outputs));
            }
        }
        for (kernel, stride, border) in [
            (2, 2, [0, 0, 0, 0]),
            (2, 2, [0, 0, 1, 1]),
            (3, 2, [0, 0, 1, 1]),
            (4, 4, [0, 0, 3, 2]),
            (5, 1, [1, 2, 3, 2]),
            (9, 1, [0, 0, 0, 0]),
        ] {
            let convolution = Convolution {
                stride,
                border,
                ..Convolution::centred([5, 6, 3], kernel, 1)
            };
            forms.push((2, convolution, 4));
        }
        forms
    }

    #[test]
    fn convolutions_match_their_definition() {
        for (batch, convolution, outputs) in forms() {
            let Convolution {
                height,
                width,
                channels,
                ..
            } = convolution;
            let (inputs, size) = (convolution.window(), height * width * channels);
            let (values, weight) = (numbers(batch * size, 1), numbers(inputs * outputs, 2));
            let bias = numbers(outputs, 3);
            let linear = Cpu.linear(
                Cpu.prepare(weight.clone(), inputs, outputs, WeightType::F32),
                bias.clone(),
                inputs,
                outputs,
            );
            let result = Cpu.convolve(&Cpu.upload(values.clone(), channels), &convolution, &linear);
            let [down, across] = convolution.result();
            assert_eq!(
                (result.values.len(), result.width),
                (batch * down * across * outputs, outputs)
            );
            let pixels = (0..batch).flat_map(|image| {
                (0..down).flat_map(move |row| (0..across).map(move |column| (image, row, column)))
            });
            for ((image, row, column), actual) in pixels.zip(result.values.chunks(outputs)) {
                let image = &values[image * size..(image + 1) * size];
                for (output, (actual, bias)) in actual.iter().zip(&bias).enumerate() {
                    let expected = plain(image, &convolution, &weight, outputs, [row, column, output])
                        + f64::from(*bias);
                    assert!(
                        (f64::from(*actual) - expected).abs() < 1e-4,
                        "{convolution:?}: {actual} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_bits_of_an_epilogue_are_those_of_the_single_operations() {
        for (batch, convolution, outputs) in forms() {
            let Convolution {
                height,
                width,
                channels,
                ..
            } = convolution;
            let inputs = convolution.window();
            let linear = Cpu.linear(
                Cpu.prepare(numbers(inputs * outputs, 2), inputs, outputs, WeightType::F32),
                numbers(outputs, 3),
                inputs,
                outputs,
            );
            let images = Cpu.upload(numbers(batch * height * width * channels, 1), channels);
            let mut sum = Cpu.convolve(&images, &convolution, &linear);
            let residual = Cpu.upload(numbers(sum.values.len(), 4), outputs);
            let activated = Cpu.activate(sum.clone(), Activation::Gelu, false);
            assert_eq!(
                Cpu.convolve_with(&images, &convolution, &linear, Activation::Gelu.into()),
                activated
            );
            Cpu.add(&mut sum, &residual);
            let both = Epilogue {
                residual: Some(&residual),
                activation: Some(Activation::Relu),
            };
            let expected = Cpu.activate(sum, Activation::Relu, false);
            assert_eq!(Cpu.convolve_with(&images, &convolution, &linear, both), expected);
        }
    }

    /// Compares a depthwise convolution with a full one whose weights between channels are zero.
    #[test]
    fn convolutions_of_channels_match_their_definition() {
        for (batch, convolution, _) in forms() {
            let channels = convolution.channels;
            let places = convolution.kernel * convolution.kernel;
            let values = numbers(batch * convolution.height * convolution.width * channels, 1);
            let weights = numbers((places + 1) * channels, 2);
            let (each, bias) = weights.split_at(places * channels);
            let mut whole = vec![0.0; places * channels * channels];
            for (input, weight) in each.iter().enumerate() {
                whole[input * channels + input % channels] = *weight;
            }
            let inputs = places * channels;
            let linear = Cpu.linear(
                Cpu.prepare(whole, inputs, channels, WeightType::F32),
                bias.to_vec(),
                inputs,
                channels,
            );
            let images = Cpu.upload(values, channels);
            let expected = Cpu.convolve(&images, &convolution, &linear);
            let actual =
                Cpu.depthwise_convolve(&images, &convolution, &Cpu.upload(weights.clone(), channels));
            assert_eq!(actual.width, channels);
            assert_eq!(actual.values.len(), expected.values.len());
            for (actual, expected) in actual.values.iter().zip(&expected.values) {
                assert!((actual - expected).abs() < 1e-4, "{convolution:?}");
            }
        }
    }

    #[test]
    fn pooling_ignores_the_border() {
        let convolution = Convolution::centred([3, 3, 1], 3, 2);
        let images = Cpu.upload((1..10).map(|value| -(value as f32)).collect(), 1);
        let pooled = Cpu.max_pool(&images, &convolution);
        assert_eq!(pooled.values, [-1.0, -2.0, -4.0, -5.0]);
        assert_eq!(Cpu.mean(&images, 3).values, [-2.0, -5.0, -8.0]);
    }

    #[test]
    fn images_are_scaled_by_their_own_factors() {
        let mut rows = Cpu.upload((1..9).map(|value| value as f32).collect(), 2);
        let factors = Cpu.upload(vec![2.0, -1.0, 0.5, 0.0], 2);
        Cpu.scale_images(&mut rows, 2, &factors);
        assert_eq!(rows.values, [2.0, -2.0, 6.0, -4.0, 2.5, 0.0, 3.5, 0.0]);
    }

    #[test]
    fn responses_are_normalised_by_image() {
        let mut rows = Cpu.upload(vec![3.0, 0.0, 4.0, 1.0, 0.0, 2.0, 0.0, 0.0], 2);
        let norm = Cpu.norm(vec![2.0, 1.0], Some(vec![0.5, -0.5]), 0.0);
        Cpu.global_response_norm(&mut rows, 2, &norm);
        // L2 norms 5 and 1 with mean 3, then 0 and 2 with mean 1.
        let first = 2.0 * 5.0 / 3.0 + 1.0;
        let expected = [3.0 * first + 0.5, -0.5, 4.0 * first + 0.5, 4.0 / 3.0 - 0.5];
        for (actual, expected) in rows.values.iter().zip(expected) {
            assert!((actual - expected).abs() < 1e-5, "{rows:?}");
        }
        assert_eq!(rows.values[4..], [0.5, 5.5, 0.5, -0.5]);
    }

    #[test]
    fn not_a_number_reaches_every_window_that_covers_it() {
        let convolution = Convolution::centred([4, 4, 1], 3, 1);
        let mut values = vec![1.0; 16];
        values[5] = f32::NAN;
        let images = Cpu.upload(values, 1);
        let linear = Cpu.linear(Cpu.prepare(vec![0.5; 9], 9, 1, WeightType::F32), Vec::new(), 9, 1);
        for result in [
            Cpu.convolve(&images, &convolution, &linear),
            Cpu.depthwise_convolve(&images, &convolution, &Cpu.upload(vec![0.5; 10], 1)),
            Cpu.max_pool(&images, &convolution),
        ] {
            for (pixel, value) in result.values.iter().enumerate() {
                assert_eq!(value.is_nan(), pixel / 4 < 3 && pixel % 4 < 3, "{pixel}");
            }
        }
    }
}
