//! Builder of a network's [steps](super::steps), which takes their weights from a checkpoint.

use super::groups::GroupedConvolution;
use super::separable::SeparableAttention;
use super::spatial_reduction::{ReducedAttention, ReducedNames};
use super::steps::{Change, Layer, Step};
use super::windows::{Places, WindowAttention};
use crate::architectures::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::{Activation, Convolution, Ops};

/// A batch norm, which is folded into the convolution before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchNorm<'a> {
    pub name: &'a str,
    /// Epsilon of the norm.
    pub epsilon: f64,
}

/// The window of a convolution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Kernel size, pixels.
    pub kernel: usize,
    /// Stride, pixels.
    pub stride: usize,
    /// Padding, pixels: above, left, below, right.
    pub border: [usize; 4],
}

impl Window {
    /// Creates a window that is centred on each pixel.
    pub(super) const fn centred(kernel: usize, stride: usize) -> Self {
        Self {
            kernel,
            stride,
            border: [kernel / 2; 4],
        }
    }

    /// Creates non-overlapping windows without padding.
    pub(super) const fn patches(kernel: usize) -> Self {
        Self {
            kernel,
            stride: kernel,
            border: [0; 4],
        }
    }
}

/// Takes the weights of steps from a checkpoint, and tracks the shape of the images.
pub(in crate::architectures) struct Builder<'a, 'w, O: Ops> {
    layers: &'a mut Layers<'w, O>,
    /// Current height, width and channels.
    pub(super) shape: [usize; 3],
    pub(super) steps: Vec<Step<O>>,
}

impl<'a, 'w, O: Ops> Builder<'a, 'w, O> {
    /// Creates a builder for images of this height, width and channels.
    pub(super) fn new(layers: &'a mut Layers<'w, O>, shape: [usize; 3]) -> Self {
        Self {
            layers,
            shape,
            steps: Vec::new(),
        }
    }

    /// Returns the steps.
    pub(super) fn steps(self) -> Vec<Step<O>> {
        self.steps
    }

    /// Returns the current number of channels.
    pub(super) fn channels(&self) -> usize {
        let [.., channels] = self.shape;
        channels
    }

    /// Adds a layer.
    pub(super) fn push(&mut self, layer: Layer<O>) {
        self.steps.push(Step {
            layer,
            changes: Vec::new(),
        });
    }

    /// Applies a change to the last result.
    pub(super) fn change(&mut self, change: Change<O>) {
        if let Some(step) = self.steps.last_mut() {
            step.changes.push(change);
        }
    }

