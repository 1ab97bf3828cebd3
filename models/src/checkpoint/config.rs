//! Access to the keys of `config.json`.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::LoadError;

/// Maximum width, vocabulary or context: several times those of the largest models. Memory is allocated by these
/// numbers before they are compared with the file's tensors, and products of two of them must not overflow.
const MAX_SIZE: usize = 1 << 24;

/// Maximum number of classes.
const MAX_LABELS: u32 = 1 << 20;

/// A parsed `config.json`. Unused keys are ignored: Hugging Face writes dozens.
#[derive(Debug, Clone)]
pub struct Config {
    file: String,
    /// Prefix of the key names in errors; ends with a dot unless it is empty.
    path: String,
    keys: Map<String, Value>,
}

impl Config {
    /// Parses the bytes of a `config.json`; `file` is its name in errors.
    ///
    /// # Errors
    /// [`LoadError::BadConfig`] if the bytes are not a JSON object.
    pub fn parse(file: impl Into<String>, json: &[u8]) -> Result<Self, LoadError> {
        let file = file.into();
        // Older versions of transformers wrote `NaN` and `Infinity`, which are not valid JSON.
        let parsed = serde_json::from_slice(json)
            .or_else(|error| serde_json::from_slice(&without_special_numbers(json)).map_err(|_| error));
        match parsed {
            Ok(Value::Object(keys)) => Ok(Self {
                file,
                path: String::new(),
                keys,
            }),
            Ok(_) => Err(LoadError::BadConfig {
                file,
                reason: "it is JSON, but not an object".into(),
            }),
            Err(error) => Err(LoadError::BadConfig {
                file,
                reason: error.to_string(),
            }),
        }
    }

    /// Returns a configuration with these keys; `file` is the name of their source in errors.
    pub(super) fn of_keys(file: String, keys: Map<String, Value>) -> Self {
        Self {
            file,
            path: String::new(),
            keys,
        }
    }

    /// Name of the file in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// All keys.
    pub(crate) fn keys(&self) -> &Map<String, Value> {
        &self.keys
    }

    /// Returns the value of a required key.
    ///
    /// # Errors
    /// [`LoadError::MissingKey`], or [`LoadError::BadKey`] if the value is not a `T`.
    pub fn required<T: DeserializeOwned>(&self, key: &str) -> Result<T, LoadError> {
        self.optional(key)?.ok_or_else(|| LoadError::MissingKey {
            file: self.file.clone(),
            key: self.named(key),
        })
    }

    /// Returns the full name of a key for errors.
    fn named(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// Returns the value of a key that may be missing or null.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if the value is present and not a `T`.
    pub fn optional<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, LoadError> {
        let Some(value) = self.keys.get(key).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        match T::deserialize(value) {
            Ok(parsed) => Ok(Some(parsed)),
            Err(error) => Err(self.invalid_value(key, error.to_string())),
        }
    }

    /// Returns a required size of at least 1, such as a width or a number of layers.
    ///
    /// # Errors
    /// [`LoadError::MissingKey`], or [`LoadError::BadKey`] if the value is not a positive integer, or exceeds the
    /// maximum size.
    pub fn size(&self, key: &str) -> Result<usize, LoadError> {
        self.optional_size(key)?.ok_or_else(|| LoadError::MissingKey {
            file: self.file.clone(),
            key: self.named(key),
        })
    }

    /// Returns the object of a required key as a configuration; its errors prefix key names with `key` and a dot.
    ///
    /// # Errors
    /// [`LoadError::MissingKey`], or [`LoadError::BadKey`] if the value is not an object.
    pub(crate) fn nested(&self, key: &str) -> Result<Self, LoadError> {
        Ok(Self {
            file: self.file.clone(),
            path: format!("{}.", self.named(key)),
            keys: self.required(key)?,
        })
    }

    /// Returns a copy of the configuration with default values for keys that are missing or null.
    pub(crate) fn with_defaults(&self, defaults: &[(&str, Value)]) -> Self {
        let mut all = self.clone();
        for (key, value) in defaults {
            if self.keys.get(*key).is_none_or(Value::is_null) {
                all.set(key, value.clone());
            }
        }
        all
    }

    /// Sets the value of a key.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.keys.insert(key.to_owned(), value);
    }

