//! The builder of a network's [steps](super::steps): it takes their weights from a checkpoint.

use super::groups::GroupedConvolution;
use super::separable::SeparableAttention;
use super::spatial_reduction::{ReducedAttention, ReducedNames};
use super::steps::{Change, Layer, Step};
use super::windows::{Places, WindowAttention};
use crate::architectures::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::{Activation, Convolution, Ops};

/// A norm over the images of training, which is folded into the convolution before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchNorm<'a> {
    pub name: &'a str,
    /// Added to the variance.
    pub epsilon: f64,
}

/// The window of a convolution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Its side, pixels.
    pub kernel: usize,
    /// Pixels from one window to the next.
    pub stride: usize,
    /// Pixels around an image: above, left, below, right.
    pub border: [usize; 4],
}

impl Window {
    /// A window whose centre moves over the pixels.
    pub(super) const fn centred(kernel: usize, stride: usize) -> Self {
        Self {
            kernel,
            stride,
            border: [kernel / 2; 4],
        }
    }

    /// Windows that do not overlap, without a border.
    pub(super) const fn patches(kernel: usize) -> Self {
        Self {
            kernel,
            stride: kernel,
            border: [0; 4],
        }
    }
}

/// Takes the weights of steps from a checkpoint, and follows the shape of the images.
pub(in crate::architectures) struct Builder<'a, 'w, O: Ops> {
    layers: &'a mut Layers<'w, O>,
    /// Height, width and channels.
    pub(super) shape: [usize; 3],
    pub(super) steps: Vec<Step<O>>,
}

impl<'a, 'w, O: Ops> Builder<'a, 'w, O> {
    /// Creates a builder for images of height, width and channels.
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

    /// Number of channels now.
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

    /// Changes the last result.
    pub(super) fn change(&mut self, change: Change<O>) {
        if let Some(step) = self.steps.last_mut() {
            step.changes.push(change);
        }
    }

    /// Adds a convolution of channels by a window, with a batch norm or a bias.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Adds a convolution by a layer that was taken before.
    pub(super) fn convolve_by(&mut self, linear: O::Linear, outputs: usize, window: Window) {
        let convolution = self.convolution(window);
        let [height, width] = convolution.result();
        self.shape = [height, width, outputs];
        self.push(Layer::Convolve(convolution, linear));
    }

    /// Takes a convolution of twice the present channels with its batch norm as two convolutions, of the first half of the
    /// channels and of the second, whose sum it is.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Adds a convolution of one pixel without a bias.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Adds a norm of all values of an image at once, with a factor and a shift for each channel.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Adds a convolution of every channel by itself, with a batch norm or a bias.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn convolve_channels(
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

    /// Adds a convolution of groups of channels, each by itself, with a batch norm or a bias.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Multiplies the channels of the last result by factors that `steps` compute from its mean pixel: a squeeze and
    /// excitation (Hu et al. 2018).
    ///
    /// # Errors
    /// Those of the steps.
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

    /// Returns the window of a convolution whose result has a pixel for every `stride` pixels of the image, with the border
    /// of TensorFlow: as even as possible, with more of it below and on the right.
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

    /// Takes the weight and bias of a convolution, with its batch norm.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Returns the convolution of the images now by a window.
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

    /// Adds pooling by the largest values.
    pub(super) fn pool_largest(&mut self, window: Window) {
        let convolution = self.convolution(window);
        let [height, width] = convolution.result();
        self.shape = [height, width, self.channels()];
        self.push(Layer::PoolLargest(convolution));
    }

    /// Adds the largest values of all pixels of an image.
    pub(super) fn largest(&mut self) {
        let [height, width] = self.size();
        let kernel = height.max(width);
        self.pool_largest(Window {
            kernel,
            stride: kernel.max(1),
            border: [0, 0, kernel - height, kernel - width],
        });
    }

