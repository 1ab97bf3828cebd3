//! Steps of image networks. Matrices are `[images * height * width, channels]`.

use super::concat::{appended, concatenated};
use super::conv_attention::ConvolvedAttention;
use super::group_norm::GroupNorm;
use super::groups::GroupedConvolution;
use super::modulation::Modulation;
use super::pooled_attention::PooledAttention;
use super::separable::SeparableAttention;
use super::spatial_reduction::ReducedAttention;
use super::windows::{Places, WindowAttention};
use crate::ops::{Activation, Convolution, Epilogue, Ops, Span};

/// A layer with in-place changes of its result.
pub(super) struct Step<O: Ops> {
    pub layer: Layer<O>,
    pub changes: Vec<Change<O>>,
}

/// Computes a matrix from another one.
pub(super) enum Layer<O: Ops> {
    Convolve(Convolution, O::Linear),
    ConvolveChannels(Convolution, O::Matrix),
    ConvolveGroups(Box<GroupedConvolution<O>>),
    PoolLargest(Convolution),
    Multiply(O::Linear),
    Normalise(O::Norm),
    /// Mean over this number of pixels.
    Mean(usize),
    /// Concatenates parts of an image's rows: their width, and that of the new rows.
    Merge(Places, [usize; 2]),
    Attend(Box<WindowAttention<O>>),
    AttendSeparably(Box<SeparableAttention<O>>),
    AttendReduced(Box<ReducedAttention<O>>),
    AttendConvolved(Box<ConvolvedAttention<O>>),
    AttendPooled(Box<PooledAttention<O>>),
    Modulate(Box<Modulation<O>>),
    /// Prepends a row to every image; images are matrices of this height and width.
    Prepend(O::Matrix, [usize; 2]),
    /// Keeps the first row of every image; images are matrices of this height and width.
    First([usize; 2]),
    /// Norm over all values of an image: their number, and the number of channels.
    NormaliseImages(O::Norm, [usize; 2]),
    /// Group norm of an image.
    NormaliseGroups(Box<GroupNorm<O>>),
    /// Concatenates the input's channels with those that the steps compute: pixels per image, and channels of both.
    Append(Vec<Step<O>>, [usize; 3]),
    /// Concatenates the channels of branches, which are given with their channels; the number of pixels of a result.
    Fork(Vec<(Vec<Step<O>>, usize)>, usize),
    /// Sum of two branches; a branch without steps is the identity.
    Add(Vec<Step<O>>, Vec<Step<O>>),
}

/// Changes a matrix in place.
pub(super) enum Change<O: Ops> {
    Activate(Activation),
    Scale(O::Norm),
    /// Global response normalisation of images of this number of pixels.
    NormaliseResponses(usize, O::Norm),
    /// Squeeze-and-excitation of images of this number of pixels: multiplies channels by factors that steps compute
    /// from the mean pixel.
    Excite(usize, Vec<Step<O>>),
    /// Adds the same rows to every image: a matrix of this height and width.
    AddRows(O::Matrix, [usize; 2]),
    /// Multiplies every image by the same rows, element by element.
    TimesRows(O::Matrix, [usize; 2]),
}

/// Runs steps in order; `None` without steps.
pub(super) fn run<O: Ops>(ops: &O, steps: &[Step<O>], x: &O::Matrix, images: usize) -> Option<O::Matrix> {
    run_with(ops, steps, x, images, Epilogue::default())
}

/// Runs steps in order, with an epilogue for the last; `None` without steps.
fn run_with<O: Ops>(
    ops: &O,
    steps: &[Step<O>],
    x: &O::Matrix,
    images: usize,
    epilogue: Epilogue<'_, O::Matrix>,
) -> Option<O::Matrix> {
    let (last, before) = steps.split_last()?;
    let entered = before.iter().fold(None, |result, step| {
        let input = result.as_ref().unwrap_or(x);
        Some(step.run(ops, input, images, Epilogue::default()))
    });
    Some(last.run(ops, entered.as_ref().unwrap_or(x), images, epilogue))
}

impl<O: Ops> Step<O> {
    fn run(&self, ops: &O, x: &O::Matrix, images: usize, epilogue: Epilogue<'_, O::Matrix>) -> O::Matrix {
        let Some((first, rest)) = self.changes.split_first() else {
            return self.layer.run(ops, x, images, epilogue);
        };
        let result = match first {
            Change::Activate(activation) => self.layer.run(ops, x, images, (*activation).into()),
            change => change.run(ops, self.layer.run(ops, x, images, Epilogue::default()), images),
        };
        let changed = rest.iter().fold(result, |x, change| change.run(ops, x, images));
        epilogue.apply(ops, changed)
    }
}

