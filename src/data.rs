//! Labelled samples, ready for a model.

use std::num::NonZeroUsize;

use anyhow::{Context as _, bail, ensure};
use kaskade::config::data::{DataSet, IdxImages};
use kaskade::models::idx::LabelledImages;
use kaskade::models::{Datatype, Extent, InputSpec, Inputs, Signature, Tensor};

/// Labelled samples of one set, in its order.
#[derive(Debug, Clone)]
pub struct Samples {
    /// What each request brings.
    pub inputs: Vec<Inputs>,
    /// The right class of each.
    pub labels: Vec<usize>,
}

impl Samples {
    /// Reads a set in the form that `signature` takes.
    ///
    /// # Errors
    /// When a file is not what it should be, or its samples are not what the model takes.
    pub fn read(set: &DataSet, signature: &Signature) -> anyhow::Result<Self> {
        match set {
            DataSet::Idx(idx) => {
                let images = LabelledImages::read(&idx.images, &idx.labels)?;
                Self::from_images(&images, idx, signature)
                    .with_context(|| format!("{} cannot be used", idx.images.display()))
            }
        }
    }

    /// Images in the form that `signature` takes: `spec` says which, of what shape, and how a byte becomes a number.
    ///
    /// # Errors
    /// When none are left, or they are not what the model takes.
    pub fn from_images(
        images: &LabelledImages,
        spec: &IdxImages,
        signature: &Signature,
    ) -> anyhow::Result<Self> {
        let input = image_input(signature)?;
        let (height, width) = images.size();
        let shape = match &spec.shape {
            Some(shape) => shape.iter().copied().map(NonZeroUsize::get).collect(),
            None => natural_shape(input, height, width),
        };
        let take = spec.take.map_or(usize::MAX, NonZeroUsize::get);
        let mut samples = Self {
            inputs: Vec::new(),
            labels: Vec::new(),
        };
        for (pixels, label) in images.iter().skip(spec.skip).take(take) {
            let values: Vec<f32> = pixels.iter().map(|pixel| spec.normalise.apply(*pixel)).collect();
            let tensor = Tensor::from_f32(&input.name, &shape, &values)?;
            samples.inputs.push(vec![tensor]);
            samples.labels.push(usize::from(label));
        }
        ensure!(
            spec.take.is_none_or(|take| samples.labels.len() == take.get()) && !samples.labels.is_empty(),
            "there are {} samples after the first {}; correct `skip` and `take`",
            samples.labels.len(),
            spec.skip
        );
        samples.check(signature)?;
        Ok(samples)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Nothing, if every sample is what a model of this signature takes.
    ///
    /// # Errors
    /// The first sample that is not, by its number from 0.
    pub fn check(&self, signature: &Signature) -> anyhow::Result<()> {
        for (number, inputs) in self.inputs.iter().enumerate() {
            signature
                .check(inputs)
                .with_context(|| format!("sample {number} is not what the model takes"))?;
        }
        Ok(())
    }
}

/// The one input that images go to.
fn image_input(signature: &Signature) -> anyhow::Result<&InputSpec> {
    let mut required = signature.inputs.iter().filter(|input| !input.optional);
    match (required.next(), required.next()) {
        (Some(input), None) if input.datatype == Datatype::F32 => Ok(input),
        _ => bail!(
            "images go to models with one required FP32 input; this one takes {:?}",
            signature.inputs
        ),
    }
}

/// The model's own shape where it holds exactly one image, the image's otherwise.
fn natural_shape(input: &InputSpec, height: usize, width: usize) -> Vec<usize> {
    let exact: Option<Vec<usize>> = input
        .shape
        .iter()
        .map(|extent| match extent {
            Extent::Exactly(extent) => Some(*extent),
            Extent::UpTo(_) => None,
        })
        .collect();
    exact
        .filter(|shape| shape.iter().product::<usize>() == height * width)
        .unwrap_or_else(|| vec![1, height, width])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(shape: &[usize]) -> Signature {
        let extents = shape.iter().map(|extent| Extent::Exactly(*extent)).collect();
        Signature {
            inputs: vec![InputSpec::required("pixels", Datatype::F32, extents)],
        }
    }

    /// Three images of 1x2.
    fn images() -> LabelledImages {
        let pixels = [
            0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 51, 102, 153, 204, 255,
        ];
        let labels = [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9];
        LabelledImages::parse(("i", &pixels), ("l", &labels)).unwrap()
    }

    fn spec(extra: &str) -> IdxImages {
        toml::from_str(&format!("images = \"i\"\nlabels = \"l\"\n{extra}")).unwrap()
    }

    #[test]
    fn samples_are_cut_normalised_and_shaped() {
        let samples = Samples::from_images(&images(), &spec("skip = 1\ntake = 1"), &signature(&[2])).unwrap();
        assert_eq!(samples.labels, [8]);
        let tensor = &samples.inputs[0][0];
        assert_eq!(
            (tensor.name.as_str(), tensor.shape.as_slice()),
            ("pixels", [2].as_slice())
        );
        let values = tensor.to_f32().unwrap();
        assert!(
            (values[0] - 0.4).abs() < 1e-6 && (values[1] - 0.6).abs() < 1e-6,
            "{values:?}"
        );
    }

    #[test]
    fn a_model_of_another_size_and_a_set_too_short_are_refused() {
        let refused = |extra: &str, shape: &[usize]| {
            let error = Samples::from_images(&images(), &spec(extra), &signature(shape)).unwrap_err();
            format!("{error:#}")
        };
        assert!(refused("", &[1, 3, 3]).contains("sample 0"));
        assert!(refused("shape = [3]", &[2]).contains("bytes"));
        assert!(refused("skip = 3", &[2]).contains("0 samples after the first 3"));
        assert!(refused("skip = 2\ntake = 2", &[2]).contains("1 samples after the first 2"));
    }
}
