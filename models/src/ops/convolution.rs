//! Convolutions on the CPU: windows are copied to rows, which a packed matrix multiplies.

use rayon::prelude::*;

use super::Convolution;
use super::cpu::PackedLinear;
use super::gemm::{gemm_into, is_small, rows_per_task};
use super::rows::Rows;

pub(super) fn convolve(images: &Rows, convolution: &Convolution, linear: &PackedLinear) -> Rows {
    let Convolution {
        height,
        width,
        channels,
        ..
    } = *convolution;
    let image = (height * width * channels).max(1);
    let [down, across] = convolution.result();
    let count = images.values.len() / image * down * across;
    let (inputs, outputs) = (convolution.window(), linear.outputs);
    let mut out = vec![0.0; count * outputs];
    // The windows of a task stay in the cache until they are multiplied.
    let compute = |first: usize, out: &mut [f32]| {
        let pixels = out.len() / outputs.max(1);
        let mut windows = Vec::with_capacity(pixels * inputs);
        for pixel in first..first + pixels {
            let (index, row) = (pixel / (down * across), pixel / across % down);
            let values = images.values.get(index * image..(index + 1) * image);
            let corner = [row, pixel % across].map(|place| place * convolution.stride);
            add_window(&mut windows, values.unwrap_or_default(), convolution, corner);
        }
        gemm_into(
            out,
            outputs,
            &windows,
            inputs,
            linear.weight.panels(),
            &linear.bias,
        );
    };
    if is_small(count.saturating_mul(inputs).saturating_mul(outputs)) {
        compute(0, &mut out);
    } else {
        let each = rows_per_task(count);
        let tasks = out.par_chunks_mut((each * outputs).max(1)).enumerate();
        tasks.for_each(|(index, out)| compute(index * each, out));
    }
    Rows {
        values: out,
        width: outputs,
    }
}

/// Appends the window of an image whose upper left pixel is one above and one left of `corner`.
fn add_window(windows: &mut Vec<f32>, image: &[f32], convolution: &Convolution, [top, left]: [usize; 2]) {
    let Convolution {
        height,
        width,
        channels,
        ..
    } = *convolution;
    // Columns of the image that the window covers, after those of the border.
    let (border, from, to) = (
        usize::from(left == 0),
        left.saturating_sub(1),
        (left + 2).min(width),
    );
    for row in top..top + 3 {
        let end = windows.len() + 3 * channels;
        if (1..=height).contains(&row) {
            let line = (row - 1) * width;
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
    use super::super::cpu::Cpu;
    use super::*;
    use crate::precision::WeightType;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    /// One value of the result by its definition.
    fn plain(image: &[f32], c: &Convolution, weight: &[f32], outputs: usize, at: [usize; 3]) -> f64 {
        let [row, column, output] = at;
        let mut sum = 0.0;
        for (window_row, window_column) in (0..3).flat_map(|row| (0..3).map(move |column| (row, column))) {
            let (y, x) = (row * c.stride + window_row, column * c.stride + window_column);
            if y == 0 || x == 0 || y > c.height || x > c.width {
                continue;
            }
            for channel in 0..c.channels {
                let pixel = image[((y - 1) * c.width + x - 1) * c.channels + channel];
                let input = (window_row * 3 + window_column) * c.channels + channel;
                sum += f64::from(pixel) * f64::from(weight[input * outputs + output]);
            }
        }
        sum
    }

    #[test]
    fn convolutions_match_their_definition() {
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
            let convolution = Convolution {
                height,
                width,
                channels,
                stride,
            };
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
    fn not_a_number_reaches_every_window_that_covers_it() {
        let convolution = Convolution {
            height: 4,
            width: 4,
            channels: 1,
            stride: 1,
        };
        let mut values = vec![1.0; 16];
        values[5] = f32::NAN;
        let linear = Cpu.linear(Cpu.prepare(vec![0.5; 9], 9, 1, WeightType::F32), Vec::new(), 9, 1);
        let result = Cpu.convolve(&Cpu.upload(values, 1), &convolution, &linear);
        for (pixel, value) in result.values.iter().enumerate() {
            assert_eq!(value.is_nan(), pixel / 4 < 3 && pixel % 4 < 3, "{pixel}");
        }
    }
}
