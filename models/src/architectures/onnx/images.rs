//! Image files for a graph whose only input is a tensor of pixels.

use std::borrow::Cow;
use std::path::Path;

use super::session::{Dimension, Port};
use crate::checkpoint::{Config, LoadError, preprocessor_of};
use crate::images::{self, FileReader, IMAGE_FILE};
use crate::runtime::model::{Extent, InputSpec, Inputs, ModelError, Signature};
use crate::runtime::tensor::{Datatype, Tensor};

/// Name of the input of exports from transformers, `[batch, channels, height, width]`.
const PIXELS: &str = "pixel_values";

/// Converts image files to the tensor of a graph.
pub(super) struct GraphImages {
    /// Name of the graph's input.
    tensor: String,
    /// Channels, height and width of a converted file.
    shape: [usize; 3],
    reader: FileReader,
}

impl GraphImages {
    /// Reads the image preprocessing beside an ONNX file. `None` if there is none, or the graph takes other inputs than
    /// one tensor of images with 1 or 3 channels. Settings that cannot be read or are not supported are logged: the graph
    /// then takes tensors only.
    pub(super) fn read(inputs: &[Port], folders: &[&Path], config: Option<&Config>) -> Option<Self> {
        let [port] = inputs else { return None };
        let sides = dimensions(port)?;
        Self::of(port, sides, folders, config).unwrap_or_else(|error| {
            tracing::warn!(%error, "the ONNX model takes no image files, only the tensor");
            None
        })
    }

    /// Reads the preprocessing in the first folder that has one, for a graph that states these channels, height and
    /// width.
    fn of(
        port: &Port,
        [channels, height, width]: [Option<usize>; 3],
        folders: &[&Path],
        config: Option<&Config>,
    ) -> Result<Option<Self>, LoadError> {
        let mut found = folders.iter().map(|folder| preprocessor_of(folder, config));
        let Some(settings) = found.find_map(Result::transpose).transpose()? else {
            return Ok(None);
        };
        let stated = config.map_or(Ok(None), |config| config.optional("num_channels"));
        let channels = channels.or(stated?).unwrap_or(3);
        let sides = match (height, width) {
            (Some(height), Some(width)) => Some([height, width]),
            _ => images::fixed_size(&settings, channels)?,
        };
        let Some([height, width]) = sides else {
            return Ok(None);
        };
        let shape = [channels, height, width];
        Ok(Some(Self {
            tensor: port.name.clone(),
            shape,
            reader: FileReader::read(&settings, &shape)?,
        }))
    }

    /// Returns the inputs of a request: those of the graph, or a file in place of the tensor.
    pub(super) fn signature(graph: Signature) -> Signature {
        let mut inputs = graph.inputs;
        for input in &mut inputs {
            input.optional = true;
        }
        inputs.push(InputSpec::optional(
            IMAGE_FILE,
            Datatype::Bytes,
            vec![Extent::Exactly(1)],
        ));
        Signature { inputs }
    }

    /// Returns the inputs of the graph for a request that matches the signature.
    ///
    /// # Errors
    /// [`ModelError`] for a file that cannot be read, and if there is not exactly one input.
    pub(super) fn tensors<'a>(&self, inputs: &'a Inputs) -> Result<Cow<'a, Inputs>, ModelError> {
        match inputs.as_slice() {
            [input] if input.name == IMAGE_FILE => {
                let values = self.reader.values(input)?;
                let tensor = Tensor::from_f32(self.tensor.as_str(), &self.shape, &values)?;
                Ok(Cow::Owned(vec![tensor]))
            }
            [_] => Ok(Cow::Borrowed(inputs)),
            [] => Err(ModelError::MissingInput {
                name: self.tensor.clone(),
                expected: vec![self.tensor.clone(), IMAGE_FILE.to_owned()],
            }),
            _ => Err(ModelError::BadInput {
                name: IMAGE_FILE.to_owned(),
                reason: format!("it takes the place of `{}`; send one of them", self.tensor),
            }),
        }
    }
}

