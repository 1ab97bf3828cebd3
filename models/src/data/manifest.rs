//! `family.json`: the checkpoints of a family, smallest to largest, and the data they were trained on.
//!
//! The training program writes it next to the checkpoints' directories; serving reads it.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Name of the file.
pub const MANIFEST_FILE: &str = "family.json";
/// Version of the format that this build writes and reads.
pub const MANIFEST_VERSION: u32 = 1;

/// A family of image classifiers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version, [`MANIFEST_VERSION`].
    pub version: u32,
    /// The app that the family serves.
    pub app: String,
    /// The input of every variant.
    pub input: ImageInput,
    /// How the labelled images were split, in file order.
    pub split: Split,
    /// The family, smallest to largest.
    pub variants: Vec<ManifestVariant>,
}

/// The input of every variant of a family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageInput {
    /// Its name.
    pub name: String,
    /// Its shape, without the batch dimension.
    pub shape: Vec<usize>,
    /// Factor from a stored intensity to the input's value.
    pub rescale: f32,
}

/// Numbers of images, in file order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// First part: training.
    pub train: usize,
    /// Second part: choice of hyperparameters, temperatures and thresholds.
    pub validation: usize,
    /// Third part: held out.
    pub test: usize,
}

/// One variant of a family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestVariant {
    /// Its name, unique in the family.
    pub name: String,
    /// Its checkpoint's directory, relative to the manifest's.
    pub directory: PathBuf,
    /// Number of weights.
    pub parameters: u64,
    /// Accuracy on the validation images, in [0, 1].
    pub validation_accuracy: f64,
}

/// Why a manifest cannot be used.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("cannot read `{file}`: {source}")]
    Io {
        /// The file.
        file: String,
        /// Message of the operating system.
        source: std::io::Error,
    },
    /// The file is not valid JSON for a manifest.
    #[error("`{file}` is not a family's manifest: {source}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// The version is not supported.
    #[error("`{file}` has version {found}; this build reads version {MANIFEST_VERSION}")]
    Version {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
    },
    /// The values are inconsistent.
    #[error("`{file}`: {reason}")]
    Invalid {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
}

impl Manifest {
    /// Reads [`MANIFEST_FILE`] in a family's directory.
    ///
    /// # Errors
    /// [`ManifestError`], naming the file.
    pub fn read(family: &Path) -> Result<Self, ManifestError> {
        let path = family.join(MANIFEST_FILE);
        let file = path.display().to_string();
        match std::fs::read(&path) {
            Ok(json) => Self::parse(&file, &json),
            Err(source) => Err(ManifestError::Io { file, source }),
        }
    }

    /// Parses the bytes of a manifest; `file` is its name in errors.
    ///
    /// # Errors
    /// [`ManifestError::Json`], [`ManifestError::Version`] or [`ManifestError::Invalid`].
    pub fn parse(file: &str, json: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = serde_json::from_slice(json).map_err(|source| ManifestError::Json {
            file: file.to_owned(),
            source,
        })?;
        if manifest.version != MANIFEST_VERSION {
            return Err(ManifestError::Version {
                file: file.to_owned(),
                found: manifest.version,
            });
        }
        match manifest.contradiction() {
            None => Ok(manifest),
            Some(reason) => Err(ManifestError::Invalid {
                file: file.to_owned(),
                reason,
            }),
        }
    }

    fn contradiction(&self) -> Option<String> {
        let mut seen = HashSet::new();
        if self.variants.is_empty() {
            return Some("it has no variants".into());
        }
        if !(self.input.rescale.is_finite() && self.input.rescale > 0.0) {
            return Some(format!(
                "input.rescale is {}; it must be a positive number",
                self.input.rescale
            ));
        }
        self.variants.iter().find_map(|variant| {
            let ManifestVariant { name, directory, .. } = variant;
            // A family is distributed as one directory and must not refer to others.
            let outside = directory
                .components()
                .any(|component| !matches!(component, Component::Normal(_)));
            if !seen.insert(name) {
                Some(format!("variant `{name}` exists twice"))
            } else if outside || directory.as_os_str().is_empty() {
                Some(format!(
                    "variant `{name}` is in `{}`; it must be in a directory below the manifest's",
                    directory.display()
                ))
            } else {
                None
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            version: MANIFEST_VERSION,
            app: "digits".into(),
            input: ImageInput {
                name: "image".into(),
                shape: vec![1, 8, 8],
                rescale: 0.0625,
            },
            split: Split {
                train: 3,
                validation: 2,
                test: 1,
            },
            variants: vec![ManifestVariant {
                name: "tiny".into(),
                directory: "tiny".into(),
                parameters: 7,
                validation_accuracy: 0.5,
            }],
        }
    }

    fn rejection(change: impl FnOnce(&mut Manifest)) -> String {
        let mut manifest = manifest();
        change(&mut manifest);
        let json = serde_json::to_vec(&manifest).unwrap();
        Manifest::parse("f", &json).unwrap_err().to_string()
    }

    #[test]
    fn a_manifest_round_trips() {
        let json = serde_json::to_vec(&manifest()).unwrap();
        assert_eq!(Manifest::parse("f", &json).unwrap(), manifest());
    }

    #[test]
    fn contradictions_are_named() {
        assert_eq!(
            rejection(|m| m.version = 9),
            "`f` has version 9; this build reads version 1"
        );
        assert_eq!(rejection(|m| m.variants.clear()), "`f`: it has no variants");
        assert!(rejection(|m| m.variants.extend(manifest().variants)).contains("`tiny` exists twice"));
        assert!(rejection(|m| m.input.rescale = 0.0).contains("positive number"));
        for directory in ["", "..", "/etc", "tiny/../../x"] {
            assert!(
                rejection(|m| m.variants[0].directory = directory.into()).contains("below the manifest's")
            );
        }
    }

    #[test]
    fn unknown_fields_and_missing_files_are_rejected() {
        assert!(matches!(
            Manifest::parse("f", br#"{"version": 1, "colour": 2}"#),
            Err(ManifestError::Json { .. })
        ));
        assert!(matches!(
            Manifest::read(Path::new("/nowhere")),
            Err(ManifestError::Io { .. })
        ));
    }
}