    /// Adds a convolution with a batch norm or a bias.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn convolve(
        &mut self,
        name: &str,
        norm: Option<BatchNorm<'_>>,
        outputs: usize,
        window: Window,
    ) -> Result<(), LoadError> {
        let (channels, kernel) = (self.channels(), window.kernel);
        let shape = [outputs, channels, kernel, kernel];
        let (weight, bias) = self.weight(name, norm, &shape)?;
        let (weight, inputs) = by_pixel(weight, outputs, kernel);
        let linear = if norm.is_some() {
            self.layers.upload_folded(weight, bias, inputs, outputs)
        } else {
            self.layers.upload(weight, bias, inputs, outputs)
        };
        self.convolve_by(linear, outputs, window);
        Ok(())
    }

    /// Adds a convolution with a layer that was taken before.
    pub(super) fn convolve_by(&mut self, linear: O::Linear, outputs: usize, window: Window) {
        let convolution = self.convolution(window);
        let [height, width] = convolution.result();
        self.shape = [height, width, outputs];
        self.push(Layer::Convolve(convolution, linear));
    }

    /// Takes a convolution over twice the current channels, with its batch norm, as two convolutions over the first
    /// and the second half of the channels, whose results must be added.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn halves(
        &mut self,
        name: &str,
        norm: BatchNorm<'_>,
        outputs: usize,
        window: Window,
    ) -> Result<[O::Linear; 2], LoadError> {
        let (channels, kernel) = (self.channels(), window.kernel);
        let shape = [outputs, 2 * channels, kernel, kernel];
        let (weight, bias) = self.weight(name, Some(norm), &shape)?;
        let half = (channels * kernel * kernel).max(1);
        let mut upload = |part: usize, bias: Vec<f32>| {
            let own = weight.chunks(half).skip(part).step_by(2);
            let (weight, inputs) = by_pixel(own.flatten().copied().collect(), outputs, kernel);
            self.layers.upload_folded(weight, bias, inputs, outputs)
        };
        Ok([upload(0, bias), upload(1, vec![0.0; outputs])])
    }

    /// Adds a 1x1 convolution without a bias.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn project(&mut self, name: &str, outputs: usize) -> Result<(), LoadError> {
        let [height, width, channels] = self.shape;
        let name = format!("{name}.weight");
        let weight = self.layers.weights.take(&name, &[outputs, channels, 1, 1])?;
        let weight = transposed(&weight, channels);
        let linear = self.layers.upload(weight, Vec::new(), channels, outputs);
        self.push(Layer::Multiply(linear));
        self.shape = [height, width, outputs];
        Ok(())
    }

    /// Adds a norm over all values of an image, with a scale and a shift per channel.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn normalise_images(&mut self, name: &str, epsilon: f64) -> Result<(), LoadError> {
        let [height, width, channels] = self.shape;
        let count = height * width;
        let mut take = |part: &str| {
            let values = self.layers.weights.take(&format!("{name}.{part}"), &[channels])?;
            Ok::<_, LoadError>(values.repeat(count))
        };
        let (gamma, beta) = (take("weight")?, take("bias")?);
        let norm = self.layers.ops.norm(gamma, Some(beta), epsilon as f32);
        self.push(Layer::NormaliseImages(norm, [count * channels, channels]));
        Ok(())
    }

    /// Adds a depthwise convolution with a batch norm or a bias.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn depthwise_convolve(
        &mut self,
        name: &str,
        norm: Option<BatchNorm<'_>>,
        window: Window,
    ) -> Result<(), LoadError> {
        let (channels, kernel) = (self.channels(), window.kernel);
        let (weight, bias) = self.weight(name, norm, &[channels, 1, kernel, kernel])?;
        let mut weights = transposed(&weight, kernel * kernel);
        weights.extend(bias);
        let convolution = self.convolution(window);
        let [height, width] = convolution.result();
        self.shape = [height, width, channels];
        let weights = self.layers.ops.upload(weights, channels);
        self.push(Layer::ConvolveChannels(convolution, weights));
        Ok(())
    }

    /// Adds a grouped convolution with a batch norm.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn convolve_groups(
        &mut self,
        name: &str,
        norm: BatchNorm<'_>,
        (outputs, groups): (usize, usize),
        window: Window,
    ) -> Result<(), LoadError> {
        let (inputs, kernel) = (self.channels() / groups.max(1), window.kernel);
        let (weight, bias) = self.weight(name, Some(norm), &[outputs, inputs, kernel, kernel])?;
        let convolution = Convolution {
            channels: inputs,
            ..self.convolution(window)
        };
        let grouped = GroupedConvolution::new(self.layers, convolution, (weight, bias), groups);
        let [height, width] = convolution.result();
        self.shape = [height, width, outputs];
        self.push(Layer::ConvolveGroups(Box::new(grouped)));
        Ok(())
    }

    /// Adds a squeeze-and-excitation (Hu et al. 2018): multiplies the channels of the last result by factors that
    /// `steps` compute from its mean pixel.
    ///
    /// # Errors
    /// Errors of the steps.
    pub(super) fn excite(
        &mut self,
        steps: impl FnOnce(&mut Self) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let (shape, before) = (self.shape, std::mem::take(&mut self.steps));
        let [height, width, channels] = shape;
        self.shape = [1, 1, channels];
        steps(self)?;
        let steps = std::mem::replace(&mut self.steps, before);
        self.shape = shape;
        self.change(Change::Excite(height * width, steps));
        Ok(())
    }

    /// Returns a window with TensorFlow's `SAME` padding: the result has one pixel per `stride` pixels, and an odd
    /// padding is larger below and on the right.
    pub(super) fn same_window(&self, kernel: usize, stride: usize) -> Window {
        let [height, width] = self.size().map(|side| {
            let covered = if side % stride == 0 { stride } else { side % stride };
            kernel.saturating_sub(covered)
        });
        Window {
            kernel,
            stride,
            border: [height / 2, width / 2, height.div_ceil(2), width.div_ceil(2)],
        }
    }

    /// Takes weight and bias of a convolution, with its batch norm folded in.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn weight(
        &mut self,
        name: &str,
        norm: Option<BatchNorm<'_>>,
        shape: &[usize],
    ) -> Result<(Vec<f32>, Vec<f32>), LoadError> {
        let weights = &mut *self.layers.weights;
        let outputs = shape.first().copied().unwrap_or_default();
        let mut weight = weights.take(&format!("{name}.weight"), shape)?;
        let Some(norm) = norm else {
            let bias = weights.take(&format!("{name}.bias"), &[outputs])?;
            return Ok((weight, bias));
        };
        let mut part = |part: &str| weights.take(&format!("{}.{part}", norm.name), &[outputs]);
        let (gamma, mut beta) = (part("weight")?, part("bias")?);
        let (mean, variance) = (part("running_mean")?, part("running_var")?);
        let inputs = (weight.len() / outputs.max(1)).max(1);
        let of_outputs = weight.chunks_mut(inputs).zip(&mut beta);
        let statistics = gamma.iter().zip(mean.iter().zip(&variance));
        for ((weight, beta), (gamma, (mean, variance))) in of_outputs.zip(statistics) {
            let factor = f64::from(*gamma) / (f64::from(*variance) + norm.epsilon).sqrt();
            for value in weight {
                *value = (f64::from(*value) * factor) as f32;
            }
            *beta = (f64::from(*beta) - f64::from(*mean) * factor) as f32;
        }
        Ok((weight, beta))
    }

    /// Returns the convolution of the current images with a window.
    pub(super) fn convolution(&self, window: Window) -> Convolution {
        let [height, width, channels] = self.shape;
        Convolution {
            height,
            width,
            channels,
            kernel: window.kernel,
            stride: window.stride,
            border: window.border,
        }
    }

    /// Adds max pooling.
    pub(super) fn max_pool(&mut self, window: Window) {
        let convolution = self.convolution(window);
        let [height, width] = convolution.result();
        self.shape = [height, width, self.channels()];
        self.push(Layer::PoolLargest(convolution));
    }

    /// Adds global max pooling.
    pub(super) fn largest(&mut self) {
        let [height, width] = self.size();
        let kernel = height.max(width);
        self.max_pool(Window {
            kernel,
            stride: kernel.max(1),
            border: [0, 0, kernel - height, kernel - width],
        });
    }

    /// Adds global average pooling.
    pub(super) fn mean(&mut self) {
        let [height, width, channels] = self.shape;
        self.push(Layer::Mean(height * width));
        self.shape = [1, 1, channels];
    }

    /// Concatenates the four pixels of each 2x2 square, column by column.
    pub(super) fn merge(&mut self) {
        let [height, width, channels] = self.shape;
        let (down, across) = (height.div_ceil(2), width.div_ceil(2));
        self.push(Layer::Merge(
            Places::squares([height, width]),
            [channels, 4 * channels],
        ));
        self.shape = [down, across, 4 * channels];
    }

    /// Transposes images, so that each channel becomes a row of pixels.
    pub(super) fn exchange(&mut self) {
        let [height, width, channels] = self.shape;
        self.exchange_to([channels, 1, height * width]);
    }

    /// Reverts [`Builder::exchange`] for images of this shape.
    pub(super) fn exchange_back(&mut self, shape: [usize; 3]) {
        self.exchange_to(shape);
    }

    /// Transposes every image; its shape becomes `shape`.
    fn exchange_to(&mut self, shape: [usize; 3]) {
        let [height, width, channels] = self.shape;
        let [.., columns] = shape;
        self.push(Layer::Merge(
            Places::exchanged(height * width, channels),
            [1, columns],
        ));
        self.shape = shape;
    }

    /// Adds a copy of the images.
    pub(super) fn copy(&mut self) {
        // Implemented as the mean of one row.
        self.push(Layer::Mean(1));
    }

    /// Adds windowed attention.
    pub(super) fn attend(&mut self, attention: WindowAttention<O>) {
        self.push(Layer::Attend(Box::new(attention)));
    }

    /// Adds separable attention.
    pub(super) fn attend_separably(&mut self, attention: SeparableAttention<O>) {
        self.push(Layer::AttendSeparably(Box::new(attention)));
    }

    /// Adds attention of every pixel to the pixels of a smaller image, which the steps of `reduction` compute.
    ///
    /// # Errors
    /// Errors of the steps, and those of [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn attend_reduced(
        &mut self,
        names: &ReducedNames,
        heads: usize,
        biased: bool,
        reduction: impl FnOnce(&mut Self) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let (shape, before) = (self.shape, std::mem::take(&mut self.steps));
        reduction(self)?;
        let reduction = std::mem::replace(&mut self.steps, before);
        let [height, width] = self.size();
        self.shape = shape;
        let pixels = [shape[0] * shape[1], height * width];
        let attention = ReducedAttention::take(
            self.layers,
            names,
            (self.channels(), heads, biased),
            pixels,
            reduction,
        )?;
        self.push(Layer::AttendReduced(Box::new(attention)));
        Ok(())
    }

    /// Adds the position embeddings `{name}` of an image to the last result.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn add_positions(&mut self, name: &str) -> Result<(), LoadError> {
        let [height, width, channels] = self.shape;
        let count = height * width;
        let rows = self.layers.weights.take(name, &[1, count, channels])?;
        self.add_rows(rows);
        Ok(())
    }

    /// Returns the current height and width of the images.
    pub(super) fn size(&self) -> [usize; 2] {
        let [height, width, _] = self.shape;
        [height, width]
    }

    /// Returns the loader of the weights.
    pub(super) fn layers(&mut self) -> &mut Layers<'w, O> {
        self.layers
    }

    /// Adds a linear layer over channels.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn multiply(&mut self, name: &str, outputs: usize) -> Result<(), LoadError> {
        self.multiply_with(name, outputs, true)
    }

    /// Adds a linear layer over channels, with a bias if `biased`.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn multiply_with(
        &mut self,
        name: &str,
        outputs: usize,
        biased: bool,
    ) -> Result<(), LoadError> {
        let [height, width, channels] = self.shape;
        let linear = self.layers.linear_with(name, channels, outputs, biased)?;
        self.push(Layer::Multiply(linear));
        self.shape = [height, width, outputs];
        Ok(())
    }

    /// Adds the mean of the first and the second half of the channels, each of `count` channels.
    pub(super) fn average_halves(&mut self, count: usize) {
        let mut weight = vec![0.0; 2 * count * count];
        for half in weight.chunks_mut((count * count).max(1)) {
            half.iter_mut().step_by(count + 1).for_each(|value| *value = 0.5);
        }
        let linear = self.layers.upload(weight, Vec::new(), 2 * count, count);
        self.push(Layer::Multiply(linear));
        let [height, width] = self.size();
        self.shape = [height, width, count];
    }

    /// Adds a layer norm over the channels of each pixel.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn normalise(&mut self, name: &str, epsilon: f64) -> Result<(), LoadError> {
        let norm = self.layers.layer_norm(name, self.channels(), epsilon)?;
        self.push(Layer::Normalise(norm));
        Ok(())
    }

    /// Applies an activation to the last result.
    pub(super) fn activate(&mut self, activation: Activation) {
        self.change(Change::Activate(activation));
    }

    /// Multiplies the channels of the last result by the scale factors `{name}`.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn scale(&mut self, name: &str) -> Result<(), LoadError> {
        let factors = self.layers.factors(name, self.channels())?;
        self.change(Change::Scale(factors));
        Ok(())
    }

    /// Multiplies the channels of the last result by these factors.
    pub(super) fn scale_by(&mut self, factors: Vec<f32>) {
        let factors = self.layers.ops.norm(factors, None, 0.0);
        self.change(Change::Scale(factors));
    }

    /// Adds these rows to each image of the last result.
    pub(super) fn add_rows(&mut self, rows: Vec<f32>) {
        let [height, width, channels] = self.shape;
        let rows = self.layers.ops.upload(rows, channels);
        self.change(Change::AddRows(rows, [height * width, channels]));
    }

    /// Applies the global response normalisation to the last result.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn global_response_norm(&mut self, name: &str, epsilon: f32) -> Result<(), LoadError> {
        let [height, width, channels] = self.shape;
        let mut take = |part: &str| {
            let name = format!("{name}.{part}");
            // In timm files, these are vectors.
            if self.layers.weights.has_shape(&name, &[channels]) {
                return self.layers.weights.take(&name, &[channels]);
            }
            self.layers.weights.take(&name, &[1, 1, 1, channels])
        };
        let (gamma, beta) = (take("weight")?, take("bias")?);
        let norm = self.layers.ops.norm(gamma, Some(beta), epsilon);
        self.change(Change::NormaliseResponses(height * width, norm));
        Ok(())
    }

    /// Adds a step that sums two branches of the same input; a branch without steps is the identity. Both results must
    /// have the same shape.
    ///
    /// # Errors
    /// Errors of the branches.
    pub(super) fn add(
        &mut self,
        branch: impl FnOnce(&mut Self) -> Result<(), LoadError>,
        shortcut: impl FnOnce(&mut Self) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let (shape, before) = (self.shape, std::mem::take(&mut self.steps));
        branch(self)?;
        let branch = std::mem::take(&mut self.steps);
        self.shape = shape;
        shortcut(self)?;
        let shortcut = std::mem::replace(&mut self.steps, before);
        self.push(Layer::Add(branch, shortcut));
        Ok(())
    }
}

/// Reorders the weight of a convolution, which files store channel by channel, to that of a linear layer over windows,
/// `[inputs, outputs]`, with interleaved channels. Also returns the number of inputs.
pub(super) fn by_pixel(mut weight: Vec<f32>, outputs: usize, kernel: usize) -> (Vec<f32>, usize) {
    let inputs = weight.len() / outputs.max(1);
    for output in weight.chunks_mut(inputs.max(1)) {
        output.copy_from_slice(&transposed(output, kernel * kernel));
    }
    (transposed(&weight, inputs), inputs)
}