/// Returns channels, height and width that an input of images states: FP32 `[batch, channels, height, width]` with one
/// image or any number of images, and 1 or 3 channels. Channels of variable number are those of [`PIXELS`] only.
fn dimensions(port: &Port) -> Option<[Option<usize>; 3]> {
    let [batch, sides @ ..] = port.shape.as_slice() else {
        return None;
    };
    if port.datatype != Datatype::F32 || !matches!(batch, Dimension::Any(_) | Dimension::Exactly(1)) {
        return None;
    }
    let stated = |dimension: &Dimension| match dimension {
        Dimension::Exactly(extent) => Some(*extent),
        Dimension::Any(_) => None,
    };
    let [channels, height, width] = sides else {
        return None;
    };
    let channels = stated(channels);
    match channels {
        Some(1 | 3) => {}
        None if port.name == PIXELS => {}
        _ => return None,
    }
    Some([channels, stated(height), stated(width)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, datatype: Datatype, shape: &[usize]) -> Port {
        let dimension = |extent: &usize| match extent {
            0 => Dimension::Any("side".into()),
            extent => Dimension::Exactly(*extent),
        };
        Port {
            name: name.to_owned(),
            datatype,
            shape: shape.iter().map(dimension).collect(),
        }
    }

    #[test]
    fn only_graphs_of_one_image_tensor_take_files() {
        let of = |name, datatype, shape: &[usize]| dimensions(&port(name, datatype, shape));
        assert_eq!(of(PIXELS, Datatype::F32, &[0, 0, 0, 0]), Some([None; 3]));
        let fixed = Some([Some(3), Some(32), Some(48)]);
        assert_eq!(of("input", Datatype::F32, &[1, 3, 32, 48]), fixed);
        for (name, datatype, shape) in [
            ("input", Datatype::F32, &[0, 0, 0, 0][..]),
            ("input", Datatype::F32, &[0, 224, 224, 3]),
            ("input", Datatype::F32, &[8, 3, 32, 32]),
            ("input", Datatype::F32, &[0, 3, 32]),
            (PIXELS, Datatype::U8, &[0, 3, 32, 32]),
        ] {
            assert_eq!(of(name, datatype, shape), None, "{name} {datatype:?} {shape:?}");
        }
    }

    #[test]
    fn the_size_is_that_of_the_graph_else_of_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = |shape: &[usize]| [port(PIXELS, Datatype::F32, shape)];
        let read = |shape: &[usize], settings: &str, config: Option<&str>| {
            std::fs::write(folder.path().join("preprocessor_config.json"), settings).unwrap();
            let config = config.map(|json| Config::parse("config.json", json.as_bytes()).unwrap());
            let read = GraphImages::read(&inputs(shape), &[folder.path()], config.as_ref());
            read.map(|images| images.shape)
        };
        let square = r#"{"size": {"height": 32, "width": 32}, "image_mean": 0.5, "image_std": 0.5}"#;
        assert_eq!(read(&[0, 0, 0, 0], square, None), Some([3, 32, 32]));
        assert_eq!(read(&[1, 1, 32, 32], square, None), Some([1, 32, 32]));
        assert_eq!(
            read(&[0, 0, 0, 0], square, Some(r#"{"num_channels": 1}"#)),
            Some([1, 32, 32])
        );
        // The processor makes other images than the graph takes, is not known, or makes images of any size.
        assert_eq!(read(&[1, 3, 48, 48], square, None), None);
        let unknown = r#"{"image_processor_type": "DetrImageProcessor"}"#;
        assert_eq!(read(&[0, 0, 0, 0], unknown, None), None);
        assert_eq!(
            read(&[0, 0, 0, 0], r#"{"size": {"shortest_edge": 32}}"#, None),
            None
        );
        std::fs::remove_file(folder.path().join("preprocessor_config.json")).unwrap();
        let folders = [folder.path()];
        let of_timm = |mode: &str| {
            let preparation =
                format!(r#"{{"input_size": [3, 64, 64], "crop_pct": 0.9, "crop_mode": "{mode}"}}"#);
            let json = format!(r#"{{"architecture": "resnet18", "pretrained_cfg": {preparation}}}"#);
            let config = Config::parse("config.json", json.as_bytes()).unwrap();
            let images = GraphImages::read(&inputs(&[0, 3, 0, 0]), &folders, Some(&config));
            images.map(|images| images.shape)
        };
        assert_eq!(of_timm("center"), Some([3, 64, 64]));
        assert_eq!(of_timm("border"), None);
        assert!(GraphImages::read(&inputs(&[0, 3, 0, 0]), &folders, None).is_none());
    }
}