    /// Adds the mean of all pixels of an image.
    pub(super) fn mean(&mut self) {
        let [height, width, channels] = self.shape;
        self.push(Layer::Mean(height * width));
        self.shape = [1, 1, channels];
    }

    /// Puts the four pixels of every square of two by two side by side, column by column.
    pub(super) fn merge(&mut self) {
        let [height, width, channels] = self.shape;
        let (down, across) = (height.div_ceil(2), width.div_ceil(2));
        self.push(Layer::Merge(
            Places::squares([height, width]),
            [channels, 4 * channels],
        ));
        self.shape = [down, across, 4 * channels];
    }

    /// Makes a row of every channel, whose elements are the pixels.
    pub(super) fn exchange(&mut self) {
        let [height, width, channels] = self.shape;
        self.exchange_to([channels, 1, height * width]);
    }

    /// Undoes [`Builder::exchange`] for images of this shape.
    pub(super) fn exchange_back(&mut self, shape: [usize; 3]) {
        self.exchange_to(shape);
    }

    /// Exchanges the rows and the columns of every image, whose shape becomes this one.
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
        // The mean of one row is the row.
        self.push(Layer::Mean(1));
    }

    /// Adds attention within windows.
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
    /// Those of the steps, and as [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Adds the vectors `{name}` of the places of an image to the last result.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn add_positions(&mut self, name: &str) -> Result<(), LoadError> {
        let [height, width, channels] = self.shape;
        let count = height * width;
        let rows = self.layers.weights.take(name, &[1, count, channels])?;
        self.add_rows(rows);
        Ok(())
    }

    /// Height and width of the images now.
    pub(super) fn size(&self) -> [usize; 2] {
        let [height, width, _] = self.shape;
        [height, width]
    }

    /// Where the weights come from.
    pub(super) fn layers(&mut self) -> &mut Layers<'w, O> {
        self.layers
    }

    /// Adds a linear layer of the channels.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn multiply(&mut self, name: &str, outputs: usize) -> Result<(), LoadError> {
        self.multiply_with(name, outputs, true)
    }

    /// Adds a linear layer of the channels; without `biased` it has no bias.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Adds a layer norm of the channels of every pixel.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn normalise(&mut self, name: &str, epsilon: f64) -> Result<(), LoadError> {
        let norm = self.layers.layer_norm(name, self.channels(), epsilon)?;
        self.push(Layer::Normalise(norm));
        Ok(())
    }

    /// Activates the last result.
    pub(super) fn activate(&mut self, activation: Activation) {
        self.change(Change::Activate(activation));
    }

    /// Multiplies the channels of the last result by factors.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Adds these rows of an image to the last result.
    pub(super) fn add_rows(&mut self, rows: Vec<f32>) {
        let [height, width, channels] = self.shape;
        let rows = self.layers.ops.upload(rows, channels);
        self.change(Change::AddRows(rows, [height * width, channels]));
    }

    /// Normalises the responses of the last result.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn normalise_responses(&mut self, name: &str, epsilon: f32) -> Result<(), LoadError> {
        let [height, width, channels] = self.shape;
        let mut take = |part: &str| {
            let name = format!("{name}.{part}");
            // Files of timm have vectors.
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

    /// Adds the sum of two branches from the same input; a branch without steps is the input. Their results have the same
    /// shape.
    ///
    /// # Errors
    /// Those of the branches.
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

/// Returns the weight of a convolution as that of a linear layer of windows pixel by pixel, `[inputs, outputs]`, and its inputs;
/// the file has windows channel by channel.
pub(super) fn by_pixel(mut weight: Vec<f32>, outputs: usize, kernel: usize) -> (Vec<f32>, usize) {
    let inputs = weight.len() / outputs.max(1);
    for output in weight.chunks_mut(inputs.max(1)) {
        output.copy_from_slice(&transposed(output, kernel * kernel));
    }
    (transposed(&weight, inputs), inputs)
}