    /// Returns the object of a key as a configuration; `defaults` are the values of missing keys.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if the value is present and not an object.
    pub(crate) fn section(&self, key: &str, defaults: &[(&str, Value)]) -> Result<Self, LoadError> {
        let mut keys: Map<String, Value> = self.optional(key)?.unwrap_or_default();
        for (key, value) in defaults {
            keys.entry(*key).or_insert_with(|| value.clone());
        }
        Ok(Self {
            file: self.file.clone(),
            path: String::new(),
            keys,
        })
    }

    /// Returns which of two key names, of old and new files, this file uses.
    pub(crate) fn present_key(&self, [first, second]: [&'static str; 2]) -> &'static str {
        let is_old = !self.keys.contains_key(first) && self.keys.contains_key(second);
        if is_old { second } else { first }
    }

    /// Returns an optional size of at least 1.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if the value is not a positive integer, or exceeds the maximum size.
    pub(crate) fn optional_size(&self, key: &str) -> Result<Option<usize>, LoadError> {
        match self.optional(key)? {
            Some(0) => Err(self.invalid_value(key, "it must be at least 1")),
            Some(size) if size > MAX_SIZE => {
                Err(self.invalid_value(key, format!("it must be at most {MAX_SIZE}")))
            }
            size => Ok(size),
        }
    }

    /// Returns the class names in the order of the logits, from `id2label`; without it, `LABEL_0`, `LABEL_1`, ... The
    /// number of classes is that of `id2label`, else `num_labels`, else 2, as in transformers.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if `id2label` does not name the classes 0, 1, ... without gaps, by strings, numbers or
    /// null.
    pub fn labels(&self) -> Result<Vec<String>, LoadError> {
        let Some(named) = self.optional::<Map<String, Value>>("id2label")? else {
            let count = self.optional::<u32>("num_labels")?.unwrap_or(2);
            if count > MAX_LABELS {
                return Err(self.invalid_value("num_labels", format!("it must be at most {MAX_LABELS}")));
            }
            return Ok((0..count).map(|class| format!("LABEL_{class}")).collect());
        };
        let name_of = |class: usize| match named.get(&class.to_string())? {
            Value::String(name) => Some(Ok(name.clone())),
            Value::Number(number) => Some(Ok(number.to_string())),
            // Name that transformers gives an unnamed class.
            Value::Null => Some(Ok(format!("LABEL_{class}"))),
            _ => Some(Err(
                self.invalid_value("id2label", "the name of a class must be a text")
            )),
        };
        let labels = (0..named.len())
            .map(name_of)
            .collect::<Option<Result<Vec<_>, _>>>();
        labels
            .transpose()?
            .filter(|labels| !labels.is_empty())
            .ok_or_else(|| {
                self.invalid_value("id2label", "it must name the classes 0, 1, 2, ... without a gap")
            })
    }

    /// Returns the model class: `architectures[0]`.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if `architectures` is not a list of names.
    pub(crate) fn class(&self) -> Result<Option<String>, LoadError> {
        let named = self.optional::<Vec<String>>("architectures")?;
        Ok(named.and_then(|named| named.into_iter().next()))
    }

    /// Builds the error for an architecture that is not in `known`.
    pub(crate) fn unknown_architecture(&self, known: Vec<&'static str>) -> LoadError {
        let model_type = self.optional::<String>("model_type").ok().flatten();
        LoadError::UnknownArchitecture {
            file: self.file.clone(),
            found: match (self.class().ok().flatten(), model_type) {
                (Some(name), _) => format!("`{name}`"),
                (None, Some(name)) => format!("`{name}` (by model_type)"),
                (None, None) => "in neither `architectures` nor `model_type`".into(),
            },
            known,
        }
    }

    /// Builds the error for a value that is not supported.
    pub(crate) fn invalid_value(&self, key: &str, reason: impl Into<String>) -> LoadError {
        LoadError::BadKey {
            file: self.file.clone(),
            key: self.named(key),
            value: self
                .keys
                .get(key)
                .map_or_else(|| "nothing".into(), Value::to_string),
            reason: reason.into(),
        }
    }
}

/// Replaces `Infinity`, `-Infinity` and `NaN` outside of strings by `null`.
fn without_special_numbers(json: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut in_text) = (Vec::with_capacity(json.len()), json, false);
    while let Some((first, after)) = rest.split_first() {
        let special = ["-Infinity", "Infinity", "NaN"];
        let special = special.iter().find_map(|name| rest.strip_prefix(name.as_bytes()));
        if let Some(after) = special.filter(|_| !in_text) {
            out.extend_from_slice(b"null");
            rest = after;
            continue;
        }
        out.push(*first);
        rest = after;
        match first {
            b'"' => in_text = !in_text,
            b'\\' if in_text => {
                if let Some((escaped, after)) = rest.split_first() {
                    out.push(*escaped);
                    rest = after;
                }
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Config {
        Config::parse("config.json", json.as_bytes()).unwrap()
    }

    #[test]
    fn missing_and_invalid_keys_are_named() {
        let config = config(r#"{"hidden_size": "wide", "num_hidden_layers": 0, "other": null}"#);
        assert_eq!(
            config.size("vocab_size").unwrap_err().to_string(),
            "`config.json` has no `vocab_size`, which this model needs"
        );
        assert!(
            config
                .size("hidden_size")
                .unwrap_err()
                .to_string()
                .contains("`hidden_size` = \"wide\"")
        );
        assert!(matches!(
            config.size("num_hidden_layers"),
            Err(LoadError::BadKey { .. })
        ));
        assert_eq!(config.optional::<u32>("other").unwrap(), None);
    }

    #[test]
    fn a_section_has_defaults() {
        let config = config(r#"{"vision_config": {"width": 3}, "other": 4}"#);
        let defaults = [("width", 1.into()), ("depth", 2.into())];
        let section = config.section("vision_config", &defaults).unwrap();
        assert_eq!(
            (section.size("width").unwrap(), section.size("depth").unwrap()),
            (3, 2)
        );
        assert_eq!(
            config
                .section("absent", &defaults)
                .unwrap()
                .size("width")
                .unwrap(),
            1
        );
        assert!(config.section("other", &defaults).is_err());
    }

    #[test]
    fn keys_of_a_nested_configuration_are_named_with_their_path() {
        let outer = config(r#"{"text_config": {"hidden_size": 0}, "other": 4}"#);
        let nested = outer.nested("text_config").unwrap();
        for (key, part) in [
            ("hidden_size", "`text_config.hidden_size` = 0"),
            ("vocab_size", "no `text_config.vocab_size`"),
        ] {
            let error = nested.size(key).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(matches!(
            outer.nested("absent"),
            Err(LoadError::MissingKey { .. })
        ));
        assert!(matches!(outer.nested("other"), Err(LoadError::BadKey { .. })));
    }

    #[test]
    fn numbers_that_json_lacks_are_missing() {
        let config = config(r#"{"limits": [0.0, Infinity, -Infinity], "a\"NaN": "NaN", "b": NaN}"#);
        let limits: Vec<Option<f64>> = config.required("limits").unwrap();
        assert_eq!(limits, [Some(0.0), None, None]);
        assert_eq!(config.required::<String>("a\"NaN").unwrap(), "NaN");
        assert_eq!(config.optional::<f64>("b").unwrap(), None);
    }

    #[test]
    fn huge_numbers_are_rejected() {
        let config = config(r#"{"head_dim": 1000000000000, "num_labels": 4294967295, "n_inner": 0}"#);
        for key in ["head_dim", "n_inner"] {
            assert!(
                matches!(config.optional_size(key), Err(LoadError::BadKey { .. })),
                "{key}"
            );
        }
        assert!(matches!(config.labels(), Err(LoadError::BadKey { .. })));
        assert_eq!(config.optional_size("hidden_size").unwrap(), None);
    }

    #[test]
    fn labels_are_in_the_order_of_the_logits() {
        let labels = config(r#"{"id2label": {"1": "dog", "0": "cat"}}"#)
            .labels()
            .unwrap();
        assert_eq!(labels, ["cat", "dog"]);
        assert_eq!(config("{}").labels().unwrap(), ["LABEL_0", "LABEL_1"]);
        assert!(
            config(r#"{"id2label": {"0": "cat", "2": "dog"}}"#)
                .labels()
                .is_err()
        );
        assert!(config(r#"{"id2label": {}}"#).labels().is_err());
        let numbers = config(r#"{"id2label": {"0": 1, "1": null, "2": 2.5}}"#);
        assert_eq!(numbers.labels().unwrap(), ["1", "LABEL_1", "2.5"]);
        assert!(config(r#"{"id2label": {"0": ["cat"]}}"#).labels().is_err());
    }

    #[test]
    fn json_that_is_not_an_object_is_rejected() {
        for json in ["", "[]", "{", "{\"a\": }", &"[".repeat(100_000)] {
            assert!(matches!(
                Config::parse("config.json", json.as_bytes()),
                Err(LoadError::BadConfig { .. })
            ));
        }
    }
}
