//! Determines into how many partitions a checkpoint can be split: the number of layers, if its architecture supports
//! partitions.

use std::num::NonZeroU32;
use std::path::Path;

use kaskade_models::LoadError;

use crate::config::Task;

/// Size of an activation, bytes.
const BYTES: f64 = 4.0;

/// Partitioning limits of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Partitions {
    /// Largest number of partitions; 1 if it cannot be split.
    pub layers: u32,
    /// Size of the largest hidden-state message between partitions, bytes, for one token if the model has no length
    /// limit; 0 if it cannot be split.
    pub hidden_bytes: f64,
}

impl Partitions {
    /// Limits of a model that cannot be split.
    const WHOLE: Self = Self {
        layers: 1,
        hidden_bytes: 0.0,
    };
}

/// Returns the partitioning limits of a checkpoint of an app: a Hugging Face directory, a GGUF file, or a directory
/// with one. Models that rank passages are not split. Neither are generating models, unless all answers have one token
/// (`max_tokens` 1), because partitions generate one token per request. Does not read the weights.
///
/// # Errors
/// [`LoadError`] if the configuration cannot be read, or the architecture is unknown.
pub fn of(task: Task, max_tokens: Option<NonZeroU32>, dir: &Path) -> Result<Partitions, LoadError> {
    let is_whole = match task {
        Task::Ranking => true,
        Task::Generation => max_tokens != Some(NonZeroU32::MIN),
        _ => false,
    };
    if is_whole {
        return Ok(Partitions::WHOLE);
    }
    let Some(known) = kaskade_models::partitioning(dir)? else {
        return Ok(Partitions::WHOLE);
    };
    Ok(Partitions {
        layers: u32::try_from(known.layers).unwrap_or(u32::MAX),
        hidden_bytes: known.tokens.unwrap_or(1) as f64 * known.width as f64 * BYTES,
    })
}

/// Returns the largest number of partitions in which a checkpoint can be loaded, for any task: the number of its
/// layers, or 1.
///
/// # Errors
/// As [`of`].
pub(crate) fn max_partitions(dir: &Path) -> Result<u32, LoadError> {
    let known = kaskade_models::partitioning(dir)?;
    Ok(known.map_or(1, |known| u32::try_from(known.layers).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn of(dir: &Path) -> Result<Partitions, LoadError> {
        super::of(Task::Classification, None, dir)
    }

    fn fixture(name: &str) -> PathBuf {
        Path::new(kaskade_testkit::ROOT)
            .join("models/fixtures")
            .join(name)
    }

    #[test]
    fn layers_bound_what_can_be_cut() {
        for (name, layers, tokens, width) in [
            ("llama", 3, 96, 32),
            ("distilbert", 3, 48, 16),
            ("gpt2", 2, 96, 24),
            ("bert-classification", 2, 24, 16),
            ("vit", 2, 7, 16),
            ("gguf/llama", 2, 96, 32),
        ] {
            let found = of(&fixture(name)).unwrap();
            let bytes = f64::from(tokens * width) * BYTES;
            assert_eq!((found.layers, found.hidden_bytes), (layers, bytes), "{name}");
        }
    }

    #[test]
    fn what_is_not_served_in_partitions_is_not_cut() {
        for name in ["cnn", "resnet", "t5", "bart-classification", "gemma4-small"] {
            assert_eq!(of(&fixture(name)).unwrap(), Partitions::WHOLE, "{name}");
        }
        let ranks = super::of(Task::Ranking, None, &fixture("distilbert"));
        assert_eq!(ranks.unwrap(), Partitions::WHOLE);
        for (max_tokens, layers) in [(None, 1), (NonZeroU32::new(2), 1), (NonZeroU32::new(1), 3)] {
            let generates = super::of(Task::Generation, max_tokens, &fixture("llama")).unwrap();
            assert_eq!(generates.layers, layers, "{max_tokens:?}");
        }
    }

    #[test]
    fn what_has_no_weights_yet_is_cut_by_its_configuration() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(
            fixture("llama").join("config.json"),
            dir.path().join("config.json"),
        )
        .unwrap();
        assert_eq!(of(dir.path()).unwrap(), of(&fixture("llama")).unwrap());
        std::fs::write(
            dir.path().join("config.json"),
            r#"{"architectures": ["BertModel"]}"#,
        )
        .unwrap();
        let error = of(dir.path()).unwrap_err();
        assert!(matches!(error, LoadError::MissingKey { .. }), "{error}");
    }
}
