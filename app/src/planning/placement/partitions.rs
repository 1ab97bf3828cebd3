//! Into how many partitions a checkpoint can be cut: as many as it has layers, if its architecture is served in partitions.

use std::path::Path;

use serde::Deserialize;

use crate::planning::PlanningError;

/// Bytes of an activation.
const BYTES: f64 = 4.0;

/// The architectures of which a partition can be loaded alone, by `model_type`.
const CUT: [&str; 2] = ["bert", "vit"];

/// The result of partitioning a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Partitions {
    /// Most partitions; 1 where it cannot be cut.
    pub layers: u32,
    /// Bytes of the longest request from partition to partition; 0 if it cannot be partitioned.
    pub hidden_bytes: f64,
}

impl Partitions {
    /// One partition.
    const WHOLE: Self = Self {
        layers: 1,
        hidden_bytes: 0.0,
    };
}

/// The fields of a `config.json` that matter here.
#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    model_type: String,
    num_hidden_layers: Option<u32>,
    hidden_size: Option<u32>,
    max_position_embeddings: Option<u32>,
    image_size: Option<u32>,
    patch_size: Option<u32>,
}

/// Returns the result of partitioning the checkpoint in a directory.
///
/// # Errors
/// When its `config.json` cannot be read.
pub fn of(dir: &Path) -> Result<Partitions, PlanningError> {
    let file = dir.join("config.json");
    if !file.exists() && kaskade_models::checkpoint::is_checkpoint(dir) {
        // A GGUF file, which has a language model.
        return Ok(Partitions::WHOLE);
    }
    let text = std::fs::read_to_string(&file).map_err(PlanningError::unreadable(&file))?;
    let config: Config = serde_json::from_str(&text).map_err(PlanningError::of(&file))?;
    Ok(config.partitions())
}

impl Config {
    fn partitions(&self) -> Partitions {
        if !CUT.contains(&self.model_type.as_str()) {
            return Partitions::WHOLE;
        }
        let (Some(layers), Some(width)) = (self.num_hidden_layers, self.hidden_size) else {
            return Partitions::WHOLE;
        };
        Partitions {
            layers: layers.max(1),
            hidden_bytes: f64::from(self.tokens()) * f64::from(width) * BYTES,
        }
    }

    /// The longest sequence: of text as configured, of an image its patches and the class token.
    fn tokens(&self) -> u32 {
        let patches = self.image_size.zip(self.patch_size).map(|(image, patch)| {
            let side = image / patch.max(1);
            side.saturating_mul(side).saturating_add(1)
        });
        self.max_position_embeddings.or(patches).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions(json: &str) -> Partitions {
        serde_json::from_str::<Config>(json).unwrap().partitions()
    }

    #[test]
    fn layers_bound_what_can_be_cut() {
        let bert = partitions(
            r#"{"model_type": "bert", "num_hidden_layers": 4, "hidden_size": 256, "max_position_embeddings": 64}"#,
        );
        assert_eq!((bert.layers, bert.hidden_bytes), (4, 65_536.0));
        let vit = partitions(
            r#"{"model_type": "vit", "num_hidden_layers": 12, "hidden_size": 192, "image_size": 224, "patch_size": 16}"#,
        );
        assert_eq!((vit.layers, vit.hidden_bytes), (12, 197.0 * 192.0 * 4.0));
    }

    #[test]
    fn what_is_not_served_in_partitions_is_not_cut() {
        for json in [
            r#"{"model_type": "kaskade-cnn", "num_hidden_layers": 5, "hidden_size": 8}"#,
            r#"{"model_type": "bert"}"#,
            "{}",
        ] {
            assert_eq!(partitions(json).layers, 1, "{json}");
        }
    }
}
