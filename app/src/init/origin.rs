//! Where a variant of a new app is: a path or an endpoint, as the user states it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::config::scalar::SubjectToken;

/// Source of a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A checkpoint directory, a GGUF file or an ONNX file, with the variant's name if stated.
    Path(Option<SubjectToken>, PathBuf),
    /// An endpoint with the OpenAI API.
    Endpoint {
        /// Name of the variant, if stated.
        name: Option<SubjectToken>,
        /// Address of the endpoint.
        url: String,
        /// Model name at the endpoint.
        model: String,
        /// Environment variable with the key.
        key: Option<String>,
    },
}

impl Origin {
    /// Returns the endpoint of a model at an address, written as `URL` or `NAME=URL`; `key` is the environment variable
    /// with the key.
    pub fn endpoint(address: &str, model: &str, key: Option<&str>) -> Self {
        let named = address
            .split_once('=')
            .and_then(|(name, url)| Some((name.parse().ok()?, url)));
        let (name, url) = match named {
            Some((name, url)) => (Some(name), url),
            None => (None, address),
        };
        Self::Endpoint {
            name,
            url: url.to_owned(),
            model: model.to_owned(),
            key: key.map(str::to_owned),
        }
    }
}

impl FromStr for Origin {
    type Err = String;

    /// Parses `PATH` or `NAME=PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.split_once('=').filter(|_| !Path::new(text).exists());
        match named.and_then(|(name, path)| Some((name.parse().ok()?, path))) {
            Some((name, path)) => Ok(Self::Path(Some(name), path.into())),
            None => Ok(Self::Path(None, text.into())),
        }
    }
}
