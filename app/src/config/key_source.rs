//! Sources of keys: an environment variable or a file, never the key itself.

use std::fmt;
use std::path::PathBuf;

use kaskade_remote::Secret;
use kaskade_remote::secret::SecretError;
use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Source of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum KeySource {
    /// An environment variable.
    Env(String),
    /// A file, relative to this file.
    File(PathBuf),
}

impl<'de> Deserialize<'de> for KeySource {
    /// A derived implementation would show a key that was written in place of its source.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeySourceVisitor)
    }
}

struct KeySourceVisitor;

impl<'de> Visitor<'de> for KeySourceVisitor {
    type Value = KeySource;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("{ env = \"NAME\" } or { file = \"PATH\" }")
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<KeySource, E> {
        let reason =
            "api_key: write where the key is, `{ env = \"NAME\" }` or `{ file = \"PATH\" }`, not the key";
        Err(E::custom(reason))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<KeySource, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            env: Option<String>,
            file: Option<PathBuf>,
        }
        match Fields::deserialize(de::value::MapAccessDeserializer::new(map))? {
            Fields {
                env: Some(name),
                file: None,
            } => Ok(KeySource::Env(name)),
            Fields {
                env: None,
                file: Some(path),
            } => Ok(KeySource::File(path)),
            _ => Err(de::Error::custom("api_key: give one of `env` and `file`")),
        }
    }
}

impl KeySource {
    pub(super) fn read(&self) -> Result<Secret, SecretError> {
        match self {
            Self::Env(name) => Secret::from_variable(name),
            Self::File(path) => Secret::from_file(path),
        }
    }
}
