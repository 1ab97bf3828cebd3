//! What the `config.json` of a variant of this family says.

use std::error::Error;
use std::path::Path;

use kaskade_models::architectures::cnn::{self, Cnn, CnnConfig};
use kaskade_models::architectures::mlp::{self, Mlp, MlpConfig};
use serde_json::{Map, Value, json};

use crate::write::write;

/// Writes a perceptron for images of this shape.
pub(crate) fn mlp(
    directory: &Path,
    input_shape: [usize; 3],
    config: &MlpConfig,
    network: &Mlp,
) -> Result<(), Box<dyn Error>> {
    let json = json!({
        "architectures": [mlp::MODEL_TYPE],
        "model_type": mlp::MODEL_TYPE,
        "input_shape": input_shape,
        "hidden_sizes": config.hidden_sizes,
        "id2label": id2label(config.labels),
    });
    write(directory, &json, network)
}

/// Writes a convolutional network.
pub(crate) fn cnn(directory: &Path, config: &CnnConfig, network: &Cnn) -> Result<(), Box<dyn Error>> {
    let json = json!({
        "architectures": [cnn::MODEL_TYPE],
        "model_type": cnn::MODEL_TYPE,
        "input_shape": config.input,
        "stages": config.stages,
        "id2label": id2label(config.labels),
    });
    write(directory, &json, network)
}

fn id2label(labels: usize) -> Map<String, Value> {
    (0..labels)
        .map(|label| (label.to_string(), Value::from(label.to_string())))
        .collect()
}