impl<O: Ops> Layer<O> {
    fn run(&self, ops: &O, x: &O::Matrix, images: usize, epilogue: Epilogue<'_, O::Matrix>) -> O::Matrix {
        let result = match self {
            Self::Convolve(convolution, linear) => {
                return ops.convolve_with(x, convolution, linear, epilogue);
            }
            Self::Add(branch, shortcut) if epilogue.residual.is_none() => {
                return sum(ops, [branch, shortcut], x, images, epilogue.activation);
            }
            Self::Add(branch, shortcut) => sum(ops, [branch, shortcut], x, images, None),
            Self::ConvolveChannels(convolution, weights) => ops.depthwise_convolve(x, convolution, weights),
            Self::ConvolveGroups(convolution) => convolution.run(ops, x, images),
            Self::PoolLargest(convolution) => ops.max_pool(x, convolution),
            Self::Multiply(linear) => ops.multiply(x, linear),
            Self::Normalise(norm) => ops.normalise(x, norm),
            Self::Mean(count) => ops.mean(x, *count),
            Self::Merge(places, [part, width]) => {
                let places = places.of_images(images);
                // Copies by taking the mean of one row.
                let selected = if *part == 1 {
                    ops.select(&ops.with_width(ops.mean(x, 1), 1), &places)
                } else {
                    ops.select(x, &places)
                };
                ops.with_width(selected, *width)
            }
            Self::Attend(attention) => attention.run(ops, x, images),
            Self::AttendSeparably(attention) => attention.run(ops, x, images),
            Self::AttendReduced(attention) => attention.run(ops, x, images),
            Self::AttendConvolved(attention) => attention.run(ops, x, images),
            Self::AttendPooled(attention) => attention.run(ops, x, images),
            Self::Modulate(modulation) => modulation.run(ops, x),
            Self::NormaliseGroups(norm) => norm.run(ops, x, images),
            Self::Append(steps, [pixels, channels, added]) => {
                let rows = pixels * images;
                match run(ops, steps, x, images) {
                    Some(own) => appended(ops, x, own, rows, [*channels, *added]),
                    // Copies by taking the mean of one row.
                    None => ops.mean(x, 1),
                }
            }
            Self::Fork(branches, pixels) => {
                let parts = branches.iter().map(|(steps, channels)| {
                    // A branch without steps is a copy, by taking the mean of one row.
                    let result = run(ops, steps, x, images).unwrap_or_else(|| ops.mean(x, 1));
                    (result, *channels)
                });
                concatenated(ops, parts.collect(), pixels * images)
            }
            Self::Prepend(row, [count, width]) => {
                let spans = (0..images).flat_map(|image| [span(row, 0, 1), span(x, image * count, *count)]);
                ops.gather(&spans.collect::<Vec<_>>(), *width)
            }
            Self::First([count, width]) => {
                let spans = (0..images).map(|image| span(x, image * count, 1));
                ops.gather(&spans.collect::<Vec<_>>(), *width)
            }
            Self::NormaliseImages(norm, [values, channels]) => {
                // Copies by taking the mean of one row.
                let whole = ops.with_width(ops.mean(x, 1), *values);
                ops.with_width(ops.normalise(&whole, norm), *channels)
            }
        };
        epilogue.apply(ops, result)
    }
}

/// Adds two branches of the same input and activates the sum, in the pass of the first branch's last step if possible.
fn sum<O: Ops>(
    ops: &O,
    [branch, shortcut]: [&[Step<O>]; 2],
    x: &O::Matrix,
    images: usize,
    activation: Option<Activation>,
) -> O::Matrix {
    let other = run(ops, shortcut, x, images);
    let epilogue = Epilogue {
        residual: Some(other.as_ref().unwrap_or(x)),
        activation,
    };
    let sum = run_with(ops, branch, x, images, epilogue);
    // A branch without steps is a copy, by taking the mean of one row.
    sum.unwrap_or_else(|| epilogue.apply(ops, ops.mean(x, 1)))
}

impl<O: Ops> Change<O> {
    fn run(&self, ops: &O, mut x: O::Matrix, images: usize) -> O::Matrix {
        match self {
            Self::Activate(activation) => return ops.activate(x, *activation, false),
            Self::Scale(factors) => ops.scale(&mut x, factors),
            Self::NormaliseResponses(count, norm) => ops.global_response_norm(&mut x, *count, norm),
            Self::Excite(count, steps) => {
                let mean = ops.mean(&x, *count);
                let factors = run(ops, steps, &mean, images).unwrap_or(mean);
                ops.scale_images(&mut x, *count, &factors);
            }
            Self::AddRows(rows, size) => ops.add(&mut x, &repeated(ops, rows, *size, images)),
            Self::TimesRows(rows, size) => ops.times(&mut x, &repeated(ops, rows, *size, images)),
        }
        x
    }
}

/// Repeats a matrix of this height and width for every image.
fn repeated<O: Ops>(ops: &O, matrix: &O::Matrix, [count, width]: [usize; 2], images: usize) -> O::Matrix {
    ops.gather(&vec![span(matrix, 0, count); images], width)
}

/// Returns rows of a matrix.
pub(super) fn span<X>(matrix: &X, from: usize, count: usize) -> Span<'_, X> {
    Span { matrix, from, count }
}
