//! Into how many partitions a checkpoint can be cut: as many as it has layers, if its architecture is served in partitions.

use std::num::NonZeroU32;
use std::path::Path;

use kaskade_models::LoadError;

use crate::config::Task;

/// Bytes of an activation.
const BYTES: f64 = 4.0;

/// The most partitions of a checkpoint, and the size of what they send each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Partitions {
    /// Most partitions; 1 where it cannot be cut.
    pub layers: u32,
    /// Bytes of the longest request from partition to partition, of one token if the model has no limit; 0 if it cannot be partitioned.
    pub hidden_bytes: f64,
}

impl Partitions {
    /// One partition.
    const WHOLE: Self = Self {
        layers: 1,
        hidden_bytes: 0.0,
    };
}

/// Returns into how many partitions a checkpoint of an app can be split, and the size of what they send each other. The checkpoint is a
/// Hugging Face directory, a GGUF file, or a directory with one. Models that
/// rank passages are served whole, and so are those that generate, unless all answers have one token (`max_tokens` 1): partitions
/// generate one token per request. Weights are not read.
///
/// # Errors
/// When its configuration cannot be read, or the architecture is unknown.
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

/// Returns the most partitions in which a checkpoint can be loaded, whatever its task: as many as it has layers, or 1.
///
/// # Errors
/// As [`of`].
pub(crate) fn most(dir: &Path) -> Result<u32, LoadError> {
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
